"""Time prediction on dask against the machine's own rate of ``X @ G.T``.

Labels and scores of all rows are written, as by dask-nrbfn predict. Starting the workers and the
fit are not timed:

    python workflows/benchmarks/predict.py mnist.zarr --basis-size 8787
"""

import argparse
import time

import numpy as np
from prepare import PRODUCT_ROWS, add_options, open_dataset, rate_of, scratch_of

from dask_nrbfn import EngineOptions, FitParams, connect, fit_dataset, predict_dataset


def product_rate(n_basis: int, n_features: int, threads: int) -> float:
    """Return flops a second of ``X @ G.T``."""
    rng = np.random.default_rng(0)
    X, G = rng.random((PRODUCT_ROWS, n_features)), rng.random((n_basis, n_features))
    return rate_of(lambda: X @ G.T, 2 * X.size * n_basis, threads)


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, rows=100_000, features=784, basis=2000)
    options = parser.parse_args()
    # The floor is of products, which the l1 distances of the default kernel are not.
    params = FitParams(kernel="gaussian", scale="none", basis_size=options.basis_size)
    with scratch_of(options) as scratch:
        dataset = open_dataset(options, scratch)
        with connect(EngineOptions(workers=1)) as engine:
            run = fit_dataset(dataset, f"{scratch}/run.zarr", params, engine)
            n, p, r = dataset.n_rows, dataset.n_features, run.stages["basis"]["n_basis"]
            rates = [product_rate(r, p, engine.threads)]
            start = time.perf_counter()
            predict_dataset(run.location, dataset, f"{scratch}/out.zarr", engine)
            seconds = time.perf_counter() - start
            rates.append(product_rate(r, p, engine.threads))
    flops = 2 * n * r * p + 2 * n * r * dataset.n_classes + 4 * n * r
    floor = sum(rates) / len(rates)
    print(f"{n} x {p}, {r} basis rows: {seconds:.2f} s, {n / seconds:,.0f} rows a second")
    print(f"GFLOP/s {flops / seconds / 1e9:.1f}  (2 n r p + 2 n r K + 4 n r)")
    print(f"floor   {floor / 1e9:.1f}  (X @ G.T)")
    print(f"ratio   {flops / seconds / floor:.3f}  (prediction to floor)")


if __name__ == "__main__":
    main()
