from dataclasses import replace

import numpy as np
import pytest

from dask_nrbfn.choices import KERNELS
from dask_nrbfn.numeric.gradients import (
    LEAST_WEIGHT,
    GradientSums,
    feature_weights,
    heaviest_columns,
)
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.scaling import ColumnStatistics, Scaling
from dask_nrbfn.numeric.schema import Column, Schema


def network(kernel, seed=0, n_basis=7):
    """Return rows, radial basis functions of another scale than the rows, and weights."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(25, 3)) * [1.0, 30.0, 0.1]
    root = np.array([1.5, 0.2, 0.7])
    statistics = ColumnStatistics.from_block(X)
    scaling = Scaling("learned", statistics.mean, statistics.standard_deviation, root)
    basis = scaling.apply(X[:n_basis])
    features = RadialFeatures.from_basis(basis, 0.8, scaling, kernel=kernel, normalized=False)
    return X, features, rng.normal(size=(2, n_basis))


def naive_squares(X, features, weights, step=1e-5):
    """Return the squares of differences of the scores by each scaled feature, a row each."""
    squares = np.zeros(X.shape)
    for column, unit in enumerate(np.diag(features.scaling.scale / features.scaling.root)):
        ahead, behind = (features.weighted_sums(X + s * step * unit, weights) for s in (1, -1))
        squares[:, column] = (((ahead - behind) / (2 * step)) ** 2).sum(axis=1)
    return squares


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients__are_those_of_differences(kernel):
    X, features, weights = network(kernel)
    # Where a kernel has a corner, at its basis row, there is no difference to compare with.
    X, row_weights = X[7:], np.random.default_rng(1).uniform(0.5, 2.0, len(X) - 7)
    found = GradientSums.from_block(X, features, weights, row_weights=row_weights).squares
    expected = row_weights @ naive_squares(X, features, weights)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_feature_weights__have_mean_1_where_used_and_lose_no_feature():
    weights = feature_weights(np.array([4.0, 1.0, 0.0, 1.0]), np.array([1.0, 2.0, 1.0, 1.0]))
    assert weights[[0, 1, 3]].mean() == pytest.approx(1.0 + LEAST_WEIGHT)
    assert weights.argmin() == 2
    assert weights[0] == pytest.approx(weights[1])
    assert weights[2] == LEAST_WEIGHT
    np.testing.assert_array_equal(feature_weights(np.zeros(2), np.ones(2)), 1.0 + LEAST_WEIGHT)


def test_heaviest_columns__have_their_parts_of_the_squared_distances():
    rng = np.random.default_rng(0)
    numbers, codes = rng.normal(3.0, 5.0, (400, 2)), rng.choice(4, 400, p=[0.5, 0.3, 0.195, 0.005])
    town = Column("town", "category", ("a", "b", "c", "rare"))
    schema = Schema((Column("age", "number"), town, Column("pay", "number")))
    X = schema.expand(np.column_stack([numbers[:, 0], codes, numbers[:, 1]]))
    weights = np.array([3.0, 0.5, 0.7, 0.1, 40.0, 2.0])
    statistics = ColumnStatistics.from_block(X)
    scaling = Scaling.from_statistics("learned", statistics, schema.groups)
    scaled = replace(scaling, root=np.sqrt(weights)).apply(X)
    # The mean over all pairs of rows, half of it.
    parts = np.square(scaled[:, None] - scaled).mean(axis=(0, 1)) / 2
    expected = {"age": parts[0], "pay": parts[5], "town": parts[1:5].sum()}
    found = heaviest_columns(weights, scaling, schema, None, 9)
    assert [*found] == ["age", "pay", "town"]
    assert found == pytest.approx(expected)
    assert weights[4] == 40.0
    assert [*heaviest_columns(weights, scaling, None, None, 2)] == ["column 4", "column 0"]
    names = schema.feature_names
    assert heaviest_columns(weights, scaling, None, names, 1) == {"town=rare": 40.0}
