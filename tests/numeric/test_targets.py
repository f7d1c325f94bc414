import numpy as np
import pytest

from dask_nrbfn.errors import DamagedDataError
from dask_nrbfn.numeric.moments import Moments, check_moments
from dask_nrbfn.numeric.ridge import RidgeSystem
from dask_nrbfn.numeric.targets import NumberTargets
from tests.numeric.systems import solve_weights


def draw(n_rows=60, n_basis=5, n_targets=2, *, far=0.0, seed=0):
    """Draw plain activations (n, r), numbers (n, q) about `far`, and weights (n,)."""
    rng = np.random.default_rng(seed)
    Phi = rng.uniform(0.1, 1.0, (n_rows, n_basis))
    T = far + Phi @ rng.normal(size=(n_basis, n_targets)) + rng.normal(size=(n_rows, n_targets))
    return Phi, T, rng.uniform(0.5, 3.0, n_rows)


def moments_of(Phi, T, weights, targets):
    factors = np.sqrt(weights)
    return Moments.from_block(factors[:, None] * Phi, targets.bordered(T, factors))


def naive(Phi, T, weights, mu, *, centred):
    """Return weights (q, r) and intercept (q,) of the least squares that are written out."""
    tbar = np.average(T, axis=0, weights=weights)
    m = np.average(Phi, axis=0, weights=weights) if centred else np.zeros(Phi.shape[1])
    A = Phi - m
    gram = A.T @ (weights[:, None] * A)
    cross = A.T @ (weights[:, None] * (T - tbar))
    W = np.linalg.solve(gram + mu * np.trace(gram) * np.eye(len(gram)), cross).T
    return W, tbar - W @ m, gram


@pytest.mark.parametrize("far", [0.0, 1e6])
@pytest.mark.parametrize("normalized", [False, True])
def test_ridge_system__of_numbers(normalized, far):
    Phi, T, weights = draw(far=far)
    if normalized:
        Phi /= Phi.sum(axis=1, keepdims=True)
    targets = NumberTargets(T[0])
    moments = moments_of(Phi, T, weights, targets)
    system = RidgeSystem.of(moments, targets, normalized=normalized)
    W, intercept, gram = naive(Phi, T, weights, 1e-4, centred=not normalized)
    np.testing.assert_allclose(system.gram, gram, rtol=1e-9)
    found = solve_weights(system.gram, system.cross, alpha=1e-4).weights
    np.testing.assert_allclose(found, W, rtol=1e-7)
    np.testing.assert_allclose(targets.origin + system.intercept(found), intercept, rtol=1e-9)
    residuals = T - Phi @ found.T - intercept
    np.testing.assert_allclose(system.squared_residuals(found), weights @ residuals**2, rtol=1e-6)
    spread = weights @ (T - np.average(T, axis=0, weights=weights)) ** 2
    np.testing.assert_allclose(system.target_squares, spread, rtol=1e-9)
    assert system.target_norm == pytest.approx(spread.sum(), rel=1e-9)


def test_check_moments__of_numbers():
    Phi, T, weights = draw(far=1e3)
    Phi /= Phi.sum(axis=1, keepdims=True)
    moments = moments_of(Phi, T, weights, NumberTargets(T[0]))
    check_moments(moments, weights.sum())
    moments.products[2, 1] += 1e-3
    with pytest.raises(DamagedDataError, match="damaged"):
        check_moments(moments, weights.sum())
