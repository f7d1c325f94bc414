"""Sums over rows: the tree that adds them, whoever is first and whoever is killed."""

import shutil
import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from zarr.storage import MemoryStore

from dask_nrbfn import parts as parts_module
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.engine.measure import measure
from dask_nrbfn.errors import DamagedDataError, DamagedResultError, ParameterError
from dask_nrbfn.numeric.sums import RowSum
from dask_nrbfn.params import FitParams
from dask_nrbfn.parts import (
    PartResult,
    Reduction,
    family_of,
    map_parts,
    members_of,
    read_total,
    reduce_parts,
)
from dask_nrbfn.spec import Spec
from dask_nrbfn.storage.run import Run
from dask_nrbfn.weighting import RowReading, RowWeights
from tests.stages.stopping import StoppedError
from tests.tables import write_table

N_ROWS = 700
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N_ROWS, 2)) * 10.0 ** RNG.integers(-8, 8, (N_ROWS, 1))
WEIGHTS = RNG.uniform(0.5, 2, N_ROWS)


@dataclass(frozen=True, eq=False)
class Total(RowSum):
    n_rows: int
    squares: NDArray[np.float64]


class SquaresPass:
    """Adds squares of very unequal size: another order has other bits."""

    def __init__(self, run, dataset, start, stop):
        self.reading = RowReading(block_rows=3, weighting=RowWeights(None))
        self._total = Total(0, np.zeros(dataset.n_features))

    def add(self, block):
        self._total += Total(len(block.X), np.square(block.X).sum(axis=0))

    def sums(self):
        return {"": self._total, "_twice": self._total + self._total}


@dataclass
class ShuffledEngine(InlineEngine):
    """Counts after every task how many sums are stored; begins tasks in an order of its own."""

    run_of: Run | None = None
    seed: int | None = None
    most_stored: int = 0
    n_tasks: int = 0

    def _finished(self, task, waiting, label):
        rng = np.random.default_rng(self.seed)
        while waiting:
            if self.seed is not None:
                waiting.rotate(rng.integers(len(waiting)))
            number, values = waiting.popleft()
            self.n_tasks += 1
            yield number, measure(task, *values)
            self.most_stored = max(self.most_stored, len(stored(self.run_of)))


def stored(run):
    """Return the stored sums; `finished_parts` would delete some of them."""
    return set(run._stored_parts("sums"))


def write(place):
    return write_table(place, X, np.arange(N_ROWS) % 2, weights=WEIGHTS, chunk_rows=50)


@pytest.fixture(scope="module")
def dataset():
    return write(MemoryStore())


def begin(dataset, n_parts, place=None):
    """Return a new run, and how its rows are summed in parts."""
    place = MemoryStore() if place is None else place
    run = Run.start(place, dataset, Spec.of(FitParams(n_parts=n_parts)), {})
    kinds = {"": Total, "_twice": Total}
    return run, Reduction("sums", SquaresPass, kinds, run.layout)


def total_of(dataset, n_parts, **options):
    run, reduction = begin(dataset, n_parts)
    engine = ShuffledEngine(run_of=run, **options)
    record = reduce_parts(run, dataset, engine, reduction)
    return run, record, read_total(run, reduction), engine


def bits(total):
    return total.n_rows, total.squares.tobytes()


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("n_parts", [1, 2, 4, 5, 17])
def test_reduce_parts__all_rows_in_the_same_bits_whoever_is_first(dataset, n_parts):
    run, record, expected, _ = total_of(dataset, n_parts)
    assert (record.rows, expected.n_rows) == (N_ROWS, N_ROWS)
    assert record.weight == pytest.approx(WEIGHTS.sum())
    np.testing.assert_allclose(expected.squares, np.square(X).sum(axis=0), rtol=1e-12)
    assert stored(run) == {range(len(run.layout.spans))}
    for seed in range(2):
        assert bits(total_of(dataset, n_parts, seed=seed)[2]) == bits(expected)


def test_map_parts__drops_what_a_killed_job_began(dataset, tmp_path):
    run, _ = begin(dataset, 3, tmp_path / "run")
    run.group("counts/parts/1/killed")

    def count(run, dataset, start, stop):
        return PartResult({"rows": stop - start}, {"starts": np.array([start])})

    records = map_parts(run, dataset, InlineEngine(), stage="counts", task=count)
    assert sum(record["rows"] for record in records) == N_ROWS
    assert not (tmp_path / "run" / "counts" / "parts" / "1" / "killed").exists()
    assert len([*tmp_path.glob("run/counts/parts/1/*/starts")]) == 1


def test_map_parts__a_task_that_runs_twice_works_once(dataset):
    run, _ = begin(dataset, 3)
    starts, begun = [], time.perf_counter()

    def count(run, dataset, start, stop):
        starts.append(start)
        return PartResult({"rows": stop - start})

    span = run.layout.spans[1]
    first, second = (
        parts_module._run_part(count, "counts", run, dataset, 1, span, 0) for _ in range(2)
    )
    assert first == second
    assert starts == [span[0]]
    assert 0 <= first["seconds"] <= time.perf_counter() - begun


def test_map_parts__units_that_changed_are_done_again(dataset):
    run, _ = begin(dataset, 3)

    def keep(run, dataset, *unit):
        return PartResult({"of": list(unit)})

    for units in ([(0,), (1,), (2,)], [(0,), (5,), (2,)], [(4,), (5,), (2,), (3,)]):
        engine = ShuffledEngine(run_of=run)
        records = map_parts(run, dataset, engine, stage="trials", task=keep, units=units)
        assert [record["of"] for record in records] == [list(unit) for unit in units]
    assert engine.n_tasks == 2


@pytest.mark.slow
def test_reduce_parts__few_sums_lie_on_the_disk(dataset):
    """One task at a time leaves the last part and at most three finished siblings on each level."""
    run, _, _, engine = total_of(dataset, 64)
    assert (len(run.layout.spans), engine.n_tasks) == (64, 64 + 16 + 4 + 1)
    assert engine.most_stored <= 3 * 3 + 1


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("n_stops", [1, 7, 21, 22, 25])
def test_reduce_parts__killed_after_any_task(dataset, n_stops):
    """A job that is killed between two tasks leaves its sums, and goes on with them."""
    _, _, expected, whole = total_of(dataset, 18)
    run, reduction = begin(dataset, 18)
    with pytest.raises(StoppedError):
        reduce_parts(run, dataset, StoppingEngine(n_tasks=n_stops), reduction)
    engine = ShuffledEngine(run_of=run, seed=0)
    reduce_parts(run, dataset, engine, reduction)
    assert engine.n_tasks == whole.n_tasks - n_stops
    assert bits(read_total(run, reduction)) == bits(expected)
    assert stored(run) == {range(len(run.layout.spans))}


@dataclass
class StoppingEngine(InlineEngine):
    """Is killed after a number of tasks, before it hears of the last one."""

    n_tasks: int = 0

    def _finished(self, task, waiting, label):
        for number, measured in super()._finished(task, waiting, label):
            self.n_tasks -= 1
            if not self.n_tasks:
                raise StoppedError
            yield number, measured


@pytest.mark.parametrize("repeated", [0, 3])
def test_reduce_parts__tasks_that_run_twice(dataset, repeated):
    """dask may run a task again when the worker that had its result is lost."""
    _, _, expected, _ = total_of(dataset, 6)
    run, reduction = begin(dataset, 6)
    part = range(repeated, repeated + 1)
    first, second = (
        parts_module._sum_parts(run, reduction, part, dataset, run.layout.spans[repeated])
        for _ in range(2)
    )
    assert first == second
    reduce_parts(run, dataset, InlineEngine(), reduction)
    assert bits(read_total(run, reduction)) == bits(expected)


def finishing(reduction, *, killed=False):
    """Return a reduction that finishes outside the parts, and the bits of what it finished."""
    finished = []

    def finish(run, record, sums):
        if killed:
            raise StoppedError
        assert record.rows == N_ROWS
        finished.append({key: bits(total) for key, total in sums.items()})

    return reduction._replace(finish=finish), finished


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("n_parts", [1, 2, 5, 17])
def test_reduce_parts__finished_once_outside_the_parts(dataset, n_parts, seed):
    plain, _, expected, _ = total_of(dataset, n_parts)
    twice = bits(read_total(plain, begin(dataset, n_parts)[1], "_twice"))
    run, reduction = begin(dataset, n_parts)
    reduction, finished = finishing(reduction)
    for _ in range(2):
        record = reduce_parts(run, dataset, ShuffledEngine(run_of=run, seed=seed), reduction)
        assert record.rows == N_ROWS
    assert finished == [{"": bits(expected), "_twice": twice}]
    with pytest.raises(DamagedDataError, match="squares"):
        read_total(run, reduction)


def test_reduce_parts__killed_while_it_finishes(dataset):
    _, _, expected, _ = total_of(dataset, 3)
    run, reduction = begin(dataset, 3)
    with pytest.raises(StoppedError):
        reduce_parts(run, dataset, InlineEngine(), finishing(reduction, killed=True)[0])
    assert stored(run) == {range(1), range(1, 2), range(2, 3)}
    reduction, finished = finishing(reduction)
    reduce_parts(run, dataset, InlineEngine(), reduction)
    assert [sums[""] for sums in finished] == [bits(expected)]


@pytest.mark.parametrize("n_parts", [1, 2])
def test_sum_parts__a_task_of_a_run_that_was_replaced_stores_nothing(tmp_path, n_parts):
    dataset = write(tmp_path / "data")
    run, reduction = begin(dataset, n_parts, tmp_path / "run")
    reduction, finished = finishing(reduction)
    for part in range(n_parts if n_parts > 1 else 0):
        parts_module._sum_parts(
            run, reduction, range(part, part + 1), dataset, run.layout.spans[part]
        )
    shutil.rmtree(tmp_path / "run")
    new, _ = begin(dataset, n_parts, tmp_path / "run")
    if n_parts == 1:
        parts_module._sum_parts(run, reduction, range(1), dataset, run.layout.spans[0])
    else:
        with pytest.raises(DamagedResultError, match="is missing"):
            parts_module._sum_parts(run, reduction, range(n_parts))
    assert not finished
    assert not new.finished_parts("sums")


def test_reduce_parts__a_sum_that_is_gone_is_named(dataset):
    run, reduction = begin(dataset, 4)
    with pytest.raises(StoppedError):
        reduce_parts(run, dataset, StoppingEngine(n_tasks=4), reduction)
    run.forget("sums", (1,))
    with pytest.raises(DamagedResultError, match="part 1 of sums is missing") as caught:
        parts_module._sum_parts(run, reduction, range(4))
    assert caught.value.parts == (1,)


@pytest.mark.slow
def test_reduce_parts__a_damaged_sum_costs_its_parts(tmp_path, dataset):
    local = write(tmp_path / "data")
    run, reduction = begin(local, 10, tmp_path / "run")
    _, _, expected, _ = total_of(dataset, 10)
    engine = ShuffledEngine(run_of=run)
    reduce_parts(run, local, engine, reduction)
    whole = tmp_path / "run" / "sums" / "parts" / "0-9"
    (chunk,) = whole.glob("*/squares/c/0")
    chunk.write_bytes(b"nonsense")
    with pytest.raises(DamagedResultError) as caught:
        read_total(run, reduction)
    assert caught.value.parts == tuple(range(10))
    run.forget("sums", caught.value.parts)
    reduce_parts(run, local, engine, reduction)
    assert engine.n_tasks == 2 * (10 + 3 + 1)
    assert bits(read_total(run, reduction)) == bits(expected)


class RemoteEngine(InlineEngine):
    in_memory = False


def test_reduce_parts__workers_cannot_open_a_store_in_memory(dataset):
    run, reduction = begin(dataset, 2)
    with pytest.raises(ParameterError, match="memory of this process"):
        reduce_parts(run, dataset, RemoteEngine(), reduction)
    assert not stored(run)


@given(n_parts=st.integers(1, 400))
def test_family_of__every_part_is_added_once(n_parts):
    every = Counter()

    def visit(parts):
        if len(parts) == 1:
            every.update(parts)
            return
        members = members_of(parts)
        assert 2 <= len(members) <= 4
        assert [part for member in members for part in member] == list(parts)
        for member in members:
            assert family_of(member, n_parts) == parts
            visit(member)

    assert family_of(range(n_parts), n_parts) is None
    visit(range(n_parts))
    assert every == Counter(range(n_parts))
