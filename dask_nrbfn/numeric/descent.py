"""Weights that minimize a loss and a penalty: the sums of a pass over the rows, and the next step.

The next weights depend only on the passes so far, so no other state is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.losses import Loss
from dask_nrbfn.numeric.products import add_products, factor_in_place, row_products, solve_in_place
from dask_nrbfn.numeric.sums import RowSum
from dask_nrbfn.numeric.types import Floats


@dataclass(frozen=True, eq=False)
class LossSums(RowSum):
    """Weighted sums over rows of the loss (A, K) of A models, and its gradient (A, K, r).

    With ``f = Phi W'`` and margins ``m = t f``, t = 1 for rows of the class and -1 for others:
    ``sum_i v_i loss(m_i)`` and ``sum_i v_i t_i loss'(m_i) phi_i``, v the row weights.
    """

    loss: Floats
    gradient: Floats

    @classmethod
    def zeros(cls, n_models: int, n_classes: int, n_basis: int) -> Self:
        """Return the sums of no rows."""
        return cls(np.zeros((n_models, n_classes)), np.zeros((n_models, n_classes, n_basis)))

    @classmethod
    def from_block(
        cls,
        Phi: Floats,
        scores: Floats,
        codes: NDArray[Any],
        loss: Loss,
        *,
        row_weights: Floats | None = None,
    ) -> Self:
        """Return the sums of a block; row weights (b, 1) or (b, A); ``2 b r A K`` flops."""
        _, n_models, n_classes = scores.shape
        signs = np.full((len(codes), 1, n_classes), -1.0)
        signs[np.arange(len(codes)), 0, codes] = 1.0
        margins = scores * signs
        values, slopes = loss.value(margins), loss.slope(margins) * signs
        if row_weights is not None:
            values *= row_weights[:, :, None]
            slopes *= row_weights[:, :, None]
        # The classes of all models, one after another.
        n_weights = n_models * n_classes
        gradient = np.zeros((n_weights, Phi.shape[1]))
        add_products(gradient, slopes.reshape(len(Phi), n_weights), Phi)
        return cls(values.sum(axis=0), gradient.reshape(n_models, n_classes, -1))


# Number of pairs of a step and a change of the gradient that L-BFGS uses.
_MEMORY = 20

# Least share of the decrease predicted by the slope (Nocedal & Wright, section 3.1).
_SUFFICIENT = 1e-4

# Added to the diagonal, as a share of the trace, so that the factorization succeeds.
_FLOOR = 1e-12

# A step that decreases the objective too little is shortened by a factor between these.
_SHORTEST, _LONGEST = 0.1, 0.5


class Point(NamedTuple):
    """Weights, and the objective ``sum_i v_i loss(m_i) + tr(W R W')`` and its gradient there."""

    weights: Floats
    objective: float
    gradient: Floats

    @classmethod
    def of(cls, weights: Floats, loss: Floats, gradient: Floats, ridge: Floats) -> "Point":
        """Return the point of weights from the sums of a pass and the ridge, R or its diagonal.

        A weight with an infinite diagonal stays.
        """
        kept = _finite_diagonal(ridge)
        finite = np.where(np.isfinite(ridge), ridge, 0.0)
        penalized = row_products(weights, finite) if ridge.ndim == 2 else weights * finite
        objective = float(loss.sum() + np.vdot(penalized, weights))
        return cls(weights, objective, (gradient + 2.0 * penalized) * kept)


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """``M = c gram + 2 R``, about the second derivatives of an objective, by its Cholesky factor.

    If c bounds the second derivative of the loss, a step of ``-M^-1 gradient`` never ascends.
    """

    factor: Floats

    @classmethod
    def of(cls, gram: Floats, ridge: Floats, *, curvature: float) -> "Preconditioner":
        """Return M of a gram matrix and a ridge, R or its diagonal; ``r^3 / 3`` flops."""
        matrix = curvature * gram
        diagonal = matrix.ravel()[:: len(matrix) + 1]
        diagonal += _FLOOR * diagonal.sum()
        if ridge.ndim == 2:
            matrix += 2.0 * ridge
        else:
            diagonal += 2.0 * ridge
        left_out = ~_finite_diagonal(ridge)
        matrix[left_out] = matrix[:, left_out] = 0.0
        diagonal[left_out] = 1.0
        factored = factor_in_place(matrix)
        assert factored, "weights were solved with a smaller ridge"
        return cls(matrix)

    def solve(self, right: Floats) -> Floats:
        """Return ``right M^-1``, float64 (q, r); ``2 q r^2`` flops."""
        solved = np.array(right, order="C")
        solve_in_place(self.factor, solved)
        return solved

    def norm(self, gradient: Floats) -> float:
        """Return the norm ``sqrt(tr(G M^-1 G'))`` of a gradient G."""
        return float(np.sqrt(np.vdot(gradient, self.solve(gradient))))


def _finite_diagonal(ridge: Floats) -> NDArray[np.bool_]:
    """Return a mask of the weights that a ridge does not fix at 0, bool (r,)."""
    return np.isfinite(ridge if ridge.ndim == 1 else ridge.diagonal())


def accepted_points(points: Sequence[Point]) -> list[Point]:
    """Return the points whose objective is low enough after the accepted point before them."""
    accepted = [points[0]]
    for point in points[1:]:
        before = accepted[-1]
        slope = np.vdot(before.gradient, point.weights - before.weights)
        if point.objective <= before.objective + _SUFFICIENT * slope:
            accepted.append(point)
    return accepted


def next_weights(points: Sequence[Point], preconditioner: Preconditioner) -> Floats:
    """Return the weights of the next pass, by the points of all passes so far.

    L-BFGS (Nocedal & Wright, *Numerical Optimization*, Algorithm 7.4) of all classes together,
    starting from the inverse of the preconditioner. A step that decreases the objective too little
    is shortened to the minimum of the parabola through both ends.
    """
    accepted = accepted_points(points)
    best, last = accepted[-1], points[-1]
    if last is best:
        return best.weights + _direction(accepted, preconditioner)
    step = last.weights - best.weights
    slope = float(np.vdot(best.gradient, step))
    bend = last.objective - best.objective - slope
    share = _SHORTEST
    if np.isfinite(bend) and bend > 0:
        share = min(max(-slope / (2.0 * bend), _SHORTEST), _LONGEST)
    return np.asarray(best.weights + share * step)


def _direction(accepted: Sequence[Point], preconditioner: Preconditioner) -> Floats:
    """Return the step of L-BFGS from the last accepted point, float64 (q, r)."""
    pairs = _pairs(accepted[-_MEMORY - 1 :])
    direction = -accepted[-1].gradient
    shares = []
    for step, change in reversed(pairs):
        shares.append(np.vdot(step, direction) / np.vdot(step, change))
        direction -= shares[-1] * change
    direction = preconditioner.solve(direction)
    if pairs:
        step, change = pairs[-1]
        direction *= np.vdot(step, change) / np.vdot(change, preconditioner.solve(change))
    for (step, change), share in zip(pairs, reversed(shares), strict=True):
        direction += (share - np.vdot(change, direction) / np.vdot(step, change)) * step
    return direction


def _pairs(accepted: Sequence[Point]) -> list[tuple[Floats, Floats]]:
    """Return steps and changes of the gradient, without pairs that have no curvature."""
    pairs = [
        (after.weights - before.weights, after.gradient - before.gradient)
        for before, after in pairwise(accepted)
    ]
    return [(step, change) for step, change in pairs if np.vdot(step, change) > 0]
