"""Errors of models on held-out rows, and the temperature that fits the probabilities best."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_nrbfn.numeric.device import array_module, beside, gpu_of, to_host
from dask_nrbfn.numeric.rows import Rows
from dask_nrbfn.numeric.sums import RowSum
from dask_nrbfn.numeric.targets import Targets
from dask_nrbfn.numeric.types import Floats

if TYPE_CHECKING:
    from dask_nrbfn.numeric.radial import RadialFeatures

# Neighbours have a ratio of sqrt(2): the log loss is convex in the inverse temperature, and a cubic
# spline comes within 2e-6 of the minimum.
_STEPS_OF_OCTAVE = 2
INVERSE_TEMPERATURES: Floats = 2.0 ** np.linspace(-2.0, 10.0, 12 * _STEPS_OF_OCTAVE + 1)

# Scores whose log losses are computed together, 512 KiB: they stay in a core's cache.
_STRIP_ELEMENTS = 2**16

# The same on a GPU, 128 MiB: fewer strips, because each starts a hundred kernels.
_GPU_STRIP_ELEMENTS = 2**24

# A row has scores of 0 if its activations of all kept basis functions are smaller than this.
LEAST_ACTIVATION = 1e-200


# The step is visible in float32, and to readers of CSV files that round the last digit.
TIE_STEP = 2.0**-21
"""Share by which a probability is raised above equal probabilities."""

# A sum of squares about the mean that is smaller than this share of the squares is rounding.
_ROUNDING = 1e-13

# The least share of its own target that a score without a row is computed from.
_LEAST_LEFT = 1e-6

_LEAST_SQUARE = float(np.finfo(np.float64).smallest_subnormal)


@dataclass(frozen=True, eq=False)
class JudgedSums(RowSum, ABC):
    """Weighted sums over rows of the errors of A models with q targets.

    compared: names of the figures by which models are compared, the deciding one first.
    """

    compared: ClassVar[tuple[str, ...]]

    @classmethod
    @abstractmethod
    def zeros(cls, n_models: int, n_targets: int) -> Self:
        """Return the sums of no rows."""

    @classmethod
    @abstractmethod
    def from_block(cls, scores: Floats, targets: Any, weights: Floats | None = None) -> Self:
        """Return the sums of a block; targets (b,) are class codes or numbers, scores (b, A, q).

        Only the scores can be on a GPU.
        """

    @abstractmethod
    def figures(self, model: int) -> dict[str, Any]:
        """Return the figures of one model by name; None where its scores are NaN."""

    @property
    @abstractmethod
    def fold_sums(self) -> tuple[Floats, Floats]:
        """The sums of a row of `FoldSums`: errors (A, q) and totals (3, q)."""


@dataclass(frozen=True, eq=False)
class LabelSums(JudgedSums):
    """Weighted confusion (A, K, K) by true class and label; NaN for scores that are not finite."""

    confusion: Floats

    @classmethod
    def zeros(cls, n_models: int, n_targets: int) -> Self:
        """Return the sums of no rows."""
        return cls(np.zeros((n_models, n_targets, n_targets)))

    @classmethod
    def from_block(
        cls, scores: Floats, targets: NDArray[np.integer], weights: Floats | None = None
    ) -> Self:
        """Return the sums of a block; targets (b,) are class codes, scores (b, A, K)."""
        confusion = _confusion(scores, targets, weights)
        confusion[~np.isfinite(to_host(scores.sum(axis=(0, 2))))] = np.nan
        return cls(confusion)

    @property
    def error_rates(self) -> Floats:
        """Weight share of the rows with a wrong label, float64 (A,)."""
        wrong = np.where(np.eye(self.confusion.shape[1], dtype=bool), 0.0, self.confusion)
        return np.asarray(wrong.sum(axis=(1, 2)) / self.confusion.sum(axis=(1, 2)))

    @property
    def fold_sums(self) -> tuple[Floats, Floats]:
        """The weight of wrong rows, and the variance sums that make shares of it."""
        weights = self.confusion.sum(axis=(1, 2))[:, None]
        right = self.confusion.trace(axis1=1, axis2=2)[:, None]
        return weights - right, np.stack([weights[0], np.zeros(1), weights[0]])

    def figures(self, model: int) -> dict[str, Any]:
        """Return the error rate of a model; None if its scores are not finite."""
        rate = float(self.error_rates[model])
        return {"error_rate": None if np.isnan(rate) else rate}


@dataclass(frozen=True, eq=False)
class HeldOutSums(LabelSums):
    """Weighted confusion of A models, never NaN, and their log losses (A, T).

    The log losses are those of ``softmax(scores / temperature)`` at each of `INVERSE_TEMPERATURES`.
    """

    log_losses: Floats

    compared: ClassVar[tuple[str, ...]] = ("error_rate", "log_loss")

    @classmethod
    def zeros(cls, n_models: int, n_targets: int) -> Self:
        """Return the sums of no rows."""
        return cls(
            np.zeros((n_models, n_targets, n_targets)),
            np.zeros((n_models, len(INVERSE_TEMPERATURES))),
        )

    @classmethod
    def from_block(
        cls, scores: Floats, targets: NDArray[np.integer], weights: Floats | None = None
    ) -> Self:
        """Return the sums of a block of class codes and scores (b, A, K).

        ``2 b A K`` exponentials: those of a temperature are the squares of those of twice that
        temperature.
        """
        n_rows, n_models, n_classes = scores.shape
        log_losses = np.zeros((n_models, len(INVERSE_TEMPERATURES)))
        n_elements = _STRIP_ELEMENTS if gpu_of(scores) is None else _GPU_STRIP_ELEMENTS
        size = max(1, n_elements // (n_models * n_classes))
        for start in range(0, n_rows, size):
            rows = slice(start, start + size)
            own_weights = None if weights is None else weights[rows]
            log_losses += _log_losses(scores[rows], targets[rows], own_weights)
        return cls(_confusion(scores, targets, weights), log_losses)

    def figures(self, model: int) -> dict[str, Any]:
        """Return error rate, least log loss and its temperature; None if scores are NaN."""
        if not np.isfinite(self.log_losses[model]).all():
            return dict.fromkeys(("error_rate", "log_loss", "temperature"))
        total_weight = float(self.confusion[model].sum())
        fitted = calibrate_temperature(self.log_losses[model], total_weight=total_weight)
        return {
            "error_rate": float(self.error_rates[model]),
            "log_loss": fitted.log_loss,
            "temperature": fitted.temperature,
        }


def _confusion(scores: Floats, targets: NDArray[np.integer], weights: Floats | None) -> Floats:
    """Return the weights of rows by model, class and label, float64 (A, K, K)."""
    n_rows, n_models, n_classes = scores.shape
    if weights is None:
        weights = np.ones(n_rows)
    cells = (np.arange(n_models) * n_classes + targets[:, None]) * n_classes
    cells += to_host(scores.argmax(axis=2))
    of_cells = np.repeat(weights, n_models)
    confusion = np.bincount(cells.ravel(), of_cells, minlength=n_models * n_classes**2)
    return confusion.astype(np.float64).reshape(n_models, n_classes, n_classes)


def _log_losses(scores: Floats, targets: NDArray[np.integer], weights: Floats | None) -> Floats:
    """Return the sums of the log losses of some rows, float64 (A, T)."""
    if weights is None:
        weights = np.ones(len(scores))
    weights = beside(weights, scores)
    below = scores - scores.max(axis=2, keepdims=True)
    own = np.take_along_axis(below, beside(targets, scores)[:, None, None], axis=2)[:, :, 0]
    log_losses = array_module(scores).empty((scores.shape[1], len(INVERSE_TEMPERATURES)))
    for first in range(_STEPS_OF_OCTAVE):
        powers = np.exp(float(INVERSE_TEMPERATURES[first]) * below)
        for place in range(first, len(INVERSE_TEMPERATURES), _STEPS_OF_OCTAVE):
            losses = np.log(powers.sum(axis=2)) - float(INVERSE_TEMPERATURES[place]) * own
            log_losses[:, place] = weights @ losses
            np.square(powers, out=powers)
    return to_host(log_losses)


@dataclass(frozen=True, eq=False)
class ResidualSums(JudgedSums):
    """Weighted sums of residuals of A models (A, q), and of numeric targets (q,)."""

    squared: Floats
    absolute: Floats
    targets: Floats
    squared_targets: Floats
    weight: float

    compared: ClassVar[tuple[str, ...]] = ("relative_error", "r2")

    @classmethod
    def zeros(cls, n_models: int, n_targets: int) -> Self:
        """Return the sums of no rows."""
        return cls(
            squared=np.zeros((n_models, n_targets)),
            absolute=np.zeros((n_models, n_targets)),
            targets=np.zeros(n_targets),
            squared_targets=np.zeros(n_targets),
            weight=0.0,
        )

    @classmethod
    def from_block(cls, scores: Floats, targets: Floats, weights: Floats | None = None) -> Self:
        """Return the sums of a block of targets (b, q) and scores (b, A, q).

        Both should be given minus an origin, because squares of numbers far from 0 lose digits.
        """
        if weights is None:
            weights = np.ones(len(targets))
        residuals = scores - beside(targets, scores)[:, None]
        own = beside(weights, scores)
        return cls(
            squared=to_host(np.tensordot(own, residuals**2, axes=1)),
            absolute=to_host(np.tensordot(own, np.abs(residuals), axes=1)),
            targets=weights @ targets,
            squared_targets=weights @ targets**2,
            weight=float(weights.sum()),
        )

    @property
    def fold_sums(self) -> tuple[Floats, Floats]:
        """The squared residuals, and the weights, sums and sums of squares of the targets."""
        weights = np.full_like(self.targets, self.weight)
        return self.squared, np.stack([weights, self.targets, self.squared_targets])

    def to_record(self, model: int) -> dict[str, Any]:
        """Return the sums of one model as JSON values."""
        own = slice(model, model + 1)
        sums = replace(self, squared=self.squared[own], absolute=self.absolute[own])
        return {name: values.tolist() for name, values in sums.arrays().items()}

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Self:
        """Return the sums of a record of `to_record`."""
        return cls.from_arrays({name: np.array(values) for name, values in record.items()})

    @property
    def spread(self) -> Floats:
        """Sums of the squared differences of the targets from their means, float64 (q,)."""
        return sum_of_squares(self.weight, self.targets, self.squared_targets)

    def figures(self, model: int) -> dict[str, Any]:
        """Return the mean of ``1 - R^2``, and R^2, RMSE and MAE of every target; None if NaN.

        R^2 of a constant target is 1 if all predictions are right, else 0.
        """
        squared, absolute = self.squared[model], self.absolute[model]
        if not np.isfinite(squared).all():
            return dict.fromkeys(("relative_error", "r2", "rmse", "mae"))
        # Squares of small residuals underflow.
        missed = np.where(absolute > 0, np.maximum(squared, _LEAST_SQUARE), squared)
        unexplained = unexplained_share(missed, self.spread)
        return {
            "relative_error": float(unexplained.mean()),
            "r2": (1.0 - unexplained).tolist(),
            "rmse": np.sqrt(squared / self.weight).tolist(),
            "mae": (absolute / self.weight).tolist(),
        }


@dataclass(frozen=True, eq=False)
class FoldSums(RowSum):
    """Errors (F, A, q) of A models in F folds: squared residuals, or the weight of wrong rows.

    ``totals`` (F, 3, q) are the weight, sum and sum of squares of the targets.
    """

    errors: Floats
    totals: Floats
    n_rows: int

    def deviation(self, model: int) -> float | None:
        """Return the deviation of the error rate or of ``1 - R^2`` over the folds; None for one."""
        seen = self.totals[:, 0].all(axis=1)
        if np.count_nonzero(seen) < 2:
            return None
        weight, sums, squares = self.totals[seen].sum(axis=0)
        shares = self.totals[seen, 0] / weight
        spread = shares * sum_of_squares(weight, sums, squares)
        return float(unexplained_share(self.errors[seen, model], spread).mean(axis=1).std())


def sum_of_squares(weight: Floats | float, sums: Floats, squares: Floats) -> Floats:
    """Return the sums of squared differences from the mean, (q,); 0 where only rounding is left."""
    found = squares - sums**2 / weight
    return np.where(found > _ROUNDING * squares, found, 0.0)


def unexplained_share(squared: Floats, spread: Floats) -> Floats:
    """Return ``1 - R^2`` (q,); of a constant target 0 without residuals, else 1."""
    unexplained = np.where(squared == 0, 0.0, 1.0)
    np.divide(squared, spread, out=unexplained, where=spread > 0)
    return unexplained


def scores_left_out(scores: Floats, targets: Floats, leverages: Floats) -> Floats:
    """Return the scores (b, q) of rows by the networks without each row, with the ridge of all.

    ``(s - h t) / (1 - h)`` for leverages h (b,), see `RidgeFactor` (Hastie, Tibshirani & Friedman
    2009, eq. 7.64).
    """
    left = np.maximum(1.0 - leverages, _LEAST_LEFT)
    left_out: Floats = scores - (leverages / left)[:, None] * (targets - scores)
    return left_out


class FoldWeights(NamedTuple):
    """Weights (A, q, r) of A models that were solved without a fold, 0 for its basis rows.

    NaN where a system is singular. `ones` (A, r) solve the same systems for a target that is 1 in
    all rows, see `renormalized`; `kept` (r,) masks the basis rows outside the fold.
    """

    weights: Floats
    intercepts: Floats
    ones: Floats
    kept: NDArray[np.bool_]

    @property
    def rows(self) -> Floats:
        """All vectors whose products with activations give the scores, (A q + A + 1, r)."""
        return np.vstack([self.weights.reshape(-1, len(self.kept)), self.ones, self.kept])


def held_out_scores(
    features: "RadialFeatures",
    X: Rows,
    rows: Floats,
    intercepts: Floats,
    *,
    buffer: Floats | None = None,
) -> Floats:
    """Return the scores (b, A, q) of rows that the models of `FoldWeights` were not fitted to.

    `rows` are those of `FoldWeights`. The scores are on the device of the basis.
    """
    products = features.weighted_sums(X, rows, buffer=buffer)
    n_models, n_targets = intercepts.shape
    n_scores = n_models * n_targets
    scores = products[:, :n_scores].reshape(-1, n_models, n_targets)
    if features.normalized:
        ones, kept = products[:, n_scores:-1, None], products[:, -1:, None]
        scores = renormalized(scores, ones, kept)
    return scores + beside(intercepts, scores)  # type: ignore[no-any-return]


def renormalized(scores: Floats, ones: Floats, kept: Floats) -> Floats:
    """Return scores of held-out rows as if the kept basis rows alone normalized all activations.

    `scores`, `ones` and `kept` are the products of activations with the vectors of `FoldWeights`.
    Activations that sum to 1 reproduce a target of 1 exactly (hu-nrbfn, Lemma 2), so scores are
    divided by the scores of the same systems for that target. Their mean squared error is 1.03
    times that of a second pass with renormalized activations, and 2.4 times if scores are divided
    by `kept`. The least divisor keeps the sign where a narrow kernel overshoots.
    """
    return scores / np.maximum(ones, 0.5 * np.maximum(kept, LEAST_ACTIVATION))


def sums_of(targets: Targets) -> type[JudgedSums]:
    """Return the class that sums the errors for these targets."""
    return ResidualSums if targets.centred else HeldOutSums


class FittedTemperature(NamedTuple):
    """The temperature at which probabilities fit held-out rows best, and its log loss."""

    temperature: float
    log_loss: float


def calibrate_temperature(log_losses: Floats, *, total_weight: float) -> FittedTemperature:
    """Return the best temperature for the sums (T,) of log losses at `INVERSE_TEMPERATURES`.

    Temperature scaling (Guo et al. 2017) changes no label. The minimum is that of a cubic spline in
    the logarithm of the temperature, next to the best grid point, within 2e-4 of the least loss.
    """
    from scipy.interpolate import CubicSpline

    grid = np.log(INVERSE_TEMPERATURES)
    best = int(np.argmin(log_losses))
    logarithm, lowest = grid[best], float(log_losses[best])
    if 0 < best < len(grid) - 1:
        near = slice(max(best - 3, 0), best + 4)
        spline = CubicSpline(grid[near], log_losses[near])
        for root in spline.derivative().roots(extrapolate=False):
            if abs(root - grid[best]) <= grid[1] - grid[0] and spline(root) < lowest:
                # If all labels are right the losses end in zeros, and the spline goes below 0.
                logarithm, lowest = root, max(float(spline(root)), 0.0)
    return FittedTemperature(float(np.exp(-logarithm)), lowest / total_weight)


def softmax(exponents: Floats, scores: Floats) -> Floats:
    """Return ``softmax(exponents)`` (b, K), the largest where the first largest score is."""
    below = exponents - exponents.max(axis=1, keepdims=True)
    return normalize_in_place(np.exp(below, out=below), scores)


def normalize_in_place(shares: Floats, scores: Floats) -> Floats:
    """Return probabilities in proportion to `shares`, in place, the largest as in `scores`."""
    totals = shares.sum(axis=1, keepdims=True)
    # The scores of a plain network may all be negative or 0.
    shares[totals[:, 0] == 0] = 1.0 / scores.shape[1]
    totals[totals == 0] = 1.0
    shares /= totals
    changed = keep_largest_in_place(shares, scores)
    shares[changed] /= shares[changed].sum(axis=1, keepdims=True)
    return shares


def keep_largest_in_place(values: NDArray[np.floating], scores: Floats) -> NDArray[np.intp]:
    """Put the largest value of each row where its first largest score is; return the changed rows.

    Different scores may have equal values (b, K), which are rounded or clipped; they change in
    place.
    """
    places = scores.argmax(axis=1)
    rows = np.flatnonzero(values.argmax(axis=1) != places)
    largest = values[rows].max(axis=1)
    least = np.finfo(values.dtype).tiny
    values[rows, places[rows]] = largest + TIE_STEP * np.maximum(np.abs(largest), least)
    return rows


def class_figures(classes: Sequence[Any], confusion: ArrayLike) -> list[dict[str, Any]]:
    """Return the "class", "precision", "recall", "f1" and "support" of every class; 0 / 0 is None.

    The last row of `confusion` may be for rows whose class is not in `classes`.
    """
    counts = np.asarray(confusion)
    right = counts.diagonal().tolist()
    given = counts.sum(axis=0).tolist()
    support = counts[: len(right)].sum(axis=1).tolist()
    return [
        {
            "class": label,
            "precision": _share(right[k], given[k]),
            "recall": _share(right[k], support[k]),
            "f1": _share(2 * right[k], support[k] + given[k]),
            "support": support[k],
        }
        for k, label in enumerate(classes)
    ]


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
