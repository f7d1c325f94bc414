"""A pass over the rows for a loss: its gradient, and the labels of rows that are held out."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.descent import LossSums
from dask_nrbfn.numeric.folds import FoldedBlock
from dask_nrbfn.numeric.held_out import LEAST_ACTIVATION, HeldOutSums
from dask_nrbfn.numeric.losses import Loss
from dask_nrbfn.numeric.products import row_products
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.parts import Sums
from dask_nrbfn.stages.activations import KeptActivations
from dask_nrbfn.weighting import Reading

HELD_OUT = "_held_out"


class LossPass:
    """The losses of the rows of a part by several models, and their gradients.

    Parameters
    ----------
    activations : KeptActivations
    reading : Reading
        With as many folds as models hold out rows.
    weights : float64 (A, K, r)
        Of the models without each fold, if there are folds, and last of that of all rows.
    kept : list of bool (r,)
        The basis rows that are not of each fold. Normalized activations of rows that are held out
        are those of them alone.
    loss : Loss
    """

    def __init__(
        self,
        activations: KeptActivations,
        reading: Reading,
        *,
        weights: Floats,
        kept: list[NDArray[np.bool_]],
        loss: Loss,
    ) -> None:
        n_models, n_classes, n_basis = weights.shape
        self.reading = reading
        self._activations, self._loss, self._shape = activations, loss, (n_models, n_classes)
        # The last rows give the sums of the activations that are kept.
        self._rows = np.vstack([weights.reshape(-1, n_basis), *kept])
        self._sums = LossSums.zeros(*weights.shape)
        self._held_out = HeldOutSums.zeros(1, n_classes) if kept else None

    def add(self, block: FoldedBlock) -> None:
        """Add a block."""
        Phi = self._activations.of_block(block)
        products = row_products(Phi, self._rows)
        n_weights = self._shape[0] * self._shape[1]
        scores = products[:, :n_weights].reshape(len(Phi), *self._shape)
        row_weights = None if block.weights is None else block.weights[:, None]
        if self._held_out is not None:
            self._held_out += self._judged(block, scores, products[:, n_weights:])
            row_weights = _without_own(block, self._shape[0])
        self._sums += LossSums.from_block(
            Phi, scores, block.targets, self._loss, row_weights=row_weights
        )

    def _judged(self, block: FoldedBlock, scores: Floats, activations: Floats) -> HeldOutSums:
        """Return how the rows of each fold are labelled by the model without them."""
        sums = HeldOutSums.zeros(1, self._shape[1])
        for fold, rows in enumerate(block.slices):
            own = scores[rows, fold]
            if self._activations.normalized:
                own = own / np.maximum(activations[rows, fold, None], LEAST_ACTIVATION)
            sums += HeldOutSums.from_block(
                own[:, None],
                block.targets[rows],
                None if block.weights is None else block.weights[rows],
            )
        return sums

    def sums(self) -> Sums:
        """Return the sums of all blocks."""
        sums: dict[str, Any] = {"": self._sums}
        return sums if self._held_out is None else {**sums, HELD_OUT: self._held_out}


def _without_own(block: FoldedBlock, n_models: int) -> Floats:
    """Return the weight of each row for each model, (b, A): 0 for that which holds it out."""
    weights = np.ones((block.n_rows, n_models))
    if block.weights is not None:
        weights *= block.weights[:, None]
    for fold, rows in enumerate(block.slices):
        weights[rows, fold] = 0.0
    return weights
