"""Sums over rows: the tree that adds them, whoever is first and whoever is killed."""

import shutil
from collections import Counter
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from zarr.storage import MemoryStore

from dask_nrbfn import parts as parts_module
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.errors import DamagedDataError, DamagedResultError
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
from dask_nrbfn.storage.run import Run
from dask_nrbfn.weighting import Reading, RowWeights
from tests.stages.stopping import StoppedError
from tests.tables import write_table

N_ROWS = 192
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
        self.reading = Reading(block_rows=3, weighting=RowWeights(None))
        self._total = Total(0, np.zeros(dataset.n_features))

    def add(self, block):
        self._total += Total(len(block.X), np.square(block.X).sum(axis=0))

    def sums(self):
        return {"": self._total, "_twice": self._total + self._total}


@dataclass
class ShuffledEngine(InlineEngine):
    """Tells after every task how many sums are stored; begins tasks in an order of its own."""

    run_of: Run | None = None
    seed: int | None = None
    most_stored: int = 0
    n_tasks: int = 0

    def run(self, task, arguments, *, label):
        order = np.arange(len(arguments))
        if self.seed is not None:
            np.random.default_rng(self.seed).shuffle(order)
        for place in order:
            super().run(task, [arguments[place]], label=label)
            self.most_stored = max(self.most_stored, len(self.run_of.finished_parts("sums")))
        self.n_tasks += len(arguments)
        return [None] * len(arguments)


def write(place):
    return write_table(place, X, np.arange(N_ROWS) % 2, weights=WEIGHTS, chunk_rows=10)


@pytest.fixture(scope="module")
def dataset():
    return write(MemoryStore())


@pytest.fixture(scope="module")
def expected(dataset):
    """Give a function that returns the bits of the sums in so many parts that nothing disturbs."""

    @cache
    def undisturbed(n_parts, key=""):
        run, _, _, _ = total_of(dataset, n_parts)
        return bits(read_total(run, begin(dataset, n_parts)[1], key))

    return undisturbed


def begin(dataset, n_parts, place=None):
    """Return a new run, and how its rows are summed in parts."""
    place = MemoryStore() if place is None else place
    run = Run.start(place, dataset, FitParams(n_parts=n_parts), {})
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
@pytest.mark.parametrize("n_parts", [1, 5, 17])
def test_reduce_parts__of_all_rows_with_the_same_bits_whoever_is_first(dataset, expected, n_parts):
    for seed in (None, 1):
        run, record, total, _ = total_of(dataset, n_parts, seed=seed)
        assert (record.rows, total.n_rows) == (N_ROWS, N_ROWS)
        assert record.weight == pytest.approx(WEIGHTS.sum())
        np.testing.assert_allclose(total.squares, np.square(X).sum(axis=0), rtol=1e-12)
        assert set(run.finished_parts("sums")) == {range(len(run.spans))}
        assert bits(total) == expected(n_parts)


def test_map_parts__drops_what_a_killed_job_began(dataset, tmp_path):
    run, _ = begin(dataset, 3, tmp_path / "run")
    run.group("counts/parts/1/killed")

    def count(run, dataset, start, stop):
        return PartResult({"rows": stop - start}, {"starts": np.array([start])})

    records = map_parts(run, dataset, InlineEngine(), stage="counts", task=count)
    assert sum(record["rows"] for record in records) == N_ROWS
    assert not (tmp_path / "run" / "counts" / "parts" / "1" / "killed").exists()
    assert len([*tmp_path.glob("run/counts/parts/1/*/starts")]) == 1


@pytest.mark.slow
def test_reduce_parts__few_sums_lie_on_the_disk(dataset):
    """One task at a time leaves the last part and at most three finished siblings on each level."""
    run, _, _, engine = total_of(dataset, 64)
    assert (len(run.spans), engine.n_tasks) == (64, 64)
    assert engine.most_stored <= 3 * 3 + 1


@pytest.mark.slow
def test_reduce_parts__parts_whose_family_nobody_added(dataset, monkeypatch, expected):
    """As after a job that was killed between the last part of a family and their sum."""
    run, reduction = begin(dataset, 22)
    sum_alone(run, dataset, reduction, range(22), monkeypatch)
    assert len(run.finished_parts("sums")) == len(run.spans)
    reduce_parts(run, dataset, InlineEngine(), reduction)
    assert bits(read_total(run, reduction)) == expected(22)
    assert set(run.finished_parts("sums")) == {range(len(run.spans))}


def sum_alone(run, dataset, reduction, parts, monkeypatch):
    """Sum parts in tasks that do not look at each other."""
    arguments = [
        (run.location, reduction, range(part, part + 1), dataset.location, run.spans[part])
        for part in parts
    ]
    with monkeypatch.context() as patched:
        patched.setattr(parts_module, "_complete_family", lambda *_: None)
        InlineEngine().run(parts_module._sum_part, arguments, label="sums")


@pytest.mark.parametrize("repeated", [0, 3, 5])
def test_reduce_parts__tasks_that_run_twice(dataset, repeated, expected):
    """dask may run a task again, at any time, also beside another one of the same part."""
    run, reduction = begin(dataset, 6)
    part = range(repeated, repeated + 1)
    twin = parts_module._summed(run, dataset, reduction, run.spans[repeated])
    reduce_parts(run, dataset, InlineEngine(), reduction)
    parts_module._add_up(run, reduction, part, *twin)
    assert bits(read_total(run, reduction)) == expected(6)


def test_add_up__a_sibling_is_stored_between_the_look_and_the_store(dataset, monkeypatch, expected):
    run, reduction = begin(dataset, 4)
    sum_alone(run, dataset, reduction, range(3), monkeypatch)
    last = parts_module._summed(run, dataset, reduction, run.spans[3])
    store, stored = parts_module._store, []

    def store_late(*arguments):
        if not stored:
            stored.append(None)
            run.forget("sums", (2,))
            sum_alone(run, dataset, reduction, [2], monkeypatch)
        return store(*arguments)

    run.forget("sums", (2,))
    monkeypatch.setattr(parts_module, "_store", store_late)
    parts_module._add_up(run, reduction, range(3, 4), *last)
    assert set(run.finished_parts("sums")) == {range(4)}
    assert bits(read_total(run, reduction)) == expected(4)


def finishing(reduction, *, killed=False):
    """Return a reduction that finishes outside the parts, and the bits of what it finished."""
    finished = []

    def finish(run, record, sums):
        if killed:
            raise StoppedError
        assert record.rows == N_ROWS
        finished.append({key: bits(total) for key, total in sums.items()})
        return []

    return reduction._replace(finish=finish), finished


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("n_parts", [1, 2, 17])
def test_reduce_parts__finished_once_outside_the_parts(dataset, expected, n_parts):
    run, reduction = begin(dataset, n_parts)
    reduction, finished = finishing(reduction)
    for _ in range(2):
        record = reduce_parts(run, dataset, ShuffledEngine(run_of=run, seed=1), reduction)
        assert record.rows == N_ROWS
    assert finished == [{key: expected(n_parts, key) for key in ("", "_twice")}]
    with pytest.raises(DamagedDataError, match="squares"):
        read_total(run, reduction)


def test_reduce_parts__killed_while_it_finishes(dataset, expected):
    run, reduction = begin(dataset, 3)
    with pytest.raises(StoppedError):
        reduce_parts(run, dataset, InlineEngine(), finishing(reduction, killed=True)[0])
    assert set(run.finished_parts("sums")) == {range(1), range(1, 2)}
    reduction, finished = finishing(reduction)
    reduce_parts(run, dataset, InlineEngine(), reduction)
    assert [sums[""] for sums in finished] == [expected(3)]


def test_reduce_parts__a_result_is_on_the_disk_before_its_parts_are_deleted(dataset, monkeypatch):
    run, reduction = begin(dataset, 3)
    done = []
    for name in ("flush", "drop_part"):
        monkeypatch.setattr(Run, name, lambda _, *arguments, name=name: done.append(name))
    reduction = reduction._replace(finish=lambda *_: ["one", "other"])
    reduce_parts(run, dataset, InlineEngine(), reduction)
    assert done == [*3 * ["flush"], *3 * ["drop_part"]]


@pytest.mark.parametrize("n_parts", [1, 2])
def test_add_up__a_task_of_a_run_that_was_replaced_stores_nothing(tmp_path, n_parts):
    dataset = write(tmp_path / "data")
    run, reduction = begin(dataset, n_parts, tmp_path / "run")
    reduction, finished = finishing(reduction)
    last = parts_module._summed(run, dataset, reduction, run.spans[-1])
    shutil.rmtree(tmp_path / "run")
    new, _ = begin(dataset, n_parts, tmp_path / "run")
    parts_module._add_up(run, reduction, range(n_parts - 1, n_parts), *last)
    assert not finished
    assert not new.finished_parts("sums")


def test_add_up__a_twin_has_finished_meanwhile(dataset):
    run, reduction = begin(dataset, 1)
    sums = parts_module._summed(run, dataset, reduction, run.spans[0])
    finish = finishing(reduction)[0].finish

    def beaten(run, record, sums):
        """A twin replaces an array while it is written."""
        parts_module._add_up(run, reduction._replace(finish=finish), range(1), record, sums)
        raise FileNotFoundError

    parts_module._add_up(run, reduction._replace(finish=beaten), range(1), *sums)


def test_add_up__an_error_of_the_storage_is_raised(dataset):
    run, reduction = begin(dataset, 1)

    def fail(run, record, sums):
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        reduce_parts(run, dataset, InlineEngine(), reduction._replace(finish=fail))


def test_reduce_parts__siblings_that_are_stored_at_the_same_time_finish_once(
    dataset, monkeypatch, expected
):
    run, reduction = begin(dataset, 2)
    reduction, finished = finishing(reduction)
    store, twins = parts_module._store, []

    def store_beside_a_sibling(*arguments):
        """Store a part after a task of its sibling, which looked before, has stored its own."""
        if not twins:
            twins.append(parts_module._summed(run, dataset, reduction, run.spans[1]))
            parts_module._add_up(run, reduction, range(1, 2), *twins[0])
        return store(*arguments)

    monkeypatch.setattr(parts_module, "_store", store_beside_a_sibling)
    first = parts_module._summed(run, dataset, reduction, run.spans[0])
    parts_module._add_up(run, reduction, range(1), *first)
    assert not finished
    assert set(run.finished_parts("sums")) == {range(1), range(1, 2)}
    reduce_parts(run, dataset, InlineEngine(), reduction)
    assert [sums[""] for sums in finished] == [expected(2)]


@pytest.mark.parametrize("late", ["_read", "_store"])
def test_add_up__another_task_of_the_family_was_as_quick(dataset, monkeypatch, late, expected):
    run, reduction = begin(dataset, 4)
    sum_alone(run, dataset, reduction, range(3), monkeypatch)
    last, twin = (parts_module._summed(run, dataset, reduction, run.spans[3]) for _ in range(2))
    do, done = getattr(parts_module, late), []

    def do_late(*arguments):
        if not done:
            done.append(None)
            parts_module._add_up(run, reduction, range(3, 4), *twin)
        return do(*arguments)

    monkeypatch.setattr(parts_module, late, do_late)
    parts_module._add_up(run, reduction, range(3, 4), *last)
    assert bits(read_total(run, reduction)) == expected(4)


def test_add_up__a_sibling_that_nobody_used_and_is_gone(dataset, monkeypatch):
    run, reduction = begin(dataset, 4)
    sum_alone(run, dataset, reduction, range(3), monkeypatch)
    last = parts_module._summed(run, dataset, reduction, run.spans[3])
    read = parts_module._read

    def read_late(*arguments):
        run.forget("sums", (1,))
        return read(*arguments)

    monkeypatch.setattr(parts_module, "_read", read_late)
    with pytest.raises(DamagedResultError, match="part 1 of sums is missing") as caught:
        parts_module._add_up(run, reduction, range(3, 4), *last)
    assert caught.value.parts == (1,)


@pytest.mark.slow
def test_reduce_parts__a_damaged_sum_costs_its_parts(tmp_path, dataset, expected):
    local = write(tmp_path / "data")
    run, reduction = begin(local, 10, tmp_path / "run")
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
    assert engine.n_tasks == 20
    assert bits(read_total(run, reduction)) == expected(10)


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
