"""Neighbours written down as slowly and plainly as possible."""

import numpy as np

from tests.numeric.frozen import read_only


def naive_distances(rows):
    """Return all distances, float64 (n, n), the row itself at infinity."""
    rows = np.asarray(rows, dtype=np.longdouble)
    distances = np.empty((len(rows), len(rows)))
    for i, row in enumerate(rows):
        distances[i] = np.sqrt(((rows - row) ** 2).sum(axis=1))
    np.fill_diagonal(distances, np.inf)
    return distances


def naive_neighbors(rows, n_neighbors):
    """Return the k nearest other rows; equal distances by row number."""
    return np.argsort(naive_distances(rows), axis=1, kind="stable")[:, :n_neighbors]


def assert_valid(found, queries, *, n_rows, n_neighbors):
    """Assert the shape, and that no row has itself, a repeated or an unknown neighbour."""
    assert found.shape == (len(queries), n_neighbors)
    assert found.dtype == np.int64
    assert found.min() >= 0
    assert found.max() < n_rows
    assert not np.any(found == np.asarray(queries)[:, None])
    assert all(len(set(row)) == n_neighbors for row in found.tolist())


@read_only
def blobs(n_rows, n_features, *, n_blobs=10, seed=0):
    rng = np.random.default_rng(seed)
    centres = rng.normal(scale=5, size=(n_blobs, n_features))
    return centres[rng.integers(0, n_blobs, n_rows)] + rng.normal(size=(n_rows, n_features))
