"""Fitting error, spectral risk and their bounds, computed from moments."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.ridge import JITTER, Locality, penalty_unit
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
    """Smallest and largest spectral risk; ``most`` is None without an upper bound."""

    least: float
    most: float | None


@dataclass(frozen=True)
class PerturbationBounds:
    """Upper bounds of error and risk for almost separate classes (hu-nrbfn, Theorem 12).

    noise: bound of xi, the activations across classes relative to the least singular value.
    fitting_error: bound of eps without a penalty (hu-nrbfn, eq. 27).
    spectral_risk: bound of gamma, with or without a penalty (hu-nrbfn, eq. 28 and Theorem 18).
    """

    noise: float
    fitting_error: float
    spectral_risk: float


@dataclass(frozen=True)
class SpectralBounds:
    """Fitting error and spectral risk of one fit, and their bounds.

    absolute_error: f, squared norm of the residuals (hu-nrbfn, Definition 6).
    absolute_risk: squared norm of the weights (hu-nrbfn, Definition 4).
    absolute_objective: g, ``f + alpha trace(gram) absolute_risk`` (hu-nrbfn, eq. 43), with the norm
        of the penalty and the term of locality as in `ErrorAndRisk`.
    rank: rank of the gram matrix in float64, 0 ... r.
    attainable: range of the spectral risk for any target and any penalty.
    ideal: range of the risk for separate classes; None if the classes are not separate.
    perturbed: see `perturbation_bounds`.
    """

    relative: ErrorAndRisk
    absolute_error: float
    absolute_risk: float
    absolute_objective: float
    rank: int | None
    attainable: RiskRange | None
    ideal: RiskRange | None
    perturbed: PerturbationBounds | None


def error_and_risk(
    weights: Floats,
    gram: Floats,
    cross: Floats,
    *,
    target_norm: float,
    alpha: float,
    penalty: Floats | None = None,
    locality: Locality | None = None,
) -> ErrorAndRisk:
    """Return the fitting error and spectral risk of weights on the summed rows.

    weights, gram, cross, alpha, penalty, locality: see `solve_weights`.
    target_norm: ``|T|_F^2`` of these rows; for classes, the sum of the row weights.

    The norm of the fit is ``|Phi weights'|_F^2 = sum(weights gram * weights)``, so no pass over the
    rows is needed. ``2 q r^2`` flops and a matrix like weights. If the fit is 0, as for a constant
    target, error and risk are 1.

    Examples
    --------
    >>> error_and_risk(np.eye(2), np.eye(2) * 3, np.eye(2) * 3, target_norm=6, alpha=0.0)
    ErrorAndRisk(fitting_error=1.0, spectral_risk=2.0, objective=0.0)
    """
    norms = _Norms.of(
        weights, gram, cross, target_norm=target_norm, penalty=penalty, locality=locality
    )
    return norms.relative(float(np.trace(gram)), alpha)


def spectral_bounds(
    weights: Floats,
    gram: Floats,
    cross: Floats,
    *,
    target_norm: float,
    alpha: float,
    penalty: Floats | None = None,
    locality: Locality | None = None,
    class_weights: Floats | None = None,
    eigenvalues: Floats | None = None,
    least_weight: float = 1.0,
) -> SpectralBounds:
    """Return the error and risk of weights, and their bounds.

    weights, gram, cross, target_norm, alpha, penalty, locality: see `error_and_risk`. `ideal` and
        `perturbed` need the norm of the weights as penalty and no locality.
    class_weights (K,): sum of the row weights of each class. Only for classes and for activations
        of at least 0 that sum to 1 in each row, as Theorems 10 and 12 require.
    eigenvalues (r,): `gram_eigenvalues` of gram, independent of alpha. None: rank and bounds are
        None.
    least_weight: smallest weight of a row; 1 without weights.

    ``2 q r^2`` flops, without the eigenvalues, which take ``4 r^3 / 3``.

    Examples
    --------
    >>> moments = {"gram": np.eye(2) * 3, "cross": np.eye(2) * 3, "target_norm": 6.0}
    >>> classes = {"class_weights": np.ones(2) * 3, "eigenvalues": np.ones(2) * 3}
    >>> bounds = spectral_bounds(np.eye(2), **moments, **classes, alpha=0.0)
    >>> bounds.ideal
    RiskRange(least=2.0, most=2.0)
    """
    norms = _Norms.of(
        weights, gram, cross, target_norm=target_norm, penalty=penalty, locality=locality
    )
    trace = float(np.trace(gram))
    ideal, perturbed = None, None
    by_norm = penalty is None and locality is None
    if by_norm and class_weights is not None and eigenvalues is not None:
        ideal = _ideal_risk(cross, class_weights, eigenvalues=eigenvalues)
        perturbed = perturbation_bounds(
            cross, class_weights, eigenvalues=eigenvalues, least_weight=least_weight
        )
    return SpectralBounds(
        norms.relative(trace, alpha),
        norms.residual,
        norms.weights,
        norms.residual + alpha * trace * norms.penalty + norms.beside * trace,
        None if eigenvalues is None else _numerical_rank(eigenvalues),
        None if eigenvalues is None else _attainable_risk(eigenvalues),
        ideal,
        perturbed,
    )


def gram_eigenvalues(gram: Floats) -> Floats:
    """Return the eigenvalues of a gram matrix (r, r), float64 (r,), ascending.

    These are the squared singular values of Phi. Takes ``4 r^3 / 3`` flops and a copy of gram.
    """
    # numpy releases the interpreter lock, scipy does not.
    return np.linalg.eigvalsh(gram).astype(np.float64, copy=False)


def _numerical_rank(eigenvalues: Floats) -> int:
    """Return the number of eigenvalues (r,) of a gram matrix that exceed their rounding error.

    This can be less than the rank of Phi: squaring loses singular values below about 1e-8 of the
    largest.
    """
    rounding = len(eigenvalues) * np.finfo(np.float64).eps * float(eigenvalues[-1])
    return int(np.count_nonzero(eigenvalues > rounding))


def _attainable_risk(eigenvalues: Floats) -> RiskRange:
    """Return the range of the spectral risk for any target and any penalty.

    Takes the eigenvalues of the gram matrix, float64 (r,), ascending.

    ``trace / largest <= gamma <= trace / smallest`` (hu-nrbfn, eq. 21, Propositions 8 and 16).
    There is no upper bound if the gram matrix is singular in float64.

    Examples
    --------
    >>> _attainable_risk(np.array([1.0, 3.0]))
    RiskRange(least=1.3333333333333333, most=4.0)
    """
    trace = float(eigenvalues.sum())
    full = _numerical_rank(eigenvalues) == len(eigenvalues)
    return RiskRange(
        trace / float(eigenvalues[-1]), trace / float(eigenvalues[0]) if full else None
    )


def _ideal_risk(cross: Floats, class_weights: Floats, *, eigenvalues: Floats) -> RiskRange | None:
    """Return the range of the risk of separate classes; None if classes are not separate.

    cross (K, r): of normalized activations.
    eigenvalues (r,): eigenvalues of the gram matrix.
    class_weights (K,).

    ``r/n sum(n_k / r_k) <= gamma <= r`` (hu-nrbfn, eq. 24; K to r for classes of equal size, eq.
    25), under three conditions. All activations between rows and basis rows of different classes
    are 0 (hu-nrbfn, Definition 3): each column of cross then has one element, which tells the class
    of the basis row. Every class with rows has a basis row. gram has full rank.

    The range is that without a penalty. With a penalty the upper bound holds (Theorem 18).
    """
    layout = _Layout.of(cross, class_weights)
    full = _numerical_rank(eigenvalues) == len(eigenvalues)
    if layout is None or layout.stray > 0 or not full:
        return None
    n, r = layout.row_weights, layout.basis_counts
    return RiskRange(float(r.sum() / n.sum() * np.sum(n / r)), float(r.sum()))


def perturbation_bounds(
    cross: Floats, class_weights: Floats, *, eigenvalues: Floats, least_weight: float = 1.0
) -> PerturbationBounds | None:
    """Return bounds of error and risk for almost separate classes; None for other classes.

    cross (K, r): of normalized activations.
    eigenvalues (r,): eigenvalues of the gram matrix.
    least_weight: smallest weight of a row.
    class_weights (K,).

    hu-nrbfn, Theorem 12, with each basis row in the class that activates it most; the theorem holds
    for any choice. Moments do not contain the norm of the ideal activations, or of their distance
    to the real activations, so bounds that moments contain replace both:

    - M is the sum of all activations between classes. A row with the sum m is at most ``sqrt(2) m``
      from the ideal row. m is at most 1, and at most M over the smallest weight w of a row. So the
      distance is at most ``d = sqrt(2 M min(M / w, 1))``.
    - s is the least singular value of Phi; that of the ideal activations is at least ``s - d``
      (Weyl).

    So ``d / (s - d)`` is an upper bound of xi and of the second-order terms that eq. 30 leaves out.
    ``r/n trace(gram)`` replaces ``gamma (1 + delta)^2``, which eq. 28 bounds by it.

    The bounds hold if every class with rows has a basis row, gram has full rank, ``d < s`` and
    ``xi < 1 / n_rho`` (eq. 26). The bound of eps is that without a penalty.
    """
    layout = _Layout.of(cross, class_weights)
    if layout is None or _numerical_rank(eigenvalues) < len(eigenvalues):
        return None
    distance = float(np.sqrt(2.0 * layout.stray * min(layout.stray / least_weight, 1.0)))
    least = float(np.sqrt(eigenvalues[0]))
    if distance >= least:
        return None
    xi = distance / (least - distance)
    n, r = layout.row_weights, layout.basis_counts
    error_noise = float(np.sqrt(n.max() / n.min())) * xi
    risk_noise = float(np.sqrt(r.max() / r.min())) * xi
    if error_noise >= 1.0:
        return None
    risk = float(r.sum() / n.sum() * eigenvalues.sum())
    return PerturbationBounds(
        xi,
        (error_noise / (1.0 - error_noise)) ** 2 + 1.0,
        risk * ((1.0 + risk_noise) / (1.0 - error_noise)) ** 2,
    )


@dataclass(frozen=True)
class _Norms:
    """Squared norms of the residuals, the fit and the weights.

    `penalty` is the term that alpha multiplies, `beside` the term of `JITTER` and locality, both
    divided by the trace of gram.
    """

    residual: float
    fit: float
    weights: float
    penalty: float
    beside: float

    @classmethod
    def of(
        cls,
        weights: Floats,
        gram: Floats,
        cross: Floats,
        *,
        target_norm: float,
        penalty: Floats | None,
        locality: Locality | None,
    ) -> "_Norms":
        fit = float(np.sum((weights @ gram) * weights))
        # Rounding must not make a perfect fit better than perfect.
        residual = max(target_norm - 2.0 * float(np.sum(weights * cross)) + fit, 0.0)
        squares = float(np.sum(weights**2))
        own, beside = squares, 0.0
        if penalty is not None and penalty.ndim == 1:
            kept = np.isfinite(penalty)
            own = np.sum(weights[:, kept] ** 2 * penalty[kept])
        elif penalty is not None:
            own, beside = np.sum((weights @ penalty) * weights), JITTER * squares
        if penalty is not None:
            own *= penalty_unit(penalty, gram) / np.trace(gram)
        if locality is not None:
            differences = np.sum((weights @ locality.matrix) * weights)
            beside += locality.factor(gram, penalty) * differences / np.trace(gram)
        return cls(residual, fit, squares, float(own), float(beside))

    def relative(self, trace: float, alpha: float) -> ErrorAndRisk:
        if self.fit == 0:
            return ErrorAndRisk(1.0, 1.0, alpha)
        error = self.residual / self.fit + 1.0
        own, beside = (norm * trace / self.fit for norm in (self.penalty, self.beside))
        risk = self.weights * trace / self.fit
        return ErrorAndRisk(error, risk, error + alpha * own - 1.0 + beside)


@dataclass(frozen=True, eq=False)
class _Layout:
    """Weights and basis rows of every class with rows, and the activations between classes."""

    row_weights: Floats
    basis_counts: NDArray[np.int64]
    stray: float

    @classmethod
    def of(cls, cross: Floats, class_weights: Floats) -> "_Layout | None":
        """Return the layout; None if a class with rows has no basis row."""
        present = class_weights > 0
        totals = cross[present]
        owners = totals.argmax(axis=0)
        basis_counts = np.bincount(owners, minlength=len(totals))
        if not basis_counts.all():
            return None
        elsewhere = np.arange(len(totals))[:, None] != owners
        return cls(class_weights[present], basis_counts, float(totals[elsewhere].sum()))
