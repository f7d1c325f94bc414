"""A pass over the rows for a loss: its gradient, and the labels of held-out rows.

Later passes read the activations again, from scratch if that is faster than their products.
"""

import logging
import shutil
from typing import Any

import numpy as np
from dask.utils import format_bytes
from numpy.typing import NDArray

from dask_nrbfn.engine.threads import blas_threads
from dask_nrbfn.numeric.descent import LossSums
from dask_nrbfn.numeric.folds import FoldedBlock
from dask_nrbfn.numeric.held_out import LEAST_ACTIVATION, HeldOutSums
from dask_nrbfn.numeric.losses import Loss
from dask_nrbfn.numeric.products import row_products
from dask_nrbfn.numeric.radial import RadialFeatures, Scratch
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.parts import Sums
from dask_nrbfn.storage.location import local_path
from dask_nrbfn.storage.run import Run
from dask_nrbfn.weighting import Reading

logger = logging.getLogger(__name__)

# From some hundred values on, the products of a row take longer than reading its activations of 4
# bytes each from a file: 17 ns and 6 ns for 784 features on two cores.
LEAST_VALUES = 256

# The share of the free disk that the activations may take: other files grow too.
_SHARE_OF_DISK = 0.5


def decide_to_keep(run: Run, place: str, n_basis: int, row_values: float) -> bool:
    """Decide, once for the run, whether the passes of a stage keep activations; return it.

    Kept activations are rounded to float32 in the pass that computes them too, so that the bits do
    not depend on which pass reads them.
    """
    n_bytes, path = 4 * run.n_rows * n_basis, local_path(run.location)
    keeps = (
        row_values >= LEAST_VALUES
        and path is not None
        and n_bytes <= _SHARE_OF_DISK * shutil.disk_usage(path).free
    )
    keeps = run.decide(place, {"keeps_activations": keeps})["keeps_activations"]
    if keeps:
        logger.info("%s: activations are kept in %s of scratch", place, format_bytes(n_bytes))
    return keeps


class KeptActivations:
    """Activations of blocks of rows, which a run may keep.

    Parameters
    ----------
    features : RadialFeatures
    run : Run
    place : str or None
        Names the kept activations; None: they are computed every time.
    n_rows : int
        Rows of the largest block.

    Attributes
    ----------
    normalized : bool
        Whether the activations of a row sum to 1.
    """

    def __init__(
        self, features: RadialFeatures, run: Run, place: str | None, *, n_rows: int
    ) -> None:
        self.normalized = features.normalized
        self._features, self._run, self._place = features, run, place
        self._threads = blas_threads()
        self._buffer = np.empty((n_rows, features.n_basis))
        self._scratch = Scratch(n_rows, features.basis.shape[1])

    def of_block(self, block: FoldedBlock) -> Floats:
        """Return the activations of a block, float64 (b, r), valid until the next call."""
        n, run, place = block.n_rows, self._run, self._place
        Phi = self._buffer[:n]
        if place is not None and run.part_record(place, block.start) is not None:
            Phi[:] = run.read_part(place, block.start, "values")
            return Phi
        self._features.activations(
            block.X, out=Phi, scratch=self._scratch.of(block.X), threads=self._threads
        )
        if place is not None:
            rounded = Phi.astype(np.float32)
            run.write_part(place, block.start, {}, {"values": rounded})
            Phi[:] = rounded
        return Phi


HELD_OUT = "_held_out"


class LossPass:
    """The losses of the rows of a part by several models, and their gradients.

    Parameters
    ----------
    activations : KeptActivations
    reading : Reading
        With one fold for each model that holds out rows.
    weights : float64 (A, K, r)
        Weights of the models without each fold, if there are folds, then of the model of all rows.
    kept : list of bool (r,)
        For each fold, the basis rows outside it. The activations of held-out rows are normalized
        over these basis rows alone.
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
        """Return the sums over held-out rows, each labelled by the model without its fold."""
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
    """Return the weight of each row for each model, (b, A): 0 if the model holds the row out."""
    weights = np.ones((block.n_rows, n_models))
    if block.weights is not None:
        weights *= block.weights[:, None]
    for fold, rows in enumerate(block.slices):
        weights[rows, fold] = 0.0
    return weights
