"""Networks of other losses than the squared one."""

import logging
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from dask_nrbfn import NRBFNClassifier
from dask_nrbfn.choices import LOSSES
from dask_nrbfn.numeric.losses import loss_named
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages import refine
from dask_nrbfn.stages.refine import REFINE
from dask_nrbfn.storage.model import Model
from tests.stages.fits import assert_refused, fit_table, overlapping
from tests.tables import surfaces

PARAMS = FitParams(
    basis="random", basis_size=20, features="plain", width_factor=0.3, alpha=1e-3,
    loss="squared-hinge", n_parts=2,
)  # fmt: skip
REFINED = tuple(name for name in LOSSES if name != "squared")


def table(n_rows=240):
    return overlapping(n_rows, 0.4)


def fit(X, y, params=PARAMS, **options):
    return fit_table(X, y, params, **options)


@pytest.fixture
def to_the_end(monkeypatch):
    """Stop at the least alone."""
    monkeypatch.setattr(refine, "MAX_PASSES", 40)
    monkeypatch.setattr(refine, "LEAST_DECREASE", -np.inf)
    monkeypatch.setattr(refine, "LEAST_GRADIENT", 1e-7)


def naive_objective(Phi, y, name, mu, row_weights=1.0):
    """Return the objective of weights (q, r) and its gradient, written out."""
    signs, loss = np.where(np.eye(y.max() + 1)[y] == 1, 1.0, -1.0), loss_named(name)
    row_weights = np.broadcast_to(row_weights, len(y))[:, None]

    def objective(flat):
        W = flat.reshape(signs.shape[1], Phi.shape[1])
        margins = signs * (Phi @ W.T)
        gradient = (row_weights * signs * loss.slope(margins)).T @ Phi + 2 * mu * W
        value = np.sum(row_weights * loss.value(margins)) + mu * np.sum(W**2)
        return value, gradient.ravel()

    return objective


def naive_optimum(Phi, y, name, alpha, row_weights=1.0):
    mu = alpha * np.sum(np.broadcast_to(row_weights, len(y))[:, None] * Phi**2)
    options = {"maxiter": 20000, "maxfun": 40000, "ftol": 1e-15, "gtol": 1e-9, "maxcor": 50}
    objective = naive_objective(Phi, y, name, mu, row_weights)
    start = np.zeros((y.max() + 1) * Phi.shape[1])
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    return found.fun, found.x.reshape(-1, Phi.shape[1])


@pytest.mark.fast_cases(1)
@pytest.mark.usefixtures("to_the_end")
@pytest.mark.parametrize("loss", REFINED[::-1])
def test_fit__is_the_optimum(loss):
    X, y = table(120)
    features = "normalized" if loss == "logistic" else "plain"
    run = fit(X, y, replace(PARAMS, loss=loss, features=features))
    model, record = Model.load(run.location), REFINE.recorded(run)
    Phi = model.features.activations(X)
    objective, W = naive_optimum(Phi, y, loss, 1e-3)
    assert record.objective == pytest.approx(objective, rel=1e-6)
    atol = 0.02 if loss == "hinge" else 2e-3
    np.testing.assert_allclose(model.scores(X), Phi @ W.T, atol=atol)


@pytest.mark.slow
def test_fit__stops_and_says_why(monkeypatch, caplog):
    (X, y), loss = table(), "hinge"
    with caplog.at_level(logging.INFO, logger="dask_nrbfn"):
        record = REFINE.recorded(fit(X, y, replace(PARAMS, loss=loss)))
    assert (record.loss, record.n_passes) == (loss, len(record.path))
    assert record.objective == min(each["objective"] for each in record.path)
    lines = [line for line in caplog.messages if line.startswith("refine: pass ")]
    assert len(lines) == record.n_passes <= refine.MAX_PASSES
    rules = {"gradient": "LEAST_GRADIENT", "objective": "LEAST_DECREASE", "limit": "MAX_PASSES"}
    assert record.stopped in rules
    for reason, rule in rules.items():
        with monkeypatch.context() as changed:
            for name in rules.values():
                changed.setattr(refine, name, 50 if name == "MAX_PASSES" else -np.inf)
            changed.setattr(refine, rule, {"gradient": 0.3, "objective": 0.05, "limit": 2}[reason])
            record = REFINE.recorded(fit(X, y, replace(PARAMS, loss=loss)))
        assert record.stopped == reason
        gradients = [each["gradient"] / record.path[0]["gradient"] for each in record.path]
        if reason == "gradient":
            assert gradients[-1] <= 0.3 < min(gradients[:-1])
        assert record.n_passes == 2 or reason != "limit"


@pytest.mark.parametrize(("loss", "features"), [("logistic", "plain"), ("hinge", "normalized")])
def test_probabilities__sum_to_one_and_agree_with_the_scores(loss, features):
    X, y = table()
    network = NRBFNClassifier(
        basis="random", basis_size=20, features=features, alpha=1e-3, width_factor=0.3, loss=loss
    ).fit(X, y)
    P, scores = network.predict_proba(X), network.decision_function(X)
    np.testing.assert_allclose(P.sum(axis=1), 1.0, rtol=1e-12)
    assert (P >= 0).all()
    of_best = P[np.arange(len(P)), scores.argmax(axis=1)]
    np.testing.assert_allclose(of_best, P.max(axis=1), rtol=1e-12)
    if loss == "logistic":
        odds = expit(scores)
        np.testing.assert_allclose(P, odds / odds.sum(axis=1, keepdims=True), rtol=1e-12)


@pytest.mark.parametrize("tuning", [None, TuneParams()])
def test_fit__refuses_numbers(tuning):
    params, message = replace(PARAMS, loss="hinge"), "loss is hinge, but the targets are numbers"
    assert_refused(*surfaces(100), params, message, tuning=tuning)
