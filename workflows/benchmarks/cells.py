"""Time `ingest` in place, `fit` and `predict --to` on cells in an AnnData store in Zarr.

The cells are drawn in blocks: components of a few dozen overlapping types, of which most are known,
and sparse counts of genes beside them. Each command runs as its user calls it; seconds and peak are
those that it tells, the peak of the largest of its processes:

    python workflows/benchmarks/cells.py --cells 1000000
"""

import argparse
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
import zarr
from dask.utils import parse_bytes

# Cells that are drawn and written at a time.
_DRAWN = 50_000
_TYPES, _UNLABELLED = 30, 0.1
_ARRAY = {"encoding-type": "array", "encoding-version": "0.2.0"}


def main() -> int:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=1_000_000)
    parser.add_argument("--components", type=int, default=50)
    parser.add_argument("--genes", type=int, default=2000)
    parser.add_argument("--counts", type=int, default=50, help="genes that a cell has")
    parser.add_argument("--basis-size", type=int, default=1000)
    parser.add_argument("--scratch", help="directory for the cells; default: the system's")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cells-", dir=options.scratch) as scratch:
        cells, dataset, run = (str(Path(scratch, name)) for name in ("cells.zarr", "data", "run"))
        draw_cells(
            Path(cells),
            options.cells,
            n_components=options.components,
            n_genes=options.genes,
            n_counts=options.counts,
        )
        print(f"cells {options.cells}, of {size_of(cells)} MB")
        print("command  seconds  peak_MiB  cells_per_s")
        for arguments in (
            ["ingest", cells, dataset, "--x", "obsm/X_pca", "--y", "obs/cell_type"],
            ["fit", dataset, run, "--basis-size", str(options.basis_size)],
            ["predict", run, cells, "--to", "obs/predicted"],
        ):
            seconds, peak_bytes = ran(arguments)
            rate = options.cells / seconds
            figures = f"{seconds:.1f}  {peak_bytes / 2**20:.0f}  {rate:.0f}"
            print(f"{arguments[0]}  {figures}", flush=True)
        print(f"dataset of {size_of(dataset)} MB; {100 * right(cells):.2f} % of known types named")
    return 0


def ran(arguments: list[str]) -> tuple[float, int]:
    """Run a command of the program; return its seconds and its peak of memory."""
    command = [sys.executable, "-m", "dask_nrbfn", *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(process.stderr)
    seconds, peak = re.findall(r"in (\S+) s, peak (.+), exit status 0", process.stderr)[-1]
    return float(seconds), parse_bytes(peak)


def size_of(place: str) -> int:
    """Return the megabytes below a directory."""
    return sum(file.stat().st_size for file in Path(place).rglob("*") if file.is_file()) // 10**6


def right(cells: str) -> float:
    """Return the share of known types that were predicted, as AnnData reads them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        obs: Any = anndata.io.read_elem(zarr.open_group(cells, mode="r")["obs"])
    known = obs["cell_type"].notna()
    return float((obs["predicted"].astype(str) == obs["cell_type"].astype(str))[known].mean())


def draw_cells(
    place: Path, n_cells: int, *, n_components: int, n_genes: int, n_counts: int
) -> None:
    """Write drawn cells, some at a time."""
    rng = np.random.default_rng(0)
    types = rng.integers(_TYPES, size=n_cells)
    codes = np.where(rng.random(n_cells) < _UNLABELLED, -1, types)
    names = [f"type {of}" for of in range(_TYPES)]
    obs = pd.DataFrame(
        {"cell_type": pd.Categorical.from_codes(codes, names)},
        index=np.char.mod("cell-%d", np.arange(n_cells)),
    )
    var = pd.DataFrame(index=np.char.mod("gene-%d", np.arange(n_genes)))
    with warnings.catch_warnings():
        # Of AnnData about its next version, and of zarr about consolidated metadata.
        warnings.simplefilter("ignore")
        anndata.AnnData(obs=obs, var=var).write_zarr(place)
        root = zarr.open_group(place, mode="r+", use_consolidated=False)
        _draw_components(root, types, n_components, rng)
        _draw_counts(root, n_cells, n_genes, n_counts, rng)
        zarr.consolidate_metadata(root.store)


def _draw_components(
    root: zarr.Group, types: np.ndarray, n_components: int, rng: np.random.Generator
) -> None:
    # So far apart that few cells look like those of another type.
    centres = rng.normal(scale=0.5, size=(_TYPES, n_components))
    array = root["obsm"].create_array(
        "X_pca",
        shape=(len(types), n_components),
        chunks=(min(len(types), _DRAWN), n_components),
        dtype=np.float32,
        attributes=_ARRAY,
    )
    for start in range(0, len(types), _DRAWN):
        drawn = centres[types[start : start + _DRAWN]]
        array[start : start + _DRAWN] = drawn + rng.normal(size=drawn.shape)


def _draw_counts(
    root: zarr.Group, n_cells: int, n_genes: int, n_counts: int, rng: np.random.Generator
) -> None:
    """Write the counts of as many genes for each cell, one in each of as many ranges of genes."""
    del root["X"]
    X = root.create_group(
        "X",
        attributes={
            "encoding-type": "csr_matrix",
            "encoding-version": "0.1.0",
            "shape": [n_cells, n_genes],
        },
    )
    size = n_cells * n_counts
    chunks = (min(size, _DRAWN * n_counts),)
    data = X.create_array("data", shape=(size,), chunks=chunks, dtype=np.float32)
    indices = X.create_array("indices", shape=(size,), chunks=chunks, dtype=np.int32)
    firsts = np.arange(n_counts) * (n_genes // n_counts)
    for start in range(0, n_cells, _DRAWN):
        shape = (min(_DRAWN, n_cells - start), n_counts)
        part = slice(start * n_counts, (start + shape[0]) * n_counts)
        indices[part] = (firsts + rng.integers(n_genes // n_counts, size=shape)).ravel()
        data[part] = 1 + rng.poisson(0.5, size=shape).ravel()
    X.create_array("indptr", data=np.arange(n_cells + 1) * n_counts)


if __name__ == "__main__":
    raise SystemExit(main())
