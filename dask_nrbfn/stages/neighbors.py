"""Stages "neighbors" and "confidence": the k nearest rows, and the soft-kNN confidence of rows."""

import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import DamagedResultError, ParameterError, RecallError, plural
from dask_nrbfn.neighbors.approximate import approximate_neighbors
from dask_nrbfn.neighbors.exact import buffer_bytes, exact_neighbors, find_repeats
from dask_nrbfn.neighbors.lists import MISSING, Neighbors, measure_neighbors, merge_neighbors
from dask_nrbfn.neighbors.partition import MAX_IMBALANCE, Partitions
from dask_nrbfn.neighbors.plan import (
    COMPILATION_S,
    NeighborSearch,
    candidate_updates,
    sample_rows,
    search_dtype,
    update_rate,
)
from dask_nrbfn.numeric.confidence import LEAST_OF_CLASS, choose_candidates, soft_confidence
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
from dask_nrbfn.stages.exact_search import (
    AUDITED_ROWS,
    SearchSpace,
    repair_lists,
    search_rows_exactly,
)
from dask_nrbfn.stages.neighbor_search import (
    LIST_BYTES,
    check_neighbors,
    decide_candidates,
    has_candidates,
    most_lists,
    of_searched,
    pieces_of,
    search_block_rows,
    searched_in,
    searched_rows,
    searching_bytes,
    worker_bytes,
)
from dask_nrbfn.stages.stage import FitSizes, Stage, StageCost, StageJob, known
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.blocks import regroup
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import narrow_block_rows
from dask_nrbfn.storage.location import View
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

# Maximum ratio of rounding to the mean distance of neighbours in an approximate search.
_MOST_ROUNDING = 0.1

# Rows of scratch that are read together; the share of a partition in a block is a few of these.
_SLICE_ROWS = 512

# NNDescent gains nothing on fewer rows than this.
_MIN_APPROXIMATE_ROWS = 4096


def _compute(job: StageJob) -> dict[str, Any]:
    """Store the neighbours of every row, or of every candidate.

    Returns the method, the mean distance of neighbours, and the number of rows that found fewer
    than k neighbours in their partitions.
    """
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
    return {**known(**asdict(search)), **found, "mean_distance": mean_distance}


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
        return _search_in_partitions(run, dataset, engine, search)
    if search.method == "exact":
        records = map_parts(run, dataset, engine, stage="neighbors", task=_exact_part)
    else:
        threads = search.threads
        records = run_task(engine, _approximate_graph, run, dataset, threads, label="neighbors")
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
    if engine.device == "gpu" and params.neighbors == "auto" and not dataset.is_sparse:
        params = replace(params, neighbors="exact")
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
    rows, k = _all_rows(run, dataset), run.chosen_params.n_neighbors
    found = exact_neighbors(rows, np.arange(start, stop), n_neighbors=k, threads=blas_threads())
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


class _Block(NamedTuple):
    """Rows ``start`` to ``stop``, divided into partitions by one task."""

    start: int
    stop: int


def _search_in_partitions(
    run: Run, dataset: Dataset, engine: Engine, search: NeighborSearch
) -> dict[str, Any]:
    """Store the neighbours of every row, searched in overlapping partitions.

    Three passes in parts: "partitions" writes the rows to scratch in the order of their partitions,
    "candidates" searches every partition on its own, and "neighbors" merges the lists of the
    partitions of each row.
    """
    blocks = _blocks(run, dataset)
    if not run.has("partitions/centroids"):
        # Blocks that were divided by other partitions are useless.
        run.drop("partitions")
        run_task(engine, _place_partitions, run, dataset, search.n_partitions, label="partitions")
    routed = map_parts(run, dataset, engine, stage="partitions", task=_route_block, units=blocks)
    counts = np.array([record["counts"] for record in routed], dtype=np.int64)
    write_array(run.group("partitions"), "counts", counts, "block", "partition")
    sizes = counts.sum(axis=0)
    logger.info("neighbors: %d partitions of %d to %d rows", len(sizes), sizes.min(), sizes.max())
    held = searching_bytes(dataset, run.chosen_params, search.method, int(sizes.max()))
    engine.check_budget("neighbors", held, remedy="Give a larger `n_partitions`, in a new run")
    map_parts(
        run,
        dataset,
        engine,
        stage="candidates",
        task=_search_partition,
        units=[(partition, search.threads) for partition in range(len(sizes))],
        sizes=sizes.tolist(),
    )
    merged = map_parts(run, dataset, engine, stage="neighbors", task=_merge_span)
    incomplete = [
        run.read_part("neighbors", index, "incomplete")
        for index, record in enumerate(merged)
        if record["n_incomplete"]
    ]
    repaired = repair_lists(
        run,
        dataset,
        engine,
        rows=np.concatenate([np.empty(0, np.int64), *incomplete]),
        remedy="Lower `n_partitions` or raise `overlap`, in a new run.",
    )
    return {
        "n_partitions": len(sizes),
        "largest_partition": int(sizes.max()),
        "n_repaired": repaired["n_rows"],
        "distance_sum": math.fsum(
            [*(record["distance_sum"] for record in merged), repaired["distance_sum"]]
        ),
    }


def _blocks(run: Run, dataset: Dataset) -> list[_Block]:
    return [block for start, stop in run.spans for block in _blocks_of(run, dataset, start, stop)]


def _blocks_of(run: Run, dataset: Dataset, start: int, stop: int) -> Iterator[_Block]:
    rows = search_block_rows(run.chunk_rows, dataset.row_width, run.chosen_params)
    for first in range(start, stop, rows):
        yield _Block(first, min(first + rows, stop))


def _place_partitions(run: Run, dataset: Dataset, n_partitions: int) -> None:
    size = sample_rows(run.n_rows, dataset.row_width, n_partitions)
    rng = np.random.default_rng([run.chosen_params.random_state, 0])
    rows = np.sort(rng.choice(run.n_rows, size, replace=False))
    sample = SearchSpace.of(run, dataset).apply(dataset.take(rows))
    # As many copies of a row as its partitions contain.
    copies = (run.chosen_params.n_neighbors + 1) * len(_blocks(run, dataset)) * size / run.n_rows
    repeats = find_repeats(
        sample, n_neighbors=max(1, round(copies)), seed=run.chosen_params.random_state
    )
    partitions = Partitions.balanced(
        sample[repeats.searched],
        n_partitions,
        overlap=run.chosen_params.overlap,
        seed=run.chosen_params.random_state,
    )
    group = run.group("partitions")
    write_array(group, "offsets", partitions.offsets, "partition")
    write_array(group, "reaches", partitions.reaches, "partition")
    write_array(group, "centroids", partitions.centroids, "partition", "feature")


def _route_block(run: Run, dataset: Dataset, start: int, stop: int) -> PartResult:
    """Write the rows of a block partition by partition, and the neighbours of repeated rows."""
    (block,) = dataset.blocks(start, stop, stop - start)
    rows = SearchSpace.of(run, dataset).apply(block.X)
    k = run.chosen_params.n_neighbors
    repeats = find_repeats(rows, n_neighbors=k, seed=run.chosen_params.random_state)
    partitions = Partitions(
        *(run.read(f"partitions/{name}") for name in ("centroids", "offsets", "reaches"))
    )
    searched = np.flatnonzero(repeats.searched)
    members = partitions.route(rows[searched], overlap=run.chosen_params.overlap)
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
        slice_rows=_SLICE_ROWS,
    )


def _search_partition(run: Run, dataset: Dataset, partition: int, threads: int) -> PartResult:
    """Store the nearest other rows of every row of one partition, in the order of the rows."""
    counts = run.read("partitions/counts")
    size = int(counts[:, partition].sum())

    def read(name: str) -> Iterator[Any]:
        for index, first, last in pieces_of(counts, partition):
            yield run.read_part("partitions", index, name, first, last)

    rows = gathered(read("rows"), (size, dataset.n_features))
    numbers = np.concatenate([np.empty(0, np.int64), *read("numbers")])
    found = _search_rows(rows, run, threads)
    return PartResult(
        {"rows": size},
        # Another processor may divide a recomputed block differently; the row numbers show it.
        {"numbers": numbers, "indices": numbers[found.indices], "distances": found.distances},
        slice_rows=_SLICE_ROWS,
    )


def _search_rows(rows: Rows, run: Run, threads: int) -> Neighbors:
    """Return the k nearest other rows, or all other rows if there are fewer."""
    n_rows = rows.shape[0]
    k = min(run.chosen_params.n_neighbors, n_rows - 1)
    if k < 1:
        return Neighbors(np.empty((n_rows, 0), np.int64), np.empty((n_rows, 0)))
    approximate = run.decisions["neighbors"]["method"] == "approximate"
    if approximate and n_rows >= _MIN_APPROXIMATE_ROWS:
        indices = approximate_neighbors(
            rows, n_neighbors=k, seed=run.chosen_params.random_state, threads=threads
        )
        return measure_neighbors(rows, rows, indices, threads=blas_threads())
    return exact_neighbors(rows, np.arange(n_rows), n_neighbors=k, threads=blas_threads())


def _merge_span(run: Run, dataset: Dataset, start: int, stop: int) -> PartResult:
    """Merge the candidates of every row of a span, block by block."""
    counts = run.read("partitions/counts")
    k = run.chosen_params.n_neighbors
    first_block = [block.start for block in _blocks(run, dataset)].index(start)
    distance_sums, incomplete = [], []
    for index, block in enumerate(_blocks_of(run, dataset, start, stop), start=first_block):
        indices, distances = _candidates_of_block(run, index, block, counts)
        neighbors = merge_neighbors(indices, distances, n_neighbors=k)
        _store_neighbors(run, block.start, neighbors)
        complete = neighbors.indices[:, -1] != MISSING
        distance_sums.append(float(neighbors.distances[complete].sum()))
        incomplete.append(block.start + np.flatnonzero(~complete))
    rows = np.concatenate(incomplete)
    return PartResult(
        {"distance_sum": math.fsum(distance_sums), "n_incomplete": len(rows)}, {"incomplete": rows}
    )


def _candidates_of_block(
    run: Run, index: int, block: _Block, counts: NDArray[np.int64]
) -> Neighbors:
    """Return all neighbours found for the rows of a block, list after list."""
    k, n_rows = run.chosen_params.n_neighbors, block.stop - block.start
    before = counts[:index].sum(axis=0)
    places = run.read_part("partitions", index, "numbers") - block.start
    lists = most_lists(run.chosen_params.overlap)
    indices = np.full((n_rows, lists, k), MISSING)
    distances = np.full((n_rows, lists, k), np.inf)
    # The last list has repeated rows; the others are filled in the order of the partitions.
    repeated = run.read_part("partitions", index, "repeated") - block.start
    indices[repeated, -1] = run.read_part("partitions", index, "copies")
    distances[repeated, -1] = 0.0
    filled = np.zeros(n_rows, dtype=np.int64)
    done = 0
    for partition in np.flatnonzero(counts[index]):
        first, count = int(before[partition]), int(counts[index, partition])
        numbers, *lists_found = (
            run.read_part("candidates", int(partition), name, first, first + count)
            for name in ("numbers", *Neighbors._fields)
        )
        rows = places[done : done + count]
        if not np.array_equal(numbers, rows + block.start):
            raise DamagedResultError(
                f"part {partition} of the candidates does not match the rows of its partition.",
                "Start the fit again.",
                "candidates",
                (int(partition),),
            )
        found = Neighbors(*lists_found)
        width = found.indices.shape[1]
        indices[rows, filled[rows], :width] = found.indices
        distances[rows, filled[rows], :width] = found.distances
        filled[rows] += 1
        done += count
    return Neighbors(indices.reshape(n_rows, -1), distances.reshape(n_rows, -1))


def _cost(s: FitSizes) -> StageCost:
    if s.search.n_candidates is not None:
        return _cost_of_candidates(s, s.search.n_candidates)
    exact, n_partitions = s.search.method == "exact", s.search.n_partitions
    overlap = s.params.overlap if n_partitions > 1 else 1
    entries = s.n * overlap
    updates = candidate_updates(entries, s.p, s.row_values, n_neighbors=s.k)
    n_tasks = n_partitions if n_partitions > 1 else s.n_parts if exact else 1
    scratch = 0
    if n_partitions > 1:
        itemsize = search_dtype(s.dataset.dtype, s.search.method).itemsize
        scratch = entries * (s.width * itemsize + 2 * 8 + LIST_BYTES * s.k)
    return StageCost(
        products=2 * s.n * n_partitions * s.row_values if n_partitions > 1 else 0.0,
        pairs=float(entries) ** 2 / n_partitions if exact else 0.0,
        pair_flops=s.pair_flops,
        read_bytes=(2 if n_partitions > 1 else n_tasks) * s.rows_bytes + scratch,
        written_bytes=scratch + s.lists_bytes,
        # The number of partitions is planned so that a search just fits.
        held_bytes=s.held(*_steps(s, overlap), margin=0.0),
        n_tasks=n_tasks,
        shared_s=0.0 if exact else updates / update_rate(s.search.threads),
        fixed_s=0.0 if exact else COMPILATION_S,
    )


def _steps(s: FitSizes, overlap: int) -> list[float]:
    """Return the bytes of the steps of a search of all rows."""
    n_partitions, searched = s.search.n_partitions, searched_in(s.dataset, s.params)
    n_rows = math.ceil(MAX_IMBALANCE * s.n * overlap / n_partitions) if n_partitions > 1 else s.n
    search = searched.search_bytes(n_rows, s.search.method)
    search += buffer_bytes(s.width, s.k, threads=s.search.threads)
    stored = s.dataset.dtype
    itemsize = search_dtype(stored, s.search.method).itemsize
    if n_partitions == 1:
        row_bytes = s.width * (stored.itemsize + 2 * 8 + itemsize)
        return [search + narrow_block_rows(s.width) * row_bytes]
    # The centroids, arrays for CSR too: two copies to route rows, two more to find them.
    centroids = 2 * 8 * n_partitions * s.p
    routed = s.block_rows * 2 * overlap * s.width * itemsize + centroids
    # Candidate lists, and their copies while they are sorted twice.
    merged = 4 * LIST_BYTES * s.block_rows * s.k * most_lists(overlap)
    # The sample as read and searched, in double precision and as distances, some of them twice.
    placing = 5 * 8 * sample_rows(s.n, s.width, n_partitions) * (s.width + n_partitions)
    repaired = s.exact_search_bytes(AUDITED_ROWS)
    return [routed + repaired, merged, search + 16 * n_rows, placing + 2 * centroids]


def _cost_of_candidates(s: FitSizes, n_candidates: int) -> StageCost:
    drawn = pool_bytes(s.n, s.K, n_candidates, 0) + n_candidates * s.search_row_bytes
    return StageCost(
        pairs=s.n * n_candidates,
        pair_flops=s.pair_flops,
        read_bytes=3 * s.rows_bytes,
        written_bytes=(s.n_parts + 2) * s.lists_bytes,
        held_bytes=s.held(drawn, s.exact_search_bytes(n_candidates)),
        n_tasks=s.n_parts,
    )


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
    compute=_compute,
    cost=_cost,
    check=_check,
    labelled_only=True,
    wanted=lambda tried: tried.by_confidence,
    remedy=_remedy,
    keeps_parts=True,
    scratch=("partitions", "candidates", "repair"),
)


def _store_confidence(job: StageJob) -> dict[str, Any]:
    """Store the confidence of every row or candidate; return how many are below the threshold."""
    run, dataset, engine = of_searched(job.run), job.dataset, job.engine
    run.require_row_array("confidence/values", np.float64)
    run.require_row_array("confidence/tiebreak", np.uint64)
    if not run.has("confidence/codes"):
        run_task(engine, _write_codes, run, dataset, label="codes")
    records = map_parts(run, dataset, engine, stage="confidence", task=_confidence_part)
    return {"n_below_threshold": sum(record["n_below_threshold"] for record in records)}


def _write_codes(run: Run, dataset: Dataset) -> None:
    """Store the class code of every row in one or two bytes, because each part reads all codes.

    If only some rows have a confidence, the row numbers are stored too.
    """
    group, rows = run.group("confidence"), searched_rows(run)
    if dataset.labelled_only:
        assert isinstance(dataset.location, View)
        assert dataset.location.form == "of_labelled"
        labelled = Dataset.open(dataset.location.place).labelled_rows()
        rows = labelled if rows is None else labelled[rows]
    if rows is not None:
        write_array(group, "rows", rows, "row")
    write_array(group, "codes", dataset.codes(), "row")


def name_rows(run: Run, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the dataset row numbers of places among the rows that have a confidence."""
    named = has_candidates(run) or run.has("confidence/rows")
    return run.read("confidence/rows")[places] if named else places


def codes_of_places(run: Run, places: NDArray[np.int64]) -> NDArray[np.integer[Any]]:
    """Return the class codes of places among the rows that have a confidence."""
    rows = searched_rows(run)
    codes: NDArray[np.integer[Any]] = run.read("confidence/codes")
    return codes[places if rows is None else rows[places]]


def _confidence_part(run: Run, dataset: Dataset, start: int, stop: int) -> PartResult:
    run, params = of_searched(run), run.chosen_params
    codes, rows = run.read("confidence/codes"), searched_rows(run)
    own = codes if rows is None else codes[rows]
    width = NEIGHBORS.recorded(run).mean_distance
    n_below, first = 0, start
    hashes_of_blocks: Iterable[NDArray[np.uint64]]
    if rows is None:
        blocks = dataset.blocks(start, stop, narrow_block_rows(dataset.row_width))
        hashes_of_blocks = (hash_rows(X, seed=params.random_state) for X, *_ in blocks)
    else:
        hashes_of_blocks = [run.read("neighbors/hashes", start, stop)]
    # Several chunks are read and written at a time.
    size = search_block_rows(run.chunk_rows, dataset.row_width, params)
    for hashes in regroup(hashes_of_blocks, size):
        last = first + len(hashes)
        indices = run.read("neighbors/indices", first, last)
        confidence = soft_confidence(
            run.read("neighbors/distances", first, last),
            codes[indices] == own[first:last, None],
            width=width,
        )
        run.write_rows("confidence/values", first, confidence)
        run.write_rows("confidence/tiebreak", first, hashes)
        n_below += int(np.count_nonzero(confidence < params.confidence_threshold))
        first = last
    return PartResult({"n_below_threshold": n_below})


def _confidence_cost(s: FitSizes) -> StageCost:
    # The hashes of candidates are known.
    n_searched = s.search.n_candidates or s.n
    return StageCost(
        read_bytes=s.lists_bytes + (0 if s.search.n_candidates else s.rows_bytes),
        written_bytes=16 * n_searched,
        # The codes of all rows, a block of lists, and a block of rows while it is hashed.
        held_bytes=s.held(
            s.n * (1 if s.K <= 256 else 4)
            + 4 * LIST_BYTES * s.block_rows * s.k
            + 3 * 8 * narrow_block_rows(s.width) * s.width
        ),
        n_tasks=-(-n_searched // s.layout.part_rows),
    )


CONFIDENCE = Stage(
    name="confidence",
    compute=_store_confidence,
    cost=_confidence_cost,
    labelled_only=True,
    wanted=lambda tried: tried.by_confidence,
    keeps_parts=True,
    leaves=lambda run: ("confidence/values",),
)
