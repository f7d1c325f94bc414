"""Activations that passes read again, kept on scratch where that is cheaper than their products."""

import logging
import shutil

import numpy as np
from dask.utils import format_bytes

from dask_nrbfn.engine.threads import blas_threads
from dask_nrbfn.numeric.folds import FoldedBlock
from dask_nrbfn.numeric.radial import RadialFeatures, Scratch
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.storage.location import local_path
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

# From some hundred values on the products of a row take longer than reading its activations, a
# file of 4 bytes each: 17 ns and 6 ns for 784 features, on two cores. Fewer are not worth the disk.
LEAST_VALUES = 256

# What may be missing of the room on the disk: other files grow beside it.
_SHARE_OF_DISK = 0.5


def decide_to_keep(run: Run, place: str, n_basis: int, row_values: float) -> bool:
    """Return whether the passes of a stage keep activations, once and for all of the run.

    They are rounded to float32 then, by whoever computes them, so that it matters to no bit who
    finds them kept.
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
        Names those that are kept; None: they are computed every time.
    n_rows : int
        Of the largest block.

    Attributes
    ----------
    normalized : bool
        Whether those of a row sum to 1.
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
        """Return the activations of a block, float64 (b, r), until those of the next."""
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
