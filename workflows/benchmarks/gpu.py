"""Stages of a fit on a GPU, each compared with the CPU of the same machine and with its floor.

    python workflows/benchmarks/gpu.py [FILE.npz] [--rows 4000000] [--basis 2000] [--small]

FILE has X_train, y_train, X_test and y_test, such as those of MNIST; without it rows are drawn. The
CPU computes a share of the rows, and its seconds are extrapolated. A floor is the time of the BLAS
or LAPACK call alone on the GPU.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.commands.ingest import ingest_arrays
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.neighbors.exact import nearest_rows
from dask_nrbfn.numeric import device
from dask_nrbfn.numeric.distances import distances_from, placed
from dask_nrbfn.numeric.folds import FoldedBlock, fold_block
from dask_nrbfn.numeric.moments import Moments
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.ridge import RidgeSystem
from dask_nrbfn.numeric.targets import ClassTargets
from dask_nrbfn.numeric.threads import n_threads, task_threads
from dask_nrbfn.params import FitParams
from dask_nrbfn.scorer import Scorer
from dask_nrbfn.stages.moments import MomentsPass, rows_of_block
from dask_nrbfn.storage.model import Model
from dask_nrbfn.weighting import RowReading, RowWeights, folded_blocks

NO_WEIGHTS = RowWeights(None)
PAPER = FitParams(kernel="gaussian", scale="none", alpha=1e-13, confidence_threshold=0.9)


def on_gpu(step: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds and the result of a step in a task on the GPU."""

    def run() -> tuple[float, Any]:
        start = time.perf_counter()
        result = step()
        device.open_gpu().xp.cuda.Device().synchronize()
        return time.perf_counter() - start, result

    return device.on_gpu(run)


def on_cpu(step: Callable[[], Any]) -> float:
    """Return the seconds of a step on the CPU."""
    start = time.perf_counter()
    with task_threads():
        step()
    return time.perf_counter() - start


def show(name: str, gpu_s: float, cpu_s: float | None = None, floor_s: float | None = None) -> None:
    """Print a line of the table."""
    cells = [f"{value:9.3f}" if value is not None else " " * 9 for value in (gpu_s, cpu_s, floor_s)]
    ratios = f"  {cpu_s / gpu_s:5.0f} times the CPU" if cpu_s else ""
    ratios += f"  {floor_s / gpu_s:5.2f} of the floor" if floor_s else ""
    print(f"{name:48}", *cells, ratios, flush=True)


def drawn(n_rows: int, n_features: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of ten overlapping classes, float32, and their classes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 10, n_rows)
    X = rng.standard_normal((n_rows, n_features), dtype=np.float32)
    X += 4 / n_features**0.5 * np.random.default_rng(1).standard_normal((10, n_features))[y]
    return X.astype(np.float32), y


def total_distance(X: np.ndarray, basis: np.ndarray, size: int, *, l1: bool = False) -> float:
    """Return the sum of the distances of rows, in blocks of a size, from all basis rows."""
    distances = distances_from(placed(basis, None)[0], l1=l1)
    starts = range(0, len(X), size)
    return sum(distances.total(X[start : start + size]) for start in starts)


def blocks_of(X: np.ndarray, y: np.ndarray, reading: RowReading) -> Iterator[FoldedBlock]:
    """Yield the blocks of a table in memory."""
    for start in range(0, len(X), reading.block_rows):
        rows, codes = (each[start : start + reading.block_rows] for each in (X, y))
        yield fold_block(rows, codes, None, np.zeros(len(rows), np.int64), n_folds=1)


def moments(
    features: RadialFeatures, blocks: Callable[[RowReading], Iterator[FoldedBlock]]
) -> tuple[Moments, float]:
    """Return the moments of blocks, and the seconds in which the sums come back from a GPU."""
    own = features.on_device()
    reading = RowReading(block_rows=rows_of_block(own.basis), weighting=NO_WEIGHTS)
    work = MomentsPass(own, reading, targets=ClassTargets(10), n_rows=reading.block_rows)
    for block in blocks(reading):
        work.add(block)
    if own.xp is not np:
        own.xp.cuda.Device().synchronize()
    start = time.perf_counter()
    return work.sums()[""], time.perf_counter() - start


def products_alone(n_rows: int, r: int) -> float:
    """Return the seconds of the symmetric products of `n_rows` activations alone."""
    gpu = device.open_gpu()
    size = min(n_rows, 8192)
    Phi, sums = gpu.xp.random.random((size, r)), gpu.xp.zeros((r, r))
    return on_gpu(lambda: gpu.add_gram(sums, Phi))[0] * n_rows / size


def fit(X: np.ndarray, y: np.ndarray, X_new: np.ndarray, y_new: np.ndarray, folder: Path) -> None:
    """Print the stages of a fit, and its predictions."""
    dataset = ingest_arrays(X, y, folder / "rows")
    for attempt in ("first", "second"):
        start = time.perf_counter()
        engine = InlineEngine(device="gpu")
        run = fit_dataset(dataset, folder / attempt, PAPER, engine)
        whole = time.perf_counter() - start
    seconds = {name: stage["seconds"] for name, stage in run.stages.items()}
    model = Model.load(run.location)
    for name, stage in run.stages.items():
        peak, expected = (stage[f"{kind}_bytes"] / 2**30 for kind in ("peak", "predicted"))
        print(f"  host in {name}: {peak:.2f} GiB, expected {expected:.2f} GiB", flush=True)
    print(f"fit of {X.shape}: r = {model.n_basis}, {whole:.2f} s; stages", seconds, flush=True)

    def score() -> np.ndarray:
        return Scorer(model).table(X_new).argmax(axis=1)

    on_gpu(score)
    gpu_s, codes = on_gpu(score)
    cpu_s = on_cpu(lambda: Scorer(model).table(X_new[:1000])) * len(X_new) / 1000
    show(f"predict {len(X_new)} rows", gpu_s, cpu_s)
    print(f"error {np.mean(model.classes[codes] != y_new):.4f}", flush=True)


def stages(X: np.ndarray, y: np.ndarray, r: int) -> None:
    """Print neighbours, width, moments and solution with r basis rows."""
    n, (share, n_targets) = len(X), (min(len(X), 4096), min(len(X), 1000))
    count = 21
    on_gpu(lambda: nearest_rows(X, X[:5000], count=count))
    gpu_s, _ = on_gpu(lambda: nearest_rows(X, X, count=count))
    cpu_s = on_cpu(lambda: nearest_rows(X, X[:n_targets], count=count))
    show(f"exact neighbours of {n} x {X.shape[1]}", gpu_s, cpu_s * n / n_targets)

    basis = np.ascontiguousarray(X[:r], dtype=np.float64)
    on_gpu(lambda: total_distance(X[:share], basis, 4096))
    gpu_s, total = on_gpu(lambda: total_distance(X, basis, 4096))
    cpu_s = on_cpu(lambda: total_distance(X[:share], basis, 4096))
    show(f"width, r = {r}", gpu_s, cpu_s * n / share)
    features = RadialFeatures.from_basis(basis, total / n / r)
    some = partial(blocks_of, X[:share], y[:share])
    on_gpu(lambda: moments(features, some))
    gpu_s, (found, copying_s) = on_gpu(lambda: moments(features, partial(blocks_of, X, y)))
    products_alone(8192, r)
    cpu_s = on_cpu(lambda: moments(features, some)) * n / share
    show(f"moments, r = {r}", gpu_s, cpu_s, products_alone(n, r))
    print(f"  copying and packing the sums {copying_s:.3f} s", flush=True)

    def solve() -> Any:
        system = RidgeSystem.of(found.on_device(), ClassTargets(10), normalized=True)
        return system.solve(1e-6)

    on_gpu(solve)
    gpu = device.open_gpu()
    matrix = gpu.unpack(gpu.xp.asarray(found.packed_gram), r)
    matrix += gpu.xp.eye(r) * gpu.xp.trace(matrix)
    show(
        f"solution, r = {r}", on_gpu(solve)[0], on_cpu(solve), on_gpu(lambda: gpu.factor(matrix))[0]
    )


def largest(X: np.ndarray, y: np.ndarray, X_new: np.ndarray, y_new: np.ndarray, r: int) -> None:
    """Print moments and solution with a basis that no CPU would try, and the error."""
    some = slice(0, None, 10)
    basis = np.ascontiguousarray(X[:r], dtype=np.float64)
    total = total_distance(X[some], basis[some], len(X))
    distance = total / len(X[some]) / len(basis[some])
    features = RadialFeatures.from_basis(basis, 0.55 * distance, normalized=False)

    def learn() -> np.ndarray:
        found, copying_s = moments(features, partial(blocks_of, X, y))
        seconds = time.perf_counter() - start
        print(f"moments, r = {r}: {seconds:.1f} s, of it copying {copying_s:.1f} s", flush=True)
        system = RidgeSystem.of(found.on_device(), ClassTargets(10), normalized=False)
        weights = system.solve(1e-12).weights
        device.open_gpu().release()
        own = features.on_device()
        parts = [X_new[a : a + 2048] for a in range(0, len(X_new), 2048)]
        return np.concatenate([device.to_host(own.weighted_sums(each, weights)) for each in parts])

    start = time.perf_counter()
    gpu_s, scores = on_gpu(learn)
    show(f"moments, solution and predict, r = {r}", gpu_s, None, products_alone(len(X), r))
    print(f"error {np.mean(scores.argmax(axis=1) != y_new):.4f}", flush=True)


def l1_distances(n: int, p: int, r: int) -> None:
    """Print the rate of l1 distances."""
    X, basis = drawn(n, p)[0], drawn(r, p, seed=2)[0].astype(np.float64)
    total = partial(total_distance, basis=basis, size=n, l1=True)
    on_gpu(lambda: total(X))
    gpu_s, _ = on_gpu(lambda: total(X))
    total(X[:100])
    show(f"l1 distances {n} x {p}, r = {r}", gpu_s, on_cpu(lambda: total(X[:1000])) * n / 1000)
    gpu = device.open_gpu()
    rows, columns = gpu.xp.asarray(X, np.float64), gpu.xp.asarray(basis.T, order="C")
    out = gpu.xp.empty((n, r))
    kernel_s, _ = on_gpu(lambda: gpu.absolute_sums(rows, columns, out, 0.0))
    print(f"  the kernel alone: {n * p * r / kernel_s / 1e9:.0f} G differences/s", flush=True)


def streamed(n: int, p: int, r: int, folder: Path) -> None:
    """Print the moments of rows that are read from Zarr, and the share of waiting for rows."""
    X, y = drawn(n, p)
    start = time.perf_counter()
    dataset = ingest_arrays(X, y, folder / "long")
    print(f"  {n} x {p} written in {time.perf_counter() - start:.1f} s", flush=True)
    features = RadialFeatures.from_basis(X[:r].astype(np.float64), float(p) ** 0.5)
    waited = 0.0

    def stored_blocks(reading: RowReading) -> Iterator[FoldedBlock]:
        nonlocal waited
        start = time.perf_counter()
        for block in folded_blocks(dataset, 0, n, reading):
            waited += time.perf_counter() - start
            yield block
            start = time.perf_counter()

    gpu_s, _ = on_gpu(lambda: moments(features, stored_blocks))
    some = partial(blocks_of, X[:16384], y[:16384])
    cpu_s = on_cpu(lambda: moments(features, some)) * n / 16384
    show(f"moments {n} x {p} from Zarr, r = {r}", gpu_s, cpu_s, products_alone(n, r))
    print(f"  waited for rows {waited:.2f} s", flush=True)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?")
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--basis", type=int, default=2000)
    parser.add_argument("--largest", type=int, default=0, help="basis rows of one more fit")
    parser.add_argument("--small", action="store_true", help="a quick trial with small arrays")
    asked = parser.parse_args()
    n, r = (2000, 300) if asked.small else (60_000, 8787)
    if asked.file:
        stored = np.load(asked.file)
        X, X_new = (
            (stored[name].reshape(len(stored[name]), -1) / 255).astype(np.float32)
            for name in ("X_train", "X_test")
        )
        y, y_new = stored["y_train"].astype(np.int64), stored["y_test"].astype(np.int64)
        X, y = X[:n], y[:n]
    else:
        X, y = drawn(n, 784)
        X_new, y_new = drawn(10_000, 784, seed=3)
    gpu = device.open_gpu()
    print(f"{gpu.xp.cuda.runtime.getDeviceProperties(0)['name']}, {n_threads()} threads")
    print(f"{'':48}{'GPU':>10}{'CPU':>10}{'floor':>10}  (s)", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fit(X, y, X_new, y_new, folder)
        stages(X, y, r)
        if asked.largest:
            largest(X, y, X_new, y_new, asked.largest)
        for p in (10, 100, 784):
            l1_distances(2000 if asked.small else 50_000, p, 2000)
        streamed(
            20_000 if asked.small else asked.rows, 32, 200 if asked.small else asked.basis, folder
        )


if __name__ == "__main__":
    main()
