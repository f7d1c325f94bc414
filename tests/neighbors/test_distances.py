import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_nrbfn.neighbors import measure_neighbors
from tests.neighbors.naive import blobs, naive_distances


def random_neighbors(n_rows, k, seed=0):
    """Draw k other rows for each row, in no order."""
    rng = np.random.default_rng(seed)
    others = rng.permuted(np.tile(np.arange(n_rows - 1), (n_rows, 1)), axis=1)[:, :k]
    return others + (others >= np.arange(n_rows)[:, None])


def assert_measured(rows, queries, indices, *, rtol):
    neighbors = measure_neighbors(rows, rows[queries], indices)
    expected = np.take_along_axis(naive_distances(rows)[queries], neighbors.indices, axis=1)
    np.testing.assert_allclose(neighbors.distances, expected, rtol=rtol)
    np.testing.assert_array_equal(np.sort(neighbors.indices, axis=1), np.sort(indices, axis=1))
    assert np.all(np.diff(neighbors.distances, axis=1) >= 0)
    assert neighbors.distances.dtype == np.float64
    assert neighbors.indices.dtype == np.int64
    return neighbors


@given(n_rows=st.integers(2, 30), n_features=st.integers(1, 5), data=st.data())
@settings(max_examples=40)
def test_measure_neighbors__equals_naive(n_rows, n_features, data):
    k = data.draw(st.integers(1, n_rows - 1))
    rows = blobs(n_rows, n_features)
    assert_measured(rows, np.arange(n_rows), random_neighbors(n_rows, k), rtol=1e-14)


@pytest.mark.parametrize("offset", [1e4, -1e8, 1e12])
def test_measure_neighbors__far_offset(offset):
    rows = blobs(60, 5) + offset
    assert_measured(rows, np.arange(60), random_neighbors(60, 7), rtol=1e-13)


def test_measure_neighbors__near_duplicates_far_off():
    rows = np.full((20, 3), 1e8)
    rows[:, 0] += np.arange(20) * 2**-20
    neighbors = assert_measured(rows, np.arange(20), random_neighbors(20, 5), rtol=1e-13)
    assert neighbors.distances.min() > 0


def test_measure_neighbors__single_precision():
    rows = blobs(80, 16).astype(np.float32)
    assert_measured(rows, np.arange(80), random_neighbors(80, 9), rtol=1e-6)


def test_measure_neighbors__single_precision_of_whole_numbers_is_exact():
    rows = np.rint(20 * blobs(80, 16)).astype(np.float32)
    assert_measured(rows, np.arange(80), random_neighbors(80, 9), rtol=1e-15)


@pytest.mark.parametrize(("dtype", "scale"), [("f4", 1e25), ("f4", 1e-25), ("f8", 1e-100)])
def test_measure_neighbors__squares_beyond_the_type_of_the_rows(dtype, scale):
    rows = (blobs(20, 3) * scale).astype(dtype)
    assert_measured(rows, np.arange(20), random_neighbors(20, 4), rtol=1e-6)


def test_measure_neighbors__equal_distances_by_row_number():
    rows = np.repeat([[0.0], [3.0]], 4, axis=0)
    neighbors = measure_neighbors(rows, rows[:1], np.array([[7, 2, 4, 1, 3, 5]]))
    assert neighbors.indices.tolist() == [[1, 2, 3, 4, 5, 7]]
    assert neighbors.distances.tolist() == [[0.0, 0.0, 0.0, 3.0, 3.0, 3.0]]


def test_measure_neighbors__more_rows_than_gathered_at_once():
    # 700 rows x 20 neighbours x 200 columns are three gathers.
    rows, indices = blobs(700, 200), random_neighbors(700, 20)
    whole = assert_measured(rows, np.arange(700), indices, rtol=1e-13)
    for row in (0, 261, 262, 263, 523, 524, 699):
        one = measure_neighbors(rows, rows[row : row + 1], indices[row : row + 1])
        np.testing.assert_array_equal(one.distances[0], whole.distances[row])


def test_measure_neighbors__inputs_stay_as_they_were():
    rows, indices = blobs(10, 3), random_neighbors(10, 4)
    before = rows.copy(), indices.copy()
    measure_neighbors(rows, rows, indices)
    np.testing.assert_array_equal(rows, before[0])
    np.testing.assert_array_equal(indices, before[1])
