"""The speed of one worker, measured on rows of the dataset."""

import math
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from dask_nrbfn.neighbors.exact import SPARE, exact_neighbors, find_repeats, nearest_rows
from dask_nrbfn.neighbors.lists import measure_neighbors, merge_neighbors
from dask_nrbfn.neighbors.partition import Partitions
from dask_nrbfn.neighbors.plan import update_rate
from dask_nrbfn.numeric.confidence import RowPool, keep_best, soft_confidence
from dask_nrbfn.numeric.distances import BasisDistances
from dask_nrbfn.numeric.hashing import hash_rows
from dask_nrbfn.numeric.moments import MomentSums
from dask_nrbfn.numeric.products import row_products
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.ridge import solve_weights
from dask_nrbfn.numeric.rows import Rows, dense, is_sparse
from dask_nrbfn.numeric.scaling import ColumnStatistics
from dask_nrbfn.numeric.targets import ClassTargets
from dask_nrbfn.numeric.threads import blas_threads, side_by_side
from dask_nrbfn.parts import run_task
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.recall import AUDITED_ROWS
from dask_nrbfn.stages.stage import Rates
from dask_nrbfn.storage.array import create_array, read_rows
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location

# Seconds for which each kernel runs, and rows of its blocks; all kernels take a few seconds.
_SECONDS = 0.02
_ROWS = 4096
_SEARCHED_ROWS = 8192
_LEAST_ROWS = 256
_MAX_ELEMENTS = 2**23
# Most compared values: the differences of all pairs of rows take a fraction of a second.
_MAX_COMPARED = 2**32
_MAX_BASIS = 1500
_SELECTED_ROWS = 2**17
_WRITTEN_ROWS = 2**17


def measure_rates(context: FitContext) -> Rates:
    """Return the rates of a worker of the engine of a fit, measured in a few seconds."""
    n_basis, k = context.asked_size or context.dataset.n_rows, context.params.n_neighbors
    location = context.dataset.location
    return run_task(context.engine, calibrate, location, n_basis, k, label="calibrate")


def calibrate(location: Location, n_basis: int, n_neighbors: int) -> Rates:
    """Return the rates of this process, measured on one or two chunks of a labelled dataset."""
    dataset = Dataset.open(location)
    chunk, read_bytes = _read(dataset)
    row_values = max(1, round(dataset.row_values))
    # A value in CSR takes as long as several values of an array.
    n_columns = min(8 * row_values, dataset.n_features)
    compared = math.isqrt(_MAX_COMPARED // n_columns)
    n_rows = min(_SEARCHED_ROWS, _MAX_ELEMENTS // row_values, compared)
    rows = _rows_like(chunk, max(_LEAST_ROWS, n_rows))
    X = dense(rows[: max(_LEAST_ROWS, min(_ROWS, _MAX_ELEMENTS // n_columns)), :n_columns])
    threads = blas_threads()
    return Rates(
        updates=update_rate(threads),
        read_bytes=read_bytes,
        scratch_bytes=_scratch_rate(),
        **_network_rates(X, min(n_basis, _MAX_BASIS)),
        **_column_rates(rows),
        **_search_rates(rows, min(n_neighbors, rows.shape[0] // 4)),
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
    distances = BasisDistances.from_basis(basis)
    sums = MomentSums(len(basis), 2)
    product_s = _seconds(lambda: sums.add(Phi, T))
    exponents_s = _seconds(lambda: row_products(X, basis, out=Phi))
    activations_s = _seconds(lambda: features.activations(X, out=Phi, threads=blas_threads()))
    distances_s = _seconds(lambda: distances.total(X, buffer=Phi, threads=blas_threads()))
    gram, threads = np.eye(len(basis)), blas_threads()

    def solve(_: int) -> object:
        return solve_weights(gram, np.ones((2, len(basis))), alpha=1e-3)

    # A system for each thread, as in a search: on busy cores the threads of one small system wait
    # for each other a hundred times as long as they work.
    solve_s = _seconds(lambda: side_by_side(solve, range(threads), at_once=threads))
    r = len(basis)
    return {
        "moments_flops": n * r**2 / product_s,
        "solve_flops": threads * r**3 / 3 / solve_s,
        "activations": n * r / max(activations_s - exponents_s, 0.2 * activations_s),
        "roots": n * r / max(distances_s - exponents_s, 0.2 * distances_s),
        "selected_rows": _SELECTED_ROWS / _seconds(_selection(n_basis)),
    }


def _column_rates(X: Rows) -> dict[str, float]:
    return {
        "column_values": X.size / _seconds(lambda: ColumnStatistics.from_block(X)),
        "hashed_values": X.size / _seconds(lambda: hash_rows(X, seed=0)),
    }


def _selection(n_basis: int) -> Callable[[], object]:
    """Return a function that chooses a basis among drawn rows."""
    rng = np.random.default_rng(0)
    block = RowPool(
        rng.random(_SELECTED_ROWS),
        rng.integers(2**63, size=_SELECTED_ROWS, dtype=np.uint64),
        rng.integers(10, size=_SELECTED_ROWS),
        np.arange(_SELECTED_ROWS),
    )
    pool = keep_best(RowPool.none(), block, size=n_basis, n_classes=10)
    return lambda: keep_best(pool, block, size=n_basis, n_classes=10)


def _search_rates(X: Rows, k: int) -> dict[str, float]:
    rows, threads = X.astype(np.float32), blas_threads()
    n = rows.shape[0]
    few, audited = rows[:_ROWS], rows[:AUDITED_ROWS]
    found = exact_neighbors(few, np.arange(few.shape[0]), n_neighbors=k, threads=threads)
    twice = np.hstack([found.indices, found.indices + 1])
    distances = np.hstack([found.distances, found.distances])
    partitions = Partitions(dense(X[:64]), np.zeros(64), np.ones(64))
    search = partial(nearest_rows, rows, count=k + 1, threads=threads)
    # Distances between some candidates limit their search.
    within = nearest_rows(few, rows, count=k + 1, threads=threads).distances[:, -1]
    exact_s = _seconds(lambda: search(rows, within=within))
    audit_s = _seconds(lambda: search(audited))
    measured_s = _seconds(lambda: measure_neighbors(few, few, found.indices, threads=threads))
    measured = found.indices.size * (rows.size / n) / measured_s
    measuring_s = (k + 1 + SPARE) * rows.size / measured
    return {
        "pairs": n**2 / max(exact_s - measuring_s, 0.2 * exact_s),
        "audited_pairs": n * audited.shape[0] / audit_s,
        "measured_values": measured,
        "merged_candidates": twice.size
        / _seconds(lambda: merge_neighbors(twice, distances, n_neighbors=k)),
        "routed_distances": n
        * 64
        / _seconds(
            lambda: (find_repeats(rows, n_neighbors=k, seed=0), partitions.route(rows, overlap=2))
        ),
        "weighed_neighbors": found.indices.size
        / _seconds(lambda: soft_confidence(found.distances, found.indices > 0, width=1.0)),
    }


def _read(dataset: Dataset) -> tuple[Rows, float]:
    """Return the rows of a chunk and the bytes a second of reading it again."""
    rows = np.arange(min(dataset.chunk_rows, dataset.n_rows))
    X = dataset.take(rows)
    return X, len(rows) * dataset.row_bytes / _seconds(lambda: dataset.take(rows))


def _scratch_rate() -> float:
    """Return the bytes a second of writing an array to a temporary directory and reading it."""
    values = np.random.default_rng(0).random((_WRITTEN_ROWS, 20))
    with tempfile.TemporaryDirectory(prefix="dask-nrbfn-") as directory:
        group = zarr.create_group(directory)

        def write_and_read() -> None:
            array = create_array(
                group,
                "values",
                shape=values.shape,
                dtype=values.dtype,
                chunks=(_ROWS, 20),
                dimensions=("row", "value"),
            )
            array[...] = values
            read_rows(array)

        return 2 * values.nbytes / _seconds(write_and_read)


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
