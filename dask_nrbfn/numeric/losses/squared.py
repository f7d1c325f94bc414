"""``(1 - m)^2 = (t - f)^2``: the loss of hu-nrbfn, whose weights are a ridge system's."""

import numpy as np

from dask_nrbfn.numeric.losses import Floats, Loss


def _value(margins: Floats) -> Floats:
    return np.square(1.0 - margins)


def _slope(margins: Floats) -> Floats:
    return 2.0 * (margins - 1.0)


def _clipped(scores: Floats) -> Floats:
    return np.clip(scores, 0.0, 1.0)


LOSS = Loss(value=_value, slope=_slope, curvature=2.0, probability=_clipped, solved_at_once=True)
