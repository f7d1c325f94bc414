"""Predictions written back to the cells they are of."""

import json
import shutil
from functools import partial

import numpy as np
import pandas as pd
import pytest
import zarr

from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.commands.ingest import ingest_file
from dask_nrbfn.commands.obs import ObsTarget
from dask_nrbfn.commands.predict import predict_dataset
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.errors import ExistsError, MissingDataError, ParameterError
from dask_nrbfn.params import FitParams
from dask_nrbfn.storage import obs
from dask_nrbfn.storage.array import get_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import open_group
from dask_nrbfn.storage.model import Model
from tests.cells import drawn_cells, read_cells, write_cells
from tests.cli.program import refuse, succeed

CELLS = drawn_cells()
INLINE = ("--workers", 0)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Directory with cells in both formats of Zarr, and a run on their types."""
    directory = tmp_path_factory.mktemp("obs")
    for zarr_format in (2, 3):
        write_cells(CELLS, directory / f"cells{zarr_format}.zarr", zarr_format)
    fit(directory, "types", y="obs/cell_type")
    return directory


@pytest.fixture(scope="module")
def all_fitted(fitted):
    """The same directory with runs on numbers too."""
    fit(fitted, "numbered", y="obs/number_type")
    fit(fitted, "ages", target="obs/age,obs/w")
    return fitted


def fit(directory, name, **options):
    place = directory / "cells3.zarr"
    dataset = ingest_file(place, directory / f"{name}-data", x="obsm/X_pca", **options)
    fit_dataset(dataset, directory / name, FitParams(n_neighbors=5), InlineEngine())


@pytest.fixture(params=[pytest.param(2, marks=pytest.mark.slow), 3])
def place(fitted, tmp_path, request):
    return shutil.copytree(fitted / f"cells{request.param}.zarr", tmp_path / "cells.zarr")


def annotate(fitted, name, place, to="obs/predicted", **options):
    run, dataset = fitted / name, Dataset.open(fitted / f"{name}-data")
    options = {"overwrite": False, **options}
    ObsTarget(place, to, Model.load(run), **options).write(run, dataset, InlineEngine())


def expected(fitted, name, tmp_path):
    run, dataset = fitted / name, Dataset.open(fitted / f"{name}-data")
    predict_dataset(run, dataset, tmp_path / "p.zarr", InlineEngine(), probabilities=name != "ages")
    return partial(get_array, open_group(tmp_path / "p.zarr", kind="predictions"))


def test_obs__labels_and_confidence(fitted, place, tmp_path):
    check_labels(fitted, "types", place, tmp_path)


@pytest.mark.slow
def test_obs__classes_that_are_numbers(all_fitted, place, tmp_path):
    check_labels(all_fitted, "numbered", place, tmp_path)


def check_labels(fitted, name, place, tmp_path):
    annotate(fitted, name, place)
    cells = read_cells(place)
    read = expected(fitted, name, tmp_path)
    assert isinstance(cells.obs["predicted"].dtype, pd.CategoricalDtype)
    assert cells.obs["predicted"].tolist() == read("labels")[:].tolist()
    certain = read("probabilities")[:].max(axis=1)
    np.testing.assert_array_equal(cells.obs["predicted_confidence"], certain)
    assert list(cells.obs.columns[-2:]) == ["predicted", "predicted_confidence"]
    pd.testing.assert_frame_equal(
        cells.obs[CELLS.obs.columns], read_cells(fitted / "cells3.zarr").obs
    )
    np.testing.assert_array_equal(cells.obsm["X_pca"], CELLS.obsm["X_pca"])
    assert [path.name for path in place.parent.iterdir() if "unfinished" in path.name] == []


@pytest.mark.slow
def test_obs__numbers(all_fitted, place, tmp_path):
    annotate(all_fitted, "ages", place)
    cells, values = read_cells(place), expected(all_fitted, "ages", tmp_path)("values")[:]
    np.testing.assert_array_equal(cells.obs["predicted_age"], values[:, 0])
    np.testing.assert_array_equal(cells.obs["predicted_w"], values[:, 1])


@pytest.mark.slow
def test_obs__what_is_there_is_kept_unless_overwritten(all_fitted, place):
    annotate(all_fitted, "types", place)
    with pytest.raises(ExistsError, match=r"has a column obs/predicted\..*overwrite"):
        annotate(all_fitted, "numbered", place)
    with pytest.raises(ExistsError, match="column obs/barcode"):
        annotate(all_fitted, "types", place, "obs/barcode", overwrite=True)
    annotate(all_fitted, "numbered", place, overwrite=True)
    cells = read_cells(place)
    assert set(cells.obs["predicted"].unique()) <= {0, 2, 4}
    assert list(cells.obs.columns).count("predicted") == 1


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("overwrite", [True, False])
def test_obs__killed_while_it_writes(fitted, place, overwrite, monkeypatch):
    if overwrite:
        annotate(fitted, "types", place)

    def dies(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(obs, "_fill", dies)
    with pytest.raises(KeyboardInterrupt):
        annotate(fitted, "types", place, overwrite=overwrite)
    assert list(read_cells(place).obs.columns) == list(CELLS.obs.columns)
    monkeypatch.undo()
    annotate(fitted, "types", place)
    assert read_cells(place).obs["predicted"].notna().all()


@pytest.mark.parametrize("to", ["predicted", "obs/", "obs/a/b", "uns/predicted"])
def test_obs__no_column(fitted, to):
    place = fitted / "cells3.zarr"
    with pytest.raises(ParameterError, match="to is"):
        annotate(fitted, "types", place, to)


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


def test_obs__no_cells(fitted, tmp_path):
    with pytest.raises(ParameterError, match="no AnnData store in Zarr"):
        annotate(fitted, "types", fitted / "types-data")
    with pytest.raises(MissingDataError):
        annotate(fitted, "types", tmp_path / "none.zarr")


@pytest.mark.slow
def test_program__predicts_new_cells_as_it_was_trained(fitted, tmp_path):
    place = shutil.copytree(fitted / "cells3.zarr", tmp_path / "cells.zarr")
    run = fitted / "types"
    told = json.loads(succeed("predict", run, place, "--to", "obs/predicted", "--json", *INLINE))
    assert told["columns"] == ["obs/predicted", "obs/predicted_confidence"]
    labels = read_cells(place).obs
    known = labels["cell_type"].notna()
    wrong = labels["predicted"].astype(str) != labels["cell_type"].astype(str)
    assert wrong[known].mean() < 0.2
    assert json.loads(succeed("evaluate", run, place, "--json", *INLINE))["n_rows"] == known.sum()


def test_program__one_place_for_predictions(fitted, tmp_path):
    place = fitted / "cells3.zarr"
    run = fitted / "types"
    problem, _ = refuse("predict", run, place)
    assert problem == "neither OUT nor --to is given."
    problem, _ = refuse("predict", run, place, tmp_path / "out", "--to", "obs/predicted")
    assert problem == "OUT and --to are both given."
    problem, _ = refuse("predict", run, place, "--to", "obs/predicted", "--scores")
    assert "--scores is given" in problem


@pytest.mark.slow
def test_program__update_with_new_cells(fitted, tmp_path):
    place = shutil.copytree(fitted / "cells2.zarr", tmp_path / "cells.zarr")
    run = shutil.copytree(fitted / "types", tmp_path / "run")
    zarr.open_group(place, mode="r+", use_consolidated=False)["obsm/X_pca"][:] += 1
    succeed("update", run, place, *INLINE)
    assert Model.load(run).read_as == {"x": "obsm/X_pca", "y": "obs/cell_type"}
