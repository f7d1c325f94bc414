import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_nrbfn.neighbors import MISSING, merge_neighbors
from tests.numeric.chunkings import row_chunkings, split


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
@settings(max_examples=200)
def test_merge_neighbors__equals_naive(candidates, n_neighbors):
    merged = merge_neighbors(*candidates, n_neighbors=n_neighbors)
    assert merged.indices.shape == merged.distances.shape == (len(candidates[0]), n_neighbors)
    assert merged.indices.dtype == np.int64
    pairs = np.stack([merged.distances, merged.indices], axis=2)
    np.testing.assert_array_equal(pairs, naive_merge(*candidates, n_neighbors))


@given(candidates=lists(), n_neighbors=st.integers(1, 8), lengths=row_chunkings(max_rows=12))
@settings(max_examples=100)
def test_merge_neighbors__one_list_after_the_other(candidates, n_neighbors, lengths):
    indices, distances = candidates
    whole = merge_neighbors(indices, distances, n_neighbors=n_neighbors)
    cuts = np.cumsum(lengths)
    best = merge_neighbors(indices[:, :0], distances[:, :0], n_neighbors=n_neighbors)
    for some, lengths_of_some in zip(
        np.split(indices, cuts, axis=1), np.split(distances, cuts, axis=1), strict=True
    ):
        best = merge_neighbors(
            np.hstack([best.indices, some]),
            np.hstack([best.distances, lengths_of_some]),
            n_neighbors=n_neighbors,
        )
    np.testing.assert_array_equal(best.indices, whole.indices)
    np.testing.assert_array_equal(best.distances, whole.distances)


def test_merge_neighbors__distances_of_missing_ones_do_not_count():
    # A row that was found as its own neighbour is struck out by its number alone.
    merged = merge_neighbors(np.array([[MISSING, 5]]), np.array([[0.0, 2.0]]), n_neighbors=2)
    assert merged.indices.tolist() == [[5, MISSING]]
    assert merged.distances.tolist() == [[2.0, np.inf]]


def test_merge_neighbors__inputs_stay_as_they_were():
    indices, distances = np.array([[3, 3, 1]]), np.array([[1.0, 1.0, 0.5]])
    before = indices.copy(), distances.copy()
    merge_neighbors(indices, distances, n_neighbors=2)
    np.testing.assert_array_equal(indices, before[0])
    np.testing.assert_array_equal(distances, before[1])


@pytest.mark.parametrize("n_rows", [0, 1])
def test_merge_neighbors__no_candidates(n_rows):
    merged = merge_neighbors(np.empty((n_rows, 0), np.int64), np.empty((n_rows, 0)), n_neighbors=3)
    assert merged.indices.tolist() == [[MISSING] * 3] * n_rows


def test_merge_neighbors__splits_of_the_rows():
    rng = np.random.default_rng(0)
    indices = rng.integers(-1, 9, (20, 7))
    distances = (indices * 7 % 5).astype(float)
    whole = merge_neighbors(indices, distances, n_neighbors=4)
    parts = [
        merge_neighbors(a, b, n_neighbors=4).indices
        for a, b in zip(split(indices, [1, 12, 7]), split(distances, [1, 12, 7]), strict=True)
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole.indices)
