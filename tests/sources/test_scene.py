"""Scenes as rows: what `ingest` stores of them."""

import logging

import numpy as np
import pytest
import xarray as xr
import zarr

from dask_nrbfn.errors import DamagedDataError, DataError, MissingDataError, ParameterError
from tests.opened import open_source
from tests.scenes import drawn_scene, write_scene

WHERE = {"variable": "reflectance", "feature_dim": "band"}
PACKINGS = [
    {"dtype": "int16", "scale_factor": 0.001, "add_offset": 0.5, "_FillValue": -9999},
    {"dtype": "uint8", "scale_factor": 0.05, "_FillValue": 255},
    {"dtype": "int32", "_FillValue": -1},
    {"dtype": "float32", "_FillValue": -5.0},
    {"dtype": "float16", "chunks": (1, 2, 3, 4)},
]


def read(place, **options):
    source = open_source(place, **options)
    X, y, _, ids = zip(*source.blocks(30), strict=True)
    return source, np.concatenate(X), y[0] is not None and np.concatenate(y), np.concatenate(ids)


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_rows__are_what_xarray_reads(tmp_path, monkeypatch, zarr_format, packing):
    monkeypatch.setattr("dask_nrbfn.sources.scene.BOX_PIXELS", 7)
    scene = drawn_scene((2, 4, 5))
    if packing["dtype"] == "int32":
        scene["reflectance"] = (50 + 10 * scene["reflectance"]).round()
    place = write_scene(scene, tmp_path / "scene", zarr_format=zarr_format, **packing)
    source, X, y, ids = read(place, **WHERE, label="cover", unlabelled="7")
    opened = xr.open_zarr(place, chunks=None).stack(pixel=("time", "y", "x"))
    known = opened["reflectance"].notnull().all("band").to_numpy()
    assert sorted(ids) == np.flatnonzero(known).tolist()
    expected = opened["reflectance"].transpose("pixel", "band").to_numpy()[ids]
    assert X.dtype == source.x_dtype == expected.dtype
    np.testing.assert_array_equal(X, expected)
    labels = opened["cover"].fillna(7).broadcast_like(opened["pixel"]).to_numpy()
    np.testing.assert_array_equal(y, labels[ids])
    assert source.feature_names == ("blue", "green", "red")
    _, _, y, _ = read(place, **WHERE, label="cover")
    np.testing.assert_array_equal(np.sort(y), np.sort(labels[known & (labels != 7)]))
    with pytest.raises(ParameterError, match="unlabelled is 'none'"):
        read(place, **WHERE, label="cover", unlabelled="none")


def test_rows__left_out_pixels_are_counted(tmp_path, caplog):
    cover, bands = np.arange(36).reshape(6, 6) % 3, np.ones((6, 6, 4), "i2")
    scene = xr.Dataset({"cover": (("y", "x"), cover), "bands": (("y", "x", "band"), bands)})
    where = {"variable": "bands", "feature_dim": "band", "label": "cover"}
    caplog.set_level("INFO", logger="dask_nrbfn")
    for name, least, n_rows in (("all", 0, 36), ("some", 1, 24), ("none", 3, 0)):
        place = write_scene(scene.where(scene["cover"] >= least), tmp_path / name, name="bands")
        if n_rows:
            source, _, y, _ = read(place, **where)
            assert len(y) == n_rows
            assert source.feature_names == ("0", "1", "2", "3")
            assert f"has {n_rows} of 36 pixels" in caplog.text
        else:
            with pytest.raises(DataError, match=r"without pixels that lack .* no rows"):
                read(place, **where)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_scene__convention_of_a_reader_makes_no_stored_value_missing(tmp_path, caplog, zarr_format):
    caplog.set_level(logging.INFO, "dask_nrbfn")
    root = zarr.create_group(tmp_path / "scene", zarr_format=zarr_format)
    cover = np.arange(36).reshape(6, 6) % 3
    bands = cover[..., None] * np.ones(2, "i2")
    arrays = {"cover": cover, "wet": cover > 0, "marked": cover, "bands": bands, "band": [0, 7]}
    for name, values in arrays.items():
        dims = {"band": ["band"], "bands": ["y", "x", "band"]}.get(name, ["y", "x"])
        # The default fill value of Zarr is 0, which xarray reads as a missing value of Zarr v2.
        named = {"dimension_names": dims} if zarr_format == 3 else {}
        root.create_array(name, data=np.asarray(values), **named).attrs["_ARRAY_DIMENSIONS"] = dims
    root["marked"].attrs["_FillValue"] = 0
    where = {"variable": "bands", "feature_dim": "band"}
    for label, counts in (("cover", [12, 12, 12]), ("wet", [12, 24]), ("marked", [0, 12, 12])):
        source, X, y, _ = read(tmp_path / "scene", **where, label=label)
        assert np.bincount(y).tolist() == counts
        assert source.boolean_labels == (label == "wet")
    assert source.feature_names == ("0", "7")
    assert X.dtype == np.int64
    told = "0 is a value of 'band', 'bands', 'cover', 'wet': it is not marked as missing"
    assert caplog.text.count(told) == (3 if zarr_format == 2 else 0)


def test_features__dates_of_any_calendar(tmp_path):
    hours = np.array(["2016-01-11T00", "2016-01-11T06"], "M8[ns]")
    noleap = xr.date_range("2016-02-28", periods=2, calendar="noleap", use_cftime=True)
    for name, dates, expected in (
        ("hours", hours, ("2016-01-11", "2016-01-11 06:00:00")),
        ("noleap", noleap, ("2016-02-28", "2016-03-01")),
    ):
        scene = drawn_scene()[["reflectance"]].assign_coords(time=dates)
        place = write_scene(scene, tmp_path / name, zarr_format=2)
        source, *_ = read(place, variable="reflectance", feature_dim="time")
        assert source.feature_names == expected


def test_features__several_dimensions_and_variables(tmp_path):
    scene = drawn_scene().fillna(0)
    place = write_scene(scene, tmp_path / "scene", chunks=(1, 2, 7, 4))
    source, X, _, ids = read(place, variable="reflectance", feature_dim="time,band")
    days = ("2024-06-01", "2025-06-01")
    names = [f"{day}_{band}" for day in days for band in ("blue", "green", "red")]
    assert source.feature_names == tuple(names)
    stacked = scene["reflectance"].stack(pixel=("y", "x"), feature=("time", "band"))
    np.testing.assert_array_equal(X, stacked.to_numpy()[ids])
    # Variables without the dimension are one feature each, which all pixels along others share.
    source, X, y, ids = read(
        place, variable=["height", "reflectance"], feature_dim="band", target="height,cover"
    )
    bands = [f"reflectance_{band}" for band in ("blue", "green", "red")]
    assert source.feature_names == ("height", *bands)
    height = scene["height"].broadcast_like(scene["reflectance"].isel(band=0)).to_numpy().ravel()
    np.testing.assert_array_equal(X[:, 0], height[ids])
    np.testing.assert_array_equal(y[:, 0], height[ids])
    assert source.target_names == ("height", "cover")


@pytest.mark.parametrize("dtype", ["T", "U10", "S10", "netCDF"])
def test_labels__text_of_any_type(tmp_path, dtype):
    scene = drawn_scene(text=True)
    if dtype == "netCDF":
        # xarray reads the text of netCDF as Python objects.
        scene["cover"] = scene["cover"].astype(object)
        scene.to_netcdf(tmp_path / "scene")
    else:
        scene["cover"] = scene["cover"].astype(dtype)
        write_scene(scene, tmp_path / "scene")
    _, _, y, _ = read(tmp_path / "scene", **WHERE, label="cover")
    assert np.unique(y).tolist() == ["forest", "open water", "town"]


def test_scene__refused(tmp_path):
    scene = drawn_scene()
    scene["name"] = ("y", list("abcdefg"))
    place = write_scene(scene, tmp_path / "scene", chunks=(1, 3, 7, 9))
    for options, error, match in (
        ({"variable": "reflectance"}, ParameterError, "its features are not known"),
        (WHERE | {"variable": "a"}, DataError, "no variable 'a'; it has .* with variable"),
        (WHERE | {"feature_dim": "time,wave"}, DataError, "no dimension 'wave'; it has 'time', 'b"),
        (WHERE | {"feature_dim": "time,band,y,x"}, DataError, "no rows"),
        (WHERE | {"feature_dim": "x", "label": "cover"}, DataError, "no dimension .*Give cover"),
        (WHERE | {"label": "height"}, DataError, "height has the label"),
        (WHERE | {"target": "height,name"}, DataError, "name has dtype"),
    ):
        with pytest.raises(error, match=match):
            read(place, **options)
    with pytest.raises(MissingDataError, match="does not exist"):
        read(tmp_path / "none", **WHERE)
    bare = zarr.create_group(tmp_path / "bare").create_array("a", shape=(3, 2), dtype="f4")
    bare[...] = 1
    with pytest.raises(DamagedDataError, match="whose dimensions have names"):
        read(tmp_path / "bare", variable="a", feature_dim="b")
    chunk = next(file for file in (tmp_path / "scene/reflectance/c").rglob("*") if file.is_file())
    chunk.write_bytes(b"damaged")
    with pytest.raises(DamagedDataError, match=f"reflectance in {place} cannot be read"):
        read(place, **WHERE)
