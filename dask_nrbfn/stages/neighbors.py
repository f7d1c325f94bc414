"""Stage "neighbors": indices and distances of the k nearest rows of every row, or of drawn rows."""

import logging
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import ParameterError, RecallError, plural
from dask_nrbfn.neighbors.approximate import approximate_neighbors
from dask_nrbfn.neighbors.exact import buffer_bytes, exact_neighbors
from dask_nrbfn.neighbors.lists import Neighbors, measure_neighbors
from dask_nrbfn.neighbors.partition import MAX_IMBALANCE
from dask_nrbfn.neighbors.plan import (
    COMPILATION_S,
    NeighborSearch,
    candidate_updates,
    sample_rows,
    search_dtype,
    update_rate,
)
from dask_nrbfn.numeric.confidence import LEAST_OF_CLASS, choose_candidates
from dask_nrbfn.numeric.hashing import hash_rows
from dask_nrbfn.numeric.rows import Rows, gathered
from dask_nrbfn.numeric.threads import blas_threads
from dask_nrbfn.params import FitParams
from dask_nrbfn.parts import PartResult, map_parts, run_task
from dask_nrbfn.stages.bases import (
    asked_candidates,
    check_distinct,
    pool_bytes,
    pool_of,
    rows_by_number,
    source_of,
)
from dask_nrbfn.stages.columns import read_statistics
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.exact_search import SearchSpace, search_rows_exactly
from dask_nrbfn.stages.neighbor_search import (
    LIST_BYTES,
    check_neighbors,
    decide_candidates,
    most_lists,
    of_searched,
    searched_in,
    searching_bytes,
    worker_bytes,
)
from dask_nrbfn.stages.partitions import search_partitions
from dask_nrbfn.stages.recall import AUDITED_ROWS
from dask_nrbfn.stages.sizes import FitSizes
from dask_nrbfn.stages.stage import Stage, StageCost, StageJob
from dask_nrbfn.stages.trials import Trials
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import narrow_block_rows
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

# Maximum ratio of rounding to the mean distance of neighbours in an approximate search.
_MOST_ROUNDING = 0.1


@dataclass(frozen=True, kw_only=True)
class NeighborsRecord:
    """The method of the neighbour search, and the mean distance of neighbours.

    n_repaired: rows that found fewer than k neighbours in their partitions.
    """

    method: str
    n_partitions: int
    threads: int
    mean_distance: float
    largest_partition: int | None = None
    n_repaired: int | None = None
    n_candidates: int | None = None


def _compute(job: StageJob) -> NeighborsRecord:
    """Store the neighbours of every row, or of every candidate."""
    run, dataset = job.run, job.dataset
    search = decided_search(run)
    partitions = plural(search.n_partitions, "partition")
    logger.info("neighbors: %s search, %s", search.method, partitions)
    k = run.chosen_params.n_neighbors
    if search.n_candidates is not None:
        decide_candidates(run, search.n_candidates)
    searched = of_searched(run)
    searched.require_row_array("neighbors/indices", np.int64, k)
    searched.require_row_array("neighbors/distances", np.float64, k)
    found = _search(run, dataset, job.engine, search)
    mean_distance = found.pop("distance_sum") / (searched.n_rows * k)
    _check_precision(run, dataset, search.method, mean_distance)
    return NeighborsRecord(**{**asdict(search), **found, "mean_distance": mean_distance})


def _check_precision(run: Run, dataset: Dataset, method: str, mean_distance: float) -> None:
    """Raise RecallError if neighbours are too near to each other for single precision."""
    if np.can_cast(dataset.dtype, search_dtype(dataset.dtype, method)):
        return
    spread = 0.0
    if run.chosen_params.scale == "none":
        statistics = read_statistics(run)
        # Rows in CSR are not centred.
        away = statistics.mean if dataset.is_sparse else 0.0
        spread = float(np.linalg.norm(np.hypot(statistics.standard_deviation, away)))
    if spread * np.finfo(np.float32).eps > _MOST_ROUNDING * mean_distance:
        raise RecallError(
            f"the rows spread over {spread:.3g}, but neighbours are {mean_distance:.3g} apart: the "
            "approximate search uses single precision and cannot distinguish the neighbours.",
            "Give `neighbors`=exact or `scale`=standard, in a new run.",
        )


def _search(run: Run, dataset: Dataset, engine: Engine, search: NeighborSearch) -> dict[str, Any]:
    if search.n_candidates is not None:
        return _search_candidates(run, dataset, engine)
    if search.n_partitions > 1:
        return search_partitions(
            run, dataset, engine, n_partitions=search.n_partitions, threads=search.threads
        )
    if search.method == "exact":
        records = map_parts(run, dataset, engine, stage="neighbors", task=_exact_part)
    else:
        records = run_task(
            engine,
            _approximate_graph,
            run,
            dataset,
            search.threads,
            label="neighbors",
        )
    return {"distance_sum": math.fsum(record["distance_sum"] for record in records)}


def _search_candidates(run: Run, dataset: Dataset, engine: Engine) -> dict[str, Any]:
    """Store the row numbers of the candidates and their neighbours among all rows.

    Only lists are written: each part writes the neighbours among its rows.
    """
    if not all(map(run.has, ("neighbors/rows", "neighbors/hashes"))):
        run_task(engine, _draw, run, dataset, label="neighbors")
    rows = run.read("neighbors/rows")
    search_rows_exactly(run, dataset, engine, stage="candidates", rows=rows)
    return {"distance_sum": run_task(engine, _store_lists, run, label="neighbors")}


def _draw(run: Run, dataset: Dataset) -> None:
    """Draw candidates; store their row numbers and the hashes of their values."""
    size = of_searched(run).n_rows
    pool = pool_of(rows_by_number(run, dataset), size=size, n_classes=LEAST_OF_CLASS)
    drawn = choose_candidates(pool, size=size)
    hashes = hash_rows(dataset.take(drawn), seed=run.chosen_params.random_state)
    check_distinct(run, len(np.unique(hashes)))
    group = run.group("neighbors")
    write_array(group, "rows", drawn, "candidate")
    write_array(group, "hashes", hashes, "candidate")


def _store_lists(run: Run) -> float:
    """Store the lists of all candidates in parts; return the sum of the distances."""
    searched = of_searched(run)
    for start, stop in searched.spans:
        for name in Neighbors._fields:
            values = run.read(f"candidates/{name}", start, stop)
            searched.write_rows(f"neighbors/{name}", start, values)
    return float(run.read("candidates/distances").sum())


def decided_search(run: Run) -> NeighborSearch:
    """Return the recorded search of a run."""
    return NeighborSearch(**run.decisions["neighbors"])


def plan_search(dataset: Dataset, params: FitParams, engine: Engine) -> NeighborSearch:
    """Return the search for `params`, with every "auto" resolved by rows and memory."""
    if not source_of(params).by_confidence:
        return NeighborSearch(method="exact", n_partitions=1, threads=engine.threads)
    n_candidates, searched = asked_candidates(params, dataset), searched_in(dataset, params)
    if n_candidates is not None:
        return NeighborSearch(
            method="exact", n_partitions=1, threads=engine.threads, n_candidates=n_candidates
        )
    buffers = buffer_bytes(searched.width, params.n_neighbors, threads=engine.threads)
    search = searched.plan(
        threads=engine.threads,
        free_bytes=lambda method: (
            engine.memory_bytes - worker_bytes(method) - dataset.reading_bytes - buffers
        ),
    )
    if params.n_partitions is None and search.n_partitions > 1:
        needed = searching_bytes(dataset, params, search.method, searched.smallest_partition)
        engine.check_budget("neighbors", needed + buffers, remedy="Lower `n_neighbors`")
    return search


def _exact_part(run: Run, dataset: Dataset, start: int, stop: int) -> PartResult:
    rows = _all_rows(run, dataset)
    found = exact_neighbors(
        rows,
        np.arange(start, stop),
        n_neighbors=run.chosen_params.n_neighbors,
        threads=blas_threads(),
    )
    return PartResult(_store_neighbors(run, start, found))


def _approximate_graph(run: Run, dataset: Dataset, threads: int) -> list[dict[str, Any]]:
    rows = _all_rows(run, dataset)
    indices = approximate_neighbors(
        rows,
        n_neighbors=run.chosen_params.n_neighbors,
        seed=run.chosen_params.random_state,
        threads=threads,
    )
    return [
        _store_neighbors(
            run,
            start,
            measure_neighbors(rows, rows[start:stop], indices[start:stop], threads=blas_threads()),
        )
        for start, stop in run.spans
    ]


def _store_neighbors(run: Run, start: int, neighbors: Neighbors) -> dict[str, Any]:
    run.write_rows("neighbors/indices", start, neighbors.indices)
    run.write_rows("neighbors/distances", start, neighbors.distances)
    return {"distance_sum": float(neighbors.distances.sum())}


def _all_rows(run: Run, dataset: Dataset) -> Rows:
    space = SearchSpace.of(run, dataset)
    blocks = dataset.blocks(0, dataset.n_rows, narrow_block_rows(dataset.row_width))
    shape = dataset.n_rows, dataset.n_features
    return gathered((space.apply(X) for X, *_ in blocks), shape)


def _cost(s: FitSizes) -> StageCost:
    if s.search.n_candidates is not None:
        return _search_of_candidates(s, s.search.n_candidates)
    return _search_at_once(s) if s.search.n_partitions == 1 else _search_in_partitions(s)


def _search_at_once(s: FitSizes) -> StageCost:
    exact = s.search.method == "exact"
    n_tasks = s.n_parts if exact else 1
    return StageCost(
        pairs=float(s.n) ** 2 if exact else 0.0,
        pair_flops=s.pair_flops,
        read_bytes=n_tasks * s.rows_bytes,
        written_bytes=s.lists_bytes,
        held_bytes=s.reader_bytes
        + narrow_block_rows(s.width) * s.width * (s.itemsize + 2 * 8 + s.search_itemsize)
        + _search_bytes(s, s.n),
        n_tasks=n_tasks,
        shared_s=0.0 if exact else _updating_s(s, s.n),
        fixed_s=0.0 if exact else COMPILATION_S,
    )


def _search_in_partitions(s: FitSizes) -> StageCost:
    n_partitions, overlap = s.search.n_partitions, s.params.overlap
    entries = s.n * overlap
    partition_rows = math.ceil(MAX_IMBALANCE * entries / n_partitions)
    scratch = entries * (s.width * s.search_itemsize + 2 * 8 + LIST_BYTES * s.k)
    exact = s.search.method == "exact"
    block = s.block_rows * s.width * (2 * s.itemsize + 8 + (2 + 2 * overlap) * s.search_itemsize)
    # Candidate lists, and their copies while they are sorted twice.
    merged = 4 * LIST_BYTES * s.block_rows * s.k * most_lists(overlap)
    search = _search_bytes(s, partition_rows) + 16 * partition_rows
    # The sample as read and searched, in double precision and as distances, some of them twice.
    placing = 5 * 8 * sample_rows(s.n, s.width, n_partitions) * (s.width + n_partitions)
    # The centroids, arrays for CSR too: two copies to route rows, two more to find them.
    centroids = 2 * 8 * n_partitions * s.p
    repairing = s.exact_search_bytes(AUDITED_ROWS)
    return StageCost(
        products=2 * s.n * n_partitions * s.row_values,
        pairs=float(entries) ** 2 / n_partitions if exact else 0.0,
        pair_flops=s.pair_flops,
        read_bytes=2 * s.rows_bytes + scratch,
        written_bytes=scratch + s.lists_bytes,
        held_bytes=s.reader_bytes
        + max(block + centroids + repairing, merged, search, placing + 2 * centroids),
        n_tasks=n_partitions,
        shared_s=0.0 if exact else _updating_s(s, entries),
        fixed_s=0.0 if exact else COMPILATION_S,
    )


def _search_of_candidates(s: FitSizes, n_candidates: int) -> StageCost:
    drawn = n_candidates * s.width * (2 * s.itemsize + 8 + 2 * s.search_itemsize)
    return StageCost(
        pairs=s.n * n_candidates,
        pair_flops=s.pair_flops,
        read_bytes=3 * s.rows_bytes,
        written_bytes=(s.n_parts + 2) * s.lists_bytes,
        held_bytes=s.reader_bytes
        + max(
            pool_bytes(s.n, s.K, n_candidates, 0) + drawn,
            s.exact_search_bytes(n_candidates) + s.searched_block_bytes,
        ),
        n_tasks=s.n_parts,
    )


def _search_bytes(s: FitSizes, n_rows: int) -> int:
    own = searched_in(s.dataset, s.params).search_bytes(n_rows, s.search.method)
    return own + buffer_bytes(s.width, s.k, threads=s.search.threads)


def _updating_s(s: FitSizes, n_rows: int) -> float:
    updates = candidate_updates(n_rows, s.p, s.row_values, n_neighbors=s.k)
    return updates / update_rate(s.search.threads)


def _remedy(params: FitParams) -> str:
    if params.n_partitions not in (None, 1):
        return "Give a larger `n_partitions`, or leave `n_partitions` out"
    return "Lower `n_neighbors` or `candidates`"


def _check(context: FitContext) -> None:
    """Raise ParameterError if the rows have no classes, or if there are too few rows."""
    dataset, params, named = context.dataset, context.needing_confidence, context.basis_option
    asked = f"`{named}`={params.basis} needs class labels"
    remedy = f"Set `{named}` to kmeans or random."
    if context.embeds and not dataset.n_classes:
        raise ParameterError(f"{asked}, but {dataset.location} has no labels.", remedy)
    if dataset.of_numbers:
        raise ParameterError(f"{asked}, but the targets are numbers.", remedy)
    check_neighbors(params.n_neighbors, dataset, labelled_only=True)


NEIGHBORS = Stage(
    name="neighbors",
    record=NeighborsRecord,
    compute=_compute,
    cost=_cost,
    check=_check,
    labelled_only=True,
    wanted=lambda params, tuning, numbers: Trials(params, tuning).by_confidence,
    remedy=_remedy,
    keeps_parts=True,
    needs=("columns", "metric/root"),
    passes=("neighbors",),
    scratch=("partitions", "candidates", "repair"),
)
