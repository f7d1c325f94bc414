"""Held-out figures and calibrations of runs that rows have joined and left."""

from dataclasses import replace

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn.commands.describe import describe
from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.commands.update import merge_runs, update_run
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.numeric.calibration import ScoreDraw
from dask_nrbfn.numeric.folds import folds_of_rows
from dask_nrbfn.numeric.reliability import expected_calibration_error, reliability_of_rows
from dask_nrbfn.params import FitParams
from dask_nrbfn.stages.validation import read_draw
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import Run
from tests.sites import read_latest_moments, write_site
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
ONE = fit_dataset(write(*FIRST), MemoryStore(), PARAMS, ENGINE).location


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


def test_update__halves_of_a_large_one_are_judged_without_their_rows():
    run, (X, y) = copied(), LARGE
    base, model = read_latest_moments(run.location), Model.load(run.location)
    update_run(run.location, write(X, y, chunk_rows=17), ENGINE)
    folds, Phi = folds_of_rows(0, len(X), n_folds=2, seed=0), model.features.activations(X)
    expected = np.empty((len(X), 3))
    for fold in range(2):
        A, F = Phi[folds != fold], np.eye(3)[y[folds != fold]]
        gram = base.gram() + A.T @ A
        ridge = model.params.alpha * np.trace(gram) * np.eye(20)
        W = np.linalg.solve(gram + ridge, (base.cross + F.T @ A).T)
        expected[folds == fold] = Phi[folds == fold] @ W
    draw = read_draw(Run.open(run.location), Run.open(run.location).latest_place)
    own = draw.versions == 1
    # The rows of a block are sorted by fold; their hashes say which is which.
    order = np.lexsort((expected[:, 0], y))
    found = np.lexsort((draw.scores[own, 0], draw.codes[own]))
    np.testing.assert_allclose(draw.scores[own][found], expected[order], atol=1e-6)


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


def test_update__a_customer_leaves_the_draw():
    run, rows = copied(), tuple(each[::5] for each in FIRST)
    before = read_draw(run, "validation")
    update_run(run.location, write(*rows), ENGINE, forget=True)
    run = Run.open(run.location)
    after = read_draw(run, run.latest_place)
    assert len(before.codes) - len(after.codes) == describe(run.location)["n_judged"] / 4 == 20
    np.testing.assert_allclose(before.totals - after.totals, [np.bincount(rows[1])] * 2)


def test_update__of_numbers_joins_their_residuals():
    first, *others = parts(surfaces(400), 250, 300)
    run = fit_dataset(write(*first), MemoryStore(), replace(PARAMS, alpha="auto"), ENGINE)
    figures, n_rows = describe(run.location), 250
    squares = np.square(figures["rmse"]) * n_rows
    before = squares
    for X, Y in others:
        model = Model.load(run.location)
        record = update_run(run.location, write(X, Y), ENGINE, max_new_error=1.0)
        n_rows += len(X)
        if len(X) == 50:
            squares = squares + np.square(model.clipped(model.scores(X)) - Y).sum(axis=0)
            halved = np.square(record["held_out"]["rmse"]) * n_rows
            # Halves of many rows are judged by better networks.
            np.testing.assert_array_less(halved, squares * 1.2)
            np.testing.assert_array_less(before, halved)
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
    for n_tasks in (None, 1, 4, 6, 8):
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
    assert isinstance(draw, ScoreDraw)
    assert np.bincount(draw.versions).tolist() == [100, 30, 770]
    update_run(run.location, large, ENGINE, forget=True)
    assert describe(run.location)["n_judged"] == 130
