"""Neighbour searches: the method, the rows that have neighbours, block sizes and memory."""

from collections.abc import Iterator
from dataclasses import asdict, replace

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.engine.memory import NNDESCENT_PROCESS_BYTES, PROCESS_BYTES
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.neighbors.plan import SearchedRows
from dask_nrbfn.params import FitParams
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import PartLayout
from dask_nrbfn.storage.run import Run

# Bytes of the rows of one block in double precision, or of their neighbour lists. For blocks that
# need more memory than their rows: the search of a thousand rows, or the routing to partitions.
_BLOCK_BYTES = 2**26

# A neighbour is a row number and a distance.
LIST_BYTES = 16


def check_neighbors(n_neighbors: int, dataset: Dataset, *, labelled_only: bool) -> None:
    """Check that there are enough rows for `n_neighbors` neighbours."""
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


def searched_in(dataset: Dataset, params: FitParams) -> SearchedRows:
    """Return the sizes of the rows of a dataset, for their search."""
    return SearchedRows(
        n_rows=dataset.n_rows,
        n_features=dataset.n_features,
        row_values=dataset.row_values,
        width=dataset.row_width,
        is_sparse=dataset.is_sparse,
        dtype=dataset.dtype,
        params=params,
    )


def search_block_rows(chunk_rows: int, width: int, params: FitParams) -> int:
    """Return the rows of a block of a search, a whole number of a run's chunks.

    The larger of a row and of the neighbour lists that are merged for the row decides the size.
    """
    row_bytes = max(8 * width, LIST_BYTES * params.n_neighbors * most_lists(params.overlap))
    return max(1, _BLOCK_BYTES // row_bytes // chunk_rows) * chunk_rows


def pieces_of(counts: NDArray[np.int64], group: int) -> Iterator[tuple[int, int, int]]:
    """Yield the blocks with rows of a group, and their first and last place; blocks are sorted."""
    firsts = np.cumsum(counts, axis=1) - counts
    for block in np.flatnonzero(counts[:, group]).tolist():
        first = int(firsts[block, group])
        yield block, first, first + int(counts[block, group])


def most_lists(overlap: int) -> int:
    """Return the largest number of lists of a row: one more than `overlap`, and its copies."""
    return overlap + 2


def worker_bytes(method: str) -> int:
    """Return the bytes of a worker's process after a neighbour search."""
    return PROCESS_BYTES + (NNDESCENT_PROCESS_BYTES if method == "approximate" else 0)


def searching_bytes(dataset: Dataset, params: FitParams, method: str, n_rows: int) -> int:
    """Return the bytes that a worker holds while it searches `n_rows` rows."""
    return (
        worker_bytes(method)
        + dataset.reading_bytes
        + searched_in(dataset, params).search_bytes(n_rows, method)
    )


# The name of the decision on candidates: the parts of arrays with a row for each candidate.
_CANDIDATES = "candidates"


def decide_candidates(run: Run, n_candidates: int) -> None:
    """Record that only `n_candidates` rows have neighbours."""
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
