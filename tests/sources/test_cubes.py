import numpy as np
import pytest
import xarray as xr
import zarr

from dask_nrbfn.errors import DamagedDataError, MissingDataError, ParameterError
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.scene import Scene, open_scene
from tests.scenes import drawn_scene, write_scene

PACKINGS = [
    {"dtype": "int16", "scale_factor": 0.001, "add_offset": 0.5, "_FillValue": -9999},
    {"dtype": "uint8", "scale_factor": 0.05, "_FillValue": 255},
    {"dtype": "int32", "_FillValue": -1},
    {"dtype": "int8", "_FillValue": -1},
    {"dtype": "float32", "_FillValue": -5.0},
    {"dtype": "float64"},
    {"dtype": "float16"},
]


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("packing", PACKINGS, ids=str)
def test_scene__reads_what_xarray_reads(tmp_path, zarr_format, packing):
    scene = drawn_scene((1, 4, 5))
    if "scale_factor" not in packing and packing["dtype"].startswith("int"):
        scene["reflectance"] = (50 + 10 * scene["reflectance"]).round()
    written = write_scene(scene, tmp_path / "scene", zarr_format=zarr_format, **packing)
    place = File(written)
    cube = Scene.at(place, ["reflectance"], "band").cube(open_scene(place))
    expected = xr.open_zarr(written, chunks=None)["reflectance"].transpose(..., "band")
    assert cube.dtype == expected.dtype
    whole = {dim: slice(0, size) for dim, size in cube.grid.sizes.items()}
    np.testing.assert_array_equal(cube.values(whole), expected)
    box = {"time": slice(0, 1), "y": slice(1, 3), "x": slice(2, 5)}
    np.testing.assert_array_equal(cube.values(box), expected.isel(box))


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_scene__zero_is_a_value_and_left_out_pixels_are_counted(tmp_path, caplog, zarr_format):
    root = zarr.create_group(tmp_path / "scene.zarr", zarr_format=zarr_format)
    cover = np.arange(36).reshape(6, 6) % 3
    bands = cover[..., None] * np.ones(4, "i2")
    for name, values, dims in (("cover", cover, "y x"), ("bands", bands, "y x band")):
        # The default fill value of Zarr is 0.
        named = {"dimension_names": dims.split()} if zarr_format == 3 else {}
        array = root.create_array(name, data=values, **named)
        array.attrs["_ARRAY_DIMENSIONS"] = dims.split()
    scene = Scene.at(File(str(tmp_path / "scene.zarr")), ["bands"], "band")
    with caplog.at_level("INFO", logger="dask_nrbfn"):
        blocks = list(scene.source(label="cover").blocks(100))
    assert np.bincount(np.concatenate([block.y for block in blocks])).tolist() == [12, 12, 12]
    assert "36 of 36 pixels are rows" in caplog.text
    # A stored `_FillValue` of 0 means missing.
    root["cover"].attrs["_FillValue"] = 0
    with caplog.at_level("INFO", logger="dask_nrbfn"):
        assert scene.source(label="cover").n_rows == 24
    assert "24 of 36 pixels are rows; the other 12 lack a feature, or a label" in caplog.text


def test_source__labels_that_pixels_share_and_marks(tmp_path):
    scene = drawn_scene()
    place = File(write_scene(scene, tmp_path / "scene"))
    where = Scene.at(place, ["reflectance"], "band")
    source = where.source(label="cover", unlabelled="7")
    assert source.n_rows == int(scene["reflectance"].notnull().all("band").sum())
    labels = np.concatenate([block.y for block in source.blocks(30)])
    ids = np.concatenate([block.ids for block in source.blocks(30)])
    expected = scene["cover"].fillna(7).broadcast_like(scene["reflectance"].isel(band=0))
    np.testing.assert_array_equal(labels, expected.to_numpy().ravel()[ids])
    with pytest.raises(ParameterError, match="unlabelled is 'none'"):
        where.source(label="cover", unlabelled="none")


def test_scene__refuses(tmp_path):
    place = tmp_path / "scene"
    write_scene(drawn_scene(), place)
    with pytest.raises(MissingDataError, match="does not exist"):
        Scene.at(File(str(tmp_path / "none")), None, "band")
    with pytest.raises(ParameterError, match="variables along x: cover, height"):
        Scene.at(File(str(place)), None, "x")
    bare = zarr.create_group(tmp_path / "bare").create_array("a", shape=(3, 2), dtype="f4")
    bare[...] = 1
    with pytest.raises(DamagedDataError, match="whose dimensions have names"):
        open_scene(File(str(tmp_path / "bare")))
    chunk = next(file for file in (place / "reflectance/c").rglob("*") if file.is_file())
    chunk.write_bytes(b"damaged")
    with pytest.raises(DamagedDataError, match=f"reflectance in {place} cannot be read"):
        Scene.at(File(str(place)), None, "band").source().cube.values()
