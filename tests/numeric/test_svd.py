"""Truncated singular value decomposition by sums over rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from sklearn.datasets import load_digits
from sklearn.decomposition import TruncatedSVD

from dask_nrbfn.numeric.svd import (
    Sketch,
    decomposition,
    first_directions,
    orthonormal,
    project,
    sketch_columns,
)
from tests.numeric.chunkings import row_chunkings, split


def decomposed(X, n_vectors, n_passes=2):
    """Return the decomposition after so many passes, and the sketch of the last."""
    p = X.shape[1]
    directions = first_directions(p, sketch_columns(n_vectors, p), seed=0)
    sketch = Sketch.from_block(X, directions)
    for _ in range(1, n_passes):
        directions = orthonormal(sketch.products)
        sketch = Sketch.from_block(X, directions)
    return decomposition(directions, sketch, n_vectors)


def sine(one, two):
    """Return the sine of the largest angle between the spans of orthonormal columns."""
    return np.linalg.norm(two - one @ (one.T @ two), ord=2)


def falling(n=80, p=30, *, by=0.5, seed=0):
    """Return rows whose singular values fall to a share each, and these values."""
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.standard_normal((size, p)))[0] for size in (n, p))
    values = by ** np.arange(p)
    return left * values @ right.T, values


def texts(n=400, p=1500, seed=0):
    """Return rows in CSR like those of texts: frequent words, rare words and topics."""
    rng = np.random.default_rng(seed)
    topics = rng.permuted(np.tile(1 / np.arange(1, p + 1), (20, 1)), axis=1)
    shares = 0.7 * rng.dirichlet(np.full(20, 0.1), size=n) @ topics + 0.3 * topics[0]
    return csr_array(rng.poisson(40 * shares / shares.sum(axis=1, keepdims=True)).astype(float))


@given(row_chunkings(), st.booleans())
def test_sketch__is_the_same_however_rows_are_divided(lengths, sparse):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((sum(lengths), 7)) * (rng.random((sum(lengths), 7)) < 0.5)
    Q = rng.standard_normal((7, 4))
    total = Sketch.zeros((7, 4))
    for block in split(X, lengths):
        total += Sketch.from_block(csr_array(block) if sparse else block, Q)
    np.testing.assert_allclose(total.products, X.T @ X @ Q, atol=1e-12)
    assert total.squares == pytest.approx((X**2).sum())


def test_decomposition__of_falling_values_is_that_of_scikit_learn():
    X, values = falling()
    found = decomposed(X, 6)
    exact = TruncatedSVD(6, algorithm="arpack", random_state=0).fit(X)
    np.testing.assert_allclose(found.singular_values, values[:6], rtol=1e-7)
    np.testing.assert_allclose(found.singular_values, exact.singular_values_, rtol=1e-7)
    assert sine(exact.components_.T, found.vectors) < 1e-4
    np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(6), atol=1e-12)
    largest = np.abs(found.vectors).argmax(axis=0)
    assert (found.vectors[largest, np.arange(6)] > 0).all()
    assert found.explained == pytest.approx((values[:6] ** 2).sum() / (values**2).sum())


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("make", [lambda: load_digits().data, texts])
def test_decomposition__of_two_passes_holds_nearly_what_the_exact_one_holds(make):
    X, size = make(), 20
    exact = np.linalg.svd(X.toarray() if hasattr(X, "toarray") else X, compute_uv=False)[:size]
    two, three = (decomposed(X, size, n_passes) for n_passes in (2, 3))
    held = [np.sum((X @ found.vectors) ** 2) / np.sum(exact**2) for found in (two, three)]
    assert 0.97 < held[0] <= held[1] <= 1 + 1e-12
    # What it says of itself is less than it holds.
    assert (two.singular_values <= exact * (1 + 1e-12)).all()
    assert two.explained * np.sum(X**2) <= held[0] * np.sum(exact**2) * (1 + 1e-12)


def test_decomposition__is_exact_where_the_sketch_has_all_columns():
    X = load_digits().data[:200, :12]
    exact = np.linalg.svd(X)
    found = decomposed(X, 6)
    np.testing.assert_allclose(found.singular_values, exact[1][:6], rtol=1e-10)
    assert sine(exact[2][:6].T, found.vectors) < 1e-8


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_decomposition__of_fewer_dimensions_than_asked_for_has_zeros(rank):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, rank)) @ rng.standard_normal((rank, 40))
    found = decomposed(X, 5)
    assert np.count_nonzero(found.singular_values) == rank
    assert not found.vectors[:, rank:].any()
    np.testing.assert_allclose(project(X, found.vectors) @ found.vectors.T, X, atol=1e-9)
    assert found.explained == pytest.approx(float(rank > 0))


def test_decomposition__far_from_the_origin_begins_with_the_mean():
    X = np.random.default_rng(0).standard_normal((60, 20)) + 1e6
    mean = X.mean(axis=0)
    assert decomposed(X, 3).vectors[:, 0] @ mean / np.linalg.norm(mean) > 1 - 1e-9


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sparse", [False, True])
def test_project__of_equal_rows_is_equal_to_the_last_bit(dtype, sparse):
    rng = np.random.default_rng(0)
    few = rng.standard_normal((3, 50)).astype(dtype)
    X, V = few[rng.integers(3, size=700)], rng.standard_normal((50, 9))
    rows = csr_array(X) if sparse else X
    coordinates = project(rows, V)
    np.testing.assert_allclose(coordinates, X.astype(np.float64) @ V, atol=1e-12)
    assert coordinates.dtype == np.float64
    assert len(np.unique(coordinates, axis=0)) == 3
    for size in (1, 2, 255, 257):
        np.testing.assert_array_equal(project(rows[:size], V), coordinates[:size])
