"""``max(0, 1 - m)^2``: rows beyond their margin cost nothing.

It is least where ``f = 2 P - 1``, P the probability of the class (Zhang, *Statistical Behavior and
Consistency of Classification Methods Based on Convex Risk Minimization*, 2004, section 3): clipped
margins are probabilities.
"""

import numpy as np

from dask_nrbfn.numeric.losses import Floats, Loss, clipped_margin


def _value(margins: Floats) -> Floats:
    return np.square(np.maximum(1.0 - margins, 0.0))


def _slope(margins: Floats) -> Floats:
    return -2.0 * np.maximum(1.0 - margins, 0.0)


LOSS = Loss(value=_value, slope=_slope, curvature=2.0, probability=clipped_margin)
