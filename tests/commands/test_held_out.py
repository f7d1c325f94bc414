"""Held-out figures and calibrations of runs that rows have joined and left."""

from dataclasses import replace

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn import FitParams, InlineEngine, Model, describe, fit_dataset, merge_runs, update_run
from dask_nrbfn.numeric.calibration import FIT_BYTES
from dask_nrbfn.numeric.moments import Moments
from dask_nrbfn.numeric.reliability import expected_calibration_error, reliability_of_rows
from dask_nrbfn.stages.cells import read_cell_targets
from dask_nrbfn.stages.moments import read_sums, read_targets
from dask_nrbfn.stages.validation import read_draw
from dask_nrbfn.storage.run import Run
from dask_nrbfn.weighting import RowWeights
from tests.sites import write_site
from tests.stages.fits import are_labels, overlapping
from tests.stages.stopping import CountingEngine, StoppedError
from tests.tables import copy_of, on_disk, surfaces, write_table

ENGINE = InlineEngine()
PARAMS = FitParams(basis="random", basis_size=20, features="plain", width_factor=0.4)
CELLS = replace(PARAMS, cells=2, basis_size=10)


def write(X, targets, place=None, **options):
    kind = "y" if are_labels(targets) else "target"
    place = MemoryStore() if place is None else place
    return write_table(place, X, **{kind: targets}, **options)


def parts(rows, *cuts):
    return zip(*(np.split(each, cuts) for each in rows), strict=True)


FIRST, LARGE, SMALL = parts(overlapping(900, 0.4), 100, 870)
GAUSSIAN = replace(PARAMS, kernel="gaussian", scale="none")
ONE = fit_dataset(write(*FIRST), MemoryStore(), GAUSSIAN, ENGINE).location


def copied():
    return Run.open(copy_of(ONE))


def test_update__a_large_one_is_calibrated_again():
    run, (X, y) = copied(), overlapping(4000, 0.4, seed=7)

    def gap():
        model = Model.load(run.location)
        shares = model.probabilities(model.scores(X))
        return expected_calibration_error(reliability_of_rows(shares, y, np.ones(len(y))))

    # Before, the calibration of the first rows stayed.
    first = Model.load(run.location).calibration
    update_run(run.location, write(*LARGE), ENGINE)
    assert gap() < 0.03
    figures, latest = describe(run.location), Model.load(run.location)
    assert latest.calibration != first
    assert figures["n_judged"] == 870
    assert figures["temperature"] == latest.calibration.temperature
    wrong = (latest.scores(X).argmax(axis=1) != y).mean()
    assert figures["error_rate"] == pytest.approx(wrong, abs=0.04)


def test_update__states_the_bytes_of_the_rows_that_are_judged():
    few, many = write(*SMALL), write(*LARGE)
    held = [update_run(copied().location, rows, ENGINE)["predicted_bytes"] for rows in (few, many)]
    p, q, r = many.n_features, many.n_classes, PARAMS.basis_size
    # Rows and targets, activations twice, and a row of the calibration.
    row_bytes = 8 * (2 * p + 3 * q + 2 * r) + FIT_BYTES * q
    further = row_bytes * (many.n_rows - few.n_rows)
    assert held[1] - held[0] == further + many.reading_bytes - few.reading_bytes


def sums_of_networks(run, model, X):
    """Yield the places of rows, their activations, the moments and alpha of each network."""
    place = run.latest_place
    if model.cells is None:
        every, Phi = np.arange(len(X)), model.features.activations(X)
        yield every, Phi, read_sums(run, place), model.params.alpha
        return
    scaled = model.scaling.apply(X)
    rows, routed = model.cells.tree.route(scaled)
    for cell, alpha in enumerate(run.read("cells/alphas")):
        own, names = rows[routed == cell], Moments.array_names()
        moments = Moments(*(run.read_part(place, cell, name) for name in names))
        yield own, model.features_of_cell(cell).activations(scaled[own]), moments, alpha


def score_without(phi, target, weight, moments, alpha, *, centred, normalized):
    """Return the score of a row by the network that is solved without the row."""
    gram, ridge = moments.gram(), alpha * np.trace(moments.gram())
    ones = np.append(1.0, target)
    gram -= weight * np.outer(phi, phi)
    cross = moments.products[1:] - weight * np.outer(target, phi)
    sums = moments.products[0] - weight * phi
    total, *targets = moments.target_products[0] - weight * ones
    mean, shift = np.array(targets) / total, np.zeros(len(phi))
    if np.isnan(alpha):
        return mean
    if not centred:
        return np.linalg.solve(gram + ridge * np.eye(len(phi)), cross.T).T @ phi
    cross -= np.outer(mean, sums)
    if not normalized:
        # The ridge is that of all rows, whose activations are centred too.
        of_all = moments.products[0]
        ridge -= alpha * (of_all @ of_all) / moments.total_weight
        shift = sums / total
        gram -= total * np.outer(shift, shift)
    W = np.linalg.solve(gram + ridge * np.eye(len(phi)), cross.T).T
    return mean + W @ (phi - shift)


@pytest.mark.parametrize(
    ("params", "constant"),
    [(replace(PARAMS, class_weight="balanced"), False), (CELLS, False), (CELLS, True)],
)
def test_update__classes_are_judged_by_networks_solved_without_each_row(params, constant):
    first, (X, y) = write(*FIRST), SMALL
    run = fit_dataset(first, MemoryStore(), params, ENGINE)
    if constant:
        # The scores of one cell are the mean of its targets.
        run.group("cells")["alphas"][0] = np.nan
    given = np.linspace(0.5, 2.0, len(y))
    update_run(run.location, write(X, y, weights=given, chunk_rows=7), ENGINE)
    run = Run.open(run.location)
    draw, model = read_draw(run, run.latest_place), Model.load(run.location)
    if params.class_weight:
        given = given * RowWeights.of(first, params).of_classes[y]
    own, F = draw.versions == 1, np.eye(3)[y]
    assert len(np.unique(draw.order)) == len(draw.order) == 130
    np.testing.assert_array_equal(draw.codes[own], y)
    np.testing.assert_allclose(draw.own[own], given)
    for rows, Phi, *network in sums_of_networks(run, model, X):
        for row, phi in zip(rows, Phi, strict=True):
            score = score_without(phi, F[row], given[row], *network, centred=False, normalized=True)
            np.testing.assert_allclose(draw.scores[own][row], score, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("params", [PARAMS, CELLS, replace(PARAMS, features="normalized")])
def test_update__numbers_are_judged_by_networks_solved_without_each_row(params):
    (first, (X, Y)) = parts(surfaces(200), 150)
    run = fit_dataset(write(*first), MemoryStore(), params, ENGINE)
    record = update_run(run.location, write(X, Y), ENGINE)
    run, model = Run.open(run.location), Model.load(run.location)
    cells = model.cells is not None
    origin = (read_cell_targets if cells else read_targets)(run, 2).origin
    found, how = np.zeros_like(Y), {"centred": True, "normalized": model.params.normalized}
    for rows, Phi, *network in sums_of_networks(run, model, X):
        for row, phi in zip(rows, Phi, strict=True):
            found[row] = origin + score_without(phi, Y[row] - origin, 1.0, *network, **how)
    squared = np.square(model.clipped(found) - Y).sum(axis=0)
    sums = record["members"][0]["residual_sums"]
    np.testing.assert_allclose(sums["squared"], [squared], rtol=1e-6)
    assert sums["numbers"] == [50.0]


@pytest.mark.parametrize("params", [PARAMS, CELLS])
def test_update__rows_that_join_and_leave_leave_figures_and_calibration(params):
    run = fit_dataset(write(*FIRST), MemoryStore(), params, ENGINE)
    first, figures = Model.load(run.location).calibration, describe(run.location)
    for rows in (LARGE, SMALL):
        update_run(run.location, write(*rows), ENGINE)
    joined = describe(run.location)
    assert joined["n_judged"] == 900
    for rows in (SMALL, LARGE):
        update_run(run.location, write(rows[0][::-1], rows[1][::-1]), ENGINE, forget=True)
    left, last = describe(run.location), Model.load(run.location).calibration
    assert left["n_judged"] == figures["n_judged"] == 100
    for name in ("error_rate", "log_loss"):
        assert left[name] == pytest.approx(figures[name], rel=1e-9)
        assert left[name] != joined[name]
    np.testing.assert_allclose(last.biases, first.biases, rtol=1e-6, atol=1e-8)
    assert last.temperature == pytest.approx(first.temperature, rel=1e-6)


@pytest.mark.parametrize("step", [1, 5])
def test_forget__rows_of_the_fit_and_rows_among_others_leave_the_figures_as_they_are(step):
    run = copied()
    update_run(run.location, write(*SMALL), ENGINE)
    before = describe(run.location)
    update_run(run.location, write(*(each[::step] for each in FIRST)), ENGINE, forget=True)
    after = describe(run.location)
    assert after["n_judged"] == before["n_judged"] == 130
    assert after["log_loss"] == pytest.approx(before["log_loss"], rel=1e-9)


def test_update__of_many_rows_judges_a_draw_that_stands_for_all(monkeypatch):
    run, found = copied(), []
    rows = surfaces(500)
    numbers = fit_dataset(write(*surfaces(100)), MemoryStore(), PARAMS, ENGINE)
    for most in (10_000, 300):
        monkeypatch.setattr("dask_nrbfn.commands.change._JUDGED_ROWS", most)
        place = copy_of(run.location)
        update_run(place, write(*LARGE), ENGINE)
        draw = read_draw(Run.open(place), Run.open(place).latest_place)
        found.append((len(draw.codes), draw.weights.sum(), describe(place)))
        place = copy_of(numbers.location)
        (member,) = update_run(place, write(*rows), ENGINE)["members"]
        assert member["residual_sums"]["numbers"] == pytest.approx([500.0])
    (_, weight, all_rows), (n_drawn, same, some) = found
    assert n_drawn < 500
    assert some["n_judged"] == all_rows["n_judged"] == 870
    assert same == pytest.approx(weight)
    assert some["log_loss"] == pytest.approx(all_rows["log_loss"], abs=0.05)


def test_update__of_numbers_joins_their_residuals():
    first, *others = parts(surfaces(400), 250, 300)
    run = fit_dataset(write(*first), MemoryStore(), replace(PARAMS, alpha="auto"), ENGINE)
    figures, n_rows = describe(run.location), 250
    squares = np.square(figures["rmse"]) * n_rows
    for X, Y in others:
        record = update_run(run.location, write(X, Y), ENGINE, max_new_error=1.0)
        n_rows += len(X)
        squares = squares + record["members"][0]["residual_sums"]["squared"][0]
        np.testing.assert_allclose(np.square(record["held_out"]["rmse"]) * n_rows, squares)
        assert describe(run.location)["n_judged"] == n_rows
    for X, Y in others:
        update_run(run.location, write(X, Y), ENGINE, forget=True)
    left = describe(run.location)
    assert {name: left[name] for name in ("n_judged", "r2", "rmse", "mae", "relative_error")} == {
        name: figures[name] for name in ("n_judged", "r2", "rmse", "mae", "relative_error")
    }


@pytest.mark.parametrize("params", [PARAMS, pytest.param(CELLS, marks=pytest.mark.slow)])
def test_update__stopped_anywhere_is_calibrated_with_the_same_bits(tmp_path, params):
    run = fit_dataset(write(*FIRST), MemoryStore(), replace(params, n_parts=3), ENGINE)
    found = []
    for n_tasks in (None, 1, 2):
        place = on_disk(copy_of(run.location), tmp_path / str(n_tasks))
        rows = write(*LARGE)
        if n_tasks is not None:
            with pytest.raises(StoppedError):
                update_run(place, rows, CountingEngine(n_tasks))
        update_run(place, rows, ENGINE)
        found.append(Model.load(place))
    assert len({model.digest() for model in found}) == 1


def test_merge__joins_the_scores_of_a_site():
    run = copied()
    first, large = write(*FIRST), write(*LARGE)
    site = write_site(run, MemoryStore(), first, large)
    update_run(run.location, write(*SMALL), ENGINE)
    merge_runs(run.location, site.location, ENGINE)
    assert describe(run.location)["n_judged"] == 900
    draw = read_draw(Run.open(run.location), Run.open(run.location).latest_place)
    assert np.bincount(draw.versions).tolist() == [100, 30, 770]
    update_run(run.location, large, ENGINE, forget=True)
    assert describe(run.location)["n_judged"] == 130
