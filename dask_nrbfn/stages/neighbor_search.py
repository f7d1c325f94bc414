"""Neighbour searches: the method, the rows that have neighbours, block sizes and memory."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.engine.memory import NNDESCENT_PROCESS_BYTES, PROCESS_BYTES
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.neighbors.cost import listed_neighbors, search_bytes
from dask_nrbfn.params import FitParams
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import PartLayout
from dask_nrbfn.storage.run import Run

# Bytes of the rows of one block in double precision, or of their neighbour lists. For blocks that
# need more memory than their rows: the search of a thousand rows, or the routing to partitions.
_BLOCK_BYTES = 2**26

# Rows of the sample that places the partitions: enough of each to estimate its share to a tenth,
# and in all no more than fits easily into the memory of a node. Fewer rows than the least cannot
# place a partition.
_SAMPLE_ROWS_PER_PARTITION = 512
_LEAST_SAMPLE_ROWS_PER_PARTITION = 32
_MIN_SAMPLE_ROWS = 2**15
_MAX_SAMPLE_ROWS = 2**18
_MAX_SAMPLE_ELEMENTS = 2**25

# The means of rows in CSR are arrays: 128 MiB of them, of which k-means holds a few.
_MAX_CENTROID_ELEMENTS = 2**24

# With a sample half as large twice as many pairs pass the bounds, and sorting them takes as long as
# the products. A larger sample takes longer itself.
_MAX_BOUNDING_ROWS = 2**17

# A neighbour is a row number and a distance.
LIST_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class NeighborSearch:
    """How neighbours are searched, with every "auto" resolved when the run began.

    Attributes
    ----------
    method : {"exact", "approximate"}
    n_partitions : int
    threads : int
        The graph of an approximate search depends on them.
    n_candidates : int or None
        Number of rows whose neighbours are searched; None: all rows.
    """

    method: str
    n_partitions: int
    threads: int
    n_candidates: int | None = None


def check_neighbors(n_neighbors: int, dataset: Dataset, *, labelled_only: bool) -> None:
    """Check that there are enough rows for `n_neighbors` neighbours.

    Parameters
    ----------
    n_neighbors : int
    dataset : Dataset
    labelled_only : bool
        Whether neighbours must have a label.

    Raises
    ------
    ParameterError
        If there are too few.
    """
    n_searched = dataset.of_labelled().n_rows if labelled_only else dataset.n_rows
    if n_neighbors < n_searched:
        return
    n_samples = f"n_samples = {n_searched}"
    if n_searched < dataset.n_rows:
        n_samples += " with a label"
    raise ParameterError(
        f"`n_neighbors`={n_neighbors} needs at least {n_neighbors + 1} rows, but X has "
        f"{n_samples}.",
        f"Set `n_neighbors` to at most {n_searched - 1}.",
    )


def search_dtype(dataset: Dataset, method: str) -> np.dtype[Any]:
    """Return the precision of a search: single if it loses nothing or the search has no other.

    Parameters
    ----------
    dataset : Dataset
    method : {"exact", "approximate"}

    Returns
    -------
    dtype
    """
    small = np.can_cast(dataset.dtype, np.float32)
    return np.dtype(np.float32 if small or method == "approximate" else np.float64)


def row_width(dataset: Dataset) -> int:
    """Return how many numbers store a row: p, or in CSR its values and column indices."""
    stored = max(1, math.ceil(2 * dataset.row_values))
    return stored if dataset.is_sparse else dataset.n_features


def search_block_rows(chunk_rows: int, width: int, params: FitParams) -> int:
    """Return the rows of a block of a search, a whole number of a run's chunks.

    The larger of a row and of the neighbour lists that are merged for the row decides the size.

    Parameters
    ----------
    chunk_rows : int
    width : int
        See `row_width`.
    params : FitParams

    Returns
    -------
    int
    """
    row_bytes = max(8 * width, LIST_BYTES * params.n_neighbors * most_lists(params.overlap))
    return max(1, _BLOCK_BYTES // row_bytes // chunk_rows) * chunk_rows


def sample_rows(n_rows: int, width: int, n_partitions: int) -> int:
    """Return the number of rows of the sample that places partitions.

    Parameters
    ----------
    n_rows : int
    width : int
        See `row_width`.
    n_partitions : int

    Returns
    -------
    int
    """
    elements = _MAX_SAMPLE_ELEMENTS // max(n_partitions, width)
    wanted = max(_MIN_SAMPLE_ROWS, n_partitions * _SAMPLE_ROWS_PER_PARTITION)
    return min(n_rows, wanted, _MAX_SAMPLE_ROWS, elements)


def bounding_rows(n_rows: int, width: int, n_neighbors: int) -> int:
    """Return the size of the sample that bounds the distances of the candidates' neighbours.

    At most a fourth of the rows: then the bound is so wide that k rows lie within it even if a
    search misses some neighbours.

    Parameters
    ----------
    n_rows : int
    width : int
        See `row_width`.
    n_neighbors : int

    Returns
    -------
    int
    """
    most = min(_MAX_BOUNDING_ROWS, _MAX_SAMPLE_ELEMENTS // width, n_rows // 4)
    return max(n_neighbors + 1, most)


def most_partitions(dataset: Dataset, params: FitParams) -> int:
    """Return the largest allowed number of partitions, at least 1.

    Each partition needs enough rows to fill the neighbour lists. The sample of rows and the
    centroids of the partitions must stay below their maximum sizes.

    Parameters
    ----------
    dataset : Dataset
    params : FitParams

    Returns
    -------
    int
    """
    filled = dataset.n_rows * params.overlap // smallest_partition(params)
    known = math.isqrt(_MAX_SAMPLE_ELEMENTS // _LEAST_SAMPLE_ROWS_PER_PARTITION)
    sampled = _MAX_SAMPLE_ELEMENTS // row_width(dataset) // _LEAST_SAMPLE_ROWS_PER_PARTITION
    held = _MAX_CENTROID_ELEMENTS // dataset.n_features
    return max(1, min(filled, known, sampled, held))


def smallest_partition(params: FitParams) -> int:
    """Return the mean partition size that is needed to fill lists of k neighbours."""
    return 4 * (params.n_neighbors + 1)


def most_lists(overlap: int) -> int:
    """Return the largest number of lists of a row: one more than `overlap`, and its copies."""
    return overlap + 2


def worker_bytes(method: str, *, of_candidates: bool = False) -> int:
    """Return the bytes of a worker's process after a neighbour search.

    Parameters
    ----------
    method : {"exact", "approximate"}
    of_candidates : bool
        Whether only candidates have neighbours.

    Returns
    -------
    int
    """
    compiled = method == "approximate" and not of_candidates
    return PROCESS_BYTES + (NNDESCENT_PROCESS_BYTES if compiled else 0)


def searching_bytes(dataset: Dataset, params: FitParams, method: str, n_rows: int) -> int:
    """Return the bytes that a worker holds while it searches `n_rows` rows.

    Parameters
    ----------
    dataset : Dataset
    params : FitParams
    method : {"exact", "approximate"}
    n_rows : int

    Returns
    -------
    int
    """
    return (
        worker_bytes(method)
        + dataset.reading_bytes
        + search_bytes(
            n_rows,
            row_width(dataset),
            itemsize=search_dtype(dataset, method).itemsize,
            n_neighbors=listed_neighbors(params.n_neighbors, is_sparse=dataset.is_sparse),
            method=method,
        )
    )


# The name of the decision on candidates: the parts of arrays with a row for each candidate.
_CANDIDATES = "candidates"


def decide_candidates(run: Run, n_candidates: int) -> None:
    """Record that only `n_candidates` rows have neighbours.

    Parameters
    ----------
    run : Run
    n_candidates : int
    """
    run.decide(_CANDIDATES, asdict(PartLayout.of(n_candidates, run.chosen_params.n_parts)))


def has_candidates(run: Run) -> bool:
    """Return whether only candidates have neighbours."""
    return _CANDIDATES in run.decisions


def of_searched(run: Run) -> Run:
    """Return the run restricted to the rows that have neighbours."""
    labelled = run.of_labelled()
    if not has_candidates(run):
        return labelled
    layout = PartLayout(**run.decisions[_CANDIDATES])
    return replace(labelled, n_rows=layout.n_rows, layout=layout)


def searched_rows(run: Run) -> NDArray[np.int64] | None:
    """Return the candidates among the labelled rows, ascending, int64 (N,); None: all rows."""
    return run.read("neighbors/rows") if has_candidates(run) else None


def places_of(run: Run, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places of row numbers in arrays with a row for each searched row.

    Parameters
    ----------
    run : Run
    rows : int64 (m,)
        Row numbers.

    Returns
    -------
    int64 (m,)
    """
    candidates = searched_rows(run)
    return rows if candidates is None else np.searchsorted(candidates, rows)
