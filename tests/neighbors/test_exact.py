import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_nrbfn.neighbors import exact_neighbors
from tests.neighbors.naive import assert_valid, blobs, naive_distances, naive_neighbors
from tests.numeric.chunkings import row_chunkings, split


def assert_nearest(found, queries, rows, *, rtol):
    """Assert that the distances are the k smallest ones, whatever order equal ones come in."""
    distances = naive_distances(rows)[queries]
    k = found.shape[1]
    expected = np.sort(distances, axis=1)[:, :k]
    reached = np.sort(np.take_along_axis(distances, found, axis=1), axis=1)
    np.testing.assert_allclose(reached, expected, rtol=rtol, atol=rtol)


@given(
    n_rows=st.integers(2, 40),
    n_features=st.integers(1, 5),
    seed=st.integers(0, 99),
    data=st.data(),
)
@settings(max_examples=60)
def test_exact_neighbors__equals_naive(n_rows, n_features, seed, data):
    k = data.draw(st.integers(1, n_rows - 1))
    rows = blobs(n_rows, n_features, seed=seed)
    found = exact_neighbors(rows, np.arange(n_rows), n_neighbors=k)
    assert_valid(found, np.arange(n_rows), n_rows=n_rows, n_neighbors=k)
    np.testing.assert_array_equal(found, naive_neighbors(rows, k))


@pytest.mark.parametrize(("dtype", "rtol"), [("f4", 1e-3), ("f8", 1e-12)])
@pytest.mark.parametrize("k", [1, 20, 299])
def test_exact_neighbors__both_precisions(dtype, rtol, k):
    rows = blobs(300, 8).astype(dtype)
    found = exact_neighbors(rows, np.arange(300), n_neighbors=k)
    assert_valid(found, np.arange(300), n_rows=300, n_neighbors=k)
    assert_nearest(found, np.arange(300), rows, rtol=rtol)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("n_copies", [2, 7, 100])
@pytest.mark.parametrize("k", [1, 5, 10])
def test_exact_neighbors__duplicates(dtype, n_copies, k):
    # Among more copies than k + 1 the row itself is mostly not in the list at all.
    rows = np.repeat(np.rint(4 * blobs(8, 3)), n_copies, axis=0).astype(dtype)
    queries = np.arange(len(rows))
    found = exact_neighbors(rows, queries, n_neighbors=k)
    assert_valid(found, queries, n_rows=len(rows), n_neighbors=k)
    assert_nearest(found, queries, rows, rtol=1e-12)


def test_exact_neighbors__all_rows_equal():
    rows = np.ones((30, 4))
    found = exact_neighbors(rows, np.arange(30), n_neighbors=29)
    assert_valid(found, np.arange(30), n_rows=30, n_neighbors=29)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_exact_neighbors__one_row_more_than_neighbors(k):
    found = exact_neighbors(blobs(k + 1, 3), np.arange(k + 1), n_neighbors=k)
    for row, neighbors in enumerate(found):
        assert set(neighbors.tolist()) == set(range(k + 1)) - {row}


@given(lengths=row_chunkings(), seed=st.integers(0, 9))
@settings(max_examples=20)
def test_exact_neighbors__any_split_of_the_queries(lengths, seed):
    n_rows = sum(lengths) + 3
    rows = blobs(n_rows, 4, seed=seed)
    queries = np.arange(sum(lengths))
    whole = exact_neighbors(rows, queries, n_neighbors=3)
    parts = [exact_neighbors(rows, part, n_neighbors=3) for part in split(queries, lengths)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_exact_neighbors__queries_in_any_order():
    rows, queries = blobs(50, 3), np.array([49, 0, 7, 7, 3])
    found = exact_neighbors(rows, queries, n_neighbors=4)
    np.testing.assert_array_equal(found, naive_neighbors(rows, 4)[queries])
