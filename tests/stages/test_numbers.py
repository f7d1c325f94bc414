"""Networks whose targets are numbers."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error
from zarr.storage import MemoryStore

from dask_nrbfn.commands.describe import describe, describe_tuning
from dask_nrbfn.commands.evaluate import evaluate_dataset
from dask_nrbfn.commands.fit import fit_dataset, tune_dataset
from dask_nrbfn.commands.ingest import ingest_arrays
from dask_nrbfn.commands.predict import predict_dataset
from dask_nrbfn.commands.refresh import refresh_run
from dask_nrbfn.commands.update import (
    merge_runs,
    update_run,
)
from dask_nrbfn.commands.version import read_latest_moments
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.folds import folds_of_rows
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages.basis import given_basis
from dask_nrbfn.storage.array import get_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import open_group
from dask_nrbfn.storage.model import Model
from tests.reference import reference_activations, reference_distances
from tests.sites import write_site
from tests.tables import spirals

PARAMS = FitParams(basis="kmeans", basis_size=30, features="plain", scale="standard", alpha=1e-6)


def diabetes(n_targets=2):
    X, y = load_diabetes(return_X_y=True)
    return X, np.column_stack([y, 500.0 + 3.0 * X[:, 2] - y / 7.0])[:, :n_targets]


def table_of(X, T, place=None, **options):
    return ingest_arrays(X, None, MemoryStore() if place is None else place, target=T, **options)


def fit(X, T, params=PARAMS, *, chunk_rows=61, weights=None, **options):
    dataset = table_of(X, T, chunk_rows=chunk_rows, weights=weights)
    run = fit_dataset(dataset, MemoryStore(), params, InlineEngine(), **options)
    return Model.load(run.location)


def naive_predictions(model, X, T, *, weights=None, alpha=PARAMS.alpha, rows=None):
    """Return the predictions for `rows` of the least squares that are written out."""
    weights = np.ones(len(X)) if weights is None else weights
    Phi, target = (model.features.activations(rows) for rows in (X, X if rows is None else rows))
    centred = model.params.features == "plain"
    m = np.average(Phi, axis=0, weights=weights) if centred else 0.0
    tbar = np.average(T, axis=0, weights=weights)
    A = Phi - m
    gram = A.T @ (weights[:, None] * A)
    penalty = alpha * np.trace(gram) * np.eye(len(gram))
    W = np.linalg.solve(gram + penalty, A.T @ (weights[:, None] * (T - tbar)))
    return tbar + (target - m) @ W


@pytest.mark.parametrize("features", ["plain", "normalized"])
@pytest.mark.parametrize("weighted", [False, True])
def test_fit__is_the_least_squares_written_out(features, weighted):
    X, T = diabetes()
    weights = np.random.default_rng(0).uniform(0.5, 3.0, len(X)) if weighted else None
    model = fit(X, T, replace(PARAMS, features=features), weights=weights)
    expected = naive_predictions(model, X, T, weights=weights)
    np.testing.assert_allclose(model.scores(X), expected, rtol=1e-6)
    assert (model.target_names, len(model.classes)) == (("target_0", "target_1"), 0)


def test_fit__activations_are_those_of_the_paper():
    X, T = diabetes(1)
    basis = X[::15]
    params = given_basis(FitParams(features="plain", alpha=1e-6), basis)
    model = fit(X, T, params, basis=basis)
    width = reference_distances(X, basis).mean()
    assert model.width == pytest.approx(width, rel=1e-9)
    normalized = reference_activations(X, basis, width)
    Phi = np.exp(-(reference_distances(X, basis) ** 2) / (2 * width**2))
    np.testing.assert_allclose(Phi / Phi.sum(axis=1, keepdims=True), normalized, rtol=1e-9)
    np.testing.assert_allclose(model.features.activations(X), Phi, rtol=1e-9)


def test_tune__figures_are_those_of_rows_held_out():
    X, T = diabetes()
    dataset, tuning = (
        table_of(X, T),
        TuneParams(
            effort="quick", folds=3, alphas=(1e-2, 1e-4), width_factors=(1.0,), features=("plain",)
        ),
    )
    run = tune_dataset(dataset, MemoryStore(), PARAMS, tuning, InlineEngine())
    model, folds = Model.load(run.location), folds_of_rows(0, len(X), n_folds=3, seed=0)
    for entry in describe_tuning(run)["path"]:
        predicted = np.empty_like(T)
        for fold in range(3):
            held = folds == fold
            predicted[held] = naive_predictions(
                model, X[~held], T[~held], alpha=entry["alpha"], rows=X[held]
            )
        options = {"multioutput": "raw_values"}
        np.testing.assert_allclose(entry["r2"], r2_score(T, predicted, **options), rtol=1e-6)
        found = root_mean_squared_error(T, predicted, **options)
        np.testing.assert_allclose(entry["rmse"], found, rtol=1e-6)
        found = mean_absolute_error(T, predicted, **options)
        np.testing.assert_allclose(entry["mae"], found, rtol=1e-6)
        if entry["alpha"] == run.chosen_params.alpha:
            errors = np.mean((T - predicted) ** 2 / T.var(axis=0), axis=1)
            of_folds = [errors[folds == fold].mean() for fold in range(3)]
            deviation = describe(run.location)["fold_deviation"]
            assert deviation == pytest.approx(np.std(of_folds), rel=1e-6)
    path = describe_tuning(run)["path"]
    best = min(path, key=lambda entry: entry["relative_error"])
    assert run.chosen_params.alpha == best["alpha"]
    assert describe(run.location)["r2"] == best["r2"]


def test_tune__on_a_validation_dataset_and_over_features():
    X, T = diabetes()
    judged = table_of(X[300:], T[300:])
    tuning = TuneParams(effort="quick", alphas=(1e-3, 1e-6), width_factors=(0.5, 1.0))
    run = tune_dataset(
        table_of(X[:300], T[:300]), MemoryStore(), PARAMS, tuning, InlineEngine(), validation=judged
    )
    chosen = describe_tuning(run)
    assert len(chosen["tried"]) == 4
    scores = Model.load(run.location).scores(X[300:])
    found = r2_score(T[300:], scores, multioutput="raw_values")
    np.testing.assert_allclose(chosen["chosen"]["r2"], found, rtol=1e-9)
    assert chosen["chosen"]["fold_deviation"] is None


def test_evaluate_and_predict(tmp_path):
    X, T = diabetes()
    run = fit_dataset(table_of(X, T), tmp_path / "run", PARAMS, InlineEngine())
    scores = Model.load(run.location).scores(X)
    evaluation = evaluate_dataset(run.location, table_of(X, T, chunk_rows=50), InlineEngine())
    np.testing.assert_allclose(evaluation.r2, r2_score(T, scores, multioutput="raw_values"))
    rmse = root_mean_squared_error(T, scores, multioutput="raw_values")
    np.testing.assert_allclose(evaluation.rmse, rmse)
    predict_dataset(run.location, table_of(X, None), tmp_path / "out", InlineEngine())
    found = get_array(open_group(tmp_path / "out", kind="predictions"), "values")[...]
    np.testing.assert_allclose(found, scores, rtol=1e-12)
    assert describe(tmp_path / "out") == {
        "kind": "predictions", "n_rows": len(X), "target_names": ["target_0", "target_1"],
    }  # fmt: skip
    predict_dataset(run.location, table_of(X, None), tmp_path / "out.csv", InlineEngine())
    csv = np.genfromtxt(tmp_path / "out.csv", delimiter=",", names=True)
    assert csv.dtype.names == ("target_0", "target_1")
    np.testing.assert_allclose(csv["target_1"], scores[:, 1], rtol=1e-12)


@pytest.fixture
def slices(tmp_path):
    """Four datasets of one table, and one of all rows but the third's."""
    X, T = diabetes()
    parts = np.array_split(np.arange(len(X)), 4)
    datasets = [
        table_of(X[rows], T[rows], tmp_path / f"part{number}") for number, rows in enumerate(parts)
    ]
    kept = np.concatenate([parts[0], parts[1], parts[3]])
    return datasets, (X[kept], T[kept])


def assert_one_fit(location, X, T):
    """Assert that a run is as if these rows had been fitted at once with its basis and width."""
    model = Model.load(location)
    expected = naive_predictions(model, X, T)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(model.scores(X), expected, rtol=0, atol=1e-10 * scale)
    moments = read_latest_moments(location)
    assert moments.total_weight == pytest.approx(len(X), rel=1e-12)


@pytest.mark.slow
def test_update__joins_and_leaves_as_one_fit(tmp_path, slices):
    datasets, (X, T) = slices
    place, engine = tmp_path / "run", InlineEngine()
    fit_dataset(datasets[0], place, PARAMS, engine)
    for dataset in datasets[1:]:
        record = update_run(place, dataset, engine)
    assert record["new_error"] > 0
    record = update_run(place, datasets[2], engine, forget=True)
    assert record["n_rows"] == datasets[2].n_rows
    assert_one_fit(place, X, T)


def test_merge__of_a_site_is_one_fit(tmp_path, slices):
    datasets, (X, T) = slices
    place, engine = tmp_path / "run", InlineEngine()
    run = fit_dataset(datasets[0], place, PARAMS, engine)
    site = write_site(run, tmp_path / "site", datasets[0], datasets[1], datasets[3])
    merge_runs(place, site.location, engine)
    assert_one_fit(place, X, T)


def test_refresh__of_joined_rows_is_a_fit_to_all(tmp_path, slices):
    datasets, _ = slices
    engine = InlineEngine()
    fit_dataset(datasets[0], tmp_path / "run", PARAMS, engine)
    update_run(tmp_path / "run", datasets[1], engine)
    refresh_run(tmp_path / "run", [], engine)
    X, T = diabetes()
    n_rows = datasets[0].n_rows + datasets[1].n_rows
    assert_one_fit(tmp_path / "run", X[:n_rows], T[:n_rows])


@pytest.mark.parametrize("n_targets", [1, 2])
def test_forget__targets_that_were_never_there(tmp_path, n_targets):
    X, T = diabetes(n_targets)
    run = fit_dataset(table_of(X, T), tmp_path / "run", PARAMS, InlineEngine())
    with pytest.raises(DataError, match="cannot all be in the run"):
        update_run(run.location, table_of(X[:50], T[:50] + 1e5), InlineEngine(), forget=True)
    assert describe(run.location)["version"] == 0


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("outlier", [0, 5])
def test_forget__of_a_mistyped_target(tmp_path, outlier):
    X, T = diabetes(1)
    wrong = T.copy()
    wrong[outlier] = 1e9
    place = tmp_path / "run"
    fit_dataset(table_of(X, wrong), place, PARAMS, InlineEngine())
    row = slice(outlier, outlier + 1)
    update_run(place, table_of(X[row], wrong[row]), InlineEngine(), forget=True)
    rest = np.arange(len(X)) != outlier
    model = Model.load(place)
    expected = naive_predictions(model, X[rest], T[rest])
    np.testing.assert_allclose(model.scores(X[rest]), expected, rtol=0, atol=0.01 * T.std())


def test_refresh__with_targets_of_another_kind_is_refused(tmp_path, slices):
    datasets, _ = slices
    X, T = diabetes()
    place, engine = tmp_path / "run", InlineEngine()
    fit_dataset(datasets[0], place, PARAMS, engine)
    labelled = ingest_arrays(X, np.arange(len(X)) % 2, tmp_path / "labelled")
    swapped = pd.DataFrame(T, columns=["target_1", "target_0"])
    for dataset in (labelled, table_of(X, swapped, tmp_path / "swapped")):
        with pytest.raises(DataError, match="the network predicts target_0, target_1"):
            refresh_run(place, [dataset], engine)
    assert Model.load(place).target_names == ("target_0", "target_1")


def test_ingest__targets_too_large_to_be_squared():
    X, T = diabetes(1)
    T[7] = -1e200
    with pytest.raises(DataError, match=r"target has -1e\+200 in row 7"):
        table_of(X, T)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"basis": "sknn"}, "basis=sknn needs class labels"),
        ({"class_weight": "balanced"}, "class_weight is balanced"),
        ({"basis_size": 443}, "basis_size is 443.*1 to 442"),
    ],
)
def test_fit__what_only_classes_have_is_refused(changes, words):
    X, T = diabetes()
    with pytest.raises(ParameterError, match=words):
        fit(X, T, replace(PARAMS, **changes))


def test_targets__of_another_kind_are_refused(tmp_path):
    X, T = diabetes()
    engine, numbers = InlineEngine(), table_of(X, T)
    labelled = ingest_arrays(X, np.arange(len(X)) % 2, MemoryStore())
    run = fit_dataset(numbers, tmp_path / "run", PARAMS, engine)
    classifier = fit_dataset(
        labelled, MemoryStore(), FitParams(basis="random", basis_size=5), engine
    )
    for location, dataset in ((run.location, labelled), (classifier.location, numbers)):
        with pytest.raises(DataError, match=r"targets of .* are labels|has numeric targets"):
            evaluate_dataset(location, dataset, engine)
    with pytest.raises(
        DataError, match=r"targets of .* are target, but the network predicts target_0"
    ):
        update_run(run.location, table_of(X, T[:, 0]), engine)
    with pytest.raises(DataError, match="are labels"):
        tune_dataset(numbers, MemoryStore(), PARAMS, TuneParams(), engine, validation=labelled)
    assert Dataset.open(labelled.location).n_targets == 2


def test_fit__of_numbers_without_any_choice():
    X, T = diabetes()
    model = fit(X, T, FitParams(alpha=1e-4, scale="standard"))
    assert len(model.basis) == len(X) // 4
    assert r2_score(T, model.scores(X)) > 0.5


def test_fit__of_a_constant_target():
    X, _ = spirals(80)
    model = fit(X, np.full(80, 3.5), replace(PARAMS, basis_size=10))
    np.testing.assert_array_equal(model.scores(X), 3.5)
    assert (model.fitting_error, model.spectral_risk) == (1.0, 1.0)
