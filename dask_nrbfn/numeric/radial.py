"""Radial basis functions: the activations of rows."""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_nrbfn.numeric.device import active_gpu, array_module, beside, to_host
from dask_nrbfn.numeric.distances import (
    CityBlockDistances,
    EuclideanDistances,
    Pivots,
    SquaredDistances,
    distances_from,
    placed,
)
from dask_nrbfn.numeric.kernels import FARTHEST, Kernel, distances_in_place, kernel_named
from dask_nrbfn.numeric.products import over_strips, row_products
from dask_nrbfn.numeric.rows import Rows, is_csr, with_values
from dask_nrbfn.numeric.scaling import Scaling
from dask_nrbfn.numeric.types import Floats

# If the sum of a row is above this, all exponentials above 1e-200 of the sum are exact: float64
# goes down to 1e-324.
_LEAST_SUM = 1e-100

# Distance in widths below which a row and a basis row differ only by rounding.
_LEAST_DISTANCE = 1e-7

# Least exponent of rows that need a pivot. For farther rows the mean is as exact.
_FARTHEST_PIVOT = -1e30


class Scratch:
    """Memory for the centred rows of blocks of at most `n_rows` rows; rows in CSR need none.

    `xp` is the `array_module` of the basis.
    """

    def __init__(self, n_rows: int, n_columns: int, *, xp: Any = np) -> None:
        self._shape = (n_rows, n_columns + 2)
        self._xp = xp
        self._space: Floats = np.empty((0, 0))

    def of(self, X: Rows) -> Floats | None:
        """Return the scratch memory of a block (b, p), float64 (b, p + 2)."""
        if is_csr(X):
            return None
        if not self._space.size:
            self._space = self._xp.empty(self._shape)
        return self._space[: X.shape[0]]


class Near(NamedTuple):
    """How distances to the nearest basis row are measured.

    kept (r,) masks the basis rows that count; None: all. second: the distance is that to the second
    nearest, because the nearest is the centre of a cluster to which the row belongs.
    """

    kept: NDArray[np.bool_] | None = None
    second: bool = False

    def distances(self, exponents: Floats) -> Floats:
        """Return the distances (b,) for exponents ``-t^2 / 2``."""
        own = exponents if self.kept is None else exponents[:, self.kept]
        xp = array_module(own)
        if self.second and own.shape[1] > 1:
            largest = xp.partition(own, -2, axis=1)[:, -2]
        else:
            largest = own.max(axis=1)
        return xp.sqrt(xp.maximum(-2.0 * largest, 0.0))  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class RadialFeatures:
    """The r radial basis functions of one basis and width; rows, basis or both may be in CSR.

    The kernel is a function of ``t = d / sigma`` with d the distance of a row x to a basis row g;
    the Gaussian kernel is ``exp(-t^2 / 2)``. Normalized activations are divided by their sum over
    all basis rows (hu-nrbfn, Algorithm 2, steps 6 and 7); plain ones are not.

    If a row is so far from the basis that its exponentials underflow, the largest exponent is
    subtracted first; ``|x|^2`` cancels and is left out. If the basis spans hundreds of widths,
    exponents are computed relative to a near basis row, see `Pivots`.

    Results have the same bits with any number of threads.
    """

    basis: Rows
    width: float
    scaling: Scaling | None
    kernel: str
    normalized: bool
    _distances: SquaredDistances

    @classmethod
    def from_basis(
        cls,
        basis: ArrayLike | Rows,
        width: float,
        scaling: Scaling | None = None,
        *,
        kernel: str = "gaussian",
        normalized: bool = True,
    ) -> Self:
        """Return the radial basis functions of a basis and a width above 0."""
        distances = distances_from(basis, scaling, -0.5 / width**2, l1=kernel_named(kernel).l1)
        return cls(distances.basis, float(width), scaling, kernel, normalized, distances)

    @property
    def _kernel(self) -> Kernel:
        return kernel_named(self.kernel)

    @property
    def l1(self) -> bool:
        """Whether distances are l1 distances; otherwise they are Euclidean."""
        return self._kernel.l1

    @property
    def n_basis(self) -> int:
        """Number of basis rows r."""
        return int(self.basis.shape[0])

    @property
    def xp(self) -> Any:
        """The array module of activations: numpy, or CuPy on a GPU."""
        return array_module(self.basis)

    def on_device(self) -> Self:
        """Return the functions with their basis on the GPU of the task.

        Without a GPU, with a basis in CSR or if rows need `Pivots`, the functions stay on the host.
        """
        pivots = self._pivots
        if active_gpu() is None or is_csr(self.basis):
            return self
        if pivots is not None and pivots.spread(self.basis) is not None:
            return self
        return self._with_basis(*placed(self.basis, self.scaling))

    def at(self, places: NDArray[Any]) -> Self:
        """Return the functions of the basis rows at `places`, indices or bool (r,)."""
        return self._with_basis(self.basis[places], self.scaling)

    def _with_basis(self, basis: Rows, scaling: Scaling | None) -> Self:
        return type(self).from_basis(
            basis, self.width, scaling, kernel=self.kernel, normalized=self.normalized
        )

    def between_basis_rows(self) -> Floats:
        """Return the kernel between the basis rows, float64 (r, r); ``2 r^2 p`` flops."""
        distances = replace(self._distances, scaling=None)
        return replace(self, _distances=distances, normalized=False).activations(self.basis)

    def activations(
        self,
        X: Rows,
        *,
        factors: Floats | None = None,
        squared: Floats | None = None,
        out: Floats | None = None,
        scratch: Floats | None = None,
    ) -> Floats:
        """Return the activations times row factors; normalized ones of a row sum to 1, (b, r).

        squared (b, r): squared distances of the rows from the basis, if they are known already.
        out, scratch (b, p + 2): memory for the result and for centred rows, see `Scratch`.

        ``2 b r p + 4 b r`` flops and, without `out`, ``8 b r`` bytes.
        """
        X = beside(X, self.basis)
        factors = beside(factors, self.basis)
        Phi = self._exponents(X, squared=squared, out=out, scratch=scratch)

        def normalize(strip: slice) -> None:
            part = Phi[strip]
            totals = self._exponentials_in_place(X, part, strip.start)
            if factors is not None:
                part *= factors[strip, None] / totals
            elif self.normalized:
                part *= 1.0 / totals

        over_strips(normalize, Phi)
        return Phi

    def weighted_sums(
        self,
        X: Rows,
        weights: Floats,
        *,
        buffer: Floats | None = None,
        scratch: Floats | None = None,
        distances: Floats | None = None,
    ) -> Floats:
        """Return ``activations(X) @ weights.T`` (b, K); buffer and scratch are overwritten.

        distances (b,): memory for the distances to the nearest basis row, in widths.
        """
        X = beside(X, self.basis)
        weights = beside(weights, self.basis)
        exponents = self._exponents(X, out=buffer, scratch=scratch)

        def exponentials(strip: slice) -> Floats:
            if distances is not None:
                distances[strip] = Near().distances(exponents[strip])
            return self._exponentials_in_place(X, exponents[strip], strip.start)

        totals = over_strips(exponentials, exponents)
        sums = row_products(exponents, weights)
        sums /= np.concatenate(totals)
        return sums

    def nearest(self, X: Rows, near: Near) -> Floats:
        """Return the distances of rows to the nearest basis row, in widths, (b,)."""
        return to_host(near.distances(self._exponents(beside(X, self.basis))))

    def slopes(self, X: Rows) -> Floats:
        """Return the derivatives of plain activations by half the squared distance, float64 (b, r).

        The gradient of an activation by the scaled row x is its slope times ``x - g``. Where x = g
        the slope is 0, even if the kernel has no derivative there.
        """
        slope = self._kernel.slope
        assert slope is not None
        t = distances_in_place(self._exponents(X))
        t = np.minimum(t, FARTHEST, out=t)
        met = t < _LEAST_DISTANCE
        t[met] = 1.0
        slopes = 2.0 / self.width**2 * slope(t)
        slopes[met] = 0.0
        return slopes

    def _exponents(
        self,
        X: Rows,
        *,
        squared: Floats | None = None,
        out: Floats | None = None,
        scratch: Floats | None = None,
    ) -> Floats:
        """Return ``-t^2 / 2``, float64 (b, r), exact wherever activations are not 0."""
        if squared is None:
            exponents = self._distances.squared(X, out=out, scratch=scratch)
        else:
            exponents = np.multiply(squared, self._distances.factor, out=out)
        pivots = self._pivots
        if pivots is None:
            return exponents
        spread = pivots.spread(X)
        if spread is None:
            return exponents

        def refine(strip: slice) -> None:
            pivots.refine(X[strip], exponents[strip], spread)

        over_strips(refine, exponents)
        return exponents

    @cached_property
    def _pivots(self) -> Pivots | None:
        distances = self._distances
        return Pivots(distances) if isinstance(distances, EuclideanDistances) else None

    def _exponentials_in_place(self, X: Rows, exponents: Floats, start: int) -> Floats:
        """Replace exponents of the rows from `start` by exponentials; return divisors (b, 1)."""
        exponents = self._kernel.logarithms_in_place(exponents)
        np.exp(exponents, out=exponents)
        if not self.normalized:
            return array_module(exponents).ones((len(exponents), 1))  # type: ignore[no-any-return]
        sums: Floats = exponents.sum(axis=1, keepdims=True)
        far = np.flatnonzero(~(sums[:, 0] >= _LEAST_SUM))
        if len(far):
            shifted = self._shifted_exponentials(X[start + far])
            exponents[far] = shifted
            sums[far] = shifted.sum(axis=1, keepdims=True)
        return sums

    def _shifted_exponentials(self, X: Rows) -> Floats:
        """Return the kernel of rows (b, p) over its largest value in each row, float64 (b, r)."""
        if isinstance(self._distances, CityBlockDistances):
            shifted = self._distances.shifted_logarithms(X)
            return np.exp(shifted, out=shifted)
        pivots = self._pivots
        assert pivots is not None
        spread = pivots.spread(X)
        if spread is None:
            return self._shifted_about_the_mean(X, pivots.distances)
        rough = self._distances.squared(X)
        beyond = ~(rough.min(axis=1) > _FARTHEST_PIVOT)
        shifted = np.zeros_like(rough)
        if beyond.any():
            shifted[beyond] = self._shifted_about_the_mean(X[beyond], pivots.distances)
        for group in pivots.groups(X, rough, spread, np.flatnonzero(~beyond)):
            logarithms = self._kernel.shifted_logarithms(
                partial(_subtract_largest, group.linear),
                partial(_gaps, group.linear, group.norms, 1.0),
            )
            shifted[np.ix_(group.rows, group.columns)] = np.exp(logarithms)
        return shifted

    def _shifted_about_the_mean(self, X: Rows, distances: EuclideanDistances) -> Floats:
        rows = distances.scaled(X)
        ones = array_module(rows).ones((rows.shape[0], 1))
        shifted = self._kernel.shifted_logarithms(
            lambda: _subtract_largest(distances.linear(rows, ones)),
            lambda: _gaps_about_the_mean(rows, distances),
        )
        return np.exp(shifted, out=shifted)


def _gaps_about_the_mean(rows: Rows, distances: EuclideanDistances) -> tuple[Floats, Floats]:
    """Return the `_gaps` of scaled rows (b, p)."""
    # Rows are divided by their largest coordinate, so that no square overflows.
    units = _largest(rows)
    units[units == 0] = 1.0
    divided = _divided(rows, units)
    norms = distances.norms(divided, 1.0 / units)
    linear = distances.linear(divided, 1.0 / units)
    return _gaps(linear, norms * distances.factor, units)


def _subtract_largest(linear: Floats) -> Floats:
    """Return ``(e^2 - t^2) / 2``, in place, with e the minimum of t in each row, (b, r)."""
    linear -= linear.max(axis=1, keepdims=True)
    return linear


def _gaps(linear: Floats, norms: Floats, units: Floats | float) -> tuple[Floats, Floats]:
    """Return ``e - t`` and t, at most `FARTHEST`, with e the minimum of t in each row, (b, r).

    ``-t^2 / 2`` is ``linear / units + norms`` times the square of the units.
    """
    t = distances_in_place(linear / units + norms)
    # (e^2 - t^2) / (e + t), in which |x|^2 cancels before it is rounded.
    gaps = _subtract_largest(linear)
    gaps /= 0.5 * (t + t.min(axis=1, keepdims=True))
    with np.errstate(over="ignore"):
        t *= units
    return gaps, np.minimum(t, FARTHEST, out=t)


def _largest(rows: Rows) -> Floats:
    """Return the largest magnitude of each row, float64 (b, 1)."""
    largest = abs(rows).max(axis=1)
    if is_csr(rows):
        largest = largest.toarray()
    return np.reshape(largest, (-1, 1))


def _divided(rows: Rows, units: Floats) -> Rows:
    """Return each row divided by its unit (b, 1)."""
    if not is_csr(rows):
        return rows / units
    return with_values(rows, rows.data / np.repeat(units[:, 0], np.diff(rows.indptr)))
