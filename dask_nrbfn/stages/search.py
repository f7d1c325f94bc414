"""Stage "search": width, features, kernel and basis rule, tried on a small basis."""

import logging
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial, reduce
from operator import add
from typing import Any, Self

import numpy as np
import zarr
from numpy.typing import NDArray

from dask_nrbfn.engine.threads import blas_threads
from dask_nrbfn.numeric.eigenfunctions import eigenfunctions_bytes, eigenfunctions_flops
from dask_nrbfn.numeric.folds import FoldedBlock, fold_block, folds_of_rows, places_among
from dask_nrbfn.numeric.held_out import HeldOutSums, JudgedSums, ResidualSums
from dask_nrbfn.numeric.moments import Moments
from dask_nrbfn.numeric.penalties import penalty_named
from dask_nrbfn.numeric.radial import BasisDistances, RadialFeatures
from dask_nrbfn.numeric.ridge import RidgeSystem, components_bytes
from dask_nrbfn.numeric.scaling import Scaling
from dask_nrbfn.numeric.targets import ClassTargets, NumberTargets, Targets
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages.bases import source_of
from dask_nrbfn.stages.columns import read_scaling
from dask_nrbfn.stages.components import most_components
from dask_nrbfn.stages.moments import MomentsPass
from dask_nrbfn.stages.parts import PartResult, block_rows, run_parts, run_tasks
from dask_nrbfn.stages.path import PathWeights, beside_bytes, directions_among, solve_all
from dask_nrbfn.stages.pool import pool_bytes
from dask_nrbfn.stages.sizes import FitSizes
from dask_nrbfn.stages.stage import Stage, StageCost, StageJob
from dask_nrbfn.stages.trials import (
    Ridge,
    candidates,
    ridges,
    search_basis_size,
    search_rows,
)
from dask_nrbfn.stages.validation import HeldOutPass, best_entry, describe_path
from dask_nrbfn.stages.weighting import Reading, RowWeights
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

Floats = NDArray[np.float64]

# What the names of rows begin with that are drawn from all, those without labels too.
_ALL = "all_"


@dataclass(frozen=True)
class SearchRecord:
    """How the combinations did on the sample.

    Attributes
    ----------
    tried : list of dict
        Every combination with its best penalty and alpha, error and log loss.
    chosen : dict
        The best combination.
    n_rows, n_basis : int
        Rows of the sample and of its basis.
    """

    tried: list[dict[str, Any]]
    chosen: dict[str, Any]
    n_rows: int
    n_basis: int


def _compute(job: StageJob) -> SearchRecord:
    """Try all combinations on a sample; return how they did and the best."""
    run, dataset, engine = job.run, job.dataset, job.engine
    assert run.tuning is not None
    tried = candidates(run.params, run.tuning)
    arguments = [(run.location, dataset.location)]
    (sample,) = run_tasks(engine, _write_sample, arguments, label="sample")
    units = [(asdict(candidate),) for candidate in tried]
    records = run_parts(run, dataset, engine, stage="search", task=_try, units=units)
    compared = ResidualSums.compared if dataset.of_numbers else HeldOutSums.compared
    solved = [record for record in records if record[compared[0]] is not None]
    best = min(solved, key=lambda record: record[compared[0]], default=None)
    chosen = asdict(tried[0]) if best is None else {name: best[name] for name in asdict(tried[0])}
    logger.info("search: %s", ", ".join(f"{name} {value}" for name, value in chosen.items()))
    kept = (*asdict(tried[0]), *Ridge._fields, *compared)
    # Parts that a version before has left name no penalty.
    tried_and_judged = [{name: record.get(name) for name in kept} for record in records]
    return SearchRecord(tried_and_judged, chosen, **sample)


def _write_sample(run_location: Location, dataset_location: Location) -> dict[str, Any]:
    """Store the rows on which combinations are tried, and a small basis for each rule."""
    run, dataset = Run.open(run_location), Dataset.open(dataset_location)
    params, tuning = run.params, run.tuning
    assert tuning is not None
    group = run.group("search")
    rows = _write_rows(group, "", dataset.of_labelled(), params, tuning)
    if dataset.n_unlabelled:
        _write_rows(group, _ALL, dataset, params, tuning)
    size, source = search_basis_size(dataset, params, tuning), source_of(params)
    rules = {candidate.basis_rule for candidate in candidates(params, tuning)}
    for rule in sorted(rules):
        basis = source.choose(run, dataset, size, rule)
        write_array(group, f"basis_{rule}", basis.values, "basis", "feature")
        numbers = basis.rows
        if dataset.n_unlabelled:
            numbers = places_among(dataset.labelled_rows(), numbers)
        write_array(group, f"basis_rows_{rule}", numbers, "basis")
    return {"n_rows": len(rows), "n_basis": len(basis.rows)}


def _write_rows(
    group: zarr.Group, prefix: str, dataset: Dataset, params: FitParams, tuning: TuneParams
) -> NDArray[np.int64]:
    """Store a draw of the rows of a dataset; return their numbers."""
    size = search_rows(dataset.n_rows, dataset.n_features, tuning)
    rows = _drawn_rows(dataset.n_rows, size, params.random_state)
    numbers = dataset.of_numbers
    targets = dataset.take_targets(rows) if numbers else dataset.codes()[rows].astype(np.int64)
    own = dataset.take_weights(rows) if dataset.has_weights else None
    weights = RowWeights.of(dataset, params).of_rows(targets, own)
    columns = {
        "rows": rows,
        "X": dataset.take(rows),
        "targets": targets,
        "weights": np.ones(len(rows)) if weights is None else weights,
    }
    for name, values in columns.items():
        write_array(group, prefix + name, values, *("row", "column")[: values.ndim])
    return rows


def _drawn_rows(n_rows: int, size: int, seed: int) -> NDArray[np.int64]:
    if size == n_rows:
        return np.arange(n_rows)
    drawn = np.random.default_rng(seed).choice(n_rows, size, replace=False, shuffle=False)
    return np.sort(drawn)


def _try(run: Run, dataset: Dataset, candidate: dict[str, Any]) -> PartResult:
    """Fit and judge one combination, without locality: that is summed for the whole basis."""
    assert run.tuning is not None
    tuning = replace(run.tuning, localities=(0.0,))
    params = replace(run.params, **candidate)
    rule, n_targets = candidate["basis_rule"], dataset.n_targets
    sample = _Sample.read(run, rule, n_folds=tuning.folds, n_targets=n_targets)
    features, shares = sample.features(read_scaling(run), candidate)
    moments = sample.moments_of_folds(features)
    total = reduce(add, moments)
    tried = ridges(params, tuning)
    kept_of_folds = [sample.basis_folds != fold for fold in range(tuning.folds)]
    systems = (
        RidgeSystem.of(total - fold, sample.targets, normalized=features.normalized)
        for fold in moments
    )

    def penalize(system: RidgeSystem, ridge: Ridge) -> RidgeSystem:
        penalty = penalty_named(ridge.penalty).of(lambda: features, shares)
        return replace(system, penalty=penalty)

    solve = partial(
        solve_all,
        tried=tried,
        penalize=penalize,
        directions_of=lambda kept: directions_among(features, kept, most_components(run)),
    )
    weights_of_folds = [
        solve(system, kept)[0] for system, kept in zip(systems, kept_of_folds, strict=True)
    ]
    sums = sample.judge(features, weights_of_folds, kept_of_folds)
    path = describe_path(sums, tried)
    solved = any(entry[sums.compared[0]] is not None for entry in path)
    best = best_entry(path, sums.compared[0]) if solved else dict.fromkeys(path[0])
    return PartResult({**candidate, **best})


@dataclass(frozen=True, eq=False)
class _Sample:
    """Rows in memory, and the folds they belong to.

    ``spread`` and ``spread_weights`` are of a draw of all rows, those without labels too.
    """

    X: NDArray[Any]
    y: NDArray[Any]
    targets: Targets
    weights: Floats
    folds: NDArray[np.int64]
    n_folds: int
    basis: NDArray[Any]
    basis_folds: NDArray[np.int64]
    spread: NDArray[Any]
    spread_weights: Floats

    @classmethod
    def read(cls, run: Run, rule: str, *, n_folds: int, n_targets: int) -> Self:
        X, y, weights, rows, basis, basis_rows = (
            run.read(f"search/{name}")
            for name in ("X", "targets", "weights", "rows", f"basis_{rule}", f"basis_rows_{rule}")
        )
        targets = ClassTargets(n_targets) if y.ndim == 1 else NumberTargets(np.median(y, axis=0))
        folds = folds_of_rows(0, len(X), n_folds=n_folds, seed=run.params.random_state)
        places = places_among(rows, basis_rows)
        basis_folds = np.where(places < 0, -1, folds[places])
        spread = (X, weights)
        if run.has(f"search/{_ALL}X"):
            spread = (run.read(f"search/{_ALL}X"), run.read(f"search/{_ALL}weights"))
        return cls(X, y, targets, weights, folds, n_folds, basis, basis_folds, *spread)

    def blocks(self) -> Iterator[FoldedBlock]:
        size = self.reading.block_rows
        for start in range(0, len(self.X), size):
            rows = slice(start, start + size)
            arrays = (self.X[rows], self.y[rows], self.weights[rows], self.folds[rows])
            yield fold_block(*arrays, n_folds=self.n_folds)

    def features(
        self, scaling: Scaling, candidate: dict[str, Any]
    ) -> tuple[RadialFeatures, Floats]:
        """Return the radial basis functions, and the shares of the clusters of all rows."""
        basis, threads = scaling.apply(self.basis), blas_threads()
        distances = BasisDistances.from_basis(basis, scaling)
        totals, clusters = [], np.zeros(len(basis))
        size = self.reading.block_rows
        for start in range(0, len(self.spread), size):
            rows = slice(start, start + size)
            X, weights = self.spread[rows], self.spread_weights[rows]
            nearest = np.empty(len(X), dtype=np.intp)
            totals.append(distances.total(X, weights=weights, nearest=nearest, threads=threads))
            clusters += np.bincount(nearest, weights, minlength=len(basis))
        weight = self.spread_weights.sum()
        mean_distance = math.fsum(totals) / (weight * len(basis))
        features = RadialFeatures.from_basis(
            basis,
            candidate["width_factor"] * mean_distance,
            scaling,
            kernel=candidate["kernel"],
            normalized=candidate["features"] == "normalized",
        )
        return features, clusters / weight

    @property
    def reading(self) -> Reading:
        return Reading(
            block_rows=block_rows(len(self.basis)),
            weighting=RowWeights(None),
            n_folds=self.n_folds,
        )

    def moments_of_folds(self, features: RadialFeatures) -> list[Moments]:
        work = MomentsPass(features, self.reading, targets=self.targets, n_rows=len(self.X))
        for block in self.blocks():
            work.add(block)
        return list(work.sums().values())

    def judge(
        self,
        features: RadialFeatures,
        weights_of_folds: list[PathWeights],
        kept_of_folds: list[NDArray[np.bool_]],
    ) -> JudgedSums:
        work = HeldOutPass(
            features,
            self.reading,
            targets=self.targets,
            weights_of_folds=weights_of_folds,
            kept_of_folds=kept_of_folds,
            n_rows=len(self.X),
        )
        for block in self.blocks():
            work.add(block)
        sums: JudgedSums = work.sums()[""]
        return sums


def _cost(s: FitSizes) -> StageCost:
    """Every combination is one task: two passes over the sample, and all penalties of all folds.

    A penalty that is a matrix is held whole and without the basis rows of a fold.
    """
    # One of the rows with labels, and where others have none one of all rows.
    n_samples = 2 if s.n_labelled else 1
    sample_bytes = n_samples * s.n_sampled * (s.p * s.itemsize + 3 * 8)
    products = s.n_sampled * (s.r_tried**2 + 6 * s.r_tried * s.p)
    solves = s.n_search_folds * s.n_searched_ridges * s.r_tried**3 / 3
    spans = 0
    if s.n_components:
        solves += s.n_search_folds * eigenfunctions_flops(s.r_tried)
        spans = eigenfunctions_bytes(s.r_tried, s.p)
        spans += components_bytes(s.r_tried, min(s.n_components, s.r_tried))
    rows = block_rows(s.r_tried)
    return StageCost(
        flops=s.n_tried * (products + solves),
        read_bytes=s.rows_bytes + s.n_tried * sample_bytes,
        written_bytes=sample_bytes,
        held_bytes=s.process_bytes
        + s.reading_bytes
        + max(2 * sample_bytes, 3 * 8 * s.n_basis_sample * s.p)
        + pool_bytes(s.n, s.K, s.r_tried, s.n_basis_sample)
        + spans
        + beside_bytes(s.r_tried, s.n_searched_ridges, spans=bool(s.n_components))
        + 2 * 8 * s.n_labelled
        + 8
        * (
            (2 * s.n_search_folds + 4 + s.penalty_axes) * s.r_tried**2
            + rows * (s.r_tried + 6 * s.p)
            + 2 * s.n_search_folds * s.n_searched_ridges * s.q * s.r_tried
            + 3 * rows * s.n_searched_ridges * s.q
            + 3 * s.r_tried * s.p
        ),
        n_tasks=s.n_tried,
        work={
            "moments_flops": s.n_tried * products,
            "activations": 2 * s.n_tried * s.n_sampled * s.r_tried,
            "solve_flops": s.n_tried * solves,
        },
        alone={"read_bytes": s.rows_bytes, "selected_rows": s.n},
    )


def _wanted(params: FitParams, tuning: TuneParams | None, numbers: bool) -> bool:
    return tuning is not None and len(candidates(params, tuning)) > 1


SEARCH = Stage(
    name="search",
    record=SearchRecord,
    compute=_compute,
    cost=_cost,
    wanted=_wanted,
    remedy=lambda params: "Lower `search_rows` or `search_basis`",
)
