"""A draw of the rows, in memory, on which small networks are tried."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple, Self

import numpy as np
import zarr
from numpy.typing import NDArray

from dask_nrbfn.engine.threads import blas_threads
from dask_nrbfn.numeric.distances import BasisDistances
from dask_nrbfn.numeric.folds import FoldedBlock, fold_block, folds_of_rows, places_among
from dask_nrbfn.numeric.held_out import JudgedSums
from dask_nrbfn.numeric.moments import Moments
from dask_nrbfn.numeric.penalties import penalty_named
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.ridge import RidgeSystem
from dask_nrbfn.numeric.ridge_path import PathWeights, Ridge, directions_among, solve_all
from dask_nrbfn.numeric.rows import Rows
from dask_nrbfn.numeric.scaling import Scaling
from dask_nrbfn.numeric.targets import ClassTargets, NumberTargets, Targets
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.params import FitParams
from dask_nrbfn.stages.moments import MomentsPass
from dask_nrbfn.stages.path import each_system
from dask_nrbfn.stages.validation import HeldOutPass
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import block_rows
from dask_nrbfn.storage.run import Run
from dask_nrbfn.weighting import Reading, RowWeights

# What the names of rows begin with that are drawn from all, those without labels too.
ALL = "all_"


def write_rows(
    group: zarr.Group, prefix: str, dataset: Dataset, params: FitParams, size: int
) -> NDArray[np.int64]:
    """Store a draw of `size` rows of a dataset; return their numbers."""
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


def _drawn(n: int, size: int) -> NDArray[np.int64]:
    """Return some of n places, ascending; a larger draw holds a smaller one."""
    return np.sort(np.random.default_rng(0).permutation(n)[:size])


class Basis(NamedTuple):
    """``values`` (r, p), not scaled, and ``rows`` int64 (r,): their numbers, or -1."""

    values: Rows
    rows: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows in memory with the folds they belong to, and a basis.

    ``spread`` and ``spread_weights`` are of a draw of all rows, those without labels too.
    """

    X: Rows
    y: NDArray[Any]
    targets: Targets
    weights: Floats
    folds: NDArray[np.int64]
    n_folds: int
    basis: Rows
    basis_folds: NDArray[np.int64]
    spread: Rows
    spread_weights: Floats

    @classmethod
    def read(cls, run: Run, stage: str, basis: Basis, *, n_folds: int, n_targets: int) -> Self:
        """Return the sample that a stage has stored, with a basis of some of its rows."""
        names = ("X", "targets", "weights", "rows")
        X, y, weights, rows = (run.read(f"{stage}/{name}") for name in names)
        targets = ClassTargets(n_targets) if y.ndim == 1 else NumberTargets(np.median(y, axis=0))
        folds = folds_of_rows(0, X.shape[0], n_folds=n_folds, seed=run.chosen_params.random_state)
        places = places_among(rows, basis.rows)
        basis_folds = np.where(places < 0, -1, folds[places])
        spread = (X, weights)
        if run.has(f"{stage}/{ALL}X"):
            spread = (run.read(f"{stage}/{ALL}X"), run.read(f"{stage}/{ALL}weights"))
        return cls(X, y, targets, weights, folds, n_folds, basis.values, basis_folds, *spread)

    @property
    def target_scales(self) -> Floats:
        """Standard deviation of each number, float64 (q,); 1 for classes, or for constants."""
        if self.y.ndim == 1:
            return np.ones(self.targets.n_targets)
        deviation: Floats = self.y.std(axis=0)
        return np.where(deviation > 0, deviation, 1.0)

    def thinned(self, n_rows: int, n_basis: int) -> Self:
        """Return a draw of the rows and of the basis, at most so many."""
        rows, basis = _drawn(self.X.shape[0], n_rows), _drawn(self.basis.shape[0], n_basis)
        spread = _drawn(self.spread.shape[0], n_rows)
        return replace(
            self,
            X=self.X[rows],
            y=self.y[rows],
            weights=self.weights[rows],
            folds=self.folds[rows],
            basis=self.basis[basis],
            basis_folds=self.basis_folds[basis],
            spread=self.spread[spread],
            spread_weights=self.spread_weights[spread],
        )

    def part(self, rows: NDArray[np.bool_]) -> Self:
        """Return some of the rows (n,), as one fold, with the same basis."""
        n_rows = np.count_nonzero(rows)
        return replace(
            self,
            X=self.X[rows],
            y=self.y[rows],
            weights=self.weights[rows],
            folds=np.zeros(n_rows, dtype=np.int64),
            n_folds=1,
            spread=self.X[rows],
            spread_weights=self.weights[rows],
        )

    def blocks(self) -> Iterator[FoldedBlock]:
        """Yield the rows, fold after fold within each block."""
        size = self.reading.block_rows
        for start in range(0, self.X.shape[0], size):
            rows = slice(start, start + size)
            arrays = (self.X[rows], self.y[rows], self.weights[rows], self.folds[rows])
            yield fold_block(*arrays, n_folds=self.n_folds)

    def features(
        self, scaling: Scaling, *, kernel: str, width_factor: float, normalized: bool
    ) -> tuple[RadialFeatures, Floats]:
        """Return the radial basis functions, and the shares of the clusters of all rows."""
        basis, threads = scaling.apply(self.basis), blas_threads()
        distances = BasisDistances.from_basis(basis, scaling)
        totals, clusters = [], np.zeros(basis.shape[0])
        size = self.reading.block_rows
        for start in range(0, self.spread.shape[0], size):
            rows = slice(start, start + size)
            X, weights = self.spread[rows], self.spread_weights[rows]
            nearest = np.empty(X.shape[0], dtype=np.intp)
            totals.append(distances.total(X, weights=weights, nearest=nearest, threads=threads))
            clusters += np.bincount(nearest, weights, minlength=len(clusters))
        weight = self.spread_weights.sum()
        # Where all rows are equal, or as good as equal, any width is as good.
        mean_distance = math.fsum(totals) / (weight * len(clusters))
        mean_distance = mean_distance if mean_distance**2 > 0 else 1.0
        features = RadialFeatures.from_basis(
            basis,
            width_factor * mean_distance,
            scaling,
            kernel=kernel,
            normalized=normalized,
        )
        return features, clusters / weight

    @property
    def reading(self) -> Reading:
        """How the rows are read."""
        return Reading(
            block_rows=block_rows(self.basis.shape[0]),
            weighting=RowWeights(None),
            n_folds=self.n_folds,
        )

    def judged(
        self, features: RadialFeatures, shares: Floats, tried: Sequence[Ridge], *, n_components: int
    ) -> JudgedSums:
        """Return how every ridge does on each fold when it has seen the others.

        Parameters
        ----------
        features : RadialFeatures
        shares : float64 (r,)
            Of the clusters.
        tried : sequence of Ridge
            Without locality: that is summed for the basis of a fit.
        n_components : int
            The most eigenfunctions of the basis that are combined.
        """
        moments = self.moments_of_folds(features)
        total = reduce(add, moments)
        kept_of_folds = [self.basis_folds != fold for fold in range(self.n_folds)]
        solve = partial(
            solve_all,
            tried=tried,
            penalize=_penalize(features, shares),
            directions_of=lambda kept: directions_among(features, kept, n_components),
            each_of=each_system,
        )
        systems = (self.system(total - fold, features) for fold in moments)
        weights_of_folds = [
            solve(system, kept)[0] for system, kept in zip(systems, kept_of_folds, strict=True)
        ]
        return self.judge(features, weights_of_folds, kept_of_folds)

    def system(self, moments: Moments, features: RadialFeatures) -> RidgeSystem:
        """Return the ridge system of some of the rows."""
        return RidgeSystem.of(moments, self.targets, normalized=features.normalized)

    def moments_of_folds(self, features: RadialFeatures) -> list[Moments]:
        """Return the sums of every fold."""
        work = MomentsPass(features, self.reading, targets=self.targets, n_rows=self.X.shape[0])
        for block in self.blocks():
            work.add(block)
        return list(work.sums().values())

    def judge(
        self,
        features: RadialFeatures,
        weights_of_folds: list[PathWeights],
        kept_of_folds: list[NDArray[np.bool_]],
    ) -> JudgedSums:
        """Return how the rows of each fold are predicted, as `HeldOutPass` does."""
        work = HeldOutPass(
            features,
            self.reading,
            targets=self.targets,
            weights_of_folds=weights_of_folds,
            kept_of_folds=kept_of_folds,
            n_rows=self.X.shape[0],
        )
        for block in self.blocks():
            work.add(block)
        sums: JudgedSums = work.sums()[""]
        return sums


def _penalize(
    features: RadialFeatures, shares: Floats
) -> Callable[[RidgeSystem, Ridge], RidgeSystem]:
    def penalize(system: RidgeSystem, ridge: Ridge) -> RidgeSystem:
        penalty = penalty_named(ridge.penalty).of(lambda: features, shares)
        return replace(system, penalty=penalty)

    return penalize
