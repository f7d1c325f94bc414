"""Output weights from moments, and the condition of their systems."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import IllConditionedError
from dask_nrbfn.numeric.device import beside, to_host
from dask_nrbfn.numeric.moments import Moments, mirror_in_place, packed_size
from dask_nrbfn.numeric.penalties import Ridge, RidgeTerms, penalty_named
from dask_nrbfn.numeric.products import (
    add_products,
    factor_in_place,
    frobenius_norm,
    inverse_products,
    row_products,
    solve_in_place,
    times_symmetric,
)
from dask_nrbfn.numeric.targets import Targets
from dask_nrbfn.numeric.types import Floats

Value = TypeVar("Value")
Result = TypeVar("Result")

# Reciprocal conditions, in units of float64's eps. Rounding the gram matrix changes the weights by
# 22 % at 0.5, 2 % at 5, 0.2 % at 50, and 0.02 % at 500, where alpha is 1e-13; within a factor of
# five the same for iris, wdbc, wine, digits, MNIST and drawn tables of 17 to 2,000 basis rows. Far
# below 1 the success of a factorization is chance, and test errors double. The highest of 2,000
# systems with a repeated column was 1.7.
SINGULAR = 3 * float(np.finfo(np.float64).eps)
ILL_CONDITIONED = 10 * float(np.finfo(np.float64).eps)

# With at least this alpha a system without another penalty is never singular: rounding changes the
# eigenvalues of gram by about r eps times its trace.
_SURELY_REGULAR = 1e-11

# Number of rows of matrices that are added at a time.
_ADDED_ROWS = 64

# A ridge in addition to a penalty that is a matrix, relative to the trace of gram. Without it the
# matrix of a wide kernel between basis rows is singular in float64. A ridge relative to the trace
# of the penalty would change the results of narrow kernels.
JITTER = 1e-13

# Random vectors and steps of inverse iteration. With one vector the least eigenvalue may be wrong
# by a factor of ten, with four hardly ever. The second step corrects vectors that have only a small
# part in the direction of its eigenvector.
_PROBES = 4
_STEPS = 2


class Each(Protocol):
    """A function like `map`: yields ``step(value)`` for every value in order, maybe in parallel."""

    def __call__(  # noqa: D102
        self, step: Callable[[Value], Result], values: Sequence[Value], /
    ) -> Iterable[Result]: ...


class Locality(NamedTuple):
    """A second penalty of a ridge, R (r, r) on the differences between the scores of neighbours.

    Its strength is relative to the trace of gram, as alpha is.
    """

    strength: float
    matrix: Floats

    def keep(self, kept: NDArray[np.bool_]) -> "Locality":
        """Return the locality of selected basis rows."""
        return self._replace(matrix=_among(self.matrix, kept))

    def factor(self, gram: Floats, penalty: Floats | None) -> float:
        """Return ``strength trace(gram) r / trace(R)`` of kept basis rows; 0 if R is 0."""
        own = self.matrix.diagonal()
        if penalty is not None and penalty.ndim == 1:
            own = np.where(np.isfinite(penalty), own, np.inf)
        if not own[np.isfinite(own)].any():
            return 0.0
        return self.strength * penalty_unit(own, gram)


@dataclass(frozen=True, eq=False)
class RidgeSystem:
    """The sums from which weights and intercept are solved, and the terms of the ridge.

    gram (r, r) and cross (q, r) are ``Phi' Phi`` and ``T' Phi`` minus the means; `penalty` is P (r,
    r) or its diagonal, None for I; basis rows where it is infinite are left out, with weight 0.
    `directions` (r, J) span the weights, only if P is I and without locality. gram and a full P can
    be on a GPU; the other arrays are on the host. `mean_share` is the share of a row of weight 1 in
    the means if activations are centred, else 0.

    The weights at alpha are ``cross (gram + alpha trace(gram) I)^-1`` (hu-nrbfn, Algorithm 2, step
    9, and eq. 15). Another P replaces I and is multiplied by ``r / trace(P)``; `JITTER` is added to
    a full P. Locality adds ``strength trace(gram) r / trace(R) R``.
    """

    gram: Floats
    cross: Floats
    target_squares: Floats
    target_means: Floats
    activation_means: Floats
    penalty: Floats | None = None
    locality: Locality | None = None
    directions: Floats | None = None
    mean_share: float = 0.0

    @classmethod
    def of(cls, moments: Moments, targets: Targets, *, normalized: bool) -> Self:
        """Return the system of moments of normalized activations, which sum to 1, or plain ones."""
        sums = moments.gram(), moments.products, moments.target_products
        return cls.of_sums(*sums, targets=targets, normalized=normalized)

    @classmethod
    def of_sums(
        cls,
        gram: Floats,
        products: Floats,
        target_products: Floats,
        *,
        targets: Targets,
        normalized: bool,
    ) -> Self:
        """Return the system of the sums of `Moments`; the full gram matrix is overwritten.

        Class indicators are not centred. With centred targets the network has an intercept without
        a penalty: normalized activations contain it, plain activations are centred too, without
        another pass by ``Phi' Phi - n m m'`` and ``T' Phi - n t m'`` with the means m of
        activations and t of targets.
        """
        cross, activation_sums = products[1:].copy(), products[0]
        squares = target_products.diagonal()[1:].copy()
        target_means, activation_means = np.zeros(len(cross)), np.zeros(len(gram))
        weight, mean_share = float(target_products[0, 0]), 0.0
        if targets.centred and weight:
            target_means = target_products[0, 1:] / weight
            squares = np.maximum(squares - weight * target_means**2, 0.0)
            add_products(cross, -target_means[None], activation_sums[None])
            if not normalized:
                activation_means, mean_share = activation_sums / weight, 1.0 / weight
                row = beside(activation_means[None], gram)
                add_products(gram, -weight * row, row)
                # Both triangles are rounded differently.
                mirror_in_place(gram)
        means = target_means, activation_means
        return cls(gram, cross, squares, *means, mean_share=mean_share)

    def with_ridge(self, ridge: Ridge, terms: RidgeTerms) -> Self:
        """Return the system with what a ridge adds to its sums; alpha is given to each solve."""
        locality, directions = None, None
        if ridge.locality:
            assert terms.locality is not None
            locality = Locality(ridge.locality, terms.locality())
        if ridge.components is not None:
            assert terms.directions is not None
            every = np.ones(len(self.gram), dtype=np.bool_)
            directions = terms.directions(every)[:, : ridge.components]
        penalty = penalty_named(ridge.penalty).of(terms)
        return replace(self, penalty=penalty, locality=locality, directions=directions)

    @property
    def target_norm(self) -> float:
        """``|T|_F^2``; for classes, the weight of all rows."""
        return float(self.target_squares.sum())

    def solve(self, alpha: float) -> "RidgeSolution":
        """Return the weights at `alpha`, in the memory of `gram`; refuse a singular system."""
        if self.directions is None:
            (solution,) = self.path([alpha], in_place=True)
        else:
            sizes = [self.directions.shape[1]]
            (solution,) = solve_components(
                self.gram, self.cross, self.directions, sizes=sizes, alphas=[alpha]
            )
        if solution is None:
            raise self.singular([alpha], in_place=True)
        return solution

    def path(
        self,
        alphas: Sequence[float],
        *,
        each: Each = map,
        estimated: bool = True,
        in_place: bool = False,
    ) -> "Iterator[RidgeSolution | None]":
        """Yield the weights at every alpha, whatever the directions; None for a singular system.

        With `estimated` the condition is estimated even if alpha alone keeps the system regular;
        else alpha, a lower bound, is returned. `in_place` solves in the memory of `gram`, whose
        values are then put back, so `each` must solve one system at a time.

        One factorization for each alpha. At r = 3,000 thirteen factorizations take a third of the
        time of one eigendecomposition. LAPACK's estimate of the condition begins with a constant
        vector, which is orthogonal to the difference of two equal columns, and was 500 times too
        high.
        """
        penalty = self.penalty
        if penalty is not None and penalty.ndim == 1 and not (kept := np.isfinite(penalty)).all():
            path = self.keep(kept).path(alphas, each=each, estimated=estimated, in_place=in_place)
            yield from (solution and solution.spread(kept) for solution in path)
            return
        in_place = in_place and self.locality is None and (penalty is None or penalty.ndim == 1)

        def solve(alpha: float) -> RidgeSolution | None:
            with _restored(self.gram) if in_place else nullcontext(self.gram.copy()) as penalized:
                for factor, P in self.terms(alpha):
                    _add_scaled(penalized, factor, P)
                if penalty is None and not estimated and alpha >= _SURELY_REGULAR:
                    regular = factor_in_place(penalized)
                    return _solved(penalized, self.cross, condition=alpha) if regular else None
                norm = frobenius_norm(penalized)
                factored = factor_in_place(penalized)
                return _solution(penalized, norm, self.cross) if factored else None

        yield from each(solve, alphas)

    def factored(self, alpha: float) -> "RidgeFactor":
        """Return the factor at an alpha with a solution; the values of `gram` are lost."""
        penalty = self.penalty
        if penalty is not None and penalty.ndim == 1 and not (kept := np.isfinite(penalty)).all():
            return replace(self.keep(kept).factored(alpha), kept=kept)
        matrix, Q = self.gram, None
        if self.directions is None:
            for factor, P in self.terms(alpha):
                _add_scaled(matrix, factor, P)
        else:
            Q, matrix = _within(matrix, self.directions)
            matrix.ravel()[:: len(Q) + 1] += alpha * float(np.trace(self.gram))
        regular = factor_in_place(matrix)
        assert regular
        return RidgeFactor(matrix, self.activation_means, self.mean_share, Q)

    def ridge(self, alpha: float) -> Floats:
        """Return the diagonal (r,), or the matrix (r, r), that is added to the gram matrix."""
        terms = self.terms(alpha)
        n_axes = max(P.ndim for _, P in terms)
        ridge = np.zeros(self.gram.shape[:n_axes])
        for factor, P in terms:
            _add_scaled(ridge, factor, P)
        return ridge

    def terms(self, alpha: float) -> list[tuple[float, Floats]]:
        """Return the terms of the ridge: factors with matrices (r, r) or diagonals (r,)."""
        gram, penalty = self.gram, self.penalty
        trace, ones = float(np.trace(gram)), np.ones(len(gram))
        if penalty is None:
            terms = [(alpha * trace, ones)]
        else:
            terms = [(JITTER * trace, ones)] if penalty.ndim == 2 else []
            terms.append((alpha * penalty_unit(penalty, gram), penalty))
        if self.locality is not None:
            terms.append((self.locality.factor(gram, penalty), self.locality.matrix))
        return terms

    def singular(
        self, alphas: Sequence[float], *, option: str = "alpha", in_place: bool = False
    ) -> IllConditionedError:
        """Return the error about a system that is singular at all tried penalties of `option`.

        It names the smallest sufficient power of ten; each tried power costs a factorization.
        """
        larger = [10.0**power for power in range(-15, 1) if 10.0**power > max(alphas)]
        path = replace(self, cross=self.cross[:0]).path(larger, in_place=in_place)
        enough = (alpha for alpha, found in zip(larger, path, strict=True) if found is not None)
        least, r = next(enough, None), len(self.gram)
        singular = f"the {r:,} x {r:,} ridge system is singular in float64"
        if least is None:
            return IllConditionedError(
                f"{singular} at every penalty.", "Check the features: they are 0 or not finite."
            )
        tried = ", ".join(f"{alpha:g}" for alpha in alphas)
        return IllConditionedError(
            f"`{option}`={tried} {'is' if len(alphas) == 1 else 'are'} too small: {singular}.",
            f"Use `{option}`={least:g} or more.",
        )

    def squared_residuals(self, weights: Floats) -> Floats:
        """Return the sum of the squared residuals of each target, (q,), for weights (q, r)."""
        fitted = np.sum((times_symmetric(weights, self.gram) - 2.0 * self.cross) * weights, axis=1)
        residuals: Floats = np.maximum(self.target_squares + fitted, 0.0)
        return residuals

    def standardized(self) -> Self:
        """Return the system with targets scaled to mean square 1; targets of 0 stay 0."""
        sizes = np.sqrt(np.where(self.target_squares > 0, self.target_squares, 1.0))
        squares = (self.target_squares > 0).astype(np.float64)
        return replace(self, cross=self.cross / sizes[:, None], target_squares=squares)

    def at(self, places: NDArray[np.int64] | None) -> Self:
        """Return the system of the basis rows at ascending places; None: of all basis rows."""
        return self if places is None else self.keep(np.isin(np.arange(len(self.gram)), places))

    def keep(self, kept: NDArray[np.bool_]) -> Self:
        """Return the system of selected basis rows."""
        if kept.all():
            return self
        penalty = self.penalty
        if penalty is not None:
            penalty = penalty[kept] if penalty.ndim == 1 else _among(penalty, kept)
        return replace(
            self,
            gram=_among(self.gram, kept),
            cross=self.cross[:, kept],
            activation_means=self.activation_means[kept],
            penalty=penalty,
            locality=None if self.locality is None else self.locality.keep(kept),
            directions=None if self.directions is None else self.directions[kept],
        )

    def intercept(self, weights: Floats) -> Floats:
        """Return the intercepts, (..., q), of weights (..., q, r)."""
        intercept: Floats = self.target_means - weights @ self.activation_means
        return intercept


@dataclass(frozen=True, eq=False)
class RidgeSolution:
    """The weights (K, r) of one penalty.

    The condition is an estimate of the least eigenvalue of the penalized matrix over its norm.
    """

    weights: Floats
    reciprocal_condition: float

    def spread(self, kept: NDArray[np.bool_]) -> Self:
        """Return the solution with weights of 0 for the basis rows that are not `kept`, (r,)."""
        weights = np.zeros((len(self.weights), len(kept)))
        weights[:, kept] = self.weights
        return replace(self, weights=weights)


@dataclass(frozen=True, eq=False)
class RidgeFactor:
    """The factor of a penalized matrix A; rows of activations are centred and projected on Q.

    kept (r,): basis rows without an infinite penalty; None: all.
    """

    factor: Floats
    means: Floats
    mean_share: float
    Q: Floats | None = None
    kept: NDArray[np.bool_] | None = None

    def leverages(self, Phi: Floats) -> Floats:
        """Return ``phi' A^-1 phi`` of activations (b, r), plus the share in the means, (b,).

        Times the weight of a row of the system, this is the share of its target in its score.
        """
        kept = Phi if self.kept is None else Phi[:, self.kept]
        centred = np.ascontiguousarray(kept - self.means)
        if self.Q is not None:
            centred = row_products(centred, self.Q)
        return inverse_products(self.factor, centred) + self.mean_share


def _among(matrix: Floats, kept: NDArray[np.bool_]) -> Floats:
    """Return the kept rows and columns of a matrix (r, r)."""
    places = beside(np.flatnonzero(kept), matrix)
    found: Floats = matrix[places[:, None], places]
    return found


@contextmanager
def _restored(matrix: Floats) -> Iterator[Floats]:
    """Give a symmetric matrix (r, r) whose diagonal and upper triangle are put back at the end."""
    diagonal = matrix.diagonal().copy()
    try:
        yield matrix
    finally:
        mirror_in_place(matrix.T)
        np.fill_diagonal(matrix, diagonal)


def _solution(factor: Floats, norm: float, cross: Floats) -> RidgeSolution | None:
    """Return the solution of a factored system of this norm; None if it is singular in float64."""
    condition = _reciprocal_condition(factor, norm)
    return None if condition < SINGULAR else _solved(factor, cross, condition=condition)


def _solved(factor: Floats, cross: Floats, *, condition: float) -> RidgeSolution:
    weights = np.array(cross, dtype=np.float64, order="C")
    solve_in_place(factor, weights)
    return RidgeSolution(weights, condition)


def solve_components(
    gram: Floats,
    cross: Floats,
    directions: Floats,
    *,
    sizes: Sequence[int],
    alphas: Sequence[float],
    each: Each = map,
) -> Iterator[RidgeSolution | None]:
    """Yield the solutions in the spans of the first J independent directions; None if singular.

    With orthonormal columns Q of the same spans the weights are ``cross Q (Q' gram Q + alpha
    trace(gram) I)^-1 Q'``. The Cholesky factor of the largest system contains those of all smaller
    systems as leading blocks, so consecutive solutions of an alpha share one factorization. ``4 r^2
    m`` flops, and ``m^3 / 3`` for each factorization.
    """
    Q, inner = _within(gram, directions)
    within = row_products(cross, Q)
    trace = float(np.trace(gram))
    pairs = zip(alphas, (min(size, len(Q)) for size in sizes), strict=True)
    groups = groupby(pairs, key=lambda pair: pair[0])

    def solve(group: tuple[float, list[int]]) -> list[RidgeSolution | None]:
        alpha, own = group
        penalized = inner.copy()
        penalized.ravel()[:: len(Q) + 1] += alpha * trace
        solutions = _leading_solutions(penalized, within, own)
        return [solutions[size] for size in own]

    for path in each(solve, [(alpha, [size for _, size in group]) for alpha, group in groups]):
        for found in path:
            yield found and replace(found, weights=found.weights @ Q[: found.weights.shape[1]])


def _within(gram: Floats, directions: Floats) -> tuple[Floats, Floats]:
    """Return orthonormal rows Q that span the directions, and ``Q gram Q'`` on the host."""
    Q = np.ascontiguousarray(np.linalg.qr(directions)[0].T)
    placed = beside(Q, gram)
    return Q, to_host(row_products(row_products(placed, gram), placed))


def _leading_solutions(
    penalized: Floats, cross: Floats, sizes: Sequence[int]
) -> dict[int, RidgeSolution | None]:
    """Return the solutions of leading blocks by size; None for a singular block."""
    solutions: dict[int, RidgeSolution | None] = {}
    factor = None
    for size in sorted(set(sizes), reverse=True):
        leading = penalized[:size, :size].copy()
        norm = frobenius_norm(leading)
        if factor is None and factor_in_place(leading):
            factor = leading
        solutions[size] = (
            None
            if factor is None
            else _solution(factor[:size, :size].copy(), norm, cross[:, :size])
        )
    return solutions


def penalty_unit(penalty: Floats, gram: Floats) -> float:
    """Return mu at alpha 1, ``trace(gram) r / trace(P)`` over basis rows that are not left out."""
    diagonal = penalty if penalty.ndim == 1 else to_host(penalty.diagonal())
    kept, own = np.isfinite(diagonal), to_host(gram.diagonal())
    return float(own[kept].sum() * kept.sum() / diagonal[kept].sum())


def _add_scaled(ridge: Floats, factor: float, P: Floats) -> None:
    """Add a matrix (r, r) to one, or a diagonal (r,) to either, times a factor, in place."""
    if P.ndim == 2:
        for start in range(0, len(P), _ADDED_ROWS):
            rows = slice(start, start + _ADDED_ROWS)
            ridge[rows] += factor * beside(P[rows], ridge)
        return
    diagonal = ridge if ridge.ndim == 1 else ridge.ravel()[:: len(ridge) + 1]
    scaled = np.full(len(P), np.inf)
    diagonal += beside(np.multiply(factor, P, out=scaled, where=np.isfinite(P)), ridge)


def _reciprocal_condition(factor: Floats, norm: float) -> float:
    """Return the least eigenvalue of a factored matrix over `norm`, estimated; 0 on overflow."""
    vectors = np.random.default_rng(0).standard_normal((_PROBES, len(factor)))
    lengths = np.linalg.norm(vectors, axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(_STEPS):
            vectors *= norm / lengths[:, None]
            solve_in_place(factor, vectors)
            lengths = np.linalg.norm(vectors, axis=1)
    condition = 1.0 / float(lengths.max())
    return condition if np.isfinite(condition) else 0.0


def solve_bytes(
    n_basis: int,
    n_targets: int,
    *,
    penalty_axes: int = 0,
    locality: bool = False,
    n_components: int = 0,
    in_place: bool = False,
) -> int:
    """Return the peak memory of a solve: packed and full gram, penalized matrix, factor, penalty.

    In place, a tenth is added, because not all memory of reading the sums is free again.
    """
    penalty = n_basis**penalty_axes if penalty_axes else 0
    local = n_basis**2 + packed_size(n_basis) if locality else 0
    sums = packed_size(n_basis) + round((1.1 if in_place else 4) * n_basis**2)
    own = 8 * (sums + penalty + local + 5 * n_basis * (1 + n_targets))
    return own + components_bytes(n_basis, n_components)


def components_bytes(n_basis: int, n_components: int) -> int:
    """Return the bytes that directions add to a solve: two sets of directions, and the systems."""
    return 8 * 4 * n_components * (n_basis + n_components)
