"""Searches of rows in CSR: what those of the same rows as arrays find."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import diags_array

from dask_nrbfn.neighbors import exact
from dask_nrbfn.neighbors.approximate import approximate_neighbors
from dask_nrbfn.neighbors.exact import exact_neighbors, find_repeats, nearest_rows
from dask_nrbfn.neighbors.lists import measure_neighbors, measure_recall
from dask_nrbfn.neighbors.partition import Partitions
from dask_nrbfn.numeric.rows import canonical, dense
from dask_nrbfn.numeric.threads import task_threads
from tests.neighbors.naive import assert_valid, naive_distances
from tests.neighbors.sparse import sparse_rows, texts


def exact_distances(rows, indices):
    return measure_neighbors(rows, rows, indices).distances


@given(rows=sparse_rows(), data=st.data())
@settings(max_examples=30, deadline=None)
def test_exact_neighbors__those_of_arrays(rows, data):
    n_rows = rows.shape[0]
    k, threads = data.draw(st.integers(1, n_rows - 1)), data.draw(st.sampled_from([1, 2]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "_TILE_ROWS", data.draw(st.integers(1, n_rows)))
        patch.setattr(exact, "_TILE_TARGETS", data.draw(st.integers(1, n_rows)))
        with task_threads(threads):
            found = exact_neighbors(rows, np.arange(n_rows), n_neighbors=k).indices
    assert_valid(found, np.arange(n_rows), n_rows=n_rows, n_neighbors=k)
    expected = np.sort(naive_distances(dense(rows)), axis=1)[:, :k]
    # Which of rows hardly further away comes first, products do not tell.
    np.testing.assert_allclose(exact_distances(rows, found), expected, rtol=1e-6, atol=1e-7)


def test_nearest_rows__nearest_first_and_of_other_rows():
    rows, targets = texts(200, 300), texts(40, 300, seed=1)
    found = nearest_rows(rows, targets, count=12).indices
    differences = dense(targets)[:, None] - dense(rows)[None]
    distances = np.linalg.norm(differences, axis=2)
    reached = np.take_along_axis(distances, found, axis=1)
    np.testing.assert_allclose(reached, np.sort(distances, axis=1)[:, :12], rtol=1e-6)


@given(rows=sparse_rows(), seed=st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_measure_neighbors__those_of_arrays(rows, seed):
    indices = np.random.default_rng(seed).integers(0, rows.shape[0], (rows.shape[0], 5))
    with task_threads(2):
        found = measure_neighbors(rows, rows, indices)
    expected = measure_neighbors(dense(rows), dense(rows), indices)
    np.testing.assert_allclose(found.distances, expected.distances, rtol=1e-14)


@given(rows=sparse_rows(), n_neighbors=st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_find_repeats__those_of_arrays(rows, n_neighbors):
    found = find_repeats(rows, n_neighbors=n_neighbors, seed=0)
    for each, other in zip(
        found, find_repeats(dense(rows), n_neighbors=n_neighbors, seed=0), strict=True
    ):
        np.testing.assert_array_equal(each, other)


def test_balanced__even_partitions_that_route_as_arrays_are():
    rows, overlap = texts(2000), 2
    partitions = Partitions.balanced(rows, 8, overlap=overlap, seed=0)
    members = partitions.route(rows, overlap=overlap)
    # Of rows at the reach of a partition, rounding decides.
    assert np.mean(members == partitions.route(dense(rows), overlap=overlap)) > 0.99
    assert np.bincount(members[members >= 0]).max() <= 1.2 * 2000 * overlap / 8


@pytest.mark.slow
def test_balanced__halved_where_means_do_not_settle():
    # Rows of very different lengths, of which k-means makes one partition for all the short ones.
    lengths = 10.0 ** np.random.default_rng(0).uniform(-4, 2, 2000)
    rows = canonical(diags_array(lengths) @ texts(2000))
    partitions = Partitions.balanced(rows, 12, overlap=2, seed=0)
    members = partitions.route(rows, overlap=2)
    assert np.bincount(members[members >= 0]).max() <= 1.25 * 2000 * 2 / 12


@pytest.mark.slow
def test_approximate_neighbors__recall_and_hard_rows():
    rows = texts(3000)
    found = approximate_neighbors(rows, n_neighbors=10, seed=0, threads=2)
    assert_valid(found, np.arange(3000), n_rows=3000, n_neighbors=10)
    exactly = exact_neighbors(rows, np.arange(3000), n_neighbors=10)
    recall, _ = measure_recall(exact_distances(rows, found), exactly.distances)
    assert recall > 0.95
    # Empty rows and copies among them.
    hard = rows[np.arange(1200) // 4]
    hard.data[: hard.indptr[100]] = 0.0
    hard.eliminate_zeros()
    found = approximate_neighbors(hard, n_neighbors=10, seed=0, threads=2)
    assert_valid(found, np.arange(1200), n_rows=1200, n_neighbors=10)
