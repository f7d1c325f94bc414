"""Fitting error and spectral risk, from moments alone."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ErrorAndRisk:
    """How well the training rows are fitted, and how far into the minor subspace that went.

    Attributes
    ----------
    fitting_error : float
        eps >= 1, relative to the norm of the fit (hu-nrbfn, Definition 7).
    spectral_risk : float
        gamma >= 1 (hu-nrbfn, Definition 5).
    objective : float
        ``eps + alpha gamma - 1``, what the ridge minimizes (hu-nrbfn, Theorem 17).
    """

    fitting_error: float
    spectral_risk: float
    objective: float


def error_and_risk(
    weights: Floats, gram: Floats, cross: Floats, *, n_rows: int, alpha: float
) -> ErrorAndRisk:
    """Return the error and risk of `weights` on the rows behind the moments.

    Parameters
    ----------
    weights : float64 (K, r)
    gram : float64 (r, r)
    cross : float64 (K, r)
    n_rows : int
        Rows behind the moments, which is also ``|F|_F^2``.
    alpha : float
        Penalty of `weights`, relative to the trace of gram.

    Notes
    -----
    The norm of the fit is ``|Phi weights'|_F^2 = sum(weights gram * weights)``, so neither figure
    needs another pass over the rows.

    Examples
    --------
    >>> error_and_risk(np.eye(2), np.eye(2) * 3, np.eye(2) * 3, n_rows=6, alpha=0.0)
    ErrorAndRisk(fitting_error=1.0, spectral_risk=2.0, objective=0.0)
    """
    fit_norm = float(np.sum((weights @ gram) * weights))
    residual = n_rows - 2.0 * float(np.sum(weights * cross)) + fit_norm
    fitting_error = residual / fit_norm + 1.0
    spectral_risk = float(np.sum(weights**2) * np.trace(gram)) / fit_norm
    return ErrorAndRisk(fitting_error, spectral_risk, fitting_error + alpha * spectral_risk - 1.0)
