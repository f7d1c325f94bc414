"""All rows of a source, whose blocks are checked on the way."""

import numpy as np


def collect(source, block_rows=5):
    """Return X (n, p) and the labels or targets, or None where there are none."""
    blocks = list(source.blocks(block_rows))
    assert [len(b.X) for b in blocks[:-1]] == [block_rows] * (len(blocks) - 1)
    assert all(b.X.dtype == source.x_dtype and b.X.dtype.isnative for b in blocks)
    X = np.concatenate([b.X for b in blocks])
    assert X.shape == (source.n_rows, source.n_features)
    if source.y_dtype is None:
        assert all(b.y is None for b in blocks)
        return X, None
    assert all(b.y.dtype == source.y_dtype and len(b.y) == len(b.X) for b in blocks)
    return X, np.concatenate([b.y for b in blocks])


def weights_of(source, block_rows=5):
    blocks = list(source.blocks(block_rows))
    assert source.has_weights
    assert all(b.weights.dtype == np.float64 and len(b.weights) == len(b.X) for b in blocks)
    return np.concatenate([b.weights for b in blocks])
