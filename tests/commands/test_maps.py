"""Maps of scenes, in Python and by the command line."""

import fsspec
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_nrbfn import (
    FitParams,
    NRBFNClassifier,
    NRBFNError,
    fit_dataset,
    ingest_file,
    predict_scene,
)
from dask_nrbfn.engine import InlineEngine
from tests.cli.program import json_of, refuse
from tests.scenes import CLASSES, drawn_scene, predicted, write_scene

PARAMS = FitParams(basis="random", basis_size=40, alpha=1e-6)
WHERE = {"variable": "reflectance", "feature_dim": "band"}
OPTIONS = ("--variable", "reflectance", "--feature-dim", "band")


def fitted(scene, place, **options):
    dataset = ingest_file(scene, f"{place}-pixels", **options)
    return str(fit_dataset(dataset, place, PARAMS, InlineEngine()).location)


def mapped(run, scene, out, **options):
    """Return a map as xarray opens it, and the result of the command."""
    result = predict_scene(run, scene, out, InlineEngine(), **{**WHERE, **options})
    return xr.open_zarr(out, chunks=None), result


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Give a directory with a scene in Zarr v3 and a run on its labelled pixels."""
    place = tmp_path_factory.mktemp("scene")
    write_scene(drawn_scene(), place / "scene.zarr", chunks=(1, 2, 4, 5))
    fitted(place / "scene.zarr", place / "run", **WHERE, label="cover")
    return place


@pytest.fixture(scope="module")
def expected(place):
    """Give the labels that an estimator predicts of each pixel alone, NaN where one has gaps."""
    cube, network = drawn_scene()["reflectance"], NRBFNClassifier.load(place / "run")
    pixels = [cube.isel(time=[t], y=[y], x=[x]) for t, y, x in np.ndindex(2, 7, 9)]
    found = [np.nan if p.isnull().any() else predicted(network, p, "band").item() for p in pixels]
    return np.reshape(found, (2, 7, 9))


@pytest.mark.slow
@given(
    chunks=st.tuples(*(st.integers(1, size) for size in (2, 3, 7, 9))),
    order=st.permutations(["time", "band", "y", "x"]),
    box_pixels=st.sampled_from([1, 20, 2**16]),
    zarr_format=st.sampled_from([2, 3]),
)
@settings(max_examples=2, deadline=None)
def test_map__same_for_any_chunks(
    place, expected, tmp_path_factory, chunks, order, box_pixels, zarr_format
):
    directory, scene = tmp_path_factory.mktemp("map"), drawn_scene()
    scene["reflectance"] = scene["reflectance"].transpose(*order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dask_nrbfn.sources.scene.BOX_PIXELS", box_pixels)
        how = {"chunks": chunks, "zarr_format": zarr_format}
        written = write_scene(scene, directory / "scene.zarr", **how)
        found, result = mapped(place / "run", written, directory / "map.zarr")
    assert found["label"].dims == tuple(dim for dim in order if dim != "band")
    np.testing.assert_array_equal(found["label"].transpose("time", "y", "x"), expected)
    assert result == np.isnan(expected).sum()


def test_map__opens_in_xarray_as_the_scene_does(place, tmp_path):
    asked = {"probabilities": True, "scores": True}
    found, _ = mapped(place / "run", place / "scene.zarr", tmp_path / "map", **asked)
    scene = xr.open_zarr(place / "scene.zarr", chunks=None)
    assert {*found["label"].coords} == {"time", "x", "lon", "spatial_ref"}
    for name in found["label"].coords:
        xr.testing.assert_identical(found["label"][name].variable, scene[name].variable)
    assert found["label"].attrs == {"grid_mapping": "spatial_ref"}
    assert found["probability"].dims == ("class", "time", "y", "x")
    network = NRBFNClassifier.load(place / "run")
    shares = predicted(network, scene["reflectance"], "band", method="predict_proba")
    np.testing.assert_allclose(found["probability"].transpose(..., "class"), shares, atol=1e-6)
    assert [name.name for name in tmp_path.iterdir()] == ["map"]
    with pytest.raises(NRBFNError, match="exists"):
        mapped(place / "run", place / "scene.zarr", tmp_path / "map")
    # A lost chunk is missing, and not the first class.
    next(file for file in (tmp_path / "map/label/c").rglob("*") if file.is_file()).unlink()
    assert xr.open_zarr(tmp_path / "map", chunks=None)["label"].isnull().all()


def test_map__text_labels_are_flags(tmp_path, expected):
    written = write_scene(drawn_scene(text=True), tmp_path / "scene.zarr")
    run = fitted(written, tmp_path / "run", **WHERE, label="cover")
    label = mapped(run, written, tmp_path / "map.zarr")[0]["label"].load()
    assert label.attrs["flag_meanings"] == "forest open_water town"
    assert label.attrs["flag_values"] == [0, 1, 2]
    assert label.encoding["dtype"] == np.uint8
    known = label.notnull().to_numpy()
    np.testing.assert_array_equal(known, ~np.isnan(expected))
    names = np.sort(CLASSES)[label.to_numpy()[known].astype(int)]
    assert names.tolist() == CLASSES[expected[known].astype(int) - 1].tolist()


@pytest.mark.slow
def test_map__of_one_and_several_targets(tmp_path):
    scene = drawn_scene()
    scene["depth"] = -scene["height"]
    written = write_scene(scene, tmp_path / "scene.zarr", chunks=(1, 3, 4, 4))
    run = fitted(written, tmp_path / "one", **WHERE, target="height")
    one, _ = mapped(run, written, tmp_path / "one.zarr")
    assert one["value"].dims == ("time", "y", "x")
    assert float(abs(one["value"] - scene["height"]).median()) < 0.5
    with pytest.raises(NRBFNError, match="scores is given, but the model predicts numbers"):
        mapped(run, written, tmp_path / "other", scores=True)
    run = fitted(written, tmp_path / "two", **WHERE, target="height,depth")
    two, _ = mapped(run, written, tmp_path / "two.zarr")
    assert two["value"].dims == ("target", "time", "y", "x")
    np.testing.assert_allclose(two["value"].sel(target="depth"), -one["value"], atol=1e-5)


def test_features__are_found_by_name(tmp_path, caplog):
    scene = drawn_scene().fillna(0)
    first = write_scene(scene, tmp_path / "first", zarr_format=2)
    where = {"variable": "reflectance", "feature_dim": "time,band"}
    run = fitted(first, tmp_path / "run", **where, label="cover")
    # Another date before the others, which are stored as days since the first date.
    dates = np.array(["2016-01-01", "2025-06-01", "2024-06-01"], "M8[ns]")
    both = scene.isel(time=[0, 1, 0], band=[2, 0, 1]).assign_coords(time=dates)
    second = write_scene(both, tmp_path / "second", zarr_format=2)
    expected, _ = mapped(run, first, tmp_path / "map-first", **where)
    caplog.set_level("INFO", logger="dask_nrbfn")
    found, _ = mapped(run, second, tmp_path / "map-second", **where)
    xr.testing.assert_equal(found["label"], expected["label"])
    assert "6 of 9 features of" in caplog.text
    assert {"time", "band"}.isdisjoint(found.variables)
    other = where | {"feature_dim": "band,time"}
    with pytest.raises(NRBFNError, match=r"no column '2024-06-01_blue', .* has 'blue_2024-"):
        mapped(run, first, tmp_path / "other", **other)
    where = {"variable": "reflectance,height", "feature_dim": "band"}
    run = fitted(first, tmp_path / "height", **where, label="cover")
    found, _ = mapped(run, first, tmp_path / "in-order", **where)
    turned, _ = mapped(run, first, tmp_path / "turned", variable="height,reflectance")
    xr.testing.assert_equal(turned["label"], found["label"])


@pytest.mark.parametrize(
    ("engine", "is_remote"),
    [("h5netcdf", True), ("netcdf4", False), ("scipy", False), ("zarr", True)],
)
def test_scene__netcdf_and_urls(place, expected, tmp_path, engine, is_remote):
    written = tmp_path / ("scene.zarr" if engine == "zarr" else "scene.nc")
    if engine == "zarr":
        write_scene(drawn_scene(), written)
    else:
        packed = {} if engine == "scipy" else {"chunksizes": (1, 2, 3, 4)}
        drawn_scene().to_netcdf(written, engine=engine, encoding={"reflectance": packed})
    if is_remote:
        fs = fsspec.filesystem("memory")
        fs.put(str(written), f"/{engine}/{written.name}", recursive=True)
        written = f"memory://{engine}/{written.name}"
    found, _ = mapped(place / "run", written, tmp_path / "map")
    np.testing.assert_array_equal(found["label"], expected)


def test_predict__program(place, tmp_path):
    scene, out = place / "scene.zarr", tmp_path / "map.zarr"
    figures = json_of("predict", place / "run", scene, out, *OPTIONS)
    assert (figures["n_pixels"], figures["n_missing"] > 0) == (126, True)
    described = json_of("inspect", out)
    assert described["sizes"] == {"time": 2, "y": 7, "x": 9}
    assert described["results"] == ["label"]


def test_predict__program_refuses(place, tmp_path):
    scene, out, run = place / "scene.zarr", tmp_path / "map.zarr", place / "run"
    unnamed, netcdf = "For a scene, name its variables with --variable", tmp_path / "scene.nc"
    drawn_scene().to_netcdf(netcdf)
    for arguments, message in (
        (("predict", run, scene, out, *OPTIONS, "--keep", "a"), "--keep is given"),
        (("predict", run, scene, out, *OPTIONS[:2]), "its features are not known"),
        (("predict", run, scene, tmp_path / "a/b.csv", *OPTIONS), ".csv"),
        (("predict", run, scene, out), unnamed),
        (("predict", run, netcdf, out), unnamed),
        (("ingest", scene, out, *OPTIONS[:4], "--weights", "cover"), "--weights=cover does not"),
        (("ingest", run, out), f"{run} is a group of dask_nrbfn"),
    ):
        assert message in " ".join(refuse(*arguments))
    assert list(tmp_path.iterdir()) == [netcdf]


@pytest.mark.slow
def test_netcdf__damaged(place, tmp_path):
    written, out = tmp_path / "scene.nc", tmp_path / "map"
    scene = drawn_scene((2, 70, 90))[["reflectance"]]
    scene.to_netcdf(written, engine="h5netcdf", encoding={"reflectance": {"zlib": True}})
    arguments = ["predict", place / "run", written, out, *OPTIONS]
    whole = written.read_bytes()
    middle = len(whole) // 2
    written.write_bytes(whole[:middle] + bytes(2000) + whole[middle + 2000 :])
    assert f"reflectance in {written} cannot be read" in refuse(*arguments)[0]
    written.write_bytes(whole[:20_000])
    assert f"{written} cannot be read as a scene of xarray" in refuse(*arguments)[0]
    assert not out.exists()
