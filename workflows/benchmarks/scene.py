"""Time the map of a scene against the predictions of a dataset of as many rows.

The scene is drawn block by block: dates x rows x columns x bands with gaps, and labels of some of
the pixels. Both predictions are made by the command line, as its users do; drawing, fit and ingest
are not timed:

    python workflows/benchmarks/scene.py --size 4096 --dates 4 --bands 10 --basis-size 1000
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import zarr
from dask.utils import parse_bytes

from dask_nrbfn import FitParams, fit_dataset, ingest_file
from dask_nrbfn.engine import InlineEngine

N_CLASSES, GAPS = 6, 0.02


def blocks(size: int, chunk: int) -> Iterator[tuple[slice, slice]]:
    """Yield the rows and columns of all chunks."""
    for first, left in product(range(0, size, chunk), repeat=2):
        yield slice(first, min(first + chunk, size)), slice(left, min(left + chunk, size))


def draw(place: Path, options: argparse.Namespace) -> None:
    """Write the scene: fields of classes whose reflectances differ, with noise and gaps."""
    rng = np.random.default_rng(0)
    shape = (options.dates, options.size, options.size)
    group = zarr.create_group(place)
    reflectance = group.create_array(
        "reflectance",
        shape=(*shape, options.bands),
        chunks=(1, options.chunk, options.chunk, options.bands),
        dtype=np.float32,
        fill_value=np.nan,
        dimension_names=("date", "y", "x", "band"),
    )
    cover = group.create_array(
        "cover",
        shape=shape,
        chunks=(1, options.chunk, options.chunk),
        dtype=np.int8,
        fill_value=-1,
        dimension_names=("date", "y", "x"),
        attributes={"_FillValue": -1},
    )
    centres = rng.normal(size=(N_CLASSES, options.bands)).astype(np.float32)
    share = options.labelled / np.prod(shape)
    for date in range(options.dates):
        for rows, columns in blocks(options.size, options.chunk):
            y, x = np.mgrid[rows, columns] / options.size
            field = np.sin(9 * x + 4 * y + date) + np.cos(11 * y - 5 * x * y)
            classes = np.clip(np.floor((field + 2) / 4 * N_CLASSES), 0, N_CLASSES - 1).astype(int)
            values = centres[classes]
            values += rng.standard_normal(values.shape, dtype=np.float32)
            values[rng.random(classes.shape) < GAPS] = np.nan
            reflectance[date, rows, columns] = values
            labelled = rng.random(classes.shape) < share
            cover[date, rows, columns] = np.where(labelled, classes, -1)


class Took(NamedTuple):
    """The rows of a command, its seconds and its peak of memory."""

    rows: int
    seconds: float
    peak_bytes: int


def predict(*arguments: object) -> Took:
    """Run the command; return what its summary says."""
    program = [sys.executable, "-m", "dask_nrbfn", "predict"]
    process = subprocess.run(
        [*program, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    if process.returncode:
        raise RuntimeError(process.stderr)
    summary = re.findall(r"(\d+) rows in (\S+) s, peak (.+), exit status 0", process.stderr)[-1]
    return Took(int(summary[0]), float(summary[1]), parse_bytes(summary[2]))


def main() -> int:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for option, default in {
        "dates": 4,
        "size": 4096,
        "bands": 10,
        "chunk": 512,
        "labelled": 100_000,
        "basis-size": 1000,
        "repeats": 1,
    }.items():
        parser.add_argument(f"--{option}", type=int, default=default)
    parser.add_argument("--scratch", help="directory for scene and maps; default: the system's")
    options = parser.parse_args()
    params = FitParams(basis="random", basis_size=options.basis_size, alpha=1e-6)
    with tempfile.TemporaryDirectory(prefix="scene-", dir=options.scratch) as name:
        scratch = Path(name)
        scene, run = scratch / "scene.zarr", scratch / "run.zarr"
        draw(scene, options)
        where = {"variable": "reflectance", "feature_dim": "band"}
        pixels = ingest_file(scene, scratch / "pixels.zarr", **where, label="cover")
        fit_dataset(pixels, run, params, InlineEngine())
        ingest_file(scene, scratch / "rows.zarr", **where)
        spoken = ("--variable", "reflectance", "--feature-dim", "band")
        pairs = []
        for number in range(options.repeats):
            of_rows = predict(run, scratch / "rows.zarr", scratch / f"rows-{number}")
            pairs.append((of_rows, predict(run, scene, scratch / f"map-{number}", *spoken)))
    rates = [[each.rows / each.seconds for each in pair] for pair in pairs]
    row_rate, pixel_rate = np.median(rates, axis=0)
    dataset, mapped = pairs[-1]
    print(f"{options.dates} x {options.size} x {options.size} x {options.bands} bands, ", end="")
    print(f"{pixels.n_rows} labelled pixels, {options.basis_size} basis rows")
    print(f"map     {mapped.seconds:.1f} s, {pixel_rate:,.0f} pixels a second, ", end="")
    print(f"peak {mapped.peak_bytes / 2**20:.0f} MiB")
    print(f"dataset {dataset.seconds:.1f} s, {row_rate:,.0f} rows a second, ", end="")
    print(f"peak {dataset.peak_bytes / 2**20:.0f} MiB")
    print(f"ratio   {np.median([b / a for a, b in rates]):.3f}  (pixels to rows)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
