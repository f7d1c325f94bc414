"""Stage "width": the mean distance between all rows and all basis rows."""

import logging
import math
from typing import Any

import numpy as np

from dask_nrbfn.engine import Engine
from dask_nrbfn.engine.connect import blas_threads
from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.radial import BasisDistances
from dask_nrbfn.stages.columns import read_scaling
from dask_nrbfn.stages.parts import PartResult, block_rows, run_parts
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)


def compute_width(run: Run, dataset: Dataset, engine: Engine) -> dict[str, Any]:
    """Return the width sigma (hu-nrbfn, Algorithm 2, step 5).

    Raises
    ------
    DataError
        If all rows are equal.
    """
    records = run_parts(run, dataset, engine, stage="width", task=_width_part)
    total = math.fsum(record["distance_sum"] for record in records)
    width = total / (run.n_rows * run.basis_size())
    if width == 0:
        raise DataError(
            "all rows of X are equal, or differ by less than float64 can square.",
            "Give rows that differ in some column.",
        )
    logger.info("width: %.6g", width)
    return {"width": width}


def _width_part(run: Run, dataset: Dataset, start: int, stop: int) -> PartResult:
    n_basis, threads = run.basis_size(), blas_threads()
    size = block_rows(n_basis)
    blocks = dataset.blocks(start, stop, size)
    scaling = read_scaling(run)
    distances = BasisDistances.from_basis(scaling.apply(run.read("basis/values")), scaling)
    buffer = np.empty((min(size, stop - start), n_basis))
    sums = [distances.total(X, buffer=buffer[: len(X)], threads=threads) for X, _ in blocks]
    return PartResult({"distance_sum": math.fsum(sums)})
