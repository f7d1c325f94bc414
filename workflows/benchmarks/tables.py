"""Measure `ingest` of a drawn table from CSV, Parquet and SQL beside pyarrow's reading of the file.

The table has ids, numbers, categories of up to 10,000 values, missing values and a label. Every
measurement runs in its own process, and seconds leave out the imports. The datasets must have equal
digests. The peak of several sizes shows whether memory grows with the file:

    python workflows/benchmarks/tables.py --bytes 250000000 750000000
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from dask_nrbfn import ingest_file
from dask_nrbfn.engine.measure import peak_resident_bytes

DRAWN_ROWS = 50_000
N_NUMBERS, N_VALUES, MISSING = 10, (4, 10, 40, 300, 2000, 10_000), 0.03


def drawn(most_rows: int = 2**40, seed: int = 0) -> Iterator[pa.Table]:
    """Yield batches of at most `most_rows` drawn rows."""
    rng = np.random.default_rng(seed)
    for start in range(0, most_rows, DRAWN_ROWS):
        n_rows = min(DRAWN_ROWS, most_rows - start)
        columns = {"id": pa.array(np.arange(start, start + n_rows) + 10**6)}
        for j, values in enumerate(rng.normal(size=(N_NUMBERS, n_rows)).round(6)):
            columns[f"n{j}"] = pa.array(values, mask=rng.random(n_rows) < MISSING)
        for size in N_VALUES:
            texts = np.char.mod(f"v{size}_%d", rng.integers(size, size=n_rows))
            columns[f"c{size}"] = pa.array(texts.tolist(), mask=rng.random(n_rows) < MISSING)
        yield pa.table(columns | {"y": pa.array(rng.choice(["a", "b"], n_rows).tolist())})


def write(text: Path, binary: Path, n_bytes: int) -> None:
    """Write the same rows as CSV, of at least `n_bytes`, and as Parquet."""
    schema = next(drawn(1)).schema
    with csv.CSVWriter(text, schema) as rows, parquet.ParquetWriter(binary, schema) as same:
        for table in drawn():
            rows.write_table(table)
            same.write_table(table)
            if text.stat().st_size >= n_bytes:
                return


def read(place: Path) -> tuple[int, float]:
    """Return the rows and seconds of pyarrow's reading of a file, batch by batch."""
    start = time.perf_counter()
    if place.suffix == ".csv":
        n_rows = sum(map(len, csv.open_csv(place)))
    else:
        n_rows = sum(map(len, parquet.ParquetFile(place).iter_batches()))
    return n_rows, time.perf_counter() - start


def ingest(source: str, location: str) -> tuple[float, float, str]:
    """Return the seconds, the peak of memory in MiB, and the digest of the dataset."""
    start = time.perf_counter()
    dataset = ingest_file(source, location, label="y", id="id", missing="impute")
    return time.perf_counter() - start, peak_resident_bytes() / 2**20, dataset.fingerprint


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function that runs in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


def main() -> int:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, nargs="+", default=[250_000_000])
    parser.add_argument("--scratch", help="directory for the tables; default: the system's")
    options = parser.parse_args()
    print("source  rows  MB  pyarrow_rows_per_s  ingest_rows_per_s  peak_MiB  digest")
    for n_bytes in options.bytes:
        with tempfile.TemporaryDirectory(prefix="tables-", dir=options.scratch) as scratch:
            text, binary = Path(scratch, "rows.csv"), Path(scratch, "rows.parquet")
            write(text, binary, n_bytes)
            digests = set()
            for name, source, file in (
                ("CSV", text, text),
                ("Parquet", binary, binary),
                ("SQL", f"FROM '{binary}'", binary),
            ):
                n_rows, read_s = alone(read, file)
                seconds, peak, digest = alone(ingest, str(source), f"{scratch}/{name}.zarr")
                speeds = f"{n_rows / read_s:.0f}  {n_rows / seconds:.0f}"
                size = file.stat().st_size / 1e6
                print(f"{name}  {n_rows}  {size:.0f}  {speeds}  {peak:.0f}  {digest}", flush=True)
                digests.add(digest)
            if len(digests) > 1:
                raise SystemExit("The datasets differ.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
