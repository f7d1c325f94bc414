"""Stage "locality": the differences of scores between neighbouring rows, for any weights."""

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.locality import LocalitySum, LocalitySums, locality_bytes, neighbor_shares
from dask_nrbfn.numeric.moments import packed_size
from dask_nrbfn.numeric.ridge import Locality
from dask_nrbfn.numeric.threads import blas_threads
from dask_nrbfn.parts import Reduction, RowPass, Sums, read_total, reduce_parts, run_task
from dask_nrbfn.stages.bases import source_of
from dask_nrbfn.stages.basis import BASIS
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.exact_search import MAX_TARGETS, search_rows_exactly
from dask_nrbfn.stages.neighbor_search import check_neighbors, of_searched
from dask_nrbfn.stages.stage import FitSizes, Stage, StageCost, StageJob
from dask_nrbfn.stages.width import WIDTH, read_features
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import PartLayout, block_rows
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

# Drawn rows for each basis row. 1,797 digits, 100 of them labelled, 400 basis rows: with 0, 200,
# 800 and all rows drawn, the error on unlabelled rows is 6.9, 5.7, 5.1 and 4.8 %. At most
# `MAX_TARGETS` are drawn: more would cost more than the moments, and a penalty needs no precision.
_ROWS_OF_BASIS_ROW = 10

# The most drawn rows of a part, and the most elements of these rows and their neighbours.
_PART_ROWS, _PART_ELEMENTS = 1024, 2**25

# The scratch stage with the sums of the parts.
_SUMS = "locality-sums"


def _compute(job: StageJob) -> dict[str, Any]:
    """Sum and store R over drawn rows and their neighbours among all rows.

    Returns the numbers of drawn rows, of drawn rows with neighbours, and of pairs of neighbours.
    """
    run, dataset, k = job.run, job.dataset, job.run.chosen_params.n_neighbors
    n_drawn = _n_drawn(run.n_rows, BASIS.recorded(run).n_basis)
    rng = np.random.default_rng([run.chosen_params.random_state, 2])
    drawn = np.sort(rng.choice(run.n_rows, n_drawn, replace=False))
    _find_neighbors(job, drawn)
    part_rows = _part_rows(k, dataset.row_values)
    layout = PartLayout(n_drawn, part_rows, part_rows)
    reduction = Reduction(_SUMS, _LocalityPass, {"": LocalitySum}, layout)
    reduce_parts(run, dataset, job.engine, reduction)
    record = run_task(job.engine, _store_sum, run, reduction, label="locality")
    logger.log(
        logging.INFO if record["n_bound"] else logging.WARNING,
        "locality: %(n_bound)d of %(n_drawn)d drawn rows have neighbours of their own kind, "
        "%(n_pairs)d in all",
        record,
    )
    return record


def read_locality(run: Run, strength: float) -> Locality | None:
    """Return the locality term of the ridge of a run; None without a strength."""
    if not strength:
        return None
    total = LocalitySum(run.read("locality/packed"), 0, 0)
    return Locality(strength, total.matrix(BASIS.recorded(run).n_basis))


def _find_neighbors(job: StageJob, drawn: NDArray[np.int64]) -> None:
    """Store the neighbours of drawn rows; the search of all rows is used if there was one."""
    run = job.run
    if source_of(run.chosen_params).by_confidence and of_searched(run).n_rows == run.n_rows:
        write_array(run.group("locality"), "rows", drawn, "target")
        run_task(job.engine, _take_lists, run, label="locality")
    else:
        search_rows_exactly(run, job.dataset, job.engine, stage="locality", rows=drawn)


def _take_lists(run: Run) -> None:
    rows = run.read("locality/rows")
    for name in ("indices", "distances"):
        lists = run.take(f"neighbors/{name}", rows)
        write_array(run.group("locality"), name, lists, "target", "neighbor")


class _LocalityPass(RowPass):
    """The sum over some of the drawn rows, which are read with their neighbours."""

    def __init__(self, run: Run, dataset: Dataset, first: int, last: int) -> None:
        self._total = _sum_of(run, dataset, first, last)

    def sums(self) -> Sums:
        return {"": self._total}


def _sum_of(run: Run, dataset: Dataset, first: int, last: int) -> LocalitySum:
    """Return the sum over some of the drawn rows."""
    drawn, indices, distances = (
        run.read(f"locality/{name}", first, last) for name in ("rows", "indices", "distances")
    )
    numbers, places = np.unique(np.column_stack([drawn, indices]), return_inverse=True)
    places = places.reshape(len(drawn), -1)
    classes = {}
    if not dataset.of_numbers:
        codes = dataset.take_codes(numbers)[places]
        classes = {"codes": codes[:, 0], "neighbor_codes": codes[:, 1:]}
    shares = neighbor_shares(distances, scale=WIDTH.recorded(run).mean_distance, **classes)
    X, features = dataset.take(numbers), read_features(run)
    sums, threads = LocalitySums(features.n_basis), blas_threads()
    size = _block_rows(features.n_basis, indices.shape[1])
    for start in range(0, len(drawn), size):
        rows = slice(start, start + size)
        used, own = np.unique(places[rows], return_inverse=True)
        own = own.reshape(-1, places.shape[1])
        Phi = features.activations(X[used], threads=threads)
        sums.add(Phi, own[:, 0], own[:, 1:], shares[rows])
    return sums.sum()


def _store_sum(run: Run, reduction: Reduction) -> dict[str, int]:
    """Store the sum over all drawn rows."""
    total: LocalitySum = read_total(run, reduction)
    write_array(run.group("locality"), "packed", total.packed, "packed")
    n_drawn = len(run.read("locality/rows"))
    return {"n_drawn": n_drawn, "n_bound": total.n_bound, "n_pairs": total.n_pairs}


def _n_drawn(n_rows: int, n_basis: int) -> int:
    return min(n_rows, _ROWS_OF_BASIS_ROW * n_basis, MAX_TARGETS)


def _part_rows(n_neighbors: int, row_values: float) -> int:
    """Return the number of drawn rows of a part."""
    return max(1, min(_PART_ROWS, int(_PART_ELEMENTS / ((n_neighbors + 1) * max(row_values, 1)))))


def _block_rows(n_basis: int, n_neighbors: int) -> int:
    """Return the number of drawn rows whose neighbours are summed together."""
    return max(1, block_rows(n_basis) // n_neighbors)


def _cost(s: FitSizes) -> StageCost:
    n_drawn, part_rows = _n_drawn(s.n, s.r), _part_rows(s.k, s.row_values)
    n_parts, sums = -(-n_drawn // part_rows), 4 * s.r**2
    n_pairs = _block_rows(s.r, s.k) * s.k
    rows = round(part_rows * (s.k + 1) * s.block_row_bytes)
    summing = 2 * rows + s.basis_bytes(s.r, copies=4)
    summing += locality_bytes(s.r, s.width, n_pairs=n_pairs)
    return StageCost(
        products=n_drawn * (s.k + 1) * (s.r**2 + s.product_flops(s.r)),
        exponentials=n_drawn * (s.k + 1) * s.r,
        pairs=0 if s.by_confidence else s.n * n_drawn,
        pair_flops=s.pair_flops,
        read_bytes=n_parts * (s.rows_bytes + sums),
        written_bytes=(n_parts + 1) * sums,
        held_bytes=s.held(s.exact_search_bytes(n_drawn), summing, 3 * 8 * packed_size(s.r)),
        n_tasks=min(s.n_parts, n_parts),
    )


def _check(context: FitContext) -> None:
    """Raise ParameterError if rows have too few neighbours."""
    check_neighbors(context.params.n_neighbors, context.dataset, labelled_only=False)


LOCALITY = Stage(
    name="locality",
    compute=_compute,
    cost=_cost,
    check=_check,
    wanted=lambda tried: any(tried.localities),
    grows_with_basis=True,
    scratch=(_SUMS,),
)
