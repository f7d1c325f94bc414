"""The sums over rows by which weights for a loss of margins are improved."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.losses import Loss
from dask_nrbfn.numeric.products import add_products
from dask_nrbfn.numeric.sums import RowSum
from dask_nrbfn.numeric.types import Floats


@dataclass(frozen=True, eq=False)
class LossSums(RowSum):
    """Weighted sums over rows of the loss of A models with K classes, and its derivative.

    Attributes
    ----------
    loss : float64 (A, K)
        Of each class against the others.
    gradient : float64 (A, K, r)
        Of the loss, by the weights.

    Notes
    -----
    With ``f = Phi W'`` and margins ``m = t f``, t = 1 for rows of the class and -1 for others:
    ``sum_i v_i loss(m_i)`` and ``sum_i v_i t_i loss'(m_i) phi_i``, v the weights of the rows.

    Examples
    --------
    >>> from dask_nrbfn.numeric.losses import loss_named
    >>> Phi, codes = np.array([[1.0], [2.0]]), np.array([0, 1])
    >>> scores = np.zeros((2, 1, 2))
    >>> sums = LossSums.from_block(Phi, scores, codes, loss_named("squared-hinge"))
    >>> sums.loss, sums.gradient
    (array([[2., 2.]]), array([[[ 2.],
            [-2.]]]))
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
        """Return the sums of one block.

        Parameters
        ----------
        Phi : float64 (b, r), C-contiguous
            Activations.
        scores : float64 (b, A, K)
            Their products with the weights of each model.
        codes : integer (b,)
            Class of each row.
        loss : Loss
        row_weights : float64 (b, 1) or (b, A), optional
            Of the rows, or of the rows for each model.

        Notes
        -----
        ``2 b r A K`` flops.
        """
        _, n_models, n_classes = scores.shape
        signs = np.full((len(codes), 1, n_classes), -1.0)
        signs[np.arange(len(codes)), 0, codes] = 1.0
        margins = scores * signs
        values, slopes = loss.value(margins), loss.slope(margins) * signs
        if row_weights is not None:
            values *= row_weights[:, :, None]
            slopes *= row_weights[:, :, None]
        sums = cls.zeros(n_models, n_classes, Phi.shape[1])
        sums.loss[:] = values.sum(axis=0)
        # A view of all models' classes, one after another.
        n_weights = n_models * n_classes
        add_products(sums.gradient.reshape(n_weights, -1), slopes.reshape(len(Phi), n_weights), Phi)
        return sums
