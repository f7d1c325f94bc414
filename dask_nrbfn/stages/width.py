"""Stage "width": the mean distance between all rows and all basis rows."""

import logging
import math
from dataclasses import dataclass

import numpy as np

from dask_nrbfn.engine.threads import blas_threads
from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.radial import BasisDistances, RadialFeatures
from dask_nrbfn.stages.basis import BASIS
from dask_nrbfn.stages.columns import read_scaling
from dask_nrbfn.stages.parts import PartResult, block_rows, run_parts
from dask_nrbfn.stages.sizes import FitSizes
from dask_nrbfn.stages.stage import Stage, StageCost, StageJob
from dask_nrbfn.stages.weighting import RowWeights
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

# A row is far from the basis if this share of the training rows, of those that are no basis rows,
# is nearer. Of each part so many rows are looked at.
_NEARER_SHARE = 0.99
_SAMPLED_ROWS = 1024


@dataclass(frozen=True)
class WidthRecord:
    """The width, and what later rows are compared with.

    Attributes
    ----------
    width, mean_distance : float
        The mean is over rows with their weights.
    far_distance : float or None
        From the nearest basis row, beyond which rows are far; None where all rows looked at are
        basis rows.
    class_weights : list of float or None
    """

    width: float
    mean_distance: float
    far_distance: float | None
    class_weights: list[float] | None


def _compute(job: StageJob) -> WidthRecord:
    """Return the width sigma, the mean distance (hu-nrbfn, Algorithm 2, step 5) times the factor.

    Raises
    ------
    DataError
        If all rows are equal, or so near each other that the width cannot be squared.
    """
    run, dataset = job.run, job.dataset
    records = run_parts(run, dataset, job.engine, stage="width", task=_width_part)
    total = math.fsum(record["distance_sum"] for record in records)
    weight = math.fsum(record["weight"] for record in records)
    mean_distance = total / (weight * BASIS.recorded(run).n_basis)
    if mean_distance == 0:
        raise DataError(
            "all rows of X are equal, or differ by less than float64 can square.",
            "Give rows that differ in some column.",
        )
    width = run.params.width_factor * mean_distance
    _check_width(width)
    logger.info("width: %.6g", width)
    class_weights = RowWeights.of(dataset, run.params).to_list()
    return WidthRecord(width, mean_distance, _far_distance(run), class_weights)


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
        WIDTH.recorded(run).width,
        scaling,
        kernel=params.kernel,
        normalized=params.features == "normalized",
    )


def _width_part(run: Run, dataset: Dataset, start: int, stop: int) -> PartResult:
    n_basis, threads = BASIS.recorded(run).n_basis, blas_threads()
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


def _cost(s: FitSizes) -> StageCost:
    rows = block_rows(s.r)
    return StageCost(
        flops=2 * s.n * s.r * s.p,
        read_bytes=s.rows_bytes,
        held_bytes=s.process_bytes
        + s.reading_bytes
        + 8 * (rows * s.r + 3 * s.r * s.p + 5 * rows * s.p),
        n_tasks=s.n_parts,
        work={
            "read_bytes": s.rows_bytes,
            "moments_flops": 2 * s.n * s.r * s.p,
            "roots": s.n * s.r,
        },
    )


WIDTH = Stage(name="width", record=WidthRecord, compute=_compute, cost=_cost, grows_with_basis=True)
