"""Losses: what a margin of a row costs.

Each module here is a loss of its own name, with ``-`` for ``_``: it defines `LOSS`, and there is no
more to add.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.params import FitParams, module_of

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A convex function of margins ``m = t f``: each class against the others, t = +1 or -1.

    Attributes
    ----------
    value, slope : callable
        Take margins, an array of any shape; return the loss and its derivative.
    curvature : float
        About as much as the slope changes for a change of the margin by 1, if that is much: the
        first step is as long as it says.
    probability : callable
        Takes the scores of rows, returns for each the probability of its class against the others,
        from 0 to 1.
    solved_at_once : bool
        Whether the weights are those of the ridge system of class indicators, from which the others
        start; its scores are near 0 and 1 where theirs are near -1 and 1.
    """

    value: Callable[[Floats], Floats]
    slope: Callable[[Floats], Floats]
    curvature: float
    probability: Callable[[Floats], Floats]
    solved_at_once: bool = False


def clipped_margin(scores: Floats) -> Floats:
    """Return ``(1 + f) / 2``, clipped to [0, 1]."""
    return np.clip(0.5 + 0.5 * scores, 0.0, 1.0)


@cache
def loss_named(name: str) -> Loss:
    """Return the loss of a name.

    Raises
    ------
    ParameterError
        If there is none.
    """
    FitParams.options()["loss"].check("loss", name)
    loss: Loss = module_of(__name__, name).LOSS
    return loss
