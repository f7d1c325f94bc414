from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_nrbfn.numeric.confidence import (
    LEAST_OF_CLASS,
    RowPool,
    choose_basis,
    choose_candidates,
    even_below,
    keep_best,
    soft_confidence,
)
from dask_nrbfn.numeric.confidence import draw as draw_rows
from dask_nrbfn.numeric.hashing import hash_numbers
from tests.numeric.chunkings import row_chunkings, split
from tests.numeric.frozen import read_only
from tests.reference import reference_confidence, reference_distances


@read_only
def draw(n_rows=30, n_neighbors=5, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(0.1, 3, (n_rows, n_neighbors)), rng.random((n_rows, n_neighbors)) < 0.5


@given(
    n_rows=st.integers(2, 20),
    n_neighbors=st.integers(1, 6),
    offset=st.sampled_from([0.0, 1e8]),
    seed=st.integers(0, 99),
)
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


def test_soft_confidence__is_exact_at_its_ends():
    # Ties at 1 are broken by a rule, so rounding must not break them first.
    distances, agrees = draw(n_rows=500, n_neighbors=20)
    everyone = np.ones_like(agrees)
    np.testing.assert_array_equal(soft_confidence(distances, everyone, width=0.7), 1.0)
    np.testing.assert_array_equal(soft_confidence(distances, ~everyone, width=0.7), 0.0)
    assert soft_confidence(distances, agrees, width=0.7).max() <= 1.0


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


def naive_basis(priority, tiebreak, codes, *, size, threshold=None):
    """Return the rows of a basis, ascending: classes first, then the others, no hash twice."""
    order = sorted(range(len(codes)), key=lambda i: (priority[i], tiebreak[i], codes[i], i))
    chosen = []

    def take(row):
        if tiebreak[row] not in tiebreak[chosen]:
            chosen.append(row)

    for row in order:
        if codes[row] not in codes[chosen]:
            take(row)
    for row in order:
        if len(chosen) < size and (threshold is None or priority[row] < threshold):
            take(row)
    return sorted(chosen)


def candidates(priority, tiebreak, codes):
    tiebreak = np.asarray(tiebreak, dtype=np.uint64)
    return RowPool(np.asarray(priority), tiebreak, np.asarray(codes), np.arange(len(codes)))


def some_of(pool, rows):
    return RowPool(pool.priority[rows], pool.tiebreak[rows], pool.codes[rows], pool.rows[rows])


@read_only
def draw_candidates(n_rows, n_classes, seed, *, n_points=12, levels=4, dtype=np.uint8):
    """Draw rows with many duplicates and ties; duplicates may differ in class and priority."""
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 2**64, n_points, dtype=np.uint64)
    priority = rng.integers(0, levels, n_rows) / levels
    codes = rng.integers(0, n_classes, n_rows).astype(dtype)
    return candidates(priority, rng.choice(points, n_rows), codes)


def chosen_rows(confidence, codes, tiebreak=None, **options):
    """Return the rows chosen of all; without hashes all rows are distinct, in their order."""
    tiebreak = range(len(codes)) if tiebreak is None else tiebreak
    return choose_basis(candidates(confidence, tiebreak, codes), **options).rows.tolist()


@given(
    lengths=row_chunkings(),
    n_classes=st.integers(1, 5),
    n_points=st.sampled_from([1, 3, 12, 100]),
    threshold=st.sampled_from([None, 0.0, 0.5, 1.0]),
    seed=st.integers(0, 10**6),
    data=st.data(),
)
@settings(max_examples=100)
def test_choose_basis__any_blocks_give_the_naive_choice(
    lengths, n_classes, n_points, threshold, seed, data
):
    n_rows = sum(lengths)
    size = data.draw(st.integers(n_classes, max(n_classes, n_rows)))
    rows = draw_candidates(n_rows, n_classes, seed, n_points=n_points)
    blocks = [some_of(rows, block) for block in split(np.arange(n_rows), lengths)]
    blocks = data.draw(st.permutations(blocks))
    pool = RowPool.none()
    for block in blocks:
        pool = keep_best(pool, block, size=size, n_classes=n_classes)
        assert len(pool) <= size + n_classes**2
    chosen = choose_basis(pool, size=size, n_classes=n_classes, threshold=threshold)
    expected = naive_basis(rows.priority, rows.tiebreak, rows.codes, size=size, threshold=threshold)
    assert chosen.rows.tolist() == expected
    np.testing.assert_array_equal(chosen.priority, rows.priority[expected])
    np.testing.assert_array_equal(chosen.codes, rows.codes[expected])


def test_even_below__draws_below_the_threshold_first():
    confidence, ties = np.array([0.1, 0.95, 0.5, 1.0, 0.8]), [9, 1, 3, 0, 5]
    priority = even_below(confidence, threshold=0.9)
    chosen = [chosen_rows(priority, [0] * 5, ties, size=size, n_classes=1) for size in (1, 2, 3)]
    assert chosen == [[2], [2, 4], [0, 2, 4]]
    assert chosen_rows(priority, [0] * 5, ties, size=4, n_classes=1) == [0, 1, 2, 4]


@given(chunks=row_chunkings(400), seed=st.integers(0, 99))
def test_choose_candidates__even_but_for_rare_classes(chunks, seed):
    n_rows = sum(chunks)
    codes = np.where(np.arange(n_rows) % 100 == 7, 1, np.where(np.arange(n_rows) < 30, 2, 0))
    pool = RowPool.none()
    for rows in split(np.arange(n_rows), chunks):
        hashes = hash_numbers(rows, seed=seed)
        block = RowPool(np.zeros(len(rows)), hashes, codes[rows], rows)
        pool = keep_best(pool, block, size=100, n_classes=LEAST_OF_CLASS)
    order = np.argsort(hash_numbers(np.arange(n_rows), seed=seed))
    firsts = np.concatenate([order[codes[order] == code][:LEAST_OF_CLASS] for code in range(3)])
    others = order[~np.isin(order, firsts)]
    expected = np.sort(np.concatenate([firsts, others])[:100])
    assert np.array_equal(choose_candidates(pool, size=100), expected)


def test_choose_candidates__every_class_where_there_is_little_room():
    codes = np.repeat(np.arange(5), 40)
    rows = np.arange(200)
    pool = RowPool(np.zeros(200), hash_numbers(rows, seed=0), codes, rows)
    assert sorted(codes[choose_candidates(pool, size=5)]) == [0, 1, 2, 3, 4]


def test_draw__no_point_enters_twice():
    basis = candidates([0.1, 0.2], [5, 6], [0, 1])
    others = candidates(np.zeros(6), [5, 9, 9, 7, 8, 1], [1, 0, 1, 0, 0, 0])
    drawn = draw_rows(replace(others, rows=others.rows + 2), size=3)
    assert drawn.tiebreak.tolist() == [1, 5, 7]
    joined = basis.joined_once(drawn)
    assert joined.tiebreak.tolist() == [5, 6, 7, 1]
    assert joined.rows.tolist() == sorted(joined.rows)
    assert len(draw_rows(others, size=99)) == 5
