"""Updates of runs whose cells have networks, against the sums over all rows."""

from dataclasses import replace

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn import FitParams, InlineEngine, Model, fit_dataset, merge_runs, update_run
from dask_nrbfn.errors import WorseModelError
from tests.sites import write_site
from tests.tables import spirals, surfaces, write_table

ENGINE = InlineEngine()
PARAMS = FitParams(
    basis="random",
    basis_size=15,
    features="plain",
    kernel="gaussian",
    cells=4,
    scale="standard",
    width_factor=0.5,
)


def table(targets, n_rows=400, seed=0):
    X, y = spirals(n_rows, seed=seed) if targets == "classes" else surfaces(n_rows, seed=seed)
    weights = np.random.default_rng(seed).uniform(0.5, 2.0, n_rows)
    return X, y, weights


def write(place, X, y, weights=None):
    kind = "y" if y.ndim == 1 else "target"
    options = {} if weights is None else {"weights": weights}
    return write_table(place, X, **{kind: y}, chunk_rows=64, **options)


def parts(rows, cut):
    return [tuple(each[piece] for each in rows) for piece in (slice(0, cut), slice(cut, None))]


def naive_scores(run, rows, further):
    """Return the scores of further rows by the ridge of all rows of each cell."""
    X, y, weights = rows
    model = Model.load(run.location)
    cells, params, alphas = model.cells, model.params, run.read("cells/alphas")
    T = np.eye(model.n_targets)[y] if y.ndim == 1 else y
    scores = np.empty((len(further), model.n_targets))
    of_rows, of_further = (cells.tree.route(model.scaling.apply(each)) for each in (X, further))
    for cell in range(cells.n_cells):
        own = slice(cells.starts[cell], cells.starts[cell + 1])
        mine, asked = (each.rows[each.cells == cell] for each in (of_rows, of_further))

        def activations(values, own=own, cell=cell):
            gaps = model.scaling.apply(values)[:, None] - model.basis[own][None]
            distances = ((gaps * cells.roots[cell]) ** 2).sum(axis=2)
            Phi = np.exp(-0.5 * distances / cells.widths[cell] ** 2)
            return Phi / Phi.sum(axis=1, keepdims=True) if params.normalized else Phi

        Phi, w = activations(X[mine]), weights[mine, None]
        means = np.zeros(Phi.shape[1]), np.zeros(model.n_targets)
        if y.ndim == 2:
            means = (w * Phi).sum(axis=0) / w.sum(), (w * T[mine]).sum(axis=0) / w.sum()
        centred = Phi - means[0]
        gram = (w * centred).T @ centred
        penalized = gram + alphas[cell] * np.trace(gram) * np.eye(len(gram))
        solved = np.linalg.solve(penalized, (w * centred).T @ (T[mine] - means[1]))
        scores[asked] = (activations(further[asked]) - means[0]) @ solved + means[1]
    return scores


def close(found, expected, atol=1e-8):
    np.testing.assert_allclose(found, expected, atol=atol * np.abs(expected).max())


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("targets", ["classes", "numbers"])
def test_update_cells__added_rows_are_as_if_fitted(targets):
    rows, further = table(targets), table(targets, seed=3)[0]
    first, second = parts(rows, 250)
    run = fit_dataset(write(MemoryStore(), *first), MemoryStore(), PARAMS, ENGINE)
    close(Model.load(run.location).scores(further), naive_scores(run, first, further))
    second = write(MemoryStore(), *second)
    with pytest.raises(WorseModelError, match="error of 0"):
        update_run(run.location, second, ENGINE, max_new_error=0.01)
    record = update_run(run.location, second, ENGINE, max_new_error=0.99)
    model = Model.load(run.location)
    close(model.scores(further), naive_scores(run, rows, further))
    assert record["n_rows"] == 150
    assert model.cells.n_rows.sum() == 400
    assert record["weight"] == pytest.approx(rows[2].sum())
    if targets == "classes":
        assert 0 < record["new_error"] < 1
    else:
        assert record["training_r2"] == pytest.approx(
            [
                1
                - np.average((model.scores(rows[0])[:, k] - rows[1][:, k]) ** 2, weights=rows[2])
                / np.cov(rows[1][:, k], aweights=rows[2], ddof=0)
                for k in range(2)
            ],
            rel=1e-6,
        )


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("targets", ["classes", "numbers"])
@pytest.mark.parametrize("changes", [{}, {"penalty": "kernel"}, {"features": "normalized"}])
def test_update_cells__forgotten_rows_leave_no_trace(targets, changes):
    rows, further = table(targets), table(targets, seed=3)[0]
    first, second = parts(rows, 250)
    params = replace(PARAMS, **changes)
    run = fit_dataset(write(MemoryStore(), *first), MemoryStore(), params, ENGINE)
    before = Model.load(run.location)
    added = write(MemoryStore(), *second)
    update_run(run.location, added, ENGINE)
    assert np.abs(Model.load(run.location).scores(further) - before.scores(further)).max() > 1e-3
    update_run(run.location, added, ENGINE, forget=True)
    after = Model.load(run.location)
    close(after.scores(further), before.scores(further), atol=1e-6)
    assert after.cells.n_rows.tolist() == before.cells.n_rows.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("targets", ["classes", "numbers"])
def test_update_cells__a_site_is_merged(targets):
    rows, further = table(targets), table(targets, seed=3)[0]
    first, second = parts(rows, 250)
    fitted, added = write(MemoryStore(), *first), write(MemoryStore(), *second)
    run = fit_dataset(fitted, MemoryStore(), PARAMS, ENGINE)
    site = write_site(run, MemoryStore(), fitted, added)
    record = merge_runs(run.location, site.location, ENGINE)
    assert record["n_rows"] == 150
    close(Model.load(run.location).scores(further), naive_scores(run, rows, further))


def test_update_cells__a_cell_loses_a_class_and_all_its_rows(tmp_path):
    X, y, weights = rows = table("classes")

    def part(places):
        return tuple(each[places] for each in rows)

    run = fit_dataset(write(tmp_path / "rows", *rows), MemoryStore(), PARAMS, ENGINE)
    model = Model.load(run.location)
    members = model.cells.tree.route(model.scaling.apply(X))
    inside = np.sort(members.rows[members.cells == 1])
    lost = inside[y[inside] == y[inside][0]]
    update_run(run.location, write(MemoryStore(), *part(lost)), ENGINE, forget=True)
    expected = naive_scores(run, part(np.setdiff1d(np.arange(400), lost)), X[inside])
    close(Model.load(run.location).scores(X[inside]), expected, atol=1e-6)
    rest = np.setdiff1d(inside, lost)
    update_run(run.location, write(MemoryStore(), *part(rest)), ENGINE, forget=True)
    emptied = Model.load(run.location)
    assert emptied.cells.n_rows[1] == 0
    others = np.setdiff1d(np.arange(400), inside)
    shares = np.bincount(y[others], weights[others]) / weights[others].sum()
    np.testing.assert_allclose(emptied.scores(X[inside[:3]]), [shares] * 3, rtol=1e-9)
    update_run(run.location, write(MemoryStore(), *part(inside)), ENGINE)
    close(Model.load(run.location).scores(X), model.scores(X), atol=1e-6)


@pytest.mark.slow
def test_update__the_range_of_targets_grows_with_added_rows(tmp_path):
    X, Y, _ = table("numbers")
    places, at = np.split(np.argsort(Y[:, 0])[::-1], [300, 350]), {}
    for name, rows in zip(("first", "merged", "added"), places, strict=True):
        at[name] = write(tmp_path / name, X[rows], Y[rows])
    run = fit_dataset(at["first"], tmp_path / "run", replace(PARAMS, cells=None), ENGINE)
    site = write_site(run, tmp_path / "site", at["first"], at["merged"])
    held = places[0]
    for change, rows in (
        (lambda: None, None),
        (lambda: update_run(run.location, at["added"], ENGINE), places[2]),
        (lambda: merge_runs(run.location, site.location, ENGINE), places[1]),
        (lambda: update_run(run.location, at["added"], ENGINE, forget=True), None),
    ):
        change()
        held = held if rows is None else np.concatenate([held, rows])
        expected = [Y[held].min(axis=0), Y[held].max(axis=0)]
        np.testing.assert_array_equal(Model.load(run.location).target_range, expected)
