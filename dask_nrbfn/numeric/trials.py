"""Trials: networks of rows in memory, ranked by their squared errors on held-out rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.device import active_gpu, array_module, beside, to_host
from dask_nrbfn.numeric.distances import distances_from, float_rows, placed
from dask_nrbfn.numeric.kernels import kernel_named
from dask_nrbfn.numeric.moments import MomentSums, mirror_in_place
from dask_nrbfn.numeric.penalties import Ridge, RidgeTerms, penalty_named
from dask_nrbfn.numeric.products import add_products, over_strips, solve_single
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.ridge import RidgeSystem
from dask_nrbfn.numeric.ridge_path import directions_among, solve_all
from dask_nrbfn.numeric.rows import Rows, is_csr, squared_norms
from dask_nrbfn.numeric.scaling import Scaling
from dask_nrbfn.numeric.small_fit import (
    SmallNetwork,
    SmallTable,
    Spread,
    losses_of,
    spread_of,
    target_scales,
)
from dask_nrbfn.numeric.targets import Targets
from dask_nrbfn.numeric.threads import concurrent_map, side_by_side
from dask_nrbfn.numeric.types import Floats, Singles

# With products of float32 that are summed in float64, test errors are those of float64 for alphas
# from 1e-7 up; some systems are singular at 1e-9. If activations are shifted by their mean and
# systems are float64, the least penalty is this share of the variance of the activations.
LEAST_SINGLE, _LEAST_OF_VARIANCE = 0.99e-7, 2e-9

# Values up to this size, in mean distances, have finite squares in float32.
_LARGEST_SINGLE = 1e15

# Rounding of squared distances grows with the squared distance from the centre. Up to this many
# squared widths it changes exponents by at most 1e-3; activations of farther rows need float64.
_FARTHEST_SINGLE = 2e4

# Columns of a tile of a gram matrix.
_TILE = 1024

# Rows of a block, and of the draw whose mean distance is the unit of width factors.
_BLOCK_ROWS, _WIDTH_ROWS = 2048, 2000

Entry = dict[str, Any]
"""A `Ridge` and the figures of held-out rows, by name; None where all systems are singular."""


def figures_of(*, of_numbers: bool) -> tuple[str, str]:
    """Return the names of the figure that ranks trials, the mean loss, and of one that is shown."""
    return ("relative_error", "r2") if of_numbers else ("brier_score", "error_rate")


@dataclass(frozen=True, eq=False)
class Trial:
    """The best ridge of a network, its figures, and its weights (q, r) without the last fold.

    losses (n,): the squared errors of the held-out rows, fold after fold, for numbers over their
    variance. beyond: ridges with smaller alphas, which were singular or need float64, if the least
    alpha is better than the next by more than a standard error.
    """

    network: SmallNetwork
    entry: Entry
    loss: float
    losses: Floats
    weights: Floats
    features: RadialFeatures
    beyond: tuple[Ridge, ...]


def judged_rows(table: SmallTable, folds: Sequence[int]) -> NDArray[np.intp]:
    """Return the rows of some folds, fold after fold, as `Trial.losses` has them."""
    return np.concatenate([np.flatnonzero(table.folds == fold) for fold in folds])


def try_networks(
    table: SmallTable,
    scaling: Scaling,
    networks: Sequence[SmallNetwork],
    *,
    folds: Sequence[int] = (0,),
    n_components: int = 0,
    exact: bool = True,
) -> list[Trial | None]:
    """Return a trial of each network of one kind of distances; None if its systems are singular.

    The networks are fitted to the rows outside a fold, with the basis rows outside the fold, and
    judged on its rows. They share the distances, ``2 n r p`` flops; each takes ``n r^2 + 4 n r``
    flops, and ``r^3 / 3`` for each ridge.

    Products are computed in float32 and summed in float64. Alphas below 1e-7 need float64; plain
    features only need it for penalties below 2e-9 of their variance. Such alphas are tried if
    `exact` is true and the least alpha of float32 is clearly better than the next. A network is
    also tried in float64 if all systems are singular in float32, if its ridges are more than
    multiples of I, and on a GPU.
    """
    rows = judged_rows(table, folds)
    shares = table.weights[rows] / table.weights[rows].sum()
    scales = target_scales(table, rows)
    trials = [_Trials(table, scaling, networks[0].l1, fold, n_components) for fold in folds]

    def tried(own: Sequence[SmallNetwork], arithmetic: _Arithmetic) -> Iterator[Trial | None]:
        of_folds = [each.of(own, arithmetic, scales) for each in trials] if own else []
        for network, judged in zip(own, zip(*of_folds, strict=True), strict=True):
            yield _best(network, table.targets, judged, shares)

    found: list[Trial | None] = [None] * len(networks)
    single = [place for place, each in enumerate(networks) if trials[0].allow_single(each)]
    for place, trial in zip(single, tried([networks[i] for i in single], _Single), strict=True):
        found[place] = trial
    left = {
        place: _left_after(own, found[place])
        for place, own in enumerate(networks)
        if exact or found[place] is None
    }
    places = [place for place, network in left.items() if network is not None]
    in_double = tried([network for network in left.values() if network is not None], _Double)
    for place, trial in zip(places, in_double, strict=True):
        found[place] = _better(found[place], trial)
    return found


def _left_after(network: SmallNetwork, trial: Trial | None) -> SmallNetwork | None:
    """Return the network with the ridges that float32 has left to float64; None without any."""
    if trial is None:
        return network
    return replace(network, ridges=trial.beyond) if trial.beyond else None


def _better(one: Trial | None, other: Trial | None) -> Trial | None:
    """Return the trial with the smaller loss."""
    solved = [each for each in (one, other) if each is not None]
    return min(solved, key=lambda each: each.loss, default=None)


def try_network(
    table: SmallTable, scaling: Scaling, network: SmallNetwork, *, fold: int = 0
) -> Trial | None:
    """Return the trial of one network, see `try_networks`."""
    return try_networks(table, scaling, [network], folds=(fold,))[0]


class _Judged(NamedTuple):
    """The losses (A, n) of the ridges of a network on the rows of a fold, and its weights.

    weights (A, q, r); shown (A, n, .): wrong labels, or squared residuals of each target. NaN where
    singular.
    """

    losses: Floats
    shown: Floats
    weights: Floats
    features: RadialFeatures


def _best(
    network: SmallNetwork, targets: Targets, of_folds: Sequence[_Judged], shares: Floats
) -> Trial | None:
    """Return the trial of the ridge with the least loss, of equal ones the largest alpha."""
    losses = np.concatenate([each.losses for each in of_folds], axis=1)
    ridges, means, last = network.ridges, losses @ shares, of_folds[-1]
    regular = np.flatnonzero(np.isfinite(means)).tolist()
    if not regular:
        return None
    best = min(regular, key=lambda place: (means[place], -ridges[place].alpha))
    loss = float(means[best])
    shown = shares @ np.concatenate([each.shown[best] for each in of_folds])
    values = (loss, (1.0 - shown).tolist() if targets.centred else float(shown[0]))
    entry = dict(zip(figures_of(of_numbers=targets.centred), values, strict=True))
    entry = ridges[best]._asdict() | entry
    least = min(ridges[place].alpha for place in regular)
    beyond = tuple(each for each in ridges if each.alpha < least)
    if not _falls(losses, regular, ridges, shares):
        beyond = ()
    return Trial(network, entry, loss, losses[best], last.weights[best], last.features, beyond)


def _falls(losses: Floats, regular: list[int], ridges: Sequence[Ridge], shares: Floats) -> bool:
    """Return whether the loss clearly falls from the second least alpha to the least."""
    least, *larger = sorted(regular, key=lambda place: ridges[place].alpha)
    if not larger:
        return True
    less = losses[larger[0]] - losses[least]
    gain = float(less @ shares)
    return gain > float(np.linalg.norm(shares * (less - gain)))


class _Trials:
    """The rows, the scaled basis and the mean distance that trials without one fold share."""

    def __init__(
        self, table: SmallTable, scaling: Scaling, l1: bool, fold: int, n_components: int
    ) -> None:
        self._table, self.scaling, self.l1 = table, scaling, l1
        self._seen = np.flatnonzero(table.folds != fold)
        self._judged = np.flatnonzero(table.folds == fold)
        kept = table.basis_folds != fold
        # A few distinct rows, or a basis of a few rows, may all be in one fold.
        basis = table.basis[kept] if kept.any() else table.basis
        self.basis = float_rows(scaling.apply(basis))
        self._distances = distances_from(self.basis, scaling, l1=l1)
        self._n_components = n_components
        self.centred = table.targets.centred
        # In these units float32 neither overflows nor underflows.
        shifted = table.targets.shifted(table.y)
        self._units = _units(shifted) if self.centred else np.ones(table.targets.n_targets)
        self._weights = table.weights / _units(table.weights)

    def allow_single(self, network: SmallNetwork) -> bool:
        """Return whether a network can be tried in float32."""
        if active_gpu() is not None or is_csr(self.basis) or is_csr(self._table.X):
            return False
        multiples = all(
            penalty_named(each.penalty).n_axes == 0 and each.components is None
            for each in network.ridges
        )
        centred = self.basis - self.basis.mean(axis=0)
        largest = float(np.abs(centred).max(initial=0.0)) / self.mean_distance
        n_regular = sum(each.alpha >= LEAST_SINGLE for each in network.ridges)
        # How small a penalty of plain features may be depends on the kernel.
        shifted = not (network.normalized or self.centred)
        regular = shifted or 2 * n_regular > len(network.ridges)
        return multiples and regular and largest < _LARGEST_SINGLE

    def of(
        self, networks: Sequence[SmallNetwork], arithmetic: "_Arithmetic", scales: Floats
    ) -> list[_Judged]:
        """Return the losses and weights of networks; `scales` (q,) divide residuals."""
        unit = self.mean_distance
        features = [each.features(self.basis, self.scaling, unit) for each in networks]
        own = arithmetic(self, features)
        sums = self._sums(own, len(networks))
        solved = [
            self._solve(own, place, *each)
            for place, each in enumerate(zip(networks, features, sums, strict=True))
        ]
        judged = self._judged_by(own, solved, scales)
        return [
            _Judged(*losses, one.weights * self._units[:, None], each)
            for losses, one, each in zip(judged, solved, features, strict=True)
        ]

    @cached_property
    def mean_distance(self) -> float:
        """The mean distance of drawn rows from the basis."""
        n_rows = self._table.X.shape[0]
        drawn = np.arange(0, n_rows, -(-n_rows // _WIDTH_ROWS))
        return self._spread(self._table.take(drawn)).mean_distance

    @cached_property
    def _cluster_shares(self) -> Floats:
        """The weight share (r,) of the rows that are nearest to each basis row."""
        return self._spread(self._table).shares

    def _spread(self, table: SmallTable) -> Spread:
        return spread_of(replace(table, block_rows=_BLOCK_ROWS), self._distances)

    def _sums(self, own: "_Activations", n_networks: int) -> list[MomentSums]:
        table = self._table
        sums = [own.sums(table.targets.n_targets) for _ in range(n_networks)]
        for rows in _blocks(self._seen):
            factors = np.sqrt(self._weights[rows])
            T = table.targets.bordered(table.y[rows], factors)
            T[:, 1:] /= self._units
            for each, Phi in zip(sums, own.of(table.X[rows], factors), strict=True):
                each.add(Phi, T)
        return sums

    def _solve(
        self,
        own: "_Activations",
        place: int,
        network: SmallNetwork,
        features: RadialFeatures,
        sums: MomentSums,
    ) -> "_Solved":
        system = own.system(place, sums, self._table.targets)
        terms = RidgeTerms(
            features=features.on_device,
            shares=lambda: self._cluster_shares,
            directions=lambda kept: directions_among(features, kept, self._n_components),
        )
        weights = own.solve(place, system, network.ridges, terms)
        return _Solved(weights, system.intercept(weights))

    def _judged_by(
        self, own: "_Activations", solved: Sequence["_Solved"], scales: Floats
    ) -> list[tuple[Floats, Floats]]:
        """Return the `losses` and `shown` of `_Judged` for each network."""
        table = self._table
        rows_of_weights = [own.placed(each.rows) for each in solved]
        blocks: list[list[tuple[Floats, Floats]]] = [[] for _ in solved]
        for rows in _blocks(self._judged):
            for i, Phi in enumerate(own.of(table.X[rows], None)):
                scores = to_host(Phi @ rows_of_weights[i].T)
                scores = scores.reshape(len(rows), *solved[i].intercepts.shape)
                scores = (scores + solved[i].intercepts) * self._units
                blocks[i].append(losses_of(table.targets, scores, table.y[rows], scales))
        return [
            (np.concatenate(losses).T, np.concatenate(shown).transpose(1, 0, 2))
            for losses, shown in (zip(*own, strict=True) for own in blocks)
        ]


class _Solved(NamedTuple):
    """The weights (A, q, r) and intercepts (A, q) of all ridges, in the units of the targets.

    NaN where they are singular.
    """

    weights: Floats
    intercepts: Floats

    @property
    def rows(self) -> Floats:
        """The weights of all scores, (A q, r)."""
        return self.weights.reshape(-1, self.weights.shape[2])


def _units(values: Floats) -> Floats:
    """Return the power of two near the largest value of each column; 1 if all are 0."""
    largest = np.abs(values).max(axis=0, initial=0.0)
    exponents = np.frexp(np.where(largest > 0, largest, 1.0))[1]
    return np.asarray(np.ldexp(1.0, exponents - 1))


def _blocks(rows: NDArray[np.intp]) -> Iterator[NDArray[np.intp]]:
    """Yield blocks of consecutive row numbers."""
    for start in range(0, len(rows), _BLOCK_ROWS):
        yield rows[start : start + _BLOCK_ROWS]


class _Double:
    """Activations, sums and systems in float64, on the GPU of the task if there is one."""

    def __init__(self, trials: _Trials, features: Sequence[RadialFeatures]) -> None:
        self._features = [each.on_device() for each in features]
        basis, scaling = placed(trials.basis, trials.scaling)
        self._distances = distances_from(basis, scaling, l1=trials.l1)
        self._xp = array_module(basis)

    def sums(self, n_targets: int) -> MomentSums:
        first = self._features[0]
        return MomentSums(first.n_basis, n_targets, xp=first.xp)

    def placed(self, rows: Floats) -> NDArray[Any]:
        own: NDArray[Any] = beside(rows, self._features[0].basis)
        return own

    def of(self, X: Rows, factors: Floats | None) -> Iterator[NDArray[Any]]:
        """Yield the activations of a block by each network, times row factors."""
        squared = self._distances.clipped(X)
        for each in self._features:
            own = squared if each.xp is self._xp else None
            yield each.activations(X, factors=factors, squared=own)

    def system(self, place: int, sums: MomentSums, targets: Targets) -> RidgeSystem:
        gram, *others = sums.arrays()
        mirror_in_place(gram)
        normalized = self._features[place].normalized
        return RidgeSystem.of_sums(gram, *others, targets=targets, normalized=normalized)

    def solve(
        self, _: int, system: RidgeSystem, ridges: Sequence[Ridge], terms: RidgeTerms
    ) -> Floats:
        every = np.ones(len(system.gram), dtype=np.bool_)
        return solve_all(system, every, tried=ridges, terms=terms, estimated=False)[0].weights


class _Single:
    """Activations and systems in float32; products are summed in float64."""

    def __init__(self, trials: _Trials, features: Sequence[RadialFeatures]) -> None:
        self._scaling, self._features = trials.scaling, features
        self._l1 = distances_from(trials.basis, l1=True) if trials.l1 else None
        self._centre, self._unit = trials.basis.mean(axis=0), trials.mean_distance
        self._basis = ((trials.basis - self._centre) / self._unit).astype(np.float32)
        self._norms = squared_norms(self._basis)
        # Plain activations of wide kernels differ by less than the rounding of float32, unless they
        # are shifted by about their mean.
        self._shifts: dict[int, Singles] = {}
        self._least: dict[int, float] = {}

    def sums(self, n_targets: int) -> MomentSums:
        return _SingleSums(len(self._basis), n_targets)

    def placed(self, rows: Floats) -> NDArray[Any]:
        return rows.astype(np.float32)

    def of(self, X: Rows, factors: Floats | None) -> Iterator[NDArray[Any]]:
        """Yield the activations of a block by each network, times row factors."""
        rows = np.asarray(self._scaling.apply(X))
        squared = np.empty((len(rows), len(self._basis)), dtype=np.float32)
        sizes = np.empty(len(rows), dtype=np.float32)
        over_strips(
            lambda strip: self._square(rows[strip], squared[strip], sizes[strip]), squared.shape
        )
        own = 1.0 if factors is None else factors[:, None].astype(np.float32)
        for place, each in enumerate(self._features):
            Phi, width = np.empty_like(squared), each.width / self._unit
            over_strips(partial(_activate, each, width, squared, Phi), Phi.shape)
            far = np.flatnonzero(sizes > _FARTHEST_SINGLE * width**2)
            if len(far):
                Phi[far] = each.activations(X[far])
            if not each.normalized:
                Phi -= self._shifts.setdefault(place, Phi.mean(axis=0))
            Phi *= own
            yield Phi

    def _square(self, rows: Floats, out: Singles, sizes: Singles) -> None:
        """Write the squared distances of scaled rows from the basis to `out` (b, r).

        Their rounding is relative to `sizes` (b,); for l1 distances to their own size.
        """
        if self._l1 is not None:
            out[...] = np.minimum(self._l1.clipped(rows) / self._unit**2, _LARGEST_SINGLE**2)
            sizes[...] = out.min(axis=1)
            return
        centred = (rows - self._centre) / self._unit
        centred = centred.clip(-_LARGEST_SINGLE, _LARGEST_SINGLE).astype(np.float32)
        sizes[...] = squared_norms(centred)
        np.matmul(centred, self._basis.T, out=out)
        out *= -2.0
        out += self._norms
        out += sizes[:, None]
        np.maximum(out, 0.0, out=out)

    def system(self, place: int, sums: MomentSums, targets: Targets) -> RidgeSystem:
        """Return the system of a network; that of classes is one of activations without a shift."""
        gram, products, target_products = sums.arrays()
        shift, spread = self._shifts.get(place), float(np.trace(gram))
        means = None
        if shift is not None and not targets.centred:
            own = shift.astype(np.float64)
            sums_of_rows = products[0] + target_products[0, 0] * own
            add_products(gram, np.array([own, sums_of_rows]), np.array([products[0], own]))
            products += np.outer(target_products[0], own)
            # The intercept makes up for the shift of the rows that are judged.
            means = -own
        mirror_in_place(gram)
        system = RidgeSystem.of_sums(
            gram, products, target_products, targets=targets, normalized=shift is None
        )
        if shift is not None:
            trace = float(np.trace(system.gram)) or 1.0
            self._least[place] = _LEAST_OF_VARIANCE * spread / trace
        return system if means is None else replace(system, activation_means=means)

    def solve(
        self, place: int, system: RidgeSystem, ridges: Sequence[Ridge], terms: RidgeTerms
    ) -> Floats:
        """Return the weights of ridges that are multiples of I; NaN of alphas that are too small.

        Systems of alphas below 1e-7 are solved in float64.
        """
        weights = self._solve_single(system, ridges)
        least = self._least.get(place, LEAST_SINGLE)
        small = [i for i, each in enumerate(ridges) if least <= each.alpha < LEAST_SINGLE]
        if small:
            every, tried = np.ones(len(system.gram), dtype=np.bool_), [ridges[i] for i in small]
            solved, _ = solve_all(system, every, tried=tried, terms=terms, estimated=False)
            weights[small] = solved.weights
        return weights

    def _solve_single(self, system: RidgeSystem, ridges: Sequence[Ridge]) -> Floats:
        """Return the weights of ridges; NaN of alphas below `LEAST_SINGLE`."""
        gram, cross = system.gram.astype(np.float32), system.cross.astype(np.float32)
        trace = float(np.trace(system.gram))

        def solve(ridge: Ridge) -> Singles:
            solution = cross.copy()
            if ridge.alpha < LEAST_SINGLE:
                solution[...] = np.nan
                return solution
            penalized = gram.copy()
            penalized.ravel()[:: len(gram) + 1] += np.float32(ridge.alpha * trace)
            if not solve_single(penalized, solution):
                solution[...] = np.nan
            return solution

        return np.array([*concurrent_map(gram.nbytes)(solve, ridges)], dtype=np.float64)


def _activate(
    features: RadialFeatures, width: float, squared: Singles, Phi: NDArray[Any], strip: slice
) -> None:
    """Write the activations of a strip of rows with these squared distances to `Phi` (b, r)."""
    kernel, out = kernel_named(features.kernel), Phi[strip]
    np.multiply(squared[strip], np.float32(-0.5 / width**2), out=out)
    if kernel.log_factor is None:
        kernel.logarithms_in_place(out)
    else:
        # Its bounds are those of float64.
        out[...] = kernel.logarithms_in_place(out.astype(np.float64))
    if features.normalized:
        out -= out.max(axis=1, keepdims=True)
    np.exp(out, out=out)
    if features.normalized:
        out /= out.sum(axis=1, keepdims=True)


class _SingleSums(MomentSums):
    """Accumulates products of float32 in float64."""

    def add(self, Phi: NDArray[Any], T: Floats) -> None:
        """Add a block of activations (b, r) and bordered targets (b, 1 + q)."""

        def add(start: int) -> None:
            tile = slice(start, start + _TILE)
            own = Phi[:, tile]
            self._gram[tile, tile] += own.T @ own
            self._gram[:start, tile] += Phi[:, :start].T @ own

        side_by_side(add, range(0, Phi.shape[1], _TILE))
        self._products += T.T.astype(np.float32) @ Phi
        self._target_products += T.T @ T


_Activations = _Single | _Double
_Arithmetic = type[_Single] | type[_Double]


def trial_bytes(n_basis: int, n_targets: int, *, n_networks: int = 1, n_ridges: int = 7) -> int:
    """Return the bytes of networks that are tried together, without the rows."""
    squares = n_networks * 8 * n_basis**2 + 3 * 8 * n_basis**2
    scores = n_ridges * n_targets
    # The weights of every network stay, in float64 and float32.
    weights = (16 + 12 * (n_networks - 1)) * scores * n_basis
    return squares + _BLOCK_ROWS * (4 * 8 * n_basis + 3 * 8 * scores) + weights
