"""A fit: the stages in order, each done once."""

import logging
import platform
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import DamagedResultError, DataError, ParameterError
from dask_nrbfn.params import FitParams
from dask_nrbfn.stages.basis import compute_basis, compute_confidence
from dask_nrbfn.stages.columns import compute_columns
from dask_nrbfn.stages.costs import check_stage_budget
from dask_nrbfn.stages.moments import compute_moments
from dask_nrbfn.stages.neighbors import (
    NeighborSearch,
    compute_neighbors,
    decided_search,
    plan_search,
)
from dask_nrbfn.stages.partitions import drop_partitions
from dask_nrbfn.stages.recall import check_recall, compute_recall
from dask_nrbfn.stages.weights import check_model, compute_model, compute_weights
from dask_nrbfn.stages.width import compute_width
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import exists
from dask_nrbfn.storage.location import Location
from dask_nrbfn.storage.lock import locked_run
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

STAGES: Mapping[str, Callable[[Run, Dataset, Engine], dict[str, Any]]] = {
    "columns": compute_columns,
    "neighbors": compute_neighbors,
    "recall": compute_recall,
    "confidence": compute_confidence,
    "basis": compute_basis,
    "width": compute_width,
    "moments": compute_moments,
    "weights": compute_weights,
    "model": compute_model,
}


# A lower recall than this has cost accuracy on no table tried; below it something is wrong.
MIN_RECALL = 0.95

# How often one fit does a damaged result again before it gives up on the disk.
_MAX_REDONE = 3


def fit_dataset(
    dataset: Dataset,
    location: Location,
    params: FitParams,
    engine: Engine,
    *,
    min_recall: float = MIN_RECALL,
) -> Run:
    """Train on a dataset, or finish a training that was interrupted.

    Parameters
    ----------
    dataset : Dataset
    location : Location
        Where the run is, or is to be.
    params : FitParams
    engine : Engine
    min_recall : float
        Least share of the true neighbours that an approximate search must have found.

    Returns
    -------
    Run
        With its model.

    Raises
    ------
    DataError, ParameterError
        If the dataset or a parameter cannot be used; before any task.
    MemoryBudgetError
        If a task would not fit a worker; before the task.
    RecallError
        If an approximate search found too few of the true neighbours.
    RunMismatchError
        If the run was begun with other parameters or another dataset.
    RunBusyError
        If another job works on the run.
    MissingDataError, DamagedDataError
        If a chunk of the dataset is missing or damaged. Results of the run are computed again.
    """
    if not 0 <= min_recall <= 1:
        raise ParameterError(f"min_recall is {min_recall}.", "Give a number from 0 to 1.")
    check_fit(dataset, params)
    with locked_run(location) as check_still_locked:
        run = start_run(location, dataset, params, engine)
        redone: Counter[tuple[str, tuple[int, ...]]] = Counter()
        while True:
            _drop_scratch(run)
            if "recall" in run.stages:
                check_recall(run, min_recall)
            check_still_locked()
            missing = [stage for stage in STAGES if stage not in run.stages]
            try:
                if not missing:
                    check_model(run, engine)
                    return run
                run_stage(missing[0], run, dataset, engine)
            except DamagedResultError as error:
                redone[error.stage, error.parts] += 1
                if redone[error.stage, error.parts] > _MAX_REDONE:
                    raise
                logger.warning("%s It is computed again.", error.problem)
                run.forget(error.stage, error.parts)


def start_run(location: Location, dataset: Dataset, params: FitParams, engine: Engine) -> Run:
    """Begin a run, or open the one that was begun, with the search that it began with."""
    search = None if exists(location) else _fitting_search(dataset, params, engine)
    run = Run.start(location, dataset, params, _environment(engine))
    if "neighbors" not in run.decisions:
        search = search or _fitting_search(dataset, params, engine)
        run.decide("neighbors", asdict(search))
    return run


def _fitting_search(dataset: Dataset, params: FitParams, engine: Engine) -> NeighborSearch:
    """Return how neighbours will be searched, once every stage is known to fit the memory."""
    search = plan_search(dataset, params, engine)
    # Without a basis_size those that depend on it are checked again once the basis is chosen.
    n_basis = params.basis_size or dataset.n_classes
    for stage in STAGES:
        check_stage_budget(stage, dataset, params, search, engine, n_basis=n_basis)
    return search


def _drop_scratch(run: Run) -> None:
    """Delete what finished stages left and no later one needs.

    The parts of stages with a row for every row are kept to the end: if a chunk of their result is
    found damaged, only its part is done again.
    """
    kept = set() if "model" in run.stages else {"neighbors", "confidence"}
    for stage in run.stages.keys() - kept:
        run.drop_parts(stage)
    if "neighbors" in run.stages:
        drop_partitions(run)


def run_stage(stage: str, run: Run, dataset: Dataset, engine: Engine) -> None:
    """Run one stage, whose predecessors are finished, and record what it took."""
    params, search = run.params, decided_search(run)
    n_basis = run.basis_size() if "basis" in run.stages else params.basis_size or dataset.n_classes
    cost = check_stage_budget(stage, dataset, params, search, engine, n_basis=n_basis)
    engine.peak_bytes, engine.expected_bytes = 0, cost.held_bytes
    started, start = datetime.now(UTC), time.perf_counter()
    record = STAGES[stage](run, dataset, engine)
    seconds = time.perf_counter() - start
    run.finish_stage(
        stage,
        {
            **record,
            "started": started.isoformat(timespec="seconds"),
            "seconds": round(seconds, 3),
            "peak_bytes": engine.peak_bytes,
            "predicted_bytes": cost.held_bytes,
        },
    )
    logger.info("%s: %d rows in %.1f s", stage, run.n_rows, seconds)


def check_fit(dataset: Dataset, params: FitParams) -> None:
    """Raise what is known to be wrong with a fit before any row is read."""
    n_rows, n_classes = dataset.n_rows, dataset.n_classes
    if dataset.y is None:
        raise DataError(f"{dataset.location} has no labels.", "Ingest it with --label or --y.")
    if n_classes < 2:
        raise DataError(
            f"y has 1 class only: {dataset.classes.tolist()[0]!r}.",
            "Give rows of at least two classes.",
        )
    if params.n_neighbors >= n_rows:
        raise ParameterError(
            f"n_neighbors={params.n_neighbors} needs at least {params.n_neighbors + 1} rows, "
            f"X has n_samples = {n_rows}.",
            f"Give n_neighbors of at most {n_rows - 1}.",
        )
    if params.basis_size is not None and not n_classes <= params.basis_size <= n_rows:
        raise ParameterError(
            f"basis_size is {params.basis_size}.",
            f"Give at least one basis row per class and at most all rows: {n_classes} to {n_rows}.",
        )


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
