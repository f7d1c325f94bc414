"""Fit drawn rows on one worker of limited memory and show its peak against the limit.

The rows are streamed into a dataset, so that no process ever holds the table:

    python workflows/benchmarks/memory.py 1000000
"""

import argparse
import sys
import tempfile

from dask.utils import format_bytes
from sheets import SheetSource

from dask_nrbfn import (
    Dataset,
    EngineOptions,
    FitParams,
    NRBFNError,
    Run,
    connect,
    fit_dataset,
    ingest_source,
)

N_FEATURES = 32


def main() -> int:
    """Draw the rows, fit them and print a line for every stage."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=int)
    parser.add_argument("--basis-size", type=int, default=2000)
    parser.add_argument("--memory", default="4GiB", help="limit of the one worker")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--neighbors", default="auto", help="auto, exact or approximate")
    parser.add_argument("--scratch", help="directory for rows and run; default: the system's")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="memory-", dir=options.scratch) as scratch:
        try:
            params = FitParams(basis_size=options.basis_size, neighbors=options.neighbors)
            source = SheetSource(options.rows, N_FEATURES)
            dataset = ingest_source(source, f"{scratch}/dataset.zarr")
            engine_options = EngineOptions(
                workers=1, threads=options.threads, memory=options.memory
            )
            with connect(engine_options) as engine:
                run = fit_dataset(dataset, f"{scratch}/run.zarr", params, engine)
        except NRBFNError as error:
            print(error.problem, error.remedy, sep="\n", file=sys.stderr)
            return 2
        print(table(dataset, run, engine.memory_bytes))
    return 0


def table(dataset: Dataset, run: Run, limit: int) -> str:
    """Return seconds and the peak so far for every stage, and the peak against the limit."""
    n_bytes = dataset.X.nbytes
    lines = [
        f"{dataset.n_rows} x {dataset.n_features} float64, {format_bytes(n_bytes)}; "
        f"{run.basis_size()} basis rows, neighbours {run.stages['neighbors']['method']}",
        f"{'stage':<12}{'seconds':>10}{'peak so far':>14}",
    ]
    for stage, record in run.stages.items():
        peak = format_bytes(record["peak_bytes"])
        lines.append(f"{stage:<12}{record['seconds']:>10.2f}{peak:>14}")
    peak = max(record["peak_bytes"] for record in run.stages.values())
    lines.append(
        f"peak {format_bytes(peak)} of {format_bytes(limit)}, ratio {peak / limit:.3f}; "
        f"eps {run.stages['weights']['fitting_error']:.4f}"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
