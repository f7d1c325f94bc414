"""The order of the stages, and how a run goes through them: budgets, records, resumption."""

import logging
import platform
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import Any

from dask_nrbfn.engine import Engine, watched_stage
from dask_nrbfn.engine.memory import check_budget
from dask_nrbfn.errors import DamagedResultError
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.parts import MAX_REDONE
from dask_nrbfn.stages.bases import MOST_FOUND, asked_size
from dask_nrbfn.stages.basis import BASIS
from dask_nrbfn.stages.columns import COLUMNS
from dask_nrbfn.stages.components import COMPONENTS
from dask_nrbfn.stages.confidence import CONFIDENCE
from dask_nrbfn.stages.embedding import EMBEDDED
from dask_nrbfn.stages.locality import LOCALITY
from dask_nrbfn.stages.metric import METRIC
from dask_nrbfn.stages.model import MODEL, check_model
from dask_nrbfn.stages.moments import MOMENTS
from dask_nrbfn.stages.neighbors import NEIGHBORS, decided_search, plan_search
from dask_nrbfn.stages.path import PATH
from dask_nrbfn.stages.prune import PRUNE
from dask_nrbfn.stages.rates import Rates, expected_s
from dask_nrbfn.stages.recall import RECALL
from dask_nrbfn.stages.refine import REFINE
from dask_nrbfn.stages.search import SEARCH
from dask_nrbfn.stages.search_sizes import NeighborSearch
from dask_nrbfn.stages.sizes import FitSizes
from dask_nrbfn.stages.stage import Stage, StageCost, StageJob
from dask_nrbfn.stages.svd import SVD
from dask_nrbfn.stages.trials import params_needing_confidence
from dask_nrbfn.stages.validation import VALIDATION
from dask_nrbfn.stages.weights import WEIGHTS
from dask_nrbfn.stages.width import WIDTH
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import exists
from dask_nrbfn.storage.layout import PartLayout
from dask_nrbfn.storage.location import Location
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

STAGES: tuple[Stage[Any], ...] = (
    SVD,
    COLUMNS,
    METRIC,
    SEARCH,
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
    MODEL,
)
"""All there are, in the order in which a fit goes through those that it wants."""

EMBEDDING: tuple[Stage[Any], ...] = (
    *STAGES[: STAGES.index(COMPONENTS) + 1],
    EMBEDDED,
)
"""Those of an embedding, which learns no targets."""


def stages_of(
    params: FitParams, tuning: TuneParams | None = None, *, numbers: bool, embeds: bool = False
) -> list[Stage[Any]]:
    """Return the stages of a fit to numbers or classes, its tuning or an embedding, in order."""
    stages = EMBEDDING if embeds else STAGES
    return [stage for stage in stages if stage.wanted(params, tuning, numbers)]


def stages_of_run(run: Run) -> list[Stage[Any]]:
    """Return the stages of a run, those that it has not reached too, in order.

    Some depend on what a search chooses.
    """
    left = stages_of(
        run.chosen_params, run.remaining_tuning, numbers=run.of_numbers, embeds=run.embeds
    )
    stages = EMBEDDING if run.embeds else STAGES
    return [stage for stage in stages if stage in left or stage.name in run.stages]


def largest_basis(
    dataset: Dataset,
    params: FitParams,
    search: NeighborSearch,
    engine: Engine,
    tuning: TuneParams | None = None,
    layout: PartLayout | None = None,
    *,
    embeds: bool = False,
) -> int:
    """Return the most basis rows that the workers' memory allows, at most all rows."""
    layout = layout or _layout(dataset, params, engine)
    seen = dataset.projected_by(None, params.svd)
    sizes = FitSizes.of(seen, params, search, 1, tuning, layout=layout)
    costs = [
        stage.cost
        for stage in stages_of(params, tuning, numbers=dataset.of_numbers, embeds=embeds)
        if stage.grows_with_basis
    ]

    def fits(n_basis: int) -> bool:
        tried = replace(sizes, r=n_basis)
        return max(cost(tried).held_bytes for cost in costs) <= engine.memory_bytes

    return bisect_left(range(1, dataset.n_rows + 1), True, key=lambda r: not fits(r))


def planned_basis(
    dataset: Dataset,
    params: FitParams,
    search: NeighborSearch,
    engine: Engine,
    tuning: TuneParams | None = None,
    *,
    embeds: bool = False,
) -> int:
    """Return the basis rows of a fit: those asked for, or the most that it may find."""
    asked = asked_size(params, dataset)
    if asked is not None:
        return asked
    most = largest_basis(dataset, params, search, engine, tuning, embeds=embeds)
    return max(min(most, MOST_FOUND), dataset.n_classes)


def stage_costs(
    dataset: Dataset,
    params: FitParams,
    search: NeighborSearch,
    engine: Engine,
    *,
    n_basis: int,
    tuning: TuneParams | None = None,
    validation: Dataset | None = None,
    embeds: bool = False,
) -> dict[str, StageCost]:
    """Return what every stage of a fit costs that is begun now, by its name."""
    return {
        stage.name: stage.cost(
            _sizes(stage, dataset, params, search, engine, n_basis, tuning, validation)
        )
        for stage in stages_of(params, tuning, numbers=dataset.of_numbers, embeds=embeds)
    }


def check_stage_budget(
    stage: Stage[Any],
    dataset: Dataset,
    params: FitParams,
    search: NeighborSearch,
    engine: Engine,
    *,
    n_basis: int,
    tuning: TuneParams | None = None,
    validation: Dataset | None = None,
    layout: PartLayout | None = None,
    embeds: bool = False,
) -> StageCost:
    """Return the cost of a stage, or raise MemoryBudgetError if a worker cannot hold it."""
    cost = stage.cost(
        _sizes(stage, dataset, params, search, engine, n_basis, tuning, validation, layout)
    )
    remedy = stage.remedy(params)
    if stage.grows_with_basis:
        change = "Give a lower `basis_size`"
        if asked_size(params, dataset) is None:
            change = "Lower `confidence_threshold`, or give `basis_size`"
        most = largest_basis(dataset, params, search, engine, tuning, layout, embeds=embeds)
        remedy = f"{change}: from {n_basis} basis rows to at most {most}"
    check_budget(stage.name, cost.held_bytes, engine, remedy=remedy)
    return cost


def _sizes(
    stage: Stage[Any],
    dataset: Dataset,
    params: FitParams,
    search: NeighborSearch,
    engine: Engine,
    n_basis: int,
    tuning: TuneParams | None,
    validation: Dataset | None,
    layout: PartLayout | None = None,
) -> FitSizes:
    """Return the sizes of a fit as a stage sees them."""
    seen = _seen(stage, dataset, params.svd)
    judged = None if validation is None else _seen(stage, validation, params.svd)
    layout = layout or _layout(seen, params, engine)
    return FitSizes.of(seen, params, search, n_basis, tuning, judged, layout=layout)


def _seen(
    stage: Stage[Any], dataset: Dataset, svd: int | None, run: Location | None = None
) -> Dataset:
    """Return the rows as a stage sees them, to read only where there is a run."""
    seen = dataset if stage.of_stored else dataset.projected_by(run, svd)
    return seen.of_labelled() if stage.labelled_only else seen


def _layout(dataset: Dataset, params: FitParams, engine: Engine) -> PartLayout:
    """Return how the rows are cut by a run that is begun now."""
    return PartLayout.of(dataset.n_rows, params.n_parts, n_workers=engine.n_workers)


def start_run(
    location: Location,
    dataset: Dataset,
    params: FitParams,
    engine: Engine,
    tuning: TuneParams | None = None,
    validation: Dataset | None = None,
    *,
    embeds: bool = False,
) -> Run:
    """Begin a run, or open the one that was begun, with the search that it began with."""
    fitting_search = partial(
        _fitting_search, dataset, params, engine, tuning, validation, embeds=embeds
    )
    search = None if exists(location) else fitting_search()
    run = Run.start(
        location,
        dataset,
        params,
        _environment(engine),
        tuning,
        n_workers=engine.n_workers,
        embeds=embeds,
    )
    if "neighbors" not in run.decisions:
        search = search or fitting_search()
        run.decide("neighbors", asdict(search))
    return run


def _fitting_search(
    dataset: Dataset,
    params: FitParams,
    engine: Engine,
    tuning: TuneParams | None,
    validation: Dataset | None,
    *,
    embeds: bool,
) -> NeighborSearch:
    """Return how neighbours will be searched, once every stage is known to fit the memory."""
    seen = dataset.projected_by(None, params.svd).of_labelled()
    search = plan_search(seen, params_needing_confidence(params, tuning), engine)
    # Without a basis_size those that depend on it are checked again once the basis is chosen.
    n_basis = asked_size(params, dataset) or dataset.n_classes
    for stage in stages_of(params, tuning, numbers=dataset.of_numbers, embeds=embeds):
        check_stage_budget(
            stage,
            dataset,
            params,
            search,
            engine,
            n_basis=n_basis,
            tuning=tuning,
            validation=validation,
            embeds=embeds,
        )
    return search


def finish_run(
    run: Run,
    dataset: Dataset,
    engine: Engine,
    *,
    validation: Dataset | None,
    before_stage: Callable[[], None],
    rates: Rates | None = None,
    check_still_locked: Callable[[], None],
) -> None:
    """Run the stages that a run misses, and do again what turns out to be damaged.

    Parameters
    ----------
    run, dataset, engine, validation
    rates : Rates or None
        Of a worker, as far as they are known.
    before_stage : callable
        Called before each; raises if the run must not go on.
    check_still_locked : callable
        Raises if the run belongs to another job by then.
    """
    redone: Counter[tuple[str, tuple[int, ...]]] = Counter()
    _drop_scratch(run, run.stages)
    while True:
        check_still_locked()
        missing = [stage for stage in stages_of_run(run) if stage.name not in run.stages]
        try:
            before_stage()
            if not missing:
                check_model(run, engine)
                return
            run_stage(
                missing[0],
                run,
                dataset,
                engine,
                validation,
                rates=rates,
                before_recording=check_still_locked,
            )
            _drop_scratch(run, run.stages if len(missing) == 1 else [missing[0].name])
        except DamagedResultError as error:
            redone[error.stage, error.parts] += 1
            if redone[error.stage, error.parts] > MAX_REDONE:
                raise
            logger.warning("%s It is computed again.", error.problem)
            check_still_locked()
            run.forget(error.stage, error.parts)


def _drop_scratch(run: Run, finished: Collection[str]) -> None:
    """Delete what stages that are finished left and no later one needs."""
    stages = stages_of_run(run)
    ended = all(stage.name in run.stages for stage in stages)
    for stage in stages:
        if stage.name in finished and (ended or not stage.keeps_parts):
            run.drop_parts(stage.name)
        if stage.name in finished:
            stage.drop_scratch(run)


def run_stage(
    stage: Stage[Any],
    run: Run,
    dataset: Dataset,
    engine: Engine,
    validation: Dataset | None = None,
    *,
    rates: Rates | None = None,
    before_recording: Callable[[], None] = lambda: None,
) -> None:
    """Run one stage, whose predecessors are finished, and record what it took.

    Parameters
    ----------
    stage, run, dataset, engine, validation
    rates : Rates or None
        As for `finish_run`.
    before_recording : callable
        Raises if the run belongs to another job by then.
    """
    params, search = run.chosen_params, decided_search(run)
    n_basis = (
        BASIS.recorded(run).n_basis
        if BASIS.name in run.stages
        else asked_size(params, dataset) or dataset.n_classes
    )
    seen_run = run.of_labelled() if stage.labelled_only else run
    cost = check_stage_budget(
        stage,
        dataset,
        params,
        search,
        engine,
        n_basis=n_basis,
        tuning=run.remaining_tuning,
        validation=validation,
        layout=seen_run.layout,
        embeds=run.embeds,
    )
    job = StageJob(
        seen_run,
        _seen(stage, dataset, params.svd, run.location),
        engine,
        lambda: largest_basis(
            dataset, params, search, engine, run.remaining_tuning, run.layout, embeds=run.embeds
        ),
        None if rates is None else partial(_remaining_s, run, dataset, engine, validation, rates),
        None if validation is None else validation.projected_by(run.location, params.svd),
    )
    started = datetime.now(UTC)
    with watched_stage(
        engine, stage.name, n_rows=seen_run.n_rows, expected_bytes=cost.held_bytes
    ) as figures:
        record = stage.written(stage.compute(job))
    before_recording()
    taken = {
        "seconds": round(figures.seconds_so_far, 3),
        "peak_bytes": engine.peak_bytes,
        "predicted_bytes": cost.held_bytes,
    }
    run.finish_stage(
        stage.name, {**record, "started": started.isoformat(timespec="seconds"), **taken}
    )
    logger.info(
        "%s: %d rows in %.1f s",
        stage.name,
        seen_run.n_rows,
        taken["seconds"],
        extra={"stage": stage.name, "run": str(run.location), "rows": seen_run.n_rows, **taken},
    )


def remaining_costs(
    run: Run, dataset: Dataset, engine: Engine, validation: Dataset | None, n_basis: int
) -> dict[str, StageCost]:
    """Return what every stage costs that a run misses, with so many basis rows, by its name."""
    costs = stage_costs(
        dataset,
        run.chosen_params,
        decided_search(run),
        engine,
        n_basis=n_basis,
        tuning=run.remaining_tuning,
        validation=validation,
        embeds=run.embeds,
    )
    return {name: cost for name, cost in costs.items() if name not in run.stages}


def _remaining_s(
    run: Run,
    dataset: Dataset,
    engine: Engine,
    validation: Dataset | None,
    rates: Rates,
    n_basis: int,
) -> float:
    costs = remaining_costs(run, dataset, engine, validation, n_basis)
    return sum(expected_s(cost, rates, engine.n_workers) for cost in costs.values())


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
