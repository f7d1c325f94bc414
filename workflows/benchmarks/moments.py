"""Time the moments stage on dask against the machine's own rate of ``W.T @ W``.

The stage is the real one: it reads the rows, computes their activations, writes its parts and adds
them up. Starting the workers and the stages before it are not timed. The machine's rate is that of
numpy's float64 product with as many threads, before and after:

    python workflows/benchmarks/moments.py mnist.zarr --basis-size 8787
"""

import argparse
import sys
import tempfile
import time

import numpy as np
from sheets import SheetSource
from threadpoolctl import threadpool_limits

from dask_nrbfn import Dataset, EngineOptions, FitParams, NRBFNError, Run, connect, ingest_source
from dask_nrbfn.engine import Engine
from dask_nrbfn.stages.fit import STAGES, check_fit, run_stage

W_ROWS = 4096
REPEATS = 3


def main() -> int:
    """Run the benchmark and print its table."""
    options = parse_options()
    with tempfile.TemporaryDirectory(prefix="moments-", dir=options.scratch) as scratch:
        try:
            dataset = open_dataset(options, scratch)
            engine_options = EngineOptions(workers=options.workers, threads=options.threads)
            with connect(engine_options) as engine:
                run = prepare(dataset, options.basis_size, engine, f"{scratch}/run.zarr")
                threads = engine.n_workers * engine.threads
                rates = [product_rate(run.basis_size(), threads)]
                run_stage("moments", run, dataset, engine)
                rates.append(product_rate(run.basis_size(), threads))
        except NRBFNError as error:
            print(error.problem, error.remedy, sep="\n", file=sys.stderr)
            return 2
        print(f"{engine.n_workers} worker(s), {engine.threads} thread(s) each")
        print(table(dataset, run, rates))
    return 0


def parse_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", nargs="?", help="made by dask-nrbfn ingest; default: drawn rows")
    parser.add_argument("--rows", type=int, default=20_000, help="of the drawn dataset")
    parser.add_argument("--features", type=int, default=64, help="of the drawn dataset")
    parser.add_argument("--basis-size", type=int, default=8787)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, help="of each worker; default: its share of cores")
    parser.add_argument("--scratch", help="directory for the run; default: the system's")
    return parser.parse_args()


def open_dataset(options: argparse.Namespace, scratch: str) -> Dataset:
    """Open the dataset that was named, or draw one."""
    if options.dataset is not None:
        return Dataset.open(options.dataset)
    source = SheetSource(options.rows, options.features)
    return ingest_source(source, f"{scratch}/dataset.zarr")


def prepare(dataset: Dataset, basis_size: int, engine: Engine, location: str) -> Run:
    """Start a run and finish the stages before moments."""
    params = FitParams(basis_size=basis_size, neighbors="exact")
    check_fit(dataset, params, engine)
    run = Run.start(location, dataset, params, {})
    for stage in list(STAGES)[: list(STAGES).index("moments")]:
        run_stage(stage, run, dataset, engine)
    return run


def product_rate(n_basis: int, threads: int) -> float:
    """Return flops a second of ``W.T @ W``, the best of three.

    numpy computes one triangle (syrk), so ``n r^2`` flops are counted for W (n, r).
    """
    W = np.random.default_rng(0).random((W_ROWS, n_basis))
    seconds = []
    with threadpool_limits(threads):
        for _ in range(REPEATS):
            start = time.perf_counter()
            W.T @ W
            seconds.append(time.perf_counter() - start)
    return W_ROWS * n_basis**2 / min(seconds)


def table(dataset: Dataset, run: Run, rates: list[float]) -> str:
    """Return what was measured, a line for each figure."""
    n, p, r = dataset.n_rows, dataset.n_features, run.basis_size()
    flops = n * r**2 + 2 * n * r * p + 4 * n * r
    seconds = run.stages["moments"]["seconds"]
    floor = sum(rates) / len(rates)
    before, after = (f"{rate / 1e9:.1f}" for rate in rates)
    lines = {
        "rows x features": f"{n} x {p}",
        "basis rows": f"{r}",
        "parts": f"{len(run.spans)}",
        "seconds": f"{seconds:.2f}",
        "GFLOP": f"{flops / 1e9:.1f}  (n r^2 + 2 n r p + 4 n r)",
        "GFLOP/s": f"{flops / seconds / 1e9:.1f}",
        "floor GFLOP/s": f"{floor / 1e9:.1f}  (W.T @ W: {before} before, {after} after)",
        "ratio": f"{flops / seconds / floor:.3f}  (stage to floor; 1 is the machine's own rate)",
    }
    return "\n".join(f"{name:<17}{value}" for name, value in lines.items())


if __name__ == "__main__":
    sys.exit(main())
