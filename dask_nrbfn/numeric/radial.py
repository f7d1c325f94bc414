"""Distances to the basis and the activations that they become."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_nrbfn.numeric.kernels import FARTHEST, distances_in_place, kernel_named
from dask_nrbfn.numeric.products import row_products
from dask_nrbfn.numeric.scaling import Scaling
from dask_nrbfn.numeric.strips import over_strips

Floats = NDArray[np.float64]

# Exponentials down to 1e-324 exist: those of a row whose sum is above this are exact to the last
# bit wherever they are more than 1e-200 of it.
_LEAST_SUM = 1e-100

# Distances, in widths, below which rounding alone keeps a row from a basis row.
_LEAST_DISTANCE = 1e-7


@dataclass(frozen=True, eq=False)
class RadialFeatures:
    """The r radial basis functions of one basis and width.

    Attributes
    ----------
    basis : float64 (r, p)
    width : float
        The kernel's sigma, in the units of the features.
    scaling : Scaling or None
        Applied to rows; the basis is scaled already.
    kernel : str
        One of `KERNELS`.
    normalized : bool

    Notes
    -----
    The kernel is a function of ``t = d / sigma`` with d the distance of a row x to a basis row g,
    the Gaussian one ``exp(-t^2 / 2)``. Normalized activations are divided by their sum over all
    basis rows (hu-nrbfn, Algorithm 2, steps 6 and 7); plain ones are not.

    The exponents are one product of matrices, with a column of ones and one of ``|x|^2`` beside the
    rows. Where a row is so far from the basis that its exponentials underflow, the largest exponent
    is subtracted first, so that the quotient is defined however far x is; ``|x|^2`` cancels then
    and is left out.

    Every method takes `threads`, those of the elementwise steps; the threads of the products are
    BLAS's own. The elementwise steps have the same bits with any number.

    Examples
    --------
    >>> features = RadialFeatures.from_basis([[0.0], [1.0]], width=1.0)
    >>> features.activations(np.array([[0.5], [1e6]])).round(3)
    array([[0.5, 0.5],
           [0. , 1. ]])
    """

    basis: Floats
    width: float
    scaling: Scaling | None
    kernel: str
    normalized: bool
    _centre: Floats
    _slopes: Floats

    @classmethod
    def from_basis(
        cls,
        basis: ArrayLike,
        width: float,
        scaling: Scaling | None = None,
        *,
        kernel: str = "gaussian",
        normalized: bool = True,
    ) -> Self:
        """Prepare the functions of `basis` (r, p), scaled, and `width` > 0.

        Raises
        ------
        ParameterError
            If there is no such kernel.
        """
        kernel_named(kernel)
        basis = np.asarray(basis, dtype=np.float64)
        centre = basis.mean(axis=0)
        slopes = _distance_factors(basis, centre)
        slopes *= -0.5 / width**2
        return cls(basis, float(width), scaling, kernel, normalized, centre, slopes)

    def at(self, places: NDArray[Any]) -> Self:
        """Return the functions of the basis rows at these places, numbers or bool (r,)."""
        return type(self).from_basis(
            self.basis[places],
            self.width,
            self.scaling,
            kernel=self.kernel,
            normalized=self.normalized,
        )

    def between_basis_rows(self) -> Floats:
        """Return the kernel between the basis rows, float64 (r, r); ``2 r^2 p`` flops."""
        return replace(self, scaling=None, normalized=False).activations(self.basis)

    def activations(
        self,
        X: NDArray[Any],
        *,
        factors: Floats | None = None,
        out: Floats | None = None,
        scratch: Floats | None = None,
        threads: int = 1,
    ) -> Floats:
        """Return the activations, float64 (b, r); normalized ones of a row sum to 1.

        Parameters
        ----------
        X : array (b, p)
        factors : float64 (b,), optional
            What the activations of each row are multiplied by.
        out : float64 (b, r), optional
            Where to put the result, to save allocating it anew for every block.
        scratch : float64 (b, p + 2), optional
            For the centred rows, likewise.
        threads : int

        Notes
        -----
        Costs ``2 b r p + 4 b r`` flops and, without `out`, ``8 b r`` bytes.
        """
        rows, Phi = self._exponents(X, out, scratch, threads)

        def normalize(strip: slice) -> None:
            part = Phi[strip]
            totals = self._exponentials_in_place(rows[strip], part)
            if factors is not None:
                part *= factors[strip, None] / totals
            elif self.normalized:
                part *= 1.0 / totals

        over_strips(normalize, Phi.shape, threads)
        return Phi

    def weighted_sums(
        self,
        X: NDArray[Any],
        weights: Floats,
        *,
        buffer: Floats | None = None,
        scratch: Floats | None = None,
        threads: int = 1,
    ) -> Floats:
        """Return ``activations(X) @ weights.T``, float64 (b, K).

        Parameters
        ----------
        X : array (b, p)
        weights : float64 (K, r)
        buffer : float64 (b, r), optional
            Scratch space, overwritten.
        scratch : float64 (b, p + 2), optional
            For the centred rows, likewise.
        threads : int

        Notes
        -----
        The K sums of normalized activations are divided instead of the r activations.
        """
        rows, exponents = self._exponents(X, buffer, scratch, threads)
        totals = over_strips(
            lambda strip: self._exponentials_in_place(rows[strip], exponents[strip]),
            exponents.shape,
            threads,
        )
        sums = row_products(exponents, weights)
        sums /= np.concatenate(totals)
        return sums

    def slopes(self, X: NDArray[Any], *, threads: int = 1) -> Floats:
        """Return the derivatives of plain activations by half the squared distance, float64 (b, r).

        The gradient of an activation by the scaled row x is its slope times ``x - g``. Where x is g
        that is 0, and the slope is 0 too, also of a kernel that has none there.
        """
        kernel, (_, exponents) = kernel_named(self.kernel), self._exponents(X, None, None, threads)
        t = distances_in_place(exponents)
        met = t < _LEAST_DISTANCE
        t[met] = 1.0
        slopes = 2.0 / self.width**2 * kernel.slope(t)
        slopes[met] = 0.0
        return slopes

    def _exponents(
        self, X: NDArray[Any], out: Floats | None, scratch: Floats | None, threads: int
    ) -> tuple[Floats, Floats]:
        if scratch is None:
            scratch = np.empty((len(X), len(self._centre) + 2))
        rows = _extended_rows(X, self._centre, self.scaling, out=scratch, threads=threads)
        return rows, row_products(rows, self._slopes, out=out)

    def _exponentials_in_place(self, rows: Floats, exponents: Floats) -> Floats:
        """Replace exponents by exponentials; return what to divide each row by, float64 (b, 1).

        Divided so, the activations of far rows are defined too; plain ones are divided by 1.
        """
        exponents = kernel_named(self.kernel).logarithms_in_place(exponents)
        np.exp(exponents, out=exponents)
        if not self.normalized:
            return np.ones((len(exponents), 1))
        sums: Floats = exponents.sum(axis=1, keepdims=True)
        far = np.flatnonzero(~(sums[:, 0] >= _LEAST_SUM))
        if len(far):
            shifted = self._shifted_logarithms(rows[far])
            exponents[far] = np.exp(shifted, out=shifted)
            sums[far] = shifted.sum(axis=1, keepdims=True)
        return sums

    def _shifted_logarithms(self, rows: Floats) -> Floats:
        """Return logarithms of the kernel of which the largest of each row is 0."""
        kernel = kernel_named(self.kernel)
        return kernel.shifted_logarithms(lambda: self._differences(rows), lambda: self._gaps(rows))

    def _differences(self, rows: Floats) -> Floats:
        """Return ``(e^2 - t^2) / 2`` with e the least t of each row, float64 (b, r)."""
        differences: Floats = rows[:, :-1] @ self._slopes[:, :-1].T
        differences -= differences.max(axis=1, keepdims=True)
        return differences

    def _gaps(self, rows: Floats) -> tuple[Floats, Floats]:
        """Return ``e - t`` and t or `FARTHEST`, with e the least t of each row, float64 (b, r)."""
        # In units of the largest coordinate, so that no square overflows.
        units = np.abs(rows[:, :-2]).max(axis=1, keepdims=True)
        units[units == 0] = 1.0
        scaled = rows[:, :-1] / units
        norms = _row_dots(scaled[:, :-1], scaled[:, :-1])[:, None]
        gaps: Floats = scaled @ self._slopes[:, :-1].T
        t = distances_in_place(gaps / units + norms * self._slopes[:, -1])
        # (e^2 - t^2) / (e + t), in which |x|^2 cancels before it is rounded.
        gaps -= gaps.max(axis=1, keepdims=True)
        gaps /= 0.5 * (t + t.min(axis=1, keepdims=True))
        with np.errstate(over="ignore"):
            t *= units
        return gaps, np.minimum(t, FARTHEST, out=t)


@dataclass(frozen=True, eq=False)
class BasisDistances:
    """Euclidean distances between rows and the r rows of one basis.

    Attributes
    ----------
    scaling : Scaling or None
        Applied to rows; the basis is scaled already.

    Notes
    -----
    ``|x|^2 - 2 x g + |g|^2`` about the basis mean, clipped at 0, as one product of matrices with
    the norms as further columns: without the shift the terms cancel for data far from the origin.
    """

    scaling: Scaling | None
    _centre: Floats
    _factors: Floats

    @classmethod
    def from_basis(cls, basis: ArrayLike, scaling: Scaling | None = None) -> Self:
        """Prepare the distances to `basis` (r, p), scaled."""
        basis = np.asarray(basis, dtype=np.float64)
        centre = basis.mean(axis=0)
        return cls(scaling, centre, _distance_factors(basis, centre))

    def squared(self, X: NDArray[Any], *, out: Floats | None = None, threads: int = 1) -> Floats:
        """Return the squared distances, float64 (b, r), of rows X (b, p)."""
        squared = self._products(X, out, threads)
        over_strips(
            lambda strip: np.maximum(squared[strip], 0.0, out=squared[strip]),
            squared.shape,
            threads,
        )
        return squared

    def nearest(self, X: NDArray[Any], *, buffer: Floats | None = None, threads: int = 1) -> Floats:
        """Return the distance of every row X (b, p) from its nearest basis row, float64 (b,)."""
        nearest: Floats = self.squared(X, out=buffer, threads=threads).min(axis=1)
        return np.sqrt(nearest, out=nearest)

    def total(
        self,
        X: NDArray[Any],
        *,
        weights: Floats | None = None,
        nearest: NDArray[np.intp] | None = None,
        buffer: Floats | None = None,
        threads: int = 1,
    ) -> float:
        """Return the sum of all distances between rows X (b, p) and the basis.

        Parameters
        ----------
        X : array (b, p)
        weights : float64 (b,), optional
            What the distances of each row are multiplied by.
        nearest : intp (b,), optional
            Where to put the number of the basis row that is nearest to each row, of several the
            first.
        buffer : float64 (b, r), optional
            Scratch space, overwritten.
        threads : int

        Notes
        -----
        Divided by n r and summed over blocks this is the width of hu-nrbfn, Algorithm 2, step 5.
        """
        products = self._products(X, buffer, threads)

        def total_of(strip: slice) -> float:
            part = products[strip]
            np.maximum(part, 0.0, out=part)
            if nearest is not None:
                part.argmin(axis=1, out=nearest[strip])
            np.sqrt(part, out=part)
            return float(part.sum() if weights is None else part.sum(axis=1) @ weights[strip])

        return sum(over_strips(total_of, products.shape, threads))

    def _products(self, X: NDArray[Any], out: Floats | None, threads: int) -> Floats:
        rows = np.empty((len(X), len(self._centre) + 2))
        _extended_rows(X, self._centre, self.scaling, out=rows, threads=threads)
        return row_products(rows, self._factors, out=out)


def _distance_factors(basis: Floats, centre: Floats) -> Floats:
    """Return what `_extended_rows` multiply to squared distances, float64 (r, p + 2)."""
    factors = np.empty((basis.shape[0], basis.shape[1] + 2))
    centred = np.subtract(basis, centre, out=factors[:, :-2])
    factors[:, -2] = _row_dots(centred, centred)
    factors[:, -1] = 1.0
    centred *= -2.0
    return factors


def _extended_rows(
    X: NDArray[Any], centre: Floats, scaling: Scaling | None, *, out: Floats, threads: int
) -> Floats:
    """Put rows x, scaled and about `centre`, into `out` (b, p + 2), behind them 1 and ``|x|^2``."""

    def extend(strip: slice) -> None:
        centred = out[strip, :-2]
        if scaling is None:
            centred[...] = X[strip]
        else:
            scaling.apply(X[strip], out=centred)
        centred -= centre
        out[strip, -2] = 1.0
        out[strip, -1] = _row_dots(centred, centred)

    over_strips(extend, out.shape, threads)
    return out


def _row_dots(A: Floats, B: Floats) -> Floats:
    dots: Floats = np.einsum("ij,ij->i", A, B)
    return dots
