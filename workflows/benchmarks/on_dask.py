"""One fit on a local dask cluster, from an empty run to its model.

Prints one line of JSON with the seconds of each stage. `fit.py` runs it beside `plain.py`:

    python workflows/benchmarks/on_dask.py mnist.zarr
"""

import argparse
import json
import tempfile
import time

from dask_nrbfn import Dataset, EngineOptions, FitParams, connect, fit_dataset


def main() -> None:
    """Fit the dataset and print seconds and figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset")
    parser.add_argument("--n-neighbors", type=int, default=20)
    parser.add_argument("--confidence-threshold", type=float, default=0.9)
    parser.add_argument("--alpha", type=float, default=1e-13)
    parser.add_argument("--neighbors", default="exact")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--scratch")
    options = parser.parse_args()
    params = FitParams(
        n_neighbors=options.n_neighbors,
        confidence_threshold=options.confidence_threshold,
        alpha=options.alpha,
        neighbors=options.neighbors,
    )
    start = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="fit-", dir=options.scratch) as scratch,
        connect(EngineOptions(workers=options.workers, threads=options.threads)) as engine,
    ):
        startup_s = time.perf_counter() - start
        run = fit_dataset(Dataset.open(options.dataset), f"{scratch}/run.zarr", params, engine)
        stages = run.stages
        print(
            json.dumps(
                {
                    "startup_s": startup_s,
                    "steps": {stage: record["seconds"] for stage, record in stages.items()},
                    "n_basis": run.stages["basis"]["n_basis"],
                    "eps": stages["weights"]["fitting_error"],
                    "gamma": stages["weights"]["spectral_risk"],
                }
            )
        )


if __name__ == "__main__":
    main()
