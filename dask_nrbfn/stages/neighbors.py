"""Stages "neighbors" and "recall": the k nearest rows, and the share of them that was found."""

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import DamagedResultError, ParameterError, RecallError, plural
from dask_nrbfn.neighbors import lists, plan
from dask_nrbfn.neighbors.approximate import approximate_neighbors
from dask_nrbfn.neighbors.exact import buffer_bytes, exact_neighbors, find_repeats, nearest_rows
from dask_nrbfn.neighbors.lists import MISSING, Neighbors, measure_neighbors, merge_neighbors
from dask_nrbfn.neighbors.partition import MAX_IMBALANCE, Partitions
from dask_nrbfn.neighbors.plan import NeighborSearch, search_dtype
from dask_nrbfn.numeric.confidence import LEAST_OF_CLASS, RowPool, choose_candidates
from dask_nrbfn.numeric.device import active_gpu
from dask_nrbfn.numeric.hashing import hash_numbers, hash_rows
from dask_nrbfn.numeric.rows import Rows, canonical, gathered, is_csr
from dask_nrbfn.params import FitParams
from dask_nrbfn.parts import PartResult, map_parts, run_task
from dask_nrbfn.stages import bases
from dask_nrbfn.stages.bases import (
    CANDIDATE_HASHES,
    CANDIDATE_ROWS,
    LIST_BYTES,
    search_block_rows,
    with_neighbors,
)
from dask_nrbfn.stages.columns import read_scaling, read_statistics
from dask_nrbfn.stages.context import FitContext, FitSizes, worker_bytes
from dask_nrbfn.stages.cost import StageCost
from dask_nrbfn.stages.stage import Stage, StageJob, StageRecord
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import PartLayout, narrow_block_rows
from dask_nrbfn.storage.run import Run, RunArray

logger = logging.getLogger(__name__)

# Maximum ratio of rounding to the mean distance of neighbours in an approximate search.
_MOST_ROUNDING = 0.1

# The arrays of `Partitions`; the centroids are complete last.
_PLACES = ("centroids", "offsets", "reaches")

# NNDescent gains nothing on fewer rows than this.
_MIN_APPROXIMATE_ROWS = 4096


def _search_space(run: Run, dataset: Dataset) -> Callable[[Rows], Rows]:
    """Return the function that scales and centres rows, in the precision of the search."""
    scaling, centre = read_scaling(run), np.zeros(())
    dtype = search_dtype(dataset.dtype, run.decisions["neighbors"]["method"])
    # Centring would fill rows in CSR.
    if run.spec.params.scale == "none" and not dataset.is_sparse:
        centre = read_statistics(run).exact_centre()

    def place(X: Rows) -> Rows:
        rows = scaling.apply(X) if is_csr(X) else scaling.apply(X) - centre
        try:
            with np.errstate(over="raise"):
                rows = rows.astype(dtype, copy=False)
        except FloatingPointError:
            raise RecallError(
                "X has values that are too large for the single precision of the search.",
                "Give `scale`=standard, in a new fit.",
            ) from None
        # Values that become 0 in single precision are not stored.
        return canonical(rows) if is_csr(rows) else rows

    return place


# Rows without enough neighbours, or drawn for a locality, that are searched in one pass over all.
MAX_TARGETS = 10_000

# Targets whose distances from a target limit its search; one task measures them before the others.
LIMITING_ROWS = 8192

# Blocks of rows that a GPU searches together.
_GPU_BLOCKS = 4


def search_rows_exactly(
    job: StageJob, stage: str, rows: NDArray[np.int64], *, into: str | None = None
) -> float:
    """Store the exact neighbours of ascending rows among all rows; return the sum of distances.

    into: the group of their "indices" and "distances", by default that of the stage.
    """
    run, dataset, engine = job.run, job.dataset, job.engine
    if run.has(f"{stage}/rows") and not np.array_equal(run.read(f"{stage}/rows"), rows):
        # The stored parts belong to other rows.
        run.drop(stage)
    if not run.finished_parts(stage):
        write_array(run.group(stage), "rows", rows, "target")
        run_task(engine, _store_targets, run, dataset, stage, label=stage)
    units = [(stage, start, stop) for start, stop in run.layout.spans]
    map_parts(run, dataset, engine, stage=stage, task=_search_span, units=units)
    distance_sum = run_task(engine, _merge_spans, run, stage, into or stage, label=stage)
    run.drop(f"{stage}/values", f"{stage}/within")
    return distance_sum


def _store_targets(run: Run, dataset: Dataset, stage: str) -> None:
    values = _search_space(run, dataset)(dataset.take(run.read(f"{stage}/rows")))
    write_array(run.group(stage), "values", values, "target", "feature")
    # A distance within which each target has k other targets, which limits its search.
    k, within = run.spec.params.k, np.full(values.shape[0], np.inf)
    some = values[:: max(1, -(-values.shape[0] // LIMITING_ROWS))]
    if some.shape[0] > k:
        within = nearest_rows(some, values, count=k + 1).distances[:, -1]
    write_array(run.group(stage), "within", within, "target")


def _search_span(run: Run, dataset: Dataset, stage: str, start: int, stop: int) -> PartResult:
    searched = _search_space(run, dataset)
    numbers, targets, within = (
        run.read(f"{stage}/{name}") for name in ("rows", "values", "within")
    )
    k, n_targets = run.spec.params.k, len(numbers)
    best = Neighbors(np.empty((n_targets, 0), np.int64), np.empty((n_targets, 0)))
    size = search_block_rows(run.layout.chunk_rows, dataset.row_width, run.spec.params)
    if active_gpu() is not None:
        # Lists are merged on the CPU, as few times as possible.
        size *= _GPU_BLOCKS
    for X, *_ in dataset.blocks(start, stop, size):
        rows = searched(X)
        count = min(k + 1, rows.shape[0])
        found = nearest_rows(rows, targets, count=count, within=within)
        others = (found.indices != MISSING) & (found.indices + start != numbers[:, None])
        indices = np.where(others, found.indices + start, MISSING)
        best = merge_neighbors([best, Neighbors(indices, found.distances)], n_neighbors=k)
        within = np.minimum(within, best.distances[:, -1])
        start += rows.shape[0]
    return PartResult({}, best._asdict())


def _merge_spans(run: Run, stage: str, into: str) -> float:
    k, best = run.spec.params.k, None
    for index in range(len(run.layout.spans)):
        part = Neighbors(*(run.read_part(stage, index, name) for name in Neighbors._fields))
        best = part if best is None else merge_neighbors([best, part], n_neighbors=k)
    assert best is not None
    for name, values in best._asdict().items():
        write_array(run.group(into), name, values, "row", "neighbor")
    return float(best.distances.sum())


def _store_repaired(run: Run) -> None:
    """Put the lists of the rows that were searched again in their places among all lists."""
    places = run.read("repair/rows")
    for name in Neighbors._fields:
        values = run.read(f"repair/{name}")
        for start in np.unique(places // run.layout.chunk_rows) * run.layout.chunk_rows:
            stop = min(int(start) + run.layout.chunk_rows, run.n_rows)
            first, last = np.searchsorted(places, [start, stop])
            chunk = run.read(f"neighbors/{name}", int(start), stop)
            chunk[places[first:last] - start] = values[first:last]
            run.write_rows(f"neighbors/{name}", int(start), chunk)


@dataclass(frozen=True, kw_only=True)
class NeighborsRecord(StageRecord):
    """The search, and the mean distance between a row and its neighbours."""

    method: str
    n_partitions: int
    threads: int
    n_candidates: int | None = None
    mean_distance: float
    # Of partitions: rows of the largest, and rows that were searched again among all rows.
    largest_partition: int | None = None
    n_repaired: int | None = None


INDICES = RunArray(
    "neighbors/indices", ("row", "neighbor"), "nearest rows of each searched row", verified=False
)
DISTANCES = RunArray(
    "neighbors/distances", ("row", "neighbor"), "distances of the nearest rows", verified=False
)


def _find_neighbors(job: StageJob) -> NeighborsRecord:
    """Store the neighbours of every row or candidate; return the search and the mean distance."""
    run, dataset = job.run, job.dataset
    search = NeighborSearch(**run.decisions["neighbors"])
    partitions = plural(search.n_partitions, "partition")
    logger.info("neighbors: %s search, %s", search.method, partitions)
    k, n_searched = run.spec.params.k, search.n_candidates or run.n_rows
    found: dict[str, Any]
    if search.n_candidates is None:
        run.require_row_array(INDICES.name, np.int64, k)
        run.require_row_array(DISTANCES.name, np.float64, k)
    if search.n_candidates is not None:
        layout = PartLayout.of(search.n_candidates, run.spec.params.n_parts)
        run.decide(bases.CANDIDATES, asdict(layout))
        if not (CANDIDATE_ROWS.is_in(run) and CANDIDATE_HASHES.is_in(run)):
            run_task(job.engine, _draw_candidates, run, dataset, label="neighbors")
        rows = CANDIDATE_ROWS.read(run)
        found = {"distance_sum": search_rows_exactly(job, "candidates", rows, into="neighbors")}
    elif search.n_partitions > 1:
        found = _search_in_partitions(job, search)
    elif search.method == "exact":
        records = map_parts(run, dataset, job.engine, stage="neighbors", task=_exact_part)
        found = {"distance_sum": math.fsum(record["distance_sum"] for record in records)}
    else:
        found = run_task(job.engine, _search_all, run, dataset, label="neighbors")
    mean_distance = found.pop("distance_sum") / (n_searched * k)
    _check_precision(run, dataset, search.method, mean_distance)
    return NeighborsRecord(**asdict(search) | found, mean_distance=mean_distance)


def _check_precision(run: Run, dataset: Dataset, method: str, mean_distance: float) -> None:
    """Raise RecallError if neighbours are too near to each other for single precision."""
    same = np.can_cast(dataset.dtype, search_dtype(dataset.dtype, method))
    if same or run.spec.params.scale != "none":
        return
    statistics = read_statistics(run)
    # Rows in CSR are not centred.
    away = statistics.mean if dataset.is_sparse else 0.0
    spread = float(np.linalg.norm(np.hypot(statistics.standard_deviation, away)))
    if spread * np.finfo(np.float32).eps > _MOST_ROUNDING * mean_distance:
        raise RecallError(
            f"the rows spread over {spread:.3g}, but neighbours are {mean_distance:.3g} apart: the "
            "approximate search uses single precision and cannot distinguish the neighbours.",
            "Give `neighbors`=exact or `scale`=standard, in a new fit.",
        )


def _rows_by_number(run: Run, dataset: Dataset) -> Iterator[RowPool]:
    """Yield all rows in blocks, with the hashes of their row numbers as tiebreak."""
    codes = dataset.codes()
    for start in range(0, len(codes), bases.SELECTION_ROWS):
        rows = np.arange(start, min(start + bases.SELECTION_ROWS, len(codes)))
        hashes = hash_numbers(rows, seed=run.spec.params.random_state)
        yield RowPool(np.zeros(len(rows)), hashes, codes[rows], rows)


def _draw_candidates(run: Run, dataset: Dataset) -> None:
    """Draw candidates; store their row numbers and the hashes of their values."""
    size = with_neighbors(run).n_rows
    pool = bases.pool_of(_rows_by_number(run, dataset), size=size, n_classes=LEAST_OF_CLASS)
    drawn = choose_candidates(pool, size=size)
    hashes = hash_rows(dataset.take(drawn), seed=run.spec.params.random_state)
    bases.check_distinct(run, len(np.unique(hashes)))
    CANDIDATE_ROWS.write(run, drawn)
    CANDIDATE_HASHES.write(run, hashes)


def plan_search(context: FitContext) -> NeighborSearch:
    """Return the search of a new fit, with every "auto" resolved by rows and memory."""
    dataset, params, engine = context.dataset.of_labelled(), context.spec.params, context.engine
    if engine.device == "gpu" and params.neighbors == "auto" and not dataset.is_sparse:
        params = replace(params, neighbors="exact")
    threads, by_confidence = engine.threads, context.spec.by_confidence
    n_candidates = bases.requested_candidates(params, dataset) if by_confidence else None
    if n_candidates is not None or not by_confidence:
        return NeighborSearch(
            method="exact", n_partitions=1, threads=threads, n_candidates=n_candidates
        )
    searched = bases.searched_in(dataset, params)
    search = searched.plan(
        threads=threads,
        free_bytes=lambda method: engine.memory_bytes - _held(dataset, params, method, threads),
    )
    if params.n_partitions is None and search.n_partitions > 1:
        needed = searched.search_bytes(searched.smallest_partition, search.method)
        needed += _held(dataset, params, search.method, threads)
        engine.check_budget("neighbors", needed, remedy="Lower `n_neighbors`")
    return search


def _held(dataset: Dataset, params: FitParams, method: str, threads: int) -> int:
    """Return the bytes of a worker that searches, without those of the searched rows."""
    buffers = buffer_bytes(dataset.row_width, params.k, threads=threads)
    return worker_bytes(method) + dataset.reading_bytes + buffers


def _exact_part(run: Run, dataset: Dataset, start: int, stop: int) -> PartResult:
    rows, k = _all_rows(run, dataset), run.spec.params.k
    found = exact_neighbors(rows, np.arange(start, stop), n_neighbors=k)
    return PartResult({"distance_sum": _store_neighbors(run, start, found)})


def _search_all(run: Run, dataset: Dataset) -> dict[str, Any]:
    """Store the approximate neighbours of all rows."""
    found = _search_rows(_all_rows(run, dataset), run)
    sums = []
    for start, stop in run.layout.spans:
        own = Neighbors(found.indices[start:stop], found.distances[start:stop])
        sums.append(_store_neighbors(run, start, own))
    return {"distance_sum": math.fsum(sums)}


def _store_neighbors(run: Run, start: int, neighbors: Neighbors) -> float:
    """Store the neighbours of consecutive rows; return the sum of their distances."""
    run.write_rows(INDICES.name, start, neighbors.indices)
    run.write_rows(DISTANCES.name, start, neighbors.distances)
    return float(neighbors.distances.sum())


def _all_rows(run: Run, dataset: Dataset) -> Rows:
    searched = _search_space(run, dataset)
    blocks = dataset.blocks(0, dataset.n_rows, narrow_block_rows(dataset.row_width))
    shape = dataset.n_rows, dataset.n_features
    return gathered((searched(X) for X, *_ in blocks), shape)


def _search_in_partitions(job: StageJob, search: NeighborSearch) -> dict[str, Any]:
    """Store the neighbours of every row, searched in overlapping partitions.

    Three passes in parts: "partitions" writes the rows to scratch in the order of their partitions,
    "candidates" searches every partition on its own, and "neighbors" merges the lists of the
    partitions of each row.
    """
    run, dataset, engine = job.run, job.dataset, job.engine
    blocks = bases.divided_blocks(run, dataset)
    if not run.has("partitions/centroids"):
        # Blocks that were divided by other partitions are useless.
        run.drop("partitions")
        run_task(engine, _place_partitions, run, dataset, search.n_partitions, label="partitions")
    routed = map_parts(run, dataset, engine, stage="partitions", task=_route_block, units=blocks)
    sizes = bases.store_counts(run, "partitions", routed)
    logger.info("neighbors: %d partitions of %d to %d rows", len(sizes), min(sizes), max(sizes))
    params = run.spec.params
    held = bases.searched_in(dataset, params).search_bytes(max(sizes), search.method)
    held += _held(dataset, params, search.method, search.threads)
    engine.check_budget("neighbors", held, remedy="Give a larger `n_partitions`, in a new fit")
    units = [(partition,) for partition in range(len(sizes))]
    task = _search_partition
    map_parts(run, dataset, engine, stage="candidates", task=task, units=units, sizes=sizes)
    merged = map_parts(run, dataset, engine, stage="neighbors", task=_merge_span)
    distance_sums = [record["distance_sum"] for record in merged]
    incomplete = [run.read_part("neighbors", part, "incomplete") for part in range(len(merged))]
    if len(rows := np.concatenate(incomplete)):
        distance_sums.append(_repair(job, rows))
    return {
        "n_partitions": len(sizes),
        "largest_partition": max(sizes),
        "n_repaired": len(rows),
        "distance_sum": math.fsum(distance_sums),
    }


def _repair(job: StageJob, rows: NDArray[np.int64]) -> float:
    """Search rows with fewer than k neighbours in their partitions again, among all rows."""
    if len(rows) > MAX_TARGETS:
        k = job.run.spec.params.k
        raise RecallError(
            f"{len(rows)} rows have fewer than `n_neighbors`={k} other rows in their partitions.",
            "Lower `n_partitions` or raise `overlap`, in a new fit.",
        )
    logger.info("neighbors: %d rows in small partitions are searched among all rows", len(rows))
    distance_sum = search_rows_exactly(job, "repair", rows)
    run_task(job.engine, _store_repaired, job.run, label="repair")
    return distance_sum


def _place_partitions(run: Run, dataset: Dataset, n_partitions: int) -> None:
    params = run.spec.params
    k, overlap, seed = params.k, params.overlap, params.random_state
    size = plan.sample_rows(run.n_rows, dataset.row_width, n_partitions)
    rows = np.sort(np.random.default_rng([seed, 0]).choice(run.n_rows, size, replace=False))
    sample = _search_space(run, dataset)(dataset.take(rows))
    # As many copies of a row as its partitions contain.
    copies = (k + 1) * len(bases.divided_blocks(run, dataset)) * size / run.n_rows
    repeats = find_repeats(sample, n_neighbors=max(1, round(copies)), seed=seed)
    searched = sample[repeats.searched]
    partitions = Partitions.balanced(searched, n_partitions, overlap=overlap, seed=seed)
    group = run.group("partitions")
    for name in reversed(_PLACES):
        dimensions = ("partition", "feature")[: getattr(partitions, name).ndim]
        write_array(group, name, getattr(partitions, name), *dimensions)


def _route_block(run: Run, dataset: Dataset, start: int, stop: int) -> PartResult:
    """Write the rows of a block partition by partition, and the neighbours of repeated rows."""
    (block,) = dataset.blocks(start, stop, stop - start)
    rows = _search_space(run, dataset)(block.X)
    k = run.spec.params.k
    repeats = find_repeats(rows, n_neighbors=k, seed=run.spec.params.random_state)
    partitions = Partitions(*(run.read(f"partitions/{name}") for name in _PLACES))
    searched = np.flatnonzero(repeats.searched)
    members = partitions.route(rows[searched], overlap=run.spec.params.overlap)
    counts = np.bincount(members[members >= 0], minlength=len(partitions.offsets))
    order = np.argsort(members, axis=None, kind="stable")[-counts.sum() :]
    places = searched[order // members.shape[1]]
    return PartResult(
        {"counts": counts.tolist()},
        {
            "rows": rows[places],
            "numbers": start + places,
            "repeated": start + repeats.rows,
            "copies": start + repeats.indices,
        },
        slice_rows=bases.SLICE_ROWS,
    )


def _search_partition(run: Run, dataset: Dataset, partition: int) -> PartResult:
    """Store the nearest other rows of every row of one partition, in the order of the rows."""
    counts = run.read("partitions/counts")
    read = partial(bases.read_group, run, "partitions", counts, partition)
    numbers = np.concatenate([np.empty(0, np.int64), *read("numbers")])
    rows = gathered(read("rows"), (len(numbers), dataset.n_features))
    found = _search_rows(rows, run)
    return PartResult(
        {"rows": len(numbers)},
        # Another processor may divide a recomputed block differently; the row numbers show it.
        {"numbers": numbers, "indices": numbers[found.indices], "distances": found.distances},
        slice_rows=bases.SLICE_ROWS,
    )


def _search_rows(rows: Rows, run: Run) -> Neighbors:
    """Return the k nearest other rows, or all other rows if there are fewer."""
    n_rows, search = rows.shape[0], NeighborSearch(**run.decisions["neighbors"])
    k = min(run.spec.params.k, n_rows - 1)
    if k < 1:
        return Neighbors(np.empty((n_rows, 0), np.int64), np.empty((n_rows, 0)))
    if search.method == "approximate" and n_rows >= _MIN_APPROXIMATE_ROWS:
        seed = run.spec.params.random_state
        indices = approximate_neighbors(rows, n_neighbors=k, seed=seed, threads=search.threads)
        return measure_neighbors(rows, rows, indices)
    return exact_neighbors(rows, np.arange(n_rows), n_neighbors=k)


def _merge_span(run: Run, dataset: Dataset, start: int, stop: int) -> PartResult:
    """Merge the candidates of every row of a span, block by block."""
    counts = run.read("partitions/counts")
    k = run.spec.params.k
    distance_sums, incomplete = [], []
    for index, (first, last) in enumerate(bases.divided_blocks(run, dataset)):
        if not start <= first < stop:
            continue
        found = _candidates_of_block(run, index, first, last - first, counts)
        neighbors = merge_neighbors([found], n_neighbors=k)
        _store_neighbors(run, first, neighbors)
        complete = neighbors.indices[:, -1] != MISSING
        distance_sums.append(float(neighbors.distances[complete].sum()))
        incomplete.append(first + np.flatnonzero(~complete))
    return PartResult(
        {"distance_sum": math.fsum(distance_sums)}, {"incomplete": np.concatenate(incomplete)}
    )


def _candidates_of_block(
    run: Run, index: int, start: int, n_rows: int, counts: NDArray[np.int64]
) -> Neighbors:
    """Return all neighbours found for the rows of a block, list after list."""
    before, n_lists = counts[:index].sum(axis=0), bases.most_lists(run.spec.params.overlap)
    indices = np.full((n_rows, n_lists, run.spec.params.k), MISSING)
    distances = np.full(indices.shape, np.inf)
    # The last list has repeated rows; the others are filled in the order of the partitions.
    repeated = run.read_part("partitions", index, "repeated") - start
    indices[repeated, -1] = run.read_part("partitions", index, "copies")
    distances[repeated, -1] = 0.0
    filled = np.zeros(n_rows, dtype=np.int64)
    for partition in np.flatnonzero(counts[index]).tolist():
        first = int(before[partition])
        last = first + int(counts[index, partition])
        numbers, *found = (
            run.read_part("candidates", partition, name, first, last)
            for name in ("numbers", *Neighbors._fields)
        )
        rows = numbers - start
        if rows.min() < 0 or rows.max() >= n_rows:
            raise DamagedResultError(
                f"part {partition} of the candidates does not match the rows of its partition.",
                "Start the fit again.",
                "candidates",
                (partition,),
            )
        width = found[0].shape[1]
        indices[rows, filled[rows], :width], distances[rows, filled[rows], :width] = found
        filled[rows] += 1
    return Neighbors(indices.reshape(n_rows, -1), distances.reshape(n_rows, -1))


def _search_cost(s: FitSizes) -> StageCost:
    if s.search.n_candidates is not None:
        return _cost_of_candidates(s, s.search.n_candidates)
    exact, n_partitions = s.search.method == "exact", s.search.n_partitions
    overlap = s.spec.params.overlap if n_partitions > 1 else 1
    entries = s.n * overlap
    updates = plan.candidate_updates(entries, s.p, s.row_values, n_neighbors=s.k)
    row_bytes = s.width * search_dtype(s.dataset.dtype, s.search.method).itemsize
    products, scratch, n_passes = 0.0, 0, s.layout.n_parts if exact else 1
    if n_partitions > 1:
        products = 2 * s.n * n_partitions * s.row_values
        scratch = entries * (row_bytes + 2 * 8 + LIST_BYTES * s.k)
        n_passes = 2
    return StageCost(
        products=products,
        pairs=float(entries) ** 2 / n_partitions if exact else 0.0,
        pair_flops=s.pair_flops,
        read_bytes=n_passes * s.rows_bytes + scratch,
        written_bytes=scratch + s.lists_bytes,
        # The number of partitions is planned so that a search just fits.
        held_bytes=s.held(*_steps(s, overlap, row_bytes), margin=0.0),
        n_tasks=n_partitions if n_partitions > 1 else n_passes,
        other_s=0.0 if exact else plan.COMPILATION_S + updates / plan.update_rate(s.search.threads),
    )


def _steps(s: FitSizes, overlap: int, row_bytes: int) -> list[float]:
    """Return the bytes of the steps of a search of all rows."""
    n_partitions, searched = s.search.n_partitions, bases.searched_in(s.dataset, s.spec.params)
    n_rows = math.ceil(MAX_IMBALANCE * s.n * overlap / n_partitions) if n_partitions > 1 else s.n
    search = searched.search_bytes(n_rows, s.search.method)
    search += buffer_bytes(s.width, s.k, threads=s.search.threads)
    if n_partitions == 1:
        read = s.width * (s.dataset.dtype.itemsize + 2 * 8) + row_bytes
        return [search + narrow_block_rows(s.width) * read]
    # The centroids, arrays for CSR too: two copies to route rows, two more to find them.
    centroids = 2 * 8 * n_partitions * s.p
    routed = s.block_rows * 2 * overlap * row_bytes + centroids
    # Candidate lists, and their copies while they are sorted twice.
    merged = 4 * LIST_BYTES * s.block_rows * s.k * bases.most_lists(overlap)
    # The sample as read and searched, in double precision and as distances, some of them twice.
    placing = 5 * 8 * plan.sample_rows(s.n, s.width, n_partitions) * (s.width + n_partitions)
    repaired = s.exact_search_bytes(AUDITED_ROWS)
    return [routed + repaired, merged, search + 16 * n_rows, placing + 2 * centroids]


def _cost_of_candidates(s: FitSizes, n_candidates: int) -> StageCost:
    drawn = bases.pool_bytes(s.n, s.K, n_candidates, 0) + n_candidates * s.search_row_bytes
    return StageCost(
        pairs=s.n * n_candidates,
        pair_flops=s.pair_flops,
        read_bytes=3 * s.rows_bytes,
        written_bytes=(s.layout.n_parts + 2) * s.lists_bytes,
        held_bytes=s.held(drawn, s.exact_search_bytes(n_candidates)),
        n_tasks=s.layout.n_parts,
    )


def _remedy(params: FitParams) -> str:
    if params.n_partitions not in (None, 1):
        return "Give a larger `n_partitions`, or leave `n_partitions` out"
    return "Lower `n_neighbors` or `candidates`"


def _check_search(context: FitContext) -> None:
    """Raise ParameterError if the rows have no classes, or if there are too few rows."""
    dataset = context.dataset
    has = "the targets are numbers" if dataset.of_numbers else f"{dataset.location} has no labels"
    if dataset.of_numbers or (context.spec.mode == "embed" and not dataset.n_classes):
        raise ParameterError(
            f"{context.basis_option} needs class labels, but {has}.", "Give kmeans or random."
        )
    bases.check_neighbors(context.spec.params.k, dataset, labelled_only=True)


NEIGHBORS = Stage(
    name="neighbors",
    compute=_find_neighbors,
    record=NeighborsRecord,
    arrays=(INDICES, DISTANCES, CANDIDATE_ROWS, CANDIDATE_HASHES),
    cost=_search_cost,
    check=_check_search,
    labelled_only=True,
    wanted=lambda spec: spec.by_confidence,
    remedy=_remedy,
    keeps_parts=True,
    scratch=("partitions", "candidates", "repair"),
)


# With this many rows the standard error of a recall of 0.95 is about 0.003.
AUDITED_ROWS = 1000


@dataclass(frozen=True, kw_only=True)
class RecallRecord(StageRecord):
    """The share of true neighbours that was found for `n_audited` rows, and its standard error."""

    recall: float
    recall_standard_error: float
    n_audited: int


AUDITED = RunArray("recall/rows", ("target",), "drawn rows", verified=False)
TRUE_INDICES = RunArray(
    "recall/indices", ("row", "neighbor"), "true neighbours of the drawn rows", verified=False
)
TRUE_DISTANCES = RunArray(
    "recall/distances", ("row", "neighbor"), "distances of their true neighbours", verified=False
)


def _audit(job: StageJob) -> RecallRecord:
    """Return the recall on 1,000 rows, its standard error and the number of rows."""
    run, search = job.run, NeighborSearch(**job.run.decisions["neighbors"])
    if search.method == "exact" and search.n_partitions == 1:
        # By construction.
        return RecallRecord(recall=1.0, recall_standard_error=0.0, n_audited=0)
    n_audited = min(run.n_rows, AUDITED_ROWS)
    rng = np.random.default_rng([run.spec.params.random_state, 1])
    rows = np.sort(rng.choice(run.n_rows, n_audited, replace=False))
    search_rows_exactly(job, "recall", rows)
    recall, error = run_task(job.engine, _compare, run, label="recall")
    logger.info("recall: %.4f +- %.4f", recall, error)
    return RecallRecord(recall=recall, recall_standard_error=error, n_audited=n_audited)


def check_recall(run: Run, min_recall: float) -> None:
    """Raise RecallError if the recall of a run is below `min_recall`."""
    audit = RECALL.recorded(run)
    if audit.recall >= min_recall:
        return
    remedy = "Give `neighbors`=exact, or a larger `n_neighbors`"
    n_partitions = run.decisions["neighbors"]["n_partitions"]
    if n_partitions > 1:
        overlap = run.spec.params.overlap
        remedy = (
            f"Raise `overlap` from {overlap} to {overlap + 1}, or lower `n_partitions` from "
            f"{n_partitions}"
        )
    raise RecallError(
        f"the search found {audit.recall:.4f} +- {audit.recall_standard_error:.4f} of the "
        f"true neighbours, but `min_recall` is {min_recall:g}.",
        f"{remedy}, in a new fit; or repeat this fit with a lower `min_recall`.",
    )


def _compare(run: Run) -> tuple[float, float]:
    found = run.take(DISTANCES.name, AUDITED.read(run))
    return lists.measure_recall(found, TRUE_DISTANCES.read(run))


def _recall_cost(s: FitSizes) -> StageCost:
    targets = min(s.n, AUDITED_ROWS)
    if s.search.method == "exact" and s.search.n_partitions == 1:
        return StageCost(held_bytes=s.held(reads=False))
    return StageCost(
        pairs=s.n * targets,
        pair_flops=s.pair_flops,
        read_bytes=2 * s.rows_bytes,
        held_bytes=s.held(s.exact_search_bytes(targets)),
        n_tasks=s.layout.n_parts,
    )


RECALL = Stage(
    name="recall",
    compute=_audit,
    record=RecallRecord,
    arrays=(AUDITED, TRUE_INDICES, TRUE_DISTANCES),
    cost=_recall_cost,
    labelled_only=True,
    wanted=lambda spec: spec.by_confidence,
)
