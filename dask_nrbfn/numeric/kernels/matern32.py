"""The Matern kernel of smoothness 3/2, ``(1 + a) exp(-a)`` with ``a = sqrt(3) t``."""

import numpy as np

from dask_nrbfn.numeric.kernels import DistanceKernel

RATE = float(np.sqrt(3))

KERNEL = DistanceKernel(
    rate=RATE,
    slope_of=lambda t: -1.5 * np.exp(-RATE * t),
    log_factor=lambda t: np.log1p(RATE * t),
)
