"""Stage "moments": the heavy pass, n r^2 flops, summed in parts."""

from typing import Any

import numpy as np

from dask_nrbfn.engine import Engine
from dask_nrbfn.engine.connect import blas_threads
from dask_nrbfn.errors import DamagedDataError, DamagedResultError
from dask_nrbfn.numeric.moments import Moments, MomentSums, check_moments, packed_size
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.stages.columns import read_scaling
from dask_nrbfn.stages.parts import PartResult, block_rows, run_parts, run_tasks
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location, write_array
from dask_nrbfn.storage.run import Run


def compute_moments(run: Run, dataset: Dataset, engine: Engine) -> dict[str, Any]:
    """Sum and store the moments of all rows."""
    run_parts(run, dataset, engine, stage="moments", task=_moments_part)
    (record,) = run_tasks(engine, _combine, [(run.location,)], label="combine")
    return dict(record)


def read_moments(run: Run) -> Moments:
    """Return the moments of a run."""
    return Moments(
        run.read("moments/packed_gram"), run.read("moments/cross"), run.read("moments/class_counts")
    )


def moments_bytes(n_basis: int, *, n_features: int, n_classes: int, reading_bytes: int) -> int:
    """Return the bytes that a moments task holds at its peak.

    The sums, as a square and packed, a block of activations and cross; the basis as read, scaled
    and as slopes; a block of rows as stored, one ahead and centred; and two chunks.
    """
    rows = block_rows(n_basis)
    return reading_bytes + 8 * (
        n_basis**2
        + packed_size(n_basis)
        + rows * n_basis
        + n_classes * (3 * n_basis + rows)
        + 4 * n_basis * n_features
        + 4 * rows * n_features
    )


def solve_bytes(n_basis: int, n_classes: int) -> int:
    """Return the bytes that the weights task holds: packed and full gram, penalized, factor."""
    return 8 * (packed_size(n_basis) + 4 * n_basis**2 + 4 * n_basis * n_classes)


def combine_bytes(n_basis: int, n_classes: int) -> int:
    """Return the bytes that adding the parts holds: two of them, one as read and decoded."""
    return 3 * 8 * (packed_size(n_basis) + n_basis * n_classes)


def _moments_part(run: Run, dataset: Dataset, start: int, stop: int) -> PartResult:
    size, threads = block_rows(run.basis_size()), blas_threads()
    blocks = dataset.blocks(start, stop, size)
    scaling = read_scaling(run)
    basis = scaling.apply(run.read("basis/values"))
    features = RadialFeatures.from_basis(basis, run.stages["width"]["width"], scaling)
    buffer = np.empty((min(size, stop - start), len(basis)))
    scratch = np.empty((len(buffer), dataset.n_features + 2))
    sums = MomentSums(len(basis), dataset.n_classes)
    for X, codes in blocks:
        assert codes is not None
        Phi = features.activations(
            X, out=buffer[: len(X)], scratch=scratch[: len(X)], threads=threads
        )
        sums.add(Phi, codes)
    moments = sums.moments()
    return PartResult(
        {"rows": stop - start},
        {
            "packed_gram": moments.packed_gram,
            "cross": moments.cross,
            "class_counts": moments.class_counts,
        },
    )


def _combine(run_location: Location) -> dict[str, Any]:
    """Add the parts from first to last, in place, and store the sum."""
    run = Run.open(run_location)
    total = _read_part(run, 0)
    for index in range(1, len(run.spans)):
        total.add_in_place(_read_part(run, index))
    try:
        check_moments(total, run.n_rows)
    except DamagedDataError as error:
        raise DamagedResultError(error.problem, error.remedy, "moments", ()) from error
    group = run.group("moments")
    write_array(group, "packed_gram", total.packed_gram, "packed")
    write_array(group, "cross", total.cross, "class", "basis")
    write_array(group, "class_counts", total.class_counts, "class")
    return {"rows": total.n_rows}


def _read_part(run: Run, index: int) -> Moments:
    return Moments(
        run.read_part("moments", index, "packed_gram"),
        run.read_part("moments", index, "cross"),
        run.read_part("moments", index, "class_counts"),
    )
