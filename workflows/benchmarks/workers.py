"""Time the heavy stages on one worker and on two, each with one thread.

Both fits are of the same rows with the same parameters, one after the other:

    python workflows/benchmarks/workers.py mnist.zarr --basis-size 4000 --partitions 12
"""

import argparse
import sys
import tempfile
import time

from prepare import add_options, open_dataset

from dask_nrbfn import (
    Dataset,
    EngineOptions,
    FitParams,
    NRBFNError,
    connect,
    fit_dataset,
    predict_dataset,
)

STAGES = ("neighbors", "width", "moments")


def main() -> int:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, rows=100_000, features=64, basis=2000)
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--neighbors", default="exact", help="exact or approximate")
    options = parser.parse_args()
    params = FitParams(
        basis_size=options.basis_size,
        neighbors=options.neighbors,
        n_partitions=options.partitions,
        n_parts=options.parts,
    )
    with tempfile.TemporaryDirectory(prefix="workers-", dir=options.scratch) as scratch:
        try:
            dataset = open_dataset(options, scratch)
            one, two = (seconds_on(n, dataset, params, scratch) for n in (1, 2))
        except NRBFNError as error:
            print(error.problem, error.remedy, sep="\n", file=sys.stderr)
            return 2
    print(f"{dataset.n_rows} x {dataset.n_features}, {options.basis_size} basis rows")
    print(f"{'seconds':<12}{'1 worker':>12}{'2 workers':>12}{'ratio':>8}")
    for stage in one:
        ratio = one[stage] / two[stage]
        print(f"{stage:<12}{one[stage]:>12.2f}{two[stage]:>12.2f}{ratio:>8.2f}")
    return 0


def seconds_on(
    n_workers: int, dataset: Dataset, params: FitParams, scratch: str
) -> dict[str, float]:
    """Return the seconds of stages and prediction on so many workers of one thread."""
    with connect(EngineOptions(workers=n_workers, threads=1)) as engine:
        run = fit_dataset(dataset, f"{scratch}/run-{n_workers}.zarr", params, engine)
        seconds = {stage: run.stages[stage]["seconds"] for stage in STAGES}
        start = time.perf_counter()
        predict_dataset(run.location, dataset, f"{scratch}/out-{n_workers}.zarr", engine)
    return {**seconds, "predict": time.perf_counter() - start}


if __name__ == "__main__":
    sys.exit(main())
