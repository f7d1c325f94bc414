"""Stage "width": the mean distance between all rows and all basis rows."""

import logging
import math
from typing import Any

import numpy as np

from dask_nrbfn.engine import Engine
from dask_nrbfn.engine.threads import blas_threads
from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.radial import BasisDistances, RadialFeatures
from dask_nrbfn.stages.columns import read_scaling
from dask_nrbfn.stages.parts import PartResult, block_rows, run_parts
from dask_nrbfn.stages.weighting import RowWeights
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

# A row is far from the basis if this share of the training rows, of those that are no basis rows,
# is nearer. Of each part so many rows are looked at.
_NEARER_SHARE = 0.99
_SAMPLED_ROWS = 1024


def compute_width(run: Run, dataset: Dataset, engine: Engine) -> dict[str, Any]:
    """Return the width sigma, the mean distance (hu-nrbfn, Algorithm 2, step 5) times the factor.

    The mean is over rows with their weights. Also returned is what later rows are compared with:
    the distance from the nearest basis row beyond which rows are far, and the weights of classes.

    Raises
    ------
    DataError
        If all rows are equal, or so near each other that the width cannot be squared.
    """
    records = run_parts(run, dataset, engine, stage="width", task=_width_part)
    total = math.fsum(record["distance_sum"] for record in records)
    weight = math.fsum(record["weight"] for record in records)
    mean_distance = total / (weight * run.basis_size())
    if mean_distance == 0:
        raise DataError(
            "all rows of X are equal, or differ by less than float64 can square.",
            "Give rows that differ in some column.",
        )
    width = run.params.width_factor * mean_distance
    _check_width(width)
    logger.info("width: %.6g", width)
    return {
        "width": width,
        "mean_distance": mean_distance,
        "far_distance": _far_distance(run),
        "class_weights": RowWeights.of(dataset, run.params).to_list(),
    }


def _check_width(width: float) -> None:
    # Activations divide by it; below the smallest normal number its inverse overflows.
    if 2 * width**2 < np.finfo(np.float64).tiny:
        raise DataError(
            f"the rows of X are so near each other that the width is {width:.3g}, whose square "
            "underflows float64.",
            "Give X in other units, multiplied by 1e100 for example.",
        )


def _far_distance(run: Run) -> float | None:
    """Return the distance beyond which rows are far; None if all sampled rows are basis rows."""
    parts = [run.read_part("width", index, "nearest") for index in range(len(run.spans))]
    nearest = np.concatenate(parts)
    return float(np.quantile(nearest, _NEARER_SHARE)) if len(nearest) else None


def read_features(run: Run) -> RadialFeatures:
    """Return the radial basis functions of a run whose width is known."""
    scaling, params = read_scaling(run), run.params
    return RadialFeatures.from_basis(
        scaling.apply(run.read("basis/values")),
        run.stages["width"]["width"],
        scaling,
        kernel=params.kernel,
        normalized=params.features == "normalized",
    )


def _width_part(run: Run, dataset: Dataset, start: int, stop: int) -> PartResult:
    n_basis, threads = run.basis_size(), blas_threads()
    size = block_rows(n_basis)
    blocks = dataset.blocks(start, stop, size)
    scaling, weighting = read_scaling(run), RowWeights.of(dataset, run.params)
    distances = BasisDistances.from_basis(scaling.apply(run.read("basis/values")), scaling)
    buffer = np.empty((min(size, stop - start), n_basis))
    step = -(-(stop - start) // _SAMPLED_ROWS)
    sampled = np.setdiff1d(np.arange(start, stop, step), run.read("basis/rows"))
    sums, totals, nearest = [], [], []
    for first, (X, codes, own) in zip(range(start, stop, size), blocks, strict=True):
        assert codes is not None
        weights = weighting.of_rows(codes, own)
        totals.append(float(len(X) if weights is None else weights.sum()))
        sums.append(distances.total(X, weights=weights, buffer=buffer[: len(X)], threads=threads))
        sample = X[sampled[(first <= sampled) & (sampled < first + len(X))] - first]
        nearest.append(distances.nearest(sample, buffer=buffer[: len(sample)], threads=threads))
    return PartResult(
        {"distance_sum": math.fsum(sums), "weight": math.fsum(totals)},
        {"nearest": np.concatenate(nearest)},
    )
