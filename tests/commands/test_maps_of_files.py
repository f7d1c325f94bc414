"""Scenes as people have them: dates as features, netCDF, several variables, files that change."""

import subprocess
import sys

import fsspec
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from dask_nrbfn import (
    Dataset,
    FitParams,
    NRBFNClassifier,
    NRBFNError,
    fit_dataset,
    ingest_file,
    predict_scene,
)
from dask_nrbfn.commands.maps import MapLayout
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.scorer import Scorer
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.scene import Scene, open_scene
from tests.cli.program import refuse, succeed
from tests.scenes import drawn_scene, predicted

PARAMS = FitParams(basis="random", basis_size=40, alpha=1e-6)
BY_TIME = {"variable": "ndvi", "feature_dim": "time"}
FIRST, N_DATES = "2016-01-11", 29


def dated_scene(first=FIRST, n_dates=N_DATES):
    """Return NDVI at every tenth day, (time, y, x), whose phase is what is learned."""
    dates = pd.date_range(FIRST, periods=N_DATES, freq="10D")
    y, x = np.mgrid[:30, :20]
    cover = (x // 5 + y // 10) % 3
    days = np.arange(N_DATES)[:, None, None]
    rng = np.random.default_rng(0)
    values = np.sin(days / 4 + cover) + rng.normal(0, 0.3, (N_DATES, 30, 20))
    scene = xr.Dataset(
        {"ndvi": (("time", "y", "x"), values.astype("f4")), "cover": (("y", "x"), cover)},
        {"time": dates},
    )
    wanted = pd.date_range(first, periods=n_dates, freq="10D")
    return scene.reindex(time=wanted, fill_value={"ndvi": np.float32(0.5)})


def write(scene, place, **time):
    """Write a scene; each file counts its days from its own first date."""
    first = pd.Timestamp(scene["time"].to_numpy()[0]).date()
    time = {"units": f"days since {first}", "dtype": "i8"} | time
    if place.suffix == ".nc":
        scene.to_netcdf(place, encoding={"time": time})
    else:
        scene.to_zarr(place, zarr_format=2, encoding={"time": time})
    return place


@pytest.fixture(scope="module")
def dated(tmp_path_factory):
    """Give a directory with a scene of 29 dates and a run on its pixels, by the command line."""
    place = tmp_path_factory.mktemp("dated")
    write(dated_scene(), place / "A.zarr")
    dataset = ingest_file(place / "A.zarr", place / "pixels", **BY_TIME, label="cover")
    fit_dataset(dataset, place / "run", PARAMS, InlineEngine())
    return place


def labels(run, scene, out, **where):
    predict_scene(run, scene, out, InlineEngine(), **where)
    return xr.open_zarr(out)["label"].load()


def test_dates__are_features_by_their_days(dated, tmp_path, caplog):
    assert Dataset.open(dated / "pixels").feature_names[:2] == ("2016-01-11", "2016-01-21")
    expected = labels(dated / "run", dated / "A.zarr", tmp_path / "A", **BY_TIME)
    assert len(np.unique(expected)) == 3
    # The same values, and one date before them: each date is one number more.
    further = write(dated_scene("2016-01-01", N_DATES + 1), tmp_path / "B.zarr")
    stored = xr.open_dataset(further, engine="zarr", decode_times=False)["time"]
    assert stored.to_numpy()[:3].tolist() == [0, 10, 20]
    caplog.set_level("INFO", logger="dask_nrbfn")
    found = labels(dated / "run", further, tmp_path / "map-B", **BY_TIME)
    xr.testing.assert_equal(found, expected)
    assert "are ignored: 2016-01-01\n" in caplog.text
    seconds = {"units": "seconds since 1970-01-01"}
    recoded = write(dated_scene(), tmp_path / "seconds.zarr", **seconds)
    found = labels(dated / "run", recoded, tmp_path / "map-seconds", **BY_TIME)
    xr.testing.assert_equal(found, expected)


def test_dates__that_lack_are_refused(dated, tmp_path):
    later = write(dated_scene("2016-01-21", N_DATES), tmp_path / "later.zarr")
    with pytest.raises(NRBFNError, match="has no features named '2016-01-11'"):
        labels(dated / "run", later, tmp_path / "map", **BY_TIME)


def test_dates__times_of_day_and_other_calendars(tmp_path):
    hours = np.array(["2016-01-11T00", "2016-01-11T06"], "M8[ns]")
    scene = dated_scene().isel(time=slice(2)).assign_coords(time=hours)
    write(scene, tmp_path / "hours.zarr", units="hours since 2016-01-01")
    noleap = xr.date_range("2016-02-28", periods=2, calendar="noleap", use_cftime=True)
    scene.assign_coords(time=noleap).to_zarr(tmp_path / "noleap.zarr", zarr_format=2)
    for name, expected in (
        ("hours", ("2016-01-11", "2016-01-11T06:00:00")),
        ("noleap", ("2016-02-28", "2016-03-01")),
    ):
        scene = Scene.at(File(str(tmp_path / f"{name}.zarr")), ["ndvi"], "time")
        with open_scene(scene.place) as opened:
            assert scene.cube(opened).feature_names == expected


@pytest.mark.parametrize("engine", ["h5netcdf", "netcdf4", "scipy"])
def test_netcdf__is_a_scene(dated, tmp_path, engine):
    scene = dated_scene()
    scene["ndvi"] = scene["ndvi"].where(scene["ndvi"] > -1.5)
    packed = {"dtype": "i2", "scale_factor": 1e-4, "_FillValue": -32768}
    if engine != "scipy":
        packed["chunksizes"] = (5, 7, 9)
    scene.to_netcdf(tmp_path / "scene.nc", engine=engine, encoding={"ndvi": packed})
    opened = xr.open_dataset(tmp_path / "scene.nc")
    succeed(
        *("ingest", tmp_path / "scene.nc", tmp_path / "pixels", "--label", "cover"),
        *("--variable", "ndvi", "--feature-dim", "time"),
    )
    dataset = Dataset.open(tmp_path / "pixels")
    assert dataset.n_rows == int(opened["ndvi"].notnull().all("time").sum()) < 600
    found = labels(dated / "run", tmp_path / "scene.nc", tmp_path / "map", **BY_TIME)
    network = NRBFNClassifier.load(dated / "run")
    np.testing.assert_array_equal(found, predicted(network, opened["ndvi"], "time"))
    assert found.isnull().any()


@pytest.mark.slow
def test_netcdf__damaged_or_without_an_engine(dated, tmp_path):
    place, out = tmp_path / "scene.nc", tmp_path / "map"
    dated_scene().to_netcdf(place, engine="h5netcdf", encoding={"ndvi": {"zlib": True}})
    where = ["--variable=ndvi", "--feature-dim=time", "--workers=0"]
    arguments = ["predict", dated / "run", place, out, *where]
    without = (
        "import sys; sys.modules['h5netcdf'] = sys.modules['netCDF4'] = None; "
        "from dask_nrbfn.cli import main; main()"
    )
    process = subprocess.run(
        [sys.executable, "-c", without, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 2
    assert "install an engine: h5netcdf" in process.stderr
    written = place.read_bytes()
    middle = len(written) // 2
    place.write_bytes(written[:middle] + bytes(2000) + written[middle + 2000 :])
    problem, _ = refuse(*arguments)
    assert f"ndvi in {place} cannot be read" in problem
    place.write_bytes(written[:20_000])
    problem, _ = refuse(*arguments)
    assert f"{place} cannot be opened by xarray" in problem
    assert not out.exists()


def many_variables():
    """Return winds at two heights, ground that all dates share, and classes."""
    scene = drawn_scene()
    u, v = (scene["reflectance"].isel(band=i, drop=True) for i in (0, 1))
    dem = scene["height"].fillna(0)
    winds = scene["reflectance"].isel(band=slice(2)).assign_coords(band=[10, 100])
    return xr.Dataset({"u": u, "v": v, "dem": dem, "wind": winds, "cover": scene["cover"]}).rename(
        band="level"
    )


def test_variables__are_features(tmp_path):
    scene = many_variables()
    written = tmp_path / "scene.zarr"
    scene.to_zarr(written, zarr_format=2)
    options = ("--variable", "u,v,dem")
    succeed("ingest", written, tmp_path / "pixels", *options, "--label", "cover")
    dataset = Dataset.open(tmp_path / "pixels")
    assert dataset.feature_names == ("u", "v", "dem")
    columns = [
        scene[name].broadcast_like(scene["u"]).to_numpy().ravel() for name in ["u", "v", "dem"]
    ]
    ids = np.asarray(dataset.ids[:])
    np.testing.assert_array_equal(np.asarray(dataset.X[:]), np.stack(columns, axis=1)[ids])
    run = fit_dataset(dataset, tmp_path / "run", PARAMS, InlineEngine()).location
    options = ("--variable", "dem,v,u", "--probabilities", "--workers", 0)
    succeed("predict", run, written, tmp_path / "map", *options)
    mapped = xr.open_zarr(tmp_path / "map").load()
    network = NRBFNClassifier.load(run)
    cube = scene[["u", "v", "dem"]].to_dataarray("name")
    assert mapped["label"].attrs == {"grid_mapping": "spatial_ref", "sensor": "drawn"}
    np.testing.assert_array_equal(mapped["label"], predicted(network, cube, "name"))
    assert mapped["probability"].dims == ("class", "time", "y", "x")
    shares = predicted(network, cube, "name", method="predict_proba")
    np.testing.assert_allclose(
        np.moveaxis(mapped["probability"].to_numpy(), 0, -1), shares, atol=1e-6
    )


def banded_scene(chunks=None):
    """Return two bands at three dates, (band, time, y, x), and one layer of heights."""
    dated = dated_scene(n_dates=6)
    values = dated["ndvi"].to_numpy().reshape(3, 2, 30, 20).swapaxes(0, 1)
    scene = xr.Dataset(
        {
            "reflectance": (("band", "time", "y", "x"), values.copy()),
            "cover": dated["cover"],
            "height": dated["ndvi"][0].drop_vars("time"),
        },
        {"band": ["red", "nir"], "time": pd.date_range(FIRST, periods=3, freq="10D")},
    )
    return scene if chunks is None else scene.chunk(chunks)


def test_dimensions__several_are_stacked(tmp_path):
    scene = banded_scene(chunks={"band": 1, "y": 11})
    written = tmp_path / "scene.zarr"
    scene.to_zarr(written, zarr_format=2)
    where = ("--variable", "reflectance", "--feature-dim", "time,band")
    succeed("ingest", written, tmp_path / "pixels", *where, "--label", "cover")
    dataset = Dataset.open(tmp_path / "pixels")
    assert dataset.feature_names == tuple(
        f"2016-01-{day}_{band}" for day in (11, 21, 31) for band in ("red", "nir")
    )
    stacked = scene["reflectance"].stack(pixel=("y", "x"), feature=("time", "band"))
    np.testing.assert_array_equal(dataset.X[:], stacked.to_numpy()[np.asarray(dataset.ids[:])])
    run = fit_dataset(dataset, tmp_path / "run", PARAMS, InlineEngine()).location
    succeed("predict", run, written, tmp_path / "map", *where, "--scores", "--workers", 0)
    mapped = xr.open_zarr(tmp_path / "map").load()
    assert mapped["label"].dims == ("y", "x")
    assert mapped["score"].dims == ("class", "y", "x")
    assert {"time", "band"}.isdisjoint(mapped.variables)
    network = NRBFNClassifier.load(run)
    expected = predicted(network, scene["reflectance"], "time", "band")
    np.testing.assert_array_equal(mapped["label"], expected)
    turned = banded_scene().isel(time=[2, 0, 1], band=[1, 0])
    turned.to_zarr(tmp_path / "turned.zarr", zarr_format=2)
    where = {"variable": "reflectance", "feature_dim": "time,band"}
    found = labels(run, tmp_path / "turned.zarr", tmp_path / "map-turned", **where)
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(NRBFNError, match=r"'2016-01-11_red'; its features are red_2016-01-11,"):
        labels(run, written, tmp_path / "other", **where | {"feature_dim": "band,time"})


def test_dimensions__of_which_some_variables_have_none(tmp_path):
    scene = banded_scene().drop_vars("band")
    written = tmp_path / "scene.zarr"
    scene.to_zarr(written, zarr_format=2)
    where = {"variable": "height,reflectance", "feature_dim": "band,time"}
    dataset = ingest_file(written, tmp_path / "pixels", **where, label="cover")
    days = ("2016-01-11", "2016-01-21", "2016-01-31")
    names = [f"reflectance_{band}_{day}" for band in (0, 1) for day in days]
    assert dataset.feature_names == ("height", *names)
    run = fit_dataset(dataset, tmp_path / "run", PARAMS, InlineEngine()).location
    found = labels(run, written, tmp_path / "map", **where)
    network = NRBFNClassifier.load(run)
    height = scene["height"].expand_dims(name=["height"])
    bands = scene["reflectance"].stack(name=("band", "time")).reset_index("name", drop=True)
    cube = xr.concat([height.drop_vars("name"), bands.drop_vars("time", errors="ignore")], "name")
    np.testing.assert_array_equal(found, predicted(network, cube, "name"))


def test_dimensions__refused(tmp_path):
    written = tmp_path / "scene.zarr"
    banded_scene().to_zarr(written, zarr_format=2)
    where = ("--variable", "reflectance", "--feature-dim")
    problem, fix = refuse("ingest", written, tmp_path / "pixels", *where, "time,wave")
    assert problem.endswith("has the dimensions band, time, y, x, not wave.")
    assert fix == "Name existing dimensions with --feature-dim, with commas between several."
    problem, _ = refuse("ingest", written, tmp_path / "pixels", *where, "time,time")
    assert problem == "--feature-dim=time,time names 'time' twice."
    problem, _ = refuse("ingest", written, tmp_path / "pixels", *where, "time,band,y,x")
    assert "no rows" in problem
    problem, _ = refuse("ingest", written, tmp_path / "pixels", *where[2:], "time,cover")
    assert "no variables along time,cover" in problem


def test_map__killed_before_its_arrays_were_there(dated, tmp_path, monkeypatch):
    out, real = tmp_path / "map", MapLayout.prepare

    def stopping(layout, group, *arguments):
        real(layout, group, *arguments)
        del group["probability"]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(MapLayout, "prepare", stopping)
        with pytest.raises(KeyboardInterrupt):
            labels(dated / "run", dated / "A.zarr", out, **BY_TIME, probabilities=True)
    labels(dated / "run", dated / "A.zarr", out, **BY_TIME, probabilities=True)
    assert xr.open_zarr(out)["probability"].sum("class").to_numpy() == pytest.approx(1)


@pytest.mark.parametrize("suffix", [".zarr", ".nc"])
def test_scene__behind_a_url(dated, tmp_path, suffix):
    written = write(dated_scene(), tmp_path / f"scene{suffix}")
    fs = fsspec.filesystem("memory")
    fs.put(str(written), f"/scenes/scene{suffix}", recursive=True)
    url = f"memory://scenes/scene{suffix}"
    found = labels(dated / "run", url, tmp_path / "map", **BY_TIME)
    network = NRBFNClassifier.load(dated / "run")
    expected = predicted(network, dated_scene()["ndvi"], "time")
    np.testing.assert_array_equal(found, expected)
    before = File(url).stamps()
    assert before == File(url).stamps()
    inside = next(name for name in before if not name or name.startswith("ndvi/"))
    fs.pipe_file(f"/scenes/scene{suffix}/{inside}".rstrip("/"), b"other")
    after = File(url).stamps()
    assert {name for name in before if before[name] != after[name]} == {inside}


@pytest.mark.parametrize("suffix", [".zarr", ".nc"])
def test_map__of_a_scene_that_changes(dated, tmp_path, monkeypatch, suffix):
    place, out = write(dated_scene(), tmp_path / f"scene{suffix}"), tmp_path / "map"
    real = Scorer.pixels

    def change(scorer, rows):
        other = dated_scene()
        other["ndvi"] = -other["ndvi"]
        if suffix == ".nc":
            place.unlink()
            write(other, place)
        else:
            other[["ndvi"]].to_zarr(place, mode="r+")
        return real(scorer, rows)

    with monkeypatch.context() as patch:
        patch.setattr(Scorer, "pixels", change)
        with pytest.raises(NRBFNError, match=r"changed while it was mapped.*overwrite"):
            labels(dated / "run", place, out, **BY_TIME)
    with pytest.raises(NRBFNError, match=r"has another state of the scene.*overwrite"):
        labels(dated / "run", place, out, **BY_TIME)
    found = labels(dated / "run", place, out, **BY_TIME, overwrite=True)
    network = NRBFNClassifier.load(dated / "run")
    expected = predicted(network, -dated_scene()["ndvi"], "time")
    np.testing.assert_array_equal(found, expected)
