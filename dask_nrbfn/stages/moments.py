"""Stage "moments": the sums of the ridge system, in a pass of n r^2 flops."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_nrbfn.errors import DamagedDataError, DamagedResultError
from dask_nrbfn.numeric.folds import FoldedBlock
from dask_nrbfn.numeric.moments import Moments, MomentSums, check_moments, packed_size
from dask_nrbfn.numeric.radial import RadialFeatures, Scratch
from dask_nrbfn.numeric.ridge import RidgeSystem
from dask_nrbfn.numeric.targets import Targets
from dask_nrbfn.numeric.threads import blas_threads
from dask_nrbfn.parts import Reduction, SumRecord, Sums, reduce_parts
from dask_nrbfn.stages.stage import FitSizes, Stage, StageCost, StageJob
from dask_nrbfn.stages.width import read_features, read_targets
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import block_rows
from dask_nrbfn.storage.run import Run
from dask_nrbfn.weighting import Reading, RowWeights

_DIMENSIONS = {
    "packed_gram": ("packed",),
    "products": ("target", "basis"),
    "target_products": ("target", "other_target"),
}


def _compute(job: StageJob) -> dict[str, Any]:
    """Sum and store the moments of all rows, fold by fold; return rows and weight."""
    kinds = dict.fromkeys(_suffixes(job.run.n_folds), Moments)
    reduction = Reduction("moments", _begin, kinds, job.run.layout, finish=_finish)
    record = reduce_parts(job.run, job.dataset, job.engine, reduction)
    return {"rows": record.rows, "weight": record.weight}


def read_moments(run: Run, *, without: int | None = None) -> Moments:
    """Return the moments of all rows, or, by subtraction, of the rows outside one fold."""
    total = read_sums(run, "moments")
    if without is not None:
        total -= read_sums(run, "moments", suffix=_suffixes(run.n_folds)[without])
    return total


def read_system(run: Run, moments: Moments) -> RidgeSystem:
    """Return the ridge system of the moments of a run."""
    targets = read_targets(run, len(moments.cross))
    return RidgeSystem.of(moments, targets, normalized=run.chosen_params.normalized)


def moments_bytes(
    n_basis: int, *, width: int, basis_bytes: int, n_targets: int, n_folds: int, reading_bytes: int
) -> int:
    """Return the peak memory of a task: the sums of every fold, a block, the basis, the chunks."""
    rows = block_rows(n_basis)
    return (basis_bytes + reading_bytes) + 8 * (
        n_folds * n_basis**2
        + rows * n_basis
        + (1 + n_targets) * (3 * n_folds * n_basis + rows)
        + 5 * rows * width
    )


class MomentsPass:
    """Moments of the rows of a part, fold by fold."""

    def __init__(
        self, features: RadialFeatures, reading: Reading, *, targets: Targets, n_rows: int
    ) -> None:
        n_basis = features.n_basis
        self.reading = reading
        self._features, self._threads = features, blas_threads()
        self._buffer = np.empty((min(reading.block_rows, n_rows), n_basis))
        self._scratch = Scratch(len(self._buffer), features.basis.shape[1])
        self._targets = targets
        self._of_folds = [MomentSums(n_basis, targets.n_targets) for _ in range(reading.n_folds)]

    def add(self, block: FoldedBlock) -> None:
        """Add a block."""
        factors, n = block.factors, block.n_rows
        Phi = self._features.activations(
            block.X,
            factors=factors,
            out=self._buffer[:n],
            scratch=self._scratch.of(block.X),
            threads=self._threads,
        )
        T = self._targets.bordered(block.targets, factors)
        for of_fold, rows in zip(self._of_folds, block.slices, strict=True):
            of_fold.add(Phi[rows], T[rows])

    def sums(self) -> Sums:
        """Return the moments of every fold."""
        suffixes = _suffixes(len(self._of_folds))
        return {
            suffix: of_fold.moments()
            for suffix, of_fold in zip(suffixes, self._of_folds, strict=True)
        }


def _begin(run: Run, dataset: Dataset, start: int, stop: int) -> MomentsPass:
    features, params = read_features(run), run.chosen_params
    reading = Reading(
        block_rows=block_rows(features.n_basis),
        weighting=RowWeights.of(dataset, params),
        n_folds=run.n_folds,
        seed=params.random_state,
    )
    return MomentsPass(
        features, reading, targets=read_targets(run, dataset.n_targets), n_rows=stop - start
    )


def _finish(run: Run, record: SumRecord, sums: Sums) -> list[str]:
    """Check and store the moments of every fold and of all rows; return the names of the arrays."""
    names: list[str] = []
    if run.n_folds > 1:
        for suffix, moments in sums.items():
            _check(run, moments, moments.total_weight)
            names += write_sums(run, "moments", moments, suffix=suffix)
    total, *of_others = sums.values()
    for moments in of_others:
        total += moments
    _check(run, total, record.weight)
    return names + write_sums(run, "moments", total)


def _check(run: Run, moments: Moments, weight: float) -> None:
    try:
        check_moments(moments, weight, normalized=run.chosen_params.normalized)
    except DamagedDataError as error:
        raise DamagedResultError(error.problem, error.remedy, "moments", ()) from error


def _suffixes(n_folds: int) -> Sequence[str]:
    """Return the suffix of the names of the sums of each fold; the sums of all rows have none."""
    return [f"_{fold}" for fold in range(n_folds)] if n_folds > 1 else [""]


def write_sums(run: Run, place: str, moments: Moments, *, suffix: str = "") -> list[str]:
    """Store moments; return the names of the arrays."""
    group = run.group(place)
    for name, dimensions in _DIMENSIONS.items():
        write_array(group, name + suffix, getattr(moments, name), *dimensions)
    return [f"{place}/{name}{suffix}" for name in _DIMENSIONS]


def read_sums(run: Run, place: str, *, suffix: str = "") -> Moments:
    """Return the moments that are stored in the group `place` of a run."""
    return Moments(*(run.read(f"{place}/{name}{suffix}") for name in _DIMENSIONS))


def _cost(s: FitSizes) -> StageCost:
    sums = 4 * s.r**2 * s.n_folds
    summing = moments_bytes(
        s.r,
        width=s.width,
        basis_bytes=s.basis_bytes(s.r, copies=4),
        n_targets=s.q,
        n_folds=s.n_folds,
        reading_bytes=0,
    )
    # The sums of all folds, and a fold read and decoded.
    adding = (s.n_folds + 2) * 8 * (packed_size(s.r) + s.r * (1 + s.q))
    return StageCost(
        products=s.n * s.r**2 + s.n * s.product_flops(s.r),
        exponentials=s.n * s.r,
        read_bytes=s.rows_bytes + (s.n_parts - 1) * sums,
        written_bytes=s.n_parts * sums,
        held_bytes=s.held(summing, adding),
        n_tasks=s.n_parts,
    )


MOMENTS = Stage(
    name="moments",
    compute=_compute,
    cost=_cost,
    labelled_only=True,
    grows_with_basis=True,
    leaves=lambda run: tuple(f"moments/{name}" for name in _DIMENSIONS),
)
