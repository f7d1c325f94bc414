"""Losses: functions of the margin of a row."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from dask_nrbfn.choices import LOSSES
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.params import FitParams


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A convex function of margins ``m = t f`` of each class against the others, t = +1 or -1.

    value, slope: take margins, an array of any shape; return the loss and its derivative.
    curvature: approximate largest second derivative; it sets the length of the first step.
    probability: takes the scores of rows, returns the probability of each class against the others.
    solved_at_once: whether the weights solve the ridge system of class indicators. Then scores are
        near 0 and 1; with other losses near -1 and 1.
    """

    value: Callable[[Floats], Floats]
    slope: Callable[[Floats], Floats]
    curvature: float
    probability: Callable[[Floats], Floats]
    solved_at_once: bool = False

    @property
    def even_score(self) -> float:
        """The score whose probability is 1/2."""
        return 0.5 if self.solved_at_once else 0.0


def _clipped_margin(scores: Floats) -> Floats:
    """Return ``(1 + f) / 2``, clipped to [0, 1]."""
    return np.clip(0.5 + 0.5 * scores, 0.0, 1.0)


SQUARED = Loss(
    value=lambda margins: np.square(1.0 - margins),
    slope=lambda margins: 2.0 * (margins - 1.0),
    curvature=2.0,
    probability=lambda scores: np.clip(scores, 0.0, 1.0),
    solved_at_once=True,
)
"""``(1 - m)^2 = (t - f)^2``: the loss of hu-nrbfn, whose weights solve a ridge system."""

SQUARED_HINGE = Loss(
    value=lambda margins: np.square(np.maximum(1.0 - margins, 0.0)),
    slope=lambda margins: -2.0 * np.maximum(1.0 - margins, 0.0),
    curvature=2.0,
    probability=_clipped_margin,
)
"""``max(0, 1 - m)^2``: rows beyond their margin cost nothing.

The minimum is at ``f = 2 P - 1``, P the probability of the class (Zhang, *Statistical Behavior and
Consistency of Classification Methods Based on Convex Risk Minimization*, 2004, section 3), so
clipped margins are probabilities.
"""


def _logistic_probability(scores: Floats) -> Floats:
    # The exponential of -|f| does not overflow.
    small = np.exp(-np.abs(scores))
    return np.where(scores < 0.0, small, 1.0) / (1.0 + small)


LOGISTIC = Loss(
    value=lambda margins: np.logaddexp(0.0, -margins),
    slope=lambda margins: -_logistic_probability(-margins),
    curvature=0.25,
    probability=_logistic_probability,
)
"""``log(1 + e^-m)``: the scores are log odds of each class against the others.

``1 / (1 + e^-f)`` is a probability without a temperature (Hastie, Tibshirani & Friedman, *The
Elements of Statistical Learning*, sections 4.4 and 10.5).
"""

# With this delta the exact hinge of a two-class table is 0.1 % above its minimum. With 0.02 it is
# 0.02 % above the minimum, but needs 185 passes.
_DELTA = 0.1


def _hinge(margins: Floats) -> Floats:
    beyond = 1.0 - margins
    smooth = np.square(np.maximum(beyond + _DELTA, 0.0)) / (4.0 * _DELTA)
    return np.where(beyond < _DELTA, smooth, beyond)


HINGE = Loss(
    value=_hinge,
    slope=lambda margins: -np.clip((1.0 - margins + _DELTA) / (2.0 * _DELTA), 0.0, 1.0),
    # The slope changes by 1 in total. The largest second derivative, 5, would make the first steps
    # too short: two more passes to the same objective on digits.
    curvature=1.0,
    probability=_clipped_margin,
)
"""``max(0, 1 - m)``, made smooth: the loss of support vector machines.

Where ``|1 - m| < delta`` it is ``(1 - m + delta)^2 / (4 delta)`` (Chapelle, *Training a Support
Vector Machine in the Primal*, 2007, eq. 2.7). A clipped margin shows on which side of 1/2 the
probability is, not its value, so it only orders rows.
"""


@cache
def loss_named(name: str) -> Loss:
    """Return the loss with a name; raise ParameterError if the name is unknown."""
    FitParams.options()["loss"].check("loss", name)
    loss: Loss = LOSSES[name]
    return loss
