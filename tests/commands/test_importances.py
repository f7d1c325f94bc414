"""Importances of columns, next to those that numpy computes from predictions of permuted tables."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from zarr.storage import MemoryStore

from dask_nrbfn import (
    FitParams,
    InlineEngine,
    Model,
    evaluate_dataset,
    fit_dataset,
    permutation_importances,
)
from dask_nrbfn.commands import evaluate as evaluate_module
from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.report.page import write_report
from tests.schemas import COLUMNS, FILLED, stored_rows, write_rows
from tests.tables import spirals, surfaces, write_table

ENGINE = InlineEngine()
PARAMS = FitParams(basis="random", basis_size=20, alpha=1e-6, scale="standard")
NAMES = np.array(["no", "so", "yes"])


def fit(dataset, **params):
    return fit_dataset(dataset, MemoryStore(), replace(PARAMS, **params), ENGINE).location


def drawn_of(n_rows, n_drawn):
    return np.sort(np.random.default_rng(0).choice(n_rows, n_drawn, False, shuffle=False))


def orders_of(n_known, n_drawn):
    random = np.random.default_rng((0, n_drawn))
    return [random.permutation(n_known) for _ in range(3)]


def expected_of(losses, table, expand, n_drawn, weights):
    """Return the increases of mean losses (m, n), and the standard error of the last, by column."""
    before, found = losses(expand(table)), []
    for column in range(table.shape[1]):
        rises = np.zeros_like(before)
        for order in orders_of(len(table), n_drawn):
            changed = table.copy()
            changed[:, column] = table[order, column]
            rises += (losses(expand(changed)) - before) / 3
        means = np.average(rises, axis=1, weights=weights)
        spread = np.sum(weights**2 * (rises[-1] - means[-1]) ** 2)
        found.append([*means, np.sqrt(spread) / weights.sum()])
    return np.array(found)


@pytest.fixture(scope="module")
def table():
    stored = stored_rows(150)
    y = (np.nan_to_num(stored[:, 0]) + stored[:, 4] > 0).astype(int) + (stored[:, 2] == 1)
    return stored, y, fit(write_rows(MemoryStore(), stored, NAMES[y]))


@pytest.mark.parametrize("n_workers", [1, 4])
def test_importances__of_categories_dates_and_gaps(table, n_workers):
    run, model = table[2], Model.load(table[2])
    new = stored_rows(130, seed=1)
    y = (np.nan_to_num(new[:, 0]) + new[:, 4] > 0).astype(int) + (new[:, 2] == 1)
    # Rows without a label are not drawn, and rows with an unknown label are left out.
    labels = np.where(np.arange(130) % 10 == 3, "", np.where(np.arange(130) < 7, "gnu", NAMES[y]))
    dataset = write_rows(MemoryStore(), new, labels, unlabelled="")
    engine = InlineEngine(n_workers=n_workers)
    found = permutation_importances(run, dataset, engine, n_rows=90)
    labelled = np.flatnonzero(labels != "")
    drawn = labelled[drawn_of(len(labelled), 90)]
    kept = drawn[labels[drawn] != "gnu"]
    assert len(kept) < 90

    def losses(features):
        scores = model.scores(features)
        shares = model.probabilities(scores)
        squares = np.square(shares - (NAMES[y[kept]][:, None] == NAMES)).sum(axis=1)
        return np.stack([scores.argmax(axis=1) != y[kept], squares]).astype(float)

    expected = expected_of(losses, new[kept], FILLED.expand, 90, np.ones(len(kept)))
    assert [each["column"] for each in found] == [
        COLUMNS[place].name for place in np.argsort(-expected[:, 1])
    ]
    by_column = pd.DataFrame(found).set_index("column").loc[[each.name for each in COLUMNS]]
    assert [*by_column] == ["error_rate", "brier_score", "standard_error"]
    np.testing.assert_allclose(by_column, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("clip", [True, False])
def test_importances__of_numbers_with_weights(clip):
    X, Y = surfaces(200)
    run = fit(write_table(MemoryStore(), X, target=Y), features="plain")
    new, targets = surfaces(150, seed=1)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, 150)
    new *= 1.5
    dataset = write_table(MemoryStore(), new, target=targets, weights=weights, chunk_rows=40)
    found = permutation_importances(run, dataset, ENGINE, clip=clip)
    model = Model.load(run)
    mean = np.average(targets, axis=0, weights=weights)
    variance = np.average((targets - mean) ** 2, axis=0, weights=weights)
    low, high = (Y.min(axis=0), Y.max(axis=0)) if clip else (-np.inf, np.inf)

    def losses(features):
        values = model.scores(features).clip(low, high)
        return ((values - targets) ** 2 / variance).mean(axis=1)[None]

    expected = expected_of(losses, new, np.asarray, 150, weights)
    by_column = pd.DataFrame(found).set_index("column").sort_index()
    assert [*by_column.index] == ["column 0", "column 1", "column 2"]
    np.testing.assert_allclose(by_column, expected, rtol=1e-8, atol=1e-12)
    # The sum is that of the evaluation.
    assert evaluate_dataset(run, dataset, ENGINE, clip=clip).relative_error == pytest.approx(
        float(np.average(losses(new)[0], weights=weights))
    )


def test_importances__of_cells_and_of_sparse_rows():
    X, y = spirals(200)
    run = fit(write_table(MemoryStore(), X, y), cells=3, features="plain")
    found = permutation_importances(run, write_table(MemoryStore(), X, y), ENGINE)
    assert {each["column"] for each in found[:2]} == {"column 0", "column 1"}
    assert found[1]["brier_score"] > 10 * abs(found[2]["brier_score"])
    X = np.where(np.abs(X) > 0.5, X, 0.0)
    datasets = [write_table(MemoryStore(), rows, y) for rows in (X, sp.csr_array(X))]
    assert datasets[1].is_sparse
    run = fit(datasets[1], scale="none")
    dense, sparse = (permutation_importances(run, each, ENGINE) for each in datasets)
    pd.testing.assert_frame_equal(*map(pd.DataFrame, (dense, sparse)), rtol=1e-6, atol=1e-9)


def test_importances__seeds_and_sizes(table, monkeypatch):
    dataset = write_rows(MemoryStore(), table[0], NAMES[table[1]])
    found = permutation_importances(table[2], dataset, ENGINE)
    assert permutation_importances(table[2], dataset, ENGINE, random_state=1) != found
    assert evaluate_dataset(table[2], dataset, ENGINE).importances == []
    assert evaluate_dataset(table[2], dataset, ENGINE, importance=True).importances == found
    # As many rows as 3 permutations of 6 columns score 360 rows.
    monkeypatch.setattr(evaluate_module, "_MOST_SCORED", 360)
    few = permutation_importances(table[2], dataset, ENGINE)
    assert few == permutation_importances(table[2], dataset, ENGINE, n_rows=20) != found
    monkeypatch.setattr(evaluate_module, "MOST_PERMUTED", 5)
    with pytest.raises(ParameterError, match="has 6 columns, and importances take up to 5"):
        permutation_importances(table[2], dataset, ENGINE)


def test_importances__no_known_label_is_drawn(table):
    labels = np.where(np.arange(150) == 0, "yes", "gnu")
    dataset = write_rows(MemoryStore(), table[0], labels)
    with pytest.raises(DataError, match="the model knows no drawn label"):
        permutation_importances(table[2], dataset, ENGINE, n_rows=5)


def test_importances__are_on_the_page(tmp_path, table):
    dataset = write_rows(MemoryStore(), table[0], NAMES[table[1]])
    run = fit_dataset(dataset, tmp_path / "run", PARAMS, ENGINE)
    evaluation = evaluate_dataset(run.location, dataset, ENGINE, importance=True)
    write_report(run, tmp_path / "page.html", evaluation=evaluation)
    page = (tmp_path / "page.html").read_text()
    assert "Columns that matter" in page
    first = evaluation.importances[0]
    cells = (first["column"], f"{100 * first['error_rate']:.2f} %", f"{first['brier_score']:.4g}")
    start = page.index("Columns that matter")
    assert start < page.index(cells[0], start) < page.index(cells[1], start)
    assert f">{cells[2]}<" in page
