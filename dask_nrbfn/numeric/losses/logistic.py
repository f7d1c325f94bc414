"""``log(1 + e^-m)``: the scores are log odds of each class against the others.

So ``1 / (1 + e^-f)`` is a probability as it is, without a temperature (Hastie, Tibshirani &
Friedman, *The Elements of Statistical Learning*, section 4.4 and 10.5).
"""

import numpy as np

from dask_nrbfn.numeric.losses import Floats, Loss


def _value(margins: Floats) -> Floats:
    return np.logaddexp(0.0, -margins)


def _slope(margins: Floats) -> Floats:
    return -_probability(-margins)


def _probability(scores: Floats) -> Floats:
    # Of -|f| the exponential does not overflow.
    small = np.exp(-np.abs(scores))
    return np.where(scores < 0.0, small, 1.0) / (1.0 + small)


LOSS = Loss(value=_value, slope=_slope, curvature=0.25, probability=_probability)
