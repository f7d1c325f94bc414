"""What is left of a run when processes die under it."""

import os
import signal
import subprocess
import sys
import threading

import dask
import pytest
from distributed import Client

from dask_nrbfn.engine import EngineOptions, connect
from dask_nrbfn.errors import ClusterError
from tests.engine import work
from tests.engine.processes import ENVIRONMENT, PATIENCE_S, Processes, wait_until

N_TASKS = 6


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Processes(tmp_path_factory.mktemp("cluster"), n_workers=1) as processes:
        yield processes


@pytest.fixture
def processes(cluster):
    """Give a cluster, whole again after the test before."""
    cluster.revive()
    return cluster


def sleepers(directory, seconds):
    return [(str(directory), number, seconds) for number in range(N_TASKS)]


@pytest.fixture
def begun(tmp_path):
    """Give a directory where tasks leave a file when they begin."""
    path = tmp_path / "begun"
    path.mkdir()
    return path


def act_when_begun(begun, action):
    """Do something to the cluster as soon as a task runs."""

    def act():
        wait_until(lambda: any(begun.iterdir()))
        action()

    thread = threading.Thread(target=act)
    thread.start()
    return thread


@pytest.mark.slow
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_run__scheduler_ends_and_the_next_engine_finds_another(processes, begun, signal_number):
    with connect(EngineOptions(scheduler=processes.address)) as engine:
        thread = act_when_begun(begun, lambda: processes.kill("scheduler", signal_number))
        with pytest.raises(ClusterError) as caught:
            engine.run(work.mark_and_sleep, sleepers(begun, 5), label="moments")
        thread.join()
        with pytest.raises(ClusterError, match="is lost"):
            engine.run(work.square, [(3,)], label="width")
    assert caught.value.problem == f"the connection to the scheduler {processes.address} is lost."
    assert "finished parts are kept" in caught.value.remedy
    wait_until(lambda: processes.revive() or processes.answers())
    with connect(EngineOptions(scheduler=processes.address)) as engine:
        assert engine.run(work.square, [(2,)], label="width") == [4]


@pytest.mark.slow
def test_run__all_workers_killed_and_none_comes(processes, begun, caplog):
    with (
        dask.config.set({"nrbfn.no-workers-timeout": "3 seconds"}),
        connect(EngineOptions(scheduler=processes.address)) as engine,
    ):
        thread = act_when_begun(begun, processes.kill_workers)
        with pytest.raises(ClusterError) as caught:
            engine.run(work.mark_and_sleep, sleepers(begun, 5), label="moments")
        thread.join()
    assert f"{processes.address} has had no workers for 3 s" in caught.value.problem
    waits = [line for line in caplog.messages if "all workers are lost" in line]
    assert waits == ["moments: all workers are lost; waiting 3 s for a worker"]


@pytest.mark.slow
def test_run__all_workers_killed_and_one_comes(processes, begun, caplog):
    def replace():
        processes.kill_workers()
        wait_until(lambda: "moments: all workers are lost; waiting 300 s" in caplog.text)
        processes.revive()

    with connect(EngineOptions(scheduler=processes.address)) as engine:
        thread = act_when_begun(begun, replace)
        numbers = engine.run(work.mark_and_sleep, sleepers(begun, 0.5), label="moments")
        thread.join()
    assert numbers == list(range(N_TASKS))


JOB = """
import signal
import sys
from dask_nrbfn.engine import EngineOptions, connect
from tests.engine import work
if __name__ == "__main__":
    scheduler, directory = sys.argv[1:]
    # As in a terminal: what a shell starts in the background ignores it, and so would this.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options = EngineOptions(scheduler=scheduler) if scheduler else EngineOptions(workers=1)
    with connect(options) as engine:
        # Longer than a test may take: it must be left as it runs.
        tasks = [(directory, number, 600 * (number == 0)) for number in range(9)]
        engine.run(work.mark_and_sleep, tasks, label="moments")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("where", "signal_number"), [("external", 2), ("local", 15)])
def test_run__interrupted(request, begun, tmp_path, where, signal_number):
    scheduler = request.getfixturevalue("processes").address if where == "external" else ""
    script = tmp_path / "job.py"
    script.write_text(JOB)
    job = subprocess.Popen(
        [sys.executable, str(script), scheduler, str(begun)],
        env=os.environ | ENVIRONMENT,
        stderr=subprocess.PIPE,
    )
    wait_until(lambda: any(begun.iterdir()), process=job)
    job.send_signal(signal_number)
    job.communicate(timeout=PATIENCE_S)
    assert job.returncode in (-signal_number, 128 + signal_number, 1)
    if where == "external":
        with Client(scheduler, set_as_default=False) as client:
            wait_until(lambda: client.run_on_scheduler(_n_waiting) == 0)
        # The task sleeps on.
        request.getfixturevalue("processes").kill_workers()
    assert len(list(begun.iterdir())) == 1


def _n_waiting(dask_scheduler):
    return sum(task.state in ("queued", "waiting") for task in dask_scheduler.tasks.values())
