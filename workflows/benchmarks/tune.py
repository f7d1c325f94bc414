"""Time choosing the penalty by cross-validation against one fit with a fixed penalty.

Both are of the same rows, one after the other on the same worker, the search of neighbours
included:

    python workflows/benchmarks/tune.py mnist.zarr --basis-size 3000
"""

import argparse
import time

from prepare import add_options, open_dataset, scratch_of

from dask_nrbfn import (
    EngineOptions,
    FitParams,
    Run,
    TuneParams,
    connect,
    fit_dataset,
    tune_dataset,
)


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, rows=20_000, features=64, basis=2000)
    parser.add_argument("--alphas", help="penalties, with commas  [default: 0.1 ... 1e-13]")
    options = parser.parse_args()
    alphas = TuneParams.alphas
    if options.alphas:
        alphas = tuple(map(float, options.alphas.split(",")))
    params = FitParams(basis_size=options.basis_size, neighbors="exact")
    tuning = TuneParams(alphas=alphas, width_factors=(1.0,), features=("normalized",))
    with scratch_of(options) as scratch, connect(EngineOptions(workers=1)) as engine:
        dataset = open_dataset(options, scratch)
        start = time.perf_counter()
        fitted = fit_dataset(dataset, f"{scratch}/fit.zarr", params, engine)
        between = time.perf_counter()
        tuned = tune_dataset(dataset, f"{scratch}/tune.zarr", params, tuning, engine)
        seconds = between - start, time.perf_counter() - between
        print(stage_table(fitted, tuned))
        print(f"{'all':<12}{seconds[0]:>10.1f}{seconds[1]:>10.1f}")
        print(f"{'ratio':<12}{seconds[1] / seconds[0]:>20.2f}  ({len(alphas)} penalties)")


def stage_table(fitted: Run, tuned: Run) -> str:
    """Return the seconds of every stage of both."""
    lines = [f"{tuned.n_rows} rows, {tuned.stages['basis']['n_basis']} basis rows"]
    lines += [f"{'seconds':<12}{'fit':>10}{'tune':>10}"]
    before = fitted.stages
    for stage, record in tuned.stages.items():
        own = f"{before[stage]['seconds']:.1f}" if stage in before else "-"
        lines.append(f"{stage:<12}{own:>10}{record['seconds']:>10.1f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
