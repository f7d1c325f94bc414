"""Kernel smoothing: every training row votes for its own target."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.radial import RadialFeatures

Floats = NDArray[np.float64]

# Rows whose votes are counted at a time: 80 MB of activations with 10,000 voters.
_BLOCK_ROWS = 1024


def kernel_votes(
    X_train: NDArray[Any], T: Floats, X: NDArray[Any], *, width: float, normalized: bool
) -> Floats:
    """Return the votes for rows X (b, p), float64 (b, q), of training rows with targets T (n, q).

    Normalized votes are means, the estimator of Nadaraya & Watson; others are sums, the network
    with uniform influence of Lin's lecture. Nothing is solved: the weights are the targets.
    """
    features = RadialFeatures.from_basis(X_train, width, normalized=normalized)
    weights = np.ascontiguousarray(T.T, dtype=np.float64)
    blocks = (X[start : start + _BLOCK_ROWS] for start in range(0, len(X), _BLOCK_ROWS))
    return np.concatenate([features.weighted_sums(block, weights) for block in blocks])
