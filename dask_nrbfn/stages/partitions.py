"""Neighbour search in partitions: a task holds the rows of one partition at most."""

import logging
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import DamagedResultError
from dask_nrbfn.neighbors.approximate import approximate_neighbors
from dask_nrbfn.neighbors.exact import exact_neighbors, find_repeats
from dask_nrbfn.neighbors.lists import MISSING, Neighbors, measure_neighbors, merge_neighbors
from dask_nrbfn.neighbors.partition import Partitions
from dask_nrbfn.neighbors.plan import sample_rows
from dask_nrbfn.numeric.rows import Rows, gathered
from dask_nrbfn.numeric.threads import blas_threads
from dask_nrbfn.parts import PartResult, map_parts, run_task
from dask_nrbfn.stages.exact_search import SearchSpace, repair_lists
from dask_nrbfn.stages.neighbor_search import most_lists, search_block_rows, searching_bytes
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

# Rows of scratch that are read together; the share of a partition in a block is a few of these.
_SLICE_ROWS = 512

# NNDescent gains nothing on fewer rows than this.
_MIN_APPROXIMATE_ROWS = 4096


class _Block(NamedTuple):
    """Rows ``start`` to ``stop``, divided into partitions by one task."""

    start: int
    stop: int


def search_partitions(
    run: Run, dataset: Dataset, engine: Engine, *, n_partitions: int, threads: int
) -> dict[str, Any]:
    """Store the neighbours of every row, searched in overlapping partitions.

    Three passes in parts: "partitions" writes the rows to scratch in the order of their partitions,
    "candidates" searches every partition on its own, and "neighbors" merges the lists of the
    partitions of each row. The caller drops the scratch. Returns fields of `NeighborsRecord`, and
    "distance_sum".
    """
    blocks = _blocks(run, dataset)
    if not run.has("partitions/centroids"):
        # Blocks that were divided by other partitions are useless.
        run.drop("partitions")
        run_task(engine, _place_partitions, run, dataset, n_partitions, label="partitions")
    routed = map_parts(run, dataset, engine, stage="partitions", task=_route_block, units=blocks)
    counts = np.array([record["counts"] for record in routed], dtype=np.int64)
    write_array(run.group("partitions"), "counts", counts, "block", "partition")
    sizes = counts.sum(axis=0)
    logger.info("neighbors: %d partitions of %d to %d rows", len(sizes), sizes.min(), sizes.max())
    method = run.decisions["neighbors"]["method"]
    held = searching_bytes(dataset, run.chosen_params, method, int(sizes.max()))
    engine.check_budget("neighbors", held, remedy="Give a larger `n_partitions`, in a new run")
    map_parts(
        run,
        dataset,
        engine,
        stage="candidates",
        task=_search_partition,
        units=[(partition, threads) for partition in range(len(sizes))],
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
    firsts = np.cumsum(counts, axis=1) - counts
    pieces = [
        (index, int(first), int(first + count))
        for index, (first, count) in enumerate(
            zip(firsts[:, partition], counts[:, partition], strict=True)
        )
        if count
    ]
    size = int(counts[:, partition].sum())

    def read(name: str) -> Iterator[Any]:
        for index, first, last in pieces:
            yield run.read_part("partitions", index, name, first, last)

    rows = gathered(read("rows"), (size, dataset.n_features))
    numbers = np.concatenate([np.empty(0, np.int64), *read("numbers")])
    found = _search(rows, run, threads)
    return PartResult(
        {"rows": size},
        # Another processor may divide a recomputed block differently; the row numbers show it.
        {"numbers": numbers, "indices": numbers[found.indices], "distances": found.distances},
        slice_rows=_SLICE_ROWS,
    )


def _search(rows: Rows, run: Run, threads: int) -> Neighbors:
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
        run.write_rows("neighbors/indices", block.start, neighbors.indices)
        run.write_rows("neighbors/distances", block.start, neighbors.distances)
        complete = neighbors.indices[:, -1] != MISSING
        distance_sums.append(float(neighbors.distances[complete].sum()))
        incomplete.append(block.start + np.flatnonzero(~complete))
    rows = np.concatenate(incomplete)
    return PartResult(
        {"distance_sum": math.fsum(distance_sums), "n_incomplete": len(rows)},
        {"incomplete": rows},
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
