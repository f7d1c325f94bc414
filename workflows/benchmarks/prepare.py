"""What benchmarks of single stages share: rows, the stages before, and the machine's own rate."""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from sheets import SheetSource
from threadpoolctl import threadpool_limits

from dask_nrbfn import Dataset, FitParams, Run, ingest_source
from dask_nrbfn.engine import Engine
from dask_nrbfn.fit import check_fit, run_stage, stages_of_run, start_run
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.stage import Stage

PRODUCT_ROWS = 4096
RATE_SECONDS = 1.0


def add_options(parser: argparse.ArgumentParser, *, rows: int, features: int, basis: int) -> None:
    """Add the options that say what is computed, with these defaults."""
    parser.add_argument("dataset", nargs="?", help="made by dask-nrbfn ingest; default: drawn rows")
    parser.add_argument("--rows", type=int, default=rows, help="of the drawn dataset")
    parser.add_argument("--features", type=int, default=features, help="of the drawn dataset")
    parser.add_argument("--basis-size", type=int, default=basis)
    parser.add_argument("--scratch", help="directory for rows and runs; default: the system's")


def open_dataset(options: argparse.Namespace, scratch: str) -> Dataset:
    """Open the dataset that was named, or draw one."""
    if options.dataset is not None:
        return Dataset.open(options.dataset)
    source = SheetSource(options.rows, options.features)
    return ingest_source(source, f"{scratch}/dataset.zarr")


def begin(dataset: Dataset, params: FitParams, engine: Engine, location: str) -> Run:
    """Begin a run."""
    context = FitContext.resolve(dataset, params, engine)
    check_fit(context)
    return start_run(location, context)


def run_until(stage: Stage[Any], run: Run, dataset: Dataset, engine: Engine) -> None:
    """Run the stages before `stage` that are not finished."""
    context, stages = FitContext.resolve(dataset, run.params, engine), stages_of_run(run)
    for earlier in stages[: stages.index(stage)]:
        if earlier.name not in run.stages:
            run_stage(earlier, run, context)


def spread(values: list[float], form: str) -> str:
    """Return the median of values with the least and the largest."""
    return f"{median(values):{form}}  ({min(values):{form}} ... {max(values):{form}})"


def symmetric_rate(n_basis: int, threads: int) -> float:
    """Return flops a second of ``W.T @ W``, repeated for a second.

    numpy computes one triangle (syrk), so ``n r^2`` flops are counted for W (n, r).
    """
    W = np.random.default_rng(0).random((PRODUCT_ROWS, n_basis))
    return PRODUCT_ROWS * n_basis**2 / _mean_seconds(lambda: W.T @ W, threads)


def product_rate(n_basis: int, n_features: int, threads: int) -> float:
    """Return flops a second of ``X @ G.T``, repeated for a second: ``2 n r p`` for X (n, p)."""
    rng = np.random.default_rng(0)
    X, G = rng.random((PRODUCT_ROWS, n_features)), rng.random((n_basis, n_features))
    out = np.empty((PRODUCT_ROWS, n_basis))
    seconds = _mean_seconds(lambda: np.matmul(X, G.T, out=out), threads)
    return 2 * PRODUCT_ROWS * n_basis * n_features / seconds


def _mean_seconds(product: Callable[[], object], threads: int) -> float:
    """Return the seconds of a product that is repeated for a while, as a stage repeats its own."""
    with threadpool_limits(threads):
        product()
        repeats, start, seconds = 0, time.perf_counter(), 0.0
        while seconds < RATE_SECONDS:
            product()
            repeats, seconds = repeats + 1, time.perf_counter() - start
    return seconds / repeats
