"""Intervals of numbers and sets of labels with a coverage: conformal prediction."""

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.hashing import hash_numbers
from dask_nrbfn.numeric.types import Floats

# Rows whose residuals are kept, and the most levels of their quantiles.
MOST_RESIDUALS = MOST_LEVELS = 2**13

# Rows that lie farther from the basis than this share of held-out rows are unlike all.
_FAR_SHARE = 0.999

# Activations from which the scale of a row is learned, the fewest rows that suffice, their folds,
# and penalties relative to the variance of the activations.
MOST_OF_SCALE, _FEWEST_OF_SCALE, _FOLDS = 64, 500, 5
_ALPHAS = tuple(10.0**-power for power in range(7))

# The least scale, as a share of the mean residual: smaller ones would cover their rows too rarely.
_LEAST_SCALE = 0.35

# Share of missed rows whose targets may be outside the training targets.
_MOST_OUTSIDE = 0.1

# Distances of rows that all equal basis rows are 0. Levels have smaller relative errors.
_TINY = _ROUNDING = 1e-9

# The coverage at which learned scales are compared with equal ones.
_COMPARED = 0.9


class RowScale(NamedTuple):
    """The scale of rows with activations phi: ``weights phi + offsets``, at least `least` (q,).

    offsets (1, q), or those of all cells (L, q); weights (q, r), None: 0.
    """

    offsets: Floats
    least: Floats
    weights: Floats | None = None

    @classmethod
    def equal(cls, n_targets: int) -> Self:
        """Return the scale 1 of all rows."""
        return cls(np.ones((1, n_targets)), np.zeros(n_targets))

    @classmethod
    def learned(
        cls, residuals: Floats, activations: Floats, weights: Floats, order: NDArray[np.uint64]
    ) -> tuple[Self, Floats]:
        """Return the scale of rows, and the scales (m, q) of these rows by fits without each fold.

        The scale is a ridge regression of the absolute residuals (m, q) on some activations (m, s)
        (Lei et al. 2018, section 5.2). Scales stay equal where learned ones do not clearly narrow
        the intervals. The hashes `order` (m,) draw the folds.
        """
        if len(residuals) < _FEWEST_OF_SCALE:
            return cls.equal(residuals.shape[1]), np.ones_like(residuals)
        # The same hashes have drawn the folds of the fit.
        hashes = hash_numbers(order.view(np.int64), seed=1)
        folds = (hashes % np.uint64(_FOLDS)).astype(np.int64)
        found = [_learned(own, activations, weights, folds) for own in np.abs(residuals).T]
        offsets, least, own, scales = map(np.array, zip(*found, strict=True))
        return cls(offsets[None], least, own if own.any() else None), scales.T


@dataclass(frozen=True, eq=False)
class Intervals:
    """What held-out rows say about how far predictions may be off, and how far rows may lie.

    quantiles (L, q) are those of absolute residuals over the `scales` of their rows, at the levels
    1 / (L + 1), ..., L / (L + 1); of classes (L, 1) those of `masses`. far: the distance from the
    basis, in widths, of a row that is hardly like any other. scale: None for classes.
    """

    quantiles: Floats
    far: float
    scale: RowScale | None = None

    @classmethod
    def of_rows(
        cls, values: Floats, distances: Floats, weights: Floats, scale: RowScale | None = None
    ) -> Self:
        """Return the intervals of held-out values (m, q) and distances from the basis (m,)."""
        of_distances = conformal_quantiles(distances[:, None], weights)
        far = float(at_coverage(of_distances, _FAR_SHARE)[0])
        return cls(conformal_quantiles(values, weights), max(far, _TINY), scale)

    def at(self, coverage: float) -> Floats:
        """Return the quantiles (q,) of a coverage."""
        return at_coverage(self.quantiles, coverage)

    def half_widths(self, scales: Floats, coverage: float) -> Floats:
        """Return half the widths (b, q) of intervals of rows with raw scales (b, q)."""
        return self.scales(scales) * self.at(coverage)

    def may_clip(self, coverage: float) -> bool:
        """Return whether ends may be clipped to the range of the training targets.

        A new target is outside with the probability 2 / (n + 1). Clipped intervals miss it, so this
        has to be a small share of the targets that intervals miss.
        """
        return 2.0 / (len(self.quantiles) + 1) <= _MOST_OUTSIDE * (1.0 - coverage)

    def scales(self, raw: Floats) -> Floats:
        """Return the scales (b, q) of rows."""
        assert self.scale is not None
        return np.maximum(raw, self.scale.least)

    def allows(self, coverage: float) -> bool:
        """Return whether there are enough held-out rows for a coverage."""
        return 0 < coverage <= _most_coverage(self.quantiles)

    def check(self, coverage: float) -> None:
        """Raise ParameterError unless there are enough held-out rows for a coverage."""
        if not self.allows(coverage):
            most = _most_coverage(self.quantiles)
            raise ParameterError(
                f"the coverage {coverage:g} is not between 0 and {most:.4g}, which the "
                f"{len(self.quantiles)} held-out quantiles allow.",
                "Give a coverage such as 0.9.",
            )


def _most_coverage(quantiles: Floats) -> float:
    return len(quantiles) / (len(quantiles) + 1)


def conformal_quantiles(values: Floats, weights: Floats) -> Floats:
    """Return quantiles (L, q) of the values (m, q) of rows at the levels 1 / (L + 1), ...

    A new row is below the quantile of a level with at least its probability, if it is drawn like
    the rows (Lei, G'Sell, Rinaldo, Tibshirani & Wasserman 2018, section 2.2). Rows count by weight.
    """
    n_levels = min(len(values), MOST_LEVELS)
    levels = np.arange(1, n_levels + 1) / (n_levels + 1)
    quantiles = np.empty((n_levels, values.shape[1]))
    # The new row weighs as much as a row of the mean.
    total = weights.sum() + weights.mean()
    for target, own in enumerate(values.T):
        order = np.argsort(own, kind="stable")
        reached = np.cumsum(weights[order]) / total
        places = np.searchsorted(reached, levels * (1.0 - _ROUNDING))
        quantiles[:, target] = own[order[np.minimum(places, len(order) - 1)]]
    return quantiles


def at_coverage(quantiles: Floats, coverage: float) -> Floats:
    """Return the quantiles (q,) of the least level that is not below the coverage."""
    level = np.ceil(coverage * (len(quantiles) + 1) * (1.0 - _ROUNDING))
    return np.asarray(quantiles[int(np.clip(level, 1, len(quantiles))) - 1])


def masses(probabilities: Floats) -> Floats:
    """Return the probability of all more probable classes, (b, K).

    The set of labels of a row has all classes whose mass is at most a quantile of those of the
    classes of held-out rows (Romano, Sesia & Candès 2020, eq. 7, without random parts of classes).
    """
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ranked = np.take_along_axis(probabilities, order, axis=1)
    found = np.empty_like(ranked)
    np.put_along_axis(found, order, np.cumsum(ranked, axis=1) - ranked, axis=1)
    return found


def _learned(
    sizes: Floats, Phi: Floats, weights: Floats, folds: NDArray[np.int64]
) -> tuple[float, float, Floats, Floats]:
    """Return offset, least and weights (s,) of the scale of one target, and that of each row (m,).

    sizes (m,) are the absolute residuals.
    """
    equal = 1.0, 0.0, np.zeros(Phi.shape[1]), np.ones(len(sizes))
    shares = weights / weights.sum()
    least = _LEAST_SCALE * float(shares @ sizes)
    if least == 0:
        return equal
    tried = np.empty((len(_ALPHAS), len(sizes)))
    for fold in range(_FOLDS):
        held_out = folds == fold
        solved = _ridges(Phi[~held_out], sizes[~held_out], weights[~held_out])
        tried[:, held_out] = [Phi[held_out] @ own + offset for own, offset in solved]
    best = int((np.square(tried - sizes) @ weights).argmin())
    scales = np.maximum(tried[best], least)
    gained = interval_scores(sizes, np.ones_like(sizes), weights)
    gained -= interval_scores(sizes, scales, weights)
    gain = float(gained @ shares)
    if gain <= np.linalg.norm(shares * (gained - gain)):
        return equal
    own, offset = _ridges(Phi, sizes, weights)[best]
    return offset, least, own, scales


def _ridges(Phi: Floats, sizes: Floats, weights: Floats) -> list[tuple[Floats, float]]:
    """Return the weights (s,) and the offset of ridge regressions with each alpha."""
    shares = weights / weights.sum()
    mean, mean_size = shares @ Phi, float(shares @ sizes)
    centred = (Phi - mean) * shares[:, None]
    gram, cross = centred.T @ Phi, centred.T @ sizes
    trace, eye = np.trace(gram) + _TINY, np.eye(len(mean))
    solutions = [np.linalg.solve(gram + alpha * trace * eye, cross) for alpha in _ALPHAS]
    return [(own, mean_size - float(mean @ own)) for own in solutions]


def interval_scores(sizes: Floats, scales: Floats, weights: Floats) -> Floats:
    """Return half the interval score (m,) of each row at a coverage of 90 %.

    That is half the width, plus ten times what a residual exceeds it by (Gneiting & Raftery 2007,
    eq. 43).
    """
    factor = at_coverage(conformal_quantiles((sizes / scales)[:, None], weights), _COMPARED)
    half = scales * factor
    return np.asarray(half + np.maximum(sizes - half, 0.0) / (1.0 - _COMPARED))
