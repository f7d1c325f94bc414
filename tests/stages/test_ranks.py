"""Scores of ranks in a fit: where they come from, and everything that is done with them."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn import DiffusionMap, NRBFNClassifier, describe, evaluate_dataset, predict_dataset
from dask_nrbfn.commands.describe import describe_cells
from dask_nrbfn.commands.fit import fit_dataset, refresh_run
from dask_nrbfn.commands.update import merge_runs, update_run
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.numeric.ranks import Line
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages import columns
from dask_nrbfn.stages.columns import METRIC, RANKS, read_scaling
from dask_nrbfn.stages.resolve import resolve_tuning
from dask_nrbfn.storage.model import Model
from tests.reference import reference_activations
from tests.sites import write_site
from tests.stages.fits import ENGINE, assert_refused, fit_table
from tests.tables import spirals, write_table

PARAMS = FitParams(
    kernel="gaussian", scale="rank", basis="random", basis_size=30, alpha=1e-6, width_factor=0.4,
    n_parts=3,
)  # fmt: skip


def heavy(n_rows, seed=0):
    """Return spirals in columns with heavy tails."""
    X, y = spirals(n_rows, seed=seed)
    return np.sinh(3 * X), y


def scores_of_ranks(X, drawn):
    """Return the rows with the scores of their ranks among others."""
    lines = [Line.through(column) for column in drawn.T]
    scaled = [np.interp(x, each.knots, each.scores) for x, each in zip(X.T, lines, strict=True)]
    return np.column_stack(scaled)


def test_ranks__the_network_is_that_of_the_scores():
    X, y = heavy(300)
    run = fit_table(X, y, PARAMS)
    model, Z = Model.load(run.location), scores_of_ranks(X, X)
    basis = scores_of_ranks(run.read("basis/values"), X)
    np.testing.assert_allclose(model.basis, basis, rtol=0, atol=1e-12)
    Phi = reference_activations(Z, basis, model.width)
    np.testing.assert_allclose(model.scores(X), Phi @ model.weights.T, rtol=0, atol=1e-8)
    assert RANKS.recorded(run).n_ranked == 4


def test_ranks__are_those_of_a_draw_that_no_chunking_changes(monkeypatch):
    monkeypatch.setattr(columns, "_RANKED_ROWS", 100)
    X, y = heavy(300)
    found = []
    for chunk_rows, n_parts, dtype in (
        (7, 2, np.float64),
        (300, 5, np.float64),
        (64, 1, np.float32),
    ):
        table = X.astype(np.float32).astype(dtype)
        run = fit_table(table, y, replace(PARAMS, n_parts=n_parts), chunk_rows=chunk_rows)
        found.append(read_scaling(run).ranks)
        assert RANKS.recorded(run).n_rows == 100
    first, *others = found
    for each in others:
        np.testing.assert_array_equal(each.knots, first.knots)
        np.testing.assert_array_equal(each.scores, first.scores)
    assert not set(first.knots.ravel()).issuperset(np.float32(X).ravel())


@pytest.mark.slow
def test_ranks__any_workers(tmp_path, two_workers):
    dataset = write_table(tmp_path / "rows", *heavy(300), chunk_rows=50)
    digests = {
        Model.load(fit_dataset(dataset, tmp_path / str(place), PARAMS, engine).location).digest()
        for place, engine in enumerate((InlineEngine(threads=2), two_workers))
    }
    assert len(digests) == 1


def test_ranks__few_values_and_rounding_keep_their_scale():
    rng, n_rows = np.random.default_rng(0), 200
    numbers = np.column_stack(
        [
            np.exp(3 * rng.normal(size=n_rows)),
            rng.integers(0, 3, n_rows),
            np.full(n_rows, 5.0),
            1.0 + np.finfo(np.float64).eps * rng.integers(0, 15, n_rows),
            rng.integers(0, 1000, n_rows),
        ]
    )
    # The deviation of all rows does not tell that the others vary by rounding alone.
    numbers[0, 3] = 0.0
    run = fit_table(numbers, np.arange(n_rows) % 2, replace(PARAMS, basis_size=10))
    assert read_scaling(run).ranks.columns.tolist() == [0, 4]
    # Without a column of many values, ranks are the standard scaling.
    run = fit_table(numbers[:, 1:3], np.arange(n_rows) % 2, replace(PARAMS, basis_size=3))
    assert RANKS.recorded(run).n_ranked == 0
    assert read_scaling(run).ranks is None
    standard = read_scaling(run, "standard")
    np.testing.assert_array_equal(
        read_scaling(run).apply(numbers[:, 1:3]), standard.apply(numbers[:, 1:3])
    )


def test_ranks__of_a_table_are_those_of_numbers_and_dates():
    rng, n_rows = np.random.default_rng(0), 300
    days = pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 300, n_rows), unit="D")
    prices = np.where(rng.random(n_rows) < 0.1, np.nan, np.exp(2 * rng.normal(size=n_rows)))
    table = pd.DataFrame({
        "price": prices, "city": rng.choice(list("abcdefghijklmnop"), n_rows), "day": days,
    })  # fmt: skip
    network = NRBFNClassifier(scale="rank", missing="impute").fit(table, np.isnan(prices))
    model = network._model
    names = {model.feature_names[column] for column in model.scaling.ranks.columns}
    assert names == {"price", "day"}
    # A price that is missing has the rank of the median that fills it.
    line = Line.through(np.where(np.isnan(prices), np.nanmedian(prices), prices))
    np.testing.assert_array_equal(model.scaling.ranks.knots[0][: len(line.knots)], line.knots)


def test_ranks__sparse_rows_are_refused_and_a_tuning_leaves_them_out():
    from scipy.sparse import csr_array

    X, y = heavy(100)
    rows = csr_array(np.where(np.abs(X) > 5, X, 0.0))
    assert_refused(rows, y, PARAMS, "scale.*=rank needs dense rows, but X is sparse")
    standard = replace(PARAMS, scale="standard")
    assert_refused(
        rows, y, standard, "scales.*=rank needs dense", tuning=TuneParams(scales=("rank", "none"))
    )
    for sparse in (False, True):
        scales = resolve_tuning(
            PARAMS.with_checked(scale="none"), TuneParams(), sparse=sparse
        ).scales
        assert ("rank" in scales) != sparse


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    place, (X, y) = tmp_path_factory.mktemp("rows"), heavy(360)
    return [
        write_table(place / str(number), X[part], y[part])
        for number, part in enumerate(np.split(np.arange(360), 3))
    ]


def test_ranks__updates_and_forgetting_keep_the_scores_of_the_fit(tmp_path, rows):
    run = fit_dataset(rows[0], tmp_path / "run", PARAMS, ENGINE)
    before, probe = Model.load(run.location), heavy(50, seed=1)[0]
    update_run(run.location, rows[1], ENGINE)
    after = Model.load(run.location)
    np.testing.assert_array_equal(after.scaling.ranks.knots, before.scaling.ranks.knots)
    Phi = before.features.activations(np.concatenate([table.X[:] for table in rows[:2]]))
    y = np.concatenate([table.y[:] for table in rows[:2]])
    gram = Phi.T @ Phi
    gram[np.diag_indices(30)] += 1e-6 * np.trace(gram)
    weights = np.linalg.solve(gram, Phi.T @ np.eye(3)[y]).T
    np.testing.assert_allclose(after.weights, weights, rtol=0, atol=1e-6 * np.abs(weights).max())
    update_run(run.location, rows[1], ENGINE, forget=True)
    back, expected = Model.load(run.location).scores(probe), before.scores(probe)
    np.testing.assert_allclose(back, expected, rtol=0, atol=1e-7 * np.abs(expected).max())


def test_ranks__merge_and_refresh(tmp_path, rows):
    run = fit_dataset(rows[0], tmp_path / "run", PARAMS, ENGINE)
    site = write_site(run, tmp_path / "site", rows[0], rows[1])
    merge_runs(run.location, site.location, ENGINE)
    whole = fit_dataset(rows[0], tmp_path / "whole", PARAMS, ENGINE)
    update_run(whole.location, rows[1], ENGINE)
    probe = heavy(50, seed=1)[0]
    merged, added = (Model.load(each.location).scores(probe) for each in (run, whole))
    np.testing.assert_allclose(merged, added, rtol=0, atol=1e-7 * np.abs(added).max())
    knots = Model.load(whole.location).scaling.ranks.knots
    refresh_run(whole.location, rows[:2], ENGINE)
    # The knots of all rows that the run holds.
    assert Model.load(whole.location).scaling.ranks.knots.shape != knots.shape


def test_ranks__a_model_is_stored_and_predicts(tmp_path, rows):
    run = fit_dataset(rows[0], tmp_path / "run", PARAMS, ENGINE)
    model = Model.load(run.location)
    model.save(tmp_path / "model")
    again = Model.load(tmp_path / "model")
    assert again.digest() == model.digest()
    np.testing.assert_array_equal(again.scores(rows[1].X[:]), model.scores(rows[1].X[:]))
    other = replace(model.scaling.ranks, scores=2 * model.scaling.ranks.scores)
    assert replace(model, scaling=replace(model.scaling, ranks=other)).digest() != model.digest()
    assert describe(run.location)["params"]["scale"] == "rank"
    assert evaluate_dataset(run.location, rows[1], ENGINE).error_rate < 0.5
    predicted = predict_dataset(run.location, rows[1], tmp_path / "predicted", ENGINE)
    assert predicted is not None


def test_ranks__cells_name_their_splits_by_values_of_the_columns():
    X, y = heavy(400)
    params = replace(PARAMS, cells=4, basis_size=20, features="plain")
    model = Model.load(fit_table(X, y, params).location)
    cells = describe_cells(model)
    counted = np.bincount(_cells_of(cells, X))
    assert counted.tolist() == [each["n_rows"] for each in cells]


def _cells_of(cells, X):
    """Return the cell of each row by the splits that are shown."""
    inside = np.ones((len(cells), len(X)), dtype=bool)
    for place, cell in enumerate(cells):
        for split in cell["splits"]:
            name, sign, threshold = split.rsplit(" ", 2)
            above = X[:, int(name.split()[-1])] > float(threshold)
            inside[place] &= above if sign == ">" else ~above
    assert (inside.sum(axis=0) == 1).all()
    return inside.argmax(axis=0)


def test_ranks__an_embedding_of_them_ignores_how_columns_are_stretched():
    X, _ = spirals(150)
    plain, stretched = (
        DiffusionMap(scale="rank", basis=rows[:30], width_factor=0.5).fit_transform(rows)
        for rows in (X, np.sinh(3 * X))
    )
    np.testing.assert_allclose(stretched, plain, rtol=0, atol=1e-6 * np.abs(plain).max())


LEARNED = FitParams(
    kernel="gaussian", scale="learned", metric_rounds=1, basis="random", basis_size=20, alpha=1e-6
)


@pytest.mark.parametrize(("rows_of", "start"), [(heavy, "rank"), (spirals, "standard")])
def test_metric__weights_multiply_the_scale_that_does_better(monkeypatch, rows_of, start):
    monkeypatch.setattr(columns, "_FACTORS", {"gaussian": (0.2, 0.5)})
    X, y = rows_of(600)
    run = fit_table(X, y, LEARNED)
    scaling = Model.load(run.location).scaling
    assert METRIC.recorded(run).start == start
    assert (scaling.ranks is not None) == (start == "rank")
    unweighted, root = read_scaling(run, start).apply(X), run.read("metric/root")
    np.testing.assert_array_equal(scaling.apply(X), unweighted * root)


def test_search__standardized_columns_that_did_worse_than_ranks_are_not_tried(monkeypatch):
    monkeypatch.setattr(columns, "_FACTORS", {"gaussian": (0.2, 0.5)})
    tuning = TuneParams(
        effort="quick", folds=2, alphas=(1e-4,), kernels=("gaussian",), width_factors=(0.4,),
        scales=("none", "standard", "rank", "learned"), features=("plain",),
    )  # fmt: skip
    run = fit_table(*heavy(600), FitParams(basis="random", basis_size=20), tuning=tuning)
    assert METRIC.recorded(run).start == "rank"
    tried = {each["scale"] for each in run.stages["search"]["tried"]}
    assert tried - {"learned"} == {"none", "rank"}


def test_search__ranks_of_normal_columns_are_not_tried():
    tuning = TuneParams(
        effort="quick", folds=2, alphas=(1e-4,), kernels=("gaussian",), width_factors=(0.4,),
        scales=("standard", "rank"), features=("plain",),
    )  # fmt: skip
    drawn, tried = FitParams(basis="random", basis_size=20), {}
    rng = np.random.default_rng(0)
    Z = rng.normal(size=(300, 3))
    for name, X in (("normal", Z), ("heavy", np.exp(2 * Z))):
        run = fit_table(X, Z.sum(axis=1), drawn, tuning=tuning, place=MemoryStore())
        tried[name] = {each["scale"] for each in run.stages["search"]["tried"]}
    assert tried == {"normal": {"standard"}, "heavy": {"standard", "rank"}}
