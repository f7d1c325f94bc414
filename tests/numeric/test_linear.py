import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_nrbfn.numeric.linear import Centre, linear_moments
from dask_nrbfn.numeric.ridge import solve_weights
from tests.numeric.frozen import read_only


@read_only
def draw(n_rows=50, n_features=3, n_classes=3, seed=0, offset=0):
    rng = np.random.default_rng(seed)
    X = rng.integers(-8, 9, size=(n_rows, n_features)) + float(offset)
    return X, rng.integers(0, n_classes, n_rows)


def moments_of(X, codes, cuts=(), n_classes=3):
    blocks = list(zip(np.split(X, cuts), np.split(codes, cuts), strict=True))
    centre = Centre.from_blocks(rows for rows, _ in blocks)
    return centre, linear_moments(blocks, centre, n_classes=n_classes)


@given(
    n_rows=st.integers(1, 40),
    n_features=st.integers(1, 4),
    cuts=st.lists(st.integers(0, 40), max_size=6).map(sorted),
    seed=st.integers(0, 99),
)
@settings(max_examples=50)
def test_linear__naive_in_any_blocks(n_rows, n_features, cuts, seed):
    X, codes = draw(n_rows, n_features, seed=seed)
    centre, moments = moments_of(X, codes, cuts)
    A = np.vstack([np.ones(n_rows), (X - X.mean(axis=0)).T])
    F = (codes == np.arange(3)[:, None]).astype(float)
    np.testing.assert_allclose(centre.mean, X.mean(axis=0), rtol=0, atol=1e-12)
    np.testing.assert_allclose(moments.gram(), A @ A.T, rtol=1e-12, atol=1e-11)
    np.testing.assert_allclose(moments.cross, F @ A.T, rtol=1e-12, atol=1e-11)


def test_linear__constant_and_columns_are_orthogonal():
    X, codes = draw()
    gram = moments_of(X, codes)[1].gram()
    np.testing.assert_allclose(gram[0], [50, 0, 0, 0], atol=1e-12)
    np.testing.assert_allclose(np.trace(gram), 50 + 50 * X.var(axis=0).sum())


def test_linear__scores_sum_to_one():
    # 1'D = (1, 0, ..., 0), without a penalty.
    X, codes = draw()
    _, moments = moments_of(X, codes)
    weights = solve_weights(moments.gram(), moments.cross, alpha=0.0).weights
    np.testing.assert_allclose(weights.sum(axis=0), [1, 0, 0, 0], atol=1e-12)


@pytest.mark.parametrize("offset", [2**20, -(2**40), 2**48])
@pytest.mark.parametrize("cuts", [(), (1,), (7, 7, 30)])
def test_linear__far_offset_changes_nothing(offset, cuts):
    (near, here), (far, there) = (
        moments_of(*draw(offset=shift), cuts) for shift in (0, float(offset))
    )
    np.testing.assert_array_equal(there.packed_gram, here.packed_gram)
    np.testing.assert_array_equal(there.cross, here.cross)
    X = draw(seed=1)[0]
    np.testing.assert_array_equal(far.features(X + offset), near.features(X))


@pytest.mark.parametrize("dtype", ["u1", "i8", "f4", "?"])
def test_linear__columns_of_any_type(dtype):
    X = np.abs(draw()[0]).astype(dtype)
    expected = Centre.from_blocks([X.astype(float)])
    centre = Centre.from_blocks([X])
    np.testing.assert_array_equal(centre.mean, expected.mean)
    Phi = centre.features(X)
    np.testing.assert_array_equal(Phi, expected.features(X.astype(float)))
    assert Phi.dtype == np.float64
    assert Phi.flags.c_contiguous


def test_linear__constant_column_is_exactly_zero():
    X = draw()[0].copy()
    X[:, 1] = 0.1
    centre = Centre.from_blocks(np.split(X, [3, 20]))
    np.testing.assert_array_equal(centre.features(X)[:, 2], 0)


def test_linear__one_row():
    _, moments = moments_of(np.array([[1e300, -5.0]]), np.array([1]))
    np.testing.assert_array_equal(moments.gram(), np.diag([1.0, 0, 0]))
    np.testing.assert_array_equal(moments.cross, [[0, 0, 0], [1, 0, 0], [0, 0, 0]])
