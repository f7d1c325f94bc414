"""What rows are multiplied by to give their squared distances from a basis."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dask_nrbfn.numeric.products import row_products
from dask_nrbfn.numeric.rows import Rows, canonical, dense, is_sparse, squared_norms
from dask_nrbfn.numeric.scaling import Scaling
from dask_nrbfn.numeric.strips import over_strips
from dask_nrbfn.numeric.types import Floats

# The share of values that are stored up to which a basis in CSR is multiplied as it is, and from
# which rows in CSR are filled before they meet a basis that is an array. Of 30,000 columns a row
# takes with 1,000 basis rows, on one core, as it is 0.2 ms where 1/30 is stored and 0.7 ms where
# 1/15 is, by an array 1.9 and 2.5 ms, and filled 0.6 ms.
_SPARSE_BASIS, _FILLED_ROWS = 1 / 16, 1 / 32

# Elements of the rows that are filled together, 32 MiB.
_FILLED_ELEMENTS = 2**22

# What BLAS computes while values of two rows in CSR meet or their product is put in its place, and
# while a value of a row meets one of an array: 5 ns and 0.6 ns beside 50 GFLOP/s.
_MEETING_FLOPS, _COLUMN_FLOPS = 250, 30


@dataclass(frozen=True, eq=False)
class DistanceFactors(ABC):
    """Squared distances from the r rows g of a basis, times a factor f: what else there is to them.

    Attributes
    ----------
    scaling : Scaling or None
        Applied to rows; the basis is scaled already.
    factor : float

    Notes
    -----
    ``f |x - g|^2`` is linear in x and g, ``f (|g|^2 - 2 x g)``, but for ``f |x|^2``, all of them
    about the mean of a basis that is an array: without that shift they cancel for data far from the
    origin. Of rows in CSR the product is taken of what is stored.
    """

    scaling: Scaling | None
    factor: float
    is_sparse: ClassVar[bool]

    @property
    @abstractmethod
    def offsets(self) -> Floats:
        """``f |g|^2``, float64 (r,)."""

    @abstractmethod
    def scaled(self, X: Rows) -> Rows:
        """Return rows, float64 (b, p), as the other methods take them."""

    @abstractmethod
    def linear(self, rows: Rows, ones: Floats) -> Floats:
        """Return ``f (|g|^2 - 2 x g)``, float64 (b, r), with |g|^2 times `ones` (b, 1)."""

    @abstractmethod
    def norms(self, rows: Rows, ones: Floats) -> Floats:
        """Return ``|x|^2``, float64 (b, 1), with what x is subtracted from times `ones` (b, 1)."""

    @abstractmethod
    def squared(
        self, X: Rows, *, out: Floats | None, scratch: Floats | None, threads: int
    ) -> Floats:
        """Return ``f |x - g|^2``, float64 (b, r), which rounding may leave beyond 0.

        Parameters
        ----------
        X : (b, p)
            Not scaled.
        out : float64 (b, r) or None
            Where to put them.
        scratch : float64 (b, p + 2) or None
            For rows that are an array, centred.
        threads : int
        """

    def _squared_in_strips(self, X: Rows, r: int, out: Floats | None, threads: int) -> Floats:
        """Return the same of rows as they are stored."""
        rows = self.scaled(X)
        squared = np.empty((X.shape[0], r)) if out is None else out

        def multiply(strip: slice) -> None:
            part = rows[strip]
            ones = np.ones((part.shape[0], 1))
            squared[strip] = self.linear(part, ones)
            squared[strip] += self.factor * self.norms(part, ones)

        over_strips(multiply, squared.shape, threads)
        return squared


def factors_of(basis: Rows, scaling: Scaling | None, factor: float) -> DistanceFactors:
    """Return the factors of a basis, scaled, which are an array unless most of it is 0."""
    if is_sparse(basis) and is_kept_sparse(basis.nnz / basis.shape[0], basis.shape[1]):
        norms = squared_norms(basis)
        return _SparseFactors(scaling, factor, csr_array(basis.T), norms)
    values = np.asarray(dense(basis), dtype=np.float64)
    centre = values.mean(axis=0)
    return _DenseFactors(scaling, factor, centre, _array_of(values, centre, factor))


def is_kept_sparse(row_values: float, n_features: int) -> bool:
    """Return whether basis rows with so many stored values on average are multiplied in CSR."""
    return row_values <= _SPARSE_BASIS * n_features


def product_flops(n_features: int, row_values: float, basis_values: float) -> float:
    """Return the flops of BLAS that take as long as the product of a row and a basis row.

    Rows store so many values on average, and basis rows; of an array it is `n_features`.
    """
    of_arrays = 2.0 * n_features
    if row_values == n_features:
        return of_arrays
    if is_kept_sparse(basis_values, n_features):
        return _MEETING_FLOPS * (1 + row_values * basis_values / n_features)
    return min(_COLUMN_FLOPS * row_values, of_arrays)


def basis_bytes(
    n_basis: int, n_features: int, basis_values: float, *, copies: int, of_sparse: bool
) -> int:
    """Return the bytes of some copies of a basis, as float64, of which one is its factors.

    In CSR a column stands beside each value. Rows in CSR need an array once more, and are filled a
    few at a time.
    """
    if is_kept_sparse(basis_values, n_features):
        return round(2 * 8 * copies * n_basis * basis_values)
    filled = n_basis * n_features + 3 * _FILLED_ELEMENTS if of_sparse else 0
    return 8 * (copies * n_basis * n_features + filled)


@dataclass(frozen=True, eq=False)
class _SparseFactors(DistanceFactors):
    """Those of a basis in CSR: ``transposed`` (p, r) and ``squares`` float64 (r,)."""

    transposed: csr_array
    squares: Floats
    is_sparse: ClassVar[bool] = True

    @property
    def offsets(self) -> Floats:
        return self.factor * self.squares

    def scaled(self, X: Rows) -> Rows:
        rows = X if self.scaling is None else self.scaling.apply(X)
        return csr_array(rows, dtype=np.float64) if is_sparse(rows) else canonical(rows)

    def linear(self, rows: Rows, ones: Floats) -> Floats:
        products: Floats = (rows @ self.transposed).toarray()
        products *= -2.0 * self.factor
        products += ones * (self.factor * self.squares)
        return products

    def norms(self, rows: Rows, ones: Floats) -> Floats:
        return squared_norms(rows)[:, None]

    def squared(
        self, X: Rows, *, out: Floats | None, scratch: Floats | None, threads: int
    ) -> Floats:
        return self._squared_in_strips(X, len(self.squares), out, threads)


@dataclass(frozen=True, eq=False)
class _DenseFactors(DistanceFactors):
    """Those of an array: `centre` (p,), and columns for x, 1 and ``|x|^2``, float64 (r, p + 2)."""

    centre: Floats
    array: Floats
    is_sparse: ClassVar[bool] = False

    @property
    def offsets(self) -> Floats:
        return self.array[:, -2]

    def scaled(self, X: Rows) -> Rows:
        rows = X if self.scaling is None else self.scaling.apply(X)
        return rows if is_sparse(rows) else np.subtract(rows, self.centre, dtype=np.float64)

    def linear(self, rows: Rows, ones: Floats) -> Floats:
        if not is_sparse(rows):
            products: Floats = rows @ self.array[:, :-2].T
            return np.add(products, ones * self.array[:, -2], out=products)
        transposed, constants = self._uncentred
        return np.asarray(rows @ transposed + ones * constants)

    def norms(self, rows: Rows, ones: Floats) -> Floats:
        norms = squared_norms(rows)[:, None]
        if not is_sparse(rows):
            return norms
        about = norms - 2.0 * ones * (rows @ self.centre)[:, None]
        return np.asarray(about + ones**2 * (self.centre @ self.centre))

    def squared(
        self, X: Rows, *, out: Floats | None, scratch: Floats | None, threads: int
    ) -> Floats:
        if not is_sparse(X):
            rows = np.empty((len(X), len(self.centre) + 2)) if scratch is None else scratch
            self._extend(X, out=rows, threads=threads)
            return row_products(rows, self.array, out=out)
        fills = self.scaling is not None and self.scaling.fills
        n_rows, p = X.shape
        if not fills and X.nnz <= _FILLED_ROWS * n_rows * p:
            # Made once, before several threads ask for them.
            _ = self._uncentred
            return self._squared_in_strips(X, len(self.array), out, threads)
        squared = np.empty((n_rows, len(self.array))) if out is None else out
        size = max(1, _FILLED_ELEMENTS // p)
        for start in range(0, n_rows, size):
            strip = slice(start, start + size)
            self.squared(dense(X[strip]), out=squared[strip], scratch=None, threads=threads)
        return squared

    @cached_property
    def _uncentred(self) -> tuple[Floats, Floats]:
        """What rows that are not centred are multiplied by, (p, r), and what is added, (r,)."""
        slopes = self.array[:, :-2]
        return np.ascontiguousarray(slopes.T), self.array[:, -2] - slopes @ self.centre

    def _extend(self, X: NDArray[Any], *, out: Floats, threads: int) -> None:
        """Put rows, scaled and centred, into `out` (b, p + 2), behind them 1 and ``|x|^2``."""

        def extend(strip: slice) -> None:
            centred = out[strip, :-2]
            if self.scaling is None:
                centred[...] = X[strip]
            else:
                self.scaling.apply(X[strip], out=centred)
            centred -= self.centre
            out[strip, -2] = 1.0
            out[strip, -1] = _row_dots(centred, centred)

        over_strips(extend, out.shape, threads)


def _array_of(basis: Floats, centre: Floats, factor: float) -> Floats:
    array = np.empty((basis.shape[0], basis.shape[1] + 2))
    centred = np.subtract(basis, centre, out=array[:, :-2])
    array[:, -2] = _row_dots(centred, centred)
    array[:, -1] = 1.0
    centred *= -2.0
    array *= factor
    return array


def _row_dots(A: Floats, B: Floats) -> Floats:
    dots: Floats = np.einsum("ij,ij->i", A, B)
    return dots
