"""The Matern kernel of smoothness 3/2, ``(1 + a) exp(-a)`` with ``a = sqrt(3) t``."""

import numpy as np

from dask_nrbfn.numeric.kernels import DistanceKernel

RATE = float(np.sqrt(3))

KERNEL = DistanceKernel(
    width_factors=(0.15, 0.25, 0.4, 0.6, 1.0, 1.6, 2.5),
    rate=RATE,
    slope_of=lambda t: -1.5 * np.exp(-RATE * t),
    log_factor=lambda t: np.log1p(RATE * t),
)
