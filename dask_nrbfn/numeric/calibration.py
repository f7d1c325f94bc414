"""Calibration: probabilities fitted to the scores of held-out rows by maximum likelihood."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.hashing import hash_numbers
from dask_nrbfn.numeric.held_out import INVERSE_TEMPERATURES, softmax
from dask_nrbfn.numeric.losses import Loss
from dask_nrbfn.numeric.sums import RowSum
from dask_nrbfn.numeric.types import Floats

# Below this probability the logarithm is constant: the probabilities of a loss are clipped to 0,
# and small ones are mostly error. With 0.01 to 0.03 the log losses of 18 tables are lowest.
_LEAST_SHARE = 0.02

# Number of drawn scores, 8 MiB: 2^19 rows of two classes, 10,000 rows of a hundred classes.
MOST_SCORES = 2**20

# Bytes of a fit for each drawn score: the draw, exponents, probabilities and their products.
FIT_BYTES = 12 * 8

# Curvature of the penalty of the biases, like that of at least two rows of even odds. Without the
# penalty the bias of a class whose rows are all certain is infinite. Values of 1 to 10 give the
# same log loss.
_SHRINKAGE = 1.0

# Number of wrong labels that smoothed targets stand for. With 0, probabilities are 0 and 1 if all
# held-out rows are labelled right: a log loss of 0.09 on new rows of such a table, and of 0.006
# with 0.1 to 0.5. If some rows are labelled wrong, 0.1 has the same log loss as 0, 1 a higher one.
_SMOOTHED_ROWS = 0.1

# Bounds of the factors of scores and logarithms. For separable rows the maximum is not finite.
_LEAST_FACTORS = np.array([INVERSE_TEMPERATURES[0], 0.0])
_MOST_FACTORS = np.array([INVERSE_TEMPERATURES[-1], 64.0])

# Newton steps and halvings of a step. A fit takes 5 to 20 steps.
_MOST_STEPS, _MOST_HALVINGS = 100, 40

# Largest relative difference of two sums of the same weights.
_ROUNDING = 1e-12

# A smaller relative decrease of the objective is rounding.
_LEAST_DECREASE = 1e-13


@dataclass(frozen=True)
class Calibration:
    """Parameters that turn scores into probabilities; without biases by the temperature alone.

    ``softmax(s_k / temperature + log_slope log max(p_k, 0.02) + b_k)`` for scores ``s_k`` and
    probabilities ``p_k`` of the loss; of two classes only the difference of the scores counts.
    Bias-corrected temperature scaling (Alexandari, Kundaje & Shrikumar 2020, section 3), with the
    logarithm of Kull et al. 2019 (Dirichlet calibration) and one slope for all classes: with a
    temperature alone, a rare class gets too large a probability from a score of 0.
    """

    temperature: float
    log_slope: float = 0.0
    biases: tuple[float, ...] | None = None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self | None:
        """Return the calibration in a record or in attributes; None if it has no temperature."""
        if record.get("temperature") is None:
            return None
        if record.get("biases") is None:
            return cls(record["temperature"])
        return cls(record["temperature"], record["log_slope"], tuple(record["biases"]))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values; only the temperature if there are no biases."""
        if self.biases is None:
            return {"temperature": self.temperature}
        return {**vars(self), "biases": list(self.biases)}

    def exponents(self, scores: Any, loss: Loss) -> Any:
        """Return the exponents of the probabilities (b, K), for an array or a tensor of scores."""
        scaled = scores / self.temperature
        if self.biases is None:
            return scaled
        logarithms = _logarithms(scores, loss, len(self.biases))
        return scaled + self.log_slope * logarithms + np.asarray(self.biases)

    def probabilities(self, scores: Floats, loss: Loss) -> Floats:
        """Return the probabilities of the classes; the largest is that of the largest score."""
        return softmax(self.exponents(scores, loss), scores)


def _logarithms(scores: Any, loss: Loss, n_classes: int) -> Any:
    if n_classes == 2:
        # Only the difference of the scores counts, so that it orders rows like the probabilities.
        scores = scores - 0.5 * scores.sum(axis=1, keepdims=True) + loss.even_score
    return np.log(np.maximum(loss.probability(scores), _LEAST_SHARE))


@dataclass(frozen=True, eq=False)
class ScoreDraw(RowSum):
    """Scores (m, K) of drawn rows of the V versions of a run; version 0 is the fit.

    own: weights of the rows. order: hashes of the row numbers, which drew each row with the
    probability `shares`. distances (m,): distances to the nearest basis row, in widths. totals
    (V, 2, K): number and weight of all rows of each version and class. Numbers are drawn like rows
    of one class; their scores (m, q) are residuals over the scale of the row.
    """

    scores: Floats
    codes: NDArray[np.int64]
    own: Floats
    shares: Floats
    order: NDArray[np.uint64]
    versions: NDArray[np.int64]
    distances: Floats
    totals: Floats

    @property
    def _n_classes(self) -> int:
        return int(self.totals.shape[2])

    @property
    def weights(self) -> Floats:
        """Weights (m,): the rows of each class weigh as much as all rows of the class."""
        weights = self.own / self.shares
        total = self.totals[:, 1].sum(axis=0)
        drawn = self._sums_of_classes(weights)
        factors = np.divide(total, drawn, out=np.ones_like(drawn), where=drawn > 0)
        # All weights may have been summed in another order.
        factors[np.isclose(factors, 1.0, rtol=_ROUNDING, atol=0.0)] = 1.0
        weights *= factors[self.codes]
        return weights

    def _sums_of_classes(self, values: Floats | None = None) -> NDArray[Any]:
        return np.bincount(self.codes, values, self._n_classes)

    def log_loss(self, probabilities: Floats) -> float:
        """Return the weighted mean of the log losses of probabilities (m, K)."""
        own = probabilities[np.arange(len(self.codes)), self.codes]
        weights = self.weights
        return float(-(weights @ np.log(own)) / weights.sum())

    def __add__(self, other: Self) -> Self:
        """Return the rows of both."""
        own, further = self._rows(), other._rows()
        rows = {name: np.concatenate([own[name], further[name]]) for name in own}
        totals = np.zeros(np.maximum(self.totals.shape, other.totals.shape))
        for each in (self, other):
            totals[: len(each.totals)] += each.totals
        return replace(self, **rows, totals=totals)

    def _rows(self) -> dict[str, Any]:
        return {name: values for name, values in self.arrays().items() if name != "totals"}

    def _take(self, places: NDArray[Any]) -> Self:
        return replace(self, **{name: values[places] for name, values in self._rows().items()})

    def thinned(self, most_scores: int = MOST_SCORES) -> Self:
        """Return at most ``most_scores / K^2`` rows of each class, with the least hashes."""
        n_classes = self._n_classes
        most = np.minimum(self._sums_of_classes(), max(1, most_scores // n_classes**2))
        sequence = np.lexsort((self.order, self.codes))
        edges = np.searchsorted(self.codes[sequence], np.arange(n_classes + 1))
        # The least hash of a class that is not kept is the probability of its rows.
        beyond = edges[:-1] + most
        thinned = np.flatnonzero(beyond < edges[1:])
        largest = np.ones(n_classes)
        largest[thinned] = self.order[sequence[beyond[thinned]]] * 2.0**-64
        kept = np.arange(len(sequence)) < beyond[self.codes[sequence]]
        shares = np.minimum(self.shares, largest[self.codes])
        return replace(self, shares=shares)._take(np.sort(sequence[kept]))

    def without(self, version: int) -> Self:
        """Return the draw without the rows of a version."""
        totals = self.totals.copy()
        totals[version] = 0.0
        return replace(self, totals=totals)._take(self.versions != version)

    def of_version(self, version: int) -> Self:
        """Return the draw with all rows in one version."""
        totals = np.zeros((version + 1, *self.totals.shape[1:]))
        totals[version] = self.totals.sum(axis=0)
        return replace(self, versions=np.full(len(self.codes), version), totals=totals)


class DrawnRows(NamedTuple):
    """A draw of rows by the ``shares`` (K,) of the rows of each class."""

    shares: Floats
    seed: int

    @classmethod
    def of_counts(
        cls, class_counts: NDArray[Any], *, seed: int, most_scores: int = MOST_SCORES
    ) -> Self:
        """Return a draw of at most about ``most_scores / K^2`` rows of each class."""
        of_class = most_scores / len(class_counts) ** 2
        return cls(np.minimum(1.0, of_class / np.maximum(class_counts, 1)), seed)

    def none(self, n_scores: int) -> ScoreDraw:
        """Return the draw of no rows."""
        n_classes = len(self.shares)
        return ScoreDraw(
            scores=np.empty((0, n_scores)),
            codes=np.empty(0, dtype=np.int64),
            own=np.empty(0),
            shares=np.empty(0),
            order=np.empty(0, dtype=np.uint64),
            versions=np.empty(0, dtype=np.int64),
            distances=np.empty(0),
            totals=np.zeros((1, 2, n_classes)),
        )

    def places(self, numbers: NDArray[np.int64], codes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the places of the rows that the hashes of their numbers draw."""
        order = hash_numbers(numbers, seed=self.seed)
        return np.flatnonzero(order * 2.0**-64 <= self.shares[codes])

    def take(
        self,
        numbers: NDArray[np.int64],
        codes: NDArray[np.int64],
        weights: Floats | None,
        scores: Floats,
        distances: Floats,
        drawn: NDArray[np.int64] | slice = slice(None),
    ) -> ScoreDraw:
        """Return the rows of a block at the drawn `places`, by default all, as rows of the fit.

        scores (m, .) and distances (m,) are those of the drawn rows.
        """
        own = np.ones(len(codes)) if weights is None else weights
        class_counts = np.bincount(codes, minlength=len(self.shares))
        class_weights = np.bincount(codes, own, minlength=len(self.shares))
        return ScoreDraw(
            scores=scores,
            codes=codes[drawn],
            own=own[drawn],
            shares=self.shares[codes[drawn]],
            order=hash_numbers(numbers[drawn], seed=self.seed),
            versions=np.zeros(len(distances), dtype=np.int64),
            distances=distances,
            totals=np.array([[class_counts, class_weights]], dtype=np.float64),
        )


def fit_calibration(draw: ScoreDraw, loss: Loss, *, temperature: float) -> Calibration:
    """Return the calibration with the greatest likelihood on drawn rows with finite scores.

    Minimizes ``-sum_ik v_i t_ik log p_ik + |b|^2 / 2``, convex in the inverse temperature, the
    slope and the biases, with weights of mean 1 and targets smoothed as by Platt 1999, section 2.2,
    but by a tenth of a row in all. Projected Newton steps (Bertsekas 1982, eq. 33) of ``m K (K +
    4)`` flops.
    """
    problem = _Likelihood.of(draw, loss)
    start = np.zeros(2 + draw.scores.shape[1])
    start[0] = 1.0 / temperature
    best = problem.at(start)
    for _ in range(_MOST_STEPS):
        lower = problem.lowered(best)
        if lower is None:
            break
        decrease = best.value - lower.value
        best = lower
        if decrease <= _LEAST_DECREASE * best.value:
            break
    inverse_temperature, log_slope, *biases = best.point.tolist()
    return Calibration(1.0 / inverse_temperature, log_slope, tuple(biases))


class _Expansion(NamedTuple):
    """Value, gradient (K + 2,) and second derivatives (K + 2, K + 2) at a ``point`` (K + 2,)."""

    point: Floats
    value: float
    gradient: Floats
    curvature: Floats


class _Likelihood(NamedTuple):
    """The negative log-likelihood of `inputs` (2, m, K): scores and logarithms of probabilities.

    A point has the factors of both inputs, and K biases. `other` is the target of other classes.
    """

    inputs: Floats
    codes: NDArray[np.int64]
    weights: Floats
    other: float

    @classmethod
    def of(cls, draw: ScoreDraw, loss: Loss) -> Self:
        """Return the negative log-likelihood of drawn rows."""
        inputs = np.stack([draw.scores, _logarithms(draw.scores, loss, draw.scores.shape[1])])
        n_rows, n_classes = draw.scores.shape
        other = _SMOOTHED_ROWS / ((n_rows + 2) * max(n_classes - 1, 1))
        weights = draw.weights
        return cls(inputs, draw.codes, weights / weights.mean(), other)

    def at(self, point: Floats) -> _Expansion:
        """Return the expansion at the nearest point within the bounds."""
        factors = np.clip(point[:2], _LEAST_FACTORS, _MOST_FACTORS)
        biases, weights = point[2:], self.weights
        exponents = np.tensordot(factors, self.inputs, axes=1) + biases
        exponents -= exponents.max(axis=1, keepdims=True)
        target_exponents = self._target_means(exponents)
        shares = np.exp(exponents, out=exponents)
        totals = shares.sum(axis=1, keepdims=True)
        shares /= totals
        losses = np.log(totals[:, 0]) - target_exponents
        value = weights @ losses + 0.5 * _SHRINKAGE * biases @ biases
        weighted = weights[:, None] * shares
        means = (shares * self.inputs).sum(axis=2)
        factor_slopes = (means - self._target_means(self.inputs)) @ weights
        of_own = np.bincount(self.codes, weights, minlength=len(biases))
        targets = of_own + self.other * (weights.sum() - len(biases) * of_own)
        bias_slopes = weighted.sum(axis=0) - targets + _SHRINKAGE * biases
        # The covariances of inputs and class indicators under the probabilities of each row.
        deviations = self.inputs - means[:, :, None]
        curvature = np.diag(np.append([0.0, 0.0], weighted.sum(axis=0) + _SHRINKAGE))
        curvature[2:, 2:] -= shares.T @ weighted
        deviations *= weighted
        curvature[:2, :2] = np.tensordot(deviations, self.inputs, axes=([1, 2], [1, 2]))
        curvature[:2, 2:] = deviations.sum(axis=1)
        curvature[2:, :2] = curvature[:2, 2:].T
        gradient = np.concatenate([factor_slopes, bias_slopes])
        return _Expansion(np.concatenate([factors, biases]), float(value), gradient, curvature)

    def _target_means(self, values: Floats) -> Floats:
        """Return the means of values (..., m, K) under the targets, (..., m)."""
        own = values[..., np.arange(len(self.codes)), self.codes]
        others = values.sum(axis=-1) - values.shape[-1] * own
        return np.asarray(own + self.other * others)

    def lowered(self, best: _Expansion) -> _Expansion | None:
        """Return the expansion after a shortened Newton step; None if none is lower."""
        step = _newton_step(best)
        for halving in range(_MOST_HALVINGS):
            lower = self.at(best.point - 0.5**halving * step)
            if lower.value < best.value:
                return lower
        return None


def _newton_step(best: _Expansion) -> Floats:
    """Return the Newton step to subtract, (K + 2,); 0 for factors that a bound holds."""
    factors, slopes = best.point[:2], best.gradient[:2]
    at_least = (factors <= _LEAST_FACTORS) & (slopes > 0)
    at_most = (factors >= _MOST_FACTORS) & (slopes < 0)
    free = np.ones(len(best.point), dtype=bool)
    free[:2] = ~(at_least | at_most)
    # Scores and logarithms may be collinear, or constant.
    raised = best.curvature[np.ix_(free, free)]
    raised[np.diag_indices_from(raised)] += 1e-10 * (1.0 + raised.diagonal())
    step = np.zeros(len(best.point))
    step[free] = np.linalg.solve(raised, best.gradient[free])
    return step
