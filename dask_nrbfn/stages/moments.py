"""Stage "moments": the heavy pass, n r^2 flops, summed in parts."""

import math
from typing import Any

import numpy as np

from dask_nrbfn.engine import Engine
from dask_nrbfn.engine.connect import blas_threads
from dask_nrbfn.errors import DamagedDataError, DamagedResultError
from dask_nrbfn.numeric.folds import folds_of_rows, order_by_fold
from dask_nrbfn.numeric.moments import Moments, MomentSums, check_moments, packed_size
from dask_nrbfn.stages.parts import PartResult, block_rows, run_parts, run_tasks
from dask_nrbfn.stages.weighting import RowWeights
from dask_nrbfn.stages.width import read_features
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location, write_array
from dask_nrbfn.storage.run import Run

_DIMENSIONS = {
    "packed_gram": ("packed",),
    "cross": ("class", "basis"),
    "class_weights": ("class",),
}


def compute_moments(run: Run, dataset: Dataset, engine: Engine) -> dict[str, Any]:
    """Sum and store the moments of all rows, fold by fold."""
    records = run_parts(run, dataset, engine, stage="moments", task=_moments_part)
    weights = [record["weights"] for record in records]
    (record,) = run_tasks(engine, _combine, [(run.location, weights)], label="combine")
    return dict(record)


def read_moments(run: Run, *, without: int | None = None) -> Moments:
    """Return the moments of all rows, or by subtraction those of the rows outside one fold."""
    total = _read(run, "")
    if without is not None:
        total.subtract_in_place(_read(run, _suffix(run, without)))
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
    n_basis, n_folds, threads = run.basis_size(), run.n_folds, blas_threads()
    params = run.params
    size = block_rows(n_basis)
    blocks = dataset.blocks(start, stop, size)
    features, weighting = read_features(run), RowWeights.of(dataset, params)
    buffer = np.empty((min(size, stop - start), n_basis))
    scratch = np.empty((len(buffer), dataset.n_features + 2))
    sums = [MomentSums(n_basis, dataset.n_classes) for _ in range(n_folds)]
    for first, (X, codes, own) in zip(range(start, stop, size), blocks, strict=True):
        assert codes is not None
        weights = weighting.of_rows(codes, own)
        factors = None if weights is None else np.sqrt(weights)
        n = len(X)
        folds = folds_of_rows(first, first + n, n_folds=n_folds, seed=params.seed)
        order, slices = order_by_fold(folds, n_folds=n_folds)
        if n_folds > 1:
            X, codes = X[order], codes[order]
            factors = None if factors is None else factors[order]
        Phi = features.activations(
            X, factors=factors, out=buffer[:n], scratch=scratch[:n], threads=threads
        )
        for fold, rows in enumerate(slices):
            own_factors = None if factors is None else factors[rows]
            sums[fold].add(Phi[rows], codes[rows], factors=own_factors)
    moments = [fold.moments() for fold in sums]
    arrays = {
        name + _suffix(run, fold): getattr(total, name)
        for fold, total in enumerate(moments)
        for name in _DIMENSIONS
    }
    totals = [total.total_weight for total in moments]
    return PartResult({"rows": stop - start, "weights": totals}, arrays)


def _combine(run_location: Location, weights: list[list[float]]) -> dict[str, Any]:
    """Add the parts of each fold from first to last, in place, and store the sums."""
    run = Run.open(run_location)
    total: Moments | None = None
    for fold in range(run.n_folds):
        moments = _read_part(run, 0, fold)
        for index in range(1, len(run.spans)):
            moments.add_in_place(_read_part(run, index, fold))
        _check(run, moments, math.fsum(of_folds[fold] for of_folds in weights))
        if run.n_folds > 1:
            _write(run, _suffix(run, fold), moments)
        if total is None:
            total = moments
        else:
            total.add_in_place(moments)
    assert total is not None
    _write(run, "", total)
    return {"rows": run.n_rows, "weight": total.total_weight}


def _check(run: Run, moments: Moments, weight: float) -> None:
    try:
        check_moments(moments, weight, normalized=run.params.features == "normalized")
    except DamagedDataError as error:
        raise DamagedResultError(error.problem, error.remedy, "moments", ()) from error


def _suffix(run: Run, fold: int) -> str:
    """Return what the names of a fold's sums end in; those of all rows end in nothing."""
    return f"_{fold}" if run.n_folds > 1 else ""


def _write(run: Run, suffix: str, moments: Moments) -> None:
    group = run.group("moments")
    for name, dimensions in _DIMENSIONS.items():
        write_array(group, name + suffix, getattr(moments, name), *dimensions)


def _read(run: Run, suffix: str) -> Moments:
    return Moments(*(run.read(f"moments/{name}{suffix}") for name in _DIMENSIONS))


def _read_part(run: Run, index: int, fold: int) -> Moments:
    return Moments(
        *(run.read_part("moments", index, name + _suffix(run, fold)) for name in _DIMENSIONS)
    )
