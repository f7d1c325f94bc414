"""Time rows that join a finished run against a fit of the other rows.

The last rows of the dataset, 1 % of them by default, are kept back from a fit and added then.

    python workflows/benchmarks/update.py mnist.zarr --basis-size 2000
"""

import argparse
import time

import numpy as np
from prepare import add_options, open_dataset, scratch_of

from dask_nrbfn import (
    Dataset,
    EngineOptions,
    FitParams,
    connect,
    fit_dataset,
    ingest_arrays,
    update_run,
)


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, rows=100_000, features=64, basis=2000)
    parser.add_argument("--share", type=float, default=0.01, help="rows added  [default: 0.01]")
    options = parser.parse_args()
    params = FitParams(basis_size=options.basis_size, neighbors="exact")
    with scratch_of(options) as scratch, connect(EngineOptions(workers=1)) as engine:
        whole, place = open_dataset(options, scratch), f"{scratch}/run.zarr"
        first, rest = cut(whole, 1 - options.share, scratch)
        start = time.perf_counter()
        run = fit_dataset(first, place, params, engine)
        fitted = time.perf_counter()
        update_run(place, rest, engine)
        updated = time.perf_counter()
    print(f"{first.n_rows} + {rest.n_rows} rows, {run.stages['basis']['n_basis']} basis rows")
    print(f"{'fit':<12}{fitted - start:>10.2f} s")
    print(f"{'update':<12}{updated - fitted:>10.2f} s")
    print(f"{'ratio':<12}{(updated - fitted) / (fitted - start):>10.4f}")


def cut(dataset: Dataset, share: float, scratch: str) -> tuple[Dataset, Dataset]:
    """Write the first rows of a dataset, and the rest, as datasets of their own."""
    edge = round(share * dataset.n_rows)
    codes = dataset.codes()
    first, rest = (
        ingest_arrays(
            dataset.take(rows),
            dataset.classes[codes[rows]],
            f"{scratch}/{rows[0]}.zarr",
            chunk_rows=dataset.chunk_rows,
        )
        for rows in np.split(np.arange(dataset.n_rows), [edge])
    )
    return first, rest


if __name__ == "__main__":
    main()
