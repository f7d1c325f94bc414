"""What is done with a model and rows of which some have no label."""

import logging
import shutil

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn import (
    FitParams,
    NRBFNClassifier,
    evaluate_dataset,
    fit_dataset,
    refresh_run,
    update_run,
)
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.errors import AlreadyAddedError, DataError
from dask_nrbfn.storage.run import Run
from tests.cli.program import json_of, refuse, succeed
from tests.sites import read_latest_moments
from tests.tables import spirals, write_table

NONE, ENGINE = -1, InlineEngine()
X, Y = spirals(150)
LABELLED = np.arange(150) % 3 == 0
MARKED = np.where(LABELLED, Y, NONE)
PARAMS = FitParams(basis="random", basis_size=20, alpha=1e-8)


def fit(place, dataset, params=PARAMS):
    return fit_dataset(dataset, place, params, ENGINE)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    place = tmp_path_factory.mktemp("fitted")
    dataset = write_table(place / "rows", X, MARKED, unlabelled=NONE, chunk_rows=40)
    return fit(place / "run", dataset).location


@pytest.fixture
def run(tmp_path, fitted):
    return Run.open(shutil.copytree(fitted, tmp_path / "run"))


def test_evaluate__counts_rows_with_labels(run):
    rows, labels = spirals(60, seed=1)
    marked = write_table(MemoryStore(), rows, np.r_[labels[:45], [NONE] * 15], unlabelled=NONE)
    found = evaluate_dataset(run.location, marked, ENGINE)
    few = evaluate_dataset(run.location, write_table(MemoryStore(), rows[:45], labels[:45]), ENGINE)
    assert (found.n_rows, found.n_unlabelled, found.n_errors) == (45, 15, few.n_errors)
    assert found.log_loss == pytest.approx(few.log_loss, rel=1e-12)
    assert found.figures()["n_unlabelled"] == 15


def test_evaluate__without_any_label_is_refused(run):
    dataset = write_table(MemoryStore(), X, np.full(150, NONE), unlabelled=NONE)
    with pytest.raises(DataError, match=r"no row of .* has a label"):
        evaluate_dataset(run.location, dataset, ENGINE)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("forget", [False, True])
def test_update__rows_without_a_label_weigh_nothing(run, tmp_path, forget, caplog):
    rows, labels = spirals(60, seed=2)
    labels[::2] = NONE
    marked = write_table(tmp_path / "new", rows, labels, unlabelled=NONE)
    few = write_table(tmp_path / "few", rows[1::2], labels[1::2])
    before = read_latest_moments(run.location)
    with caplog.at_level(logging.INFO, logger="dask_nrbfn"):
        record = update_run(run.location, marked, ENGINE)
    assert record["n_rows"] == 30
    assert "30 rows without a label are left out" in caplog.text
    with pytest.raises(AlreadyAddedError):
        update_run(run.location, marked, ENGINE)
    if forget:
        update_run(run.location, marked, ENGINE, forget=True)
        after = read_latest_moments(run.location)
        np.testing.assert_allclose(after.gram(), before.gram(), atol=1e-10)
    else:
        # The rows are known by all of them, not by those with labels alone.
        update_run(run.location, few, ENGINE)
        after = read_latest_moments(run.location)
        assert after.total_weight == before.total_weight + 60


@pytest.mark.slow
def test_refresh__joins_marked_rows(tmp_path, run):
    rows, labels = spirals(40, seed=3)
    more = write_table(tmp_path / "more", rows, np.r_[labels[:30], [NONE] * 10], unlabelled=NONE)
    update_run(run.location, more, ENGINE)
    refreshed = refresh_run(run.location, [], ENGINE)
    assert (refreshed.n_rows, refreshed.of_labelled().n_rows) == (190, 50 + 30)
    other = write_table(tmp_path / "other", rows, np.r_[labels[:30], [9] * 10], unlabelled=9)
    first = write_table(tmp_path / "x", X, MARKED, unlabelled=NONE)
    with pytest.raises(DataError, match=r"-1 means a missing label in .*x, but not in .*other"):
        refresh_run(run.location, [first, other], ENGINE)


def write_labels(path, labels, mark):
    """Write rows with these labels to a CSV file; -1 becomes the mark."""
    kinds = [mark if label == NONE else f"kind {label}" for label in labels]
    lines = (f"{a},{b},{kind}" for (a, b, *_), kind in zip(X, kinds, strict=True))
    path.write_text("\n".join(["a,b,kind", *lines, ""]))


@pytest.mark.slow
def test_files__are_read_with_the_marker_of_the_training_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_labels(tmp_path / "rows.csv", MARKED, "none")
    write_labels(tmp_path / "new.csv", np.where(np.arange(150) % 5 == 1, Y, NONE), "none")
    write_labels(tmp_path / "dash.csv", np.where(np.arange(150) % 5 == 2, Y, NONE), "-")
    succeed("ingest", "rows.csv", "rows", "--label", "kind", "--unlabelled", "none")
    succeed("fit", "rows", "run", "--basis", "random", "--basis-size", 20, "--alpha", 1e-8)
    found = json_of("evaluate", "run", "new.csv")
    assert (found["n_rows"], found["n_unlabelled"]) == (30, 120)
    judge = ("--evaluate", "new.csv", "--max-error-rate", 1)
    assert json_of("update", "run", "new.csv", *judge)["n_rows"] == 30
    assert json_of("evaluate", "run", "dash.csv", "--unlabelled", "-")["n_rows"] == 30
    succeed("refresh", "run")
    assert json_of("evaluate", "run", "new.csv")["n_rows"] == 30
    assert json_of("predict", "run", "new.csv", "out.csv")["n_rows"] == 150
    problem, _ = refuse("evaluate", "run", "rows", "--unlabelled", "none")
    assert problem == "--unlabelled is given, but rows is a dataset."


@pytest.mark.parametrize("mark", [np.nan, "?"])
def test_estimator__its_own_marker_is_none_of_files(tmp_path, mark):
    labels = np.where(Y == 0, -1, Y) if mark != "?" else np.array(["a", "b", "c"])[Y]
    some = np.where(LABELLED, labels, mark)
    network = NRBFNClassifier(basis="random", basis_size=20, alpha=1e-8, unlabelled=mark)
    network.fit(X, some).save(tmp_path / "model")
    np.savez(tmp_path / "new.npz", X=X, y=labels)
    found = json_of("evaluate", tmp_path / "model", tmp_path / "new.npz")
    assert (found["n_rows"], found["n_unlabelled"]) == (150, 0)
