"""Stages "confidence" and "basis": how sure every row is, and which rows become the basis."""

import logging
from typing import Any

import numpy as np

from dask_nrbfn.engine import Engine
from dask_nrbfn.numeric.confidence import (
    hash_rows,
    least_confident_rows,
    rows_below,
    soft_confidence,
)
from dask_nrbfn.stages.parts import PartResult, block_rows, run_parts, run_tasks
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location, write_array
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)


def compute_confidence(run: Run, dataset: Dataset, engine: Engine) -> dict[str, Any]:
    """Store the soft-kNN confidence of every row."""
    run.require_row_array("confidence/values", np.float64)
    run.require_row_array("confidence/tiebreak", np.uint64)
    run_parts(run, dataset, engine, stage="confidence", task=_confidence_part)
    return {}


def compute_basis(run: Run, dataset: Dataset, engine: Engine) -> dict[str, Any]:
    """Choose and store the basis rows."""
    (n_basis,) = run_tasks(engine, _choose_basis, [(run.location, dataset.location)], label="basis")
    logger.info("basis: %d of %d rows", n_basis, run.n_rows)
    return {"n_basis": n_basis}


def _confidence_part(run: Run, dataset: Dataset, start: int, stop: int) -> PartResult:
    codes = dataset.codes()
    indices = run.read("neighbors/indices", start, stop)
    confidence = soft_confidence(
        run.read("neighbors/distances", start, stop),
        codes[indices] == codes[start:stop, None],
        width=run.stages["neighbors"]["mean_distance"],
    )
    run.write_rows("confidence/values", start, confidence)
    hashes = [
        hash_rows(X, seed=run.params.seed)
        for X, _ in dataset.blocks(start, stop, block_rows(dataset.n_features))
    ]
    run.write_rows("confidence/tiebreak", start, np.concatenate(hashes))
    return PartResult({})


def _choose_basis(run_location: Location, dataset_location: Location) -> int:
    run, dataset = Run.open(run_location), Dataset.open(dataset_location)
    confidence, tiebreak = run.read("confidence/values"), run.read("confidence/tiebreak")
    codes = dataset.codes()
    if run.params.basis_size is None:
        rows = rows_below(
            confidence,
            codes,
            tiebreak,
            threshold=run.params.confidence_threshold,
            n_classes=dataset.n_classes,
        )
    else:
        rows = least_confident_rows(
            confidence,
            codes,
            tiebreak,
            size=run.params.basis_size,
            n_classes=dataset.n_classes,
        )
    group = run.group("basis")
    write_array(group, "rows", rows, "basis")
    write_array(group, "values", dataset.take(rows), "basis", "feature")
    return len(rows)
