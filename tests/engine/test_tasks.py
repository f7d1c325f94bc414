import logging
import subprocess
import sys

import dask
import pytest
from distributed import Client

from dask_nrbfn import errors
from dask_nrbfn.engine import EngineOptions, InlineEngine, connect
from dask_nrbfn.engine.connect import local_cluster
from dask_nrbfn.engine.tasks import measure, peak_resident_bytes
from dask_nrbfn.errors import NRBFNError, WorkerLostError
from tests.engine import work

ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, NRBFNError) and kind is not NRBFNError
]


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


def test_run__equal_tasks_each_run(engine):
    assert engine.run(work.square, [(3,)] * 4, label="squares") == [9] * 4


def test_run__no_tasks(engine):
    assert engine.run(work.square, [], label="nothing") == []


def test_run__both_processes_work(two_workers):
    assert len(set(two_workers.run(work.process_id, [(i,) for i in range(8)], label="ids"))) == 2


def test_run__peak_covers_the_largest_task(engine):
    n_bytes = 200 * 10**6
    assert engine.run(work.allocate, [(1000,), (n_bytes,)], label="allocate") == [1000, n_bytes]
    assert engine.peak_bytes > n_bytes


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_run__error_arrives_as_it_was_raised(engine, kind):
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


def test_run__first_error_cancels_what_waits(two_workers, tmp_path):
    late = [(str(tmp_path / f"{i}"),) for i in range(40)]
    failing = [(errors.DataError, "bad.", "mend it.")]
    with pytest.raises(errors.DataError):
        two_workers.run(_touch_or_raise, [*failing, *late], label="cancel")
    two_workers.run(work.square, [(1,)], label="afterwards")
    assert len(list(tmp_path.iterdir())) < 30


def _touch_or_raise(*arguments):
    return work.raise_error(*arguments) if len(arguments) > 1 else work.touch_later(*arguments)


def test_run__worker_killed_every_time(mortal_workers):
    with pytest.raises(WorkerLostError) as caught:
        mortal_workers.run(work.kill_worker, [(i,) for i in range(4)], label="moments")
    message = caught.value.problem
    assert message == "a moments task lost 2 workers, each with 1.00 GiB of memory for a task."
    assert "raise their memory" in caught.value.remedy
    assert isinstance(caught.value, RuntimeError)
    numbers = mortal_workers.run(work.square, [(i,) for i in range(4)], label="afterwards")
    assert numbers == [0, 1, 4, 9]


def test_run__worker_killed_once(mortal_workers, tmp_path):
    marker = tmp_path / "killed"
    numbers = mortal_workers.run(
        work.kill_worker_once, [(str(marker), i) for i in range(6)], label="moments"
    )
    assert numbers == list(range(6))
    assert marker.exists()


def test_measure__value_seconds_and_bytes():
    measured = measure(work.square_later, 2)
    assert measured.value == 4
    assert measured.seconds >= 0.04
    assert measured.peak_bytes > 10 * 2**20


def test_peak_resident_bytes__grows_with_what_is_allocated():
    script = (
        "from dask_nrbfn.engine.tasks import peak_resident_bytes as peak\n"
        "before = peak()\n"
        "block = bytearray(b'x') * 200_000_000\n"
        "del block\n"
        "print(before, peak())\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    before, after = map(int, finished.stdout.split())
    assert 10 * 2**20 < before < 2**30
    assert 190_000_000 < after - before < 260_000_000


def test_peak_resident_bytes__never_falls():
    before = peak_resident_bytes()
    block = bytearray(50_000_000)
    del block
    assert peak_resident_bytes() >= before


def test_run__logs_nothing_for_a_short_run(engine, caplog):
    with caplog.at_level(logging.INFO, logger="dask_nrbfn"):
        engine.run(work.square, [(i,) for i in range(3)], label="squares")
    assert caplog.messages == []
