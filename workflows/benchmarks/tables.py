"""Time `ingest` of a table of mixed columns against pyarrow's own reading of the same file.

The table, CSV or Parquet, has 10 numbers, 6 categories of 4 to 10,000 values, gaps, ids and a
label. Each of both runs in a process of its own, in turn, a few times: seconds are medians after
all imports, the ratio is the median of those of each turn, and the peak is that of the process.
pyarrow streams batches and keeps none. Peaks of several numbers of rows show whether memory grows
with them:

    python workflows/benchmarks/tables.py --format parquet --rows 1000000 3000000
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from pyarrow import csv, parquet

# Rows that are drawn and written at a time.
_DRAWN_ROWS = 50_000
_CATEGORIES = (4, 10, 40, 300, 2000, 10_000)
_NUMBERS = 10
_MISSING = 0.03

_MEASURED = """
import json, sys, time
{imports}
from dask_nrbfn.engine.measure import peak_resident_bytes
start = time.perf_counter()
{work}
print(json.dumps([time.perf_counter() - start, peak_resident_bytes()]))
"""
_OPENED = {
    "csv": "csv.open_csv(sys.argv[1]) as rows:\n    batches = rows",
    "parquet": "parquet.ParquetFile(sys.argv[1]) as rows:\n    batches = rows.iter_batches()",
}
_FLOORS = {
    kind: _MEASURED.format(
        imports=f"from pyarrow import {kind}",
        work=f"with {opened}\n    print(sum(map(len, batches)), end=' ')",
    )
    for kind, opened in _OPENED.items()
}
_INGEST = _MEASURED.format(
    imports="import dask_nrbfn.sources.delimited, dask_nrbfn.sources.parquet\n"
    "from dask_nrbfn import ingest_file",
    work="written = ingest_file(sys.argv[1], sys.argv[2], label='y', id='id', missing='impute',\n"
    "    overwrite=True)\nprint(written.n_rows, end=' ')",
)


def main() -> int:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 3_000_000])
    parser.add_argument("--format", choices=_OPENED, default="csv")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scratch", help="directory for the tables; default: the system's")
    options = parser.parse_args()
    if options.repeats < 1 or min(options.rows) < 1:
        parser.error("--repeats and --rows must be at least 1")
    print("rows  MB  read_s  ingest_s  ratio  ingest_rows_per_s  read_peak_MiB  ingest_peak_MiB")
    for n_rows in options.rows:
        with tempfile.TemporaryDirectory(prefix="tables-", dir=options.scratch) as scratch:
            path = Path(scratch, "rows.csv")
            draw_table(path, n_rows)
            if options.format == "parquet":
                path = as_parquet(path)
            print(line(path, n_rows, options.repeats), flush=True)
    return 0


def line(path: Path, n_rows: int, repeats: int) -> str:
    """Measure one table; return its line."""
    dataset = str(path.with_suffix(".zarr"))
    turns = [
        (ran(_FLOORS[path.suffix[1:]], n_rows, path), ran(_INGEST, n_rows, path, dataset))
        for _ in range(repeats)
    ]
    read_s, ingest_s = (median(turn[which][0] for turn in turns) for which in (0, 1))
    peaks = [max(turn[which][1] for turn in turns) / 2**20 for which in (0, 1)]
    ratio = median(ingest[0] / read[0] for read, ingest in turns)
    megabytes = path.stat().st_size / 1e6
    return (
        f"{n_rows}  {megabytes:.0f}  {read_s:.3g}  {ingest_s:.3g}  {ratio:.1f}  "
        f"{n_rows / ingest_s:.0f}  {peaks[0]:.0f}  {peaks[1]:.0f}"
    )


def ran(code: str, n_rows: int, *arguments: Any) -> tuple[float, int]:
    """Run code in a new process; return its seconds and its peak of memory."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    found, measured = out.split(" ", 1)
    assert int(found) == n_rows
    seconds, peak_bytes = json.loads(measured)
    return seconds, peak_bytes


def draw_table(path: Path, n_rows: int) -> None:
    """Write a table of drawn rows."""
    names = [f"n{j}" for j in range(_NUMBERS)] + [f"c{size}" for size in _CATEGORIES]
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        file.write(",".join(["id", *names, "y"]) + "\n")
        for start in range(0, n_rows, _DRAWN_ROWS):
            size = min(_DRAWN_ROWS, n_rows - start)
            columns = [np.char.mod("%d", np.arange(start, start + size) + 10**6)]
            columns += [np.char.mod("%.6f", rng.normal(size=size)) for _ in range(_NUMBERS)]
            columns += [np.char.mod(f"v{k}_%d", rng.integers(k, size=size)) for k in _CATEGORIES]
            for column in columns[1:]:
                column[rng.random(size) < _MISSING] = ""
            columns.append(rng.choice(["no", "yes"], size))
            file.writelines(",".join(row) + "\n" for row in zip(*columns, strict=True))


def as_parquet(path: Path) -> Path:
    """Return a Parquet file of the rows of a CSV file."""
    written = path.with_suffix(".parquet")
    with csv.open_csv(path) as rows, parquet.ParquetWriter(written, rows.schema) as out:
        for batch in rows:
            out.write_batch(batch)
    return written


if __name__ == "__main__":
    raise SystemExit(main())
