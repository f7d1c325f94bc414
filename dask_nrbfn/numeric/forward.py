"""Basis rows of a smaller network, chosen by regularized orthogonal least squares on the sums."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.products import add_products
from dask_nrbfn.numeric.ridge import RidgeSystem
from dask_nrbfn.numeric.types import Floats

# A column whose residual is below this share of its square repeats the chosen columns.
_LEAST_LEFT = 1e-12


@dataclass(frozen=True, eq=False)
class ForwardPath:
    """Basis rows ``chosen`` (m,) in the order of the choice.

    ``unexplained`` (m,) is the share of the squares of all targets that the first 1 ... m leave.
    """

    chosen: NDArray[np.int64]
    unexplained: Floats


def forward_selection(system: RidgeSystem, *, size: int, alpha: float) -> ForwardPath:
    """Return at most `size` basis rows that explain most of the targets, one after another.

    Chen, Chng & Alkadhimi, *Regularized orthogonal least squares algorithm for constructing radial
    basis function networks*, 1996, by a Cholesky factorization of gram with chosen pivots. s_j and
    c_jq are the residuals of the square of column j and of its product with target q. The next
    pivot has the largest ``sum_q c_jq^2 / (s_j + lambda)``. Basis rows that repeat the chosen ones
    in float64, or whose weights the penalty keeps at 0, are not chosen. Each choice is one row of
    the factor: ``m^2 r`` flops, ``8 m r`` bytes, and no pass over rows.
    """
    gram = system.gram
    cross = np.array(system.cross, dtype=np.float64, order="C")
    squares = gram.diagonal().copy()
    if system.penalty is not None and system.penalty.ndim == 1:
        # A basis row that the penalty gives weight 0 explains nothing.
        squares[np.isinf(system.penalty)] = 0.0
    least = _LEAST_LEFT * squares
    penalty = alpha * float(squares.sum())
    factor = np.empty((min(size, len(gram)), len(gram)))
    left = system.target_norm
    chosen: list[int] = []
    unexplained: list[float] = []
    for step in range(len(factor)):
        independent = squares > least
        if not independent.any():
            break
        explained = np.full(len(gram), -np.inf)
        np.divide((cross**2).sum(axis=0), squares + penalty, out=explained, where=independent)
        place = int(explained.argmax())
        row = factor[step]
        done = factor[:step]
        np.subtract(gram[place], done[:, place] @ done, out=row)
        row /= np.sqrt(squares[place])
        own = cross[:, place].copy()
        square = squares[place]
        left -= float(own @ own) * (square + 2.0 * penalty) / (square + penalty) ** 2
        add_products(cross, -(own / np.sqrt(square))[None], row[None])
        squares -= row**2
        squares[place] = 0.0
        chosen.append(place)
        unexplained.append(max(left, 0.0) / system.target_norm if system.target_norm else 0.0)
    return ForwardPath(np.array(chosen, dtype=np.int64), np.array(unexplained))


def selection_bytes(n_basis: int, n_targets: int, size: int) -> int:
    """Return the bytes of a forward selection, without the sums."""
    return 8 * n_basis * (size + n_targets + 6)
