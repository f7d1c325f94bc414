from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dask_nrbfn.errors import DamagedDataError
from dask_nrbfn.numeric.moments import (
    Moments,
    MomentSums,
    are_sums_of_rows,
    check_moments,
    packed_size,
    unpack_gram,
)
from dask_nrbfn.numeric.targets import ClassTargets, NumberTargets
from tests.numeric.chunkings import row_chunkings, split

N_CLASSES = 4  # the last one never has rows
CLASSES = ClassTargets(N_CLASSES)


def draw(n_rows, n_basis, seed=0):
    """Draw activations, whose rows sum to 1, and class codes."""
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.ones(n_basis), size=n_rows), rng.integers(0, N_CLASSES - 1, n_rows)


def of_block(Phi, codes):
    return Moments.from_block(Phi, CLASSES.bordered(codes))


def moments_of(n_rows, n_basis, seed=0):
    return of_block(*draw(n_rows, n_basis, seed))


def assert_same(moments, other, rtol=1e-12, atol=0.0):
    np.testing.assert_allclose(moments.gram(), other.gram(), rtol=rtol, atol=atol)
    np.testing.assert_allclose(moments.cross, other.cross, rtol=rtol, atol=atol)
    np.testing.assert_array_equal(moments.target_products, other.target_products)


@pytest.mark.parametrize("n_rows", [0, 1, 30])
@pytest.mark.parametrize("n_basis", [1, 6])
def test_moments__naive(n_rows, n_basis):
    Phi, codes = draw(n_rows, n_basis)
    gram, cross = np.zeros((n_basis, n_basis)), np.zeros((N_CLASSES, n_basis))
    for row, code in zip(Phi, codes, strict=True):
        gram += np.outer(row, row)
        cross[code] += row
    moments = of_block(Phi, codes)
    np.testing.assert_allclose(moments.gram(), gram, rtol=1e-12)
    np.testing.assert_allclose(moments.cross, cross, rtol=1e-12)
    assert moments.target_sums.tolist() == [np.sum(codes == c) for c in range(N_CLASSES)]
    assert (moments.total_weight, moments.n_basis) == (n_rows, n_basis)


# 256 rows are mirrored at a time: one row, the borders of a block of them, a ragged third one.
@pytest.mark.parametrize("n_basis", [1, 5, 255, 256, 257, 600])
def test_moments__packed_triangle(n_basis):
    Phi, codes = draw(7, n_basis)
    moments = of_block(Phi, codes)
    gram = moments.gram()
    assert moments.packed_gram.shape == (packed_size(n_basis),)
    np.testing.assert_array_equal(moments.packed_gram, gram[np.triu_indices(n_basis)])
    np.testing.assert_allclose(gram, Phi.T @ Phi, rtol=1e-12)
    np.testing.assert_array_equal(gram, gram.T)
    np.testing.assert_array_equal(unpack_gram(moments.packed_gram, n_basis), gram)


@given(lengths=row_chunkings(), n_basis=st.integers(1, 8), seed=st.integers(0, 99))
def test_moments__any_split_sums_to_one_block(lengths, n_basis, seed):
    Phi, codes = draw(sum(lengths), n_basis, seed)
    whole = of_block(Phi, codes)
    added = Moments.zeros(n_basis, N_CLASSES)
    sums = MomentSums(n_basis, N_CLASSES)
    for block, block_codes in zip(split(Phi, lengths), split(codes, lengths), strict=True):
        added = added + of_block(block, block_codes)
        sums.add(block, CLASSES.bordered(block_codes))
    assert_same(added, whole)
    assert_same(sums.moments(), whole)
    assert whole.gram().sum() == pytest.approx(sum(lengths), rel=1e-12)
    assert whole.cross.sum() == pytest.approx(sum(lengths), rel=1e-12)


@given(held=st.lists(st.booleans(), min_size=2, max_size=40), seed=st.integers(0, 99))
def test_subtract_in_place__leaves_the_other_rows(held, seed):
    Phi, codes = draw(len(held), 5, seed)
    held = np.array(held)
    total = of_block(Phi, codes)
    total -= of_block(Phi[held], codes[held])
    others = of_block(Phi[~held], codes[~held])
    assert_same(total, others, atol=1e-14 * len(held))


@pytest.mark.parametrize("field", ["packed_gram", "products", "target_products"])
def test_check_moments__plain_activations_know_only_their_weights(field):
    Phi, codes = draw(9, 5)
    moments = of_block(0.3 * Phi, codes)
    check_moments(moments, 9, normalized=False)
    with pytest.raises(DamagedDataError, match=r"total weight of 9 sum to 0\.81, not 9"):
        check_moments(moments, 9)
    values = getattr(moments, field).copy()
    values.flat[0] += 1
    damaged = replace(moments, **{field: values})
    if field == "target_products":
        with pytest.raises(DamagedDataError, match="total weight of 9 sum to 10"):
            check_moments(damaged, 9, normalized=False)
    else:
        check_moments(damaged, 9, normalized=False)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32])
def test_moments__narrow_codes_count_past_their_range(dtype):
    Phi, codes = np.ones((300, 1)), np.ones(300, dtype=dtype)
    moments = Moments.from_block(Phi, ClassTargets(2).bordered(codes))
    assert moments.target_sums.tolist() == [0, 300]
    assert moments.cross.tolist() == [[0.0], [300.0]]


@pytest.mark.parametrize("n_rows", [0, 8, 10])
def test_check_moments__missing_or_repeated_rows(n_rows):
    check_moments(moments_of(n_rows, 5), n_rows)
    with pytest.raises(DamagedDataError, match=rf"sum to 9, not {n_rows}\."):
        check_moments(moments_of(9, 5), n_rows)


@pytest.mark.parametrize(
    ("field", "damage"),
    [
        ("packed_gram", 0.0),
        ("packed_gram", np.nan),
        ("products", 0.0),
        ("products", np.nan),
        ("target_products", 0),
    ],
)
def test_check_moments__one_damaged_value(field, damage):
    moments = moments_of(9, 5)
    values = getattr(moments, field).copy()
    values.flat[1] = damage
    with pytest.raises(DamagedDataError, match="damaged"):
        check_moments(replace(moments, **{field: values}), 9)


@given(
    st.integers(2, 40),
    st.integers(1, 12),
    st.integers(0, 3),
    st.floats(1e-6, 1e6),
)
def test_are_sums_of_rows__some_of_the_rows(n_rows, n_basis, seed, size):
    Phi, codes = draw(n_rows, n_basis, seed)
    Phi *= size
    taken = of_block(Phi[: n_rows // 2], codes[: n_rows // 2])
    assert are_sums_of_rows(of_block(Phi, codes) - taken, taken, tolerance=1e-9)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 3))
def test_are_sums_of_rows__a_row_with_a_leverage_above_one(n_rows, n_basis, seed):
    Phi, codes = draw(n_rows, n_basis, seed)
    joint = np.hstack([CLASSES.bordered(codes), Phi])
    other, label = draw(1, n_basis, seed + 99)
    row = np.hstack([CLASSES.bordered(label), other])[0]
    # All directions in which the rows have none of it, and how much of its own they have.
    reached = np.linalg.pinv(joint.T @ joint, rcond=1e-12, hermitian=True)
    outside = row - joint.T @ (joint @ (reached @ row))
    leverage = np.inf if np.abs(outside).max() > 1e-3 else row @ reached @ row
    assume(not 0.99 < leverage < 1.01)
    taken = of_block(other, label)
    left = of_block(Phi, codes) - taken
    assert are_sums_of_rows(left, taken, tolerance=1e-9) == (leverage < 1)


def test_are_sums_of_rows__other_labels():
    Phi, codes = draw(30, 5)
    taken = of_block(Phi[:10], (codes[:10] + 1) % 3)
    assert not are_sums_of_rows(of_block(Phi, codes) - taken, taken, tolerance=1e-9)


def draw_numbers(n_rows=60, n_basis=5, n_targets=2, *, far=0.0, seed=0):
    """Draw plain activations (n, r), numbers (n, q) about `far`, and weights (n,)."""
    rng = np.random.default_rng(seed)
    Phi = rng.uniform(0.1, 1.0, (n_rows, n_basis))
    T = far + Phi @ rng.normal(size=(n_basis, n_targets)) + rng.normal(size=(n_rows, n_targets))
    return Phi, T, rng.uniform(0.5, 3.0, n_rows)


def moments_of_numbers(Phi, T, weights, targets):
    factors = np.sqrt(weights)
    return Moments.from_block(factors[:, None] * Phi, targets.bordered(T, factors))


def test_check_moments__of_numbers():
    Phi, T, weights = draw_numbers(far=1e3)
    Phi /= Phi.sum(axis=1, keepdims=True)
    moments = moments_of_numbers(Phi, T, weights, NumberTargets(T[0]))
    check_moments(moments, weights.sum())
    moments.products[2, 1] += 1e-3
    with pytest.raises(DamagedDataError, match="damaged"):
        check_moments(moments, weights.sum())
