"""Stage "moments": the heavy pass, n r^2 flops, summed in parts."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.engine.threads import blas_threads
from dask_nrbfn.errors import DamagedDataError, DamagedResultError
from dask_nrbfn.numeric.moments import Moments, MomentSums, check_moments, packed_size
from dask_nrbfn.stages.basis import BASIS
from dask_nrbfn.stages.parts import PartResult, block_rows, run_parts, run_tasks
from dask_nrbfn.stages.sizes import FitSizes
from dask_nrbfn.stages.stage import Stage, StageCost, StageJob
from dask_nrbfn.stages.weighting import RowWeights, folded_blocks
from dask_nrbfn.stages.width import read_features
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location, write_array
from dask_nrbfn.storage.run import Run

_DIMENSIONS = {
    "packed_gram": ("packed",),
    "cross": ("class", "basis"),
    "class_weights": ("class",),
}


@dataclass(frozen=True)
class MomentsRecord:
    """Rows that were summed, the sum of their weights, and the least of these."""

    rows: int
    weight: float
    least_weight: float


def _compute(job: StageJob) -> MomentsRecord:
    """Sum and store the moments of all rows, fold by fold."""
    run, engine = job.run, job.engine
    records = run_parts(run, job.dataset, engine, stage="moments", task=_moments_part)
    weights = [record["weights"] for record in records]
    (weight,) = run_tasks(engine, _combine, [(run.location, weights)], label="combine")
    return MomentsRecord(run.n_rows, weight, min(record["least_weight"] for record in records))


def read_moments(run: Run, *, without: int | None = None) -> Moments:
    """Return the moments of all rows, or by subtraction those of the rows outside one fold."""
    total = read_sums(run, "moments")
    if without is not None:
        total.subtract_in_place(read_sums(run, "moments", suffix=_suffix(run, without)))
    return total


def moments_bytes(
    n_basis: int, *, n_features: int, n_classes: int, n_folds: int, reading_bytes: int
) -> int:
    """Return the bytes that a moments task holds at its peak.

    The sums of every fold, as squares and packed, a block of activations and cross; the basis as
    read, scaled and as slopes; a block of rows as stored, one ahead, sorted by fold and centred;
    and two chunks.
    """
    rows = block_rows(n_basis)
    return reading_bytes + 8 * (
        n_folds * (n_basis**2 + packed_size(n_basis))
        + rows * n_basis
        + n_classes * (3 * n_folds * n_basis + rows)
        + 4 * n_basis * n_features
        + 5 * rows * n_features
    )


def combine_bytes(n_basis: int, n_classes: int) -> int:
    """Return the bytes that adding the parts holds: three sums, one of them read and decoded."""
    return 4 * 8 * (packed_size(n_basis) + n_basis * n_classes)


def _moments_part(run: Run, dataset: Dataset, start: int, stop: int) -> PartResult:
    n_basis, params, threads = BASIS.recorded(run).n_basis, run.params, blas_threads()
    size = block_rows(n_basis)
    blocks = folded_blocks(
        dataset,
        RowWeights.of(dataset, params),
        start,
        stop,
        size,
        n_folds=run.n_folds,
        seed=params.seed,
    )
    features = read_features(run)
    buffer = np.empty((min(size, stop - start), n_basis))
    scratch = np.empty((len(buffer), dataset.n_features + 2))
    sums = [MomentSums(n_basis, dataset.n_classes) for _ in range(run.n_folds)]
    least_weight = np.inf
    for block in blocks:
        factors, n = block.factors, len(block.X)
        Phi = features.activations(
            block.X, factors=factors, out=buffer[:n], scratch=scratch[:n], threads=threads
        )
        for of_fold, rows in zip(sums, block.slices, strict=True):
            own = None if factors is None else factors[rows]
            of_fold.add(Phi[rows], block.codes[rows], factors=own)
        least_weight = min(least_weight, 1.0 if block.weights is None else block.weights.min())
    moments = [of_fold.moments() for of_fold in sums]
    arrays: dict[str, NDArray[np.float64]] = {}
    for fold, total in enumerate(moments):
        arrays |= sums_arrays(total, suffix=_suffix(run, fold))
    record = {
        "rows": stop - start,
        "weights": [total.total_weight for total in moments],
        "least_weight": float(least_weight),
    }
    return PartResult(record, arrays)


def _combine(run_location: Location, weights: list[list[float]]) -> float:
    """Add the parts of each fold from first to last, in place; return the sum of all weights."""
    run = Run.open(run_location)
    total: Moments | None = None
    for fold in range(run.n_folds):
        suffix = _suffix(run, fold)
        moments = read_part_sums(run, "moments", 0, suffix=suffix)
        for index in range(1, len(run.spans)):
            moments.add_in_place(read_part_sums(run, "moments", index, suffix=suffix))
        _check(run, moments, math.fsum(of_folds[fold] for of_folds in weights))
        if run.n_folds > 1:
            write_sums(run, "moments", moments, suffix=suffix)
        if total is None:
            total = moments
        else:
            total.add_in_place(moments)
    assert total is not None
    write_sums(run, "moments", total)
    return total.total_weight


def _check(run: Run, moments: Moments, weight: float) -> None:
    try:
        check_moments(moments, weight, normalized=run.params.features == "normalized")
    except DamagedDataError as error:
        raise DamagedResultError(error.problem, error.remedy, "moments", ()) from error


def _suffix(run: Run, fold: int) -> str:
    """Return what the names of a fold's sums end in; those of all rows end in nothing."""
    return f"_{fold}" if run.n_folds > 1 else ""


def write_sums(run: Run, place: str, moments: Moments, *, suffix: str = "") -> None:
    """Store moments in the group `place` of a run."""
    group = run.group(place)
    for name, dimensions in _DIMENSIONS.items():
        write_array(group, name + suffix, getattr(moments, name), *dimensions)


def read_sums(run: Run, place: str, *, suffix: str = "") -> Moments:
    """Return moments from the group `place` of a run."""
    return Moments(*(run.read(f"{place}/{name}{suffix}") for name in _DIMENSIONS))


def read_part_sums(run: Run, stage: str, index: int, *, suffix: str = "") -> Moments:
    """Return the moments of one part."""
    return Moments(*(run.read_part(stage, index, name + suffix) for name in _DIMENSIONS))


def sums_arrays(moments: Moments, *, suffix: str = "") -> dict[str, NDArray[np.float64]]:
    """Return the arrays of moments by the names they are stored under."""
    return {name + suffix: getattr(moments, name) for name in _DIMENSIONS}


def _cost(s: FitSizes) -> StageCost:
    sums = 4 * s.r**2 * s.n_parts * s.n_folds
    flops = s.n * s.r**2 + 2 * s.n * s.r * s.p
    return StageCost(
        flops=flops,
        read_bytes=s.rows_bytes + sums,
        written_bytes=sums + 4 * s.r**2,
        held_bytes=s.process_bytes
        + max(
            moments_bytes(
                s.r,
                n_features=s.p,
                n_classes=s.K,
                n_folds=s.n_folds,
                reading_bytes=s.reading_bytes,
            ),
            combine_bytes(s.r, s.K),
        ),
        n_tasks=s.n_parts,
        work={
            "read_bytes": s.rows_bytes,
            "moments_flops": flops,
            "activations": s.n * s.r,
            "scratch_bytes": sums,
        },
        alone={"scratch_bytes": sums + 4 * s.r**2},
    )


MOMENTS = Stage(
    name="moments", record=MomentsRecord, compute=_compute, cost=_cost, grows_with_basis=True
)
