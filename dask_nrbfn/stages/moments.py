"""Stages "width", "components", "moments" and "locality": the sums of the ridge system."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import DamagedDataError, DamagedResultError, DataError, ParameterError
from dask_nrbfn.numeric.device import array_module, check_sums_fit
from dask_nrbfn.numeric.distances import distances_from, float_rows, placed
from dask_nrbfn.numeric.eigenfunctions import (
    LEAST_EIGENVALUE,
    eigenfunctions,
    eigenfunctions_bytes,
    eigenfunctions_flops,
)
from dask_nrbfn.numeric.folds import FoldedBlock
from dask_nrbfn.numeric.kernels import kernel_named
from dask_nrbfn.numeric.locality import LocalitySum, LocalitySums, locality_bytes, neighbor_shares
from dask_nrbfn.numeric.moments import (
    Moments,
    MomentSums,
    check_moments,
    packed_size,
    unpack_gram,
)
from dask_nrbfn.numeric.penalties import RidgeTerms, penalty_named
from dask_nrbfn.numeric.radial import RadialFeatures, Scratch
from dask_nrbfn.numeric.ridge import RidgeSystem
from dask_nrbfn.numeric.ridge_path import directions_among
from dask_nrbfn.numeric.rows import Rows
from dask_nrbfn.numeric.sums import RowSum
from dask_nrbfn.numeric.targets import ClassTargets, NumberTargets, Targets
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.parts import Reduction, RowPass, SumRecord, Sums, read_total, reduce_parts, run_task
from dask_nrbfn.stages.bases import check_neighbors
from dask_nrbfn.stages.basis import BASIS, BASIS_VALUES
from dask_nrbfn.stages.columns import read_scaling
from dask_nrbfn.stages.context import FitContext, FitSizes
from dask_nrbfn.stages.cost import StageCost
from dask_nrbfn.stages.neighbors import MAX_TARGETS, search_rows_exactly
from dask_nrbfn.stages.stage import Stage, StageJob, StageRecord
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import PartLayout, block_rows, gpu_block_rows
from dask_nrbfn.storage.run import Run, RunArray, RunArrays
from dask_nrbfn.weighting import RowReading, RowWeights

logger = logging.getLogger(__name__)

# Number of evenly spaced rows whose median targets become the origin of the targets.
_ORIGIN_ROWS = 101


@dataclass(frozen=True, kw_only=True)
class WidthRecord(StageRecord):
    """The kernel width, and how rows that are added later are weighted and centred."""

    width: float
    mean_distance: float
    class_weights: list[float] | None = None
    target_origin: list[float] | None = None


SHARES = RunArray(
    "width/shares", ("basis",), "share of the weight of the rows nearest to each basis row"
)


def _measure_width(job: StageJob) -> WidthRecord:
    """Return the width: the mean distance (hu-nrbfn, Algorithm 2, step 5) times `width_factor`."""
    run, dataset = job.run, job.dataset
    reduction = Reduction("width", _WidthPass, {"": _WidthSums}, run.layout)
    record = reduce_parts(run, dataset, job.engine, reduction)
    sums: _WidthSums = read_total(run, reduction)
    mean_distance = sums.total / (record.weight * BASIS.recorded(run).n_basis)
    if mean_distance == 0:
        raise DataError(
            "all rows of X are equal, or differ by less than float64 can square.",
            "Give rows that differ in some column.",
        )
    width = run.spec.params.width_factor * mean_distance
    # Activations divide by the square; below the smallest normal number its inverse overflows.
    if 2 * width**2 < np.finfo(np.float64).tiny:
        raise DataError(
            f"the rows of X are so near each other that the width is {width:.3g}, whose square "
            "underflows float64.",
            "Multiply X by a large number, such as 1e100.",
        )
    if _has_shares(run):
        SHARES.write(run, sums.clusters / record.weight)
    logger.info("width: %.6g", width)
    # Updates weigh and centre later rows like these.
    class_weights = RowWeights.of(dataset, run.spec.params).to_list()
    origin = None
    if dataset.of_numbers:
        # The median of a few rows, because one row may be an outlier.
        labelled = dataset.of_labelled()
        rows = np.unique(np.linspace(0, labelled.n_rows - 1, _ORIGIN_ROWS).astype(np.int64))
        origin = np.median(labelled.take_targets(rows), axis=0).tolist()
    return WidthRecord(
        width=width,
        mean_distance=mean_distance,
        class_weights=class_weights,
        target_origin=origin,
    )


def read_features(run: Run) -> RadialFeatures:
    """Return the radial basis functions of a run whose width is known."""
    scaling, params = read_scaling(run), run.spec.params
    return RadialFeatures.from_basis(
        scaling.apply(BASIS_VALUES.read(run)),
        WIDTH.recorded(run).width,
        scaling,
        kernel=params.kernel,
        normalized=params.normalized,
    )


def _has_shares(run: Run) -> bool:
    """Return whether a penalty that the run has or tries needs the shares of clusters."""
    return any(penalty_named(name).needs_shares for name in run.spec.supported_penalties)


def read_targets(run: Run, n_targets: int) -> Targets:
    """Return the targets of a run whose width is known."""
    origin = WIDTH.recorded(run).target_origin
    return ClassTargets(n_targets) if origin is None else NumberTargets(np.array(origin))


@dataclass(frozen=True, eq=False)
class _WidthSums(RowSum):
    """The weighted sum of all distances, and the weight of the rows nearest to each basis row."""

    total: float
    # Empty if no penalty needs the shares of clusters.
    clusters: Floats


class _WidthPass:
    """Distances between the rows of a part and all basis rows."""

    def __init__(self, run: Run, dataset: Dataset, start: int, stop: int) -> None:
        scaling = read_scaling(run)
        scaled = float_rows(scaling.apply(BASIS_VALUES.read(run)))
        basis, own = placed(scaled, scaling)
        n_basis, xp = basis.shape[0], array_module(basis)
        self.reading = RowReading(
            block_rows=rows_of_block(basis), weighting=RowWeights.of(dataset, run.spec.params)
        )
        self._distances = distances_from(basis, own, l1=kernel_named(run.spec.params.kernel).l1)
        self._buffer = xp.empty((min(self.reading.block_rows, stop - start), n_basis))
        self._totals: list[float] = []
        self._clusters = np.zeros(n_basis if _has_shares(run) else 0)

    def add(self, block: FoldedBlock) -> None:
        buffer = self._buffer[: block.n_rows]
        nearest = np.empty(block.n_rows, dtype=np.intp) if len(self._clusters) else None
        self._totals.append(
            self._distances.total(block.X, weights=block.weights, nearest=nearest, buffer=buffer)
        )
        if nearest is not None:
            self._clusters += np.bincount(nearest, block.weights, minlength=len(self._clusters))

    def sums(self) -> Sums:
        return {"": _WidthSums(math.fsum(self._totals), self._clusters)}


def _width_cost(s: FitSizes) -> StageCost:
    rows = block_rows(s.r)
    return StageCost(
        products=s.n * s.product_flops(s.r),
        # A root takes about half of the time of an exponential.
        exponentials=s.n * s.r / 2,
        read_bytes=s.rows_bytes,
        held_bytes=s.held(8 * rows * (s.r + 4 * s.width) + s.basis_bytes(s.r, copies=3)),
        n_tasks=s.layout.n_parts,
    )


def _check_class_weight(context: FitContext) -> None:
    """Raise ParameterError if `class_weight` has no effect."""
    asked = context.spec.params.class_weight
    if context.spec.targets == "numbers" and asked is not None:
        raise ParameterError(
            f"`class_weight` is {asked}, but the targets are numbers.",
            "Leave `class_weight` out, or give sample weights.",
        )


WIDTH = Stage(
    name="width",
    compute=_measure_width,
    record=WidthRecord,
    arrays=(SHARES,),
    cost=_width_cost,
    check=_check_class_weight,
    grows_with_basis=True,
    read_by_updates=True,
)


@dataclass(frozen=True, kw_only=True)
class ComponentsRecord(StageRecord):
    """The number of stored eigenfunctions, and the least of their eigenvalues."""

    n_components: int
    least_eigenvalue: float


COEFFICIENTS = RunArray(
    "components/coefficients", ("basis", "component"), "coefficients of the eigenfunctions"
)
EIGENVALUES = RunArray("components/eigenvalues", ("component",), "their eigenvalues, descending")


def _find_components(job: StageJob) -> ComponentsRecord:
    """Store the eigenfunctions; return their number and the least eigenvalue of these."""
    record = run_task(job.engine, _solve_components, job.run, label="components")
    most, found = most_components(job.run), record.n_components
    logger.info("components: %d, eigenvalues down to %.3g", found, record.least_eigenvalue)
    if found < most:
        few = "components: %d are requested, but only %d have an eigenvalue above %g"
        logger.warning(few, most, found, LEAST_EIGENVALUE)
    return record


def _solve_components(run: Run) -> ComponentsRecord:
    found = eigenfunctions(read_features(run), most_components(run))
    COEFFICIENTS.write(run, found.coefficients)
    EIGENVALUES.write(run, found.eigenvalues)
    return ComponentsRecord(
        n_components=len(found.eigenvalues), least_eigenvalue=float(found.eigenvalues[-1])
    )


def most_components(run: Run) -> int:
    """Return the largest number of eigenfunctions that a run uses; 0 without eigenfunctions.

    An embedding has one more, the constant eigenfunction, which gives no coordinate.
    """
    asked = (size for size in run.spec.components if size is not None)
    return max(asked, default=0) + run.embeds


def _components_cost(s: FitSizes) -> StageCost:
    held = s.basis_bytes(s.r, copies=4) + eigenfunctions_bytes(s.r)
    return StageCost(
        products=eigenfunctions_flops(s.r),
        held_bytes=s.held(held + 16 * s.r * s.n_components, reads=False),
    )


def _check_components(context: FitContext) -> None:
    """Raise ParameterError if another parameter does not support `components`."""
    spec, params = context.spec, context.spec.params
    unfit = {
        "features": (spec.features, "normalized"),
        "penalty": (spec.penalties, "weights"),
        "locality": ([each for each in spec.localities if each] or [0.0], 0.0),
        "loss": (spec.refined_losses or ["squared"], "squared"),
        "prune": ((params.prune,), None),
    }
    most = max(size for size in spec.components if size is not None)
    for name, (values, needed) in unfit.items():
        if needed not in values:
            raise ParameterError(
                f"`components` is {most}, but `{name}` is {values[0]}.",
                f"Give `{name}`={needed}, or leave `components` out."
                if needed
                else f"Give `components` or `{name}`, not both.",
            )
    # The constant eigenfunction gives no coordinate.
    n_constant = int(spec.mode == "embed")
    n_needed, n_rows = most + n_constant, context.dataset.n_rows
    if n_constant and n_rows < n_needed:
        raise DataError(
            f"X has n_samples = {n_rows}, too few for {most} coordinates.",
            f"Give at least {n_needed} rows, or a smaller `components`.",
        )
    if params.basis_size is not None and params.basis_size < n_needed:
        why = ": one eigenfunction is constant" if n_constant else ""
        raise ParameterError(
            f"`components` is {most}, but the basis has only {params.basis_size} rows.",
            f"Set `components` to at most {params.basis_size - n_constant}{why}.",
        )


COMPONENTS = Stage(
    name="components",
    compute=_find_components,
    record=ComponentsRecord,
    arrays=(COEFFICIENTS, EIGENVALUES),
    cost=_components_cost,
    check=_check_components,
    wanted=lambda spec: spec.components != (None,),
    grows_with_basis=True,
    read_by_updates=True,
)


@dataclass(frozen=True, kw_only=True)
class MomentsRecord(StageRecord):
    """The number of summed rows, and the sum of their weights."""

    rows: int
    weight: float


STORED_MOMENTS = RunArrays(
    {
        "packed_gram": (("packed",), "upper triangle of the products of activations, row by row"),
        "products": (("target", "basis"), "products of 1 and of each target with the activations"),
        "target_products": (
            ("target", "other_target"),
            "products of 1 and of each target with each other",
        ),
    }
)
"""The arrays of `Moments`; the sums of a fold have its suffix."""


def _sum_moments(job: StageJob) -> MomentsRecord:
    """Sum and store the moments of all rows, fold by fold; return rows and weight."""
    kinds = dict.fromkeys(_suffixes(job.run.spec.n_sums), Moments)
    reduction = Reduction("moments", _begin_moments, kinds, job.run.layout, finish=_finish_moments)
    record = reduce_parts(job.run, job.dataset, job.engine, reduction)
    return MomentsRecord(rows=record.rows, weight=record.weight)


def read_moments(run: Run, *, without: int | None = None) -> Moments:
    """Return the moments of all rows, or, by subtraction, of the rows outside one fold."""
    total = read_sums(run, "moments")
    if without is not None:
        total -= read_sums(run, "moments", suffix=_suffixes(run.spec.n_folds)[without])
    return total


def read_system(run: Run, moments: Moments) -> RidgeSystem:
    """Return the ridge system of the moments of a run."""
    targets = read_targets(run, len(moments.cross))
    return RidgeSystem.of(moments, targets, normalized=run.spec.params.normalized)


def moments_bytes(n_basis: int, *, width: int, n_targets: int, n_folds: int) -> int:
    """Return the bytes of the sums of every fold and of a block, without the basis."""
    rows = block_rows(n_basis)
    return 8 * (
        n_folds * n_basis**2
        + rows * n_basis
        + (1 + n_targets) * (3 * n_folds * n_basis + rows)
        + 5 * rows * width
    )


def rows_of_block(basis: Rows) -> int:
    """Return the rows of a block of activations of a basis (r, p), which may be on a GPU."""
    n_basis, n_features = basis.shape
    on_host = array_module(basis) is np
    return block_rows(n_basis) if on_host else gpu_block_rows(n_basis, n_features)


class MomentsPass:
    """Moments of the rows of a part, fold by fold."""

    def __init__(
        self, features: RadialFeatures, reading: RowReading, *, targets: Targets, n_rows: int
    ) -> None:
        n_basis, xp = features.n_basis, features.xp
        self.reading = reading
        self._features = features
        shape, p = (min(reading.block_rows, n_rows), n_basis), features.basis.shape[1]
        check_sums_fit(features.basis, reading.n_folds, 8 * shape[0] * (n_basis + 4 * p))
        self._buffer = xp.empty(shape)
        self._scratch = Scratch(len(self._buffer), p, xp=xp)
        self._targets = targets
        n_targets = targets.n_targets
        self._of_folds = [MomentSums(n_basis, n_targets, xp=xp) for _ in range(reading.n_folds)]

    def add(self, block: FoldedBlock) -> None:
        """Add a block."""
        factors, n = block.factors, block.n_rows
        Phi = self._features.activations(
            block.X,
            factors=factors,
            out=self._buffer[:n],
            scratch=self._scratch.of(block.X),
        )
        T = self._targets.bordered(block.targets, factors)
        for of_fold, rows in zip(self._of_folds, block.slices, strict=True):
            of_fold.add(Phi[rows], T[rows])

    def sums(self) -> Sums:
        """Return the moments of every fold."""
        moments = (of_fold.moments() for of_fold in self._of_folds)
        return dict(zip(_suffixes(len(self._of_folds)), moments, strict=True))


def folded_reading(
    run: Run, dataset: Dataset, block_rows: int, codes_in_model: Sequence[int] | None = None
) -> RowReading:
    """Return how a pass reads rows that are weighted and folded as in the moments of a run."""
    return RowReading(
        block_rows=block_rows,
        weighting=RowWeights.of(dataset, run.spec.params),
        n_folds=run.spec.n_sums,
        n_drawn_folds=run.spec.n_folds,
        seed=run.spec.params.random_state,
        codes_in_model=codes_in_model,
    )


def _begin_moments(run: Run, dataset: Dataset, start: int, stop: int) -> MomentsPass:
    features = read_features(run).on_device()
    reading = folded_reading(run, dataset, rows_of_block(features.basis))
    targets = read_targets(run, dataset.n_targets)
    return MomentsPass(features, reading, targets=targets, n_rows=stop - start)


def _finish_moments(run: Run, record: SumRecord, sums: Sums) -> None:
    """Check and store the moments of every held-out fold and of all rows."""
    suffixes = [*sums]
    for suffix in (suffixes[fold] for fold in range(run.spec.n_held_out)):
        _check_moments(run, sums[suffix], sums[suffix].total_weight)
        STORED_MOMENTS.write(run, "moments", sums[suffix].arrays(), suffix)
    total, *of_others = sums.values()
    for moments in of_others:
        total += moments
    _check_moments(run, total, record.weight)
    STORED_MOMENTS.write(run, "moments", total.arrays())


def _check_moments(run: Run, moments: Moments, weight: float) -> None:
    try:
        check_moments(moments, weight, normalized=run.spec.params.normalized)
    except DamagedDataError as error:
        raise DamagedResultError(error.problem, error.remedy, "moments", ()) from error


def _suffixes(n_folds: int) -> Sequence[str]:
    """Return the suffix of the names of the sums of each fold; the sums of all rows have none."""
    return [f"_{fold}" for fold in range(n_folds)] if n_folds > 1 else [""]


def read_sums(run: Run, place: str, *, suffix: str = "") -> Moments:
    """Return the moments that are stored in the group `place` of a run."""
    return Moments(**STORED_MOMENTS.read(run, place, suffix))


def _moments_cost(s: FitSizes) -> StageCost:
    sums = 4 * s.r**2 * s.spec.n_sums
    summing = moments_bytes(s.r, width=s.width, n_targets=s.q, n_folds=s.spec.n_sums)
    summing += s.basis_bytes(s.r, copies=4)
    # The sums of all folds, and a fold read and decoded.
    adding = (s.spec.n_sums + 2) * 8 * (packed_size(s.r) + s.r * (1 + s.q))
    return StageCost(
        products=s.n * s.r**2 + s.n * s.product_flops(s.r),
        exponentials=s.n * s.r,
        read_bytes=s.rows_bytes + (s.layout.n_parts - 1) * sums,
        written_bytes=s.layout.n_parts * sums,
        held_bytes=s.held(summing, adding),
        n_tasks=s.layout.n_parts,
    )


MOMENTS = Stage(
    name="moments",
    compute=_sum_moments,
    record=MomentsRecord,
    arrays=(*STORED_MOMENTS.in_group("moments").values(),),
    cost=_moments_cost,
    labelled_only=True,
    grows_with_basis=True,
)


# Drawn rows for each basis row. 1,797 digits, 100 of them labelled, 400 basis rows: with 0, 200,
# 800 and all rows drawn, the error on unlabelled rows is 6.9, 5.7, 5.1 and 4.8 %. At most
# `MAX_TARGETS` are drawn: more would cost more than the moments, and a penalty needs no precision.
_ROWS_OF_BASIS_ROW = 10

# The most drawn rows of a part, and the most elements of these rows and their neighbours.
_PART_ROWS, _PART_ELEMENTS = 1024, 2**25

# The scratch stage with the sums of the parts.
_LOCALITY_SUMS = "locality-sums"


@dataclass(frozen=True, kw_only=True)
class LocalityRecord(StageRecord):
    """The numbers of drawn rows, of those with a neighbour of their own kind, and of pairs."""

    n_drawn: int
    n_bound: int
    n_pairs: int


PACKED_LOCALITY = RunArray(
    "locality/packed", ("packed",), "upper triangle of the matrix R of the penalty, row by row"
)
DRAWN_ROWS = RunArray("locality/rows", ("target",), "drawn rows", verified=False)
DRAWN_NEIGHBORS = RunArray(
    "locality/indices", ("row", "neighbor"), "neighbours of the drawn rows", verified=False
)
DRAWN_DISTANCES = RunArray(
    "locality/distances", ("row", "neighbor"), "their distances", verified=False
)


def _sum_locality(job: StageJob) -> LocalityRecord:
    """Sum and store R over drawn rows and their neighbours among all rows; return their numbers."""
    run, dataset, k = job.run, job.dataset, job.run.spec.params.k
    n_drawn = _n_drawn(run.n_rows, BASIS.recorded(run).n_basis)
    rng = np.random.default_rng([run.spec.params.random_state, 2])
    drawn = np.sort(rng.choice(run.n_rows, n_drawn, replace=False))
    search_rows_exactly(job, "locality", drawn)
    part_rows = _part_rows(k, dataset.row_values)
    layout = PartLayout(n_drawn, part_rows, part_rows)
    reduction = Reduction(_LOCALITY_SUMS, _LocalityPass, {"": LocalitySum}, layout)
    reduce_parts(run, dataset, job.engine, reduction)
    record = run_task(job.engine, _store_sum, run, reduction, label="locality")
    logger.log(
        logging.INFO if record.n_bound else logging.WARNING,
        "locality: %d of %d drawn rows have neighbours of their own kind, %d in all",
        record.n_bound,
        record.n_drawn,
        record.n_pairs,
    )
    return record


def ridge_terms(run: Run, features: Callable[[], RadialFeatures] | None = None) -> RidgeTerms:
    """Return the terms of the ridges of a run; `features` returns those of its network."""

    def directions(kept: NDArray[np.bool_]) -> Floats:
        if kept.all():
            return COEFFICIENTS.read(run)
        return directions_among(read_features(run), kept, most_components(run))

    return RidgeTerms(
        features=features or partial(read_features, run),
        shares=lambda: SHARES.read(run),
        locality=lambda: unpack_gram(PACKED_LOCALITY.read(run), BASIS.recorded(run).n_basis),
        directions=directions,
    )


class _LocalityPass(RowPass):
    """The sum over some of the drawn rows, which are read with their neighbours."""

    def __init__(self, run: Run, dataset: Dataset, first: int, last: int) -> None:
        drawn = DRAWN_ROWS.read(run, first, last)
        indices = DRAWN_NEIGHBORS.read(run, first, last)
        distances = DRAWN_DISTANCES.read(run, first, last)
        numbers, places = np.unique(np.column_stack([drawn, indices]), return_inverse=True)
        places = places.reshape(len(drawn), -1)
        classes = {}
        if not dataset.of_numbers:
            codes = dataset.take_targets(numbers)[places]
            classes = {"codes": codes[:, 0], "neighbor_codes": codes[:, 1:]}
        shares = neighbor_shares(distances, scale=WIDTH.recorded(run).mean_distance, **classes)
        X, features = dataset.take(numbers), read_features(run)
        self._sums = LocalitySums(features.n_basis)
        size = _block_rows(features.n_basis, indices.shape[1])
        for start in range(0, len(drawn), size):
            rows = slice(start, start + size)
            used, own = np.unique(places[rows], return_inverse=True)
            own = own.reshape(-1, places.shape[1])
            Phi = features.activations(X[used])
            self._sums.add(Phi, own[:, 0], own[:, 1:], shares[rows])

    def sums(self) -> Sums:
        return {"": self._sums.sum()}


def _store_sum(run: Run, reduction: Reduction) -> LocalityRecord:
    """Store the sum over all drawn rows."""
    total: LocalitySum = read_total(run, reduction)
    PACKED_LOCALITY.write(run, total.packed)
    return LocalityRecord(
        n_drawn=reduction.layout.n_rows, n_bound=total.n_bound, n_pairs=total.n_pairs
    )


def _n_drawn(n_rows: int, n_basis: int) -> int:
    return min(n_rows, _ROWS_OF_BASIS_ROW * n_basis, MAX_TARGETS)


def _part_rows(n_neighbors: int, row_values: float) -> int:
    """Return the number of drawn rows of a part."""
    return max(1, min(_PART_ROWS, int(_PART_ELEMENTS / ((n_neighbors + 1) * max(row_values, 1)))))


def _block_rows(n_basis: int, n_neighbors: int) -> int:
    """Return the number of drawn rows whose neighbours are summed together."""
    return max(1, block_rows(n_basis) // n_neighbors)


def _locality_cost(s: FitSizes) -> StageCost:
    n_drawn, part_rows = _n_drawn(s.n, s.r), _part_rows(s.k, s.row_values)
    n_parts, sums = -(-n_drawn // part_rows), 4 * s.r**2
    n_pairs = _block_rows(s.r, s.k) * s.k
    rows = round(part_rows * (s.k + 1) * s.block_row_bytes)
    summing = 2 * rows + s.basis_bytes(s.r, copies=4)
    summing += locality_bytes(s.r, s.width, n_pairs=n_pairs)
    return StageCost(
        products=n_drawn * (s.k + 1) * (s.r**2 + s.product_flops(s.r)),
        exponentials=n_drawn * (s.k + 1) * s.r,
        pairs=s.n * n_drawn,
        pair_flops=s.pair_flops,
        read_bytes=n_parts * (s.rows_bytes + sums),
        written_bytes=(n_parts + 1) * sums,
        held_bytes=s.held(s.exact_search_bytes(n_drawn), summing, 3 * 8 * packed_size(s.r)),
        n_tasks=min(s.layout.n_parts, n_parts),
    )


LOCALITY = Stage(
    name="locality",
    compute=_sum_locality,
    record=LocalityRecord,
    arrays=(PACKED_LOCALITY, DRAWN_ROWS, DRAWN_NEIGHBORS, DRAWN_DISTANCES),
    cost=_locality_cost,
    check=lambda of: check_neighbors(of.spec.params.k, of.dataset, labelled_only=False),
    wanted=lambda spec: any(spec.localities),
    grows_with_basis=True,
    read_by_updates=True,
    scratch=(_LOCALITY_SUMS,),
)
