"""The kernel of l1 distances against sums that are written out."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from dask_nrbfn.numeric import cityblock
from dask_nrbfn.numeric.cityblock import absolute_sums
from dask_nrbfn.numeric.gradients import GradientSums
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.rows import canonical
from dask_nrbfn.numeric.scaling import ColumnStatistics, Scaling
from tests.reference import reference_l1_distances

WIDTH = 1.7


def draw(n_rows, p, seed=0):
    return np.random.default_rng(seed).normal(size=(n_rows, p))


def features_of(basis, *, scaling=None, normalized=False, width=WIDTH):
    return RadialFeatures.from_basis(
        basis,
        width,
        scaling,
        kernel="laplace-l1",
        normalized=normalized,
    )


def naive(X, basis, normalized=False):
    logarithms = -reference_l1_distances(X, basis) / WIDTH
    if not normalized:
        return np.exp(logarithms)
    powers = np.exp(logarithms - logarithms.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (16, 512), (64, 64)])
def test_absolute_sums__same_bits_in_any_blocks(monkeypatch, size):
    X, columns, out = draw(37, 9), draw(9, 130, 1), np.empty((2, 37, 130))
    absolute_sums(X, columns, out[0], factor=-0.7)
    monkeypatch.setattr(cityblock, "_BLOCK_ROWS", size[0])
    monkeypatch.setattr(cityblock, "_BLOCK_COLUMNS", size[1])
    # The loop as Python runs it: the machine code has the sizes of its first call.
    cityblock._absolute_sums(X, columns, -0.7, out[1])
    np.testing.assert_array_equal(*out)


@pytest.mark.parametrize("normalized", [True, False])
def test_activations__naive(normalized):
    X, basis = draw(60, 5), draw(21, 5, 1)
    features = features_of(basis, normalized=normalized)
    expected = naive(X, basis, normalized)
    np.testing.assert_allclose(features.activations(X), expected, rtol=1e-12)
    weights = draw(3, 21, 2)
    sums = features.weighted_sums(X, weights)
    np.testing.assert_allclose(sums, expected @ weights.T, rtol=1e-11, atol=1e-13)
    between = naive(basis, basis)
    np.testing.assert_allclose(features.between_basis_rows(), between, rtol=1e-12)


def test_activations__is_1_for_a_repeated_row_of_any_offset():
    basis = np.repeat(draw(4, 3) + 1e9, 2, axis=0)
    Phi = features_of(basis).activations(basis)
    assert (Phi[np.arange(8), np.arange(8) ^ 1] == 1).all()


SHARES = [(0.02, 0.02), (0.02, 1.0), (0.3, 0.02), (0.3, 0.5)]


@pytest.mark.parametrize("kind", ["none", "unit", "standard"])
@pytest.mark.parametrize(("share", "of_basis"), SHARES)
def test_activations__of_rows_in_csr(kind, share, of_basis):
    rng = np.random.default_rng(0)
    X, basis = (
        rng.normal(size=(n, 200)) * (rng.random((n, 200)) < stored)
        for n, stored in ((50, share), (12, of_basis))
    )
    X[0], X[1] = 0.0, basis[0]
    rows = canonical(csr_array(X))
    scaling = Scaling.from_statistics(kind, ColumnStatistics.from_block(rows), centred=share > 0.1)
    scaled = scaling.apply(canonical(csr_array(basis)))
    for normalized in (True, False):
        expected = naive(scaling.apply(X), scaling.apply(basis), normalized)
        for each in (scaled, scaling.apply(basis)):
            features = features_of(each, scaling=scaling, normalized=normalized)
            np.testing.assert_allclose(features.activations(rows), expected, atol=1e-9)
            np.testing.assert_allclose(features.activations(X), expected, rtol=1e-9, atol=1e-12)


def test_gradients__naive():
    """Squared derivatives by each scaled feature, from the written-out formula."""
    X, basis, weights = draw(30, 4), draw(9, 4, 1), draw(2, 9, 2)
    # A difference of 0 has no derivative, and counts as 0.
    X[3, 1], X[5] = basis[2, 1], basis[4]
    row_weights = np.linspace(0.5, 2, 30)
    of_kernel = -np.sign(X[:, None] - basis) / WIDTH * naive(X, basis)[:, :, None]
    gradients = np.einsum("cj,ijl->icl", weights, of_kernel)
    expected = row_weights @ np.square(gradients).sum(axis=1)
    features = features_of(basis)
    found = GradientSums.from_block(X, features, weights, row_weights=row_weights).squares
    np.testing.assert_allclose(found, expected, rtol=1e-11)


def test_compiled__without_a_directory_for_machine_code(monkeypatch):
    import numba

    compile_loop = numba.njit

    def njit(**options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return compile_loop(**options)

    monkeypatch.setattr(numba, "njit", njit)
    cityblock._compiled.cache_clear()
    out = np.empty((3, 2))
    absolute_sums(draw(3, 4), draw(4, 2, 1), out)
    assert np.isfinite(out).all()
    cityblock._compiled.cache_clear()
