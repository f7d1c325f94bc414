from dataclasses import replace
from shutil import rmtree

import numpy as np
import pytest
from scipy.sparse import csr_array
from zarr.storage import MemoryStore

from dask_nrbfn.commands.describe import describe
from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.commands.update import update_run
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.engine.memory import process_bytes
from dask_nrbfn.errors import IllConditionedError, MemoryBudgetError
from dask_nrbfn.numeric.folds import folds_of_rows
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.report.page import write_report
from dask_nrbfn.stages import resolve
from dask_nrbfn.stages.cells import CELLS, FITS, cell_bytes, read_tree
from dask_nrbfn.stages.resolve import CELL_ALPHAS
from dask_nrbfn.storage.model import Model
from tests.stages.fits import ENGINE, fit_table, overlapping, write
from tests.tables import spirals, surfaces

PARAMS = FitParams(basis="random", basis_size=20, features="plain", cells=4, width_factor=0.5)
TUNING = TuneParams(effort="quick", folds=3, alphas=(1e-2, 1e-4), width_factors=(0.5,))


def steps(n_rows, seed=0):
    """Return rows of squares of a chessboard, whose classes one small basis cannot tell apart."""
    X = np.random.default_rng(seed).uniform(0, 6, (n_rows, 2))
    return X, np.floor(X).sum(axis=1).astype(int) % 2


def scores_of_cells(model, rows):
    """Return the scores of every row by the kernel of the cell that the tree leads it to."""
    cells, scaled = model.cells, model.scaling.apply(rows)
    scores = np.empty((len(rows), model.n_targets))
    for place, row in enumerate(scaled):
        node = 0
        while cells.tree.columns[node] >= 0:
            above = row[cells.tree.columns[node]] > cells.tree.thresholds[node]
            node = cells.tree.children[node] + above
        cell = cells.tree.children[node]
        own = slice(cells.starts[cell], cells.starts[cell + 1])
        gaps = (row - model.basis[own]) * cells.roots[cell]
        t = np.linalg.norm(gaps, ord=1 if model.l1 else 2, axis=1) / cells.widths[cell]
        phi = np.exp(-t if model.l1 else -0.5 * t**2)
        phi = phi / phi.sum() if model.params.normalized else phi
        scores[place] = model.weights[:, own] @ phi + cells.intercepts[cell]
    return scores if model.intercept is None else scores + model.intercept


@pytest.mark.parametrize("kernel", ["gaussian", "auto"])
@pytest.mark.parametrize(("targets", "features"), [("classes", "normalized"), ("numbers", "plain")])
def test_cells__scores_are_those_of_the_cell_of_each_row(targets, features, kernel):
    X, y = spirals(300) if targets == "classes" else surfaces(300)
    learned = replace(PARAMS, scale="learned", metric_rounds=1)
    params = replace(learned, features=features, kernel=kernel)
    model = Model.load(fit_table(X, y, params).location)
    assert (model.n_cells, model.l1) == (4, kernel == "auto")
    rows = X[::7] + 0.01
    expected = scores_of_cells(model, rows)
    atol = 1e-9 * np.abs(expected).max()
    np.testing.assert_allclose(model.scores(rows), expected, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "size"), [("gaussian", 20), ("auto", 80)])
def test_cells__held_out_figures_are_those_of_all_cells(kernel, size):
    # The networks of folds have a fifth fewer basis rows. The l1 kernel needs more on a chessboard.
    X, y = steps(2000)
    run = fit_table(X, y, replace(PARAMS, cells=8, kernel=kernel, basis_size=size))
    record, (further, expected) = CELLS.recorded(run), steps(4000, seed=1)
    wrong = Model.load(run.location).scores(further).argmax(axis=1) != expected
    assert record.error_rate == pytest.approx(wrong.mean(), abs=0.04)
    assert record.n_rows == 2000
    assert run.read("cells/confusion").sum() == 2000
    assert run.read("cells/errors") @ Model.load(run.location).cells.n_rows == pytest.approx(
        2000 * record.error_rate
    )
    probabilities = Model.load(run.location).probabilities(Model.load(run.location).scores(further))
    own = probabilities[np.arange(4000), expected]
    assert -np.log(own).mean() == pytest.approx(record.log_loss, abs=0.1)


@pytest.mark.slow
def test_cells__a_tuning_takes_them_where_they_gain():
    X, y = steps(1500)
    run = fit_table(X, y, replace(PARAMS, cells="auto"), tuning=TUNING)
    compared = CELLS.recorded(run).compared
    assert compared["gained"]
    assert compared["cells"]["brier_score"] < compared["one"]["brier_score"]
    assert run.chosen_params.cells == Model.load(run.location).n_cells > 8
    assert "moments" not in run.stages


@pytest.mark.slow
@pytest.mark.parametrize(("size", "n_cells", "n_compared"), [(20, 16, 4), (40, 8, 8)])
def test_cells__a_tuning_leaves_them_where_they_do_not(size, n_cells, n_compared):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 4))
    y = (X.sum(axis=1) + rng.normal(scale=2.0, size=900) > 0).astype(int)
    params = replace(PARAMS, cells="auto", width_factor=2.0, basis_size=size)
    run = fit_table(X, y, params, tuning=TUNING)
    record = CELLS.recorded(run)
    assert not record.compared["gained"]
    assert not run.finished_parts(FITS)
    # The first four end the comparison of the smaller cells.
    tree, first = read_tree(run), np.random.default_rng(0).permutation(n_cells)
    assert tree.n_cells == n_cells
    members, folds = tree.route(X), folds_of_rows(0, 900, n_folds=3, seed=0)
    rows = members.rows[np.isin(members.cells, first[:n_compared])]
    # The last fold judges both, the first has chosen the networks of the cells.
    assert record.compared["n_rows"] == np.count_nonzero(folds[rows] == 2)
    assert run.chosen_params.cells == record.n_cells == 1
    assert Model.load(run.location).cells is None
    assert run.stages["validation"]["n_rows"] == 900


@pytest.mark.slow
def test_cells__are_tried_by_default_where_there_are_rows(monkeypatch):
    monkeypatch.setattr(resolve, "_BASIS_ROWS", 20)
    monkeypatch.setattr(resolve, "_LEAST_ROWS", 100)
    normal = replace(TUNING, effort="normal", kernels=("gaussian",), scales=("none",))
    X, y = steps(600)
    params = FitParams(basis="random", features="plain")
    assert "cells" in fit_table(X, y, params, tuning=normal).stages
    with_losses = replace(normal, losses=("hinge", "squared"))
    assert "cells" in fit_table(X, y, params, tuning=with_losses).stages
    assert "cells" not in fit_table(X[:70], y[:70], params, tuning=normal).stages
    assert "cells" not in fit_table(X, y, params, tuning=TUNING).stages
    assert "cells" not in fit_table(X, y, replace(params, cells=1), tuning=normal).stages
    rows = csr_array(X)
    assert "cells" not in fit_table(rows, y, params, tuning=normal).stages


def test_cells__one_that_cannot_be_cut_is_a_network(tmp_path):
    rng = np.random.default_rng(0)
    X = (rng.random((300, 30)) < 0.1).astype(float)
    Y = X[:, :1] * X[:, 1:2] + 100.0 + 3 * X[:, 2:3]
    params = replace(PARAMS, cells=4, scale="learned", basis_size=40, metric_rounds=1)
    run = fit_table(X, Y, params, tuning=TUNING)
    model = Model.load(run.location)
    assert 1 - np.mean((model.scores(X) - Y) ** 2) / Y.var() > 0.9
    assert describe(run.location)["complete"]
    write_report(run, tmp_path / "page.html")
    update_run(run.location, write(X[:50] + 0.0, Y[:50] + 1.0), ENGINE, again=True)
    assert Model.load(run.location).digest() != model.digest()


def total_weight(run):
    """Return the weight of the rows of every cell."""
    cells = range(CELLS.recorded(run).n_cells)
    return np.array([run.read_part(FITS, cell, "target_products")[0, 0] for cell in cells])


@pytest.mark.slow
def test_cells__sum_weighted_rows():
    X, y = spirals(240)
    weights = np.random.default_rng(1).uniform(0.5, 2.0, 240)
    run = fit_table(X, y, replace(PARAMS, cells=2), weights=weights)
    model = Model.load(run.location)
    members = model.cells.tree.route(model.scaling.apply(X))
    expected = np.bincount(members.cells, weights[members.rows])
    np.testing.assert_allclose(total_weight(run), expected)
    balanced = fit_table(X, y, replace(PARAMS, cells=2, class_weight="balanced"))
    of_classes = np.array(CELLS.recorded(balanced).class_weights)
    np.testing.assert_allclose(of_classes * np.bincount(y), 80.0)
    model = Model.load(balanced.location)
    members = model.cells.tree.route(model.scaling.apply(X))
    expected = np.bincount(members.cells, of_classes[y][members.rows])
    np.testing.assert_allclose(total_weight(balanced), expected)


def test_cells__a_given_alpha_is_the_alpha_of_every_cell():
    X, y = overlapping(300, 0.4)
    for alpha in (0.1, 1e-5, 1e-13):
        run = fit_table(X, y, replace(PARAMS, cells=2, alpha=alpha))
        assert run.read("cells/alphas").tolist() == [alpha] * 2
        assert Model.load(run.location).params.alpha == alpha
    chosen = fit_table(X, y, replace(PARAMS, cells=2))
    assert set(chosen.read("cells/alphas")) <= {*CELL_ALPHAS}
    assert Model.load(chosen.location).params.alpha == "auto"
    # All activations are nearly 1.
    with pytest.raises(IllConditionedError, match="singular at alpha=0"):
        fit_table(X, y, replace(PARAMS, cells=2, alpha=0.0, width_factor=1e6))


def test_cells__a_part_that_is_lost_after_the_fit_is_computed_again(tmp_path):
    X, y = overlapping(200, 0.2)
    run = fit_table(X, y, PARAMS, place=tmp_path / "run")
    before = Model.load(run.location).weights
    rmtree(tmp_path / "run" / FITS / "parts" / "2")
    run = fit_table(X, y, PARAMS, place=tmp_path / "run")
    np.testing.assert_array_equal(Model.load(run.location).weights, before)
    update_run(run.location, write(X[:30] + 0.1, y[:30]), ENGINE)


def test_cells__unlabelled_rows_are_left_out():
    X, y = overlapping(300, 0.2)
    some = np.where(np.arange(300) % 3, y, -1)
    run = fit_table(X, some, PARAMS, unlabelled=-1)
    model = Model.load(run.location)
    assert model.cells.n_rows.sum() == 200
    rows = run.read("cells/rows")
    assert (some[rows] >= 0).all()
    np.testing.assert_allclose(model.scaling.restore(model.basis), X[rows], atol=1e-12)


def test_cells__of_unequal_sizes_are_checked_once_they_are_cut():
    rng = np.random.default_rng(0)
    # No median splits these columns, so that a single cell has all rows.
    X, y = (rng.random((40_000, 30)) < 0.1).astype(float), rng.integers(0, 2, 40_000)
    dataset, params = write(X, y), replace(PARAMS, cells=40)
    few, all_rows = (cell_bytes(dataset, params, n_rows) for n_rows in (2000, 40_000))
    beside = process_bytes(l1=True) + dataset.reading_bytes
    engine = InlineEngine(memory_bytes=beside + (few + all_rows) // 2)
    with pytest.raises(MemoryBudgetError, match="cells"):
        fit_dataset(dataset, MemoryStore(), params, engine)
    engine = InlineEngine(memory_bytes=beside + 2 * all_rows)
    assert CELLS.recorded(fit_dataset(dataset, MemoryStore(), params, engine)).n_cells == 1
