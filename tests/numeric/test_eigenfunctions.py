import numpy as np
import pytest

from dask_nrbfn.choices import KERNELS
from dask_nrbfn.errors import IllConditionedError
from dask_nrbfn.numeric.eigenfunctions import eigenfunctions
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.ridge import solve_components
from dask_nrbfn.numeric.scaling import ColumnStatistics, Scaling
from tests.numeric.systems import solve_path, solve_weights
from tests.reference import reference_distances
from tests.tables import spirals


def drawn(n_basis=40, width=0.8, **options):
    """Return rows, labels and the functions of the first of them."""
    X, y = spirals(240, seed=1)
    return X, y, RadialFeatures.from_basis(X[:n_basis], width, **options)


def averages(features):
    """Return D^-1 K and s, from explicit differences of the basis rows."""
    K = np.exp(-(reference_distances(features.basis, features.basis) ** 2) / 2 / features.width**2)
    degrees = K.sum(axis=1)
    return K / degrees[:, None], degrees / degrees.sum()


def sums(features, X, y):
    Phi, T = features.activations(X), np.eye(3)[y]
    return Phi, T, Phi.T @ Phi, T.T @ Phi


def test_eigenfunctions__are_those_of_the_average():
    _, _, features = drawn()
    found = eigenfunctions(features, 12)
    A, s = averages(features)
    psi = found.coefficients * found.eigenvalues
    np.testing.assert_allclose(A @ psi, psi * found.eigenvalues, atol=1e-12)
    np.testing.assert_allclose(psi.T @ (s[:, None] * psi), np.eye(12), atol=1e-12)
    np.testing.assert_allclose(psi[:, 0], 1.0, rtol=1e-12)
    expected = np.sort(np.linalg.eigvals(A).real)[::-1][:12]
    np.testing.assert_allclose(found.eigenvalues, expected, atol=1e-12)


def test_eigenfunctions__have_a_sign_and_are_nested():
    _, _, features = drawn()
    longer, shorter = (eigenfunctions(features, size) for size in (20, 5))
    np.testing.assert_array_equal(longer.coefficients[:, :5], shorter.coefficients)
    largest = np.abs(longer.coefficients).argmax(axis=0)
    assert (longer.coefficients[largest, np.arange(20)] > 0).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_eigenfunctions__of_any_kernel_and_scale(kernel):
    X = spirals(60)[0] * [1.0, 10.0, 1e-3, 5.0]
    scaling = Scaling.from_statistics("standard", ColumnStatistics.from_block(X))
    features = RadialFeatures.from_basis(scaling.apply(X), 1.5, scaling, kernel=kernel)
    found = eigenfunctions(features, 6)
    at_basis = features.activations(X) @ found.coefficients
    np.testing.assert_allclose(at_basis, found.coefficients * found.eigenvalues, atol=1e-9)


def test_eigenfunctions__of_repeated_basis_rows():
    X, _, _ = drawn()
    once, twice = (RadialFeatures.from_basis(rows, 0.8) for rows in (X[:9], X[[*range(9)] * 2]))
    one, two = eigenfunctions(once, 9), eigenfunctions(twice, 18)
    assert len(two.eigenvalues) == 9
    np.testing.assert_allclose(two.eigenvalues, one.eigenvalues, rtol=1e-9)
    np.testing.assert_allclose(
        twice.activations(X) @ two.coefficients, once.activations(X) @ one.coefficients, atol=1e-6
    )


def test_eigenfunctions__of_groups_far_apart_tell_them_apart_and_begin_with_the_constant():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(3), [5, 9, 6])
    basis = 1e3 * np.eye(3)[groups] + rng.normal(size=(20, 3))
    features = RadialFeatures.from_basis(basis, 2.0)
    found = eigenfunctions(features, 3)
    np.testing.assert_allclose(found.eigenvalues, 1.0, rtol=1e-12)
    at_basis = features.activations(basis) @ found.coefficients
    np.testing.assert_allclose(at_basis[:, 0], 1.0, rtol=1e-10)
    middles = np.stack([at_basis[groups == group].mean(axis=0) for group in range(3)])
    np.testing.assert_allclose(at_basis, middles[groups], atol=1e-9)
    assert reference_distances(middles, middles)[np.triu_indices(3, 1)].min() > 0.1


def test_solve_components__where_some_systems_are_singular():
    X, y, features = drawn(width=20.0)
    _, _, gram, cross = sums(features, X, y)
    B = eigenfunctions(features, 40).coefficients
    sizes = [5, B.shape[1]]
    few, all_of_them = solve_components(gram, cross, B, sizes=sizes, alphas=[0.0] * 2)
    assert few is not None
    assert all_of_them is None
    assert [*solve_path(gram, cross, alphas=[0.0])] == [None]
    with pytest.raises(IllConditionedError, match="Use alpha="):
        solve_weights(gram, cross, alpha=0.0, directions=B)
