import os
import sys

import dask
import pytest
from distributed import Client

from dask_nrbfn import errors
from dask_nrbfn.engine import EngineOptions, InlineEngine, connect
from dask_nrbfn.engine.connection import local_cluster
from dask_nrbfn.errors import MemoryBudgetError, WorkerLostError
from tests.engine import work
from tests.engine.processes import wait_until

CAN_RESET = os.access("/proc/self/clear_refs", os.W_OK)


@pytest.fixture(params=["inline", "two workers"])
def engine(request):
    if request.param == "inline":
        return InlineEngine()
    return request.getfixturevalue("two_workers")


@pytest.fixture(scope="module")
def mortal_workers():
    """Give an engine whose workers may be killed: one repetition of a task and it is given up."""
    options = EngineOptions(workers=2, threads=1, memory="1GiB")
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        local_cluster(options) as cluster,
        Client(cluster, set_as_default=False) as client,
        connect(client=client) as engine,
    ):
        yield engine


def test_run__results_in_order(engine):
    results = engine.run(work.square_later, [(i,) for i in range(20)], label="squares")
    assert results == [i * i for i in range(20)]


def test_run__tasks_that_follow_leave_the_results_of_others(engine):
    seen = []

    def follow(square):
        seen.append(square)
        return [(square + 5,), (square + 6,)] if square < 25 else []

    results = engine.run(work.square, [(i,) for i in range(5)], label="squares", follow=follow)
    assert results == [0, 1, 4, 9, 16]
    assert sorted(seen) == sorted(results + [(i + n) ** 2 for i in results for n in (5, 6)])
    if isinstance(engine, InlineEngine):
        # They start before the others.
        assert seen[:4] == [0, 36, 25, 1]


def test_run__both_processes_work(two_workers, tmp_path):
    tasks = [(str(tmp_path), i, 2) for i in range(2)]
    assert len(set(two_workers.run(work.meet, tasks, label="ids"))) == 2


@pytest.mark.skipif(not CAN_RESET, reason="the kernel does not let a process reset its peak")
def test_run__peak_starts_anew(engine):
    n_bytes = 200 * 10**6
    engine.run(work.allocate, [(n_bytes,)] * 4, label="allocate")
    assert engine.peak_bytes > n_bytes
    large, engine.peak_bytes = engine.peak_bytes, 0
    engine.run(work.square, [(1,)] * 4, label="squares")
    assert 0 < engine.peak_bytes < large - n_bytes // 2


def test_run__few_tasks_wait_at_the_scheduler(two_workers, monkeypatch, tmp_path):
    submitted, submit = [], two_workers.client.submit
    monkeypatch.setattr(
        two_workers.client, "submit", lambda *a, **k: submitted.append(k["key"]) or submit(*a, **k)
    )
    tasks = [(str(tmp_path / "failed"), i) for i in range(1000)]
    with pytest.raises(ZeroDivisionError):
        two_workers.run(work.fail_first, tasks, label="fail")
    # Those that went on until the first failure was told, which takes its time on a busy machine.
    assert len(submitted) < 500
    assert all(key.startswith("fail-") for key in submitted)


def test_run__releases_every_result(two_workers):
    two_workers.run(work.square, [(i,) for i in range(20)], label="squares")
    wait_until(lambda: two_workers.client.run_on_scheduler(_n_tasks) == 0)


def _n_tasks(dask_scheduler):
    return len(dask_scheduler.tasks)


def test_run__allocation_refused(engine):
    engine.expected_bytes = 2**30
    with pytest.raises(MemoryBudgetError) as caught:
        engine.run(work.refuse_memory, [(1,)], label="width")
    engine.expected_bytes = 0
    assert caught.value.problem.startswith("a width task could not allocate memory (Unable to")
    assert "; a width task is expected to need 1.00 GiB; workers " in caught.value.problem
    assert caught.value.remedy.startswith("Raise the workers' memory")


# That every kind of error pickles is tested in test_errors.
def test_run__error_arrives_as_it_was_raised(engine):
    kind = errors.StorageError
    with pytest.raises(kind) as caught:
        engine.run(work.raise_error, [(kind, "X has NaN in row 3.", "Remove ü.")], label="check")
    assert type(caught.value) is kind
    assert caught.value.problem == "X has NaN in row 3."
    assert caught.value.remedy == "Remove ü."
    assert str(caught.value) == "X has NaN in row 3. Remove ü."


def test_run__foreign_error_arrives_and_the_engine_goes_on(engine):
    with pytest.raises(ZeroDivisionError, match="task 2"):
        engine.run(work.fail_on, [(2, i) for i in range(5)], label="fail")
    assert engine.run(work.fail_on, [(9, i) for i in range(5)], label="fine") == list(range(5))


def test_connect__error_of_a_worker_arrives(two_workers, monkeypatch):
    module = sys.modules["dask_nrbfn.engine.connection"]
    monkeypatch.setattr(module, "_threads_once_loaded", work.refuse_import)
    with (
        pytest.raises(ModuleNotFoundError, match="dask_nrbfn"),
        connect(client=two_workers.client),
    ):
        pytest.fail("the block must not run")


@pytest.mark.slow
def test_run__worker_killed_every_time(mortal_workers):
    with pytest.raises(WorkerLostError) as caught:
        mortal_workers.run(work.kill_worker, [(i,) for i in range(4)], label="moments")
    assert caught.value.problem.startswith("a moments task lost 2 workers; ")
    assert "limited to 1.00 GiB, of which 0.95 GiB can be used" in caught.value.problem
    numbers = mortal_workers.run(work.square, [(i,) for i in range(4)], label="afterwards")
    assert numbers == [0, 1, 4, 9]


@pytest.mark.slow
def test_run__worker_killed_once(mortal_workers, tmp_path):
    marker = tmp_path / "killed"
    numbers = mortal_workers.run(
        work.kill_worker_once, [(str(marker), i) for i in range(6)], label="moments"
    )
    assert numbers == list(range(6))
    assert marker.exists()


@pytest.mark.slow
# The last of these workers, because what it kills takes a while to die.
def test_run__worker_out_of_memory(mortal_workers):
    tasks = [(3 * 2**29,), (2**25,), (2**25,)]
    mortal_workers.expected_bytes = 2**29
    with pytest.raises(WorkerLostError) as caught:
        mortal_workers.run(work.allocate_slowly, tasks, label="moments")
    assert "lost 2 workers; a moments task is expected to need 512.00 MiB" in caught.value.problem
    assert "raise the workers' memory" in caught.value.remedy
