import numpy as np
import pytest

from dask_nrbfn.numeric.products import add_gram, add_products, row_products


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("m", [0, 1, 7])
@pytest.mark.parametrize("n", [1, 5])
def test_row_products__naive(m, n):
    A, B = draw(m, 3), draw(n, 3, seed=1)
    expected = np.array([[sum(a * b) for b in B] for a in A]).reshape(m, n)
    np.testing.assert_allclose(row_products(A, B), expected, rtol=1e-12, atol=1e-15)


def test_row_products__into_the_first_rows_of_a_buffer():
    A, B, buffer = draw(4, 3), draw(5, 3, seed=1), np.full((6, 5), np.nan)
    result = row_products(A, B, out=buffer[:4])
    assert result.base is buffer
    np.testing.assert_allclose(buffer[:4], A @ B.T, rtol=1e-12)
    assert np.isnan(buffer[4:]).all()


@pytest.mark.parametrize("n_rows", [0, 1, 9])
def test_add_gram__adds_to_the_upper_triangle_alone(n_rows):
    A, sums = draw(n_rows, 4), np.arange(16.0).reshape(4, 4)
    before = sums.copy()
    add_gram(sums, A)
    np.testing.assert_allclose(np.triu(sums), np.triu(before + A.T @ A), rtol=1e-12)
    np.testing.assert_array_equal(np.tril(sums, -1), np.tril(before, -1))


@pytest.mark.parametrize("n_rows", [0, 1, 9])
def test_add_products__naive(n_rows):
    A, B, sums = draw(n_rows, 2), draw(n_rows, 4, seed=1), np.ones((2, 4))
    add_products(sums, A, B)
    np.testing.assert_allclose(sums, 1 + A.T @ B, rtol=1e-12)


def test_add__sums_that_blas_would_copy():
    A = draw(3, 4)
    with pytest.raises(TypeError, match="contiguous"):
        add_gram(np.zeros((4, 4), order="F")[::1, ::-1], A)
    with pytest.raises(TypeError, match="contiguous"):
        add_products(np.zeros((4, 8))[:, ::2], A, A)
