"""Networks of rows in memory: their weights, and their errors on held-out rows."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.device import array_module, beside, to_host
from dask_nrbfn.numeric.distances import SquaredDistances, distances_from, float_rows, placed
from dask_nrbfn.numeric.gradients import GradientSums, feature_weights
from dask_nrbfn.numeric.held_out import FoldWeights, held_out_scores
from dask_nrbfn.numeric.kernels import kernel_named
from dask_nrbfn.numeric.moments import Moments, MomentSums, mirror_in_place
from dask_nrbfn.numeric.penalties import Ridge, RidgeTerms
from dask_nrbfn.numeric.radial import Near, RadialFeatures
from dask_nrbfn.numeric.ridge import RidgeSystem
from dask_nrbfn.numeric.ridge_path import solve_all
from dask_nrbfn.numeric.rows import Rows
from dask_nrbfn.numeric.scaling import Scaling
from dask_nrbfn.numeric.targets import Targets
from dask_nrbfn.numeric.types import Floats

# Most values of rows that stay on a GPU, 128 MiB.
_KEPT_ELEMENTS = 2**24

# Repeated and constant columns make the system of a linear model singular.
_LINEAR_ALPHA = 1e-9


@dataclass(frozen=True, eq=False)
class SmallTable:
    """Rows in memory with their folds, and the rows of a basis; nothing is scaled.

    y (n,) are class codes or numbers; the fold of a basis point that is not a row is -1.
    """

    X: Rows
    y: NDArray[Any]
    targets: Targets
    weights: Floats
    folds: NDArray[np.int64]
    basis: Rows
    basis_folds: NDArray[np.int64]
    block_rows: int

    def linear_scores(self, scaling: Scaling, folds: Sequence[int]) -> Floats:
        """Return the scores (n, q) of the rows of folds, which are linear in the features."""
        Z = np.insert(np.asarray(scaling.apply(self.X), np.float64), 0, 1.0, axis=1)
        T = self.targets.bordered(self.y)[:, 1:]
        scores = []
        for fold in folds:
            held_out = self.folds == fold
            seen = Z[~held_out]
            weighted = (seen * self.weights[~held_out, None]).T
            gram = weighted @ seen
            gram.ravel()[:: len(gram) + 1] += _LINEAR_ALPHA * np.trace(gram)
            scores.append(Z[held_out] @ np.linalg.solve(gram, weighted @ T[~held_out]))
        return np.concatenate(scores)

    def thinned(self, n_rows: int, n_basis: int) -> Self:
        """Return a draw of at most `n_rows` rows and `n_basis` basis rows."""
        basis = _drawn(self.basis.shape[0], n_basis)
        return replace(
            self.take(_drawn(self.X.shape[0], n_rows)),
            basis=self.basis[basis],
            basis_folds=self.basis_folds[basis],
        )

    def take(self, rows: NDArray[Any]) -> Self:
        """Return some of the rows, by indices or bool (n,)."""
        return replace(
            self, X=self.X[rows], y=self.y[rows], weights=self.weights[rows], folds=self.folds[rows]
        )

    def blocks(self, span: slice) -> Iterator[slice]:
        """Yield the blocks of consecutive rows."""
        for start in range(span.start, span.stop, self.block_rows):
            yield slice(start, min(start + self.block_rows, span.stop))


def _drawn(n: int, size: int) -> NDArray[np.int64]:
    """Return drawn places among n, ascending; a larger draw contains a smaller one."""
    return np.sort(np.random.default_rng(0).permutation(n)[:size])


def target_scales(table: SmallTable, rows: NDArray[np.intp]) -> Floats:
    """Return the deviation of each number on some rows, (q,); 1 for classes and constants."""
    if not table.targets.centred:
        return np.ones(table.targets.n_targets)
    shares = table.weights[rows] / table.weights[rows].sum()
    numbers = table.targets.shifted(table.y[rows])
    deviation: Floats = np.sqrt(shares @ np.square(numbers - shares @ numbers))
    rounding = len(rows) * np.finfo(np.float64).eps * np.abs(numbers).max(axis=0)
    return np.where(deviation > rounding, deviation, 1.0)


def losses_of(
    targets: Targets, scores: Floats, y: NDArray[Any], scales: Floats
) -> tuple[Floats, Floats]:
    """Return the squared errors (b, A) of scores (b, A, q), and what is shown of them (b, A, .).

    Shown are wrong labels, or the squared residuals of each number; `scales` (q,) divide residuals.
    """
    T = targets.bordered(y)[:, None, 1:]
    squared = np.square((scores - T) / scales)
    if targets.centred:
        return squared.mean(axis=2), squared
    wrong = scores.argmax(axis=2) != y[:, None]
    return squared.sum(axis=2), wrong[:, :, None].astype(np.float64)


@dataclass(frozen=True)
class SmallNetwork:
    """The parameters of a network without its weights, and the ridges to try."""

    kernel: str
    width_factor: float
    normalized: bool
    ridges: tuple[Ridge, ...]

    @property
    def l1(self) -> bool:
        """Whether the kernel is one of l1 distances."""
        return kernel_named(self.kernel).l1

    def features(self, basis: Rows, scaling: Scaling, mean_distance: float) -> RadialFeatures:
        """Return the radial basis functions of a scaled basis, on the host."""
        return RadialFeatures.from_basis(
            basis,
            self.width_factor * mean_distance,
            scaling,
            kernel=self.kernel,
            normalized=self.normalized,
        )


class Spread(NamedTuple):
    """The mean distance of rows from a basis, and the weight share (r,) of each of its clusters."""

    mean_distance: float
    shares: Floats


def spread_of(table: SmallTable, distances: SquaredDistances) -> Spread:
    """Return the spread of the rows of a table about a basis, in a pass over the rows."""
    n_basis = distances.basis.shape[0]
    totals, clusters = [], np.zeros(n_basis)
    for rows in table.blocks(slice(0, table.X.shape[0])):
        X, weights = table.X[rows], table.weights[rows]
        nearest = np.empty(X.shape[0], dtype=np.intp)
        totals.append(distances.total(X, weights=weights, nearest=nearest))
        clusters += np.bincount(nearest, weights, minlength=n_basis)
    weight = table.weights.sum()
    mean_distance = math.fsum(totals) / (weight * n_basis)
    # If all rows are (almost) equal, any width is as good.
    return Spread(mean_distance if mean_distance**2 > 0 else 1.0, clusters / weight)


class HeldOutFit(NamedTuple):
    """The ridge with the least squared error on held-out rows, and the scores (n, q) of all rows.

    Each row is scored by the network without its fold; for numbers, minus their origin. None and
    NaN if the systems of all ridges are singular.
    """

    ridge: Ridge | None
    scores: Floats


def fit_folds(
    table: SmallTable, scaling: Scaling, network: SmallNetwork, *, n_folds: int
) -> HeldOutFit:
    """Hold out every fold once, in float64; see `HeldOutFit`.

    Sums over the rows of each fold are computed once, ``n r^2`` flops, and a factorization for each
    fold and ridge: ``r^3 / 3 + 2 n q r / folds`` flops. The ridges have no locality.
    """
    judging = _Judging(table, scaling, network.l1, n_folds)
    scores = judging.scores(network)
    targets = table.targets
    scales = target_scales(table, np.arange(len(table.y)))
    means = np.zeros(len(network.ridges))
    for rows in table.blocks(slice(0, len(table.y))):
        losses, _ = losses_of(targets, scores[rows], table.y[rows], scales)
        means += table.weights[rows] @ losses
    regular = np.flatnonzero(np.isfinite(means)).tolist()
    if not regular:
        return HeldOutFit(None, np.full((len(table.y), targets.n_targets), np.nan))
    best = min(regular, key=lambda place: (means[place], -network.ridges[place].alpha))
    return HeldOutFit(network.ridges[best], scores[:, best])


class NetworkMoments(NamedTuple):
    """The radial basis functions of a network, the shares of its clusters (r,), and its sums."""

    features: RadialFeatures
    shares: Floats
    moments: Moments


def network_moments(table: SmallTable, scaling: Scaling, network: SmallNetwork) -> NetworkMoments:
    """Return the sums over all rows from which a network without eigenfunctions is solved."""
    judging = _Judging(table, scaling, network.l1, 1)
    features = judging.features(network)
    sums = judging.sums(features.on_device(), slice(0, len(table.y)))
    return NetworkMoments(features, judging.shares, sums.moments())


def nearest_distances(table: SmallTable, features: RadialFeatures) -> Floats:
    """Return the distances (n,) of rows to the nearest basis row outside their fold, in widths."""
    distances, own = np.zeros(table.X.shape[0]), features.on_device()
    are_centres = bool((table.basis_folds < 0).all())
    for fold in np.unique(table.folds):
        rows = np.flatnonzero(table.folds == fold)
        kept = table.basis_folds != fold
        if not kept.any():
            continue
        near = Near(None if kept.all() else beside(kept, own.basis), second=are_centres)
        for each in table.blocks(slice(0, len(rows))):
            distances[rows[each]] = own.nearest(table.X[rows[each]], near)
    return distances


def learned_root(table: SmallTable, features: RadialFeatures, weights: Floats) -> Floats:
    """Return square roots (p,) of the weights of features, see `feature_weights`.

    The plain network with weights (q, r) has the weights of features so far.
    """
    # Numeric targets of different units count equally.
    scales = target_scales(table, np.arange(len(table.y)))
    of_targets, scaling = weights / scales[:, None], features.scaling
    root = None if scaling is None else scaling.root
    root = np.ones(table.X.shape[1]) if root is None else root
    total = GradientSums.zeros(len(root))
    # The derivatives of l1 distances are compiled for the CPU.
    features = features if features.l1 else features.on_device()
    for rows in table.blocks(slice(0, table.X.shape[0])):
        total += GradientSums.from_block(
            table.X[rows], features, of_targets, row_weights=table.weights[rows]
        )
    return np.sqrt(feature_weights(total.squares, root))


class _Judging:
    """Rows fold after fold, the scaled basis and the mean distance of one kind.

    A GPU keeps the gram matrices and up to 128 MiB of rows.
    """

    def __init__(self, table: SmallTable, scaling: Scaling, l1: bool, n_folds: int) -> None:
        self._order = np.argsort(table.folds, kind="stable")
        self._table, self._scaling = table.take(self._order), scaling
        ends = np.cumsum(np.bincount(table.folds, minlength=n_folds)).tolist()
        self._folds = [slice(a, b) for a, b in pairwise([0, *ends])]
        self._kept = [np.not_equal(table.basis_folds, fold) for fold in range(n_folds)]
        self._basis = scaling.apply(table.basis)
        basis, own = placed(float_rows(self._basis), scaling)
        distances = distances_from(basis, own, l1=l1)
        self._mean_distance, self.shares = spread_of(self._table, distances)
        self._X, self._xp = self._table.X, array_module(basis)
        if np.prod(self._X.shape) <= _KEPT_ELEMENTS:
            self._X = beside(self._X, basis)

    def features(self, network: SmallNetwork) -> RadialFeatures:
        """Return the radial basis functions of a network, on the host."""
        return network.features(self._basis, self._scaling, self._mean_distance)

    def scores(self, network: SmallNetwork) -> Floats:
        """Return the scores (n, A, q) of the rows of held-out folds by all ridges; NaN for others.

        The rows are in the order of the table.
        """
        features = self.features(network)
        own = features.on_device()
        n_targets = self._table.targets.n_targets
        held_out = np.full((len(self._order), len(network.ridges), n_targets), np.nan)
        for fold, kept, sums in zip(self._folds, self._kept, self._seen_sums(own), strict=True):
            weights = self._solve(features, sums, kept, network.ridges)
            vectors = beside(weights.rows, own.basis)
            for rows in self._table.blocks(fold):
                scores = held_out_scores(own, self._rows(own, rows), vectors, weights.intercepts)
                held_out[self._order[rows]] = to_host(scores)
        return held_out

    def _seen_sums(self, features: RadialFeatures) -> Iterator[list[Floats]]:
        """Yield the sums of the rows outside each fold that is held out."""
        of_folds = [self.sums(features, fold).arrays() for fold in self._folds]
        total = [sum(arrays[1:], arrays[0]) for arrays in zip(*of_folds, strict=True)]
        for own in of_folds:
            yield [all_rows - held_out for all_rows, held_out in zip(total, own, strict=True)]

    def _rows(self, features: RadialFeatures, rows: slice) -> Rows:
        """Return rows; those on a GPU only to features there, as some features stay on the host."""
        return (self._X if features.xp is self._xp else self._table.X)[rows]

    def sums(self, features: RadialFeatures, group: slice) -> MomentSums:
        """Return the sums over consecutive rows."""
        table, r, xp = self._table, features.n_basis, features.xp
        sums = MomentSums(r, table.targets.n_targets, xp=xp)
        buffer = xp.empty((min(table.block_rows, group.stop - group.start), r))
        for rows in table.blocks(group):
            factors = np.sqrt(table.weights[rows])
            out = buffer[: rows.stop - rows.start]
            Phi = features.activations(self._rows(features, rows), factors=factors, out=out)
            sums.add(Phi, table.targets.bordered(table.y[rows], factors))
        return sums

    def _solve(
        self,
        features: RadialFeatures,
        sums: list[Floats],
        kept: NDArray[np.bool_],
        ridges: Sequence[Ridge],
    ) -> FoldWeights:
        """Return the weights of the `kept` basis rows for all ridges; the sums are overwritten."""
        gram, *others = sums
        mirror_in_place(gram)
        system = RidgeSystem.of_sums(
            gram, *others, targets=self._table.targets, normalized=features.normalized
        )
        terms = RidgeTerms(features=features.on_device, shares=lambda: self.shares)
        return solve_all(system, kept, tried=ridges, terms=terms, estimated=False)[0]
