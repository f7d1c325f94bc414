"""Stage "width": the mean distance between all rows and all basis rows."""

import logging
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.distances import BasisDistances
from dask_nrbfn.numeric.folds import FoldedBlock
from dask_nrbfn.numeric.kernels import kernel_named
from dask_nrbfn.numeric.penalties import penalty_named
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.sums import RowSum
from dask_nrbfn.numeric.targets import ClassTargets, NumberTargets, Targets
from dask_nrbfn.numeric.threads import blas_threads
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.parts import Reduction, Sums, read_total, reduce_parts
from dask_nrbfn.stages.basis import BASIS
from dask_nrbfn.stages.columns import read_scaling
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.stage import FitSizes, Stage, StageCost, StageJob, known
from dask_nrbfn.stages.trials import trials_of
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import block_rows
from dask_nrbfn.storage.run import Run
from dask_nrbfn.weighting import Reading, RowWeights

logger = logging.getLogger(__name__)

# Number of evenly spaced rows whose median targets become the origin of the targets.
_ORIGIN_ROWS = 101

# The suffix of the names of the sums over clusters.
_CLUSTERS = "_clusters"


def _compute(job: StageJob) -> dict[str, Any]:
    """Return the width: the mean distance (hu-nrbfn, Algorithm 2, step 5) times `width_factor`.

    Also what later rows need too: class weights, and the origin of numbers.
    """
    run, dataset = job.run, job.dataset
    kinds = {"": _DistanceSums} | ({_CLUSTERS: _ClusterSums} if _has_shares(run) else {})
    reduction = Reduction("width", _WidthPass, kinds, run.layout)
    record = reduce_parts(run, dataset, job.engine, reduction)
    sums: _DistanceSums = read_total(run, reduction)
    mean_distance = sums.total / (record.weight * BASIS.recorded(run).n_basis)
    if mean_distance == 0:
        raise DataError(
            "all rows of X are equal, or differ by less than float64 can square.",
            "Give rows that differ in some column.",
        )
    width = run.chosen_params.width_factor * mean_distance
    _check_width(width)
    if _has_shares(run):
        clusters: _ClusterSums = read_total(run, reduction, _CLUSTERS)
        write_array(run.group("width"), "shares", clusters.weights / record.weight, "basis")
    logger.info("width: %.6g", width)
    class_weights = RowWeights.of(dataset, run.chosen_params).to_list()
    origin = _middle_targets(dataset.of_labelled()).tolist() if dataset.of_numbers else None
    return {
        "width": width,
        "mean_distance": mean_distance,
        "class_weights": class_weights,
        **known(target_origin=origin),
    }


def _check_width(width: float) -> None:
    # Activations divide by the square; below the smallest normal number its inverse overflows.
    if 2 * width**2 < np.finfo(np.float64).tiny:
        raise DataError(
            f"the rows of X are so near each other that the width is {width:.3g}, whose square "
            "underflows float64.",
            "Multiply X by a large number, such as 1e100.",
        )


def read_features(run: Run) -> RadialFeatures:
    """Return the radial basis functions of a run whose width is known."""
    scaling, params = read_scaling(run), run.chosen_params
    return RadialFeatures.from_basis(
        scaling.apply(run.read("basis/values")),
        WIDTH.recorded(run).width,
        scaling,
        kernel=params.kernel,
        normalized=params.normalized,
    )


def _has_shares(run: Run) -> bool:
    """Return whether a penalty that the run has or tries needs the shares of clusters."""
    return any(penalty_named(name).needs_shares for name in trials_of(run).penalties)


def read_shares(run: Run) -> Floats | None:
    """Return the weight share of the rows nearest to each basis row, (r,); None if not needed."""
    return run.read("width/shares") if _has_shares(run) else None


def _middle_targets(dataset: Dataset) -> Floats:
    """Return the median of the targets of a few rows, (q,), because one row may be an outlier."""
    rows = np.unique(np.linspace(0, dataset.n_rows - 1, _ORIGIN_ROWS).astype(np.int64))
    return np.median(dataset.take_targets(rows), axis=0)


def read_targets(run: Run, n_targets: int) -> Targets:
    """Return the targets of a run whose width is known."""
    origin = run.stages["width"].get("target_origin")
    return ClassTargets(n_targets) if origin is None else NumberTargets(np.array(origin))


@dataclass(frozen=True, eq=False)
class _DistanceSums(RowSum):
    """``total``: the sum of all distances between rows and basis rows, weighted by the rows."""

    total: float


@dataclass(frozen=True, eq=False)
class _ClusterSums(RowSum):
    """``weights`` float64 (r,): the weight of the rows that are nearest to each basis row."""

    weights: Floats


class _WidthPass:
    """Distances between the rows of a part and all basis rows."""

    def __init__(self, run: Run, dataset: Dataset, start: int, stop: int) -> None:
        scaling, basis = read_scaling(run), run.read("basis/values")
        n_basis = basis.shape[0]
        self.reading = Reading(
            block_rows=block_rows(n_basis), weighting=RowWeights.of(dataset, run.chosen_params)
        )
        self._distances = BasisDistances.from_basis(
            scaling.apply(basis), scaling, l1=kernel_named(run.chosen_params.kernel).l1
        )
        self._buffer = np.empty((min(self.reading.block_rows, stop - start), n_basis))
        self._threads = blas_threads()
        self._totals: list[float] = []
        self._clusters = np.zeros(n_basis) if _has_shares(run) else None

    def add(self, block: FoldedBlock) -> None:
        buffer, threads = self._buffer[: block.n_rows], self._threads
        nearest = None if self._clusters is None else np.empty(block.n_rows, dtype=np.intp)
        self._totals.append(
            self._distances.total(
                block.X, weights=block.weights, nearest=nearest, buffer=buffer, threads=threads
            )
        )
        if self._clusters is not None and nearest is not None:
            self._clusters += np.bincount(nearest, block.weights, minlength=len(self._clusters))

    def sums(self) -> Sums:
        sums: Sums = {"": _DistanceSums(math.fsum(self._totals))}
        return sums if self._clusters is None else sums | {_CLUSTERS: _ClusterSums(self._clusters)}


def _cost(s: FitSizes) -> StageCost:
    rows = block_rows(s.r)
    return StageCost(
        products=s.n * s.product_flops(s.r),
        # A root takes about half of the time of an exponential.
        exponentials=s.n * s.r / 2,
        read_bytes=s.rows_bytes,
        held_bytes=s.held(8 * rows * (s.r + 4 * s.width) + s.basis_bytes(s.r, copies=3)),
        n_tasks=s.n_parts,
    )


def _check(context: FitContext) -> None:
    """Raise ParameterError if `class_weight` has no effect."""
    asked = context.params.class_weight
    if context.dataset.of_numbers and asked is not None and not context.embeds:
        raise ParameterError(
            f"`class_weight` is {asked}, but the targets are numbers.",
            "Leave `class_weight` out, or give sample weights.",
        )


WIDTH = Stage(
    name="width",
    compute=_compute,
    cost=_cost,
    check=_check,
    grows_with_basis=True,
    leaves=lambda run: ("width/shares",) if _has_shares(run) else (),
)
