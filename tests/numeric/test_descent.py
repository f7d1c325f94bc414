"""The descent to the least of a loss and a penalty, against another minimizer."""

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.svm import LinearSVC

from dask_nrbfn.choices import LOSSES
from dask_nrbfn.numeric.descent import (
    LossSums,
    Point,
    Preconditioner,
    accepted_points,
    next_weights,
)
from dask_nrbfn.numeric.losses import loss_named
from dask_nrbfn.numeric.radial import RadialFeatures
from tests.numeric.systems import ridge_of, solve_weights
from tests.tables import spirals


class Problem:
    """A loss of rows and a penalty, and how often it was asked for."""

    def __init__(self, name, ridge_kind="weights", *, normalized=False, alpha=1e-3, n_rows=200):
        X, self.codes = spirals(n_rows)
        X += np.random.default_rng(1).normal(scale=0.4, size=X.shape)
        features = RadialFeatures.from_basis(X[::10], 0.8, normalized=normalized)
        self.Phi, self.loss = features.activations(X), loss_named(name)
        r = self.Phi.shape[1]
        penalty = {
            "weights": None,
            "diagonal": np.append(1.0 + np.arange(r - 1), np.inf),
            "matrix": features.activations(X[::10]),
        }[ridge_kind]
        self.gram = self.Phi.T @ self.Phi
        self.ridge = ridge_of(self.gram, alpha=alpha, penalty=penalty)
        signed = 2 * np.eye(3)[self.codes] - 1
        self.start = solve_weights(
            self.gram, signed.T @ self.Phi, alpha=alpha, penalty=penalty
        ).weights
        self.preconditioner = Preconditioner.of(
            self.gram, self.ridge, curvature=self.loss.curvature
        )

    def at(self, W):
        scores = (self.Phi @ W.T)[:, None]
        sums = LossSums.from_block(self.Phi, scores, self.codes, self.loss)
        return Point.of(W, sums.loss[0], sums.gradient[0], self.ridge)

    def descend(self, n_passes):
        points = [self.at(self.start)]
        while len(points) < n_passes:
            points.append(self.at(next_weights(points, self.preconditioner)))
        return points


def least(problem):
    """Return the least objective by scipy, over the weights that the penalty lets move."""
    free = np.ones(problem.start.shape, dtype=bool)
    if problem.ridge.ndim == 1:
        free &= np.isfinite(problem.ridge)

    def spread(flat):
        W = np.zeros(problem.start.shape)
        W[free] = flat
        return W

    def value_and_gradient(flat):
        point = problem.at(spread(flat))
        return point.objective, point.gradient[free]

    options = {"maxiter": 20000, "maxfun": 40000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 50}
    found = minimize(
        value_and_gradient, problem.start[free], jac=True, method="L-BFGS-B", options=options
    )
    return found.fun, spread(found.x)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_descent__comes_to_the_least(name, normalized):
    problem = Problem(name, normalized=normalized)
    objective, W = least(problem)
    best = accepted_points(problem.descend(120))[-1]
    assert best.objective <= objective * (1 + 1e-7)
    scores = problem.Phi @ W.T
    # The hinge is nearly flat around its least.
    tolerance = 0.02 if name == "hinge" else 2e-3
    np.testing.assert_allclose(problem.Phi @ best.weights.T, scores, atol=tolerance)


@pytest.mark.parametrize("ridge_kind", ["diagonal", "matrix"])
def test_descent__with_other_penalties(ridge_kind):
    problem = Problem("squared-hinge", ridge_kind)
    best = accepted_points(problem.descend(100))[-1]
    assert best.objective <= least(problem)[0] * (1 + 1e-7)
    if ridge_kind == "diagonal":
        np.testing.assert_array_equal(best.weights[:, -1], 0.0)


def test_descent__of_the_hinge_is_nearly_a_support_vector_machine():
    problem = Problem("hinge")
    best = accepted_points(problem.descend(120))[-1]
    (mu,) = set(problem.ridge)
    for k, weights in enumerate(best.weights):
        signs = np.where(problem.codes == k, 1, -1)
        machine = LinearSVC(loss="hinge", C=1 / (2 * mu), fit_intercept=False, max_iter=10**6)
        exact = machine.fit(problem.Phi, signs).coef_[0]
        ours, theirs = (
            np.maximum(0, 1 - signs * (problem.Phi @ w)).sum() + mu * w @ w
            for w in (weights, exact)
        )
        assert ours == pytest.approx(theirs, rel=0.01)


def test_descent__of_the_squared_loss_begins_where_it_ends():
    problem = Problem("squared")
    first = problem.at(problem.start)
    scale = problem.preconditioner.norm(problem.at(0 * problem.start).gradient)
    assert problem.preconditioner.norm(first.gradient) < 1e-9 * scale


@pytest.mark.parametrize("objective", [1e9, np.inf, np.nan])
def test_next_weights__a_step_that_is_too_long_is_shortened(objective):
    problem = Problem("logistic")
    points = problem.descend(3)
    tried = points[-1].weights
    points[-1] = points[-1]._replace(objective=objective)
    assert accepted_points(points) == points[:2]
    shorter = next_weights(points, problem.preconditioner)
    share = (shorter - points[1].weights) / (tried - points[1].weights)
    np.testing.assert_allclose(share, 0.1, rtol=1e-6)


def test_descent__is_a_function_of_the_points():
    problem = Problem("hinge")
    points = problem.descend(9)
    for number in range(1, 9):
        again = next_weights(points[:number], problem.preconditioner)
        np.testing.assert_array_equal(again, points[number].weights)
