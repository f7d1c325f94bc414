"""The sums over rows by which weights for a loss of margins are improved."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.losses import Loss
from dask_nrbfn.numeric.products import add_products, row_products
from dask_nrbfn.numeric.sums import RowSum

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LossSums(RowSum):
    """Weighted sums over rows of the loss and its derivative, for given weights.

    Attributes
    ----------
    loss : float64 (q,)
        Of each class against the others.
    gradient : float64 (q, r)
        Of the loss, by the weights.

    Notes
    -----
    With ``f = Phi W'`` and margins ``m = t f``, t = 1 for rows of the class and -1 for others:
    ``sum_i v_i loss(m_i)`` and ``sum_i v_i t_i loss'(m_i) phi_i``, v the weights of the rows.

    Examples
    --------
    >>> from dask_nrbfn.numeric.losses import loss_named
    >>> Phi, codes = np.array([[1.0], [2.0]]), np.array([0, 1])
    >>> sums = LossSums.from_block(Phi, codes, np.zeros((2, 1)), loss_named("squared-hinge"))
    >>> sums.loss, sums.gradient
    (array([2., 2.]), array([[ 2.],
           [-2.]]))
    """

    loss: Floats
    gradient: Floats

    @classmethod
    def zeros(cls, n_targets: int, n_basis: int) -> Self:
        """Return the sums of no rows."""
        return cls(np.zeros(n_targets), np.zeros((n_targets, n_basis)))

    @classmethod
    def from_block(
        cls,
        Phi: Floats,
        codes: NDArray[Any],
        weights: Floats,
        loss: Loss,
        *,
        row_weights: Floats | None = None,
    ) -> Self:
        """Return the sums of one block.

        Parameters
        ----------
        Phi : float64 (b, r), C-contiguous
            Activations.
        codes : integer (b,)
            Class of each row.
        weights : float64 (q, r), C-contiguous
        loss : Loss
        row_weights : float64 (b,), optional

        Notes
        -----
        ``4 b r q`` flops.
        """
        signs = np.full((len(Phi), len(weights)), -1.0)
        signs[np.arange(len(Phi)), codes] = 1.0
        margins = row_products(Phi, weights)
        margins *= signs
        values, slopes = loss.value(margins), loss.slope(margins) * signs
        if row_weights is not None:
            values *= row_weights[:, None]
            slopes *= row_weights[:, None]
        sums = cls(values.sum(axis=0), np.zeros(weights.shape))
        add_products(sums.gradient, slopes, Phi)
        return sums
