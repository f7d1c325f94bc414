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
SIZES = [("iris", 75, 75, 32), ("wdbc", 285, 284, 73), ("wine", 90, 88, 74)]
# Test error in percent as printed. Iris at 1e-13 depends on a tie, see below.
ERRORS = [
    ("iris", 1e-5, "2.7"),
    ("iris", 1e-9, "5.3"),
    ("wdbc", 1e-5, "8.1"),
    ("wdbc", 1e-9, "4.9"),
    ("wdbc", 1e-13, "5.3"),
    ("wine", 1e-5, "22.7"),
    ("wine", 1e-9, "5.7"),
    ("wine", 1e-13, "1.1"),
]
# eps and gamma as printed.
PRINTED_RISKS = [("wdbc", 1e-9, "1.106", "2.4e+06"), ("wine", 1e-9, "1.283", "5.3e+07")]
# At 1e-13 the order of the sums moves the third digit of eps and the first of gamma.
ROUGH_RISKS = [("wdbc", 1e-13, 1.073, 2.4e10), ("wine", 1e-13, 1.074, 9.6e10)]
# All iris setosa have confidence 1, so any of them may stand for the class. Row 8 is the one that
# the figures 1.046, 2.3e6 and 8.0 % were computed with.
IRIS_SETOSA = 8


@cache
def halves(name):
    X, y = LOADERS[name](return_X_y=True)
    train, test = first_half(X, y)
    return X[train], y[train], X[test], y[test]


@cache
def fitted(name, alpha):
    X, y, _, _ = halves(name)
    return reference_fit(X, y, alpha=alpha)


@cache
def fitted_iris_with(setosa, alpha):
    X, y, _, _ = halves("iris")
    others = fitted("iris", 1e-5).basis_rows[1:]
    return reference_fit(X, y, alpha=alpha, basis_rows=np.array([setosa, *others]))


def error_percent(fit, name):
    _, _, X, y = halves(name)
    return 100 * np.mean(fit.predict(X) != y)


@pytest.mark.parametrize(("name", "n_train", "n_test", "n_basis"), SIZES)
def test_reference__basis_size(name, n_train, n_test, n_basis):
    X_train, _, X_test, _ = halves(name)
    assert (len(X_train), len(X_test)) == (n_train, n_test)
    assert len(fitted(name, 1e-9).basis_rows) == n_basis


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize(("name", "alpha", "printed"), ERRORS)
def test_reference__test_error(name, alpha, printed):
    assert f"{error_percent(fitted(name, alpha), name):.1f}" == printed


@pytest.mark.parametrize(("name", "alpha", "error", "risk"), PRINTED_RISKS)
def test_reference__error_and_risk(name, alpha, error, risk):
    fit = fitted(name, alpha)
    assert f"{fit.fitting_error:.3f}" == error
    assert f"{fit.spectral_risk:.1e}" == risk


@pytest.mark.parametrize(("name", "alpha", "error", "risk"), ROUGH_RISKS)
def test_reference__error_and_risk_at_the_smallest_penalty(name, alpha, error, risk):
    fit = fitted(name, alpha)
    assert fit.fitting_error == pytest.approx(error, abs=2e-3)
    assert fit.spectral_risk == pytest.approx(risk, rel=0.15)


def test_reference__every_iris_setosa_is_as_confident():
    fit, (_, y, _, _) = fitted("iris", 1e-9), halves("iris")
    np.testing.assert_allclose(fit.confidence[y == 0], 1.0, rtol=1e-14)
    assert np.sum(y[fit.basis_rows] == 0) == 1


def test_reference__iris_figures():
    fit = fitted_iris_with(IRIS_SETOSA, 1e-9)
    assert f"{error_percent(fit, 'iris'):.1f}" == "5.3"
    assert (f"{fit.fitting_error:.3f}", f"{fit.spectral_risk:.1e}") == ("1.046", "2.3e+06")
    fit = fitted_iris_with(IRIS_SETOSA, 1e-13)
    assert f"{error_percent(fit, 'iris'):.1f}" == "8.0"
    assert fit.fitting_error == pytest.approx(1.023, abs=2e-3)
    assert fit.spectral_risk == pytest.approx(7.0e9, rel=0.15)


def test_reference__iris_figures_for_any_setosa():
    # What the tie cannot change, and by how much it moves the rest.
    fits = [fitted_iris_with(setosa, 1e-9) for setosa in range(25)]
    assert {f"{error_percent(fit, 'iris'):.1f}" for fit in fits} == {"5.3"}
    assert min(fit.fitting_error for fit in fits) > 1.041
    assert max(fit.fitting_error for fit in fits) < 1.047


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


@pytest.mark.parametrize(("name", "alpha", "printed"), ERRORS)
def test_numeric__test_error(name, alpha, printed):
    X, y, X_test, y_test = halves(name)
    _, _, features, _, weights = numeric_fit(X, y, alpha=alpha, n_classes=y.max() + 1)
    predicted = np.argmax(features.activations(X_test) @ weights.T, axis=1)
    assert f"{100 * np.mean(predicted != y_test):.1f}" == printed
