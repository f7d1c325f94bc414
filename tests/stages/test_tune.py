"""Tuning: what is tried, how it is judged, and what becomes of it when it is interrupted."""

from dataclasses import replace

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn.commands.describe import describe_tuning
from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.calibration import Calibration
from dask_nrbfn.numeric.folds import folds_of_rows
from dask_nrbfn.numeric.held_out import softmax
from dask_nrbfn.numeric.penalties import Ridge
from dask_nrbfn.numeric.reliability import expected_calibration_error, reliability_of_rows
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages.basis import given_basis
from dask_nrbfn.storage.model import Model
from tests.reference import (
    fitted_ones,
    reference_activations,
    reference_distances,
    reference_ridge,
)
from tests.stages.fits import fit_table
from tests.stages.stopping import CountingEngine
from tests.tables import spirals, write_table

# Penalties at which the weights do not amplify the order of the sums.
ALPHAS = (0.1, 1e-2, 1e-4)
PARAMS = FitParams(basis="random", basis_size=30)
ONE = TuneParams(
    effort="quick", folds=3, alphas=ALPHAS, width_factors=(0.3,), features=("normalized",)
)
TWO = replace(ONE, width_factors=(1.0, 0.3), search_basis=10)


def tune(X, y, params=PARAMS, tuning=ONE, *, validation=None, **options):
    return fit_table(X, y, params, tuning=tuning, of_fit={"validation": validation}, **options)


def naive_scores(X, y, basis, rows, *, factor, alpha, folds):
    """Return the scores of every row by the rows and basis rows of the other folds."""
    width = factor * reference_distances(X, basis).mean()
    Phi, F = reference_activations(X, basis, width), np.eye(y.max() + 1)[y]
    scores = np.empty(F.shape)
    for fold in np.unique(folds):
        held_out, kept = folds == fold, folds[rows] != fold
        own, judged = Phi[~held_out][:, kept], Phi[held_out][:, kept]
        W, _ = reference_ridge(own, F[~held_out], alpha)
        scores[held_out] = judged / fitted_ones(own, judged, alpha) @ W
    return scores


def naive_log_loss(scores, y, temperature):
    probabilities = softmax(scores / temperature, scores)
    return -np.mean(np.log(probabilities[np.arange(len(y)), y]))


def test_validation__equals_a_recomputation():
    (X, y), seed = spirals(160), 3
    run = tune(X, y, replace(PARAMS, n_parts=3, random_state=seed), chunk_rows=37)
    folds = folds_of_rows(0, 160, n_folds=3, seed=seed)
    basis, record = run.read("basis/values"), run.stages["validation"]
    found = {}
    for entry in record["path"]:
        scores = naive_scores(
            X, y, basis, run.read("basis/rows"), factor=0.3, alpha=entry["alpha"], folds=folds
        )
        found[entry["alpha"]] = scores
        labels = scores.argmax(axis=1)
        assert entry["error_rate"] == pytest.approx(np.mean(labels != y), abs=1e-12)
        if entry["alpha"] == record["chosen"]["alpha"]:
            expected = np.zeros((3, 3))
            np.add.at(expected, (y, labels), 1)
            np.testing.assert_array_equal(run.read("validation/confusion"), expected)
        loss = naive_log_loss(scores, y, entry["temperature"])
        assert entry["log_loss"] == pytest.approx(loss, rel=3e-4)
        for factor in (0.8, 1.25):
            assert loss < naive_log_loss(scores, y, factor * entry["temperature"])
    fewest = min(entry["error_rate"] for entry in record["path"])
    best = next(entry for entry in record["path"] if entry["error_rate"] == fewest)
    kept = {"penalty": "weights", "locality": 0.0, "components": None}
    assert record["chosen"] == kept | {"alpha": best["alpha"]}
    model = Model.load(run.location)
    assert model.params.alpha == best["alpha"]
    assert model.calibration == Calibration.of(record)
    wrong = found[best["alpha"]].argmax(axis=1) != y
    of_folds = [wrong[folds == fold].mean() for fold in range(3)]
    assert record["fold_deviation"] == pytest.approx(np.std(of_folds), abs=1e-12)
    probabilities = model.probabilities(found[best["alpha"]])
    losses = -np.log(probabilities[np.arange(160), y])
    assert record["log_loss"] == pytest.approx(losses.mean(), rel=1e-6)
    assert record["log_loss"] < best["log_loss"]
    Phi, F = reference_activations(X, basis, model.width), np.eye(3)[y]
    expected, _ = reference_ridge(Phi, F, best["alpha"])
    np.testing.assert_allclose(model.weights, expected.T, rtol=1e-6, atol=1e-8)


def trial_scores(X, y, basis, folds, *, factor, alpha):
    """Return the scores of every row by the rows and basis rows outside its fold."""
    scores, F = np.empty((len(y), 3)), np.eye(3)[y]
    for fold in range(5):
        held_out, kept = folds == fold, basis[folds[basis] != fold]
        width = factor * reference_distances(X, X[kept]).mean()
        Phi = reference_activations(X, X[kept], width)
        scores[held_out] = Phi[held_out] @ reference_ridge(Phi[~held_out], F[~held_out], alpha)[0]
    return scores


def test_search__equals_a_recomputation():
    X, y = spirals(160)
    run = tune(X, y, tuning=TWO, chunk_rows=37)
    record = run.stages["search"]
    assert (record["n_rows"], record["n_basis"]) == (160, 10)
    # A fifth of the rows in drawn order is held out at a time; basis rows are of all folds.
    order, folds = np.random.default_rng([0, 1]).permutation(160), np.empty(160, dtype=int)
    folds[order] = np.repeat(np.arange(5), 32)
    basis = order.reshape(5, 32).T.ravel()[:10]
    for entry, factor in zip(record["tried"], (1.0, 0.3), strict=True):
        assert entry["width_factor"] == factor
        scores = [trial_scores(X, y, basis, folds, factor=factor, alpha=each) for each in ALPHAS]
        losses = [np.mean(np.sum((each - np.eye(3)[y]) ** 2, axis=1)) for each in scores]
        place = int(np.argmin(losses))
        assert entry["brier_score"] == pytest.approx(losses[place], rel=1e-4)
        assert entry["alpha"] == ALPHAS[place]
        assert entry["error_rate"] == pytest.approx(np.mean(scores[place].argmax(axis=1) != y))
    best = min(record["tried"], key=lambda entry: entry["brier_score"])
    assert (
        record["chosen"]["width_factor"] == run.chosen_params.width_factor == best["width_factor"]
    )
    width = run.chosen_params.width_factor * run.stages["width"]["mean_distance"]
    assert run.stages["width"]["width"] == pytest.approx(width)


def judged_by(X, y, X_new, y_new, params=PARAMS, tuning=ONE, **options):
    judged = write_table(MemoryStore(), X_new, y_new, **options)
    return tune(X, y, params, tuning, validation=judged)


def test_validation_dataset__of_some_of_the_labels_equals_a_recomputation():
    (X, y), (X_new, y_new) = spirals(160), spirals(70, seed=1)
    # In a dataset without the label "a" the codes are others.
    X_new, y_new, names = X_new[y_new > 0], y_new[y_new > 0], np.array(["a", "b", "c"])
    params = replace(PARAMS, n_parts=3)
    run = judged_by(X, names[y], X_new, names[y_new], params, chunk_rows=33)
    assert run.spec.n_folds == 1
    basis = run.read("basis/values")
    width = 0.3 * reference_distances(X, basis).mean()
    Phi, judged = (reference_activations(rows, basis, width) for rows in (X, X_new))
    for entry in run.stages["validation"]["path"]:
        scores = judged @ reference_ridge(Phi, np.eye(3)[y], entry["alpha"])[0]
        assert entry["error_rate"] == pytest.approx(np.mean(scores.argmax(axis=1) != y_new))
        loss = naive_log_loss(scores, y_new, entry["temperature"])
        assert entry["log_loss"] == pytest.approx(loss, rel=1e-2)
    counts = run.read("validation/confusion").sum(axis=1)
    assert counts.tolist() == np.bincount(y_new, minlength=3).tolist()


def test_validation_dataset__that_cannot_be_used():
    X, y = spirals(60)
    tables = [
        (X, np.where(y == 2, 7, y), "label 7 of .* is not a training label"),
        (X, y.astype(str), "label '0' of .* is not a training label"),
        (X[:, :3], y, "X has 3 columns, but .* 4"),
        (X, None, "has no labels"),
    ]
    for X_new, y_new, pattern in tables:
        judged, place = write_table(MemoryStore(), X_new, y_new), MemoryStore()
        with pytest.raises(DataError, match=pattern):
            tune(X, y, place=place, engine=CountingEngine(0), validation=judged)
        assert not place._store_dict


def with_a_useless_row(X):
    """Return a basis with a row that no row of X activates, which makes a column of zeros."""
    return np.concatenate([X[:20], np.full((1, 4), 1e6)])


def test_singular__penalties_are_passed_over():
    X, y = spirals(120)
    basis = with_a_useless_row(X)
    params = given_basis(FitParams(), basis)
    tuning = replace(ONE, alphas=(0.0, 1e-3, 0.0), width_factors=(1e-4, 2e-4), search_basis=21)
    dataset = write_table(MemoryStore(), X, y)
    run = fit_dataset(dataset, MemoryStore(), params, InlineEngine(), tuning=tuning, basis=basis)
    path = describe_tuning(run)["path"]
    for entry in (path[0], path[2]):
        figures = {value for name, value in entry.items() if name not in Ridge._fields}
        assert figures == {None}
    assert 0 <= path[1]["error_rate"] < 1
    assert path[1]["spectral_risk"] > 0
    assert run.chosen_params.alpha == 1e-3
    assert np.isfinite(Model.load(run.location).weights).all()


def test_tune__a_class_of_two_rows_and_folds_without_rows():
    X, y = spirals(20)
    y[[3, 15]] = 9
    run = tune(X, y, replace(PARAMS, basis_size=8, n_parts=2), replace(ONE, folds=10))
    assert run.read("validation/confusion").sum() == 20
    assert len(np.unique(folds_of_rows(0, 20, n_folds=10, seed=0))) < 10
    assert Model.load(run.location).classes.tolist() == [0, 1, 2, 9]


def test_tune__more_folds_than_half_the_rows():
    X, y = spirals(41)
    with pytest.raises(ParameterError, match=r"folds is 21, .* at most 20"):
        tune(X, y, tuning=replace(ONE, folds=21))
    with pytest.raises(ParameterError, match="folds is 1000000000000"):
        tune(X, y, tuning=replace(ONE, folds=10**12))


def test_tune__the_mean_probability_of_new_rows_is_the_share_of_their_class():
    def rows(n_rows, seed):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(n_rows, 6))
        odds = np.exp(1.2 * X[:, 0] + np.sin(2 * X[:, 1]) - 2.3)
        return X, (rng.random(n_rows) < odds / (1 + odds)).astype(int)

    params = replace(PARAMS, basis_size=128)
    run = tune(*rows(3400, 0), params, replace(ONE, folds=2, alphas=(1e-3,)))
    (X, y), model = rows(20_000, 1), Model.load(run.location)
    probabilities = model.probabilities(model.scores(X))
    bound = 2 * np.sqrt(y.var() / 3400)
    assert probabilities[:, 1].mean() == pytest.approx(y.mean(), abs=bound)
    error = expected_calibration_error(reliability_of_rows(probabilities, y, np.ones(len(y))))
    recorded = run.stages["validation"]["expected_calibration_error"]
    assert error == pytest.approx(recorded, abs=0.02)
