"""Exact neighbours by brute force."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors


def exact_neighbors(
    rows: NDArray[Any], queries: NDArray[np.int64], *, n_neighbors: int
) -> NDArray[np.int64]:
    """Return the nearest other rows of some of the rows, int64 (b, k).

    Parameters
    ----------
    rows : float32 or float64 (n, p)
        All rows; best centred, because distances come from ``|x|^2 - 2 x y + |y|^2``.
    queries : int64 (b,)
        Numbers of the rows whose neighbours are wanted.
    n_neighbors : int
        k < n.

    Notes
    -----
    ``2 b n p`` flops. One neighbour more is asked for, and the row itself is dropped by its
    number: among exact duplicates it need not come first.

    Examples
    --------
    >>> rows = np.array([[0.0], [1.0], [1.0], [9.0]])
    >>> exact_neighbors(rows, np.arange(4), n_neighbors=1).ravel()
    array([1, 2, 1, 1])
    """
    return drop_self(nearest_rows(rows, rows[queries], count=n_neighbors + 1), queries)


def nearest_rows(rows: NDArray[Any], targets: NDArray[Any], *, count: int) -> NDArray[np.int64]:
    """Return the places in `rows` (n, p) of the `count` rows nearest to each target, (b, count)."""
    search = NearestNeighbors(n_neighbors=count, algorithm="brute").fit(rows)
    return np.asarray(search.kneighbors(targets, return_distance=False), dtype=np.int64)


def drop_self(found: NDArray[np.int64], queries: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return (b, k) from (b, k + 1) numbers without the row's own, or without the last."""
    own = found == queries[:, None]
    own[~own.any(axis=1), -1] = True
    return found[~own].reshape(len(found), -1)
