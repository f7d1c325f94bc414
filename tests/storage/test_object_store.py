"""Datasets, runs and models on URLs, against a server process that speaks S3 on loopback."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import dask.array as da
import fsspec
import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris

from dask_nrbfn import NRBFNClassifier
from dask_nrbfn.commands.describe import problems_of
from dask_nrbfn.commands.fit import fit_dataset, refresh_run
from dask_nrbfn.commands.ingest import ingest_file
from dask_nrbfn.commands.update import Judge, merge_runs, update_run
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.errors import (
    DamagedDataError,
    ExistsError,
    MissingDataError,
    NRBFNError,
    ParameterError,
    StorageError,
)
from dask_nrbfn.params import FitParams
from dask_nrbfn.spec import Spec
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import exists, locked_run, replacing_group
from dask_nrbfn.storage.location import RemoteLocation, file_system, join
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import Run
from tests.engine.processes import PATIENCE_S, wait_until
from tests.sites import write_site
from tests.storage.conftest import SECRET
from tests.storage.replacing import begin, files
from tests.storage.written import make_model, table, write_dataset
from tests.tables import spirals

RUNS = list(enumerate(["first", "second", "third", "fourth"]))

PROGRAM = [sys.executable, "-m", "dask_nrbfn"]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


# What is stored


def test_object_store__dataset_and_model_come_back(place):
    X, y = table(9), np.array(["b", "a", "ä"] * 3)
    dataset = write_dataset(join(place, "data"), X, y)
    np.testing.assert_array_equal(dataset.take(np.arange(9)), X)
    assert problems_of(Dataset.open(join(place, "data"))) == []
    model = make_model()
    model.save(join(place, "model"))
    assert Model.load(join(place, "model")).digest() == model.digest()


@pytest.mark.ci
@pytest.mark.parametrize("suffix", ["csv", "npz"])
def test_object_store__rows_are_ingested_from_it(bucket, options, tmp_path, suffix):
    frame = pd.DataFrame(table(9)).add_prefix("c").assign(y=np.arange(9) % 2)
    path = tmp_path / f"rows.{suffix}"
    if suffix == "npz":
        np.savez(path, X=table(9), y=frame["y"])
    else:
        frame.to_csv(path, index=False)
    fsspec.filesystem("s3", **options).put_file(str(path), f"{bucket}/{path.name}"[5:])
    label = None if suffix == "npz" else "y"
    dataset = ingest_file(join(bucket, path.name), join(bucket, "data"), label=label)
    expected = ingest_file(path, tmp_path / "data", label=label)
    assert dataset.fingerprint == expected.fingerprint


def test_object_store__missing_chunk(place):
    dataset = write_dataset(join(place, "data"), table(9))
    fs, path = file_system(dataset.location)
    fs.rm_file(f"{path}/X/c/1/0")
    with pytest.raises(MissingDataError, match=r"chunk X/c/1/0 of .*place.*/data is missing"):
        Dataset.open(dataset.location).take(np.arange(9))


def test_object_store__flipped_byte(place):
    dataset = write_dataset(join(place, "data"), table(9))
    fs, path = file_system(dataset.location)
    good = fs.cat_file(f"{path}/X/c/1/0")
    fs.pipe_file(f"{path}/X/c/1/0", good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
    with pytest.raises(DamagedDataError, match=r"rows 4 to 8 of .*place.*X cannot be read"):
        Dataset.open(dataset.location).read_chunk(1)


@pytest.mark.slow
def test_object_store__a_run_is_updated_merged_and_refreshed(place, tmp_path):
    X, y = spirals(240)
    params = FitParams(basis="random", basis_size=20, alpha=1e-9)

    def up_to_date(directory):
        rows = [
            write_dataset(join(directory, name), X[i::4], y[i::4], chunk_rows=25)
            for i, name in RUNS
        ]
        run, site = join(directory, "run"), join(directory, "site")
        fitted = fit_dataset(rows[0], run, params, InlineEngine())
        update_run(run, rows[1], InlineEngine(), judge=Judge(rows[3], 1.0))
        write_site(fitted, site, rows[0], rows[2])
        merge_runs(run, site, InlineEngine())
        update_run(run, rows[1], InlineEngine(), forget=True)
        updated = Model.load(run).digest()
        refresh_run(run, [], InlineEngine(), judge=Judge(rows[3], 1.0))
        return updated, Model.load(run).digest()

    assert up_to_date(place) == up_to_date(tmp_path)
    fs, path = file_system(RemoteLocation(str(place), getattr(place, "storage_options", {})))
    assert not [name for name in fs.ls(path, detail=False) if name.split("/")[-1].startswith(".")]


# Options


@pytest.mark.ci
def test_remote_location__tells_no_secret(bucket):
    data, run = join(bucket, "data"), join(bucket, "run")
    dataset = write_dataset(data, table(9), np.arange(9) % 2)
    Run.start(run, dataset, Spec.of(FitParams()), {})
    with pytest.raises(NRBFNError) as caught:
        Dataset.open(run)
    shown = [str(run), repr(run), repr(dataset), str(caught.value), repr(dataset.X)]
    assert not [text for text in shown if SECRET in text]
    assert not [name for name, value in files(bucket).items() if SECRET.encode() in value]
    assert json.loads(files(run)["zarr.json"])["attributes"]["dataset"] == f"{bucket}/data"


def test_replacing__a_url_that_names_nothing():
    with pytest.raises(ParameterError, match=r"no name after the protocol\. Give a complete URL"):
        begin("memory://", 3, overwrite=False)


def test_remote_location__must_be_a_url():
    with pytest.raises(ParameterError, match=r"run\.zarr has storage options, but is not a URL"):
        RemoteLocation("run.zarr", {"key": "a"})


# Replacing


@pytest.mark.parametrize(("name", "overwrite"), [("data", False), ("data/d.zarr/mine.txt", True)])
def test_replacing__not_what_is_no_group(place, name, overwrite):
    fs, path = file_system(place)
    fs.pipe_file(f"{path}/{name}", b"mine")
    with (
        pytest.raises(ExistsError, match=r"data (already )?exists"),
        replacing_group(join(place, "data"), kind="dataset", overwrite=overwrite),
    ):
        pytest.fail("the block must not run")
    assert files(place) == {name: b"mine"}


def test_replacing__a_half_moved_one_is_not_opened(place, monkeypatch):
    data = join(place, "data")
    write_dataset(data, table(9))
    fs, _ = file_system(data)
    copy, done = fs.copy, []

    def copy_and_fail(sources, targets):
        if len(done) == 1:
            raise OSError("the network is gone")
        done.append(copy(sources, targets))

    monkeypatch.setattr(fs, "copy", copy_and_fail)
    with pytest.raises(StorageError, match="could not be replaced") as caught:
        write_dataset(data, table(3, seed=1))
    with pytest.raises(MissingDataError):
        Dataset.open(data)
    unfinished = caught.value.remedy.split("complete at ")[1].split(": move")[0]
    complete = Dataset.open(RemoteLocation(unfinished, data.storage_options))
    np.testing.assert_array_equal(complete.take(np.arange(3)), table(3, seed=1))
    # Another try needs no cleaning up.
    monkeypatch.undo()
    begin(data, 4, overwrite=True)()
    assert Dataset.open(data).n_rows == 4
    assert set(files(data)) == {"zarr.json", "X/zarr.json", "X/c/0/0"}


# Errors


def refused(action):
    """Return the error of an action that a user can mend, which comes in reasonable time."""
    start = time.perf_counter()
    with pytest.raises(NRBFNError) as caught:
        action()
    # No patience for a store that does not answer, but for a machine that is busy.
    assert time.perf_counter() - start < PATIENCE_S
    assert caught.value.problem.endswith(".")
    assert caught.value.remedy
    return caught.value


@pytest.mark.ci
def test_errors__no_such_bucket(options):
    nowhere = RemoteLocation("s3://no-such-bucket/data", options)
    assert not exists(nowhere)
    assert "there is no dataset at" in refused(lambda: Dataset.open(nowhere)).problem
    error = refused(lambda: write_dataset(nowhere, table(3)))
    assert isinstance(error, MissingDataError)
    assert "bucket does not exist" in error.problem
    assert "Create the bucket" in error.remedy


def require_credentials(endpoint, after_actions):
    request = urllib.request.Request(
        f"{endpoint}/moto-api/reset-auth",
        data=str(after_actions).encode(),
        headers={"Content-Type": "text/plain"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S):
        pass


@pytest.mark.ci
def test_errors__wrong_credentials(endpoint, bucket):
    write_dataset(join(bucket, "data"), table(3))
    require_credentials(endpoint, 0)
    try:
        for action in (
            lambda: Dataset.open(join(bucket, "data")),
            lambda: write_dataset(join(bucket, "new"), table(3)),
            lambda: locked_run(join(bucket, "run")).__enter__(),
        ):
            error = refused(action)
            assert "is refused (PermissionError: " in error.problem
            assert "Check the credentials" in error.remedy
    finally:
        require_credentials(endpoint, "inf")


@pytest.mark.ci
def test_errors__no_answer(options, monkeypatch):
    monkeypatch.setattr("dask_nrbfn.storage.location._METADATA_TIMEOUT_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        location = RemoteLocation(
            "s3://bucket/data", {**options, "client_kwargs": {"endpoint_url": address}}
        )
        error = refused(lambda: Dataset.open(location))
    assert "no answer in 1 s" in error.problem


def test_errors__package_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    error = refused(lambda: Dataset.open("gs://bucket/data"))
    assert "needs a package that is not installed" in error.problem
    assert "dask-nrbfn[gcs]" in error.remedy


@pytest.mark.ci
def test_errors__unknown_protocol_and_option(options):
    assert "s4" in refused(lambda: Dataset.open("s4://bucket/data")).problem
    wrong = RemoteLocation("s3://bucket/data", {**options, "colour": "red"})
    assert "colour" in refused(lambda: Dataset.open(wrong)).problem


# Jobs


def start(options, *arguments):
    """Start a command in its own process group, so that it can be killed with its workers."""
    return subprocess.Popen(
        [*PROGRAM, *map(str, arguments)],
        env=os.environ | ONE_THREAD | {"FSSPEC_S3": json.dumps(options)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def command(options, *arguments):
    """Run a command to its good end; return what it printed and logged."""
    process = start(options, *arguments)
    try:
        out, log = process.communicate(timeout=100)
    finally:
        process.kill()
    assert process.returncode == 0, log
    assert SECRET not in out + log
    return out, log


@pytest.mark.ci
@pytest.mark.slow
def test_command_line__every_step_and_a_killed_fit(bucket, options, tmp_path):
    data, run, out = (join(bucket, name) for name in ("data", "run", "out"))
    X, y = load_iris(return_X_y=True)
    np.savez(tmp_path / "rows.npz", X=X, y=y)
    command(options, "ingest", tmp_path / "rows.npz", data, "--chunk-rows", 40)
    assert "problem            none" in command(options, "inspect", "--verify", data)[0]

    fit = ("fit", data, run, "--alpha", 1e-6, "--n-parts", 4, "--workers", 1, "--threads", 1)
    killed = start(options, *fit)
    wait_until(lambda: exists(run) and "neighbors" in Run.open(run).stages, process=killed)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert "model" not in Run.open(run).stages

    log = command(options, *fit)[1]
    assert "neighbors:" not in log
    assert "model:" in log
    expected = NRBFNClassifier(alpha=1e-6, n_parts=4).fit(X, y)
    np.testing.assert_allclose(Model.load(run).weights, expected.weights_, rtol=1e-6)

    assert "error_rate" in command(options, "evaluate", run, data, "--workers", 0)[0]
    command(options, "predict", run, data, out, "--workers", 1, "--threads", 1)
    assert {name.split("/")[0] for name in files(bucket)} == {"data", "run", "out"}


@pytest.mark.ci
@pytest.mark.slow
def test_estimator__store_with_options_on_workers(bucket, two_workers):
    X, y = load_iris(return_X_y=True)
    rows, labels = da.from_array(X, chunks=(50, 4)), da.from_array(y, chunks=50)
    with two_workers.client.as_current():
        network = NRBFNClassifier(alpha=1e-6, store=bucket).fit(rows, labels)
        predicted = network.predict(rows).compute()
    np.testing.assert_array_equal(predicted, NRBFNClassifier(alpha=1e-6).fit(X, y).predict(X))
