"""The nearest rows of candidates among all rows, block by block."""

from functools import reduce
from itertools import pairwise
from operator import add

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_nrbfn.neighbors import inverted
from dask_nrbfn.neighbors.inverted import CandidateSearch, InvertedFile, bounds_of
from dask_nrbfn.neighbors.lists import measure_pairs

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
    search = CandidateSearch(file, bounds, numbers, n_neighbors=K, threads=2)
    # In two steps, of which the first gives bounds to the second.
    middle = (start + stop) // 2
    for first, last in pairwise((start, middle, stop)):
        search.add(rows[first:last], np.arange(first, last))
    return search.nearest()


@given(cuts=st.lists(st.integers(1, 399), unique=True, max_size=6))
@settings(max_examples=5, deadline=None)
def test_nearest__any_blocks(cuts):
    rows, numbers = drawn_rows()
    file, bounds = inverted_file(rows, numbers, 1)
    edges = [0, *sorted(cuts), len(rows)]
    blocks = [nearest_of_block(file, bounds, rows, numbers, *each) for each in pairwise(edges)]
    nearest = reduce(add, blocks)
    indices, distances = naive_neighbors(rows, numbers)
    assert np.array_equal(nearest.indices, indices)
    assert nearest.distances == pytest.approx(distances, rel=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nearest__far_from_the_origin(dtype):
    rows, numbers = drawn_rows(dtype=dtype, far=100.0)
    file, bounds = inverted_file(rows, numbers, 1)
    nearest = nearest_of_block(file, bounds, rows, numbers, 0, len(rows))
    assert np.array_equal(nearest.indices, naive_neighbors(rows, numbers)[0])


def test_near__few_pairs_of_tight_clusters_that_lie_far_apart():
    rows, numbers = drawn_rows(2000)
    rows[np.arange(2000) % 3 == 0] += np.float32(5000.0)
    file, bounds = inverted_file(rows, numbers, 20)
    pairs = file.near(rows, bounds, threads=1)
    assert len(pairs.rows) < 0.1 * len(numbers) * len(rows)
    nearest = nearest_of_block(file, bounds, rows, numbers, 0, len(rows))
    _, distances = naive_neighbors(rows, numbers)
    assert np.mean(nearest.distances <= distances[:, -1:] * (1 + 1e-6)) > 0.95


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("alike", ["far apart", "equally far"])
def test_search__no_more_pairs_at_a_time_than_the_lists_have_places(alike, monkeypatch):
    rows, numbers = drawn_rows(200)
    if alike == "far apart":
        # Nothing within a cluster is told apart in single precision.
        rows[::2] += np.float32(30_000.0)
    else:
        rows = np.eye(200, dtype=np.float32)
    file, bounds = inverted_file(rows, numbers, 1)
    most, measured = len(numbers) * K, []
    assert len(file.near(rows, bounds, threads=1).rows) > 15 * most
    assert file.near(rows, bounds, threads=1, most=most) is None

    def measure(rows, targets, places, target_places):
        measured.append(len(places))
        return measure_pairs(rows, targets, places, target_places)

    monkeypatch.setattr(inverted, "measure_pairs", measure)
    nearest = nearest_of_block(file, bounds, rows, numbers, 0, len(rows))
    assert max(measured) <= most
    indices, distances = naive_neighbors(rows, numbers)
    assert nearest.distances == pytest.approx(distances, rel=1e-6)
    assert alike == "far apart" or np.array_equal(nearest.indices, indices)


def test_bounds__are_not_below_the_furthest_neighbor():
    rows, numbers = drawn_rows()
    _, bounds = inverted_file(rows, numbers, 12)
    _, distances = naive_neighbors(rows, numbers)
    assert (np.sqrt(bounds) * (1 + 1e-6) >= distances[:, -1]).all()


def test_partitions__most_neighbors_in_few_of_them():
    rows, numbers = drawn_rows(4000)
    file, bounds = inverted_file(rows, numbers, 40)
    assert file.n_probes < 20
    nearest = nearest_of_block(file, bounds, rows, numbers, 0, len(rows))
    _, distances = naive_neighbors(rows, numbers)
    found = nearest.distances <= distances[:, -1:] * (1 + 1e-6)
    assert found.mean() > 0.95


def test_near__compares_only_what_is_probed():
    rows, numbers = drawn_rows()
    centroids = np.array([[-9.0, 0.0, 0.0], [9.0, 0.0, 0.0]], np.float32)
    sides = rows[numbers, 0] > 0
    file = InvertedFile(rows[numbers], centroids, np.packbits([~sides, sides], axis=0))
    pairs = file.near(rows, np.full(len(numbers), 1e9), threads=1)
    assert np.array_equal(rows[pairs.rows, 0] > 0, rows[numbers][pairs.candidates, 0] > 0)
    assert len(pairs.rows) == np.bincount(rows[:, 0] > 0) @ np.bincount(sides)
