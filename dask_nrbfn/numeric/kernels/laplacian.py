"""``exp(-t)``; not smooth where the distance is 0, and its slope is infinite there."""

import numpy as np

from dask_nrbfn.numeric.kernels import DistanceKernel

KERNEL = DistanceKernel(
    width_factors=(0.25, 0.5, 1.0, 2.0, 4.0, 8.0),
    rate=1.0,
    slope_of=lambda t: -np.exp(-t) / (2 * t),
)
