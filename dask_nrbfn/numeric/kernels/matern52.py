"""The Matern kernel of smoothness 5/2, ``(1 + a + a^2 / 3) exp(-a)`` with ``a = sqrt(5) t``."""

import numpy as np

from dask_nrbfn.numeric.kernels import DistanceKernel, Floats

RATE = float(np.sqrt(5))


def _log_factor(t: Floats) -> Floats:
    a = RATE * t
    # The square of a far row's t overflows.
    logarithm: Floats = np.log1p(a) + np.log1p(a * (a / (1 + a)) / 3)
    return logarithm


KERNEL = DistanceKernel(
    rate=RATE,
    slope_of=lambda t: -5 / 6 * (1 + RATE * t) * np.exp(-RATE * t),
    log_factor=_log_factor,
)
