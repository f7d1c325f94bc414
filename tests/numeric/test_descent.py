"""The descent to the least of a loss and a penalty, against another minimizer."""

import numpy as np
import pytest

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

    def __init__(self, name, *, alpha=1e-3, n_rows=200):
        X, self.codes = spirals(n_rows)
        X += np.random.default_rng(1).normal(scale=0.4, size=X.shape)
        features = RadialFeatures.from_basis(X[::10], 0.8, normalized=False)
        self.Phi, self.loss = features.activations(X), loss_named(name)
        self.gram = self.Phi.T @ self.Phi
        self.ridge = ridge_of(self.gram, alpha=alpha)
        signed = 2 * np.eye(3)[self.codes] - 1
        self.start = solve_weights(self.gram, signed.T @ self.Phi, alpha=alpha).weights
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
