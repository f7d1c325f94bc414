"""Stage "neighbors": indices and distances of the k nearest rows of every row."""

import logging
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.engine import Engine
from dask_nrbfn.engine.budget import check_budget
from dask_nrbfn.neighbors import (
    approximate_neighbors,
    exact_neighbors,
    faster_method,
    measure_neighbors,
    search_bytes,
)
from dask_nrbfn.params import FitParams
from dask_nrbfn.stages.columns import read_scaling, read_statistics
from dask_nrbfn.stages.parts import PartResult, block_rows, run_parts, run_tasks
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)


def compute_neighbors(run: Run, dataset: Dataset, engine: Engine) -> dict[str, Any]:
    """Store the neighbours of every row and return the method used and the mean distance."""
    group = run.group("neighbors")
    # Taken up again on other workers, a search goes on as it began.
    method = str(group.attrs.get("method") or search_method(dataset, run.params, engine))
    group.update_attributes({"method": method})
    logger.info("neighbors: %s search (%s asked for)", method, run.params.neighbors)
    k = run.params.n_neighbors
    run.require_row_array("neighbors/indices", np.int64, k)
    run.require_row_array("neighbors/distances", np.float64, k)
    if method == "exact":
        records = run_parts(run, dataset, engine, stage="neighbors", task=_exact_part)
    else:
        arguments = [(run.location, dataset.location, engine.threads)]
        (records,) = run_tasks(engine, _approximate_graph, arguments, label="neighbors")
    total = math.fsum(record["distance_sum"] for record in records)
    return {
        "method": method,
        "threads": engine.threads,
        "mean_distance": total / (run.n_rows * k),
    }


def search_method(dataset: Dataset, params: FitParams, engine: Engine) -> str:
    """Return the search that `params` ask for, or the faster one."""
    if params.neighbors != "auto":
        return params.neighbors
    return faster_method(
        dataset.n_rows,
        dataset.n_features,
        n_neighbors=params.n_neighbors,
        threads=engine.threads,
    )


def check_neighbors_budget(dataset: Dataset, params: FitParams, engine: Engine) -> None:
    """Raise MemoryBudgetError if a search over all rows does not fit a worker."""
    method = search_method(dataset, params, engine)
    needed = search_bytes(
        dataset.n_rows,
        dataset.n_features,
        itemsize=_search_dtype(dataset, method).itemsize,
        n_neighbors=params.n_neighbors,
        method=method,
    )
    needed += dataset.reading_bytes
    check_budget("neighbors", needed, engine, remedy="Lower n_neighbors or train on fewer rows")


def _exact_part(run: Run, dataset: Dataset, start: int, stop: int) -> PartResult:
    rows = _search_rows(run, dataset, "exact")
    queries = np.arange(start, stop)
    indices = exact_neighbors(rows, queries, n_neighbors=run.params.n_neighbors)
    return PartResult(_store_neighbors(run, rows, queries, indices))


def _approximate_graph(
    run_location: Location, dataset_location: Location, threads: int
) -> list[dict[str, Any]]:
    run, dataset = Run.open(run_location), Dataset.open(dataset_location)
    rows = _search_rows(run, dataset, "approximate")
    indices = approximate_neighbors(
        rows, n_neighbors=run.params.n_neighbors, seed=run.params.seed, threads=threads
    )
    return [
        _store_neighbors(run, rows, np.arange(start, stop), indices[start:stop])
        for start, stop in run.spans
    ]


def _store_neighbors(
    run: Run, rows: NDArray[Any], queries: NDArray[np.int64], indices: NDArray[np.int64]
) -> dict[str, Any]:
    neighbors = measure_neighbors(rows, queries, indices)
    run.write_rows("neighbors/indices", int(queries[0]), neighbors.indices)
    run.write_rows("neighbors/distances", int(queries[0]), neighbors.distances)
    return {"distance_sum": float(neighbors.distances.sum())}


def _search_rows(run: Run, dataset: Dataset, method: str) -> NDArray[Any]:
    """Return all rows, scaled and centred, in the precision that the search needs."""
    scaling = read_scaling(run)
    centre = read_statistics(run).exact_centre() if run.params.scale == "none" else 0.0
    rows = np.empty((dataset.n_rows, dataset.n_features), dtype=_search_dtype(dataset, method))
    start = 0
    for X, _ in dataset.blocks(0, dataset.n_rows, block_rows(dataset.n_features)):
        rows[start : start + len(X)] = scaling.apply(X) - centre
        start += len(X)
    return rows


def _search_dtype(dataset: Dataset, method: str) -> np.dtype[Any]:
    small = np.can_cast(dataset.X.dtype, np.float32)
    return np.dtype(np.float32 if small or method == "approximate" else np.float64)
