"""Scenes that tests are made on: reflectances of several dates with gaps, and labels."""

import warnings

import numpy as np
import pandas as pd
import xarray as xr

BANDS = ("blue", "green", "red")
CLASSES = np.array(["open water", "forest", "town"])


def drawn_scene(sizes=(2, 7, 9), *, bands=BANDS, seed=0, text=False):
    """Return a Dataset of ``reflectance`` (time, band, y, x) with gaps, and of labels (y, x).

    ``cover`` are 1, 2 and 3, NaN for half of the pixels, with `text` names and "" for none, and
    ``height`` is a number of every pixel.
    """
    rng = np.random.default_rng(seed)
    n_times, n_rows, n_columns = sizes
    cover = rng.integers(0, 3, (n_rows, n_columns))
    centres = rng.normal(size=(3, len(bands)))
    values = centres[cover].transpose(2, 0, 1) + rng.normal(
        0, 0.3, (n_times, len(bands), *sizes[1:])
    )
    values[rng.random(values.shape) < 0.02] = np.nan
    unlabelled = rng.random(cover.shape) < 0.5
    labels = (
        np.where(unlabelled, "", CLASSES[cover])
        if text
        else np.where(unlabelled, np.nan, cover + 1)
    )
    return xr.Dataset(
        {
            "reflectance": (
                ("time", "band", "y", "x"),
                values.astype(np.float32),
                {"units": "1", "grid_mapping": "spatial_ref", "sensor": "drawn"},
            ),
            "cover": (("y", "x"), labels.astype("T") if text else labels),
            "height": (("y", "x"), centres[cover].sum(axis=2)),
        },
        coords={
            "time": np.array(["2024-06-01", "2025-06-01"], "M8[ns]")[:n_times],
            "band": [*bands],
            "x": np.linspace(5.0, 6.0, n_columns),
            "lon": (("y", "x"), rng.normal(size=cover.shape)),
            "spatial_ref": ((), 0, {"crs_wkt": 'PROJCS["drawn"]'}),
        },
        attrs={"title": "a drawn scene"},
    )


def write_scene(scene, place, *, zarr_format=3, **encoding):
    """Write a Dataset as Zarr; `encoding` is that of its reflectances."""
    with warnings.catch_warnings():
        # Text in Zarr v3, and metadata in one place.
        warnings.simplefilter("ignore")
        scene.to_zarr(place, zarr_format=zarr_format, encoding={"reflectance": encoding})
    return str(place)


def pixels_of(cube):
    """Return the pixels of a DataArray as rows, in the order of its other dimensions."""
    rows = cube.transpose(..., "band").to_numpy().reshape(-1, cube.sizes["band"])
    return pd.DataFrame(rows, columns=cube["band"].to_numpy())


def row_by_row(network, cube):
    """Return a map of the labels of the pixels, one after another, NaN where one lacks a band."""
    rows = pixels_of(cube)
    known = rows.notna().all(axis=1)
    found = [network.predict(rows[i : i + 1])[0] if known[i] else np.nan for i in range(len(rows))]
    pixels = cube.isel(band=0, drop=True)
    return pixels.copy(data=np.reshape(found, pixels.shape))


def predicted(network, cube, *dims, method="predict"):
    """Return what a network predicts of pixels whose features lie along `dims`; NaN for gaps."""
    stacked = cube.stack(feature=dims).transpose(..., "feature")
    rows = stacked.to_numpy().reshape(-1, stacked.sizes["feature"])
    rows = pd.DataFrame(rows, columns=network.feature_names_in_)
    known = rows.notna().all(axis=1).to_numpy()
    values = getattr(network, method)(rows[known])
    found = np.full((len(rows), *values.shape[1:]), np.nan)
    found[known] = values
    return found.reshape(*stacked.shape[:-1], *values.shape[1:])
