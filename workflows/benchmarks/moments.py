"""Time the moments stage on dask against the machine's own rate of ``W.T @ W``.

The stage is the real one: it reads the rows, computes their activations, writes its parts and adds
them up. Starting the workers and the stages before it are not timed. The machine's rate is that of
numpy's float64 product with as many threads, for a second before and after each repeat:

    python workflows/benchmarks/moments.py mnist.zarr --basis-size 8787
"""

import argparse
import shutil
from collections.abc import Iterator
from statistics import fmean

import numpy as np
from prepare import PRODUCT_ROWS, add_options, open_dataset, rate_of, scratch_of, spread

from dask_nrbfn import Dataset, EngineOptions, FitParams, Run, connect
from dask_nrbfn.engine import Engine
from dask_nrbfn.fit import check_fit, run_stage, stages_of_run, start_run
from dask_nrbfn.stages.basis import BASIS
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.moments import MOMENTS


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, rows=20_000, features=64, basis=8787)
    parser.add_argument("--basis", default="sknn", help="random needs no search of neighbours")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, help="of each worker; default: its share of cores")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    chosen = {"basis": options.basis, "basis_size": options.basis_size}
    # The floor is of products, which the l1 distances of the default kernel are not.
    gaussian = {"kernel": "gaussian", "scale": "none"}
    params = FitParams(**chosen, **gaussian, neighbors="exact", alpha=1e-13)
    engine_options = EngineOptions(workers=options.workers, threads=options.threads)
    with scratch_of(options) as scratch, connect(engine_options) as engine:
        dataset = open_dataset(options, scratch)
        context = FitContext.resolve(dataset, params, engine)
        check_fit(context)
        run = start_run(f"{scratch}/run.zarr", context)
        stages = stages_of_run(run)
        for earlier in stages[: stages.index(MOMENTS)]:
            run_stage(earlier, run, context, lambda: None)
        rates, seconds = [floor(run, engine)], []
        for repeated in copies(run, options.repeats, scratch):
            run_stage(MOMENTS, repeated, context, lambda: None)
            seconds.append(repeated.stages["moments"]["seconds"])
            rates.append(floor(run, engine))
        print(f"workers: {engine.n_workers}, threads of each: {engine.threads}")
        print(table(dataset, run, seconds, rates))


def copies(run: Run, repeats: int, scratch: str) -> Iterator[Run]:
    """Yield copies of a run, each of which is gone before the next."""
    for repeat in range(repeats):
        location = f"{scratch}/repeat-{repeat}.zarr"
        shutil.copytree(str(run.location), location)
        yield Run.open(location)
        shutil.rmtree(location)


def floor(run: Run, engine: Engine) -> float:
    """Return the machine's rate of ``W.T @ W`` with all threads of the engine.

    numpy computes one triangle (syrk), so ``n r^2`` flops are counted for W (n, r).
    """
    r = BASIS.recorded(run).n_basis
    W = np.random.default_rng(0).random((PRODUCT_ROWS, r))
    return rate_of(lambda: W.T @ W, PRODUCT_ROWS * r**2, engine.n_workers * engine.threads)


def table(dataset: Dataset, run: Run, seconds: list[float], rates: list[float]) -> str:
    """Return what was measured, a line for each figure: median, least and largest."""
    n, p, r = dataset.n_rows, dataset.n_features, BASIS.recorded(run).n_basis
    flops = n * r**2 + 2 * n * r * p + 4 * n * r
    stage = [flops / taken for taken in seconds]
    giga = [rate / 1e9 for rate in rates]
    ratios = [rate / fmean(rates[repeat : repeat + 2]) for repeat, rate in enumerate(stage)]
    lines = {
        "rows x features": f"{n} x {p}",
        "basis rows": f"{r}",
        "parts": f"{len(run.layout.spans)}",
        "repeats": f"{len(seconds)}",
        "seconds": f"{spread(seconds, '.2f')}",
        "GFLOP": f"{flops / 1e9:.1f}  (n r^2 + 2 n r p + 4 n r)",
        "GFLOP/s": f"{spread([rate / 1e9 for rate in stage], '.1f')}",
        "floor GFLOP/s": f"{spread(giga, '.1f')}  (W.T @ W, repeated for a second)",
        "ratio": f"{spread(ratios, '.3f')}  (stage to floor)",
    }
    return "\n".join(f"{name:<17}{value}" for name, value in lines.items())


if __name__ == "__main__":
    main()
