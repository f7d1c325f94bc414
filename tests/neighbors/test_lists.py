import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_nrbfn.neighbors.lists import (
    MISSING,
    Neighbors,
    measure_neighbors,
    measure_recall,
    merge_neighbors,
)
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


@pytest.mark.parametrize("offset", [1e4, -1e8, 1e12])
def test_measure_neighbors__far_offset(offset):
    rows = blobs(60, 5) + offset
    assert_measured(rows, np.arange(60), random_neighbors(60, 7), rtol=1e-13)


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


def naive_merge(indices, distances, n_neighbors):
    """Return the k first of the distinct pairs of every row."""
    merged = []
    for numbers, lengths in zip(indices.tolist(), distances.tolist(), strict=True):
        known = {i: d for i, d in zip(numbers, lengths, strict=True) if i != MISSING}
        pairs = sorted((d, i) for i, d in known.items())[:n_neighbors]
        pairs += [(np.inf, MISSING)] * (n_neighbors - len(pairs))
        merged.append(pairs)
    return merged


@st.composite
def lists(draw):
    """Draw candidates: few numbers, so that they repeat, few distances, so that they tie."""
    n_rows, width = draw(st.integers(1, 5)), draw(st.integers(0, 12))
    largest = draw(st.integers(0, 15))
    numbers = st.integers(MISSING, largest)
    indices = np.array(
        draw(
            st.lists(
                st.lists(numbers, min_size=width, max_size=width), min_size=n_rows, max_size=n_rows
            )
        ),
        dtype=np.int64,
    ).reshape(n_rows, width)
    # The distance belongs to the pair, whichever list it comes from.
    of_pair = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 1e300]), min_size=16, max_size=16))
    distances = np.where(indices == MISSING, np.inf, np.array(of_pair)[indices])
    return indices, distances


@given(candidates=lists(), n_neighbors=st.integers(1, 8))
@settings(max_examples=60)
def test_merge_neighbors__equals_naive(candidates, n_neighbors):
    merged = merge_neighbors([Neighbors(*candidates)], n_neighbors=n_neighbors)
    assert merged.indices.shape == merged.distances.shape == (len(candidates[0]), n_neighbors)
    assert merged.indices.dtype == np.int64
    pairs = np.stack([merged.distances, merged.indices], axis=2)
    np.testing.assert_array_equal(pairs, naive_merge(*candidates, n_neighbors))


def test_merge_neighbors__distances_of_missing_ones_do_not_count():
    # A row that was found as its own neighbour is struck out by its number alone.
    found = Neighbors(np.array([[MISSING, 5]]), np.array([[0.0, 2.0]]))
    merged = merge_neighbors([found], n_neighbors=2)
    assert merged.indices.tolist() == [[5, MISSING]]
    assert merged.distances.tolist() == [[2.0, np.inf]]


def test_measure_recall__the_last_bits_do_not_count():
    exact = np.sort(np.random.default_rng(0).uniform(size=(50, 10)), axis=1)
    assert measure_recall(exact * (1 + 1e-12), exact)[0] == 1.0
    assert measure_recall(exact * (1 + 1e-6), exact)[0] < 0.95
