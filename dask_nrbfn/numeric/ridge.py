"""Output weights from moments."""

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from dask_nrbfn.errors import IllConditionedError

Floats = NDArray[np.float64]


def solve_weights(gram: Floats, cross: Floats, *, alpha: float) -> Floats:
    """Return the ridge weights, float64 (K, r).

    Parameters
    ----------
    gram : float64 (r, r)
        ``Phi' Phi``.
    cross : float64 (K, r)
        ``F' Phi``.
    alpha : float
        Penalty relative to the trace of gram.

    Raises
    ------
    IllConditionedError
        If the penalized matrix has no Cholesky factor in float64.

    Notes
    -----
    ``cross (gram + alpha trace(gram) I)^-1`` (hu-nrbfn, Algorithm 2, step 9, and eq. 15), by one
    Cholesky factorization: ``r^3 / 3`` flops and two more r x r matrices. The factorization is
    numpy's because scipy's holds the interpreter lock throughout, which silences a worker's
    heartbeat for minutes at large r.

    Examples
    --------
    >>> solve_weights(np.diag([1.0, 3.0]), np.array([[2.0, 0.0], [0.0, 2.0]]), alpha=0.25)
    array([[1. , 0. ],
           [0. , 0.5]])
    """
    penalized = gram.copy()
    penalized.flat[:: len(gram) + 1] += alpha * np.trace(gram)
    try:
        factor = np.linalg.cholesky(penalized)
    except np.linalg.LinAlgError as error:
        raise IllConditionedError(
            f"the ridge system of {len(gram)} basis rows is singular at alpha={alpha:g}.",
            "Give a larger alpha; 1e-13 factors for most data.",
        ) from error
    half = solve_triangular(factor, cross.T, lower=True, check_finite=False)
    weights: Floats = solve_triangular(factor, half, lower=True, trans="T", check_finite=False).T
    return np.ascontiguousarray(weights)
