"""Networks of rows in memory: their weights, and their errors on held-out rows."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.device import array_module, beside, to_host
from dask_nrbfn.numeric.distances import BasisDistances, float_rows, placed
from dask_nrbfn.numeric.gradients import GradientSums, feature_weights
from dask_nrbfn.numeric.held_out import (
    FoldWeights,
    HeldOutSums,
    JudgedSums,
    LabelSums,
    held_out_scores,
    sums_of,
)
from dask_nrbfn.numeric.kernels import kernel_named
from dask_nrbfn.numeric.moments import Moments, MomentSums, mirror_in_place
from dask_nrbfn.numeric.penalties import Ridge, RidgeTerms
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.ridge import Each, RidgeSystem
from dask_nrbfn.numeric.ridge_path import directions_among, solve_all
from dask_nrbfn.numeric.rows import Rows
from dask_nrbfn.numeric.scaling import Scaling
from dask_nrbfn.numeric.targets import Targets
from dask_nrbfn.numeric.types import Floats

# Maximum number of distances that all networks share, 128 MiB. For more rows each network computes
# its own distances. Also the maximum number of values of rows that stay on a GPU.
_SHARED_ELEMENTS = 2**24

# Repeated and constant columns make the system of a linear model singular.
_LINEAR_ALPHA = 1e-9

Entry = dict[str, Any]
"""A `Ridge` and the figures of held-out rows, by name; None where all systems are singular."""


@dataclass(frozen=True, eq=False)
class SmallTable:
    """Rows in memory with their folds, and the rows of a basis; nothing is scaled.

    y (n,) are class codes or numbers; the fold of a basis point that is not a row is -1; `spread`
    are the rows that decide widths and clusters, possibly without labels.
    """

    X: Rows
    y: NDArray[Any]
    targets: Targets
    weights: Floats
    folds: NDArray[np.int64]
    basis: Rows
    basis_folds: NDArray[np.int64]
    spread: Rows
    spread_weights: Floats
    block_rows: int

    def losses(self, scores: Floats, entry: Entry) -> Floats:
        """Return the losses (2, n) of scores (n, q) with figures of `try_networks`."""
        losses = np.full((2, len(scores)), np.nan)
        seen = np.isfinite(scores).all(axis=1)
        losses[:, seen] = sums_of(self.targets).losses(
            scores[seen],
            self.targets.shifted(self.y[seen]),
            scales=self.target_scales,
            temperature=entry.get("temperature", 1.0),
        )
        return losses

    @property
    def target_scales(self) -> Floats:
        """Standard deviation of each number, float64 (q,); 1 for classes, or for constants."""
        if self.y.ndim == 1:
            return np.ones(self.targets.n_targets)
        deviation: Floats = self.y.std(axis=0)
        return np.where(deviation > 0, deviation, 1.0)

    def linear_scores(self, scaling: Scaling, *, n_held_out: int) -> Floats:
        """Return scores (n, q) of rows in held-out folds, linear in the features; else NaN."""
        Z = np.insert(np.asarray(scaling.apply(self.X), np.float64), 0, 1.0, axis=1)
        T = self.targets.bordered(self.y)[:, 1:]
        scores = np.full(T.shape, np.nan)
        for fold in range(n_held_out):
            held_out = self.folds == fold
            seen = Z[~held_out]
            weighted = (seen * self.weights[~held_out, None]).T
            gram = weighted @ seen
            gram.ravel()[:: len(gram) + 1] += _LINEAR_ALPHA * np.trace(gram)
            scores[held_out] = Z[held_out] @ np.linalg.solve(gram, weighted @ T[~held_out])
        return scores

    def thinned(self, n_rows: int, n_basis: int) -> Self:
        """Return a draw of at most `n_rows` rows and `n_basis` basis rows."""
        basis = _drawn(self.basis.shape[0], n_basis)
        spread = _drawn(self.spread.shape[0], n_rows)
        return replace(
            self.take(_drawn(self.X.shape[0], n_rows)),
            basis=self.basis[basis],
            basis_folds=self.basis_folds[basis],
            spread=self.spread[spread],
            spread_weights=self.spread_weights[spread],
        )

    def take(self, rows: NDArray[Any]) -> Self:
        """Return some of the rows, by indices or bool (n,); `spread` stays."""
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


class TriedNetwork(NamedTuple):
    """The best ridge of a network with its figures, and its weights without each held-out fold.

    Scores (n, q) of held-out rows, if wanted, are by the network without the fold of the row; for
    numbers, minus their origin. NaN for other rows, and if all systems are singular.
    """

    entry: Entry
    features: RadialFeatures
    of_folds: list[FoldWeights]
    scores: Floats


def try_networks(
    table: SmallTable,
    scaling: Scaling,
    networks: Sequence[SmallNetwork],
    *,
    held_out: Sequence[int],
    smoothly: bool = False,
    scored: bool = False,
    n_components: int = 0,
    each: Each = map,
    threads: int = 1,
) -> list[TriedNetwork]:
    """Return the best ridge of each network of one kind of distances, and its held-out figures.

    Their ridges have no locality, which is summed only for the basis of a fit. With `smoothly` a
    figure that changes with every score decides, otherwise the error, and of equal errors the
    largest alpha.

    The distances are computed once, unless rows are scored, the sums over rows once for each
    network, and one factorization for each fold and ridge: ``n r^2`` flops, and
    ``r^3 / 3 + 2 n q r / folds`` for each. All of these run on the GPU of the task, if it has one;
    the results are on the host.
    """
    judging = _Judging(
        table, scaling, networks[0].l1, held_out, threads=threads, shares_distances=not scored
    )

    def tried(network: SmallNetwork) -> TriedNetwork:
        best = judging.best(network, smoothly=smoothly, n_components=n_components)
        _, features, of_folds = best
        return TriedNetwork(*best, judging.scores(features, of_folds if scored else []))

    return [*each(tried, networks)]


class NetworkMoments(NamedTuple):
    """The radial basis functions of a network, the shares of its clusters (r,), and its sums."""

    features: RadialFeatures
    shares: Floats
    moments: Moments


def network_moments(
    table: SmallTable, scaling: Scaling, network: SmallNetwork, *, threads: int = 1
) -> NetworkMoments:
    """Return the sums over all rows from which a network without eigenfunctions is solved."""
    judging = _Judging(table, scaling, network.l1, (), threads=threads, shares_distances=False)
    features = judging.features(network)
    (sums,) = judging.sums_of_groups(features.on_device())
    return NetworkMoments(features, judging.shares, sums.moments())


def learned_root(
    table: SmallTable, features: RadialFeatures, weights: Floats, *, threads: int = 1
) -> Floats:
    """Return square roots (p,) of the weights of features, see `feature_weights`.

    The plain network with weights (q, r) has the weights of features so far.
    """
    # Numeric targets of different units count equally.
    of_targets, scaling = weights / table.target_scales[:, None], features.scaling
    root = None if scaling is None else scaling.root
    root = np.ones(table.X.shape[1]) if root is None else root
    total = GradientSums.zeros(len(root))
    # The derivatives of l1 distances are compiled for the CPU.
    features = features if features.l1 else features.on_device()
    for rows in table.blocks(slice(0, table.X.shape[0])):
        total += GradientSums.from_block(
            table.X[rows], features, of_targets, row_weights=table.weights[rows], threads=threads
        )
    return np.sqrt(feature_weights(total.squares, root))


class _Judging:
    """Arrays that networks with the same rows, basis, scaling and distances share.

    Rows are in groups: one for each held-out fold, and the last group for all other folds. A GPU
    keeps the gram matrices, the distances and up to 128 MiB of rows.
    """

    def __init__(
        self,
        table: SmallTable,
        scaling: Scaling,
        l1: bool,
        held_out: Sequence[int],
        *,
        threads: int,
        shares_distances: bool = True,
    ) -> None:
        group_of = np.full(int(table.folds.max(initial=0)) + 1, len(held_out))
        group_of[[fold for fold in held_out if fold < len(group_of)]] = [
            place for place, fold in enumerate(held_out) if fold < len(group_of)
        ]
        groups = group_of[table.folds]
        self._order = np.argsort(groups, kind="stable")
        self._table, self._scaling, self._threads = table.take(self._order), scaling, threads
        ends = np.cumsum(np.bincount(groups, minlength=len(held_out) + 1)).tolist()
        self._groups = [slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
        self._kept = [np.not_equal(table.basis_folds, fold) for fold in held_out]
        self._basis = scaling.apply(table.basis)
        basis, own = placed(float_rows(self._basis), scaling)
        self._xp, distances = array_module(basis), BasisDistances.from_basis(basis, own, l1=l1)
        self._mean_distance, self.shares = self._spread(distances)
        self._squared: Floats | None = None
        (n_rows, p), r = self._table.X.shape, basis.shape[0]
        self._X = self._table.X
        if n_rows * p <= _SHARED_ELEMENTS:
            self._X = beside(self._X, basis)
        if shares_distances and n_rows * r <= _SHARED_ELEMENTS:
            self._squared = self._xp.empty((n_rows, r))
            for rows in self._table.blocks(slice(0, n_rows)):
                distances.squared(self._X[rows], out=self._squared[rows], threads=threads)

    def _spread(self, distances: BasisDistances) -> tuple[float, Floats]:
        """Return the mean distance from the basis, and the shares of its clusters, (r,)."""
        table, r = self._table, self._basis.shape[0]
        totals, clusters = [], np.zeros(r)
        for rows in table.blocks(slice(0, table.spread.shape[0])):
            X, weights = table.spread[rows], table.spread_weights[rows]
            nearest = np.empty(X.shape[0], dtype=np.intp)
            totals.append(
                distances.total(X, weights=weights, nearest=nearest, threads=self._threads)
            )
            clusters += np.bincount(nearest, weights, minlength=r)
        weight = table.spread_weights.sum()
        mean_distance = math.fsum(totals) / (weight * r)
        # If all rows are (almost) equal, any width is as good.
        return mean_distance if mean_distance**2 > 0 else 1.0, clusters / weight

    def features(self, network: SmallNetwork) -> RadialFeatures:
        """Return the radial basis functions of a network, on the host."""
        return RadialFeatures.from_basis(
            self._basis,
            network.width_factor * self._mean_distance,
            self._scaling,
            kernel=network.kernel,
            normalized=network.normalized,
        )

    def scores(self, features: RadialFeatures, of_folds: list[FoldWeights]) -> Floats:
        """Return the scores (n, q) of held-out rows, in the order of the table; NaN for others."""
        held_out = np.full((len(self._order), self._table.targets.n_targets), np.nan)
        for rows, scores, _ in self._held_out(features.on_device(), of_folds):
            held_out[self._order[rows]] = to_host(scores[:, 0])
        return held_out

    def best(
        self, network: SmallNetwork, *, smoothly: bool, n_components: int
    ) -> tuple[Entry, RadialFeatures, list[FoldWeights]]:
        """Return the best ridge of a network and its figures, and its weights for each fold."""
        features = self.features(network)
        own = features.on_device()
        of_folds = [
            self._solve(features, sums, kept, network.ridges, n_components)
            for sums, kept in zip(self._seen_sums(own), self._kept, strict=True)
        ]
        calibrated = sums_of(self._table.targets)
        kind = LabelSums if calibrated is HeldOutSums and not smoothly else calibrated
        judged = self._judge(own, of_folds, kind)
        criterion = kind.smooth if smoothly else kind.compared[0]
        entries = [
            {**ridge._asdict(), **judged.figures(place)}
            for place, ridge in enumerate(network.ridges)
        ]
        place = best_place(entries, criterion)
        if place is None:
            return dict.fromkeys((*Ridge._fields, *calibrated.compared)), features, []
        chosen = [weights.at(place) for weights in of_folds]
        if kind is calibrated:
            return entries[place], features, chosen
        figures = self._judge(own, chosen, calibrated).figures(0)
        return {**network.ridges[place]._asdict(), **figures}, features, chosen

    def sums_of_groups(self, features: RadialFeatures) -> list[MomentSums]:
        """Return the sums over each group of training rows."""
        # The rows of a single held-out fold are not summed, so nothing is subtracted either.
        groups = self._groups if len(self._kept) > 1 else self._groups[-1:]
        return [self._sums(features, group) for group in groups]

    def _seen_sums(self, features: RadialFeatures) -> Iterator[list[Floats]]:
        """Yield the sums of the rows outside each fold that is held out."""
        of_groups = [list(sums.arrays()) for sums in self.sums_of_groups(features)]
        if len(of_groups) == 1:
            yield of_groups[0]
            return
        total = [sum(arrays[1:], arrays[0]) for arrays in zip(*of_groups, strict=True)]
        for own in of_groups[:-1]:
            yield [all_rows - held_out for all_rows, held_out in zip(total, own, strict=True)]

    def _sums(self, features: RadialFeatures, group: slice) -> MomentSums:
        table, r, xp = self._table, features.n_basis, features.xp
        sums = MomentSums(r, table.targets.n_targets, xp=xp)
        buffer = xp.empty((min(table.block_rows, group.stop - group.start), r))
        for rows in table.blocks(group):
            factors = np.sqrt(table.weights[rows])
            X, squared = self._placed(features, rows)
            out = buffer[: rows.stop - rows.start]
            Phi = features.activations(X, factors=factors, squared=squared, out=out)
            sums.add(Phi, table.targets.bordered(table.y[rows], factors))
        return sums

    def _placed(self, features: RadialFeatures, rows: slice) -> tuple[Rows, Floats | None]:
        """Return rows where the features are, and their squared distances if they are there too."""
        if features.xp is not self._xp:
            return self._table.X[rows], None
        return self._X[rows], None if self._squared is None else self._squared[rows]

    def _solve(
        self,
        features: RadialFeatures,
        sums: list[Floats],
        kept: NDArray[np.bool_],
        ridges: Sequence[Ridge],
        n_components: int,
    ) -> FoldWeights:
        """Return the weights of the `kept` basis rows for all ridges; the sums are overwritten."""
        gram, *others = sums
        mirror_in_place(gram)
        system = RidgeSystem.of_sums(
            gram, *others, targets=self._table.targets, normalized=features.normalized
        )

        terms = RidgeTerms(
            features=features.on_device,
            shares=lambda: self.shares,
            directions=lambda kept: directions_among(features, kept, n_components),
        )
        return solve_all(system, kept, tried=ridges, terms=terms, estimated=False)[0]

    def _judge(
        self, features: RadialFeatures, of_folds: list[FoldWeights], kind: type[JudgedSums]
    ) -> JudgedSums:
        """Return the errors on a fold of the networks that were fitted without the fold."""
        judged = kind.zeros(*of_folds[0].intercepts.shape)
        for rows, scores, y in self._held_out(features, of_folds):
            judged += kind.from_block(scores, y, self._table.weights[rows])
        return judged

    def _held_out(
        self, features: RadialFeatures, of_folds: list[FoldWeights]
    ) -> Iterator[tuple[slice, Floats, NDArray[Any]]]:
        """Yield held-out rows, their scores by networks fitted without them, and their targets."""
        table, r, xp = self._table, features.n_basis, features.xp
        buffer = xp.empty((0, r))
        for weights, group in zip(of_folds, self._groups, strict=False):
            weight_rows = beside(weights.rows, features.basis)
            for rows in table.blocks(group):
                n_rows = rows.stop - rows.start
                if len(buffer) < n_rows:
                    buffer = xp.empty((n_rows, r))
                X, squared = self._placed(features, rows)
                scores = held_out_scores(
                    features,
                    X,
                    weight_rows,
                    weights.intercepts,
                    squared=squared,
                    buffer=buffer[:n_rows],
                )
                yield rows, scores, table.targets.shifted(table.y[rows])


def best_place(entries: Sequence[Mapping[str, Any]], criterion: str) -> int | None:
    """Return the place of the smallest value of a figure, of equal ones the largest alpha."""
    solved = [place for place, own in enumerate(entries) if own[criterion] is not None]
    return min(
        solved,
        key=lambda place: (entries[place][criterion], -entries[place]["alpha"]),
        default=None,
    )


def try_bytes(n_rows: int, n_basis: int) -> int:
    """Return the bytes of the distances that networks share."""
    return 8 * min(n_rows * n_basis, _SHARED_ELEMENTS)
