"""What benchmarks of single stages share: rows, scratch, and the machine's own rate."""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

from sheets import SheetSource
from threadpoolctl import threadpool_limits

from dask_nrbfn import Dataset, NRBFNError
from dask_nrbfn.commands.ingest import ingest_source

PRODUCT_ROWS = 4096
RATE_SECONDS = 1.0


def add_options(parser: argparse.ArgumentParser, *, rows: int, features: int, basis: int) -> None:
    """Add the options that say what is computed, with these defaults."""
    parser.add_argument("dataset", nargs="?", help="made by dask-nrbfn ingest; default: drawn rows")
    parser.add_argument("--rows", type=int, default=rows, help="of the drawn dataset")
    parser.add_argument("--features", type=int, default=features, help="of the drawn dataset")
    parser.add_argument("--basis-size", type=int, default=basis)
    parser.add_argument("--scratch", help="directory for rows and runs; default: the system's")


@contextmanager
def scratch_of(options: argparse.Namespace) -> Iterator[str]:
    """Give a directory for rows and runs; an error that the user can mend ends the benchmark."""
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=options.scratch) as scratch:
        try:
            yield scratch
        except NRBFNError as error:
            raise SystemExit(f"{error.problem}\n{error.remedy}") from error


def open_dataset(options: argparse.Namespace, scratch: str) -> Dataset:
    """Open the dataset that was named, or draw one."""
    if options.dataset is not None:
        return Dataset.open(options.dataset)
    source = SheetSource(options.rows, options.features)
    return ingest_source(source, f"{scratch}/dataset.zarr")


def spread(values: list[float], form: str) -> str:
    """Return the median of values with the least and the largest."""
    return f"{median(values):{form}}  ({min(values):{form}} ... {max(values):{form}})"


def rate_of(product: Callable[[], object], flops: float, threads: int) -> float:
    """Return flops a second of a product, repeated for a second, as a stage repeats its own."""
    with threadpool_limits(threads):
        product()
        repeats, start, seconds = 0, time.perf_counter(), 0.0
        while seconds < RATE_SECONDS:
            product()
            repeats, seconds = repeats + 1, time.perf_counter() - start
    return repeats * flops / seconds
