import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_nrbfn.numeric.confidence import (
    hash_rows,
    least_confident_rows,
    rows_below,
    soft_confidence,
)
from tests.numeric.chunkings import row_chunkings, split
from tests.reference import reference_basis_rows, reference_confidence, reference_distances


def draw(n_rows=30, n_neighbors=5, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(0.1, 3, (n_rows, n_neighbors)), rng.random((n_rows, n_neighbors)) < 0.5


@given(
    n_rows=st.integers(2, 20),
    n_neighbors=st.integers(1, 6),
    offset=st.sampled_from([0.0, 1e8]),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_soft_confidence__naive(n_rows, n_neighbors, offset, seed):
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(n_rows, 2)) + offset, rng.integers(0, 2, n_rows)
    distances = reference_distances(X, X)
    np.fill_diagonal(distances, np.inf)
    neighbors = np.argsort(distances, axis=1, kind="stable")[:, : min(n_neighbors, n_rows - 1)]
    nearest = np.take_along_axis(distances, neighbors, axis=1)
    confidence = soft_confidence(nearest, y[neighbors] == y[:, None], width=nearest.mean())
    expected = reference_confidence(X, y, n_neighbors=min(n_neighbors, n_rows - 1))
    np.testing.assert_allclose(confidence, expected, rtol=1e-11)


@given(lengths=row_chunkings(), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_soft_confidence__any_blocks(lengths, seed):
    distances, agrees = draw(sum(lengths), seed=seed)
    whole = soft_confidence(distances, agrees, width=1.0)
    blocks = zip(split(distances, lengths), split(agrees, lengths), strict=True)
    parts = np.concatenate([soft_confidence(*block, width=1.0) for block in blocks])
    np.testing.assert_allclose(parts, whole, rtol=1e-14)


def test_soft_confidence__for_and_against_sum_to_one():
    distances, agrees = draw()
    sides = [soft_confidence(distances, side, width=0.7) for side in (agrees, ~agrees)]
    np.testing.assert_allclose(sides[0] + sides[1], 1.0, rtol=1e-14)


def test_soft_confidence__is_exact_at_its_ends():
    # Ties at 1 are broken by a rule, so rounding must not break them first.
    distances, agrees = draw(n_rows=500, n_neighbors=20)
    everyone = np.ones_like(agrees)
    np.testing.assert_array_equal(soft_confidence(distances, everyone, width=0.7), 1.0)
    np.testing.assert_array_equal(soft_confidence(distances, ~everyone, width=0.7), 0.0)
    assert soft_confidence(distances, agrees, width=0.7).max() <= 1.0


def test_soft_confidence__same_in_other_units():
    distances, agrees = draw()
    np.testing.assert_allclose(
        soft_confidence(1000 * distances, agrees, width=700.0),
        soft_confidence(distances, agrees, width=0.7),
        rtol=1e-12,
    )


def test_soft_confidence__order_of_neighbors_is_free():
    distances, agrees = draw()
    np.testing.assert_allclose(
        soft_confidence(distances[:, ::-1], agrees[:, ::-1], width=0.7),
        soft_confidence(distances, agrees, width=0.7),
        rtol=1e-14,
    )


def test_soft_confidence__far_from_all_neighbors_the_nearest_counts():
    distances = np.array([[1e6, 1e6 + 1, 1e6 + 2], [1e6, 1e6, 1e6 + 1]])
    agrees = np.array([[True, False, False], [True, False, False]])
    with np.errstate(under="ignore"):
        assert not np.exp(-(distances**2) / 2).any()  # so the plain quotient would be 0 / 0
    np.testing.assert_array_equal(soft_confidence(distances, agrees, width=1.0), [1.0, 0.5])


def test_soft_confidence__all_rows_equal():
    agrees = np.array([[True, True, False, False], [True, False, False, False]])
    confidence = soft_confidence(np.zeros((2, 4)), agrees, width=0.0)
    np.testing.assert_array_equal(confidence, [0.5, 0.25])


def test_soft_confidence__inputs_stay_as_they_were():
    distances, agrees = draw()
    before = distances.copy(), agrees.copy()
    soft_confidence(distances, agrees, width=0.7)
    np.testing.assert_array_equal(distances, before[0])
    np.testing.assert_array_equal(agrees, before[1])


ROW_ORDER = np.arange(100, dtype=np.uint64)


def labelled(n_rows, n_classes, seed, levels=20):
    """Draw confidences with many ties and codes that miss no class."""
    rng = np.random.default_rng(seed)
    codes = np.concatenate([np.arange(n_classes), rng.integers(0, n_classes, n_rows - n_classes)])
    return rng.integers(0, levels, n_rows) / levels, rng.permutation(codes)


@given(threshold=st.sampled_from([0.05, 0.5, 0.9, 1.0]), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_rows_below__naive(threshold, seed):
    confidence, codes = labelled(25, 3, seed)
    rows = rows_below(
        confidence, codes, np.arange(25, dtype=np.uint64), threshold=threshold, n_classes=3
    )
    expected = reference_basis_rows(confidence, codes, threshold=threshold)
    np.testing.assert_array_equal(rows, expected)
    assert set(codes[rows]) == {0, 1, 2}


def test_rows_below__class_without_rows_below_gives_its_least_confident():
    confidence = np.array([1.0, 0.99, 0.95, 0.97, 0.1])
    codes = np.array([0, 0, 1, 1, 2])
    assert rows_below(confidence, codes, ROW_ORDER[:5], threshold=0.9, n_classes=3).tolist() == [
        1,
        2,
        4,
    ]


def test_rows_below__threshold_itself_is_not_below():
    rows = rows_below(
        np.array([0.9, 0.5]), np.array([0, 0]), ROW_ORDER[:2], threshold=0.9, n_classes=1
    )
    assert rows.tolist() == [1]


def test_rows_below__class_without_rows_gives_none():
    rows = rows_below(
        np.array([0.5, 1.0]), np.array([0, 2]), ROW_ORDER[:2], threshold=0.9, n_classes=4
    )
    assert rows.tolist() == [0, 1]


def test_rows_below__one_row():
    rows = rows_below(np.array([1.0]), np.array([0]), ROW_ORDER[:1], threshold=0.9, n_classes=1)
    assert rows.tolist() == [0]


def test_rows_below__ties_follow_the_tiebreak():
    confidence, codes = np.ones(4), np.array([0, 0, 1, 1])
    ties = np.array([5, 3, 1, 9], dtype=np.uint64)
    rows = rows_below(confidence, codes, ties, threshold=0.9, n_classes=2)
    assert rows.tolist() == [1, 2]


@given(n_rows=st.integers(3, 40), seed=st.integers(0, 99), data=st.data())
@settings(max_examples=60, deadline=None)
def test_least_confident_rows__naive(n_rows, seed, data):
    size = data.draw(st.integers(3, n_rows))
    confidence, codes = labelled(n_rows, 3, seed, levels=4)
    ties = np.random.default_rng(seed).permutation(n_rows).astype(np.uint64)
    rows = least_confident_rows(confidence, codes, ties, size=size, n_classes=3)

    ranked = sorted(range(n_rows), key=lambda i: (confidence[i], ties[i]))
    expected = {next(i for i in ranked if codes[i] == code) for code in range(3)}
    for row in ranked:
        if len(expected) < size:
            expected.add(row)
    assert rows.tolist() == sorted(expected)
    assert len(rows) == size
    assert set(codes[rows]) == {0, 1, 2}


def test_least_confident_rows__a_class_that_stands_apart_is_kept():
    confidence, codes = np.array([0.1, 0.2, 0.3, 1.0, 1.0]), np.array([0, 0, 0, 1, 1])
    ties = np.array([0, 0, 0, 9, 3], dtype=np.uint64)
    rows = least_confident_rows(confidence, codes, ties, size=3, n_classes=2)
    assert rows.tolist() == [0, 1, 4]


def test_least_confident_rows__class_without_rows_leaves_its_place():
    confidence, codes = np.array([0.3, 0.1, 0.2]), np.array([0, 0, 2])
    ties = np.zeros(3, dtype=np.uint64)
    rows = least_confident_rows(confidence, codes, ties, size=3, n_classes=4)
    assert rows.tolist() == [0, 1, 2]


@given(size=st.integers(3, 60), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_least_confident_rows__order_of_rows_is_free(size, seed):
    # Few distinct rows and confidences: ties, and duplicates whose hashes tie too.
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 4, (60, 2)).astype(np.float64)
    confidence, codes = labelled(60, 3, seed, levels=2)
    order = rng.permutation(60)

    def chosen(order):
        ties = hash_rows(X[order], seed=7)
        rows = least_confident_rows(confidence[order], codes[order], ties, size=size, n_classes=3)
        return sorted(map(tuple, X[order][rows]))

    assert chosen(order) == chosen(np.arange(60))


def test_least_confident_rows__inputs_stay_as_they_were():
    confidence, codes = labelled(20, 3, seed=0)
    ties = np.arange(20, dtype=np.uint64)[::-1].copy()
    before = confidence.copy(), codes.copy(), ties.copy()
    least_confident_rows(confidence, codes, ties, size=5, n_classes=3)
    rows_below(confidence, codes, ties, threshold=0.5, n_classes=3)
    for array, copy in zip((confidence, codes, ties), before, strict=True):
        np.testing.assert_array_equal(array, copy)


def naive_splitmix(x):
    """Return splitmix64 in the integers of the language, which never wrap."""
    return naive_mix((x + 0x9E3779B97F4A7C15) % 2**64)


def naive_mix(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def naive_hash(row, seed):
    state = naive_splitmix(seed)
    for value in row:
        bits = int.from_bytes(np.float64(value + 0.0).tobytes(), "little")
        state = naive_mix(state ^ naive_splitmix(bits))
    return state


@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_hash_rows__naive(seed):
    X = np.random.default_rng(0).normal(size=(20, 3))
    hashes = hash_rows(X, seed=seed)
    assert hashes.dtype == np.uint64
    assert hashes.tolist() == [naive_hash(row, seed) for row in X]


def test_hash_rows__follow_their_rows():
    rng = np.random.default_rng(0)
    X, order = rng.normal(size=(50, 3)), rng.permutation(50)
    np.testing.assert_array_equal(hash_rows(X[order], seed=3), hash_rows(X, seed=3)[order])


@given(lengths=row_chunkings(), seed=st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_hash_rows__any_blocks(lengths, seed):
    X = np.random.default_rng(seed).normal(size=(sum(lengths), 3))
    parts = [hash_rows(block, seed=seed) for block in split(X, lengths)]
    np.testing.assert_array_equal(np.concatenate(parts), hash_rows(X, seed=seed))


def test_hash_rows__signed_zeros_are_equal():
    X = np.array([[0.0, 1.0], [-0.0, 1.0]])
    assert len(set(hash_rows(X, seed=0).tolist())) == 1


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32])
def test_hash_rows__same_for_every_type(dtype):
    X = np.random.default_rng(0).integers(0, 256, (30, 4))
    np.testing.assert_array_equal(
        hash_rows(X.astype(dtype), seed=5), hash_rows(X.astype(np.float64), seed=5)
    )


def test_hash_rows__memory_layout_is_free():
    X = np.random.default_rng(0).normal(size=(30, 4))
    expected = hash_rows(X, seed=5)
    np.testing.assert_array_equal(hash_rows(np.asfortranarray(X), seed=5), expected)
    np.testing.assert_array_equal(hash_rows(np.repeat(X, 2, axis=0)[::2], seed=5), expected)


def test_hash_rows__seed_changes_the_order():
    X = np.random.default_rng(0).normal(size=(50, 2))
    first, second = hash_rows(X, seed=0), hash_rows(X, seed=1)
    assert not np.any(first == second)
    assert np.argsort(first).tolist() != np.argsort(second).tolist()


def test_hash_rows__distinct_rows_spread_evenly():
    # Small integers share most of their bits as float64, so a weak hash would show here.
    X = np.array([(i, j) for i in range(100) for j in range(100)])
    hashes = hash_rows(X, seed=0)
    assert len(np.unique(hashes)) == len(X)
    tenths = np.bincount((hashes >> np.uint64(32)).astype(np.int64) * 10 >> 32, minlength=10)
    # 1,000 each, give or take five standard deviations of 30.
    assert np.abs(tenths - 1000).max() < 150


def test_hash_rows__input_stays_as_it_was():
    X = np.array([[-0.0, 1.0]])
    hash_rows(X, seed=0)
    assert np.signbit(X[0, 0])
