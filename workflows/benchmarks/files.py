"""Time predictions straight from a CSV file against those from a dataset of the same rows.

The table is that of tables.py. Drawing it, the fit on its first rows, and the ingest of the dataset
are not timed, and neither is starting the workers:

    python workflows/benchmarks/files.py --rows 1000000 --basis-size 2000
"""

import argparse
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
from prepare import scratch_of
from pyarrow import csv
from tables import drawn

from dask_nrbfn import (
    EngineOptions,
    FitParams,
    connect,
    fit_dataset,
    ingest_file,
    predict_dataset,
)
from dask_nrbfn.commands.files import OpenedRows, opened_rows
from dask_nrbfn.engine import Engine

TRAINING_ROWS = 20_000


def write(place: Path, n_rows: int) -> None:
    """Write the first rows of the table."""
    with csv.CSVWriter(place, next(drawn(1)).schema) as file:
        for table in drawn(n_rows):
            file.write_table(table)


def seconds_of(rows: "OpenedRows | None", scratch: Path, engine: Engine) -> float:
    """Return the seconds of predicting a dataset, or of reading the file and predicting it."""
    run, out = scratch / "run.zarr", scratch / "out.csv"
    start = time.perf_counter()
    opening = opened_rows(scratch / "rows.csv", run, beside=out, labelled=False)
    with opening if rows is None else nullcontext(rows) as opened:
        predict_dataset(run, opened.dataset, out, engine, overwrite=True)
    return time.perf_counter() - start


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--basis-size", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--scratch", help="directory for rows and runs; default: the system's")
    options = parser.parse_args()
    params = FitParams(basis="random", basis_size=options.basis_size, scale="standard")
    with scratch_of(options) as name:
        scratch = Path(name)
        write(scratch / "rows.csv", options.rows)
        write(scratch / "train.csv", min(TRAINING_ROWS, options.rows))
        roles = {"label": "y", "id": "id", "missing": "impute"}
        train = ingest_file(scratch / "train.csv", scratch / "train.zarr", **roles)
        rows = ingest_file(scratch / "rows.csv", scratch / "rows.zarr", schema=train.schema)
        with connect(EngineOptions(workers=1)) as engine:
            fit_dataset(train, scratch / "run.zarr", params, engine)
            pairs = [
                (seconds_of(OpenedRows(rows), scratch, engine), seconds_of(None, scratch, engine))
                for _ in range(options.repeats)
            ]
    from_dataset, from_csv = np.median(pairs, axis=0)
    print(f"{options.rows} x {rows.n_features}, {options.basis_size} basis rows")
    print(f"dataset {from_dataset:.2f} s")
    print(f"CSV     {from_csv:.2f} s")
    print(f"ratio   {np.median([b / a for a, b in pairs]):.3f}  (CSV to dataset)")


if __name__ == "__main__":
    main()
