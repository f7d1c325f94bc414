"""A fit: the stages in order, each done once."""

import logging
import platform
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.params import FitParams
from dask_nrbfn.stages.basis import compute_basis, compute_confidence
from dask_nrbfn.stages.columns import compute_columns
from dask_nrbfn.stages.moments import check_basis_budget, compute_moments
from dask_nrbfn.stages.neighbors import check_neighbors_budget, compute_neighbors
from dask_nrbfn.stages.weights import compute_model, compute_weights
from dask_nrbfn.stages.width import compute_width
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

STAGES: Mapping[str, Callable[[Run, Dataset, Engine], dict[str, Any]]] = {
    "columns": compute_columns,
    "neighbors": compute_neighbors,
    "confidence": compute_confidence,
    "basis": compute_basis,
    "width": compute_width,
    "moments": compute_moments,
    "weights": compute_weights,
    "model": compute_model,
}


def fit_dataset(dataset: Dataset, location: Location, params: FitParams, engine: Engine) -> Run:
    """Train on a dataset, or finish a training that was interrupted.

    Parameters
    ----------
    dataset : Dataset
    location : Location
        Where the run is, or is to be.
    params : FitParams
    engine : Engine

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
    RunMismatchError
        If the run was begun with other parameters or another dataset.
    MissingDataError, DamagedDataError
        If a chunk of the dataset or the run is missing or damaged.
    """
    check_fit(dataset, params, engine)
    run = Run.start(location, dataset, params, _environment(engine))
    for stage in STAGES:
        if stage not in run.stages:
            run_stage(stage, run, dataset, engine)
        run.drop_parts(stage)
    return run


def run_stage(stage: str, run: Run, dataset: Dataset, engine: Engine) -> None:
    """Run one stage, whose predecessors are finished, and record what it took."""
    if stage == "width":
        check_basis_budget(run.basis_size(), dataset, run.params, engine)
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
        },
    )
    logger.info("%s: %d rows in %.1f s", stage, run.n_rows, seconds)


def check_fit(dataset: Dataset, params: FitParams, engine: Engine) -> None:
    """Raise what can be known to be wrong before any row is read."""
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
    check_neighbors_budget(dataset, params, engine)
    if params.basis_size is not None:
        check_basis_budget(params.basis_size, dataset, params, engine)


def _environment(engine: Engine) -> dict[str, Any]:
    packages = ("dask-nrbfn", "dask", "distributed", "numpy", "scikit-learn", "scipy", "zarr")
    return {
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
        "n_workers": engine.n_workers,
        "threads": engine.threads,
        "memory_bytes": engine.memory_bytes,
    }
