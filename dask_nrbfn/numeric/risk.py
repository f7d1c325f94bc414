"""Fitting error, spectral risk and their bounds, computed from moments."""

from dataclasses import dataclass

import numpy as np

from dask_nrbfn.numeric.device import to_host
from dask_nrbfn.numeric.products import times_symmetric
from dask_nrbfn.numeric.ridge import RidgeSystem
from dask_nrbfn.numeric.types import Floats


@dataclass(frozen=True)
class ErrorAndRisk:
    """Fitting error and spectral risk of weights on the training rows.

    fitting_error: eps >= 1: 1 plus the ratio of the squared norms of the residuals and of the
        scores (hu-nrbfn, Definition 7).
    spectral_risk: gamma >= 1 (hu-nrbfn, Definition 5).
    objective: ``eps + alpha gamma - 1``, which the ridge minimizes (hu-nrbfn, Theorem 17). The norm
        of another penalty replaces the norm of the weights in gamma. A penalty matrix and locality
        each add a term.
    """

    fitting_error: float
    spectral_risk: float
    objective: float


@dataclass(frozen=True)
class RiskRange:
    """Smallest and largest spectral risk; ``most`` is None if no finite number bounds it."""

    least: float
    most: float | None


@dataclass(frozen=True)
class SpectralBounds:
    """Fitting error and spectral risk of one fit, and their bounds.

    absolute_error: f, squared norm of the residuals (hu-nrbfn, Definition 6).
    absolute_risk: squared norm of the weights (hu-nrbfn, Definition 4).
    absolute_objective: g, ``f + alpha trace(gram) absolute_risk`` (hu-nrbfn, eq. 43), with the norm
        of the penalty and the term of locality as in `ErrorAndRisk`.
    rank: rank of the gram matrix in float64, 0 ... r.
    attainable: smallest and largest spectral risk of any targets and penalty on these rows.
    """

    relative: ErrorAndRisk
    absolute_error: float
    absolute_risk: float
    absolute_objective: float
    rank: int | None
    attainable: RiskRange | None


def error_and_risk(weights: Floats, system: RidgeSystem, alpha: float) -> ErrorAndRisk:
    """Return the fitting error and spectral risk of weights on the summed rows.

    The norm of the fit is ``|Phi weights'|_F^2 = sum(weights gram * weights)``, so no pass over the
    rows is needed. ``2 q r^2`` flops and a matrix like weights. If the fit is 0, as for a constant
    target, error and risk are 1.
    """
    return _Norms.of(weights, system, alpha).relative(alpha)


def spectral_bounds(
    weights: Floats, system: RidgeSystem, alpha: float, *, eigenvalues: Floats | None
) -> SpectralBounds:
    """Return the error and risk of weights, and their bounds.

    eigenvalues: `gram_eigenvalues` of gram, independent of alpha. None: rank and bounds are None.

    ``2 q r^2`` flops, without the eigenvalues, which take ``4 r^3 / 3``.
    """
    norms = _Norms.of(weights, system, alpha)
    return SpectralBounds(
        relative=norms.relative(alpha),
        absolute_error=norms.residual,
        absolute_risk=norms.weights,
        absolute_objective=norms.residual + norms.penalized,
        rank=None if eigenvalues is None else _numerical_rank(eigenvalues),
        attainable=None if eigenvalues is None else _attainable_risk(eigenvalues),
    )


def gram_eigenvalues(gram: Floats) -> Floats:
    """Return the ascending eigenvalues of a gram matrix, ``4 r^3 / 3`` flops and a copy of it."""
    # numpy releases the interpreter lock, scipy does not.
    return to_host(np.linalg.eigvalsh(gram))


def _numerical_rank(eigenvalues: Floats) -> int:
    """Return the number of eigenvalues (r,) of a gram matrix that exceed their rounding error.

    This can be less than the rank of Phi: squaring loses singular values below about 1e-8 of the
    largest.
    """
    rounding = len(eigenvalues) * np.finfo(np.float64).eps * float(eigenvalues[-1])
    return int(np.count_nonzero(eigenvalues > rounding))


def _attainable_risk(eigenvalues: Floats) -> RiskRange:
    """Return the range of the spectral risk for any target and any penalty.

    ``trace / largest <= gamma <= trace / smallest`` (hu-nrbfn, eq. 21, Propositions 8 and 16).
    There is no upper bound if the gram matrix is singular in float64.
    """
    trace = float(eigenvalues.sum())
    most = None
    if _numerical_rank(eigenvalues) == len(eigenvalues):
        most = trace / float(eigenvalues[0])
    return RiskRange(trace / float(eigenvalues[-1]), most)


@dataclass(frozen=True)
class _Norms:
    """Squared norms of the residuals, the fit and the weights, and the trace of gram.

    `penalized` is the sum of all terms of the ridge.
    """

    residual: float
    fit: float
    weights: float
    penalized: float
    trace: float

    @classmethod
    def of(cls, weights: Floats, system: RidgeSystem, alpha: float) -> "_Norms":
        """Return the norms of weights (q, r) on the summed rows."""
        fit = _squared_norm(weights, system.gram)
        # Rounding must not make a perfect fit better than perfect.
        crossed = 2.0 * float(np.sum(weights * system.cross))
        return cls(
            residual=max(system.target_norm - crossed + fit, 0.0),
            fit=fit,
            weights=float(np.sum(weights**2)),
            penalized=sum(factor * _squared_norm(weights, P) for factor, P in system.terms(alpha)),
            trace=float(np.trace(system.gram)),
        )

    def relative(self, alpha: float) -> ErrorAndRisk:
        """Return error, risk and objective over the norm of the fit."""
        if self.fit == 0:
            return ErrorAndRisk(1.0, 1.0, alpha)
        error = self.residual / self.fit + 1.0
        objective = error - 1.0 + self.penalized / self.fit
        return ErrorAndRisk(error, self.weights * self.trace / self.fit, objective)


def _squared_norm(weights: Floats, P: Floats) -> float:
    """Return ``tr(W P W')`` for a matrix (r, r), or a diagonal (r,); 0 times infinity is 0."""
    if P.ndim == 2:
        return float(np.sum(times_symmetric(weights, P) * weights))
    kept = np.isfinite(P)
    return float(np.sum(weights[:, kept] ** 2 * P[kept]))
