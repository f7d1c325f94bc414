"""Predictions written back to the cells they are of."""

import os
import shutil
from functools import partial

import anndata
import numpy as np
import pandas as pd
import pytest
import zarr

from dask_nrbfn import Dataset, FitParams, InlineEngine, fit_dataset, ingest_file
from dask_nrbfn.commands import predict as commands_predict
from dask_nrbfn.commands.predict import predict_dataset, predict_obs
from dask_nrbfn.errors import ExistsError, MissingDataError, ParameterError, RunBusyError
from dask_nrbfn.storage.array import get_array
from dask_nrbfn.storage.group import open_group
from tests.cells import drawn_cells, read_cells, write_cells
from tests.cli.program import json_of, refuse

CELLS = drawn_cells()


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Directory with cells in both formats of Zarr, and a run on their types."""
    directory = tmp_path_factory.mktemp("obs")
    for zarr_format in (2, 3):
        write_cells(CELLS, directory / f"cells{zarr_format}.zarr", zarr_format)
    fit(directory, "types", y="obs/cell_type")
    return directory


def fit(directory, name, **options):
    place = directory / "cells3.zarr"
    dataset = ingest_file(place, directory / f"{name}-data", x="obsm/X_pca", **options)
    fit_dataset(dataset, directory / name, FitParams(n_neighbors=5), InlineEngine())


@pytest.fixture
def place(fitted, tmp_path):
    return shutil.copytree(fitted / "cells3.zarr", tmp_path / "cells.zarr")


def annotate(fitted, name, place, to="obs/predicted", **options):
    run, dataset = fitted / name, Dataset.open(fitted / f"{name}-data")
    options = {"overwrite": False, **options}
    predict_obs(run, dataset, place, to, InlineEngine(), **options)


def predicted(fitted, name, tmp_path, **options):
    """Return a function that reads an array of predictions by its name."""
    dataset, out = Dataset.open(fitted / f"{name}-data"), tmp_path / "p.zarr"
    predict_dataset(fitted / name, dataset, out, InlineEngine(), **options)
    return partial(get_array, open_group(out, kind="predictions"))


def test_obs__labels_and_confidence(fitted, place, tmp_path):
    annotate(fitted, "types", place)
    cells, read = read_cells(place), predicted(fitted, "types", tmp_path, probabilities=True)
    assert isinstance(cells.obs["predicted"].dtype, pd.CategoricalDtype)
    assert cells.obs["predicted"].tolist() == read("labels")[:].tolist()
    certain = read("probabilities")[:].max(axis=1)
    np.testing.assert_array_equal(cells.obs["predicted_confidence"], certain)
    assert list(cells.obs.columns) == [*CELLS.obs.columns, "predicted", "predicted_confidence"]
    known = read_cells(fitted / "cells3.zarr").obs
    pd.testing.assert_frame_equal(cells.obs[CELLS.obs.columns], known)
    np.testing.assert_array_equal(cells.X.toarray(), CELLS.X.toarray())
    assert [path.name for path in place.parent.iterdir() if "unfinished" in path.name] == []


@pytest.mark.slow
def test_obs__numbers_and_what_is_kept(fitted, place, tmp_path):
    fit(fitted, "ages", target="obs/age,obs/w")
    annotate(fitted, "ages", place)
    cells, values = read_cells(place), predicted(fitted, "ages", tmp_path)("values")[:]
    np.testing.assert_array_equal(cells.obs[["predicted_age", "predicted_w"]], values)
    with pytest.raises(ExistsError, match=r"has obs/predicted_age\..*overwrite"):
        annotate(fitted, "ages", place)
    with pytest.raises(ExistsError, match="already has obs/barcode"):
        annotate(fitted, "types", place, "obs/barcode", overwrite=True)
    annotate(fitted, "ages", place, overwrite=True)
    assert read_cells(place).obs.columns.tolist() == cells.obs.columns.tolist()


def test_obs__killed_while_it_writes(fitted, place, monkeypatch):
    annotate(fitted, "types", place)
    known = list(CELLS.obs.columns)
    written = anndata.io.write_elem

    def dies_in_confidence(group, name, values):
        written(group, name, values[:9] if name.endswith("confidence") else values)
        if name.endswith("confidence"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(anndata.io, "write_elem", dies_in_confidence)
        with pytest.raises(KeyboardInterrupt):
            annotate(fitted, "types", place, overwrite=True)
    # The old columns are gone.
    assert read_cells(place).obs.columns.tolist() == known
    assert [path.name for path in place.parent.iterdir() if path.name.startswith(".")] == []
    annotate(fitted, "types", place)
    assert read_cells(place).obs["predicted_confidence"].notna().all()


def test_obs__one_job_at_a_time(fitted, place, monkeypatch):
    def second_job(*given):
        with pytest.raises(RunBusyError, match=rf"process {os.getpid()} on .* works on {place}"):
            annotate(fitted, "types", place, "obs/other")
        return write(*given)

    write = commands_predict._write
    with monkeypatch.context() as patched:
        patched.setattr(commands_predict, "_write", second_job)
        annotate(fitted, "types", place)
    annotate(fitted, "types", place, "obs/other")
    assert read_cells(place).obs.columns[-2:].tolist() == ["other", "other_confidence"]


def test_obs__consolidated_metadata_is_renewed(fitted, tmp_path):
    place = shutil.copytree(fitted / "cells2.zarr", tmp_path / "cells.zarr")
    annotate(fitted, "types", place)
    root = zarr.open_group(place, mode="r", use_consolidated=True)
    assert "predicted" in root["obs"]


@pytest.mark.parametrize("to", ["predicted", "obs/", "obs/a/b", "uns/predicted", "obs/__a"])
def test_obs__no_column(fitted, to):
    place = fitted / "cells3.zarr"
    with pytest.raises(ParameterError, match="to is"):
        annotate(fitted, "types", place, to)


def test_obs__no_cells(fitted, tmp_path):
    in_file = write_cells(CELLS, tmp_path / "cells.h5ad")
    for other in (fitted / "types-data", in_file):
        with pytest.raises(ParameterError, match="is no AnnData store"):
            annotate(fitted, "types", other)
    with pytest.raises(MissingDataError):
        annotate(fitted, "types", tmp_path / "none.zarr")


@pytest.mark.slow
def test_program__predicts_new_cells_as_it_was_trained(fitted, tmp_path):
    place = shutil.copytree(fitted / "cells3.zarr", tmp_path / "cells.zarr")
    run = fitted / "types"
    told = json_of("predict", run, place, "--to", "obs/predicted")
    assert told["columns"] == ["obs/predicted", "obs/predicted_confidence"]
    labels = read_cells(place).obs
    known = labels["cell_type"].notna()
    wrong = labels["predicted"].astype(str) != labels["cell_type"].astype(str)
    assert wrong[known].mean() < 0.2
    assert json_of("evaluate", run, place)["n_rows"] == known.sum()


def test_program__one_place_for_predictions(fitted, tmp_path):
    place = fitted / "cells3.zarr"
    run = fitted / "types"
    for given in ((), (tmp_path / "out", "--to", "obs/predicted")):
        problem, _ = refuse("predict", run, place, *given)
        assert problem == "OUT and --to are both given, or neither of them."
    problem, _ = refuse("predict", run, place, "--to", "obs/predicted", "--scores")
    assert "--scores is given" in problem


@pytest.mark.slow
def test_obs__over_a_url(fitted, tmp_path):
    import fsspec

    fs = fsspec.filesystem("memory")
    fs.put(str(fitted / "cells3.zarr"), "/named/cells.zarr", recursive=True)
    try:
        annotate(fitted, "types", "memory://named/cells.zarr")
        fs.get("/named/cells.zarr", str(tmp_path / "cells.zarr"), recursive=True)
    finally:
        fs.rm("/named", recursive=True)
    assert read_cells(tmp_path / "cells.zarr").obs["predicted"].notna().all()
