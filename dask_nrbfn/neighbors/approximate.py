"""Approximate neighbours by NNDescent; the only module that uses pynndescent."""

import threading
import warnings

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import StorageError
from dask_nrbfn.neighbors.exact import exact_neighbors, other_rows
from dask_nrbfn.neighbors.plan import graph_lists
from dask_nrbfn.numeric.rows import Rows

# One build at a time in a process, because all builds share the threads of numba.
_BUILDING = threading.Lock()


def approximate_neighbors(
    rows: Rows, *, n_neighbors: int, seed: int, threads: int
) -> NDArray[np.int64]:
    """Return the row numbers (n, k) of the approximate nearest other rows of float32 rows.

    The graph depends on `seed` and `threads`; numba has at most the threads that it started with.

    NNDescent (Dong, Charikar & Li 2011). The first build of a process compiles for most of a
    minute. Rows with fewer than k neighbours found are searched exactly.
    """
    # The import compiles for ten seconds, which the exact search does not need.
    import numba

    try:
        from pynndescent import NNDescent
    except RuntimeError as error:
        raise StorageError(
            f"numba cannot write its cache ({error}).",
            "Set NUMBA_CACHE_DIR to a directory that you may write to, or search exactly.",
        ) from error

    n_rows = rows.shape[0]
    n_searched, n_candidates = graph_lists(n_neighbors)
    with _BUILDING, warnings.catch_warnings():
        # Incomplete lists are repaired below.
        warnings.filterwarnings("ignore", message="Failed to correctly find n_neighbors")
        graph = NNDescent(
            rows,
            n_neighbors=min(n_searched + 1, n_rows),
            max_candidates=n_candidates,
            random_state=seed,
            n_jobs=min(threads, numba.config.NUMBA_NUM_THREADS),  # type: ignore[attr-defined]
        ).neighbor_graph
    listed = graph[0].astype(np.int64)
    others = listed[other_rows(listed, np.arange(n_rows))].reshape(n_rows, -1)
    found = others[:, :n_neighbors]
    incomplete = np.flatnonzero((found < 0).any(axis=1))
    if len(incomplete):
        found[incomplete] = exact_neighbors(rows, incomplete, n_neighbors=n_neighbors).indices
    return found
