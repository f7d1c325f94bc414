"""Map the land cover of a scene that is drawn: in Python, and by the command line.

The scene is two dates of 6 bands with gaps, as a Zarr store that xarray opens, and labels of some
pixels. A network is trained on these, and both maps of all pixels are compared:

    python workflows/arrays/scene.py
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import xarray as xr

from dask_nrbfn import FitParams, InlineEngine, fit_dataset, ingest_file, predict_scene

BANDS = ["blue", "green", "red", "nir", "swir1", "swir2"]
CLASSES = {1: "water", 2: "forest", 3: "crops", 4: "town"}
WHERE = {"variable": "reflectance", "feature_dim": "band"}


def draw(size: int, seed: int = 0) -> xr.Dataset:
    """Return ``reflectance`` (time, band, y, x) and ``landcover`` (y, x), NaN where not known."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:size, :size] / size
    field = np.sin(6 * x + 3 * y) + np.cos(7 * y - 4 * x * y)
    cover = np.clip(np.floor(field + 3), 1, 4)
    centres = rng.uniform(0.05, 0.5, (len(CLASSES) + 1, len(BANDS)))
    values = centres[cover.astype(int)].transpose(2, 0, 1)
    values = values + rng.normal(0, 0.08, (2, len(BANDS), size, size))
    # Clouds hide all bands, a broken detector one.
    values[np.broadcast_to(rng.random((2, 1, size, size)) < 0.05, values.shape)] = np.nan
    values[:, 4, size // 2] = np.nan
    known = rng.random(cover.shape) < 0.05
    return xr.Dataset(
        {
            "reflectance": (
                ("time", "band", "y", "x"),
                values.astype(np.float32),
                {"grid_mapping": "spatial_ref"},
            ),
            "landcover": (("y", "x"), np.where(known, cover, np.nan)),
            "truth": (("y", "x"), cover),
        },
        coords={
            "time": np.array(["2024-06-01", "2025-06-01"], "M8[ns]"),
            "band": BANDS,
            "y": 5_600_000.0 - 10 * np.arange(size),
            "x": 400_000.0 + 10 * np.arange(size),
            "spatial_ref": ((), 0, {"crs_wkt": 'PROJCS["WGS 84 / UTM zone 32N"]'}),
        },
    )


def main() -> int:
    """Run the example and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("scene-output"), metavar="DIR")
    parser.add_argument("--size", type=int, default=256, help="rows and columns of the scene")
    options = parser.parse_args()
    scene_place, map_place = options.output / "scene.zarr", options.output / "map.zarr"
    drawn = draw(options.size).chunk({"time": 1, "band": 3, "y": 100, "x": 100})
    drawn.to_zarr(scene_place, mode="w", zarr_format=2)

    scene, run_place = xr.open_zarr(scene_place), options.output / "run.zarr"
    shutil.rmtree(run_place, ignore_errors=True)
    pixels = ingest_file(
        scene_place, options.output / "pixels.zarr", **WHERE, label="landcover", overwrite=True
    )
    params, engine = FitParams(basis="random", basis_size=300, alpha=1e-6), InlineEngine()
    fit_dataset(pixels, run_place, params, engine)
    own_place = options.output / "own.zarr"
    predict_scene(run_place, scene_place, own_place, engine, **WHERE, overwrite=True)

    where = ["--variable", "reflectance", "--feature-dim", "band"]
    program = [sys.executable, "-m", "dask_nrbfn", "--quiet", "predict"]
    places = [run_place, scene_place, map_place]
    subprocess.run(
        [*program, *places, *where, "--overwrite"], stdout=subprocess.DEVNULL, check=True
    )
    mapped = xr.open_zarr(map_place)["label"]

    xr.testing.assert_equal(mapped, xr.open_zarr(own_place)["label"])
    known = mapped.notnull()
    hits = (mapped == scene["truth"]).where(known)
    print(f"labelled pixels {int(scene['landcover'].notnull().sum())} at each of 2 dates")
    print(f"mapped pixels   {int(known.sum())} of {known.size}, both maps are equal")
    print(f"error           {100 * (1 - float(hits.mean())):.2f} %")
    for label, name in CLASSES.items():
        print(f"{name:<15} {100 * float((mapped == label).sum() / known.sum()):.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
