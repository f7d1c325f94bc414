"""Maps that the command line makes of scenes."""

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_nrbfn import (
    Dataset,
    FitParams,
    NRBFNClassifier,
    NRBFNError,
    fit_dataset,
    ingest_file,
    predict_scene,
)
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.scorer import Scorer
from dask_nrbfn.storage.model import Model
from tests.cli.program import PROGRAM, refuse, succeed
from tests.scenes import CLASSES, drawn_scene, pixels_of, predicted, row_by_row, write_scene

PARAMS = FitParams(n_neighbors=5, alpha=1e-6)
WHERE = {"variable": "reflectance", "feature_dim": "band"}
OPTIONS = ("--variable", "reflectance", "--feature-dim", "band", "--workers", 0)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Give a directory with a scene in Zarr v3 and a run on its labelled pixels."""
    place = tmp_path_factory.mktemp("scene")
    write_scene(drawn_scene(), place / "scene.zarr", chunks=(1, 2, 4, 5))
    dataset = ingest_file(place / "scene.zarr", place / "pixels", **WHERE, label="cover")
    fit_dataset(dataset, place / "run", PARAMS, InlineEngine())
    return place


@pytest.fixture(scope="module")
def expected(place):
    network = NRBFNClassifier.load(place / "run")
    return row_by_row(network, drawn_scene()["reflectance"])


def mapped(run, scene, out, **options):
    """Return a map as xarray opens it, and what was said of it."""
    result = predict_scene(run, scene, out, InlineEngine(), **{**WHERE, **options})
    return xr.open_zarr(out, chunks=None), result


def small_boxes(monkeypatch):
    """Let boxes be single chunks, however small these are."""
    monkeypatch.setattr("dask_nrbfn.sources.cubes.BOX_PIXELS", 1)


def test_ingest__labelled_pixels_are_rows(place):
    dataset, cube = Dataset.open(place / "pixels"), drawn_scene()["reflectance"]
    rows = pixels_of(cube)
    labels = drawn_scene()["cover"].broadcast_like(cube.isel(band=0)).to_numpy().ravel()
    kept = np.flatnonzero(~np.isnan(labels) & rows.notna().all(axis=1))
    numbers = np.asarray(dataset.ids[:])
    assert sorted(numbers.tolist()) == kept.tolist()
    np.testing.assert_array_equal(np.asarray(dataset.X[:]), rows.to_numpy()[numbers])
    np.testing.assert_array_equal(np.asarray(dataset.y[:]), labels[numbers])
    assert dataset.feature_names == ("blue", "green", "red")


@given(
    chunks=st.tuples(*(st.integers(1, size) for size in (2, 3, 7, 9))),
    order=st.permutations(["time", "band", "y", "x"]),
    box_pixels=st.sampled_from([1, 20, 2**16]),
)
@settings(max_examples=2, deadline=None)
def test_map__is_row_by_row(place, expected, tmp_path_factory, chunks, order, box_pixels):
    directory = tmp_path_factory.mktemp("map")
    scene = drawn_scene()
    scene["reflectance"] = scene["reflectance"].transpose(*order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dask_nrbfn.sources.cubes.BOX_PIXELS", box_pixels)
        written = write_scene(scene, directory / "scene.zarr", chunks=chunks)
        found, result = mapped(place / "run", written, directory / "map.zarr")
    assert found["label"].dims == tuple(dim for dim in order if dim != "band")
    np.testing.assert_array_equal(found["label"].transpose("time", "y", "x"), expected)
    assert (result.n_pixels, result.n_missing) == (126, int(np.isnan(expected).sum()))


def test_map__opens_in_xarray_as_the_scene_does(place, tmp_path):
    found, _ = mapped(place / "run", place / "scene.zarr", tmp_path / "map", probabilities=True)
    scene = xr.open_zarr(place / "scene.zarr", chunks=None)
    assert {*found["label"].coords} == {"time", "x", "lon", "spatial_ref"}
    for name in found["label"].coords:
        xr.testing.assert_identical(found["label"][name].variable, scene[name].variable)
    assert found.attrs["title"] == "a drawn scene"
    assert found["label"].attrs == {"sensor": "drawn", "grid_mapping": "spatial_ref"}
    assert found["probability"].dims == ("time", "class", "y", "x")
    network = NRBFNClassifier.load(place / "run")
    shares = predicted(network, scene["reflectance"], "band", method="predict_proba")
    np.testing.assert_allclose(
        np.moveaxis(found["probability"].to_numpy(), 1, -1), shares, atol=1e-6
    )
    assert [name.name for name in tmp_path.iterdir()] == ["map"]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_map__scaled_integers_are_what_xarray_reads(place, tmp_path, zarr_format):
    packed = {"dtype": "int16", "scale_factor": 0.001, "add_offset": 0.5, "_FillValue": -9999}
    written = write_scene(drawn_scene(), tmp_path / "scene.zarr", zarr_format=zarr_format, **packed)
    found, result = mapped(place / "run", written, tmp_path / "map.zarr")
    opened = xr.open_zarr(written, chunks=None)["reflectance"]
    network = NRBFNClassifier.load(place / "run")
    np.testing.assert_array_equal(found["label"], predicted(network, opened, "band"))
    assert result.n_missing > 0


def test_map__the_largest_written_is_that_of_the_label(place, tmp_path):
    model = Model.load(place / "run")
    weights = 40 * model.weights
    weights[1:] = weights[0]
    # Less than float32 shows, either way.
    weights[1] += 1e-9 * model.weights[1]
    replace(model, weights=weights).save(tmp_path / "model")
    found, _ = mapped(
        tmp_path / "model", place / "scene.zarr", tmp_path / "m", probabilities=True, scores=True
    )
    labels = found["label"].to_numpy()
    known = ~np.isnan(labels)
    for name in ("probability", "score"):
        written = np.moveaxis(found[name].to_numpy(), found[name].dims.index("class"), -1)[known]
        np.testing.assert_array_equal(model.classes[written.argmax(axis=-1)], labels[known])
    assert len(set(labels[known].tolist())) > 1


@pytest.mark.slow
def test_map__text_labels_are_flags(tmp_path):
    scene = drawn_scene(text=True)
    written = write_scene(scene, tmp_path / "scene.zarr")
    dataset = ingest_file(written, tmp_path / "pixels", **WHERE, label="cover")
    assert dataset.classes.tolist() == sorted(CLASSES)
    run = fit_dataset(dataset, tmp_path / "run", PARAMS, InlineEngine())
    found, _ = mapped(run.location, written, tmp_path / "map.zarr", probabilities=True)
    assert found["class"].to_numpy().tolist() == ["forest", "open water", "town"]
    label = found["label"]
    assert label.attrs["flag_meanings"] == "forest open_water town"
    assert label.attrs["flag_values"] == [0, 1, 2]
    assert label.encoding["dtype"] == np.uint8
    names = found["class"].to_numpy()
    rows, known = pixels_of(scene["reflectance"]), label.notnull().to_numpy().ravel()
    np.testing.assert_array_equal(rows.notna().all(axis=1), known)
    expected = NRBFNClassifier.load(run.location).predict(rows[known])
    assert (names[label.to_numpy().ravel()[known].astype(int)] == expected).all()


@pytest.mark.slow
def test_map__of_a_regression_and_of_rows_without_labels(tmp_path):
    written = write_scene(drawn_scene(), tmp_path / "scene.zarr", chunks=(1, 3, 4, 4))
    dataset = ingest_file(written, tmp_path / "pixels", **WHERE, target="height")
    run = fit_dataset(dataset, tmp_path / "run", FitParams(alpha=1e-6), InlineEngine())
    found, _ = mapped(run.location, written, tmp_path / "map.zarr")
    assert found["value"].dims == ("time", "y", "x")
    assert float(abs(found["value"] - drawn_scene()["height"]).median()) < 0.5
    kept = ingest_file(written, tmp_path / "all", **WHERE, label="cover", unlabelled="-1")
    assert kept.n_unlabelled > 0
    assert kept.n_rows == int(found["value"].notnull().sum())
    with pytest.raises(NRBFNError, match="predicts numbers"):
        mapped(run.location, written, tmp_path / "other", scores=True)


def test_map__resumes_where_it_was_stopped(place, tmp_path, monkeypatch, expected, caplog):
    small_boxes(monkeypatch)
    scored, real = [], Scorer.pixels

    def stopping(scorer, rows):
        scored.append(len(rows))
        if len(scored) == 4:
            raise KeyboardInterrupt
        return real(scorer, rows)

    monkeypatch.setattr(Scorer, "pixels", stopping)
    out = tmp_path / "map.zarr"
    with pytest.raises(KeyboardInterrupt):
        mapped(place / "run", place / "scene.zarr", out, probabilities=True)
    (unfinished,) = tmp_path.iterdir()
    assert unfinished.name == ".map.zarr.unfinished"
    with pytest.raises(NRBFNError, match="has another choice"):
        mapped(place / "run", place / "scene.zarr", out)
    # A chunk that a power cut has left empty is computed again.
    chunk = next(file for file in (unfinished / "label/c").rglob("*") if file.is_file())
    chunk.write_bytes(b"")
    caplog.set_level("INFO", logger="dask_nrbfn")
    found, result = mapped(place / "run", place / "scene.zarr", out, probabilities=True)
    assert "2 of 8 boxes were found finished" in caplog.text
    assert len(scored) == 4 + 6
    np.testing.assert_array_equal(found["label"], expected)
    assert result.n_missing == np.isnan(expected).sum()
    assert list(tmp_path.iterdir()) == [out]


def test_map__begun_of_another_model_or_scene(place, tmp_path, monkeypatch):
    out, scene = tmp_path / "map.zarr", tmp_path / "scene.zarr"
    shutil.copytree(place / "scene.zarr", scene)
    with monkeypatch.context() as patch:
        patch.setattr(Scorer, "pixels", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            mapped(place / "run", scene, out)
    Model.load(place / "run").save(tmp_path / "model")
    with pytest.raises(NRBFNError, match="has another scene"):
        mapped(tmp_path / "model", place / "scene.zarr", out)
    found, _ = mapped(place / "run", place / "scene.zarr", out, overwrite=True)
    assert "label" in found
    with pytest.raises(NRBFNError, match="exists"):
        mapped(place / "run", place / "scene.zarr", out)


def test_predict__program(place, tmp_path):
    scene, out = place / "scene.zarr", tmp_path / "map.zarr"
    figures = json.loads(succeed("predict", place / "run", scene, out, *OPTIONS, "--json"))
    assert figures["n_pixels"] == 126
    assert figures["n_missing"] > 0
    described = json.loads(succeed("inspect", out, "--json"))
    assert described["sizes"] == {"time": 2, "y": 7, "x": 9}
    assert described["results"] == ["label"]


def test_predict__program_refuses(place, tmp_path):
    scene, out, run = place / "scene.zarr", tmp_path / "map.zarr", place / "run"
    for arguments, message in (
        ((run, scene, out, *OPTIONS, "--keep", "a"), "--keep is given"),
        (
            (run, scene, out, "--variable", "reflectance"),
            "dimension of its features is not known",
        ),
        ((run, scene, out, "--feature-dim", "z"), "no variables along z"),
        ((run, scene, out, "--variable", "a", "--feature-dim", "band"), "--variable is a"),
        ((run, scene, out, "--variable", "cover", "--feature-dim", "band"), "not band"),
        ((run, place / "none", out, *OPTIONS), "does not exist"),
        ((run, scene, tmp_path / "a/b.csv", *OPTIONS), ".csv"),
    ):
        problem, _ = refuse("predict", *arguments)
        assert message in problem
    problem, _ = refuse("ingest", scene, out, *OPTIONS[:4], "--label", "none")
    assert problem.startswith("--label is none, but the variables")
    problem, _ = refuse("ingest", scene, out, *OPTIONS[:4], "--weights", "cover")
    assert "--weights=cover does not go with" in problem
    assert list(tmp_path.iterdir()) == []


def test_scene__whose_features_are_not_named(place, tmp_path):
    scene, out = place / "scene.zarr", tmp_path / "out"
    drawn_scene().to_netcdf(tmp_path / "scene.nc")
    named = "name its feature dimension with --feature-dim, or its variables with --variable"
    for arguments in (
        ("predict", place / "run", scene),
        ("predict", place / "run", tmp_path / "scene.nc"),
        ("ingest", scene),
        ("ingest", tmp_path / "scene.nc"),
    ):
        _, fix = refuse(*arguments, out)
        assert named in fix
    _, fix = refuse("fit", scene, out)
    assert named.replace("--", "ingest --") in fix
    for stored in (place / "pixels", place / "run"):
        problem, _ = refuse("ingest", stored, out)
        assert problem == f"{stored} is a group of dask_nrbfn, such as a dataset or a run."


@pytest.mark.slow
def test_predict__killed_and_started_again(place, tmp_path):
    scene = drawn_scene((2, 300, 300))
    written = write_scene(scene, tmp_path / "scene.zarr", chunks=(1, 3, 300, 300))
    out, unfinished = tmp_path / "map.zarr", tmp_path / ".map.zarr.unfinished"
    command = [*PROGRAM, "predict", place / "run", written, out, *OPTIONS]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not list(unfinished.glob("label/c/*/*/*")):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = {file: file.stat().st_mtime_ns for file in unfinished.glob("label/c/*/*/*")}
    assert kept
    assert not out.exists()
    succeed(*command[len(PROGRAM) :])
    for file, written_at in kept.items():
        assert (out / file.relative_to(unfinished)).stat().st_mtime_ns == written_at
    network = NRBFNClassifier.load(place / "run")
    found = xr.open_zarr(out, chunks=None)["label"]
    np.testing.assert_array_equal(found, predicted(network, scene["reflectance"], "band"))
