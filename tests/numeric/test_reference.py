"""The reference gives the figures of hu-nrbfn (Tables 1, 2, 4, 5), and the package the reference's.

Raw features; in each class the first half of the rows trains.
"""

from functools import cache

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_iris, load_wine

from dask_nrbfn.numeric.confidence import RowPool, choose_basis, soft_confidence
from dask_nrbfn.numeric.distances import BasisDistances
from dask_nrbfn.numeric.moments import Moments
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.targets import ClassTargets
from tests.numeric.systems import error_and_risk, solve_weights
from tests.reference import first_half, reference_distances, reference_fit

LOADERS = {"iris": load_iris, "wdbc": load_breast_cancer, "wine": load_wine}


@cache
def halves(name):
    X, y = LOADERS[name](return_X_y=True)
    train, test = first_half(X, y)
    return X[train], y[train], X[test], y[test]


@cache
def fitted(name, alpha):
    X, y, _, _ = halves(name)
    return reference_fit(X, y, alpha=alpha)


def test_first_half__odd_classes_in_any_order():
    train, test = first_half(np.zeros((6, 1)), np.array(["b", "a", "b", "b", "a", "c"]))
    assert train.tolist() == [0, 1, 2, 5]
    assert test.tolist() == [3, 4]


def numeric_fit(X, y, *, alpha, n_classes):
    """Compose the package's functions of one block into a fit.

    The neighbours come from explicit differences: iris has equally far ones at the k-th place.
    """
    distances = reference_distances(X, X)
    np.fill_diagonal(distances, np.inf)
    neighbors = np.argsort(distances, axis=1, kind="stable")[:, :20]
    nearest = np.take_along_axis(distances, neighbors, axis=1)
    confidence = soft_confidence(nearest, y[neighbors] == y[:, None], width=nearest.mean())
    row_order = np.arange(len(y))
    pool = RowPool(confidence, row_order.astype(np.uint64), y, row_order)
    rows = choose_basis(pool, size=len(y), n_classes=n_classes, threshold=0.9).rows
    width = BasisDistances.from_basis(X[rows]).total(X) / (len(X) * len(rows))
    features = RadialFeatures.from_basis(X[rows], width)
    moments = Moments.from_block(features.activations(X), ClassTargets(n_classes).bordered(y))
    weights = solve_weights(moments.gram(), moments.cross, alpha=alpha).weights
    return confidence, rows, features, moments, weights


@pytest.mark.parametrize("name", LOADERS)
def test_numeric__same_fit_as_reference(name):
    X, y, _, _ = halves(name)
    expected = fitted(name, 1e-5)
    confidence, rows, features, moments, weights = numeric_fit(
        X, y, alpha=1e-5, n_classes=y.max() + 1
    )
    risk = error_and_risk(weights, moments.gram(), moments.cross, target_norm=len(X), alpha=1e-5)
    np.testing.assert_allclose(confidence, expected.confidence, rtol=1e-9)
    np.testing.assert_array_equal(rows, expected.basis_rows)
    assert features.width == pytest.approx(expected.width, rel=1e-9)
    np.testing.assert_allclose(moments.gram(), expected.gram, rtol=1e-9)
    np.testing.assert_allclose(moments.cross, expected.cross, rtol=1e-9)
    np.testing.assert_allclose(weights, expected.weights, rtol=1e-5, atol=1e-7)
    assert risk.fitting_error == pytest.approx(expected.fitting_error, rel=1e-9)
    assert risk.spectral_risk == pytest.approx(expected.spectral_risk, rel=1e-6)
