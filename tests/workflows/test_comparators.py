"""What the tables of the papers do not show of the networks beside theirs."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.mixture import GaussianMixture

from tests.tables import spirals
from workflows.paper.comparators.netlab import Mixture, mixture_step
from workflows.paper.comparators.sensitivity import distance_moments, widest_union


def test_netlab__mixture_as_scikit_learn():
    X, _ = spirals(120, n_features=3)
    start = Mixture(np.array([0.2, 0.3, 0.5]), X[[3, 50, 90]], np.array([0.5, 1.0, 2.0]))
    ours = start
    for _ in range(7):
        ours = mixture_step(X, ours, least_variance=0.0)
    theirs = GaussianMixture(
        3,
        covariance_type="spherical",
        max_iter=7,
        tol=0.0,
        reg_covar=0.0,
        weights_init=start.shares,
        means_init=start.centres,
        precisions_init=1.0 / start.variances,
    )
    with pytest.warns(match="did not converge"):
        theirs.fit(X)
    expected = (theirs.weights_, theirs.means_, theirs.covariances_)
    for own, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-9)


def test_sensitivity__moments_of_independent_columns():
    rng = np.random.default_rng(0)
    first, second = rng.exponential(size=7), rng.normal(3.0, size=11)
    X = np.array([[a, b] for a in first for b in second])
    centres = rng.normal(size=(4, 2))
    squared = cdist(X, centres, "sqeuclidean")
    mean, variance = distance_moments(X, centres)
    np.testing.assert_allclose(mean, squared.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(variance, squared.var(axis=0), rtol=1e-12)


def test_sensitivity__widest_union_solves_the_equation():
    rng = np.random.default_rng(1)
    X, centres, weights = rng.normal(size=(50, 3)), rng.normal(size=(4, 3)), rng.normal(size=4)
    Q = widest_union(X, centres, weights, width=2.0, empirical=0.04, rho=0.25)
    mean, variance = distance_moments(X, centres)
    terms = weights**2 * np.exp(variance / (2 * 2.0**4) - mean / 2.0**2) / 2.0**4
    left = 0.2 / 3 * 3 * terms.sum() * Q**4 + terms @ mean * Q**2
    np.testing.assert_allclose(left, 3 * (0.5 - 0.2) ** 2, rtol=1e-12)
