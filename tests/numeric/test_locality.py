"""Locality of rows and neighbours against its definition, and what a ridge makes of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize

from dask_nrbfn.numeric.descent import Point, Preconditioner
from dask_nrbfn.numeric.locality import LocalitySums, neighbor_shares
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.ridge import Locality
from tests.neighbors.naive import naive_distances, naive_neighbors
from tests.numeric.systems import error_and_risk, ridge_of, solve_weights, spectral_bounds
from tests.tables import spirals

UNKNOWN = -1


def naive_shares(distances, scale, code=None, codes=None):
    """Return P of one row and its neighbours."""
    others = [
        d
        for d, own in zip(distances, [] if codes is None else codes, strict=codes is not None)
        if UNKNOWN not in (code, own) and own != code
    ]
    S = [np.exp(-((d / scale) ** 2)) if d < min(others, default=np.inf) else 0 for d in distances]
    return np.array(S) / (sum(S) or 1)


def lists(X, k):
    neighbors = naive_neighbors(X, k)
    return np.take_along_axis(naive_distances(X), neighbors, axis=1), neighbors


def table(n_rows=60, n_basis=9, *, normalized=False, k=7):
    """Return activations, codes and neighbours of rows that overlap."""
    X, y = spirals(n_rows)
    distances, neighbors = lists(X, k)
    features = RadialFeatures.from_basis(X[:n_basis], 0.8, normalized=normalized)
    return features.activations(X), y, distances, neighbors


def sum_of(Phi, rows, neighbors, shares):
    sums = LocalitySums(Phi.shape[1])
    sums.add(Phi, rows, neighbors, shares)
    return sums.sum()


def draw_R(n_basis=6, seed=0):
    """Draw R of rank 4."""
    root = np.random.default_rng(seed).normal(size=(n_basis, 4))
    return root @ root.T


@given(seed=st.integers(0, 999), k=st.integers(1, 8))
def test_shares__naive(seed, k):
    rng = np.random.default_rng(seed)
    # Some distances are equal, also across classes.
    distances = np.sort(rng.integers(0, 6, (12, k)) / 2.0, axis=1)
    codes, neighbor_codes = rng.integers(-1, 3, 12), rng.integers(-1, 3, (12, k))
    found = neighbor_shares(distances, scale=1.3, codes=codes, neighbor_codes=neighbor_codes)
    for row in range(12):
        expected = naive_shares(distances[row], 1.3, codes[row], neighbor_codes[row])
        np.testing.assert_allclose(found[row], expected, atol=1e-15)
    of_numbers = neighbor_shares(distances, scale=1.3)
    expected = [naive_shares(row, 1.3) for row in distances]
    np.testing.assert_allclose(of_numbers, expected, atol=1e-15)


def test_shares__far_neighbours_do_not_underflow():
    found = neighbor_shares(np.array([[1e5, 1e5 + 1e-6, 2e5]]), scale=1.0)
    np.testing.assert_allclose(
        found, [[1 / (1 + np.exp(-0.2)), 1 / (1 + np.exp(0.2)), 0]], rtol=1e-4
    )


def penalties(n_basis=6):
    rng = np.random.default_rng(1)
    root = rng.normal(size=(n_basis, n_basis))
    some = rng.uniform(0.1, 30, n_basis)
    return {
        "weights": None,
        "diagonal": some,
        "matrix": root @ root.T,
        "left out": np.where(np.arange(n_basis) == 2, np.inf, some),
    }


def naive_ridge(gram, alpha, penalty, strength, R):
    """Return what is added to gram, and which basis rows take part."""
    kept = np.ones(len(gram), dtype=bool)
    P, jitter = penalty, 0.0
    if penalty is None:
        P = np.eye(len(gram))
    elif penalty.ndim == 1:
        kept = np.isfinite(penalty)
        P = np.diag(np.where(kept, penalty, 0.0))
    else:
        jitter = 1e-13
    block = np.ix_(kept, kept)
    unit = [np.trace(gram[block]) * kept.sum() / np.trace(each[block]) for each in (P, R)]
    ridge = alpha * unit[0] * P + strength * unit[1] * R
    return (ridge + jitter * np.trace(gram) * np.eye(len(gram)))[block], kept


@pytest.mark.parametrize("name", penalties())
def test_solve__adds_the_locality(name):
    rng = np.random.default_rng(0)
    Phi, T, R, penalty = (
        rng.uniform(size=(40, 6)),
        rng.normal(size=(40, 2)),
        draw_R(),
        penalties()[name],
    )
    gram, cross, locality = Phi.T @ Phi, T.T @ Phi, Locality(0.03, R)
    ridge, kept = naive_ridge(gram, 1e-3, penalty, 0.03, R)
    expected = np.zeros((2, 6))
    expected[:, kept] = np.linalg.solve(gram[np.ix_(kept, kept)] + ridge, cross[:, kept].T).T
    options = {"alpha": 1e-3, "penalty": penalty, "locality": locality}
    weights = solve_weights(gram, cross, **options).weights
    np.testing.assert_allclose(weights, expected, rtol=1e-10, atol=1e-12)
    added = ridge_of(gram, **options)
    np.testing.assert_allclose(added[np.ix_(kept, kept)], ridge, rtol=1e-12)
    np.testing.assert_array_equal(np.isinf(added.diagonal()), ~kept)
    # The objective is the residuals and what is added, over the norm of the fit.
    norm = float(np.sum(T**2))
    residual, fit = np.sum((T - Phi @ weights.T) ** 2), np.sum((Phi @ weights.T) ** 2)
    own = np.sum((weights[:, kept] @ ridge) * weights[:, kept])
    risk = error_and_risk(weights, gram, cross, target_norm=norm, **options)
    assert risk.objective == pytest.approx((residual + own) / fit, rel=1e-12)
    spectral_risk = np.sum(weights**2) * np.trace(gram) / fit
    assert risk.spectral_risk == pytest.approx(spectral_risk, rel=1e-12)
    bounds = spectral_bounds(weights, gram, cross, target_norm=norm, **options)
    assert bounds.absolute_objective == pytest.approx(residual + own, rel=1e-12)


@pytest.mark.parametrize("name", penalties())
def test_descent__goes_with_the_ridge(name):
    rng = np.random.default_rng(0)
    Phi, R = rng.uniform(size=(40, 6)), draw_R()
    gram, penalty = Phi.T @ Phi, penalties()[name]
    ridge = ridge_of(gram, alpha=1e-2, penalty=penalty, locality=Locality(0.1, R))
    own, kept = naive_ridge(gram, 1e-2, penalty, 0.1, R)
    weights, slope = rng.normal(size=(2, 6)) * kept, rng.normal(size=(2, 6))
    point = Point.of(weights, np.array([1.0, 2.0]), slope, ridge)
    expected = np.sum((weights[:, kept] @ own) * weights[:, kept])
    assert point.objective == pytest.approx(3 + expected, rel=1e-12)
    gradient = np.zeros((2, 6))
    gradient[:, kept] = slope[:, kept] + 2 * weights[:, kept] @ own
    np.testing.assert_allclose(point.gradient, gradient, rtol=1e-10)
    M = 2.0 * gram[np.ix_(kept, kept)] + 2 * own
    solved = Preconditioner.of(gram, ridge, curvature=2.0).solve(gradient)
    np.testing.assert_allclose(solved[:, kept] @ M, gradient[:, kept], rtol=1e-8)
    np.testing.assert_array_equal(solved[:, ~kept], 0.0)


@pytest.mark.parametrize("lam", [0.1, 2.0])
def test_locality__fixed_point_is_the_least_of_xue(lam):
    """min sqrt(|t - Phi w|^2 / n) + lam sqrt(w' R w) is a ridge solution, found by bisection."""
    Phi, y, distances, neighbors = table(120, 12)
    t = np.where(y == 0, 1.0, -1.0)
    shares = neighbor_shares(distances, scale=2.0, codes=y, neighbor_codes=y[neighbors])
    R = sum_of(Phi, np.arange(120), neighbors, shares).matrix(12) / 120
    gram, cross = Phi.T @ Phi, t[None] @ Phi
    unit = Locality(1.0, R).factor(gram, None)

    def solve(logarithm):
        locality = Locality(np.exp(logarithm) / unit, R)
        return solve_weights(gram, cross, alpha=0.0, locality=locality).weights[0]

    def parts(w):
        residuals = t - Phi @ w
        return np.sqrt(residuals @ residuals / 120), np.sqrt(w @ R @ w)

    def excess(logarithm):
        error, differences = parts(solve(logarithm))
        return logarithm - np.log(lam * 120 * error / differences)

    def objective(w):
        error, differences = parts(w)
        slope = Phi.T @ (Phi @ w - t) / (120 * error) + lam * R @ w / differences
        return error + lam * differences, slope

    w = solve(brentq(excess, -15, 25, xtol=1e-12))
    start = np.random.default_rng(0).normal(size=12)
    options = {"gtol": 1e-10, "maxiter": 10000}
    found = minimize(objective, start, jac=True, method="BFGS", options=options).fun
    assert objective(w)[0] == pytest.approx(found, rel=1e-7)
    assert objective(w)[0] <= found * (1 + 1e-12)
