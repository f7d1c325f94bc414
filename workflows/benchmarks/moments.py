"""Time the moments stage on dask against the machine's own rate of ``W.T @ W``.

The stage is the real one: it reads the rows, computes their activations, writes its parts and adds
them up. Starting the workers and the stages before it are not timed. The machine's rate is that of
numpy's float64 product with as many threads, before and after:

    python workflows/benchmarks/moments.py mnist.zarr --basis-size 8787
"""

import argparse
import sys
import tempfile

from prepare import add_options, begin, open_dataset, run_until, symmetric_rate

from dask_nrbfn import Dataset, EngineOptions, FitParams, NRBFNError, Run, connect
from dask_nrbfn.stages.fit import run_stage


def main() -> int:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, rows=20_000, features=64, basis=8787)
    parser.add_argument("--basis", default="sknn", help="random needs no search of neighbours")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int, help="of each worker; default: its share of cores")
    options = parser.parse_args()
    params = FitParams(basis=options.basis, basis_size=options.basis_size, neighbors="exact")
    with tempfile.TemporaryDirectory(prefix="moments-", dir=options.scratch) as scratch:
        try:
            dataset = open_dataset(options, scratch)
            engine_options = EngineOptions(workers=options.workers, threads=options.threads)
            with connect(engine_options) as engine:
                run = begin(dataset, params, engine, f"{scratch}/run.zarr")
                run_until("moments", run, dataset, engine)
                threads = engine.n_workers * engine.threads
                rates = [symmetric_rate(run.basis_size(), threads)]
                run_stage("moments", run, dataset, engine)
                rates.append(symmetric_rate(run.basis_size(), threads))
        except NRBFNError as error:
            print(error.problem, error.remedy, sep="\n", file=sys.stderr)
            return 2
        print(f"{engine.n_workers} worker(s), {engine.threads} thread(s) each")
        print(table(dataset, run, rates))
    return 0


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
