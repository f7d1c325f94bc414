"""Squared distances between rows and basis rows, about a point that limits rounding errors."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from dask_nrbfn.numeric.cityblock import absolute_sums, sparse_absolute_sums
from dask_nrbfn.numeric.device import active_gpu, array_module, beside, gpu_of, to_device, to_host
from dask_nrbfn.numeric.products import over_strips, row_products
from dask_nrbfn.numeric.rows import (
    Rows,
    canonical,
    dense,
    is_csr,
    mean_stored_values,
    squared_norms,
)
from dask_nrbfn.numeric.scaling import Scaling
from dask_nrbfn.numeric.types import Floats

# A basis in CSR is multiplied in CSR if at most this share of its values is stored. Rows in CSR
# become arrays before the product with a basis that is an array, if more than this share is stored.
# Measured on one core, 30,000 columns and 1,000 basis rows: a row takes 0.2 ms (1/30 stored) and
# 0.7 ms (1/15) in CSR, 1.9 and 2.5 ms against an array, and 0.6 ms as an array itself.
_SPARSE_BASIS = 1 / 16
_FILLED_ROWS = 1 / 32

# Elements of the rows that are filled together, 32 MiB.
_FILLED_ELEMENTS = 2**22

# Flops of BLAS, at 50 GFLOP/s, that take as long as a product of two values in CSR (5 ns), and as a
# product of a value in CSR and a value of an array (0.6 ns).
_MEETING_FLOPS = 250
_COLUMN_FLOPS = 30

# Flops of BLAS that take as long as an absolute difference.
_DIFFERENCE_FLOPS = 3.0


@dataclass(frozen=True, eq=False)
class SquaredDistances(ABC):
    """Squared distances ``f d^2`` from the r rows of a scaled basis, f a factor.

    Rows, basis or both may be in CSR.

    cancels: whether terms cancel, so that rounding may change the sign of a small distance.
    """

    basis: Rows
    scaling: Scaling | None
    factor: float
    cancels: ClassVar[bool] = True

    @abstractmethod
    def squared(
        self, X: Rows, *, out: Floats | None = None, scratch: Floats | None = None
    ) -> Floats:
        """Return ``f d^2`` of unscaled rows (b, r) in `out`; scratch (b, p + 2) is for rows."""

    def clipped(self, X: Rows) -> Floats:
        """Return ``f d^2`` of unscaled rows (b, r) for a factor above 0, at least 0."""
        squared = self.squared(beside(X, self.basis))

        def clip(strip: slice) -> None:
            np.maximum(squared[strip], 0.0, out=squared[strip])

        if self.cancels:
            over_strips(clip, squared)
        return squared

    def total(
        self,
        X: Rows,
        *,
        weights: Floats | None = None,
        nearest: NDArray[np.intp] | None = None,
        buffer: Floats | None = None,
    ) -> float:
        """Return the sum of ``sqrt(f) d`` over rows and basis rows, times the weights of the rows.

        nearest (b,): output: the index of the first nearest basis row of each row.

        Summed over blocks and divided by n r this is the width of hu-nrbfn, Algorithm 2, step 5.
        """
        X = beside(X, self.basis)
        weights = beside(weights, self.basis)
        squared = self.squared(X, out=buffer)

        def total_of(strip: slice) -> float:
            part = squared[strip]
            if self.cancels:
                np.maximum(part, 0.0, out=part)
            if nearest is not None:
                nearest[strip] = to_host(part.argmin(axis=1))
            np.sqrt(part, out=part)
            if weights is None:
                return float(part.sum())
            return float(part.sum(axis=1) @ weights[strip])

        return sum(over_strips(total_of, squared))


class EuclideanDistances(SquaredDistances):
    """Squares of the distance ``d = |x - g|``, by products.

    ``f d^2`` is split into a term linear in x and g, ``f (|g|^2 - 2 x g)``, plus ``f |x|^2``. A
    basis that is an array is centred, and so are the rows, because otherwise the terms cancel for
    data far from the origin. Of rows in CSR only the stored values are multiplied.

    in_csr: whether the basis, and the `scaled` rows with it, are in CSR.
    """

    in_csr: ClassVar[bool]

    @property
    @abstractmethod
    def offsets(self) -> Floats:
        """``f |g|^2``, float64 (r,)."""

    @abstractmethod
    def scaled(self, X: Rows) -> Rows:
        """Return rows, float64 (b, p), in the form that the other methods need."""

    @abstractmethod
    def linear(self, rows: Rows, units: Floats) -> Floats:
        """Return ``f (u |g|^2 - 2 x g)`` (b, r) of scaled rows times units u (b, 1)."""

    @abstractmethod
    def norms(self, rows: Rows, units: Floats) -> Floats:
        """Return ``|x|^2`` (b, 1) of scaled rows times units (b, 1), which the centre needs."""

    def squared(
        self, X: Rows, *, out: Floats | None = None, scratch: Floats | None = None
    ) -> Floats:
        """Return ``f d^2`` of unscaled rows in CSR, (b, r), in `out`."""
        rows = self.scaled(X)
        squared = np.empty((X.shape[0], len(self.offsets))) if out is None else out

        def multiply(strip: slice) -> None:
            part = rows[strip]
            ones = np.ones((part.shape[0], 1))
            squared[strip] = self.linear(part, ones)
            squared[strip] += self.factor * self.norms(part, ones)

        over_strips(multiply, squared)
        return squared


def distances_from(
    basis: ArrayLike | Rows,
    scaling: Scaling | None = None,
    factor: float = 1.0,
    *,
    l1: bool = False,
) -> SquaredDistances:
    """Return squared distances from a scaled basis (r, p), which stays in CSR if it is sparse."""
    rows = float_rows(basis)
    own = rows, scaling, factor
    if l1:
        return CityBlockDistances(*own)
    if is_csr(rows) and _stays_in_csr(rows.nnz / rows.shape[0], rows.shape[1]):
        return _SparseDistances(*own, csr_array(rows.T), squared_norms(rows))
    values = dense(rows)
    centre = values.mean(axis=0)
    return _DenseDistances(*own, centre, _array_of(values, centre, factor))


def _stays_in_csr(row_values: float, n_features: int) -> bool:
    """Return whether basis rows with a mean of `row_values` stored values stay in CSR."""
    return row_values <= _SPARSE_BASIS * n_features


def product_flops(
    n_features: int, row_values: float, basis_values: float, *, l1: bool = False
) -> float:
    """Return the BLAS flops that take as long as the distance of a row and a basis row."""
    of_arrays = n_features * (_DIFFERENCE_FLOPS if l1 else 2.0)
    if row_values == n_features:
        return of_arrays
    if _stays_in_csr(basis_values, n_features):
        return _MEETING_FLOPS * (1 + row_values * basis_values / n_features)
    return min(_COLUMN_FLOPS * row_values, of_arrays)


def basis_bytes(
    n_basis: int, n_features: int, basis_values: float, *, copies: int, of_sparse: bool
) -> int:
    """Return the bytes of a basis; CSR stores a column index with each of its values.

    Rows in CSR need another array of the basis, and are converted a few at a time.
    """
    if _stays_in_csr(basis_values, n_features):
        return round(2 * 8 * copies * n_basis * basis_values)
    elements = copies * n_basis * n_features
    if of_sparse:
        elements += n_basis * n_features + 3 * _FILLED_ELEMENTS
    return 8 * elements


@dataclass(frozen=True, eq=False)
class _SparseDistances(EuclideanDistances):
    """Squared distances from a basis in CSR: ``transposed`` (p, r) and ``squares`` float64 (r,)."""

    transposed: csr_array
    squares: Floats
    in_csr: ClassVar[bool] = True

    @property
    def offsets(self) -> Floats:
        return self.factor * self.squares

    def scaled(self, X: Rows) -> Rows:
        rows = X if self.scaling is None else self.scaling.apply(X)
        return csr_array(rows, dtype=np.float64) if is_csr(rows) else canonical(rows)

    def linear(self, rows: Rows, units: Floats) -> Floats:
        products: Floats = (rows @ self.transposed).toarray()
        products *= -2.0 * self.factor
        products += units * self.offsets
        return products

    def norms(self, rows: Rows, units: Floats) -> Floats:
        return squared_norms(rows)[:, None]


@dataclass(frozen=True, eq=False)
class _DenseDistances(EuclideanDistances):
    """Squared distances from an array.

    centre (p,); array (r, p + 2): the factors of a centred row x, of 1 and of ``|x|^2``.
    """

    centre: Floats
    array: Floats
    in_csr: ClassVar[bool] = False

    @property
    def offsets(self) -> Floats:
        return self.array[:, -2]

    def scaled(self, X: Rows) -> Rows:
        rows = X if self.scaling is None else self.scaling.apply(X)
        return rows if is_csr(rows) else np.subtract(rows, self.centre, dtype=np.float64)

    def linear(self, rows: Rows, units: Floats) -> Floats:
        if not is_csr(rows):
            products: Floats = rows @ self.array[:, :-2].T
            return np.add(products, units * self.offsets, out=products)
        transposed, constants = self._about_origin
        return np.asarray(rows @ transposed + units * constants)

    def norms(self, rows: Rows, units: Floats) -> Floats:
        norms = squared_norms(rows)[:, None]
        if not is_csr(rows):
            return norms
        about = norms - 2.0 * units * (rows @ self.centre)[:, None]
        return np.asarray(about + units**2 * (self.centre @ self.centre))

    def squared(
        self, X: Rows, *, out: Floats | None = None, scratch: Floats | None = None
    ) -> Floats:
        if not is_csr(X):
            if scratch is None:
                scratch = array_module(X).empty((len(X), len(self.centre) + 2))
            self._extend(X, out=scratch)
            return row_products(scratch, self.array, out=out)
        n_rows, p = X.shape
        fills = self.scaling is not None and self.scaling.fills
        if X.nnz <= _FILLED_ROWS * n_rows * p and not fills:
            # Computed before several threads need it.
            _ = self._about_origin
            return super().squared(X, out=out)
        squared = np.empty((n_rows, len(self.array))) if out is None else out
        for strip in _filled_strips(n_rows, p):
            self.squared(dense(X[strip]), out=squared[strip])
        return squared

    @cached_property
    def _about_origin(self) -> tuple[Floats, Floats]:
        """Matrix (p, r) and constants (r,) for rows that are not centred."""
        slopes = self.array[:, :-2]
        return np.ascontiguousarray(slopes.T), self.offsets - slopes @ self.centre

    def _extend(self, X: NDArray[Any], *, out: Floats) -> None:
        """Write scaled and centred rows, 1 and ``|x|^2`` into `out` (b, p + 2)."""

        def extend(strip: slice) -> None:
            centred = out[strip, :-2]
            if self.scaling is None:
                centred[...] = X[strip]
            else:
                self.scaling.apply(X[strip], out=centred)
            centred -= self.centre
            out[strip, -2] = 1.0
            out[strip, -1] = squared_norms(centred)

        over_strips(extend, out)


def _filled_strips(n_rows: int, n_features: int) -> Iterator[slice]:
    """Yield the strips of rows in CSR that become arrays together."""
    size = max(1, _FILLED_ELEMENTS // n_features)
    for start in range(0, n_rows, size):
        yield slice(start, start + size)


@dataclass(frozen=True, eq=False)
class CityBlockDistances(SquaredDistances):
    """Squares of the l1 distance ``d = sum_l |x_l - g_l|``.

    Differences are exact, so no centre and no pivots are needed. Rows that stay in CSR after the
    scaling are summed over the values that the rows and the basis store; other rows become arrays.
    """

    cancels: ClassVar[bool] = False

    def squared(  # noqa: D102
        self, X: Rows, *, out: Floats | None = None, scratch: Floats | None = None
    ) -> Floats:
        squared = out
        if squared is None:
            squared = array_module(self.basis).empty((X.shape[0], self.basis.shape[0]))
        in_csr = self._is_summed_sparse(X)
        sums_of = self._sparse_sums if in_csr else self._sums
        # Computed before several threads need it.
        _ = self._stored_columns if in_csr else self._columns

        def square(strip: slice) -> None:
            with np.errstate(over="ignore"):
                sums_of(X[strip], squared[strip], self.factor)

        over_strips(square, squared)
        return squared

    def shifted_logarithms(self, X: Rows) -> Floats:
        """Return ``e - t`` (b, r), ``t^2 = -2 f d^2`` and e the least t of each unscaled row.

        A coordinate outside the range of the basis adds the same to all distances of its row, so it
        is moved to the border of the range first. Then the result loses no digits however far a row
        lies. Rows in CSR are not moved.
        """
        sums: Floats = array_module(self.basis).empty((X.shape[0], self.basis.shape[0]))
        if self._is_summed_sparse(X):
            self._sparse_sums(X, sums)
        else:
            columns = self._columns
            least, largest = columns.min(axis=1), columns.max(axis=1)
            for strip in _filled_strips(*X.shape):
                rows = np.clip(self._filled(X[strip]), least, largest)
                absolute_sums(rows, columns, sums[strip])
        sums -= sums.min(axis=1, keepdims=True)
        sums *= -float(np.sqrt(-2.0 * self.factor))
        return sums

    def _sparse_sums(self, X: Rows, out: Floats, factor: float | None = None) -> None:
        rows = csr_array(X if self.scaling is None else self.scaling.apply(X), dtype=np.float64)
        sparse_absolute_sums(rows, *self._stored_columns, out, factor=factor)

    def _sums(self, X: Rows, out: Floats, factor: float | None = None) -> None:
        for strip in _filled_strips(*X.shape):
            rows = self._filled(X[strip])
            absolute_sums(rows, self._columns, out[strip], factor=factor)

    def _is_summed_sparse(self, X: Rows) -> bool:
        if not is_csr(X):
            return False
        if self.scaling is not None and self.scaling.fills:
            return False
        n_rows, p = X.shape
        stored = self.basis.nnz if is_csr(self.basis) else self.basis.size
        if _stays_in_csr(stored / self.basis.shape[0], p):
            return True
        return bool(X.nnz <= _FILLED_ROWS * n_rows * p)

    def _filled(self, X: Rows) -> Floats:
        """Return scaled rows as a new array, float64 (b, p)."""
        rows = X if self.scaling is None else self.scaling.apply(X)
        filled: Floats = dense(rows).astype(np.float64, order="C")
        return filled

    @cached_property
    def _columns(self) -> Floats:
        columns: Floats = dense(self.basis).T.astype(np.float64, order="C")
        return columns

    @cached_property
    def _stored_columns(self) -> tuple[csr_array, Floats]:
        """The transposed basis in CSR (p, r), and ``sum_l |g_l|`` (r,)."""
        columns = canonical(self.basis.T)
        return columns, np.asarray(abs(columns).sum(axis=0))


def _array_of(basis: Floats, centre: Floats, factor: float) -> Floats:
    array: Floats = array_module(basis).empty((basis.shape[0], basis.shape[1] + 2))
    centred = np.subtract(basis, centre, out=array[:, :-2])
    array[:, -2] = squared_norms(centred)
    array[:, -1] = 1.0
    centred *= -2.0
    array *= factor
    return array


# Up to this squared distance from the mean, over 2 sigma^2, rounding changes exponents by less than
# 6e-11. It corresponds to 362 widths.
_COARSE = 2.0**16

# Rows within this squared distance of a basis row share it as a pivot; rounding is then 4e-12.
_SHARED = 2.0**12

# An exponent below the largest of its row by more than this plus 2^10 times the least distance t
# belongs to an activation that is 0 compared with the largest: t exceeds the least by 1000.
_BEYOND = 2.0**20
_BEYOND_BY_DISTANCE = 2.0**10

# Rounding of exponents about the mean, as a share of the largest squared distance from it.
_ROUNDING = 2.0**-46

# Number of values of rows or basis rows around a pivot that are held together, 2 MiB.
_HELD_ELEMENTS = 2**18


class Group(NamedTuple):
    """Rows and their near basis rows, relative to a pivot, which is one of these basis rows.

    columns (m,): indices of the basis rows. Activations of the others are 0.
    linear (b, m): ``-(|h|^2 - 2 y h) / (2 sigma^2)``, y a row and h a basis row, both minus the
        pivot.
    norms (b, 1): ``-|y|^2 / (2 sigma^2)``.
    rows (b,).
    """

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    linear: Floats
    norms: Floats


@dataclass(frozen=True, eq=False)
class Pivots:
    """Exponents ``-|x - g|^2 / (2 sigma^2)`` that are exact wherever activations are not 0.

    Relative to the mean m, rounding of an exponent is about ``eps |x - m|^2 / sigma^2``. Relative
    to a pivot, the nearest basis row of some row, m is replaced by the pivot.
    """

    distances: EuclideanDistances

    def spread(self, X: Rows) -> Floats | None:
        """Return ``|g - m|^2 / (2 sigma^2)`` (r,) if rows need pivots; m is 0 for rows in CSR."""
        return self._spread_about_origin if is_csr(X) else self._spread_about_mean

    @cached_property
    def _spread_about_mean(self) -> Floats | None:
        spread = -self.distances.offsets
        return spread if spread.max() > _COARSE else None

    @cached_property
    def _spread_about_origin(self) -> Floats | None:
        spread = -self.distances.factor * squared_norms(self.distances.basis)
        if not self.distances.in_csr:
            # Every distance contains the square of the mean, which cancels.
            spread[:] = spread.max()
        return spread if spread.max() > _COARSE else None

    def refine(self, X: Rows, exponents: Floats, spread: Floats) -> None:
        """Correct exponents (b, r) of rows in place where they are not exact; see `spread`."""
        nearest = exponents.argmax(axis=1)
        largest = exponents[np.arange(len(exponents)), nearest]
        # Exponentials of farther rows are 0, or are shifted by `RadialFeatures`. NaN stays.
        farthest = _COARSE + _ROUNDING * spread.max()
        near = (largest > -farthest) & (largest < np.inf)
        coarse = np.flatnonzero(near & (spread[nearest] > _COARSE))
        for group in self.groups(X, exponents, spread, coarse):
            places = np.ix_(group.rows, group.columns)
            exponents[places] = group.linear + group.norms

    def groups(
        self, X: Rows, exponents: Floats, spread: Floats, places: NDArray[np.intp]
    ) -> Iterator[Group]:
        """Yield the rows of X at `places` in groups; their exponents (b, r) are finite."""
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
        size = self._n_held(self.distances.basis)
        for start in range(0, len(columns), size):
            some = slice(start, start + size)
            h = _less(self._basis_rows(columns[some]), origin)
            linear[:, some] = squared_norms(h) - 2.0 * _products(y, h)
        linear *= self.distances.factor
        return linear, self.distances.factor * squared_norms(y)[:, None]

    def _scaled(self, X: Rows) -> Rows:
        scaling = self.distances.scaling
        rows = X if scaling is None else scaling.apply(X)
        if self.distances.in_csr:
            return csr_array(rows, dtype=np.float64)
        return np.asarray(dense(rows), dtype=np.float64)

    def _basis_rows(self, places: NDArray[np.intp]) -> Rows:
        rows = self.distances.basis[places]
        return rows if self.distances.in_csr else dense(rows)

    def _n_held(self, rows: Rows) -> int:
        """Return the number of rows that are held in memory together."""
        row_values = mean_stored_values(rows) if self.distances.in_csr else rows.shape[1]
        return max(1, int(_HELD_ELEMENTS / max(1.0, row_values)))


def _less(rows: Rows, origin: Rows) -> Rows:
    """Return rows (b, p) minus one row (1, p)."""
    if not is_csr(origin):
        return rows - origin
    if not origin.nnz:
        return rows
    n_rows = rows.shape[0]
    values, columns = np.tile(origin.data, n_rows), np.tile(origin.indices, n_rows)
    starts = np.arange(0, len(values) + 1, origin.nnz)
    return rows - csr_array((values, columns, starts), shape=rows.shape)


def _products(y: Rows, h: Rows) -> Floats:
    return (y @ h.T).toarray() if is_csr(y) else row_products(y, h)


def float_rows(basis: ArrayLike | Rows) -> Rows:
    """Return the rows of a basis, float64."""
    if is_csr(basis):
        return basis.astype(np.float64, copy=False)
    return basis if gpu_of(basis) is not None else np.asarray(basis, dtype=np.float64)


def placed(basis: Rows, scaling: Scaling | None) -> tuple[Rows, Scaling | None]:
    """Return a scaled basis, float64, and its scaling on the GPU of the task.

    Without a GPU, or with a basis in CSR, both stay on the host, and so do blocks of rows.
    """
    if active_gpu() is None or is_csr(basis):
        return basis, scaling
    return to_device(basis), None if scaling is None else scaling.on_device()
