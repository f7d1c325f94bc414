"""Scenes for tests: reflectances of several dates with gaps, and labels."""

import warnings

import numpy as np
import pandas as pd
import xarray as xr

BANDS = ("blue", "green", "red")
CLASSES = np.array(["open water", "forest", "town"])


def drawn_scene(sizes=(2, 7, 9), *, bands=BANDS, text=False):
    """Return a Dataset of ``reflectance`` (time, band, y, x) with gaps, and of labels (y, x).

    ``cover`` is 1, 2 or 3 and NaN for half of the pixels, with `text` a name or "", and ``height``
    is a number of every pixel.
    """
    rng = np.random.default_rng(0)
    n_times, n_rows, n_columns = sizes
    cover = rng.integers(0, 3, (n_rows, n_columns))
    centres = rng.normal(size=(3, len(bands)))
    values = centres[cover].transpose(2, 0, 1) + rng.normal(
        0, 0.3, (n_times, len(bands), *sizes[1:])
    )
    values[rng.random(values.shape) < 0.02] = np.nan
    unlabelled = rng.random(cover.shape) < 0.5
    names = np.where(unlabelled, "", CLASSES[cover]).astype("T")
    about = {"units": "1", "grid_mapping": "spatial_ref", "sensor": "drawn"}
    return xr.Dataset(
        {
            "reflectance": (("time", "band", "y", "x"), values.astype(np.float32), about),
            "cover": (("y", "x"), names if text else np.where(unlabelled, np.nan, cover + 1)),
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


def write_scene(scene, place, *, name="reflectance", zarr_format=3, **encoding):
    """Write a Dataset as Zarr; `encoding` is that of the variable `name`."""
    with warnings.catch_warnings():
        # Text in Zarr v3, and metadata in one place.
        warnings.simplefilter("ignore")
        scene.to_zarr(place, mode="w", zarr_format=zarr_format, encoding={name: encoding})
    return str(place)


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
