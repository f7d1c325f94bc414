import numpy as np
import pytest

from dask_nrbfn.choices import KERNELS
from dask_nrbfn.numeric.penalties import RidgeTerms, penalty_named
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.scaling import Scaling
from tests.numeric.systems import solve_weights
from tests.tables import spirals


def penalty_of(name, features, shares=None):
    return penalty_named(name).of(RidgeTerms(features=lambda: features, shares=lambda: shares))


def solve(Phi, T, alpha, penalty):
    return solve_weights(Phi.T @ Phi, T.T @ Phi, alpha=alpha, penalty=penalty).weights


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel__is_that_between_the_basis_rows(kernel):
    rows = np.random.default_rng(0).normal(size=(9, 3)) + 1e6
    scaling = Scaling("standard", np.full(3, 2.0), np.full(3, 5.0))
    features = RadialFeatures.from_basis(rows, 1.5, scaling, kernel=kernel, normalized=False)
    P = penalty_of("kernel", features)
    for first in range(9):
        for second in range(9):
            order = 1 if kernel == "laplace-l1" else 2
            t = np.array([np.linalg.norm(rows[first] - rows[second], order) / 1.5])
            plain = RadialFeatures.from_basis([[0.0]], 1.0, kernel=kernel, normalized=False)
            expected = plain.activations(t[:, None])[0, 0]
            assert P[first, second] == pytest.approx(expected, abs=1e-7)
    assert P.trace() == pytest.approx(9, rel=1e-7)


@pytest.mark.parametrize("width", [0.05, 0.5, 5.0, 100.0])
def test_kernel__of_any_width_has_a_solution(width):
    X, y = spirals(120)
    features = RadialFeatures.from_basis(X, width, normalized=False)
    Phi, T = features.activations(X), np.eye(3)[y]
    K = penalty_of("kernel", features)
    weights = solve(Phi, T, 1e-6, K)
    mu = 1e-6 * np.sum(Phi**2)
    ridge = np.linalg.solve(K + mu * np.eye(120), T)
    np.testing.assert_allclose(Phi @ weights.T, K @ ridge, atol=1e-5)


def test_clusters__without_rows_have_no_weight():
    X, y = spirals(90)
    basis = np.concatenate([X[::10], [[50.0] * 4]])
    features = RadialFeatures.from_basis(basis, 0.7, normalized=False)
    shares = np.append(np.full(9, 1 / 9), 0.0)
    P = penalty_of("clusters", features, shares)
    Phi, T = features.activations(X), np.eye(3)[y]
    weights = solve(Phi, T, 1e-3, P)
    np.testing.assert_array_equal(weights[:, 9], 0.0)
    Phi = np.ascontiguousarray(Phi[:, :9])
    np.testing.assert_allclose(weights[:, :9], solve(Phi, T, 1e-3, None), rtol=1e-10)
