"""Output weights from moments, and whether float64 can tell what they are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import IllConditionedError
from dask_nrbfn.numeric.moments import packed_size
from dask_nrbfn.numeric.products import factor_in_place, frobenius_norm, solve_in_place

Floats = NDArray[np.float64]

# Reciprocal conditions of systems, and what rounding each element of their gram matrix anew does to
# the weights: 22 % at 0.5 of float64's eps, 2 % at 5, 0.2 % at 50, 0.02 % at 500, where alpha is
# 1e-13; the same within a factor of five for iris, wdbc, wine, digits, MNIST and drawn tables of
# 17 to 2,000 basis rows. Far below 1 a factorization succeeds or fails by luck, and with luck test
# errors double. With a repeated column the luckiest of 2,000 systems came to 1.7.
SINGULAR = 3 * float(np.finfo(np.float64).eps)
ILL_CONDITIONED = 10 * float(np.finfo(np.float64).eps)

# Random vectors and steps of inverse iteration. One vector may miss the least eigenvalue's by a
# factor of ten, four hardly ever do; the second step finds what the first saw too little of.
_PROBES = 4
_STEPS = 2


@dataclass(frozen=True, eq=False)
class RidgeSolution:
    """The weights of one penalty.

    Attributes
    ----------
    weights : float64 (K, r)
    reciprocal_condition : float
        Estimate of the least eigenvalue of the penalized matrix over its Frobenius norm.
    """

    weights: Floats
    reciprocal_condition: float


def solve_weights(gram: Floats, cross: Floats, *, alpha: float) -> RidgeSolution:
    """Return the ridge weights and the condition of their system.

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
        If the penalized matrix is singular in float64. It names a penalty that is enough.

    Notes
    -----
    ``cross (gram + alpha trace(gram) I)^-1`` (hu-nrbfn, Algorithm 2, step 9, and eq. 15), by one
    Cholesky factorization: ``r^3 / 3`` flops and one more r x r matrix.

    Examples
    --------
    >>> gram, cross = np.diag([1.0, 3.0]), np.array([[2.0, 0.0], [0.0, 2.0]])
    >>> solve_weights(gram, cross, alpha=0.25).weights
    array([[1. , 0. ],
           [0. , 0.5]])
    """
    (solution,) = solve_path(gram, cross, alphas=[alpha])
    if solution is None:
        raise singular_system(gram, tried=f"`alpha`={alpha:g}", above=alpha)
    return solution


def solve_path(
    gram: Floats, cross: Floats, *, alphas: Sequence[float]
) -> Iterator[RidgeSolution | None]:
    """Yield the solution of every penalty; None where the system is singular in float64.

    Parameters
    ----------
    gram, cross, alphas
        As `solve_weights` takes them.

    Notes
    -----
    One factorization each. At r = 3,000 thirteen of them take a third of the time of the one
    eigendecomposition that would do for all.

    Differs from LAPACK's own estimate, whose first vector is constant: that is orthogonal to the
    difference of two equal columns, and was found 500 times too high for them.
    """
    penalized = np.empty(gram.shape)
    for alpha in alphas:
        np.copyto(penalized, gram)
        penalized.flat[:: len(gram) + 1] += alpha * np.trace(gram)
        norm = frobenius_norm(penalized)
        if not factor_in_place(penalized):
            yield None
            continue
        condition = _reciprocal_condition(penalized, norm)
        if condition < SINGULAR:
            yield None
            continue
        weights = np.array(cross, dtype=np.float64, order="C")
        solve_in_place(penalized, weights)
        yield RidgeSolution(weights, condition)


def singular_system(gram: Floats, *, tried: str, above: float) -> IllConditionedError:
    """Return the error of a system that is singular at what was `tried`, penalties up to `above`.

    It names the least power of ten that is enough; each that is looked at costs a factorization.
    """
    larger = [10.0**power for power in range(-15, 1) if 10.0**power > above]
    nothing = np.empty((0, len(gram)))
    enough = (
        alpha
        for alpha, solution in zip(larger, solve_path(gram, nothing, alphas=larger), strict=True)
        if solution is not None
    )
    least = next(enough, None)
    return IllConditionedError(
        f"the {len(gram):,} x {len(gram):,} ridge system is singular in float64 at {tried}.",
        "No penalty helps: the features are 0 or not finite."
        if least is None
        else f"Give a penalty of at least {least:g}.",
    )


def _reciprocal_condition(factor: Floats, norm: float) -> float:
    """Return about the least eigenvalue of a factored matrix over `norm`; 0 for what overflows.

    Two steps of inverse iteration with a few random vectors: ``4 m r^2`` flops each.
    """
    vectors = np.random.default_rng(0).standard_normal((_PROBES, len(factor)))
    lengths = np.linalg.norm(vectors, axis=1)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(_STEPS):
            vectors *= norm / lengths[:, None]
            solve_in_place(factor, vectors)
            lengths = np.linalg.norm(vectors, axis=1)
    condition = 1.0 / float(lengths.max())
    return condition if np.isfinite(condition) else 0.0


def solve_bytes(n_basis: int, n_classes: int) -> int:
    """Return the bytes that a solve holds: packed and full gram, penalized, factor."""
    return 8 * (packed_size(n_basis) + 4 * n_basis**2 + 4 * n_basis * n_classes)
