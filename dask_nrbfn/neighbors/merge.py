"""Neighbour lists of the same rows, made one."""

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.neighbors.distances import Neighbors
from dask_nrbfn.numeric.types import Floats

MISSING = -1


def merge_neighbors(
    indices: NDArray[np.int64], distances: Floats, *, n_neighbors: int
) -> Neighbors:
    """Return the k nearest distinct neighbours of every row, nearest first.

    Parameters
    ----------
    indices : int64 (b, c)
        Row numbers, some perhaps more than once, -1 for none.
    distances : float64 (b, c)
    n_neighbors : int
        k; where a row has fewer distinct neighbours, -1 and inf follow.

    Examples
    --------
    >>> merge_neighbors(np.array([[4, 2, 4]]), np.array([[1.0, 3.0, 1.0]]), n_neighbors=2).indices
    array([[4, 2]])
    """
    missing = max(0, n_neighbors - indices.shape[1])
    indices = np.pad(indices, ((0, 0), (0, missing)), constant_values=MISSING)
    distances = np.pad(distances, ((0, 0), (0, missing)), constant_values=np.inf)
    by_number = np.argsort(indices, axis=1, kind="stable")
    indices = np.take_along_axis(indices, by_number, axis=1)
    distances = np.take_along_axis(distances, by_number, axis=1)
    repeated = indices[:, 1:] == indices[:, :-1]
    indices[:, 1:][repeated] = MISSING
    distances[indices == MISSING] = np.inf
    nearest = np.lexsort((indices, distances))[:, :n_neighbors]
    return Neighbors(
        np.take_along_axis(indices, nearest, axis=1),
        np.take_along_axis(distances, nearest, axis=1),
    )
