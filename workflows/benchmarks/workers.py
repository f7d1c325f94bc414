"""Time the heavy stages on one worker and on two, each with one thread.

Both fits are of the same rows with the same parameters, one after the other, as often as asked for.
The first line is what the machine allows: the product ``W.T @ W`` as tasks on the same workers.

    python workflows/benchmarks/workers.py mnist.zarr --basis-size 4000 --n-partitions 12
"""

import argparse
import tempfile
import time
from statistics import median

import numpy as np
from prepare import add_options, open_dataset, scratch_of, spread

from dask_nrbfn import (
    Dataset,
    EngineOptions,
    FitParams,
    connect,
    fit_dataset,
    predict_dataset,
)

STAGES = ("neighbors", "width", "moments")

PRODUCT_TASKS, PRODUCT_SHAPE = 8, (2048, 2048)


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, rows=100_000, features=64, basis=2000)
    parser.add_argument("--n-partitions", type=int, default=12)
    parser.add_argument("--n-parts", type=int, default=8)
    parser.add_argument("--neighbors", default="exact", help="exact or approximate")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--products", type=int, default=10, help="of each of the 8 tasks")
    options = parser.parse_args()
    if min(options.repeats, options.products) < 1:
        parser.error("--repeats and --products must be at least 1")
    params = FitParams(
        basis_size=options.basis_size,
        neighbors=options.neighbors,
        n_partitions=options.n_partitions,
        n_parts=options.n_parts,
    )
    with scratch_of(options) as scratch:
        dataset = open_dataset(options, scratch)
        repeats = [
            [seconds_on(n, dataset, params, scratch, options.products) for n in (1, 2)]
            for _ in range(options.repeats)
        ]
    print(f"{dataset.n_rows} x {dataset.n_features}, {options.basis_size} basis rows")
    print(f"{'seconds':<12}{'1 worker':>12}{'2 workers':>12}   ratio")
    for stage in repeats[0][0]:
        one, two = ([seconds[n][stage] for seconds in repeats] for n in (0, 1))
        ratios = [a / b for a, b in zip(one, two, strict=True)]
        print(f"{stage:<12}{median(one):>12.2f}{median(two):>12.2f}   {spread(ratios, '.2f')}")


def seconds_on(
    n_workers: int, dataset: Dataset, params: FitParams, scratch: str, products: int
) -> dict[str, float]:
    """Return the seconds of products, stages and prediction on so many workers of one thread."""
    with (
        tempfile.TemporaryDirectory(dir=scratch) as own,
        connect(EngineOptions(workers=n_workers, threads=1)) as engine,
    ):
        engine.run(multiply, n_workers * [(products,)], label="warm-up")
        start = time.perf_counter()
        engine.run(multiply, PRODUCT_TASKS * [(products,)], label="product")
        product = time.perf_counter() - start
        run = fit_dataset(dataset, f"{own}/run.zarr", params, engine)
        seconds = {stage: run.stages[stage]["seconds"] for stage in STAGES}
        start = time.perf_counter()
        predict_dataset(run.location, dataset, f"{own}/out.zarr", engine)
        return {"product": product, **seconds, "predict": time.perf_counter() - start}


def multiply(products: int) -> None:
    """Compute a product again and again."""
    W = np.random.default_rng(0).random(PRODUCT_SHAPE)
    for _ in range(products):
        W.T @ W


if __name__ == "__main__":
    main()
