"""The nearest rows of candidates among all rows, block by block."""

from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_nrbfn.neighbors import InvertedFile, NearestRows, bounds_of, measure_pairs

K = 5


def drawn_rows(n_rows=400, n_features=3, *, dtype=np.float32, far=0.0):
    """Return rows of which some are alike, and candidates among them."""
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(n_rows, n_features)) + far).astype(dtype)
    rows[50:60] = rows[7]
    return rows, np.sort(rng.choice(n_rows, 80, replace=False))


def naive_neighbors(rows, numbers):
    """Return the nearest other rows of some, of equal ones the first."""
    squared = ((rows[numbers, None].astype(float) - rows[None].astype(float)) ** 2).sum(axis=2)
    squared[np.arange(len(numbers)), numbers] = np.inf
    order = np.argsort(squared, axis=1, kind="stable")[:, :K]
    return order, np.sqrt(np.take_along_axis(squared, order, axis=1))


def inverted_file(rows, numbers, n_partitions):
    sample = rows[::2]
    file = InvertedFile.of(rows[numbers], sample, n_partitions=n_partitions, n_neighbors=K, seed=0)
    return file, bounds_of(file, sample, n_neighbors=K, threads=1)


def nearest_of_block(file, bounds, rows, numbers, start, stop):
    block = rows[start:stop]
    pairs = file.near(block, bounds, threads=2)
    squared = measure_pairs(block, file.candidates, pairs.rows, pairs.candidates)
    others = start + pairs.rows != numbers[pairs.candidates]
    return NearestRows.of_pairs(
        pairs.candidates[others],
        start + pairs.rows[others],
        np.sqrt(squared[others]),
        n_candidates=len(numbers),
        n_neighbors=K,
    )


@given(cuts=st.lists(st.integers(1, 399), unique=True, max_size=6))
@settings(max_examples=10, deadline=None)
def test_nearest__any_blocks(cuts):
    rows, numbers = drawn_rows()
    file, bounds = inverted_file(rows, numbers, 1)
    edges = [0, *sorted(cuts), len(rows)]
    blocks = zip(edges[:-1], edges[1:], strict=True)
    nearest = reduce(
        add, (nearest_of_block(file, bounds, rows, numbers, *block) for block in blocks)
    )
    indices, distances = naive_neighbors(rows, numbers)
    assert np.array_equal(nearest.indices, indices)
    assert nearest.distances == pytest.approx(distances, rel=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nearest__far_from_the_origin(dtype):
    rows, numbers = drawn_rows(dtype=dtype, far=100.0)
    file, bounds = inverted_file(rows, numbers, 1)
    nearest = nearest_of_block(file, bounds, rows, numbers, 0, len(rows))
    assert np.array_equal(nearest.indices, naive_neighbors(rows, numbers)[0])


def test_bounds__are_not_below_the_furthest_neighbor():
    rows, numbers = drawn_rows()
    _, bounds = inverted_file(rows, numbers, 12)
    _, distances = naive_neighbors(rows, numbers)
    assert (np.sqrt(bounds) * (1 + 1e-6) >= distances[:, -1]).all()


def test_partitions__most_neighbors_in_few_of_them():
    rows, numbers = drawn_rows(4000)
    file, bounds = inverted_file(rows, numbers, 40)
    assert file.probes.shape[1] < 20
    nearest = nearest_of_block(file, bounds, rows, numbers, 0, len(rows))
    _, distances = naive_neighbors(rows, numbers)
    found = nearest.distances <= distances[:, -1:] * (1 + 1e-9)
    assert found.mean() > 0.95


def test_near__compares_only_what_is_probed():
    rows, numbers = drawn_rows()
    centroids = np.array([[-9.0, 0.0, 0.0], [9.0, 0.0, 0.0]], np.float32)
    probes = (rows[numbers, :1] > 0).astype(np.int64)
    file = InvertedFile(rows[numbers], centroids, probes)
    pairs = file.near(rows, np.full(len(numbers), 1e9), threads=1)
    assert np.array_equal(rows[pairs.rows, 0] > 0, rows[numbers][pairs.candidates, 0] > 0)
    sides = np.bincount(rows[:, 0] > 0) * np.bincount(probes[:, 0])
    assert len(pairs.rows) == sides.sum()
