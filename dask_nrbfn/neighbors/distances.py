"""Distances to given neighbours."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.rows import Rows, is_sparse, squared_norms
from dask_nrbfn.numeric.strips import over_strips
from dask_nrbfn.numeric.types import Floats

# Elements gathered at a time: 8 MiB of float64 stay near the core.
_GATHER_ELEMENTS = 2**20


class Neighbors(NamedTuple):
    """``indices`` int64 (b, k) and ``distances`` float64 (b, k), nearest first."""

    indices: NDArray[np.int64]
    distances: Floats


def measure_neighbors(
    rows: Rows, targets: Rows, indices: NDArray[np.int64], *, threads: int = 1
) -> Neighbors:
    """Return the neighbours with their Euclidean distances, sorted.

    Parameters
    ----------
    rows : float32 or float64 (n, p)
    targets : float32 or float64 (b, p)
        The rows whose neighbours they are.
    indices : int64 (b, k)
        Places of the neighbours in `rows`.
    threads : int

    Notes
    -----
    Distances are sums of squared differences in float64, whatever search found the neighbours, so
    they do not cancel for near duplicates. Equal distances are ordered by row number.
    """
    neighbors = Neighbors(np.empty_like(indices), np.empty(indices.shape))

    def measure(part: slice) -> None:
        squared = _squared_distances(rows, targets[part], indices[part])
        order = np.lexsort((indices[part], squared))
        neighbors.indices[part] = np.take_along_axis(indices[part], order, axis=1)
        neighbors.distances[part] = np.sqrt(np.take_along_axis(squared, order, axis=1))

    over_strips(measure, (len(indices), indices.shape[1] * _width(rows)), threads)
    return neighbors


def _squared_distances(rows: Rows, targets: Rows, indices: NDArray[np.int64]) -> Floats:
    """Return the squared distances (b, k) of targets (b, p) and the rows of their lists."""
    if is_sparse(rows):
        of_targets = np.repeat(np.arange(len(indices)), indices.shape[1])
        return measure_pairs(rows, targets, indices.ravel(), of_targets).reshape(indices.shape)
    differences = rows[indices] - targets[:, None, :]
    return np.einsum("bkp,bkp->bk", differences, differences, dtype=np.float64)


def _width(rows: Rows) -> int:
    """Return how many values of a row are looked at."""
    return 1 + rows.nnz // max(1, rows.shape[0]) if is_sparse(rows) else rows.shape[1]


def measure_pairs(
    rows: Rows,
    targets: Rows,
    places: NDArray[np.int64],
    target_places: NDArray[np.int64],
) -> Floats:
    """Return the squared distances of rows (n, p) and targets (b, p) in pairs, float64 (m,).

    Parameters
    ----------
    rows, targets : float32 or float64
    places, target_places : int64 (m,)
        Of the row and of the target of each pair.

    Notes
    -----
    As in `measure_neighbors`.
    """
    squared = np.empty(len(places))
    step = max(1, _GATHER_ELEMENTS // _width(rows))
    for start in range(0, len(places), step):
        part = slice(start, start + step)
        squared[part] = squared_norms(rows[places[part]] - targets[target_places[part]])
    return squared
