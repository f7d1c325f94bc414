"""Fits that choose alpha on held-out rows."""

import tracemalloc
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from sklearn.datasets import load_wine

from dask_nrbfn.numeric.calibration import DrawnRows
from dask_nrbfn.numeric.folds import folds_of_numbers, folds_of_rows
from dask_nrbfn.params import FitParams
from dask_nrbfn.stages import linear, resolve
from dask_nrbfn.stages.moments import read_features
from dask_nrbfn.stages.validation import read_draw
from dask_nrbfn.stages.weights import _solve_first
from tests.numeric.systems import system_of
from tests.reference import reference_ridge
from tests.stages.fits import fit_table, overlapping, write
from tests.tables import spirals

PLAIN = FitParams(basis="random", basis_size=40, features="plain", width_factor=0.3)


@pytest.mark.parametrize(("judged_rows", "n_held_out"), [(10_000, 5), (100, 2)])
def test_chosen__is_best_of_a_recomputation(monkeypatch, judged_rows, n_held_out):
    monkeypatch.setattr(resolve, "_JUDGED_ROWS", judged_rows)
    X, y = overlapping(300, 0.4)
    run = fit_table(X, y, PLAIN, chunk_rows=37)
    folds, rows = folds_of_rows(0, 300, n_folds=5, seed=0), run.read("basis/rows")
    Phi, F = read_features(run).activations(X), np.eye(3)[y]
    wrong = dict.fromkeys([10.0**-power for power in range(1, 14, 2)], 0)
    for alpha, fold in product(wrong, range(n_held_out)):
        out, kept = folds == fold, folds_of_numbers(rows, n_folds=5, seed=0) != fold
        scores = Phi[out][:, kept] @ reference_ridge(Phi[~out][:, kept], F[~out], alpha)[0]
        wrong[alpha] += np.count_nonzero(scores.argmax(axis=1) != y[out])
    record, n_judged = run.stages["validation"], np.count_nonzero(folds < n_held_out)
    assert record["n_rows"] == n_judged
    errors = {each["alpha"]: each["error_rate"] * n_judged for each in record["path"]}
    assert errors == pytest.approx(wrong)
    assert run.chosen_params.alpha == max(wrong, key=lambda alpha: (-wrong[alpha], alpha))


def test_chosen__held_out_rows_that_fit_are_all_drawn_and_weigh_as_their_classes(monkeypatch):
    monkeypatch.setattr(resolve, "_JUDGED_ROWS", 100)
    # Room for 60 rows of a class: for all that are held out, not for all rows.
    monkeypatch.setitem(DrawnRows.of_counts.__func__.__kwdefaults__, "most_scores", 9 * 60)
    X, y = overlapping(300, 0.4)
    run = fit_table(X, y, PLAIN)
    draw, n_judged = read_draw(run, "validation"), run.stages["validation"]["n_rows"]
    assert (
        len(draw.codes)
        == n_judged
        == np.count_nonzero(folds_of_rows(0, 300, n_folds=5, seed=0) < 2)
    )
    shares = np.bincount(draw.codes, draw.weights) / n_judged
    np.testing.assert_allclose(shares, np.bincount(y) / 300)


@pytest.mark.parametrize(
    "options", [{"prune": 9}, {"loss": "hinge"}, {"n_rows": 9}, {"embeds": True}]
)
def test_auto__is_the_alpha_of_the_paper_where_none_is_chosen(options):
    dataset = write(*spirals(options.pop("n_rows", 90)))
    embeds = {"embeds": options.pop("embeds", False)}
    spec = resolve.resolve(dataset, replace(PLAIN, **options), **embeds)
    assert (spec.params.alpha, spec.is_judged) == (1e-13, False)


def test_singular__a_larger_alpha_is_taken():
    alpha, _ = _solve_first(system_of(np.ones((2, 2)), np.ones((1, 2))), [0.0, 1e-17, 0.1])
    assert alpha == 0.1


def test_linear_model__a_fit_says_when_one_is_better(caplog):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, 40))
    y = (X @ rng.standard_normal(40) > 0).astype(np.int64)
    found = fit_table(X, y, FitParams()).stages["validation"]
    assert "A linear model of the same columns does better" in caplog.text
    assert found["linear"] < found["error_rate"] - 0.03
    caplog.clear()
    found = fit_table(X, X @ rng.standard_normal((40, 2)), FitParams()).stages["validation"]
    assert "A linear model of the same columns does better" in caplog.text
    assert found["linear"] < 1e-10 < found["relative_error"]


def test_linear_model__a_fit_is_silent_about_one_that_is_better_by_chance(caplog):
    X, y = load_wine(return_X_y=True)
    found = fit_table(X, y, FitParams(scale="standard")).stages["validation"]
    assert found["linear"] < found["error_rate"]
    assert "linear" not in caplog.text


def test_linear_model__a_fit_is_silent_about_chance_in_few_heavy_rows(caplog):
    rng = np.random.default_rng(14)
    X, y = rng.normal(size=(800, 3)), (rng.random(800) < 0.015).astype(np.int64)
    params = FitParams(class_weight="balanced", basis="random", basis_size=40, random_state=14)
    found = fit_table(X, y, params).stages["validation"]
    assert found["linear"] < found["error_rate"] - 0.05
    assert "linear" not in caplog.text


def test_linear_model__a_fit_with_all_labels_wrong_is_silent_about_one_that_is_as_wrong(caplog):
    rng = np.random.default_rng(1)
    for n_columns in (1, 3):
        found = fit_table(rng.normal(size=(10, n_columns)), np.arange(10), FitParams())
        assert found.stages["validation"]["error_rate"] == 1
    assert "linear" not in caplog.text


@pytest.mark.parametrize(("n_columns", "n_classes"), [(200, 2), (2, 400)])
def test_linear_model__holds_no_more_than_its_cost_says(n_columns, n_classes):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(4000, n_columns)), np.arange(4000) % n_classes
    run = fit_table(X, y, FitParams(basis="random", basis_size=400, alpha=1e-3), chunk_rows=500)
    dataset = write(X, y, chunk_rows=500)
    tracemalloc.start()
    linear._judge_linear(run, dataset, len(X))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= linear.linear_bytes(len(X), n_columns, n_classes) < 2 * peak


def test_linear_model__is_left_out_of_many_chunks_that_one_task_would_read(monkeypatch):
    X, y = load_wine(return_X_y=True)
    monkeypatch.setattr(linear, "_MOST_CHUNKS", 17)
    assert "linear" in fit_table(X, y, FitParams(), chunk_rows=11).stages["validation"]
    assert "linear" not in fit_table(X, y, FitParams(), chunk_rows=10).stages["validation"]
