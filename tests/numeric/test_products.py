import numpy as np
import pytest

from dask_nrbfn.numeric import products
from dask_nrbfn.numeric.threads import task_threads

# Multiplied as they are, in even tiles, and in tiles of different sizes.
SIZES = [1, 6, 14, 23]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(products, "_TILE", 7)
    monkeypatch.setattr(products, "_FACTOR_ROWS", 5)
    monkeypatch.setattr(products, "_SOLVED_ROWS", 3)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def positive(r):
    """Return a positive definite matrix whose lower triangle is not that of the upper one."""
    A = draw(r + 5, r)
    return np.triu(A.T @ A) + np.tril(draw(r, r, seed=1), -1)


def symmetric(matrix):
    return np.triu(matrix) + np.triu(matrix, 1).T


@pytest.mark.parametrize("r", SIZES)
@pytest.mark.parametrize("n_rows", [0, 1, 40])
def test_products__naive(n_rows, r):
    A, B = draw(n_rows, r), draw(9, r, seed=1)
    found = products.row_products(A, B)
    np.testing.assert_allclose(found, np.einsum("ir,jr->ij", A, B), rtol=1e-12, atol=1e-13)
    T, sums, gram = draw(n_rows, 9, seed=2), draw(9, r), draw(r, r)
    expected = sums + np.einsum("bi,bj->ij", T, A)
    products.add_products(sums, T, A)
    np.testing.assert_allclose(sums, expected, rtol=1e-12, atol=1e-13)
    expected = gram + np.triu(np.einsum("bi,bj->ij", A, A))
    products.add_gram(gram, A)
    np.testing.assert_allclose(gram, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("r", SIZES)
def test_factor_in_place__solves(r):
    factor, right = positive(r), draw(8, r)
    matrix, below = symmetric(factor), np.tril(factor, -1)
    assert products.factor_in_place(factor)
    np.testing.assert_allclose(np.triu(factor), np.linalg.cholesky(matrix).T, rtol=1e-9)
    np.testing.assert_array_equal(np.tril(factor, -1), below)
    solved = right.copy()
    products.solve_in_place(factor, solved)
    np.testing.assert_allclose(solved @ matrix, right, rtol=1e-6, atol=1e-9)
    found = products.inverse_products(factor, right.copy())
    np.testing.assert_allclose(found, np.sum(solved * right, axis=1), rtol=1e-6)


@pytest.mark.parametrize("place", [0, 4, 5, 22])
def test_factor_in_place__not_positive(place):
    matrix = positive(23)
    matrix[place, place] = -1.0
    assert not products.factor_in_place(matrix)


def test_products__same_bits_with_any_number_of_threads():
    A, found = draw(300, 23), []
    for threads in (1, 2, 3):
        with task_threads(threads):
            gram, sums = np.zeros((23, 23)), np.zeros((300, 300))
            products.add_gram(gram, A)
            products.add_products(sums, A.T.copy(), A.T.copy())
            factor, right = gram.copy(), A.copy()
            assert products.factor_in_place(factor)
            products.solve_in_place(factor, right)
            norms = products.inverse_products(factor, A.copy())
            rows = products.row_products(A, right)
        results = gram, sums, factor, right, norms, rows
        found.append([each.tobytes() for each in results])
    assert found[0] == found[1] == found[2]
