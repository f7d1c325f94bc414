"""Penalties of fits and of their tuning, against systems that are written out."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes

from dask_nrbfn.choices import PENALTIES
from dask_nrbfn.commands.describe import describe_tuning
from dask_nrbfn.numeric.moments import Moments
from dask_nrbfn.numeric.penalties import Ridge, RidgeTerms
from dask_nrbfn.numeric.ridge import RidgeSystem
from dask_nrbfn.numeric.ridge_path import solve_all
from dask_nrbfn.numeric.targets import ClassTargets
from dask_nrbfn.numeric.threads import task_threads
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages.basis import given_basis
from dask_nrbfn.stages.validation import each_system
from dask_nrbfn.storage.model import Model
from tests.reference import reference_distances, reference_ridge
from tests.stages.fits import (
    are_labels,
    as_columns,
    fit_table,
    held_out_scores,
    naive_error,
)
from tests.tables import spirals

ALPHAS = (0.1, 1e-2, 1e-4)
PLAIN = FitParams(kernel="gaussian", scale="none", features="plain")
DRAWN = replace(PLAIN, basis="random", basis_size=25)
CENTRES = replace(DRAWN, basis="kmeans")
TUNING = TuneParams(
    effort="quick",
    folds=3,
    alphas=ALPHAS,
    penalties=PENALTIES,
    width_factors=(0.4,),
    features=("plain",),
)


def fit(X, targets, params, *, basis=None):
    return fit_table(X, targets, params, of_fit={"basis": basis})


def tune(X, targets, params, tuning=TUNING):
    return fit_table(X, targets, params, tuning=tuning)


def plain(X, basis, width):
    return np.exp(-(reference_distances(X, basis) ** 2) / (2 * width**2))


def naive_shares(X, basis, weights=None):
    nearest = reference_distances(X, basis).argmin(axis=1)
    weights = np.ones(len(X)) if weights is None else weights
    return np.bincount(nearest, weights, minlength=len(basis)) / weights.sum()


def naive_held_out(X, targets, run, name, alpha, *, basis=None, rows=None, factor=None):
    """Return the scores of every row by the rows and basis rows of the other folds."""
    basis = run.read("basis/values") if basis is None else basis
    rows = run.read("basis/rows") if rows is None else rows
    width = (factor or run.chosen_params.width_factor) * reference_distances(X, basis).mean()
    Phi, T = plain(X, basis, width), as_columns(targets)
    of_clusters = np.diag(1 / naive_shares(X, basis))
    P = {"kernel": plain(basis, basis, width), "clusters": of_clusters}.get(
        name, np.eye(len(basis))
    )

    def network(out, kept):
        own, around = Phi[:, kept], {}
        if not are_labels(targets):
            around = {"middle": own[~out].mean(axis=0), "mean": T[~out].mean(axis=0)}
        W, b = reference_ridge(own[~out], T[~out], alpha, P=P[np.ix_(kept, kept)], **around)
        return own[out] @ W + b

    return held_out_scores(targets, rows, network)


def cancer(n_rows=150):
    X, y = load_breast_cancer(return_X_y=True)
    return ((X - X.mean(axis=0)) / X.std(axis=0))[:n_rows], y[:n_rows]


def diabetes(n_rows=150):
    X, y = load_diabetes(return_X_y=True)
    return 20 * X[:n_rows], y[:n_rows]


@pytest.mark.parametrize(("rows", "alpha"), [(spirals, 1e-4), (cancer, 1e-2)])
def test_kernel__of_all_rows_is_kernel_ridge_regression(rows, alpha):
    X, y = rows(140)
    params = given_basis(replace(PLAIN, penalty="kernel", alpha=alpha, width_factor=0.3), X)
    model = Model.load(fit(X, y, params, basis=X).location)
    K, F = plain(X, X, model.width), np.eye(y.max() + 1)[y]
    # The trace of K is that of I: lam is alpha times the trace of the gram matrix.
    lam = alpha * np.sum(K**2)
    expected = np.linalg.solve(K + lam * np.eye(140), F)
    np.testing.assert_allclose(model.scores(X), K @ expected, rtol=0, atol=1e-7)
    other = X + 0.1
    np.testing.assert_allclose(
        model.scores(other), plain(other, X, model.width) @ expected, rtol=0, atol=1e-7
    )


def test_kernel__of_numbers_has_an_intercept_without_penalty():
    X, y = diabetes(140)
    alpha = 1e-4
    params = given_basis(replace(PLAIN, penalty="kernel", alpha=alpha, width_factor=0.3), X)
    model = Model.load(fit(X, y, params, basis=X).location)
    K = plain(X, X, model.width)
    lam = alpha * np.sum((K - K.mean(axis=0)) ** 2)
    # (K + lam I) a + b = y with a' 1 = 0: the stationary point of |y - b - K a|^2 + lam a' K a.
    bordered = np.block([[K + lam * np.eye(140), np.ones((140, 1))], [np.ones(140), 0.0]])
    *own, intercept = np.linalg.solve(bordered, np.append(y, 0.0))
    expected = K @ own + intercept
    np.testing.assert_allclose(model.scores(X)[:, 0], expected, rtol=1e-7)


@pytest.mark.parametrize("rows", [spirals, diabetes])
def test_clusters__are_the_weighted_network(rows):
    X, targets = rows(120)
    params = replace(CENTRES, penalty="clusters", alpha=1e-3, width_factor=0.3)
    run = fit(X, targets, params)
    model, basis = Model.load(run.location), run.read("basis/values")
    shares, T, centred = naive_shares(X, basis), as_columns(targets), not are_labels(targets)
    np.testing.assert_allclose(run.read("width/shares"), shares, rtol=1e-14)
    Phi = plain(X, basis, model.width)
    Phi, T = Phi - centred * Phi.mean(axis=0), T - centred * T.mean(axis=0)
    lam = 1e-3 * np.sum(Phi**2) * 25 / np.sum(1 / shares)
    w = Phi.T @ np.linalg.solve(Phi * shares @ Phi.T + lam * np.eye(120), T)
    v = shares[:, None] * w
    assert np.abs(model.weights - v.T).max() / np.abs(v).max() < 1e-10


def test_shares__are_those_of_balanced_classes():
    X, y = spirals(100)
    y[y == 1] = 0
    params = replace(CENTRES, penalty="clusters", alpha=1e-3, class_weight="balanced")
    run = fit(X, y, params)
    weights = (100 / np.bincount(y)[y]) / len(np.unique(y))
    expected = naive_shares(X, run.read("basis/values"), weights)
    np.testing.assert_allclose(run.read("width/shares"), expected, rtol=1e-12)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    ("rows", "params", "names"),
    [(diabetes, DRAWN, ("kernel", "weights")), (cancer, CENTRES, PENALTIES)],
)
def test_tune__chooses_the_penalty_of_the_least_error(rows, params, names):
    X, targets = rows()
    run = tune(X, targets, replace(params, n_parts=2), replace(TUNING, penalties=names))
    path = describe_tuning(run)["path"]
    assert [(entry["penalty"], entry["alpha"]) for entry in path] == [
        (name, alpha) for name in names for alpha in ALPHAS
    ]
    errors = []
    for entry in path:
        scores = naive_held_out(X, targets, run, entry["penalty"], entry["alpha"])
        errors.append(naive_error(scores, targets))
        found = entry["error_rate" if "error_rate" in entry else "relative_error"]
        assert found == pytest.approx(errors[-1], rel=1e-8)
    best = min(range(len(path)), key=lambda place: (errors[place], -path[place]["alpha"]))
    chosen = {name: path[best][name] for name in Ridge._fields}
    assert run.stages["validation"]["chosen"] == chosen
    assert describe_tuning(run)["chosen"]["penalty"] == chosen["penalty"]
    model = Model.load(run.location)
    assert Ridge.in_params(model.params)._asdict() == chosen
    alone = fit(X, targets, replace(run.chosen_params, n_parts=2))
    expected = Model.load(alone.location)
    np.testing.assert_allclose(model.weights, expected.weights, rtol=1e-6, atol=1e-9)
    for name in ("fitting_error", "spectral_risk", "objective"):
        found = path[best][name]
        assert found == pytest.approx(alone.stages["weights"][name], rel=1e-7)
        assert run.stages["weights"][name] == pytest.approx(found, rel=1e-12)


def test_solve_all__same_bits_however_many_run_side_by_side():
    rng = np.random.default_rng(0)
    Phi, y = rng.random((900, 300)), np.arange(900) % 3
    moments = Moments.from_block(Phi, ClassTargets(3).bordered(y))
    system, found = RidgeSystem.of(moments, ClassTargets(3), normalized=True), []
    for threads in (1, 2, 3):
        with task_threads(threads):
            solved, conditions = solve_all(
                system,
                np.arange(300) != 7,
                tried=[Ridge("weights", alpha) for alpha in ALPHAS],
                terms=RidgeTerms(features=lambda: None, shares=lambda: None),
                each=each_system(300),
            )
        found.append((solved.weights.tobytes(), conditions))
    assert found[0] == found[1] == found[2]
    assert all(found[0][1])
