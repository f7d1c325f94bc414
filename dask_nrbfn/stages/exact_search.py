"""Exact neighbours of some rows among all rows, and stage "recall", which counts them."""

import logging
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import RecallError
from dask_nrbfn.neighbors.exact import nearest_rows
from dask_nrbfn.neighbors.lists import MISSING, Neighbors, Recall, measure_recall, merge_neighbors
from dask_nrbfn.neighbors.plan import search_dtype
from dask_nrbfn.numeric.device import active_gpu
from dask_nrbfn.numeric.rows import Rows, canonical, is_sparse
from dask_nrbfn.numeric.scaling import Scaling
from dask_nrbfn.numeric.threads import blas_threads
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.parts import PartResult, map_parts, run_task
from dask_nrbfn.stages.bases import search_block_rows, with_neighbors
from dask_nrbfn.stages.columns import read_scaling, read_statistics
from dask_nrbfn.stages.stage import FitSizes, Stage, StageCost, StageJob
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class SearchSpace:
    """Rows for a neighbour search: scaled, centred, in the precision of the search.

    Rows in CSR are not centred, because that would fill them.
    """

    scaling: Scaling
    centre: Floats | float
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, run: Run, dataset: Dataset) -> "SearchSpace":
        """Return the search space that a run recorded."""
        centred = run.chosen_params.scale == "none" and not dataset.is_sparse
        centre = read_statistics(run).exact_centre() if centred else 0.0
        method = run.decisions["neighbors"]["method"]
        return cls(read_scaling(run), centre, search_dtype(dataset.dtype, method))

    def apply(self, X: Rows) -> Rows:
        """Return rows of X (b, p) in this space."""
        if is_sparse(X):
            # Values that become 0 in single precision are not stored.
            return canonical(self.scaling.apply(X).astype(self.dtype, copy=False))
        return (self.scaling.apply(X) - self.centre).astype(self.dtype, copy=False)


# Rows without enough neighbours, or drawn for a locality, that are searched in one pass over all.
MAX_TARGETS = 10_000

# Targets whose distances from a target limit its search; one task measures them before the others.
LIMITING_ROWS = 8192

# Blocks of rows that a GPU searches together.
_GPU_BLOCKS = 4


def search_rows_exactly(
    run: Run, dataset: Dataset, engine: Engine, *, stage: str, rows: NDArray[np.int64]
) -> None:
    """Store the exact neighbours of ascending rows as "indices" and "distances" of a stage."""
    if run.has(f"{stage}/rows") and not np.array_equal(run.read(f"{stage}/rows"), rows):
        # The stored parts belong to other rows.
        run.drop(stage)
    write_array(run.group(stage), "rows", rows, "target")
    run_task(engine, _store_targets, run, dataset, stage, label=stage)
    units = [(stage, start, stop) for start, stop in run.layout.spans]
    map_parts(run, dataset, engine, stage=stage, task=_search_span, units=units)
    run_task(engine, _merge_spans, run, stage, label=stage)


def _store_targets(run: Run, dataset: Dataset, stage: str) -> None:
    values = SearchSpace.of(run, dataset).apply(dataset.take(run.read(f"{stage}/rows")))
    write_array(run.group(stage), "values", values, "target", "feature")
    # A distance within which each target has k other targets, which limits its search.
    k, within = run.chosen_params.n_neighbors, np.full(values.shape[0], np.inf)
    some = values[:: max(1, -(-values.shape[0] // LIMITING_ROWS))]
    if some.shape[0] > k:
        within = nearest_rows(some, values, count=k + 1, threads=blas_threads()).distances[:, -1]
    write_array(run.group(stage), "within", within, "target")


def _search_span(run: Run, dataset: Dataset, stage: str, start: int, stop: int) -> PartResult:
    space = SearchSpace.of(run, dataset)
    numbers, targets, within = (
        run.read(f"{stage}/{name}") for name in ("rows", "values", "within")
    )
    k, n_targets = run.chosen_params.n_neighbors, len(numbers)
    best = Neighbors(np.empty((n_targets, 0), np.int64), np.empty((n_targets, 0)))
    size = search_block_rows(run.layout.chunk_rows, dataset.row_width, run.chosen_params)
    if active_gpu() is not None:
        # Lists are merged on the CPU, as few times as possible.
        size *= _GPU_BLOCKS
    for X, *_ in dataset.blocks(start, stop, size):
        rows = space.apply(X)
        count, threads = min(k + 1, rows.shape[0]), blas_threads()
        found = nearest_rows(rows, targets, count=count, within=within, threads=threads)
        others = (found.indices != MISSING) & (found.indices + start != numbers[:, None])
        indices = np.where(others, found.indices + start, MISSING)
        best = _merge(best, Neighbors(indices, found.distances), n_neighbors=k)
        within = np.minimum(within, best.distances[:, -1])
        start += rows.shape[0]
    return PartResult({}, best._asdict())


def _merge_spans(run: Run, stage: str) -> None:
    parts = (
        Neighbors(*(run.read_part(stage, index, name) for name in Neighbors._fields))
        for index in range(len(run.layout.spans))
    )
    best = reduce(partial(_merge, n_neighbors=run.chosen_params.n_neighbors), parts)
    group = run.group(stage)
    write_array(group, "indices", best.indices, "target", "neighbor")
    write_array(group, "distances", best.distances, "target", "neighbor")


def _merge(a: Neighbors, b: Neighbors, *, n_neighbors: int) -> Neighbors:
    return merge_neighbors(
        np.hstack([a.indices, b.indices]),
        np.hstack([a.distances, b.distances]),
        n_neighbors=n_neighbors,
    )


def repair_lists(
    run: Run, dataset: Dataset, engine: Engine, *, rows: NDArray[np.int64], remedy: str
) -> dict[str, Any]:
    """Search the neighbours of rows with fewer than k neighbours again, among all rows.

    Returns "n_rows" and the "distance_sum" of their neighbours; raises for over `MAX_TARGETS` rows.
    """
    if not len(rows):
        return {"n_rows": 0, "distance_sum": 0.0}
    if len(rows) > MAX_TARGETS:
        raise RecallError(
            f"{len(rows)} rows have fewer than `n_neighbors`={run.params.n_neighbors} other rows "
            "in their partitions.",
            remedy,
        )
    logger.info("neighbors: %d rows in small partitions are searched among all rows", len(rows))
    search_rows_exactly(run, dataset, engine, stage="repair", rows=rows)
    return run_task(engine, _store_repaired, run, label="repair")


def _store_repaired(run: Run) -> dict[str, Any]:
    run = run.of_labelled()
    places, distances = run.read("repair/rows"), run.read("repair/distances")
    for name, values in (("indices", run.read("repair/indices")), ("distances", distances)):
        for start in np.unique(places // run.layout.chunk_rows) * run.layout.chunk_rows:
            stop = min(int(start) + run.layout.chunk_rows, run.n_rows)
            first, last = np.searchsorted(places, [start, stop])
            chunk = run.read(f"neighbors/{name}", int(start), stop)
            chunk[places[first:last] - start] = values[first:last]
            run.write_rows(f"neighbors/{name}", int(start), chunk)
    return {"n_rows": len(places), "distance_sum": float(distances.sum())}


# With this many rows the standard error of a recall of 0.95 is about 0.003.
AUDITED_ROWS = 1000


def _audit(job: StageJob) -> dict[str, Any]:
    """Return the recall on 1,000 rows, its standard error and the number of rows."""
    run, engine = job.run, job.engine
    search = run.decisions["neighbors"]
    if search["method"] == "exact" and search["n_partitions"] == 1:
        # By construction.
        return {"recall": 1.0, "recall_standard_error": 0.0, "n_audited": 0}
    n_searched = with_neighbors(run).n_rows
    n_audited = min(n_searched, AUDITED_ROWS)
    rng = np.random.default_rng([run.chosen_params.random_state, 1])
    rows = np.sort(rng.choice(n_searched, n_audited, replace=False))
    search_rows_exactly(run, job.dataset, engine, stage="recall", rows=rows)
    recall = run_task(engine, _compare, run, label="recall")
    logger.info("recall: %.4f +- %.4f", recall.mean, recall.standard_error)
    return {
        "recall": recall.mean,
        "recall_standard_error": recall.standard_error,
        "n_audited": n_audited,
    }


def check_recall(run: Run, min_recall: float) -> None:
    """Check the recall of a run."""
    audit = RECALL.recorded(run)
    if audit.recall >= min_recall:
        return
    remedy = "Give `neighbors`=exact, or a larger `n_neighbors`"
    n_partitions = run.decisions["neighbors"]["n_partitions"]
    if n_partitions > 1:
        overlap = run.chosen_params.overlap
        remedy = (
            f"Raise `overlap` from {overlap} to {overlap + 1}, or lower `n_partitions` from "
            f"{n_partitions}"
        )
    raise RecallError(
        f"the search found {audit.recall:.4f} +- {audit.recall_standard_error:.4f} of the "
        f"true neighbours, but `min_recall` is {min_recall:g}.",
        f"{remedy}, in a new run; or continue this run with a lower `min_recall`.",
    )


def _compare(run: Run) -> Recall:
    run = with_neighbors(run)
    found = run.take("neighbors/distances", run.read("recall/rows"))
    return measure_recall(found, run.read("recall/distances"))


def _cost(s: FitSizes) -> StageCost:
    targets = min(s.n, AUDITED_ROWS)
    if s.search.method == "exact" and s.search.n_partitions == 1:
        return StageCost(held_bytes=s.held(reads=False))
    return StageCost(
        pairs=s.n * targets,
        pair_flops=s.pair_flops,
        read_bytes=2 * s.rows_bytes,
        held_bytes=s.held(s.exact_search_bytes(targets)),
        n_tasks=s.n_parts,
    )


RECALL = Stage(
    name="recall",
    compute=_audit,
    cost=_cost,
    labelled_only=True,
    wanted=lambda tried: tried.by_confidence,
)
