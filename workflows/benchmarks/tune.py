"""Time choosing the penalty by cross-validation against one fit with a fixed penalty.

Both are of the same rows, one after the other on the same worker, the search of neighbours
included. With a test dataset the error of every penalty is shown too, that of the chosen one
among them:

    python workflows/benchmarks/tune.py mnist.zarr --test mnist-test.zarr --basis-size 3000
"""

import argparse
import sys
import tempfile
import time
from dataclasses import replace

from prepare import add_options, open_dataset

from dask_nrbfn import (
    Dataset,
    EngineOptions,
    FitParams,
    Model,
    NRBFNError,
    Run,
    TuneParams,
    connect,
    evaluate_dataset,
    fit_dataset,
    tune_dataset,
)
from dask_nrbfn.engine import Engine
from dask_nrbfn.numeric.ridge import RidgeSystem
from dask_nrbfn.numeric.targets import ClassTargets
from dask_nrbfn.stages.moments import read_moments


def main() -> int:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, rows=20_000, features=64, basis=2000)
    parser.add_argument("--test", help="dataset of rows to judge every penalty on")
    parser.add_argument("--alphas", help="penalties, with commas  [default: 0.1 ... 1e-13]")
    parser.add_argument("--threshold", action="store_true", help="all rows below it, no basis size")
    options = parser.parse_args()
    alphas = TuneParams.alphas
    if options.alphas:
        alphas = tuple(map(float, options.alphas.split(",")))
    size = None if options.threshold else options.basis_size
    params = FitParams(basis_size=size, neighbors="exact")
    tuning = TuneParams(alphas=alphas, width_factors=(1.0,), features=("normalized",))
    with tempfile.TemporaryDirectory(prefix="tune-", dir=options.scratch) as scratch:
        try:
            dataset = open_dataset(options, scratch)
            test = None if options.test is None else Dataset.open(options.test)
            with connect(EngineOptions(workers=1)) as engine:
                start = time.perf_counter()
                fitted = fit_dataset(dataset, f"{scratch}/fit.zarr", params, engine)
                between = time.perf_counter()
                tuned = tune_dataset(dataset, f"{scratch}/tune.zarr", params, tuning, engine)
                seconds = between - start, time.perf_counter() - between
                print(stage_table(fitted, tuned))
                print(f"{'all':<12}{seconds[0]:>10.1f}{seconds[1]:>10.1f}")
                print(f"{'ratio':<12}{seconds[1] / seconds[0]:>20.2f}  ({len(alphas)} penalties)")
                if test is not None:
                    print(error_table(tuned, alphas, test, engine, f"{scratch}/model.zarr"))
        except NRBFNError as error:
            print(error.problem, error.remedy, sep="\n", file=sys.stderr)
            return 2
    return 0


def stage_table(fitted: Run, tuned: Run) -> str:
    """Return the seconds of every stage of both."""
    lines = [f"{tuned.n_rows} rows, {tuned.stages['basis']['n_basis']} basis rows"]
    lines += [f"{'seconds':<12}{'fit':>10}{'tune':>10}"]
    before = fitted.stages
    for stage, record in tuned.stages.items():
        own = f"{before[stage]['seconds']:.1f}" if stage in before else "-"
        lines.append(f"{stage:<12}{own:>10}{record['seconds']:>10.1f}")
    return "\n".join(lines)


def error_table(
    run: Run, alphas: tuple[float, ...], test: Dataset, engine: Engine, scratch: str
) -> str:
    """Return the error of every penalty on folds and on test rows."""
    moments, model = read_moments(run), Model.load(run.location)
    held_out = {entry["alpha"]: entry["error_rate"] for entry in run.stages["validation"]["path"]}
    lines = [f"\n{'alpha':<12}{'held out':>10}{'test':>10}"]
    path = RidgeSystem.of(moments, ClassTargets(len(moments.cross)), normalized=True).path(alphas)
    for alpha, solution in zip(alphas, path, strict=True):
        if solution is None:
            lines.append(f"{alpha:<12g}{'singular':>20}")
            continue
        replace(model, weights=solution.weights).save(scratch, overwrite=True)
        error = evaluate_dataset(scratch, test, engine).error_rate
        chosen = " chosen" if alpha == run.chosen_params.alpha else ""
        lines.append(f"{alpha:<12g}{100 * held_out[alpha]:>9.2f}%{100 * error:>9.2f}%{chosen}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
