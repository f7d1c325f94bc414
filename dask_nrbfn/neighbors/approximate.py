"""Approximate neighbours by NNDescent; the one module that knows pynndescent."""

import threading
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.neighbors.cost import candidate_list, searched_neighbors
from dask_nrbfn.neighbors.exact import drop_self, exact_neighbors

# One build at a time in a process: numba's threads are shared by all of them.
_BUILDING = threading.Lock()


def approximate_neighbors(
    rows: NDArray[Any], *, n_neighbors: int, seed: int, threads: int
) -> NDArray[np.int64]:
    """Return approximate nearest other rows of every row, int64 (n, k).

    Parameters
    ----------
    rows : float32 (n, p)
    n_neighbors : int
        k < n.
    seed, threads : int
        The graph depends on both.

    Notes
    -----
    NNDescent (Dong, Charikar & Li 2011). The first build of a process takes most of a minute of
    compilation. Rows for which it found fewer than k neighbours are searched exactly.
    """
    # Importing compiles for ten seconds, which the exact search must not pay.
    from pynndescent import NNDescent

    with _BUILDING, warnings.catch_warnings():
        # Incomplete lists are repaired below.
        warnings.filterwarnings("ignore", message="Failed to correctly find n_neighbors")
        graph = NNDescent(
            rows,
            n_neighbors=min(searched_neighbors(n_neighbors) + 1, len(rows)),
            max_candidates=candidate_list(n_neighbors),
            random_state=seed,
            n_jobs=threads,
        ).neighbor_graph
    found = drop_self(graph[0].astype(np.int64), np.arange(len(rows)))[:, :n_neighbors]
    incomplete = np.flatnonzero((found < 0).any(axis=1))
    if len(incomplete):
        found[incomplete] = exact_neighbors(rows, incomplete, n_neighbors=n_neighbors)
    return found
