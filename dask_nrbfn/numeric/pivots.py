"""Distances about a basis row nearby: those about the mean lose digits where clusters lie apart."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dask_nrbfn.numeric.factors import DistanceFactors
from dask_nrbfn.numeric.products import row_products
from dask_nrbfn.numeric.rows import Rows, dense, is_sparse, mean_values, squared_norms
from dask_nrbfn.numeric.types import Floats

# Up to this squared distance from the mean, over 2 sigma^2, rounding moves exponents by less than
# 6e-11. It is reached at 362 widths.
_COARSE = 2.0**16

# Rows with this squared distance from a basis row share it as a pivot; they are rounded by 4e-12.
_SHARED = 2.0**12

# An exponent that is less than the largest of its row by this, and by 2^10 times the least distance
# t, belongs to an activation that is 0 beside the largest: t exceeds the least by 1000.
_BEYOND, _BEYOND_BY_DISTANCE = 2.0**20, 2.0**10

# Rounding of exponents about the mean, as a share of the largest squared distance from it.
_ROUNDING = 2.0**-46

# Values of rows or basis rows about a pivot that are held together, 2 MiB.
_HELD_ELEMENTS = 2**18


class Group(NamedTuple):
    """Rows and the basis rows that they are near, about one of these.

    Attributes
    ----------
    rows : intp (b,)
    columns : intp (m,)
        Numbers of the basis rows. Activations of the others are 0.
    linear : float64 (b, m)
        ``-(|h|^2 - 2 y h) / (2 sigma^2)``, y a row and h a basis row less the pivot.
    norms : float64 (b, 1)
        ``-|y|^2 / (2 sigma^2)``.
    """

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    linear: Floats
    norms: Floats


@dataclass(frozen=True, eq=False)
class Pivots:
    """The exponents ``-|x - g|^2 / (2 sigma^2)`` that are exact wherever activations are not 0.

    Attributes
    ----------
    basis : float64 (r, p), or in CSR
        Scaled.
    factors : DistanceFactors
        Of the same basis; `factor` is ``-1 / (2 sigma^2)``.

    Notes
    -----
    Taken about the mean m, exponents are rounded by about ``eps |x - m|^2 / sigma^2``. About a
    pivot, the nearest basis row of some row, the same formula rounds by that of their distance.
    """

    basis: Rows
    factors: DistanceFactors

    def spread(self, X: Rows) -> Floats | None:
        """Return ``|g - m|^2 / (2 sigma^2)``, float64 (r,), if rows X need pivots, else None.

        m is 0 where rows are not centred.
        """
        spread, is_wide = self._uncentred if is_sparse(X) else self._centred
        return spread if is_wide else None

    @cached_property
    def _centred(self) -> tuple[Floats, bool]:
        spread = -self.factors.offsets
        return spread, bool(spread.max() > _COARSE)

    @cached_property
    def _uncentred(self) -> tuple[Floats, bool]:
        spread = -self.factors.factor * squared_norms(self.basis)
        if not self.factors.is_sparse:
            # Every distance has the square of the mean, which cancels.
            spread[:] = spread.max()
        return spread, bool(spread.max() > _COARSE)

    def refine(self, X: Rows, exponents: Floats, spread: Floats) -> None:
        """Replace the exponents (b, r) of rows X (b, p) in place where they are not exact."""
        nearest = exponents.argmax(axis=1)
        largest = exponents[np.arange(len(exponents)), nearest]
        # Farther rows have no exponentials, or `RadialFeatures` shifts them. NaN stays.
        farthest = _COARSE + _ROUNDING * spread.max()
        near = (largest > -farthest) & (largest < np.inf)
        coarse = np.flatnonzero(near & (spread[nearest] > _COARSE))
        for group in self.groups(X, exponents, spread, coarse):
            places = np.ix_(group.rows, group.columns)
            exponents[places] = group.linear + group.norms

    def groups(
        self, X: Rows, exponents: Floats, spread: Floats, places: NDArray[np.intp]
    ) -> Iterator[Group]:
        """Yield the rows of X (b, p) at these places in groups.

        Their exponents about the mean, which are among (b, r), are finite.
        """
        nearest = exponents.argmax(axis=1)
        least = _BEYOND + _ROUNDING * spread.max()
        n_together = self._n_held(X)
        while len(places):
            pivot = nearest[places[0]]
            shares = (nearest[places] == pivot) | (exponents[places, pivot] > -_SHARED)
            rows = places[shares][:n_together]
            places = np.setdiff1d(places, rows, assume_unique=True)
            own = exponents[rows]
            largest = own.max(axis=1, keepdims=True)
            beyond = least + _BEYOND_BY_DISTANCE * np.sqrt(np.maximum(-2.0 * largest, 0.0))
            columns = np.flatnonzero((own >= largest - beyond).any(axis=0))
            yield Group(rows, columns, *self._about(pivot, self._scaled(X[rows]), columns))

    def _about(self, pivot: int, rows: Rows, columns: NDArray[np.intp]) -> tuple[Floats, Floats]:
        """Return `Group.linear` and `Group.norms`."""
        origin = self._basis_rows(np.array([pivot]))
        y = _less(rows, origin)
        linear = np.empty((rows.shape[0], len(columns)))
        size = self._n_held(self.basis)
        for start in range(0, len(columns), size):
            some = slice(start, start + size)
            h = _less(self._basis_rows(columns[some]), origin)
            linear[:, some] = squared_norms(h) - 2.0 * _products(y, h)
        linear *= self.factors.factor
        return linear, self.factors.factor * squared_norms(y)[:, None]

    def _scaled(self, X: Rows) -> Rows:
        scaling = self.factors.scaling
        rows = X if scaling is None else scaling.apply(X)
        if self.factors.is_sparse:
            return csr_array(rows, dtype=np.float64)
        return np.asarray(dense(rows), dtype=np.float64)

    def _basis_rows(self, places: NDArray[np.intp]) -> Rows:
        rows = self.basis[places]
        return rows if self.factors.is_sparse else dense(rows)

    def _n_held(self, rows: Rows) -> int:
        """Return how many of such rows are held together."""
        row_values = mean_values(rows) if self.factors.is_sparse else rows.shape[1]
        return max(1, int(_HELD_ELEMENTS / max(1.0, row_values)))


def _less(rows: Rows, origin: Rows) -> Rows:
    """Return rows (b, p) less one row (1, p)."""
    if not is_sparse(origin):
        return rows - origin
    if not origin.nnz:
        return rows
    n_rows, n_values = rows.shape[0], origin.nnz
    starts = np.arange(0, n_rows * n_values + 1, n_values)
    repeated = (np.tile(origin.data, n_rows), np.tile(origin.indices, n_rows), starts)
    return rows - csr_array(repeated, shape=rows.shape)


def _products(y: Rows, h: Rows) -> Floats:
    return (y @ h.T).toarray() if is_sparse(y) else row_products(y, h)
