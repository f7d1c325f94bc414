"""The network of one cell: its solution from sums over rows, and its fit to rows in memory."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.moments import Moments
from dask_nrbfn.numeric.penalties import Ridge, RidgeTerms
from dask_nrbfn.numeric.products import times_symmetric
from dask_nrbfn.numeric.ridge import Each, RidgeSystem
from dask_nrbfn.numeric.rows import Rows
from dask_nrbfn.numeric.scaling import Scaling
from dask_nrbfn.numeric.small_fit import (
    SmallNetwork,
    SmallTable,
    fit_folds,
    learned_root,
    nearest_distances,
    network_moments,
)
from dask_nrbfn.numeric.targets import Targets
from dask_nrbfn.numeric.trials import try_network
from dask_nrbfn.numeric.types import Floats


class SolvedCell(NamedTuple):
    """A solution, and its figures on the summed rows; alpha is NaN if the scores are constant.

    `fit` and `residuals` (q,) are squared norms of the scores, and of the residuals of each target.
    """

    weights: Floats
    intercept: Floats
    alpha: float
    fit: float
    residuals: Floats
    risk: float

    @classmethod
    def of(
        cls, moments: Moments, system_of: Callable[[Moments], RidgeSystem], alpha: float
    ) -> Self | None:
        """Return the solution of a cell, constant without rows or alpha; None if singular."""
        if math.isnan(alpha) or moments.total_weight == 0:
            return cls.constant(moments)
        system = system_of(moments)
        (solution,) = system.path([alpha], in_place=True)
        if solution is None:
            return None
        weights = solution.weights
        fit = float(np.sum(times_symmetric(weights, system.gram) * weights))
        squares, trace = float(np.sum(weights**2)), float(np.trace(system.gram))
        return cls(
            weights,
            system.intercept(weights),
            alpha,
            fit,
            system.squared_residuals(weights),
            squares * trace / fit if fit > 0 else 1.0,
        )

    @property
    def is_constant(self) -> bool:
        """Whether the scores are the mean of the targets."""
        return math.isnan(self.alpha)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the fields as arrays, by names that no array of `Moments` has."""
        return {f"solved_{name}": np.atleast_1d(each) for name, each in self._asdict().items()}

    @classmethod
    def constant(cls, moments: Moments) -> Self:
        """Return constant scores: the mean of the targets; 0 without rows."""
        weight = moments.total_weight
        mean = moments.target_sums / weight if weight > 0 else np.zeros(len(moments.cross))
        squares = moments.target_gram.diagonal()
        return cls(
            weights=np.zeros_like(moments.cross),
            intercept=mean,
            alpha=math.nan,
            fit=float(weight * (mean @ mean)),
            residuals=np.maximum(squares - weight * mean**2, 0.0),
            risk=1.0,
        )


def cell_system(
    moments: Moments, *, targets: Targets, ridge: Ridge, terms: RidgeTerms, normalized: bool
) -> RidgeSystem:
    """Return the ridge system of a cell, on the GPU of the task if there is one."""
    system = RidgeSystem.of(moments.on_device(), targets, normalized=normalized)
    return system.with_ridge(ridge, terms)


class SolvedCells(NamedTuple):
    """The solutions of L cells, one after another; `weights` is (q, R) for all R basis rows."""

    weights: Floats
    intercepts: Floats
    alphas: Floats
    fits: Floats
    residuals: Floats
    risks: Floats

    @classmethod
    def joined(cls, cells: Iterable[Mapping[str, NDArray[Any]]]) -> Self:
        """Return the joined solutions of cells, each given by its `SolvedCell.arrays`."""
        columns = zip(
            *([each[f"solved_{name}"] for name in SolvedCell._fields] for each in cells),
            strict=True,
        )
        weights, intercepts, alphas, fits, residuals, risks = columns
        return cls(
            np.concatenate(weights, axis=1),
            np.stack(intercepts),
            np.concatenate(alphas),
            np.concatenate(fits),
            np.stack(residuals),
            np.concatenate(risks),
        )

    @property
    def fitting_error(self) -> float:
        """Eps of all rows, see `ErrorAndRisk`."""
        fit = float(self.fits.sum())
        return 1.0 + float(self.residuals.sum()) / fit if fit > 0 else 1.0

    @property
    def spectral_risk(self) -> float:
        """Largest spectral risk of a cell."""
        return float(self.risks.max())


# Tried width factors, as multiples of the width factor of the table, which is the first.
STEPS = (1.0, 0.25, 0.5, 2.0)

# Width factors of a round that learns column weights, as multiples of the best factor so far.
STEPS_OF_ROUND = (0.5, 1.0, 2.0)

# Column weights and width are chosen with half of the basis, but not fewer than `_LEAST_TRIAL`
# basis rows, and on at most this many rows for each basis row. Alpha falls as a basis grows.
TRIAL_ROWS, _LEAST_TRIAL = 8, 500

# The held-out fold that chooses column weights, width and alpha, and its minimum number of rows.
_JUDGING, _FEWEST_JUDGED = 0, 10

# Share of the figure that may be gained by chance with one held-out row; n rows: over sqrt(n).
_CHANCE = 0.5


@dataclass(frozen=True, eq=False)
class CellFit:
    """The network of a cell.

    `root` (p,) multiplies the column weights of the table. `held_out` (n, q) are the scores of each
    row by the network without its fold, for numbers less the origin. `distances` (n,) are those of
    each row from the nearest basis row, in widths.
    """

    basis: Rows
    root: Floats
    width: float
    solved: SolvedCell
    shares: Floats
    moments: Moments
    held_out: Floats
    distances: Floats


class _Choice(NamedTuple):
    """Column weights, a network, and its figure on held-out rows; smaller is better."""

    scaling: Scaling
    network: SmallNetwork
    figure: float


def fit_cell(
    table: SmallTable,
    scaling: Scaling,
    network: SmallNetwork,
    *,
    n_folds: int,
    n_rounds: int = 0,
    each: Each = map,
) -> CellFit:
    """Return the network of a cell; `network` has the width factor of the table and all ridges.

    One held-out fold chooses the network; the width factor and the column weights of the table stay
    unless the gain of others is more than chance. Then every fold is held out once, and decides
    between the alphas next to the chosen. If all targets are equal, or the system is singular, the
    scores are the mean of the targets.
    """
    if (table.y == table.y[0]).all():
        return _constant(table, n_folds)
    size = trial_size(table.basis.shape[0])
    drawn = table.thinned(TRIAL_ROWS * size, size)
    chosen = _choose(drawn, scaling, network, n_rounds=n_rounds, each=each)
    own = chosen.network
    if math.isfinite(chosen.figure):
        own = replace(own, ridges=_next_to(own.ridges[0], network.ridges)[-2:])
    ridge, held_out = fit_folds(table, chosen.scaling, own, n_folds=n_folds)
    if ridge is None:
        return _constant(table, n_folds)
    features, shares, moments = network_moments(table, chosen.scaling, own)
    system_of = partial(
        cell_system,
        targets=table.targets,
        ridge=ridge,
        terms=RidgeTerms(features=features.on_device, shares=lambda: shares),
        normalized=features.normalized,
    )
    solved = SolvedCell.of(moments, system_of, ridge.alpha)
    if solved is None:
        return _constant(table, n_folds)
    return CellFit(
        basis=table.basis,
        root=_further_root(scaling, chosen.scaling, table.X.shape[1]),
        width=features.width,
        solved=solved,
        shares=shares,
        moments=moments,
        held_out=np.where(np.isfinite(held_out), held_out, _means(table, n_folds)),
        distances=nearest_distances(table, features),
    )


def _choose(
    table: SmallTable, scaling: Scaling, network: SmallNetwork, *, n_rounds: int, each: Each
) -> _Choice:
    """Return the column weights, width and ridge that are best on the rows of one fold."""
    held_out = table.folds == _JUDGING
    n_judged = int(np.count_nonzero(held_out))
    middle = network.ridges[len(network.ridges) // 2]
    unjudged = _Choice(scaling, replace(network, ridges=(middle,)), np.inf)
    if min(n_judged, len(held_out) - n_judged) < _FEWEST_JUDGED:
        return unjudged

    def tried(scaling: Scaling, around: SmallNetwork, steps: Sequence[float]) -> list[_Choice]:
        networks = [replace(around, width_factor=around.width_factor * step) for step in steps]
        trials = each(lambda own: try_network(table, scaling, own, fold=_JUDGING), networks)
        return [
            _Choice(scaling, replace(own, ridges=(Ridge.of(best.entry),)), best.loss)
            for own, best in zip(networks, trials, strict=True)
            if best is not None
        ]

    clearly = 1.0 - _CHANCE / np.sqrt(n_judged)
    choices = tried(scaling, network, STEPS)
    if not choices:
        return unjudged
    best = _least(choices)
    if choices[0].network.width_factor == network.width_factor:
        best = best if best.figure < clearly * choices[0].figure else choices[0]
    seen, latest = table.take(~held_out), best
    for _ in range(n_rounds):
        plain = replace(latest.network, normalized=False)
        trial = try_network(table, latest.scaling, plain, fold=_JUDGING)
        if trial is None:
            break
        root = learned_root(seen, trial.features, trial.weights)
        of_root = replace(scaling, root=root)
        ridges = _next_to(latest.network.ridges[0], network.ridges)
        choices = tried(of_root, replace(latest.network, ridges=ridges), STEPS_OF_ROUND)
        if not choices:
            break
        latest = _least(choices)
        if latest.figure < clearly * best.figure:
            best = latest
    return best


def trial_size(n_basis: int) -> int:
    """Return the number of basis rows with which column weights and width are chosen."""
    return max(n_basis // 2, min(n_basis, _LEAST_TRIAL))


def _next_to(ridge: Ridge, ridges: Sequence[Ridge]) -> tuple[Ridge, ...]:
    place = ridges.index(ridge)
    return tuple(ridges[max(place - 1, 0) : place + 2])


def _least(choices: Sequence[_Choice]) -> _Choice:
    return min(choices, key=lambda each: each.figure)


def _further_root(scaling: Scaling, chosen: Scaling, n_features: int) -> Floats:
    """Return the square roots of weights that turn the scaling of the table into that of a cell."""
    ones = np.ones(n_features)
    if chosen.root is None or chosen is scaling:
        return ones
    return chosen.root / (ones if scaling.root is None else scaling.root)


def _means(table: SmallTable, n_folds: int) -> Floats:
    """Return for every row the mean of the targets outside its fold, float64 (n, q)."""
    sums = table.targets.bordered(table.y) * table.weights[:, None]
    of_folds = np.array([sums[table.folds == fold].sum(axis=0) for fold in range(n_folds)])
    total = sums.sum(axis=0)
    left = total - of_folds
    left[left[:, 0] <= 0] = total
    means: Floats = left[:, 1:] / left[:, :1]
    return means[table.folds]


def _constant(table: SmallTable, n_folds: int) -> CellFit:
    """Return a network whose scores are the mean of the targets."""
    n_rows = len(table.y)
    T = table.targets.bordered(table.y, np.sqrt(table.weights))
    moments = Moments.from_block(np.zeros((n_rows, 1)), T)
    return CellFit(
        basis=table.basis[:1],
        root=np.ones(table.X.shape[1]),
        width=1.0,
        solved=SolvedCell.constant(moments),
        shares=np.ones(1),
        moments=moments,
        held_out=_means(table, n_folds),
        distances=np.zeros(n_rows),
    )
