"""``exp(-t)``; not smooth where the distance is 0, and its slope is infinite there."""

import numpy as np

from dask_nrbfn.numeric.kernels import DistanceKernel

KERNEL = DistanceKernel(rate=1.0, slope_of=lambda t: -np.exp(-t) / (2 * t))
