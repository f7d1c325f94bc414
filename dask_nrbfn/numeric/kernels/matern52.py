"""The Matern kernel of smoothness 5/2, ``(1 + a + a^2 / 3) exp(-a)`` with ``a = sqrt(5) t``."""

import numpy as np

from dask_nrbfn.numeric.kernels import DistanceKernel

RATE = float(np.sqrt(5))

KERNEL = DistanceKernel(
    rate=RATE,
    slope_of=lambda t: -5 / 6 * (1 + RATE * t) * np.exp(-RATE * t),
    log_factor=lambda t: np.log1p(RATE * t * (1 + RATE * t / 3)),
)
