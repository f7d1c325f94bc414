"""Networks of other losses than the squared one, and their tuning on held-out rows."""

import logging
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from zarr.storage import MemoryStore

from dask_nrbfn.choices import LOSSES
from dask_nrbfn.commands.evaluate import evaluate_dataset
from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.calibration import Calibration
from dask_nrbfn.numeric.descent import LossSums, Point, Preconditioner, next_weights
from dask_nrbfn.numeric.folds import folds_of_numbers, folds_of_rows
from dask_nrbfn.numeric.losses import loss_named
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages import refine
from dask_nrbfn.stages.moments import read_features
from dask_nrbfn.stages.refine import REFINE
from dask_nrbfn.storage.model import Model
from tests.numeric.systems import ridge_of, solve_weights
from tests.reference import fitted_ones
from tests.stages.fits import ENGINE, fit_table, overlapping
from tests.tables import write_table

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


def test_fit__says_that_probabilities_of_a_loss_without_tuning_are_not_calibrated(caplog):
    params = replace(PARAMS, loss="hinge")
    fit(*table(), params)
    assert "calibrated" not in caplog.text
    run = fit(*table(), replace(params, alpha="auto"))
    assert run.chosen_params.alpha == 1e-13
    (warning,) = [each for each in caplog.messages if "calibrated" in each]
    assert "alpha is 1e-13 and probabilities are not calibrated. With losses=hinge" in warning


def test_fit__a_loss_that_is_refused_warns_of_no_probabilities_before(caplog):
    X, y = table()
    params = replace(PARAMS, loss="hinge", alpha="auto")
    with pytest.raises(ParameterError, match="cells"):
        fit(X, y, replace(params, cells=2))
    assert not caplog.messages


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


DRAWN = FitParams(basis="random", basis_size=20, n_parts=2)
TUNING = TuneParams(
    effort="quick",
    folds=3,
    alphas=(1e-3,),
    width_factors=(0.3,),
    features=("plain",),
    losses=("logistic",),
)


def tune(X, y, tuning=TUNING, params=DRAWN, **options):
    return fit_table(X, y, params, tuning=tuning, **options)


def naive_scores(run, X, y, n_passes, row_weights):
    """Return the scores of every row by the weights of the other folds, pass after pass."""
    features, rows = read_features(run), run.read("basis/rows")
    n_folds, loss = run.spec.n_folds, loss_named("logistic")
    folds = folds_of_rows(0, len(y), n_folds=n_folds, seed=0)
    Phi, signed = features.activations(X), 2.0 * np.eye(3)[y] - 1.0
    scores = np.empty((n_passes, *signed.shape))
    for fold in range(n_folds):
        others, kept = folds != fold, folds_of_numbers(rows, n_folds=n_folds, seed=0) != fold
        own, weights = np.ascontiguousarray(Phi[others][:, kept]), row_weights[others]
        gram = (own * weights[:, None]).T @ own
        ridge = ridge_of(gram, alpha=1e-3)
        W = solve_weights(gram, (signed[others] * weights[:, None]).T @ own, alpha=1e-3).weights
        preconditioner, points = Preconditioner.of(gram.copy(), ridge, curvature=0.25), []
        judged = Phi[~others][:, kept]
        if features.normalized:
            judged /= fitted_ones(own, judged, 1e-3, weights)
        for number in range(n_passes):
            scores[number, ~others] = judged @ W.T
            sums = LossSums.from_block(
                own, (own @ W.T)[:, None], y[others], loss, row_weights=weights[:, None]
            )
            points.append(Point.of(W, sums.loss[0], sums.gradient[0], ridge))
            W = next_weights(points, preconditioner)
    return scores


@pytest.fixture(scope="module")
def tuned():
    return tune(*table())


def test_judged__equals_a_recomputation():
    X, y = table()
    row_weights = np.random.default_rng(1).uniform(0.5, 2.0, len(y))
    run = tune(X, y, replace(TUNING, features=("normalized",)), weights=row_weights)
    record = REFINE.recorded(run)
    for judged, scores in zip(
        record.path, naive_scores(run, X, y, record.n_passes, row_weights), strict=True
    ):
        wrong = np.average(scores.argmax(axis=1) != y, weights=row_weights)
        assert judged["error_rate"] == pytest.approx(wrong, abs=1e-9)
        below = scores / judged["temperature"]
        below -= below.max(axis=1, keepdims=True)
        losses = np.log(np.exp(below).sum(axis=1)) - below[np.arange(len(y)), y]
        assert judged["log_loss"] == pytest.approx(
            np.average(losses, weights=row_weights), rel=3e-4
        )


@pytest.mark.slow
def test_taken__is_the_pass_that_labels_held_out_rows_best(tuned):
    (X, y), run = table(), tuned
    record, model = REFINE.recorded(run), Model.load(run.location)
    errors = [(each["error_rate"], each["log_loss"]) for each in record.path]
    best = errors.index(min(errors))
    assert record.taken == best + 1
    assert record.stopped in ("validation", "gradient", "objective")
    if record.stopped == "validation":
        assert record.n_passes == best + 1 + refine.PATIENCE
    assert record.error_rate == min(errors)[0]
    assert model.calibration == Calibration.of(vars(record))
    scores = naive_scores(run, X, y, record.n_passes, np.ones(len(y)))[best]
    own = model.probabilities(scores)[np.arange(len(y)), y]
    assert record.log_loss == pytest.approx(-np.log(own).mean(), rel=1e-6)
    assert record.log_loss < min(errors)[1]
    confusion = run.read("refine/confusion")
    assert 1 - np.trace(confusion) / confusion.sum() == pytest.approx(record.error_rate)
    np.testing.assert_array_equal(confusion.sum(axis=1), np.bincount(y))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_losses__steps_that_overflow_are_not_taken(monkeypatch):
    monkeypatch.setattr(refine, "next_weights", lambda points, _: 1e308 * points[0].weights)
    X, y = table(120)
    record = REFINE.recorded(tune(X, y))
    assert record.path[1]["error_rate"] is None
    assert (record.taken, record.stopped) == (1, "validation")


@pytest.mark.slow
def test_validation__a_dataset_of_its_own_is_judged():
    X, y = table(400)
    train, judged = (
        write_table(MemoryStore(), X[rows], y[rows]) for rows in (slice(0, 240), slice(240, 400))
    )
    run = fit_dataset(train, MemoryStore(), DRAWN, ENGINE, tuning=TUNING, validation=judged)
    record = REFINE.recorded(run)
    evaluated = evaluate_dataset(run.location, judged, ENGINE)
    assert record.n_rows == 160
    assert evaluated.error_rate == pytest.approx(record.error_rate)
    assert evaluated.log_loss == pytest.approx(record.log_loss, rel=1e-2)
    np.testing.assert_array_equal(evaluated.confusion, run.read("refine/confusion"))
