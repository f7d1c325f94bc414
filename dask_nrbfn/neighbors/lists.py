"""Lists of neighbours: their distances, the merge of several lists, and their recall."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.products import over_strips
from dask_nrbfn.numeric.rows import Rows, is_csr, mean_stored_values, squared_norms
from dask_nrbfn.numeric.types import Floats

# Distances that differ by a smaller share are equal: the same pair summed in another order.
_RELATIVE_TOLERANCE = 1e-9

MISSING = -1
"""The row number that marks a missing neighbour."""


class Neighbors(NamedTuple):
    """``indices`` int64 (b, k) and ``distances`` float64 (b, k), nearest first."""

    indices: NDArray[np.int64]
    distances: Floats


def measure_neighbors(rows: Rows, targets: Rows, indices: NDArray[np.int64]) -> Neighbors:
    """Return the neighbours of targets with their Euclidean distances, sorted; inf for none, -1.

    Squared differences are summed in float64 for both searches, so near duplicates lose no digits.
    Equal distances are ordered by row number.
    """
    neighbors = Neighbors(np.empty_like(indices), np.empty(indices.shape))

    def measure(part: slice) -> None:
        squared = squared_distances(rows, targets[part], indices[part])
        squared[indices[part] == MISSING] = np.inf
        order = np.lexsort((indices[part], squared))
        neighbors.indices[part] = np.take_along_axis(indices[part], order, axis=1)
        neighbors.distances[part] = np.sqrt(np.take_along_axis(squared, order, axis=1))

    row_values = max(1, int(mean_stored_values(rows)))
    over_strips(measure, (len(indices), indices.shape[1] * row_values))
    return neighbors


def squared_distances(rows: Rows, targets: Rows, indices: NDArray[np.int64]) -> Floats:
    """Return the squared distances (b, k) of targets (b, p) and the rows of their lists."""
    if is_csr(rows):
        of_targets = np.repeat(np.arange(len(indices)), indices.shape[1])
        pairs = rows[indices.ravel()] - targets[of_targets]
        return squared_norms(pairs).reshape(indices.shape)
    differences = rows.take(indices, axis=0) - targets[:, None, :]
    return np.einsum("bkp,bkp->bk", differences, differences, dtype=np.float64)


def merge_neighbors(lists: Sequence[Neighbors], *, n_neighbors: int) -> Neighbors:
    """Return the k nearest distinct neighbours of every row, nearest first; -1 and inf for none."""
    indices, distances = map(np.hstack, zip(*lists, strict=True))
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


def measure_recall(found: Floats, exact: Floats) -> tuple[float, float]:
    """Return the mean recall of lists, given by their distances (b, k), and its standard error.

    A neighbour counts as true if it is no further away than the k-th true neighbour. So any of
    several rows at the same distance counts.
    """
    true = found <= exact[:, -1:] * (1.0 + _RELATIVE_TOLERANCE)
    shares = true.mean(axis=1)
    spread = float(shares.std(ddof=1)) if len(shares) > 1 else 0.0
    return float(shares.mean()), spread / math.sqrt(len(shares))
