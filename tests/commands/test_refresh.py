"""Refresh: a run fitted anew in the place of the old one, or the old one as it was."""

import os
import shutil

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn import Dataset, Judge, Model, Run, fit_dataset, given_basis, refresh_run, update_run
from dask_nrbfn.commands.describe import describe_run
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.errors import (
    AlreadyAddedError,
    DamagedDataError,
    DataError,
    MissingDataError,
    ParameterError,
    RecallError,
    RunMismatchError,
    WorseModelError,
)
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.storage.group import remove_group
from tests.stages.stopping import CountingEngine, StoppedError
from tests.tables import spirals, write_table

PARAMS = FitParams(basis="random", basis_size=30, alpha=1e-9, width_factor=0.4, n_parts=2)


def tables(tmp_path, n_tables=3, n_rows=120, **options):
    X, y = spirals(n_rows * n_tables)
    return [
        write_table(tmp_path / f"rows-{place}", X[rows], y[rows], **options)
        for place, rows in enumerate(np.split(np.arange(len(X)), n_tables))
    ]


@pytest.fixture(scope="module")
def updated(tmp_path_factory):
    place = tmp_path_factory.mktemp("updated")
    rows = tables(place)
    run = fit_dataset(rows[0], place / "run", PARAMS, InlineEngine())
    update_run(run.location, rows[1], InlineEngine())
    return place


@pytest.fixture
def rows(tmp_path, updated):
    return [
        Dataset.open(shutil.copytree(path, tmp_path / path.name))
        for path in sorted(updated.glob("rows-*"))
    ]


@pytest.fixture
def run(tmp_path, updated):
    return Run.open(shutil.copytree(updated / "run", tmp_path / "run"))


def joined(tmp_path, datasets, params=PARAMS):
    """Return the model of one fit of all rows of some datasets."""
    X = np.concatenate([dataset.X[:] for dataset in datasets])
    y = np.concatenate([dataset.y[:] for dataset in datasets])
    dataset = write_table(tmp_path / "joined", X, y, overwrite=True)
    return Model.load(fit_dataset(dataset, MemoryStore(), params, InlineEngine()).location)


def hidden(tmp_path):
    return [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_refresh_run__is_a_fit_of_all_rows_held(tmp_path, run, rows):
    before = Model.load(run.location)
    refreshed = refresh_run(run.location, [], InlineEngine())
    after = Model.load(run.location)
    assert after.digest() == joined(tmp_path, rows[:2]).digest() != before.digest()
    assert (refreshed.n_rows, describe_run(refreshed)["version"]) == (240, 0)
    assert refreshed.attributes["refresh"]["refreshed_from"] == run.run_id
    assert hidden(tmp_path) == []


@pytest.mark.slow
def test_refresh_run__the_rows_it_holds_are_still_known(run, rows):
    refresh_run(run.location, [], InlineEngine())
    for dataset in rows[:2]:
        with pytest.raises(AlreadyAddedError):
            update_run(run.location, dataset, InlineEngine())
    update_run(run.location, rows[2], InlineEngine())
    update_run(run.location, rows[0], InlineEngine(), forget=True)
    assert describe_run(Run.open(run.location))["n_rows"] == 240
    digest = Model.load(run.location).digest()
    with pytest.raises(WorseModelError, match="the old model is kept"):
        refresh_run(run.location, [], InlineEngine(), judge=Judge(rows[0], 0.0))
    assert Model.load(run.location).digest() == digest
    refreshed = refresh_run(run.location, [], InlineEngine(), judge=Judge(rows[0], 0.3))
    assert 0 <= refreshed.attributes["refresh"]["error_rate"] <= 0.3
    assert refreshed.n_rows == 240


@pytest.mark.slow
def test_refresh_run__weights_and_types_are_kept(tmp_path, run):
    X, y = spirals(80, seed=7)
    weights = np.linspace(0.5, 2, 80)
    narrow = write_table(tmp_path / "narrow", X.astype("f4"), y, chunk_rows=13)
    heavy = write_table(tmp_path / "heavy", X + 0.5, y, weights=weights, chunk_rows=31)
    refresh_run(run.location, [narrow, heavy], InlineEngine())
    rows = np.concatenate([X.astype("f4").astype("f8"), X + 0.5])
    weights = np.concatenate([np.ones(80), weights])
    table = write_table(tmp_path / "joined", rows, np.tile(y, 2), weights=weights)
    expected = fit_dataset(table, MemoryStore(), PARAMS, InlineEngine())
    assert Model.load(run.location).digest() == Model.load(expected.location).digest()


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("n_tasks", [0, 1, 4, 7])
def test_refresh_run__stopped_anywhere_goes_on(tmp_path, run, rows, n_tasks):
    before = Model.load(run.location).digest()
    with pytest.raises(StoppedError):
        refresh_run(run.location, [], CountingEngine(n_tasks))
    assert Model.load(run.location).digest() == before
    rest = CountingEngine()
    refresh_run(run.location, [], rest)
    whole = CountingEngine()
    fit_dataset(rows[0], tmp_path / "whole", PARAMS, whole)
    # The model is read once more, and its check with it.
    assert rest.done.total() <= whole.done.total() - n_tasks + 1
    assert Model.load(run.location).digest() == joined(tmp_path, rows[:2]).digest()
    assert hidden(tmp_path) == []


@pytest.mark.slow
def test_refresh_run__tunes_what_was_tuned(tmp_path, rows):
    tried = {"alphas": (1e-2, 1e-4), "width_factors": (0.3,), "features": ("plain",)}
    tuning = TuneParams(effort="quick", folds=3, **tried)
    run = fit_dataset(rows[0], tmp_path / "run", PARAMS, InlineEngine(), tuning=tuning)
    update_run(run.location, rows[1], InlineEngine())
    refreshed = refresh_run(run.location, [], InlineEngine())
    assert refreshed.begun == run.begun
    assert Model.load(refreshed.location).calibration.biases is not None


def test_refresh_run__fits_what_a_validation_dataset_chose(tmp_path, rows):
    tuning = TuneParams(effort="quick", alphas=(1e-2,), width_factors=(0.5,), features=("plain",))
    options = {"validation": rows[1]}
    run = fit_dataset(rows[0], tmp_path / "run", PARAMS, InlineEngine(), tuning=tuning, **options)
    refreshed = refresh_run(run.location, [], InlineEngine())
    assert refreshed.begun.params == run.chosen_params != run.begun.params


def test_refresh_run__rows_that_are_gone_or_changed(tmp_path, rows):
    run = fit_dataset(rows[0], tmp_path / "run", PARAMS, InlineEngine())
    X, y = spirals(120, seed=8)
    write_table(rows[0].location, X, y, overwrite=True)
    with pytest.raises(DataError, match="has other rows than those"):
        refresh_run(run.location, [], InlineEngine())
    remove_group(rows[0].location)
    with pytest.raises(MissingDataError, match="cannot be read"):
        refresh_run(run.location, [], InlineEngine())


def test_refresh_run__rows_forgotten_out_of_others(tmp_path, run, rows):
    some = write_table(tmp_path / "some", rows[0].X[:20], rows[0].y[:20])
    update_run(run.location, some, InlineEngine(), forget=True)
    with pytest.raises(DataError, match=r"has forgotten the rows of .*some"):
        refresh_run(run.location, [], InlineEngine())
    with pytest.raises(DataError, match="two of the datasets have the same rows"):
        refresh_run(run.location, [rows[0], rows[0]], InlineEngine())


@pytest.mark.slow
def test_refresh_run__what_cannot_be_refreshed(tmp_path, run, rows):
    basis = rows[0].X[:30]
    given = given_basis(PARAMS, basis)
    fit_dataset(rows[0], tmp_path / "given", given, InlineEngine(), basis=basis)
    with pytest.raises(ParameterError, match="was given"):
        refresh_run(tmp_path / "given", [], InlineEngine())
    narrow = write_table(tmp_path / "narrow", rows[0].X[:, :2], rows[0].y[:])
    with pytest.raises(DataError, match="other columns"):
        refresh_run(run.location, [rows[0], narrow], InlineEngine())
    text = write_table(tmp_path / "text", rows[0].X[:], rows[0].y[:].astype(str))
    with pytest.raises(DataError, match="labels of another type"):
        refresh_run(run.location, [rows[0], text], InlineEngine())
    in_memory = fit_dataset(rows[0], MemoryStore(), PARAMS, InlineEngine())
    with pytest.raises(ParameterError, match="store object"):
        refresh_run(in_memory.location, [], InlineEngine())


@pytest.mark.slow
def test_refresh_run__other_rows_after_a_stop_begin_anew(tmp_path, run, rows):
    with pytest.raises(StoppedError):
        refresh_run(run.location, [], CountingEngine(4))
    update_run(run.location, rows[2], InlineEngine())
    refresh_run(run.location, [], InlineEngine())
    assert Model.load(run.location).digest() == joined(tmp_path, rows).digest()
    assert hidden(tmp_path) == []


@pytest.mark.slow
def test_refresh_run__killed_while_the_runs_change_places(tmp_path, run, rows, monkeypatch):
    rename = os.rename

    def die(*_, **__):
        raise StoppedError

    with monkeypatch.context() as patched:

        def rename_and_die(old, new):
            if os.fspath(old) == os.fspath(run.location):
                patched.setattr(os, "rename", die)
            rename(old, new)

        patched.setattr(os, "rename", rename_and_die)
        with pytest.raises(StoppedError):
            refresh_run(run.location, [], InlineEngine())
    assert not (tmp_path / ".run.rows").exists()
    with pytest.raises(RunMismatchError, match="begun from another dataset"):
        fit_dataset(rows[0], run.location, PARAMS, InlineEngine())
    digest = joined(tmp_path, rows[:2]).digest()
    assert Model.load(run.location).digest() == digest
    assert refresh_run(run.location, [], InlineEngine()).n_rows == 240
    assert Model.load(run.location).digest() == digest
    assert hidden(tmp_path) == []


def test_update_and_refresh__need_a_model(tmp_path, rows):
    with pytest.raises(StoppedError):
        fit_dataset(rows[0], tmp_path / "half", PARAMS, CountingEngine(2))
    for change in (refresh_run, update_run):
        given = [] if change is refresh_run else rows[1]
        with pytest.raises(DamagedDataError, match="has no model yet"):
            change(tmp_path / "half", given, InlineEngine())
        with pytest.raises(MissingDataError):
            change(tmp_path / "nowhere" / "run", given, InlineEngine())
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["versions", "model"])
def test_refresh_run__needs_no_model_at_all(tmp_path, run, rows, lost):
    shutil.rmtree(tmp_path / "run" / lost)
    refresh_run(run.location, [], InlineEngine())
    assert Model.load(run.location).digest() == joined(tmp_path, rows[:2]).digest()


@pytest.mark.slow
def test_refresh_run__of_a_search_with_a_lower_recall(tmp_path):
    rows = tables(tmp_path, 2, n_rows=2000)
    params = FitParams(basis_size=20, n_partitions=4, overlap=1, alpha=1e-6)
    run = fit_dataset(rows[0], tmp_path / "run", params, InlineEngine(), min_recall=0.0)
    with pytest.raises(RecallError):
        refresh_run(run.location, [rows[1]], InlineEngine(), min_recall=1.0)
    assert refresh_run(run.location, [rows[1]], InlineEngine(), min_recall=0.0).n_rows == 2000
