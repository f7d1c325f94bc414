"""The order of the stages, and their execution in a run: budgets, records, resumption."""

import logging
import platform
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np

from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import DamagedResultError
from dask_nrbfn.neighbors.plan import NeighborSearch
from dask_nrbfn.spec import Spec
from dask_nrbfn.stages.bases import GIVEN_BASIS, most_found
from dask_nrbfn.stages.basis import BASIS, CONFIDENCE
from dask_nrbfn.stages.cells import CELLS
from dask_nrbfn.stages.columns import COLUMNS, METRIC, RANKS
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.cost import StageCost
from dask_nrbfn.stages.model import EMBEDDED, MODEL, check_model
from dask_nrbfn.stages.moments import COMPONENTS, LOCALITY, MOMENTS, WIDTH
from dask_nrbfn.stages.neighbors import NEIGHBORS, RECALL, check_recall, plan_search
from dask_nrbfn.stages.refine import REFINE
from dask_nrbfn.stages.search import SEARCH, least_work, usual_size
from dask_nrbfn.stages.stage import Stage, StageJob
from dask_nrbfn.stages.validation import PATH, VALIDATION
from dask_nrbfn.stages.weights import PRUNE, WEIGHTS
from dask_nrbfn.storage.group import exists
from dask_nrbfn.storage.location import Location
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

# How often a job computes a damaged result again before it gives up.
_MAX_REDONE = 3

_OF_ONE_NETWORK: tuple[Stage[Any], ...] = (
    NEIGHBORS,
    RECALL,
    CONFIDENCE,
    BASIS,
    WIDTH,
    COMPONENTS,
    MOMENTS,
    LOCALITY,
    PATH,
    VALIDATION,
    PRUNE,
    WEIGHTS,
    REFINE,
)

STAGES: tuple[Stage[Any], ...] = (COLUMNS, RANKS, METRIC, SEARCH, CELLS, *_OF_ONE_NETWORK, MODEL)
"""All stages, in the order in which a fit runs them."""

EMBEDDING: tuple[Stage[Any], ...] = (*STAGES[: STAGES.index(COMPONENTS) + 1], EMBEDDED)
"""The stages of an embedding, which learns no targets."""


def stages_of(spec: Spec) -> list[Stage[Any]]:
    """Return the stages of a fit in order; in a run, those that are left or might be repeated."""
    left_out = _OF_ONE_NETWORK if spec.is_of_cells else ()
    stages = EMBEDDING if spec.mode == "embed" else STAGES
    return [stage for stage in stages if stage not in left_out and stage.wanted(spec)]


def stages_of_run(run: Run) -> list[Stage[Any]]:
    """Return all stages of a run in order, finished or not; some depend on what a search chose."""
    left, finished = stages_of(run.spec), run.stages
    stages = EMBEDDING if run.embeds else STAGES
    return [stage for stage in stages if stage in left or stage.name in finished]


def check_fit(context: FitContext) -> None:
    """Raise an error if a fit cannot succeed, before any row is read."""
    for stage in stages_of(context.spec):
        stage.check(context)


def largest_basis(context: FitContext) -> int:
    """Return the largest basis size that fits the workers' memory, at most all rows."""
    most = context.dataset.n_rows
    stages = [stage for stage in stages_of(context.spec) if stage.grows_with_basis]

    def fits(n_basis: int) -> bool:
        of_size = replace(context, found_basis=n_basis)
        held = max(stage.cost_in(of_size).held_bytes for stage in stages)
        return held <= context.engine.memory_bytes

    return most if fits(most) else bisect_left(range(1, most), True, key=lambda r: not fits(r))


def planned(context: FitContext) -> FitContext:
    """Return a new fit with its neighbour search and a known, usual or largest basis size."""
    context = replace(context, search=plan_search(context))
    spec, n_rows = context.spec, context.dataset.of_labelled().n_rows
    if context.found_basis or (context.requested_size and not spec.chooses_size):
        return context
    limit = usual_size(spec, n_rows) if spec.chooses_size else most_found(spec.params)
    most = max(min(largest_basis(context), limit), context.dataset.n_classes)
    return replace(context, found_basis=most)


def stage_costs(context: FitContext) -> dict[str, StageCost]:
    """Return the cost of every stage of a fit by its name."""
    return {stage.name: stage.cost_in(context) for stage in stages_of(context.spec)}


def _check_stage_budget(stage: Stage[Any], context: FitContext) -> StageCost:
    """Return the cost of a stage, or raise MemoryBudgetError if a worker cannot hold it."""
    cost, engine = stage.cost_in(context), context.engine
    remedy = stage.remedy(context.spec.params)
    if stage.grows_with_basis and cost.held_bytes > engine.memory_bytes:
        change = "Give a lower `basis_size`"
        if context.requested_size is None:
            change = "Lower `confidence_threshold`, or give `basis_size`"
        # 0: no basis is small enough.
        if most := largest_basis(context):
            remedy = f"{change}: from {context.n_basis} basis rows to at most {most}"
    engine.check_budget(stage.name, cost.held_bytes, remedy=remedy)
    return cost


def start_run(location: Location, context: FitContext) -> Run:
    """Begin a run, or open an unfinished run with its recorded neighbour search."""
    search = None if exists(location) else _plan_neighbors(context)
    run = Run.start(
        location,
        context.dataset,
        context.spec,
        _environment(context.engine),
        n_workers=context.engine.n_workers,
        gpu=context.engine.device == "gpu",
    )
    device = context.engine.device
    if any(record.get("device", device) != device for record in run.stages.values()):
        logger.info("fit: goes on with device=%s; the other results differ by rounding", device)
    if "neighbors" not in run.decisions:
        run.decide("neighbors", asdict(search or _plan_neighbors(context)))
    return run


def _plan_neighbors(context: FitContext) -> NeighborSearch:
    """Return the neighbour search; raise an error if a stage does not fit the memory."""
    search = plan_search(context)
    context = replace(context, search=search)
    # Without a basis_size those that depend on it are checked again once the basis is chosen.
    for stage in stages_of(context.spec):
        _check_stage_budget(stage, context)
    return search


def finish_run(run: Run, context: FitContext, *, check_still_locked: Callable[[], None]) -> None:
    """Run the unfinished stages of a run, and repeat stages whose results are damaged.

    The record of a stage is written after all its arrays. So a stage without a record starts again
    with its finished parts, and what a stage has chosen is known from its record alone.
    """
    redone: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for stage in stages_of_run(run):
        if stage.name in run.stages:
            _drop_scratch(run, stage)
    while True:
        check_still_locked()
        stages, finished = stages_of_run(run), run.stages
        missing = [stage for stage in stages if stage.name not in finished]
        try:
            if RECALL.name in finished:
                check_recall(run, context.min_recall)
            if context.basis is not None and not GIVEN_BASIS.is_in(run):
                GIVEN_BASIS.write(run, np.asarray(context.basis))
            if not missing:
                check_model(run, context.engine, _verified_arrays(run, stages))
                run.drop(*(f"{stage.name}/parts" for stage in stages if stage.keeps_parts))
                return
            run_stage(missing[0], run, context, check_still_locked)
            _drop_scratch(run, missing[0])
        except DamagedResultError as error:
            redone[error.stage, error.parts] += 1
            if redone[error.stage, error.parts] > _MAX_REDONE:
                raise
            logger.warning("%s The damaged result is computed again.", error.problem)
            check_still_locked()
            run.forget(error.stage, error.parts)


def _verified_arrays(run: Run, stages: Iterable[Stage[Any]]) -> list[str]:
    """Return the names of the stored arrays that the end of a fit reads again."""
    names: list[str] = []
    for stage in stages:
        stored = run.stages[stage.name]["arrays"]
        names += [each.name for each in stage.arrays if each.verified and each.name in stored]
        names += stage.verified_parts(run)
    return names


def _drop_scratch(run: Run, stage: Stage[Any]) -> None:
    """Delete results of a finished stage that no later stage needs."""
    names = [] if stage.keeps_parts else [f"{stage.name}/parts"]
    for name in stage.scratch:
        names += run.group_names(name) if name.endswith("-") else [name]
    run.drop(*names)


def run_stage(
    stage: Stage[Any], run: Run, context: FitContext, check_still_locked: Callable[[], None]
) -> None:
    """Run one stage, whose predecessors are finished, and record its results, time and memory."""
    context = context.in_run(run)
    cost = _check_stage_budget(stage, context)
    own_run, dataset = run, context.dataset
    if stage.labelled_only:
        own_run, dataset = run.of_labelled(), dataset.of_labelled()
    job = StageJob(
        own_run,
        dataset,
        context.engine,
        context.validation,
        largest_basis=partial(largest_basis, context),
        needed_s=context.clock.needed_s([cost]),
        left_s=partial(_left_s, run, context),
    )
    started = datetime.now(UTC)
    start = time.perf_counter()
    context.engine.begin_stage(cost.held_bytes)
    record = stage.compute(job)
    seconds = round(time.perf_counter() - start, 3)
    check_still_locked()
    taken = {
        "arrays": stage.stored(run),
        "started": started.isoformat(timespec="seconds"),
        "seconds": seconds,
        "device": context.engine.device,
        "peak_bytes": context.engine.peak_bytes,
        "predicted_bytes": cost.held_bytes,
    }
    run.record(stages={**run.stages, stage.name: record.to_dict() | taken})
    logger.info("%s: %d rows in %.1f s", stage.name, own_run.n_rows, seconds)
    if stage is SEARCH and context.clock.rates:
        _log_what_is_left(run, planned(context.in_run(run)))


def _log_what_is_left(run: Run, context: FitContext) -> None:
    """Log the expected seconds of the stages after a search; cells are tried if there is time."""
    costs, clock = stage_costs(context), context.clock
    left = {name: cost for name, cost in costs.items() if name not in run.stages}
    cells = [left.pop(CELLS.name)] if CELLS.name in left else []
    if clock.needed_s(cells) > clock.left_s(left.values()):
        cells = []
    seconds = clock.needed_s([*left.values(), *cells])
    logger.info("tune: about %.0f s more expected", seconds)


def _left_s(
    run: Run,
    context: FitContext,
    chosen: Mapping[str, Any] | None = None,
    steps: Sequence[StageCost] = (),
) -> float:
    """Return the seconds that are left after steps, if the fit then goes on as chosen.

    By default it goes on with as little work as a tuning tries whatever the time.
    """
    if chosen is None:
        chosen = least_work(context.spec, context.dataset)
    context = replace(context, spec=context.spec.choosing(**chosen))
    done = {METRIC.name, SEARCH.name, CELLS.name, *run.stages}
    after = [stage for stage in stages_of(context.spec) if stage.name not in done]
    return context.clock.left_s([*steps, *(stage.cost_in(context) for stage in after)])


def _environment(engine: Engine) -> dict[str, Any]:
    packages = ("dask-nrbfn", "dask", "distributed", "numpy", "scikit-learn", "scipy", "zarr")
    return {
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
        "n_workers": engine.n_workers,
        "threads": engine.threads,
        "memory_bytes": engine.memory_bytes,
        "limit_bytes": engine.limit_bytes,
    }
