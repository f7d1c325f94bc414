"""The speed of one worker, measured on rows of the dataset."""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.neighbors.exact import nearest_rows
from dask_nrbfn.numeric.moments import MomentSums
from dask_nrbfn.numeric.products import row_products
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.rows import Rows, dense, is_sparse
from dask_nrbfn.numeric.targets import ClassTargets
from dask_nrbfn.numeric.threads import blas_threads
from dask_nrbfn.parts import run_task
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.stage import Rates
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location

# Seconds for which each kernel runs, and rows of its blocks.
_SECONDS = 0.02
_ROWS = 4096
_SEARCHED_ROWS = 8192
_LEAST_ROWS = 256
_MAX_ELEMENTS = 2**23
# Most compared values: the differences of all pairs of rows take a fraction of a second.
_MAX_COMPARED = 2**32
_MAX_BASIS = 1500


def measure_rates(context: FitContext) -> Rates:
    """Return the rates of a worker of the engine of a fit, measured by `calibrate`."""
    n_basis, k = context.asked_size or context.dataset.n_rows, context.params.n_neighbors
    location = context.dataset.location
    return run_task(context.engine, calibrate, location, n_basis, k, label="calibrate")


def calibrate(location: Location, n_basis: int, n_neighbors: int) -> Rates:
    """Return the rates of this process, measured on one or two chunks of a labelled dataset."""
    dataset = Dataset.open(location)
    chunk = dataset.take(np.arange(min(dataset.chunk_rows, dataset.n_rows)))
    reading_s = _seconds(lambda: dataset.take(np.arange(chunk.shape[0])))
    row_values = max(1, round(dataset.row_values))
    # A value in CSR takes as long as several values of an array.
    n_columns = min(8 * row_values, dataset.n_features)
    compared = math.isqrt(_MAX_COMPARED // n_columns)
    n_rows = min(_SEARCHED_ROWS, _MAX_ELEMENTS // row_values, compared)
    rows = _rows_like(chunk, max(_LEAST_ROWS, n_rows))
    X = dense(rows[: max(_LEAST_ROWS, min(_ROWS, _MAX_ELEMENTS // n_columns)), :n_columns])
    return Rates(
        bytes=chunk.shape[0] * dataset.row_bytes / reading_s,
        pairs=_pair_rate(rows, min(n_neighbors, rows.shape[0] // 4)),
        **_network_rates(X, min(n_basis, _MAX_BASIS)),
    )


def _rows_like(chunk: Rows, n_rows: int) -> Rows:
    """Return `n_rows` rows in float64: rows of a chunk, repeated, with noise to tell them apart."""
    rows = chunk[np.arange(n_rows) % chunk.shape[0]].astype(np.float64)
    values = rows.data if is_sparse(rows) else rows
    spread = values.std() if values.size else 0.0
    values += 1e-3 * (spread + 1e-12) * np.random.default_rng(0).standard_normal(values.shape)
    return rows


def _network_rates(X: NDArray[Any], n_basis: int) -> dict[str, float]:
    n, p = X.shape
    basis = X[:n_basis] + 0.5
    features = RadialFeatures.from_basis(basis, float(np.sqrt(p) * X.std() + 1.0))
    Phi = features.activations(X)
    T = ClassTargets(2).bordered(np.zeros(n, dtype=np.int64))
    sums = MomentSums(len(basis), 2)
    product_s = _seconds(lambda: sums.add(Phi, T))
    exponents_s = _seconds(lambda: row_products(X, basis, out=Phi))
    activations_s = _seconds(lambda: features.activations(X, out=Phi, threads=blas_threads()))
    r = len(basis)
    return {
        "products": n * r**2 / product_s,
        "exponentials": n * r / max(activations_s - exponents_s, 0.2 * activations_s),
    }


def _pair_rate(X: Rows, k: int) -> float:
    rows, threads = X.astype(np.float32), blas_threads()
    few = rows[:_ROWS]
    # Without limits, filling the lists takes half of the time for so few rows, but less in a fit.
    within = nearest_rows(few, rows, count=k + 1, threads=threads).distances[:, -1]
    search_s = _seconds(
        lambda: nearest_rows(rows, rows, count=k + 1, within=within, threads=threads)
    )
    return float(rows.shape[0] ** 2 / search_s)


def _seconds(kernel: Callable[[], object]) -> float:
    """Return the seconds of the fastest call, after one that warms up; short ones are repeated."""
    kernel()
    fastest, spent = np.inf, 0.0
    while spent < _SECONDS:
        start = time.perf_counter()
        kernel()
        fastest = min(fastest, time.perf_counter() - start)
        spent += fastest
    return float(fastest)
