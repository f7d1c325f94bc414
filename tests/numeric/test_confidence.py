import tracemalloc
from itertools import product

import numpy as np
import pytest
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
from dask_nrbfn.numeric.hashing import hash_numbers, hash_rows
from tests.numeric.chunkings import row_chunkings, split
from tests.numeric.frozen import read_only
from tests.reference import reference_basis_rows, reference_confidence, reference_distances


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
@settings(max_examples=40)
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
@settings(max_examples=30)
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
@settings(max_examples=300)
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


@given(n_classes=st.integers(1, 4), size=st.integers(4, 20), seed=st.integers(0, 10**6))
@settings(max_examples=100)
def test_keep_best__associative_and_commutative(n_classes, size, seed):
    rows = draw_candidates(60, n_classes, seed)
    a, b, c = (some_of(rows, block) for block in split(np.arange(60), [25, 5, 30]))

    def both(first, second):
        return keep_best(first, second, size=size, n_classes=n_classes)

    left = both(both(a, b), c).rows.tolist()
    assert both(a, both(b, c)).rows.tolist() == left
    assert both(both(c, a), b).rows.tolist() == left
    assert both(both(both(a, b), c), RowPool.none()).rows.tolist() == left


@given(
    size=st.integers(3, 30),
    threshold=st.sampled_from([None, 0.5, 1.0]),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=100)
def test_choose_basis__order_of_rows_is_free(size, threshold, seed):
    rng = np.random.default_rng(seed)
    X = rng.integers(0, 4, (60, 2)).astype(np.float64)
    rows, order = draw_candidates(60, 3, seed, levels=2), rng.permutation(60)

    def values(order):
        tiebreak = hash_rows(X[order], seed=7)
        pool = candidates(rows.priority[order], tiebreak, rows.codes[order])
        basis = choose_basis(pool, size=size, n_classes=3, threshold=threshold)
        return sorted(map(tuple, X[order][basis.rows]))

    assert values(order) == values(np.arange(60))


@given(size=st.integers(4, 12), n_points=st.integers(1, 15), seed=st.integers(0, 10**6))
@settings(max_examples=100)
def test_choose_basis__has_its_size_every_class_and_no_row_twice(size, n_points, seed):
    rows = draw_candidates(80, 4, seed, n_points=n_points)
    basis = choose_basis(rows, size=size, n_classes=4)
    assert len(basis) == basis.n_distinct == min(size, rows.n_distinct)
    for code in set(rows.codes.tolist()) - set(basis.codes.tolist()):
        assert np.isin(rows.tiebreak[rows.codes == code], basis.tiebreak).all()


def test_choose_basis__below_the_threshold_without_duplicates_as_the_reference():
    for seed, threshold in product(range(20), [0.05, 0.5, 0.9, 1.0]):
        rng = np.random.default_rng(seed)
        confidence, codes = rng.integers(0, 21, 25) / 20, rng.permutation([0, 1, 2, *[0] * 22])
        rows = chosen_rows(confidence, codes, size=25, n_classes=3, threshold=threshold)
        assert rows == list(reference_basis_rows(confidence, codes, threshold=threshold))


def test_choose_basis__class_without_rows_below_gives_its_least_confident():
    confidence, codes = [1.0, 0.99, 0.95, 0.97, 0.1], [0, 0, 1, 1, 2]
    rows = chosen_rows(confidence, codes, size=5, n_classes=3, threshold=0.9)
    assert rows == [1, 2, 4]


def test_choose_basis__threshold_itself_is_not_below():
    assert chosen_rows([0.9, 0.5], [0, 0], size=2, n_classes=1, threshold=0.9) == [1]
    assert chosen_rows([1.0, 0.5, 1.0], [0] * 3, size=3, n_classes=1, threshold=1.0) == [1]


def test_choose_basis__class_without_rows_leaves_its_place():
    assert chosen_rows([0.3, 0.1, 0.2], [0, 0, 2], size=3, n_classes=3) == [0, 1, 2]
    assert chosen_rows([0.5, 1.0], [0, 2], size=2, n_classes=4, threshold=0.9) == [0, 1]


def test_choose_basis__one_row_and_none():
    assert chosen_rows([1.0], [0], size=1, n_classes=1, threshold=0.9) == [0]
    assert len(choose_basis(RowPool.none(), size=3, n_classes=3)) == 0


def test_choose_basis__ties_follow_the_hash():
    confidence, codes, ties = np.ones(4), [0, 0, 1, 1], [5, 3, 1, 9]
    assert chosen_rows(confidence, codes, ties, size=4, n_classes=2, threshold=0.9) == [1, 2]
    assert chosen_rows(confidence, codes, ties, size=3, n_classes=2) == [0, 1, 2]


def test_choose_basis__a_class_that_stands_apart_is_kept():
    confidence, codes, ties = [0.1, 0.2, 0.3, 1.0, 1.0], [0, 0, 0, 1, 1], [4, 5, 6, 9, 3]
    assert chosen_rows(confidence, codes, ties, size=3, n_classes=2) == [0, 1, 4]


def test_choose_basis__of_duplicates_the_first_enters():
    confidence, ties = [0.3, 0.1, 0.1, 0.2], [7, 7, 7, 8]
    assert chosen_rows(confidence, [0] * 4, ties, size=4, n_classes=1) == [1, 3]


def test_choose_basis__class_whose_row_another_has_given_takes_its_next():
    confidence, codes, ties = [0.1, 0.2, 0.4, 0.3], [0, 1, 1, 0], [7, 7, 8, 9]
    assert chosen_rows(confidence, codes, ties, size=2, n_classes=2) == [0, 2]


def test_choose_basis__class_of_duplicates_only_gives_none():
    confidence, codes, ties = [0.1, 0.2, 0.3, 0.4], [0, 1, 1, 0], [7, 7, 7, 8]
    assert chosen_rows(confidence, codes, ties, size=2, n_classes=2) == [0, 3]


def test_choose_basis__class_takes_a_duplicate_that_no_other_gives():
    # The row of class 1 is a duplicate of one of class 0, which has a less confident one to give.
    confidence, codes, ties = [0.1, 0.2, 0.3, 0.15], [0, 0, 1, 0], [5, 7, 7, 6]
    assert chosen_rows(confidence, codes, ties, size=2, n_classes=2) == [0, 2]


def test_even_below__draws_below_the_threshold_first():
    confidence, ties = np.array([0.1, 0.95, 0.5, 1.0, 0.8]), [9, 1, 3, 0, 5]
    priority = even_below(confidence, threshold=0.9)
    chosen = [chosen_rows(priority, [0] * 5, ties, size=size, n_classes=1) for size in (1, 2, 3)]
    assert chosen == [[2], [2, 4], [0, 2, 4]]
    assert chosen_rows(priority, [0] * 5, ties, size=4, n_classes=1) == [0, 1, 2, 4]


def test_even_below__every_row_below_is_as_likely():
    confidence = np.linspace(0, 0.99, 20)
    priority = even_below(confidence, threshold=0.9)
    X, counts = np.arange(20.0)[:, None], np.zeros(20)
    for seed in range(900):
        tiebreak = hash_rows(X, seed=seed)
        counts[chosen_rows(priority, [0] * 20, tiebreak, size=6, n_classes=1)] += 1
    n_below = np.count_nonzero(confidence < 0.9)
    assert counts[n_below:].sum() == 0
    # 900 draws of 6 of 18: 300 each, give or take five standard deviations of 14.
    assert np.abs(counts[:n_below] - 300).max() < 70


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint32, np.int64])
def test_keep_best__keeps_the_type_of_the_classes(dtype):
    rows = draw_candidates(50, 3, seed=0, dtype=dtype)
    pool = keep_best(RowPool.none(), rows, size=10, n_classes=3)
    assert choose_basis(pool, size=10, n_classes=3).codes.dtype == dtype


@pytest.mark.slow
def test_keep_best__memory_is_that_of_the_pool_and_one_block():
    def peak_bytes(n_blocks):
        pool, rng = RowPool.none(), np.random.default_rng(0)
        tracemalloc.start()
        try:
            for number in range(n_blocks):
                # Large against what other threads of the process allocate meanwhile.
                rows = np.arange(number * 50_000, (number + 1) * 50_000)
                tiebreak = rng.integers(0, 2**64, len(rows), dtype=np.uint64)
                block = RowPool(rng.random(len(rows)), tiebreak, rows % 3, rows)
                pool = keep_best(pool, block, size=1000, n_classes=3)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak_bytes(20) < 1.1 * peak_bytes(3)


@given(chunks=row_chunkings(400), seed=st.integers(0, 99))
@settings(max_examples=20)
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
