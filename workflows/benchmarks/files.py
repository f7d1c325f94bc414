"""Time predictions straight from a CSV file against those from a dataset of the same rows.

The table is drawn: ten numbers, six categories of up to 10,000 values, gaps and ids. Writing it,
the fit on its first rows, and the ingest of the dataset are not timed, and neither is starting the
workers:

    python workflows/benchmarks/files.py --rows 1000000 --basis-size 2000
"""

import argparse
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from dask_nrbfn import EngineOptions, FitParams, NRBFNError, connect, fit_dataset, predict_dataset
from dask_nrbfn.commands.files import OpenedRows, opened_rows
from dask_nrbfn.commands.ingest import ingest_source
from dask_nrbfn.engine import Engine
from dask_nrbfn.sources import open_source
from dask_nrbfn.sources.survey import TableOptions
from dask_nrbfn.storage.dataset import Dataset

N_NUMBERS, N_VALUES = 10, (2, 5, 20, 100, 1000, 10_000)
GAPS = 0.02
BATCH_ROWS, TRAINING_ROWS = 50_000, 20_000


def draw(rng: np.random.Generator, first_row: int, n_rows: int) -> pa.Table:
    """Return rows of the table: ids, numbers, categories and labels."""
    numbers = rng.normal(size=(N_NUMBERS, n_rows)).round(3)
    columns = {"id": pa.array([f"row-{row}" for row in range(first_row, first_row + n_rows)])}
    for j, values in enumerate(numbers):
        columns[f"number_{j}"] = pa.array(values, mask=rng.random(n_rows) < GAPS)
    for n_values in N_VALUES:
        # The rarer, the higher.
        codes = np.minimum(rng.zipf(1.3, n_rows) - 1, n_values - 1)
        columns[f"of_{n_values}"] = pa.array([f"value {code}" for code in codes.tolist()])
    label = numbers[0] * numbers[1] > rng.normal(size=n_rows)
    return pa.table({**columns, "label": pa.array(np.where(label, "yes", "no"))})


def write(place: Path, n_rows: int) -> None:
    """Write the first rows of the table."""
    rng = np.random.default_rng(0)
    with csv.CSVWriter(place, draw(rng, 0, 1).schema) as file:
        for start in range(0, n_rows, BATCH_ROWS):
            file.write_table(draw(rng, start, min(BATCH_ROWS, n_rows - start)))


def seconds_of(rows: "OpenedRows | None", scratch: Path, engine: Engine) -> float:
    """Return the seconds of predicting a dataset, or of reading the file and predicting it."""
    run, out = scratch / "run.zarr", scratch / "out.csv"
    start = time.perf_counter()
    opening = opened_rows(scratch / "rows.csv", run, beside=out, labelled=False)
    with opening if rows is None else nullcontext(rows) as opened:
        predict_dataset(run, opened.dataset, out, engine, overwrite=True)
    return time.perf_counter() - start


def main() -> int:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--basis-size", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--scratch", help="directory for rows and runs; default: the system's")
    options = parser.parse_args()
    params = FitParams(basis="random", basis_size=options.basis_size, scale="standard")
    with tempfile.TemporaryDirectory(prefix="files-", dir=options.scratch) as name:
        scratch = Path(name)
        try:
            write(scratch / "rows.csv", options.rows)
            write(scratch / "train.csv", min(TRAINING_ROWS, options.rows))
            told = {"label": "label", "table": TableOptions(id="id", missing="impute")}
            train = ingest_source(open_source(scratch / "train.csv", **told), scratch / "train")
            with connect(EngineOptions(workers=1)) as engine:
                fit_dataset(train, scratch / "run.zarr", params, engine)
                source = open_source(scratch / "rows.csv", schema=train.schema)
                dataset: Dataset = ingest_source(source, scratch / "rows.zarr")
                pairs = [
                    (
                        seconds_of(OpenedRows(dataset), scratch, engine),
                        seconds_of(None, scratch, engine),
                    )
                    for _ in range(options.repeats)
                ]
        except NRBFNError as error:
            print(error.problem, error.remedy, sep="\n", file=sys.stderr)
            return 2
    from_dataset, from_csv = np.median(pairs, axis=0)
    print(f"{options.rows} x {dataset.n_features}, {options.basis_size} basis rows")
    print(f"dataset {from_dataset:.2f} s")
    print(f"CSV     {from_csv:.2f} s")
    print(f"ratio   {np.median([b / a for a, b in pairs]):.3f}  (CSV to dataset)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
