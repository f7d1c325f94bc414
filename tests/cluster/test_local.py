import os
import signal
import subprocess
import sys

import pytest
from distributed import Client

from dask_nrbfn import EngineOptions, connect
from dask_nrbfn.numeric.threads import n_threads
from tests.cluster.manifests import CLUSTER

# OpenBLAS starts no more threads than it has cores.
THREADS = min(3, os.cpu_count())


@pytest.mark.slow
def test_local__workers_have_the_shape_asked_for_until_sigterm(tmp_path):
    # No thread setting of this process reaches them.
    own = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    options = ("--workers", "2", "--threads", "3", "--memory", "400MiB")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, str(CLUSTER / "local.py"), *options]
    process = subprocess.Popen(command, cwd=tmp_path, env=own, **pipes)
    assert process.stdout.readline().endswith(": use --scheduler-file scheduler.json\n")
    path = str(tmp_path / "scheduler.json")
    with Client(scheduler_file=path) as client:
        client.wait_for_workers(2, timeout=60)
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        assert [worker["nthreads"] for worker in workers] == [1, 1]
        assert [worker["memory_limit"] for worker in workers] == [400 * 2**20] * 2
        assert list(client.run(n_threads).values()) == [THREADS] * 2
    with connect(EngineOptions(scheduler_file=path)) as engine:
        assert (engine.n_workers, engine.threads) == (2, THREADS)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []
