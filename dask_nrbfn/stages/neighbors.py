"""Stage "neighbors": indices and distances of the k nearest rows of every row."""

import logging
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.engine import Engine
from dask_nrbfn.engine.budget import check_budget
from dask_nrbfn.errors import ParameterError, RecallError
from dask_nrbfn.neighbors import (
    MAX_IMBALANCE,
    approximate_neighbors,
    exact_neighbors,
    faster_method,
    largest_search,
    measure_neighbors,
)
from dask_nrbfn.params import FitParams
from dask_nrbfn.stages.columns import read_statistics
from dask_nrbfn.stages.partitions import search_partitions
from dask_nrbfn.stages.parts import PartResult, narrow_block_rows, run_parts, run_tasks
from dask_nrbfn.stages.space import (
    SearchSpace,
    most_partitions,
    search_dtype,
    searching_bytes,
    smallest_partition,
)
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

# Rows that fit this are searched at once, others in partitions of this size: what a search holds
# then depends on neither the rows nor, unless it is smaller still, on the memory of the workers.
_SEARCH_BYTES = 2**30

# Rounding of the coordinates over the distance of neighbours that an approximate search may have.
_MOST_ROUNDING = 0.1


@dataclass(frozen=True, kw_only=True)
class NeighborSearch:
    """How neighbours are searched: what "auto" came to when the run began.

    Attributes
    ----------
    method : {"exact", "approximate"}
    n_partitions : int
    threads : int
        On which the graph of an approximate search depends.
    """

    method: str
    n_partitions: int
    threads: int


def compute_neighbors(run: Run, dataset: Dataset, engine: Engine) -> dict[str, Any]:
    """Store the neighbours of every row and return the method used and the mean distance."""
    search = decided_search(run)
    logger.info("neighbors: %s search, %d partition(s)", search.method, search.n_partitions)
    k = run.params.n_neighbors
    run.require_row_array("neighbors/indices", np.int64, k)
    run.require_row_array("neighbors/distances", np.float64, k)
    record = _search(run, dataset, engine, search)
    mean_distance = record.pop("distance_sum") / (run.n_rows * k)
    _check_precision(run, dataset, search.method, mean_distance)
    return {**asdict(search), **record, "mean_distance": mean_distance}


def _check_precision(run: Run, dataset: Dataset, method: str, mean_distance: float) -> None:
    """Raise RecallError if neighbours are nearer than single precision can tell."""
    if np.can_cast(dataset.X.dtype, search_dtype(dataset, method)):
        return
    spread = 0.0
    if run.params.scale == "none":
        spread = float(np.linalg.norm(read_statistics(run).standard_deviation))
    if spread * np.finfo(np.float32).eps > _MOST_ROUNDING * mean_distance:
        raise RecallError(
            f"rows spread over {spread:.3g} and neighbours are {mean_distance:.3g} apart: the "
            "approximate search, in single precision, cannot tell them.",
            "Give `neighbors`=exact or `scale`=standard, in a new run.",
        )


def _search(run: Run, dataset: Dataset, engine: Engine, search: NeighborSearch) -> dict[str, Any]:
    if search.n_partitions > 1:
        return search_partitions(
            run, dataset, engine, n_partitions=search.n_partitions, threads=search.threads
        )
    if search.method == "exact":
        records = run_parts(run, dataset, engine, stage="neighbors", task=_exact_part)
    else:
        arguments = [(run.location, dataset.location, search.threads)]
        (records,) = run_tasks(engine, _approximate_graph, arguments, label="neighbors")
    return {"distance_sum": math.fsum(record["distance_sum"] for record in records)}


def decided_search(run: Run) -> NeighborSearch:
    """Return the search that a run began with."""
    return NeighborSearch(**run.decisions["neighbors"])


def plan_search(dataset: Dataset, params: FitParams, engine: Engine) -> NeighborSearch:
    """Return the search that `params` ask for, and where they leave it open, the one that fits.

    Raises
    ------
    ParameterError
        If partitions would be too few or too small to search.
    MemoryBudgetError
        If not even a small partition fits a worker.
    """
    if params.basis != "sknn":
        return NeighborSearch(method="exact", n_partitions=1, threads=engine.threads)
    n_partitions = params.n_partitions
    if n_partitions is None:
        n_partitions = _fitting_partitions(dataset, params, engine)
    else:
        _check_partitions(n_partitions, dataset, params)
    return NeighborSearch(
        method=_method(dataset, params, engine, n_partitions),
        n_partitions=int(n_partitions),
        threads=engine.threads,
    )


def _method(dataset: Dataset, params: FitParams, engine: Engine, n_partitions: int) -> str:
    if params.neighbors != "auto":
        return params.neighbors
    return faster_method(
        _partition_rows(dataset, params, n_partitions),
        dataset.n_features,
        n_neighbors=params.n_neighbors,
        threads=engine.threads,
        n_searches=n_partitions,
    )


def _partition_rows(dataset: Dataset, params: FitParams, n_partitions: int) -> int:
    """Return the rows of the largest of so many partitions."""
    if n_partitions == 1:
        return dataset.n_rows
    return math.ceil(MAX_IMBALANCE * dataset.n_rows * params.overlap / n_partitions)


def _fitting_partitions(dataset: Dataset, params: FitParams, engine: Engine) -> int:
    method = _method(dataset, params, engine, 1)
    buffers = searching_bytes(dataset, params, method, 0)
    rows = largest_search(
        min(_SEARCH_BYTES, engine.memory_bytes - buffers),
        dataset.n_features,
        itemsize=search_dtype(dataset, method).itemsize,
        n_neighbors=params.n_neighbors,
        method=method,
    )
    smallest = smallest_partition(params)
    if rows >= dataset.n_rows:
        return 1
    if rows < smallest:
        needed = searching_bytes(dataset, params, method, smallest)
        check_budget("neighbors", needed, engine, remedy="Lower `n_neighbors`")
    wanted = math.ceil(MAX_IMBALANCE * dataset.n_rows * params.overlap / max(rows, smallest))
    most = most_partitions(dataset.n_rows, dataset.n_features, params)
    return max(params.overlap + 1, min(wanted, most))


def _check_partitions(n_partitions: int, dataset: Dataset, params: FitParams) -> None:
    if n_partitions == 1:
        return
    least = params.overlap + 1
    most = most_partitions(dataset.n_rows, dataset.n_features, params)
    allowed = f"Give 1, or {least} to {most}." if least <= most else "Give 1."
    if n_partitions < least:
        raise ParameterError(
            f"`n_partitions` is {n_partitions} and `overlap` {params.overlap}: every partition "
            "would hold all rows.",
            allowed,
        )
    if n_partitions > most:
        raise ParameterError(
            f"`n_partitions` is {n_partitions} for {dataset.n_rows} x {dataset.n_features}: each "
            f"has too few rows to find `n_neighbors`={params.n_neighbors}, or to be placed by.",
            allowed,
        )


def _exact_part(run: Run, dataset: Dataset, start: int, stop: int) -> PartResult:
    rows = _all_rows(run, dataset, "exact")
    indices = exact_neighbors(rows, np.arange(start, stop), n_neighbors=run.params.n_neighbors)
    return PartResult(_store_neighbors(run, rows, start, stop, indices))


def _approximate_graph(
    run_location: Location, dataset_location: Location, threads: int
) -> list[dict[str, Any]]:
    run, dataset = Run.open(run_location), Dataset.open(dataset_location)
    rows = _all_rows(run, dataset, "approximate")
    indices = approximate_neighbors(
        rows, n_neighbors=run.params.n_neighbors, seed=run.params.seed, threads=threads
    )
    return [
        _store_neighbors(run, rows, start, stop, indices[start:stop]) for start, stop in run.spans
    ]


def _store_neighbors(
    run: Run, rows: NDArray[Any], start: int, stop: int, indices: NDArray[np.int64]
) -> dict[str, Any]:
    neighbors = measure_neighbors(rows, rows[start:stop], indices)
    run.write_rows("neighbors/indices", start, neighbors.indices)
    run.write_rows("neighbors/distances", start, neighbors.distances)
    return {"distance_sum": float(neighbors.distances.sum())}


def _all_rows(run: Run, dataset: Dataset, method: str) -> NDArray[Any]:
    space = SearchSpace.of(run, dataset, method)
    rows = np.empty((dataset.n_rows, dataset.n_features), dtype=space.dtype)
    start = 0
    for X, *_ in dataset.blocks(0, dataset.n_rows, narrow_block_rows(dataset.n_features)):
        rows[start : start + len(X)] = space.apply(X)
        start += len(X)
    return rows
