"""Updates: rows join a run and leave it, and it is as if they always or never had been there."""

import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import zarr
from sklearn.metrics import r2_score
from zarr.storage import MemoryStore

from dask_nrbfn import FitParams, Model, describe, evaluate_dataset, fit_dataset, predict_dataset
from dask_nrbfn.commands.update import Judge, merge_runs, update_run
from dask_nrbfn.engine import EngineOptions, InlineEngine, connect
from dask_nrbfn.engine.memory import PROCESS_BYTES, process_bytes
from dask_nrbfn.errors import (
    AlreadyAddedError,
    DamagedDataError,
    DataError,
    MemoryBudgetError,
    RunBusyError,
    RunMismatchError,
    WorseModelError,
)
from dask_nrbfn.numeric.calibration import FIT_BYTES
from dask_nrbfn.numeric.ridge import solve_bytes
from dask_nrbfn.stages.moments import read_features
from dask_nrbfn.storage.group import locked_run
from dask_nrbfn.storage.run import Run, version_name
from tests.reference import reference_activations, reference_distances
from tests.sites import read_latest_moments, write_site
from tests.stages.stopping import CountingEngine, StoppedError
from tests.storage.written import flip_byte
from tests.tables import copy_of, on_disk, spirals, surfaces, write_table

# The references of this module compute a Gaussian of the rows as they are.
PLAIN = FitParams(kernel="gaussian", scale="none", width_factor=0.4)
PARAMS = replace(PLAIN, basis="random", basis_size=40, alpha=1e-9)
# The kernel and scale of a table.
DEFAULT = FitParams(basis="random", basis_size=40, alpha=1e-9)


def close(found, expected, rtol=1e-10):
    np.testing.assert_allclose(found, expected, rtol=0, atol=rtol * np.abs(expected).max())


def tables(n_tables=4, *, n_rows=150, weighted=False):
    columns = dict(zip("Xy", spirals(n_rows * n_tables), strict=True))
    if weighted:
        columns["weights"] = np.random.default_rng(1).uniform(0.5, 3, n_rows * n_tables)
    parts = np.split(np.arange(n_rows * n_tables), n_tables)
    return [
        write_table(MemoryStore(), **{name: each[rows] for name, each in columns.items()})
        for rows in parts
    ]


@pytest.fixture(scope="module")
def rows():
    return tables()


@pytest.fixture(scope="module")
def fitted(rows):
    """Give a function that returns the store of a fit in so many parts, made once."""

    @cache
    def fit(n_parts=None):
        return fit_dataset(
            rows[0], MemoryStore(), replace(PARAMS, n_parts=n_parts), InlineEngine()
        ).location

    return fit


@pytest.fixture
def run(fitted):
    return Run.open(copy_of(fitted()))


@pytest.fixture
def run_in(tmp_path, fitted):
    """Give a function that returns a run in so many parts, on the disk."""
    return lambda n_parts: Run.open(on_disk(fitted(n_parts), tmp_path / "run"))


@pytest.fixture
def stored(run_in):
    return run_in(None)


def update(run, dataset, engine=None, **options):
    return update_run(run.location, dataset, engine or InlineEngine(), **options)


def table_of(datasets):
    X = np.concatenate([dataset.X[:] for dataset in datasets])
    return X, np.concatenate([dataset.y[:] for dataset in datasets])


def reference_moments(run, X, y, weights=None):
    """Return gram and cross of rows, computed at once and from the formulas."""
    model = Model.load(run.location)
    Phi = reference_activations(X, model.basis, model.width)
    F = (y[:, None] == model.classes).astype(float)
    weights = np.ones(len(X)) if weights is None else weights
    return Phi.T @ (weights[:, None] * Phi), (weights[:, None] * F).T @ Phi


def assert_moments(run, X, y, weights=None):
    moments = read_latest_moments(run.location)
    gram, cross = reference_moments(run, X, y, weights)
    close(moments.gram(), gram)
    close(moments.cross, cross)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "weighted"),
    [
        ({}, True),
        ({"features": "plain"}, True),
        ({"kernel": "laplace-l1"}, False),
        ({"scale": "standard"}, True),
    ],
)
def test_update_run__is_one_pass_over_all_rows(changes, weighted):
    rows = tables(weighted=weighted)
    run = fit_dataset(rows[0], MemoryStore(), replace(PARAMS, **changes), InlineEngine())
    before = read_latest_moments(run.location)
    for dataset in rows[1:]:
        update(run, dataset)
    features = read_features(run)
    gram, cross = 0.0, 0.0
    for dataset in rows:
        Phi = features.activations(dataset.X[:])
        weights = dataset.take_weights(np.arange(dataset.n_rows))[:, None]
        gram = gram + Phi.T @ (weights * Phi)
        cross = cross + np.eye(3)[:, dataset.y[:]] @ (weights * Phi)
    close(read_latest_moments(run.location).gram(), gram)
    close(read_latest_moments(run.location).cross, cross)
    for dataset in rows[:0:-1]:
        update(run, dataset, forget=True)
    close(read_latest_moments(run.location).packed_gram, before.packed_gram)
    close(read_latest_moments(run.location).cross, before.cross)
    close(read_latest_moments(run.location).target_sums, before.target_sums)


def penalized(run, X, y, penalty, shares):
    """Return the weights of rows, computed at once with a penalty that is written out."""
    model = Model.load(run.location)
    basis, width = model.basis, model.width
    Phi = np.exp(-(reference_distances(X, basis) ** 2) / (2 * width**2))
    gram, r = Phi.T @ Phi, len(basis)
    P = np.diag(1 / shares)
    if penalty == "kernel":
        P = np.exp(-(reference_distances(basis, basis) ** 2) / (2 * width**2))
    mu = PENALIZED.alpha * np.trace(gram) * r / np.trace(P)
    jitter = 1e-13 * np.trace(gram) * (penalty == "kernel")
    return np.linalg.solve(gram + mu * P + jitter * np.eye(r), Phi.T @ np.eye(3)[y]).T


PENALIZED = replace(PLAIN, basis="kmeans", basis_size=20, features="plain", alpha=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("penalty", ["kernel", "clusters"])
def test_update_run__with_a_penalty_is_one_fit(rows, penalty):
    params = replace(PENALIZED, penalty=penalty)
    run = fit_dataset(rows[0], MemoryStore(), params, InlineEngine())
    X, _ = table_of(rows[:1])
    nearest = reference_distances(X, Model.load(run.location).basis).argmin(axis=1)
    # Those of the fit, whatever joins or leaves.
    shares = np.bincount(nearest, minlength=20) / len(X)
    for held, action in (
        ((0,), None),
        ((0, 1), lambda: update(run, rows[1])),
        ((0, 1, 2), lambda: update(run, rows[2])),
        ((0, 2), lambda: update(run, rows[1], forget=True)),
    ):
        record = run.stages["weights"] if action is None else action()
        expected = penalized(run, *table_of([rows[place] for place in held]), penalty, shares)
        close(Model.load(run.location).weights, expected)
        assert record["objective"] > 0
    site = write_site(run, MemoryStore(), rows[0], rows[1])
    close(Model.load(site.location).weights, penalized(run, *table_of([rows[1]]), penalty, shares))
    merge_runs(run.location, site.location, InlineEngine())
    expected = penalized(run, *table_of(rows[:3]), penalty, shares)
    close(Model.load(run.location).weights, expected)
    assert Model.load(site.location).params.penalty == penalty


def test_update_run__balanced_classes_weigh_as_in_the_fit(rows):
    params = replace(PARAMS, class_weight="balanced")
    run = fit_dataset(rows[0], MemoryStore(), params, InlineEngine())
    X, y = spirals(60, seed=5)
    # A class may be missing among the new rows.
    later = write_table(MemoryStore(), X[y != 0], y[y != 0])
    update(run, later)
    X, y = table_of([rows[0], later])
    counts = np.bincount(rows[0].y[:])
    assert_moments(run, X, y, (rows[0].n_rows / (3 * counts))[y])


@pytest.mark.slow
def test_update_run__peaks_stay_below_what_was_said(tmp_path):
    X, y = spirals(5500, n_features=700)
    first = write_table(tmp_path / "first", X[:3500], y[:3500], chunk_rows=500)
    second = write_table(tmp_path / "second", X[3500:], y[3500:], chunk_rows=500)
    params = FitParams(basis="random", basis_size=3000, alpha=1e-9)
    # Workers of its own: those that searched neighbours hold the search's code too.
    with connect(EngineOptions(workers=1, memory="4GiB")) as engine:
        run = fit_dataset(first, tmp_path / "run", params, engine)
        for forget in (False, True):
            record = update(run, second, engine, forget=forget)
            assert 0.5 * record["predicted_bytes"] < record["peak_bytes"]
            assert record["peak_bytes"] <= record["predicted_bytes"]


def test_update_run__evaluates_and_predicts_with_the_latest(run, rows):
    before, (X, y) = Model.load(run.location), table_of(rows[1:2])
    # The new error is that of the earlier model.
    record = update(run, rows[1])
    assert record["new_error"] == np.mean(before.scores(X).argmax(axis=1) != y)
    after = Model.load(run.location)
    assert not np.array_equal(before.weights, after.weights)
    np.testing.assert_array_equal(before.basis, after.basis)
    scored = after.scores(rows[2].X[:]).argmax(axis=1) != rows[2].y[:]
    assert evaluate_dataset(run.location, rows[2], InlineEngine()).n_errors == scored.sum()
    assert update(run, rows[1], forget=True)["new_error"] is None


def test_update_run__refuses_rows_that_the_run_holds_in_any_order(run, rows):
    update(run, rows[1])
    for dataset in rows[:2]:
        X, y = table_of([dataset])
        repeated = write_table(MemoryStore(), X[::-1], y[::-1], chunk_rows=11)
        latest = Model.load(run.location).digest()
        with pytest.raises(AlreadyAddedError, match="holds the rows of"):
            update(run, repeated)
        assert Model.load(run.location).digest() == latest
    assert describe(run.location)["version"] == 1


def test_update_run__forgets_some_rows_of_the_fit(tmp_path, run, rows, caplog):
    X, y = table_of(rows[:1])
    customer = write_table(tmp_path / "customer", X[10:35], y[10:35])
    record = update(run, customer, forget=True)
    assert "the run does not know these rows" in caplog.text
    kept = np.r_[0:10, 35 : len(X)]
    assert_moments(run, X[kept], y[kept])
    chosen = run.read("basis/rows")
    n_basis_rows = np.sum((chosen >= 10) & (chosen < 35))
    assert n_basis_rows > 0
    assert record["refresh_due"]
    assert record["reasons"][0].startswith(f"{n_basis_rows} of the forgotten rows are basis rows")
    with pytest.raises(DataError, match="has forgotten the rows of"):
        update(run, customer, forget=True)


@pytest.mark.parametrize("option", [None, "forget", "again"])
def test_update_run__killed_right_after_it_is_done_once(stored, rows, monkeypatch, option):
    options, kept = {} if option is None else {option: True}, [rows[0]]
    if options:
        update(stored, rows[1])
    expected = describe(stored.location)["version"] + 1

    def die(run, *names):
        raise StoppedError

    with monkeypatch.context() as patched:
        patched.setattr(Run, "drop_groups", die)
        with pytest.raises(StoppedError):
            update(stored, rows[1], **options)
    record = update(stored, rows[1], **options)
    assert record["version"] == describe(stored.location)["version"] == expected
    assert not [*Path(stored.location).glob("update-*")]
    kept += {None: [rows[1]], "forget": [], "again": [rows[1], rows[1]]}[option]
    assert_moments(stored, *table_of(kept))
    update(stored, rows[2])


class BusyEngine(InlineEngine):
    def __init__(self, happens):
        super().__init__(n_workers=2)
        self.happens = happens

    def run(self, task, arguments, *, label, follow):
        assert len(arguments) > 1
        first = super().run(task, arguments[:1], label=label)
        self.happens()
        return first + super().run(task, arguments[1:], label=label)


def write_two_tasks(location):
    return write_table(location, *spirals(5000, seed=9))


def test_update_run__rows_that_join_meanwhile_leave_a_prediction_alone(tmp_path, stored, rows):
    new = write_two_tasks(tmp_path / "new")
    # Blocks of other tasks may round differently.
    two = InlineEngine(n_workers=2)
    predict_dataset(stored.location, new, tmp_path / "before", two)
    engine = BusyEngine(lambda: update(stored, rows[1]))
    predict_dataset(stored.location, new, tmp_path / "meanwhile", engine)
    predict_dataset(stored.location, new, tmp_path / "after", two)
    before, meanwhile, after = (
        zarr.open_group(tmp_path / name)["scores"][:] for name in ("before", "meanwhile", "after")
    )
    np.testing.assert_array_equal(meanwhile, before)
    assert not np.array_equal(meanwhile, after)


def test_update_run__a_heavy_row_leaves_the_others_exact():
    X, y = spirals(200)
    weights = np.where(np.arange(200) == 7, 1e6, 1.0)
    whole = write_table(MemoryStore(), X, y, weights=weights)
    run = fit_dataset(whole, MemoryStore(), PARAMS, InlineEngine())
    heavy = write_table(MemoryStore(), X[7:8], y[7:8], weights=weights[7:8])
    update(run, heavy, forget=True)
    others = np.arange(200) != 7
    gram, _ = reference_moments(run, X[others], y[others])
    close(read_latest_moments(run.location).gram(), gram, rtol=1e-8)


@pytest.mark.parametrize("cells", [1, 3])
def test_update_run__heavy_rows_that_rounding_lets_not_leave_are_refused(cells):
    X, Y = surfaces(300)
    heavy = write_table(MemoryStore(), X[250:], target=Y[250:], weights=np.full(50, 1e6))
    for alpha, refused in ((1e-4, False), (1e-11, True)):
        params = replace(PARAMS, cells=cells, alpha=alpha, features="plain", width_factor=2.0)
        dataset = write_table(MemoryStore(), X[:250], target=Y[:250])
        run = fit_dataset(dataset, MemoryStore(), params, InlineEngine())
        before = Model.load(run.location)
        update(run, heavy)
        if refused:
            with pytest.raises(DataError, match="so rounding changes most digits"):
                update(run, heavy, forget=True)
        else:
            update(run, heavy, forget=True)
            close(Model.load(run.location).scores(X), before.scores(X), rtol=1e-4)


@pytest.mark.parametrize("params", [PARAMS, DEFAULT])
def test_update_run__cannot_forget_what_was_never_there(rows, params):
    run = fit_dataset(rows[0], MemoryStore(), params, InlineEngine())
    X, y = spirals(400, seed=9)
    of_a_class = write_table(MemoryStore(), X[y == 1], y[y == 1])
    rows_of_one_place = write_table(MemoryStore(), X[:1] + np.zeros((60, 1)), y[:1].repeat(60))
    X, y = table_of(rows[:1])
    other_labels = write_table(MemoryStore(), X[:25], (y[:25] + 1) % 3)
    # Not far from the rows of the run, and with their labels.
    X, y = table_of(rows[2:3])
    of_another_time = write_table(MemoryStore(), X[:50], y[:50])
    X, y = table_of(rows[:1])
    too_heavy = write_table(MemoryStore(), X, y, weights=np.full(len(X), 1 + 1e-7))
    for never in (of_a_class, rows_of_one_place, other_labels, of_another_time, too_heavy):
        with pytest.raises(DataError, match="cannot all be in the run"):
            update(run, never, forget=True)
    with pytest.raises(DataError, match="no rows would be left"):
        update(run, rows[0], forget=True)
    assert describe(run.location)["version"] == 0


def test_update_run__refuses_other_tables(run):
    X, y = spirals(40, seed=3)
    of_text = "label '0' of .* is not a training label.* Ingest the labels with"
    for values, labels, problem in (
        (X[:, :3], y, "3 columns"),
        (X, y + 1, "label 3 of .* is not a training label"),
        (X, y.astype(str), of_text),
        (X, None, "has no labels"),
    ):
        with pytest.raises(DataError, match=problem):
            update(run, write_table(MemoryStore(), values, labels), CountingEngine(0))
    assert describe(run.location)["version"] == 0


def test_update_run__one_job_at_a_time(stored, rows):
    with locked_run(stored.location), pytest.raises(RunBusyError):
        update(stored, rows[1])


def test_update_run__says_the_bytes_it_lacks(run, rows):
    engine = CountingEngine(0)
    engine.memory_bytes = 100 * 2**20
    with pytest.raises(MemoryBudgetError, match="add task needs"):
        update(run, rows[1], engine)


@pytest.mark.parametrize("params", [PARAMS, DEFAULT])
def test_update_run__states_the_bytes_of_its_sums_and_of_a_block(rows, params):
    """Processes, the sums and activations of a block, copies of the basis, and chunks of rows."""
    run = fit_dataset(rows[0], MemoryStore(), params, InlineEngine())
    r, p, q, n_block = 40, 4, 3, 2048
    process = process_bytes(l1=params is not PARAMS)
    added = update(run, rows[1])["predicted_bytes"]
    block = n_block * (r + 5 * p + (1 + q) + 2 * q)
    held = 8 * (r**2 + block + 3 * (1 + q) * r + 5 * r * p)
    assert added == process + held + rows[1].reading_bytes
    # A merge reads no rows, and solves the system with the gram matrix in place.
    site = write_site(run, MemoryStore(), rows[0], rows[2])
    merged = merge_runs(run.location, site.location, InlineEngine())["predicted_bytes"]
    assert merged == process + solve_bytes(r, q, in_place=True) + 8 * 4 * r * (p + q)


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"penalty": "kernel"}, {"penalty_axes": 2}),
        ({"locality": 0.5}, {"locality": True}),
        ({"cells": 2, "basis_size": 10}, {}),
    ],
)
def test_merge_runs__states_the_bytes_of_a_solve_next_to_the_gram_matrix(rows, changes, options):
    params = replace(PENALIZED, basis="random", **changes)
    run = fit_dataset(rows[0], MemoryStore(), params, InlineEngine())
    site = write_site(run, MemoryStore(), rows[0], rows[2])
    merged = merge_runs(run.location, site.location, InlineEngine())["predicted_bytes"]
    r, p, q, further = params.basis_size, 4, 3, 0
    if params.cells:
        # The model of all cells, twice, and the calibration of the rows of the fit.
        further = 8 * 2 * 2 * r * (p + 2 * q) + FIT_BYTES * 150 * q
    assert merged == PROCESS_BYTES + solve_bytes(r, q, **options) + 8 * 4 * r * (p + q) + further


def test_update_run__states_the_bytes_of_a_subtraction():
    large = write_table(MemoryStore(), *spirals(1100))
    run = fit_dataset(large, MemoryStore(), replace(PARAMS, basis_size=1000), InlineEngine())
    part = write_table(MemoryStore(), large.X[:5], large.y[:5])
    # The gram matrix is checked before the solve, and not overwritten.
    left = update(run, part, forget=True)["predicted_bytes"]
    assert left == PROCESS_BYTES + solve_bytes(1000, 3) + 8 * 4 * 1000 * (4 + 3)


def test_update_run__what_a_killed_update_left_does_not_stay(run, rows):
    run.group(f"{version_name(1)}/left")
    update(run, rows[1])
    assert not run.has(f"{version_name(1)}/left")


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("n_tasks", range(6))
def test_update_run__stopped_anywhere_goes_on(tmp_path, run_in, rows, n_tasks):
    run = run_in(4)
    whole = Run.open(shutil.copytree(tmp_path / "run", tmp_path / "whole"))
    update(whole, rows[1])
    latest = Model.load(run.location).digest()
    with pytest.raises(StoppedError):
        update(run, rows[1], CountingEngine(n_tasks))
    assert Model.load(run.location).digest() == latest
    rest = CountingEngine()
    update(run, rows[1], rest)
    # The old model is evaluated first.
    assert rest.done[f"update, 1 add {rows[1].fingerprint}"] == 4 - max(n_tasks - 1, 0)
    assert Model.load(run.location).digest() == Model.load(whole.location).digest()
    assert not [name for name in (tmp_path / "run").iterdir() if name.name.startswith("update-")]


@pytest.mark.slow
def test_update_run__a_damaged_part_is_found(tmp_path, run_in, rows):
    run = run_in(4)
    with pytest.raises(StoppedError):
        update(run, rows[1], CountingEngine(5))
    gram = next((tmp_path / "run").glob("update-*/packed_gram/c/0"))
    flip_byte(gram, 50)
    with pytest.raises(DamagedDataError, match="Repeat the update"):
        update(run, rows[1])
    update(run, rows[1])
    assert_moments(run, *table_of(rows[:2]))


def test_update_run__sums_of_too_many_rows_are_refused(tmp_path, run_in, rows):
    run = run_in(4)
    with pytest.raises(StoppedError):
        update(run, rows[1], CountingEngine(4))
    gram = zarr.open_array(next((tmp_path / "run").glob("update-*/parts/**/packed_gram")))
    gram[:] = 2 * gram[:]
    with pytest.raises(DamagedDataError, match="rows with a total weight of 150 sum to"):
        update(run, rows[1])
    assert describe(run.location)["version"] == 0


def test_update_run__keeps_the_version_before_for_its_readers(tmp_path, stored, rows):
    for dataset in rows[1:]:
        update(stored, dataset)
    kept = {path.name for path in (tmp_path / "run" / "versions").iterdir() if path.is_dir()}
    assert kept == {"2", "3"}


def test_update_run__a_judge_keeps_the_old_model(tmp_path, stored, rows):
    X, y = table_of([rows[1]])
    wrong = write_table(MemoryStore(), X, (y + 1) % 3)
    latest, files = Model.load(stored.location).digest(), sorted((tmp_path / "run").rglob("*"))
    with pytest.raises(WorseModelError, match=r"but only 0\.2 is allowed"):
        update(stored, wrong, judge=Judge(rows[3], 0.2))
    assert Model.load(stored.location).digest() == latest
    left = [path for path in sorted((tmp_path / "run").rglob("*")) if path not in files]
    assert [path.name for path in left if path.name not in ("versions", "zarr.json")] == []
    record = update(stored, rows[1], judge=Judge(rows[3], 0.2))
    expected = evaluate_dataset(stored.location, rows[3], InlineEngine()).error_rate
    assert record["error_rate"] == expected < 0.2


def test_merge_runs__two_sites_are_one_fit(run, rows):
    site = write_site(run, MemoryStore(), rows[0], rows[1], rows[2])
    update(run, rows[3])
    record = merge_runs(run.location, site.location, InlineEngine())
    assert (record["version"], record["n_rows"]) == (2, 300)
    assert_moments(run, *table_of([rows[0], rows[3], rows[1], rows[2]]))
    with pytest.raises(AlreadyAddedError, match="both hold the rows of"):
        merge_runs(run.location, site.location, InlineEngine())
    with pytest.raises(AlreadyAddedError):
        update(run, rows[2])
    update(run, rows[2], forget=True)
    assert_moments(run, *table_of([rows[0], rows[3], rows[1]]))
    assert describe(run.location)["n_rows"] == 450
    other = fit_dataset(rows[1], MemoryStore(), PARAMS, InlineEngine())
    with pytest.raises(RunMismatchError, match="did not begin as a copy of"):
        merge_runs(run.location, other.location, InlineEngine())


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("features", ["plain", "normalized"])
def test_update_run__training_r2_is_that_of_all_rows(features):
    X, Y = surfaces(300)
    params = FitParams(basis="kmeans", basis_size=25, features=features, alpha=1e-6)
    one = write_table(MemoryStore(), X[:200], target=Y[:200])
    two = write_table(MemoryStore(), X[200:], target=Y[200:])
    run = fit_dataset(one, MemoryStore(), params, InlineEngine())
    fitted = r2_score(Y[:200], Model.load(run.location).scores(X[:200]), multioutput="raw_values")
    close(run.stages["weights"]["training_r2"], fitted)
    record = update_run(run.location, two, InlineEngine())
    updated = r2_score(Y, Model.load(run.location).scores(X), multioutput="raw_values")
    close(record["training_r2"], updated)
    forgotten = update_run(run.location, two, InlineEngine(), forget=True)
    close(forgotten["training_r2"], fitted, rtol=1e-6)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("name", ["moments/packed_gram/c/0", "model/basis/zarr.json"])
def test_update__says_what_mends_a_damaged_run(stored, rows, name):
    def damage(file):
        file.write_bytes(file.read_bytes()[:-3])

    place = Path(stored.location)
    damage(place / name)
    with pytest.raises(DamagedDataError, match="Repeat fit or tune, with the same dataset"):
        update(stored, rows[1])
    fit_dataset(rows[0], stored.location, PARAMS, InlineEngine())
    update(stored, rows[1])
    assert_moments(stored, *table_of(rows[:2]))
    latest = Run.open(stored.location).attributes["versions"][-1]["place"]
    damage(place / latest / "model" / "weights" / "c" / "0" / "0")
    with pytest.raises(DamagedDataError, match=r"Refresh the run .*, or restore the run from"):
        update(stored, rows[2])
    with pytest.raises(DamagedDataError, match="versions/1"):
        fit_dataset(rows[0], stored.location, PARAMS, InlineEngine())
