import numpy as np
import pytest
import xarray as xr
import zarr

from dask_nrbfn.errors import DamagedDataError, DataError, MissingDataError, ParameterError
from dask_nrbfn.sources.cubes import Grid, matching
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.scene import Scene, StoredCube, open_scene_source
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
def test_stored_cube__reads_what_xarray_reads(tmp_path, zarr_format, packing):
    scene = drawn_scene((1, 4, 5))
    if "scale_factor" not in packing and packing["dtype"].startswith("int"):
        scene["reflectance"] = (50 + 10 * scene["reflectance"]).round()
    written = write_scene(scene, tmp_path / "scene", zarr_format=zarr_format, **packing)
    cube = Scene.at(File(written), "reflectance", "band").cube
    expected = xr.open_zarr(written, chunks=None)["reflectance"]
    assert cube.dtype == expected.dtype
    np.testing.assert_array_equal(cube.read({}), expected)
    part = cube.read({"y": slice(1, 3), "band": slice(0, 2)})
    np.testing.assert_array_equal(part, expected.isel(y=slice(1, 3), band=slice(0, 2)))


@pytest.mark.parametrize("fill", [200, -56])
def test_stored_cube__missing_values_and_unsigned_numbers(tmp_path, fill):
    group = zarr.create_group(tmp_path / "scene")
    attributes = {"missing_value": [-9, -8], "_Unsigned": "true", "_FillValue": fill}
    array = group.create_array("a", shape=(5,), dtype="i1", dimension_names=("x",))
    array.attrs.put(attributes)
    array[...] = np.array([1, 200, 247, 100, 3], dtype=np.uint8).view(np.int8)
    values = StoredCube(array, "a").read({})
    np.testing.assert_array_equal(values, [1, np.nan, 247, 100, 3])


def test_grid__boxes_are_all_pixels_once():
    class Cube:
        name, dtype = "a", np.dtype(float)
        dimensions, shape, chunks = ("t", "b", "y", "x"), (3, 2, 70, 300), (2, 1, 9, 40)

    grid = Grid.of(Cube(), "b")
    assert grid.steps == {"t": 2, "y": 70, "x": 300}
    for steps in ({"t": 2, "y": 9, "x": 40}, {"t": 1, "y": 70, "x": 299}):
        grid = Grid(grid.sizes, steps)
        numbers = [grid.numbers(grid.box(index)) for index in grid.indices()]
        assert sorted(np.concatenate(numbers).tolist()) == list(range(3 * 70 * 300))


def test_matching__by_name():
    assert matching(("a", "b"), ("a", "b"), "X") == []
    assert matching(None, ("a", "b"), "X") == []
    assert matching(("c", "b", "a"), ("a", "b"), "X") == [2, 1]
    for names, wanted in ((("a",), ("a", "b")), (("a", "b", "b"), ("a", "b"))):
        with pytest.raises(DataError, match="features named 'b'"):
            matching(names, wanted, "X")


def test_source__labels_that_pixels_share_and_marks(tmp_path):
    scene = drawn_scene()
    place = File(write_scene(scene, tmp_path / "scene"))
    where = {"variable": "reflectance", "feature_dim": "band", "label": "cover"}
    source = open_scene_source(place, **where, unlabelled="7")
    assert source.n_rows == int(scene["reflectance"].notnull().all("band").sum())
    labels = np.concatenate([block.y for block in source.blocks(30)])
    ids = np.concatenate([block.ids for block in source.blocks(30)])
    expected = scene["cover"].fillna(7).broadcast_like(scene["reflectance"].isel(band=0))
    np.testing.assert_array_equal(labels, expected.to_numpy().ravel()[ids])
    with pytest.raises(ParameterError, match="unlabelled is 'none'"):
        open_scene_source(place, **where, unlabelled="none")


def test_scene__refuses(tmp_path):
    place = tmp_path / "scene"
    write_scene(drawn_scene(), place)
    with pytest.raises(MissingDataError, match="there is no Zarr group"):
        Scene.at(File(str(tmp_path / "none")), None, "band")
    with pytest.raises(ParameterError, match="variables along x: cover, height"):
        Scene.at(File(str(place)), None, "x")
    bare = zarr.create_group(tmp_path / "bare").create_array("a", shape=(3, 2), dtype="f4")
    bare[...] = 1
    with pytest.raises(DataError, match="have no names"):
        _ = Scene(File(str(tmp_path / "bare")), "a", "band").cube
    chunk = next(file for file in (place / "reflectance/c").rglob("*") if file.is_file())
    chunk.write_bytes(b"damaged")
    with pytest.raises(DamagedDataError, match="cannot be read"):
        Scene.at(File(str(place)), None, "band").cube.read({})
