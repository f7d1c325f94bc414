"""Rows without a label: candidates for the basis, part of scale and width, and of no sum."""

import numpy as np
import pytest

from dask_nrbfn import FitParams, TuneParams, given_basis
from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.storage.model import Model
from tests.reference import (
    reference_activations,
    reference_confidence,
    reference_distances,
    reference_penalized,
)
from tests.stages.fits import fit_table
from tests.tables import spirals, surfaces

# What stands for no label.
NONE = -1


def partly(n_rows, n_labelled, seed=0):
    """Return rows, their labels, and where labels are left."""
    X, y = spirals(n_rows, seed=seed)
    labelled = np.zeros(n_rows, dtype=bool)
    labelled[np.random.default_rng(seed).choice(n_rows, n_labelled, replace=False)] = True
    return X, np.where(labelled, y, NONE), labelled


def fitted(X, targets, given_rows=None, *, unlabelled=NONE, **params):
    params = FitParams(**({"kernel": "gaussian", "scale": "none"} | params))
    if given_rows is not None:
        params = given_basis(params, given_rows)
    return fit_table(X, targets, params, of_fit={"basis": given_rows}, unlabelled=unlabelled)


def weights_of(run):
    return Model.load(run.location).weights


def reference_plain(X, basis, width):
    return np.exp(-(reference_distances(X, basis) ** 2) / (2 * width**2))


@pytest.mark.parametrize("features", ["plain", "normalized"])
def test_unlabelled__is_the_naive_network(features):
    X, y, labelled = partly(120, 40)
    drawn = {"basis": "random", "basis_size": 25, "scale": "standard"}
    run = fitted(X, y, features=features, alpha=1e-3, class_weight="balanced", **drawn)
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    rows = run.read("basis/rows")
    assert not labelled[rows].all()
    basis, targets = scaled[rows], np.eye(3)[y[labelled]]
    of_classes = 40 / (3 * targets.sum(axis=0))
    of_rows = np.ones(120)
    of_rows[labelled] = targets @ of_classes
    width = np.average(reference_distances(scaled, basis).mean(axis=1), weights=of_rows)
    activations = reference_plain if features == "plain" else reference_activations
    roots = np.sqrt(of_rows[labelled])[:, None]
    Phi, T = activations(scaled[labelled], basis, width) * roots, targets * roots
    np.testing.assert_allclose(run.stages["width"]["width"], width, rtol=1e-9)
    expected = reference_penalized(Phi, T, 1e-3, np.eye(len(rows)))
    np.testing.assert_allclose(weights_of(run), expected, rtol=1e-8, atol=1e-10)


def test_unlabelled__primal_is_the_dual_with_all_rows_as_centres():
    """Que & Belkin, section 3: a = (A + n lam I)^-1 T, f(x) = (1/m) sum_u k(x, u) k_u'a."""
    X, y, labelled = partly(90, 30)
    alpha = 1e-2
    run = fitted(X, y, given_rows=X, features="plain", alpha=alpha)
    K = reference_plain(X, X, run.stages["width"]["width"])
    Z, T = K[labelled], np.eye(3)[y[labelled]]
    mu = alpha * np.sum(Z**2)
    dual = np.linalg.solve(Z @ Z.T + mu * np.eye(30), T)
    np.testing.assert_allclose(K @ weights_of(run).T, K @ Z.T @ dual, atol=1e-12)


def test_unlabelled__neighbours_are_searched_among_the_others():
    X, y, labelled = partly(160, 100)
    run = fitted(X, y, n_neighbors=7, confidence_threshold=0.9)
    expected = reference_confidence(X[labelled], y[labelled], n_neighbors=7)
    confidence = run.of_labelled().read("confidence/values")
    np.testing.assert_allclose(confidence, expected, rtol=1e-9)
    rows = run.read("basis/rows")
    np.testing.assert_array_equal(rows, np.flatnonzero(labelled)[expected < 0.9])
    np.testing.assert_array_equal(run.read("basis/values"), X[rows])


def test_unlabelled__are_neighbours_in_locality():
    X, y, labelled = partly(120, 60)
    params = {"n_neighbors": 6, "locality": 1e-3, "features": "plain", "alpha": 1e-6}
    run = fitted(X, y, given_rows=X[:25], **params)
    assert run.stages["locality"]["n_drawn"] == 120
    assert (~labelled[run.read("locality/indices")]).any()
    few = fitted(X[labelled], y[labelled], given_rows=X[:25], unlabelled=None, **params)
    assert not np.allclose(run.read("locality/packed"), few.read("locality/packed"), rtol=0.1)


def test_unlabelled__numbers():
    X, Y = surfaces(150)
    labelled = np.arange(150) % 3 == 0
    marked = np.where(labelled[:, None], Y, np.nan)
    basis = X[:20]
    run = fitted(X, marked, given_rows=basis, unlabelled="nan", alpha=1e-6)
    width = reference_distances(X, basis).mean()
    Phi = reference_plain(X[labelled], basis, width)
    centred = Phi - Phi.mean(axis=0)
    T = Y[labelled] - Y[labelled].mean(axis=0)
    expected = reference_penalized(centred, T, 1e-6, np.eye(20))
    np.testing.assert_allclose(weights_of(run), expected, rtol=1e-5)


def test_unlabelled__folds_are_those_of_the_others():
    """The basis function of a row without a label is in every fold."""
    X, y, labelled = partly(240, 120)
    order = np.argsort(~labelled, kind="stable")
    X, y = X[order], y[order]
    tuning = TuneParams(effort="quick", folds=3, alphas=(1e-8, 1e-4), width_factors=(0.5, 1.0))
    params = FitParams(basis="random", basis_size=30, n_neighbors=5)
    run = fit_table(X, y, params, tuning=tuning, unlabelled=NONE)
    validation = run.stages["validation"]
    assert validation["n_rows"] == 120
    assert validation["error_rate"] < 0.3
    assert {record["n_rows"] for name, record in run.stages.items() if name == "search"} == {120}
    places, rows = run.read("basis/labelled"), run.read("basis/rows")
    np.testing.assert_array_equal(places, np.where(rows < 120, rows, -1))


def test_unlabelled__what_is_missing_is_said_before_the_first_task():
    X, y = spirals(60)
    with pytest.raises(DataError, match=r"no row of .* has a label"):
        fitted(X, np.full(60, NONE))
    with pytest.raises(DataError, match="1 class only"):
        fitted(X, np.where(y == 1, 1, NONE))
    few = np.r_[y[:20], np.full(40, NONE)]
    with pytest.raises(ParameterError, match="n_samples = 20 with a label"):
        fitted(X, few, n_neighbors=20)
    with pytest.raises(ParameterError, match="3 to 20"):
        fitted(X, few, n_neighbors=5, basis_size=21)
    tuning = TuneParams(effort="quick", folds=11)
    with pytest.raises(ParameterError, match="there are 20 rows"):
        fit_table(X, few, FitParams(n_neighbors=5), tuning=tuning, unlabelled=NONE)
