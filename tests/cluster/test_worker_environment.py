import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from distributed import Client, LocalCluster

from dask_nrbfn.engine.threads import cluster_settings, worker_environment
from dask_nrbfn.numeric.threads import blas_threads
from tests.cluster.machine import cores

SCRIPT = Path(__file__).parents[2] / "cluster" / "worker-environment.sh"


def sourced(**environment):
    """Return the environment after sourcing the script in a shell that has only `environment`."""
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    command = f'. "{SCRIPT}" && "{sys.executable}" -c "{show}"'
    process = subprocess.run(
        ["sh", "-c", command], env=environment, capture_output=True, text=True, check=False
    )
    return process.returncode, process.stdout, process.stderr


def test_worker_environment__is_that_of_the_engine():
    code, out, errors = sourced(THREADS="3")
    assert code == 0, errors
    shell = {"THREADS", "PWD", "SHLVL", "OLDPWD", "_", "LC_CTYPE"}
    exported = {name: value for name, value in json.loads(out).items() if name not in shell}
    settings = cluster_settings(3)
    settings.pop("distributed.nanny.pre-spawn-environ")
    variables = {
        "DASK_" + name.upper().replace(".", "__").replace("-", "_"): value
        for name, value in settings.items()
    }
    assert exported == {**worker_environment(3), **variables}


def test_worker_environment__asks_for_threads():
    code, _, errors = sourced()
    assert code != 0
    assert "set THREADS" in errors


@pytest.mark.slow
def test_worker_environment__reaches_blas_in_a_worker_started_by_hand(tmp_path):
    # A dask worker overrides these variables with 1, except where they are set in its environment.
    with LocalCluster(n_workers=0, dashboard_address=":0") as cluster, Client(cluster) as client:
        worker = f'"{sys.executable}" -m distributed.cli.dask_worker --nthreads 1 --no-dashboard'
        process = subprocess.Popen(
            ["sh", "-c", f'. "{SCRIPT}" && exec {worker} {cluster.scheduler_address}'],
            env={**os.environ, "THREADS": "2"},
            cwd=tmp_path,
            stderr=subprocess.DEVNULL,
        )
        try:
            client.wait_for_workers(1, timeout=60)
            assert list(client.run(blas_threads).values()) == [min(2, cores())]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
