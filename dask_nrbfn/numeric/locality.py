"""Locality: a penalty on differences between the scores of neighbours.

Xue, Chen & Zeng, *Classifier learning with a new locality regularization method*, 2008.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.moments import pack_in_place, unpack_gram
from dask_nrbfn.numeric.products import add_gram
from dask_nrbfn.numeric.sums import RowSum
from dask_nrbfn.numeric.types import Floats

Places = NDArray[np.integer]


def neighbor_shares(
    distances: Floats,
    *,
    scale: float,
    codes: Places | None = None,
    neighbor_codes: Places | None = None,
) -> Floats:
    """Return the shares (b, k) of the neighbours of each row, which sum to 1 or are all 0.

    ``P_bj = S_bj / sum_j S_bj`` with ``S_bj = exp(-d_bj^2 / scale^2)`` for the neighbours j of b,
    else 0. Only rows nearer than the nearest row of another class are neighbours; a row of unknown
    class, with the code -1, belongs to no other class.

    Differs from Xue, Chen & Zeng because neighbourhoods are not made symmetric: the neighbours of a
    row that was not drawn are not known.
    """
    counted = np.ones(distances.shape, dtype=np.bool_)
    if codes is not None and neighbor_codes is not None:
        own = np.asarray(codes)[:, None]
        other = (neighbor_codes != own) & (neighbor_codes >= 0) & (own >= 0)
        reach = np.where(other, distances, np.inf).min(axis=1, keepdims=True)
        counted = distances < reach
    # The largest exponent of each row is subtracted, because otherwise all might underflow.
    squares = (distances / scale) ** 2
    nearest = np.where(counted, squares, np.inf).min(axis=1, keepdims=True)
    nearest[np.isinf(nearest)] = 0.0
    shares: Floats = np.where(counted, np.exp(nearest - squares), 0.0)
    shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1.0)
    return shares


@dataclass(frozen=True, eq=False)
class LocalitySum(RowSum):
    """The matrix R of squared differences between the scores of rows and of their neighbours.

    packed (r (r + 1) / 2,): upper triangle of ``R = sum_b sum_j P_bj (phi_j - phi_b) (phi_j -
        phi_b)'``, row by row, with P of `neighbor_shares`: ``w' R w`` sums the squared differences.
    n_bound, n_pairs: rows with a neighbour, and pairs of a row and a neighbour.
    """

    packed: Floats
    n_bound: int
    n_pairs: int

    def matrix(self, n_basis: int) -> Floats:
        """Return R in full, float64 (r, r), symmetric and positive semidefinite."""
        return unpack_gram(self.packed, n_basis)


class LocalitySums:
    """Accumulates a `LocalitySum` of `n_basis` basis rows."""

    def __init__(self, n_basis: int) -> None:
        self._matrix = np.zeros((n_basis, n_basis))
        self._n_bound = self._n_pairs = 0

    def add(self, Phi: Floats, rows: Places, neighbors: Places, shares: Floats) -> None:
        """Add rows and their neighbours by places: ``b k r^2`` flops and two arrays of b k rows."""
        bound, ranks = np.nonzero(shares)
        differences = Phi[neighbors[bound, ranks]]
        differences -= Phi[rows[bound]]
        differences *= np.sqrt(shares[bound, ranks])[:, None]
        add_gram(self._matrix, differences)
        self._n_bound += len(np.unique(bound))
        self._n_pairs += len(bound)

    def sum(self) -> LocalitySum:
        """Return the sum of all rows, in the same memory; nothing can be added afterwards."""
        matrix = self._matrix
        del self._matrix
        return LocalitySum(pack_in_place(matrix), self._n_bound, self._n_pairs)


def locality_bytes(n_basis: int, width: int, *, n_pairs: int) -> int:
    """Return the bytes of summing the pairs of a block: R, activations, differences and rows."""
    return 8 * (n_basis**2 + 4 * n_pairs * (n_basis + width))
