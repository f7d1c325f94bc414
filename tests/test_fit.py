import time
from collections import Counter
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from zarr.storage import MemoryStore

import dask_nrbfn.fit
from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.commands.plan import plan_fit
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.engine.memory import PROCESS_BYTES
from dask_nrbfn.errors import DamagedResultError, MemoryBudgetError
from dask_nrbfn.fit import (
    STAGES,
    finish_run,
    largest_basis,
    planned,
    run_stage,
    stages_of,
    start_run,
)
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.parts import PartResult, map_parts
from dask_nrbfn.stages.bases import MOST_USUAL
from dask_nrbfn.stages.columns import COLUMNS
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.cost import Clock, Rates, StageCost, expected_s
from dask_nrbfn.stages.moments import MOMENTS
from dask_nrbfn.stages.stage import Stage, StageRecord
from tests.commands.test_plan import RATES
from tests.stages.stopping import CountingEngine, StoppedError
from tests.tables import spirals, write_table

PARAMS = FitParams(alpha=1e-6, n_neighbors=5, n_parts=3)


def count_part(run, dataset, start, stop):
    codes = np.concatenate([codes for _, codes, _ in dataset.blocks(start, stop, 100)])
    return PartResult({"counts": np.bincount(codes, minlength=dataset.n_classes).tolist()})


@dataclass(frozen=True, kw_only=True)
class CountsRecord(StageRecord):
    counts: list[int]


def compute_counts(job):
    records = map_parts(job.run, job.dataset, job.engine, stage="counts", task=count_part)
    return CountsRecord(counts=np.sum([each["counts"] for each in records], axis=0).tolist())


COUNTS = Stage(
    name="counts",
    compute=compute_counts,
    record=CountsRecord,
    cost=lambda sizes: StageCost(
        held_bytes=PROCESS_BYTES + 8 * sizes.K, n_tasks=sizes.layout.n_parts
    ),
    wanted=lambda spec: spec.targets == "classes",
)


COST = StageCost(held_bytes=PROCESS_BYTES, products=5e6)
SIZED = replace(PARAMS, basis_size=40)
# A worker so slow that only its work counts.
SLOW = Rates(**{field.name: 1e3 for field in fields(Rates)})


def in_memory(params, tuning=None, *, n_rows=100, engine=None):
    """Return the context of a fit of a table in memory."""
    dataset = write_table(MemoryStore(), *spirals(n_rows))
    return FitContext.resolve(dataset, params, engine or InlineEngine(), tuning)


class Lock:
    """Is lost when it is looked at for so many times."""

    def __init__(self, lost_at=None):
        self.lost_at, self.n_looks = lost_at, 0

    def __call__(self):
        self.n_looks += 1
        if self.n_looks == self.lost_at:
            raise StoppedError


@pytest.fixture
def with_counts(monkeypatch):
    """A stage is one object and its place in the order."""
    place = STAGES.index(COLUMNS) + 1
    monkeypatch.setattr(dask_nrbfn.fit, "STAGES", (*STAGES[:place], COUNTS, *STAGES[place:]))


@pytest.mark.usefixtures("with_counts")
def test_stage__one_more_runs_and_is_resumed_and_planned():
    X, y = spirals(200)
    dataset, place = write_table(MemoryStore(), X, y, chunk_rows=70), MemoryStore()
    with pytest.raises(StoppedError):
        fit_dataset(dataset, place, PARAMS, CountingEngine(1, label="counts"))
    engine = CountingEngine()
    run = fit_dataset(dataset, place, PARAMS, engine)
    assert engine.done["counts"] == 2
    assert COUNTS.recorded(run).counts == np.bincount(y).tolist()
    assert list(run.stages)[:2] == ["columns", "counts"]
    planned = plan_fit(dataset, PARAMS, InlineEngine(), RATES)
    assert [stage.name for stage in planned.stages][1] == "counts"


def test_stage__is_given_the_seconds_that_the_stages_after_it_leave(monkeypatch):
    seen = {}

    def look(job):
        seen.update(needed=job.needed_s, left=job.left_s(), less=job.left_s({"basis_size": 20}))
        return StageRecord()

    place = STAGES.index(COLUMNS) + 1
    looking = replace(COUNTS, compute=look, cost=lambda sizes: COST)
    monkeypatch.setattr(dask_nrbfn.fit, "STAGES", (*STAGES[:place], looking, *STAGES[place:]))
    clock = Clock(ends=time.monotonic() + 1e6, rates=SLOW)
    context = replace(in_memory(SIZED), clock=clock)
    finish_run(start_run(MemoryStore(), context), context, check_still_locked=lambda: None)
    assert seen["needed"] == expected_s(COST, SLOW, 1)
    for n_basis, left in ((40, seen["left"]), (20, seen["less"])):
        params = replace(SIZED, basis_size=n_basis)
        planned = plan_fit(context.dataset, params, InlineEngine(), SLOW)
        after = [stage.seconds for stage in planned.stages if stage.name not in {"columns"}]
        assert left == pytest.approx(1e6 - sum(after), abs=60)


def test_run_stage__a_tuning_says_the_seconds_after_its_search(caplog):
    caplog.set_level("INFO", logger="dask_nrbfn")
    tuning = TuneParams(effort="quick", folds=3, alphas=(1e-3,), width_factors=(0.5, 1.0))
    context = replace(in_memory(replace(SIZED, scale="unit"), tuning), clock=Clock(rates=SLOW))
    run = start_run(MemoryStore(), context)
    finish_run(run, context, check_still_locked=Lock())
    clock, names = context.clock, list(run.stages)
    context = context.in_run(run)
    later = names[names.index("search") + 1 :]
    after = [stage for stage in stages_of(context.spec) if stage.name in later]
    expected = clock.needed_s(stage.cost_in(context) for stage in after)
    told = [message for message in caplog.messages if "more expected" in message]
    assert told == [f"tune: about {expected:.0f} s more expected"]


def test_stage__one_that_does_not_fit_is_refused_before_any_task(monkeypatch):
    large = Stage(
        name="large",
        compute=compute_counts,
        record=CountsRecord,
        cost=lambda sizes: StageCost(held_bytes=2**60),
        remedy=lambda params: "Buy more",
        grows_with_basis=True,
    )
    monkeypatch.setattr(dask_nrbfn.fit, "STAGES", (*STAGES, large))
    engine = CountingEngine(0)
    with pytest.raises(MemoryBudgetError, match="large task needs") as error:
        fit_dataset(write_table(MemoryStore(), *spirals(60)), MemoryStore(), PARAMS, engine)
    assert error.value.remedy.startswith("Buy more")


@pytest.mark.parametrize("n_damaged", [0, 1, 3, 4])
def test_finish_run__a_damaged_result_is_computed_again_three_times(monkeypatch, n_damaged):
    left, done = [None] * n_damaged, Counter()

    def find(job):
        done["counts"] += 1
        if left:
            left.pop()
            raise DamagedResultError("It is damaged.", "Repeat.", "columns", ())
        return StageRecord()

    def measure(job):
        done["columns"] += 1
        return COLUMNS.compute(job)

    place = STAGES.index(COLUMNS)
    both = replace(COLUMNS, compute=measure), replace(COUNTS, compute=find)
    monkeypatch.setattr(dask_nrbfn.fit, "STAGES", (*STAGES[:place], *both, *STAGES[place + 1 :]))
    context = in_memory(SIZED)
    run = start_run(MemoryStore(), context)
    if n_damaged <= 3:
        finish_run(run, context, check_still_locked=Lock())
        assert "model" in run.stages
        assert done == {"columns": 1 + n_damaged, "counts": 1 + n_damaged}
    else:
        with pytest.raises(DamagedResultError):
            finish_run(run, context, check_still_locked=Lock())
    # The first two looks are at the stage `columns`, the third is before `counts`.
    run, left[:] = start_run(MemoryStore(), context), [None]
    for lost_at, stages in ((1, set()), (2, set()), (4, {"columns"})):
        with pytest.raises(StoppedError):
            finish_run(run, context, check_still_locked=Lock(lost_at))
        assert set(run.stages) == stages
        run = start_run(MemoryStore(), context)


def test_largest_basis__is_the_last_that_fits():
    context = planned(in_memory(SIZED, n_rows=300))
    growing = [stage for stage in stages_of(context.spec) if stage.grows_with_basis]

    def largest(memory_bytes):
        return largest_basis(replace(context, engine=InlineEngine(memory_bytes=memory_bytes)))

    for size in (1, 2, 150, 299, 300):
        of_size = replace(context, found_basis=size)
        memory = max(stage.cost_in(of_size).held_bytes for stage in growing)
        assert (largest(memory - 1), largest(memory)) == (size - 1, size)
    assert largest(2**40) == 300


def test_planned__takes_a_usual_size_where_a_tuning_chooses_it():
    engine = InlineEngine(memory_bytes=2**40)
    context = in_memory(PARAMS, engine=engine)
    context = replace(context, dataset=context.dataset.with_n_rows(10**6))
    tuned = in_memory(PARAMS, TuneParams(), engine=engine)
    big = context.dataset
    tuned = replace(tuned, dataset=big)
    assert planned(tuned).found_basis == 4096
    quick = replace(in_memory(PARAMS, TuneParams(effort="quick"), engine=engine), dataset=big)
    assert planned(quick).found_basis == 2048
    # Of few rows, a sixth.
    few = replace(tuned, dataset=big.with_n_rows(6000))
    assert planned(few).found_basis == 1000
    assert planned(context).found_basis == MOST_USUAL
    assert planned(in_memory(SIZED)).found_basis is None
    assert planned(replace(context, found_basis=7)).found_basis == 7
    assert planned(in_memory(PARAMS, engine=engine)).found_basis == 100


@pytest.mark.parametrize(
    ("size", "remedy"),
    [
        (2000, "Give a lower basis_size: from 2000 basis rows to at most "),
        (None, "Lower confidence_threshold, or give basis_size: from 2500 basis rows to at most "),
    ],
)
def test_run_stage__says_how_many_basis_rows_the_memory_allows(size, remedy):
    context = planned(in_memory(replace(PARAMS, basis_size=size), n_rows=3000))
    context = replace(context, found_basis=2500 if size is None else None)
    held = MOMENTS.cost_in(context).held_bytes
    run = start_run(MemoryStore(), context)
    run.stages["basis"] = {"n_basis": context.n_basis}
    for memory_bytes in (held, held - 1):
        tight = replace(context, engine=InlineEngine(memory_bytes=memory_bytes))
        with pytest.raises(MemoryBudgetError if memory_bytes < held else StoppedError) as caught:
            run_stage(replace(MOMENTS, compute=stop), run, tight, Lock())
    assert caught.value.remedy.startswith(remedy)


def stop(job):
    raise StoppedError


@pytest.mark.parametrize(("device", "n_parts"), [("cpu", 1), ("gpu", 5)])
def test_start_run__has_a_part_for_every_gpu(device, n_parts):
    engine = InlineEngine(n_workers=5, device=device)
    context = in_memory(replace(SIZED, n_parts=None), engine=engine)
    assert start_run(MemoryStore(), context).layout.n_parts == context.layout.n_parts == n_parts


def test_start_run__says_that_another_device_goes_on(caplog):
    caplog.set_level("INFO", logger="dask_nrbfn")
    context, place = in_memory(SIZED), MemoryStore()
    run = start_run(place, context)
    decided = run.decisions["neighbors"]
    for device, told in (("cpu", False), ("gpu", True)):
        run.record(stages={"columns": {"device": device}})
        assert start_run(place, context).decisions["neighbors"] == decided
        assert ("fit: goes on with device=cpu" in caplog.text) == told


class LookingEngine(InlineEngine):
    """Keeps the names of the groups of a run, and of those with parts, where a stage begins."""

    def __init__(self, store):
        super().__init__()
        self.store, self.seen, self.expected = store, [], []

    def look(self):
        paths = [name.split("/") for name in self.store._store_dict]
        names = {path[0] for path in paths if path[1:]}
        return names | {f"{path[0]}/parts" for path in paths if "parts" in path}

    def begin_stage(self, expected_bytes=0):
        self.seen.append(self.look())
        self.expected.append(expected_bytes)
        super().begin_stage(expected_bytes)


def test_fit__scratch_is_dropped_as_soon_as_no_later_stage_needs_it():
    dataset, place = write_table(MemoryStore(), *spirals(120), chunk_rows=70), MemoryStore()
    tuning = TuneParams(effort="quick", folds=3, alphas=(1e-3,), kernels=("gaussian",))
    params, engine = FitParams(n_neighbors=5, n_parts=3, n_partitions=3), LookingEngine(place)
    run = fit_dataset(dataset, place, params, engine, tuning=tuning)
    assert engine.expected == [record["predicted_bytes"] for record in run.stages.values()]
    stages, kept = set(run.stages), {"neighbors/parts", "confidence/parts", "path/parts"}
    assert all(seen <= stages | kept for seen in engine.seen)
    assert kept <= engine.seen[-1]
    assert engine.look() <= stages
    # What a job leaves that is killed before it drops its scratch.
    for name in ("search-sample", "metric/parts/0"):
        run.group(name)
    fit_dataset(dataset, place, params, engine, tuning=tuning)
    assert engine.look() <= stages
