import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from distributed import Client

from dask_nrbfn import EngineOptions, connect
from dask_nrbfn.numeric.threads import blas_threads
from tests.cluster.machine import cores
from tests.workflows.script import run_here

LOCAL = Path(__file__).parents[2] / "cluster" / "local.py"
# OpenBLAS starts no more threads than it has cores.
THREADS = min(3, cores())


def start(directory, *options):
    """Start a cluster that no thread setting of this process reaches; wait for its line."""
    own = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    process = subprocess.Popen(
        [sys.executable, str(LOCAL), *options],
        cwd=directory,
        env=own,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return process, process.stdout.readline()


def end(process, number):
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    directory = tmp_path_factory.mktemp("cluster")
    options = ("--workers", "2", "--threads", "3", "--memory", "400MiB")
    process, line = start(directory, *options)
    yield line, directory / "scheduler.json"
    end(process, signal.SIGTERM)


@pytest.mark.slow
def test_local__workers_have_the_shape_asked_for(cluster):
    line, path = cluster
    assert line.endswith(": use --scheduler-file scheduler.json\n")
    with Client(scheduler_file=str(path)) as client:
        client.wait_for_workers(2, timeout=60)
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        assert [worker["nthreads"] for worker in workers] == [1, 1]
        assert [worker["memory_limit"] for worker in workers] == [400 * 2**20] * 2
        assert list(client.run(blas_threads).values()) == [THREADS] * 2


@pytest.mark.slow
def test_local__engine_connects_through_the_file(cluster):
    _, path = cluster
    with connect(EngineOptions(scheduler_file=str(path))) as engine:
        assert (engine.n_workers, engine.threads) == (2, THREADS)


@pytest.mark.slow
def test_local__sigterm_ends_it_with_0_and_removes_the_file(tmp_path):
    process, _ = start(tmp_path, "--workers", "1", "--threads", "1")
    assert (tmp_path / "scheduler.json").exists()
    code, errors = end(process, signal.SIGTERM)
    assert code == 0, errors
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--workers", "0"), "workers is 0."),
        (("--threads", "-1"), "threads is -1."),
        (("--memory", "much"), "memory is 'much'."),
    ],
)
def test_local__option_that_cannot_be_used(tmp_path, options, problem):
    process = run_here("cluster/local.py", *options, cwd=tmp_path)
    assert process.returncode == 2
    what, how = process.stderr.splitlines()
    assert what == problem
    assert how
    assert list(tmp_path.iterdir()) == []
