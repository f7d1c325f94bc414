"""Fit drawn rows on one worker of limited memory and show each stage beside its plan.

The rows are streamed into a dataset, so that no process ever holds the table. With several numbers
of rows the last table shows how the cost of a row depends on how many there are:

    python workflows/benchmarks/plan.py 500000 5000000 --memory 4GiB
"""

import argparse
from collections.abc import Sequence

from dask.utils import format_bytes
from prepare import scratch_of
from sheets import SheetSource

from dask_nrbfn import EngineOptions, FitParams, Plan, Run, connect, fit_dataset, plan_fit
from dask_nrbfn.commands.ingest import ingest_source
from dask_nrbfn.commands.plan import measure_rates
from dask_nrbfn.stages.context import FitContext

N_FEATURES = 32


def main() -> None:
    """Draw the rows, plan, fit and print the tables."""
    options = parse_options()
    params = FitParams(
        kernel="gaussian",
        scale="none",
        basis_size=options.basis_size,
        candidates=options.candidates,
        neighbors=options.neighbors,
        n_partitions=options.n_partitions,
        overlap=options.overlap,
    )
    engine_options = EngineOptions(
        workers=options.workers, threads=options.threads, memory=options.memory
    )
    runs = []
    with scratch_of(options) as scratch:
        for n_rows in options.rows:
            dataset = ingest_source(SheetSource(n_rows, N_FEATURES), f"{scratch}/{n_rows}.zarr")
            with connect(engine_options) as engine:
                rates = measure_rates(FitContext.resolve(dataset, params, engine))
                plan = plan_fit(dataset, params, engine, rates)
                run = fit_dataset(dataset, f"{scratch}/run-{n_rows}.zarr", params, engine)
            print(stage_table(plan, run), flush=True)
            runs.append(run)
        print(row_table(runs))


def parse_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=int, nargs="+")
    parser.add_argument("--basis-size", type=int, default=2000)
    parser.add_argument(
        "--candidates",
        type=lambda text: int(text) if text.isdecimal() else text,
        default=FitParams.candidates,
    )
    parser.add_argument("--memory", default="4GiB", help="limit of a worker")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--neighbors", default="auto", help="auto, exact or approximate")
    parser.add_argument("--n-partitions", type=int, help="default: as many as the plan says")
    parser.add_argument("--overlap", type=int, default=FitParams.overlap)
    parser.add_argument("--scratch", help="directory for rows and run; default: the system's")
    return parser.parse_args()


def stage_table(plan: Plan, run: Run) -> str:
    """Return predicted and measured seconds and bytes of every stage."""
    stages = run.stages
    lines = [
        f"\n{run.n_rows} rows, {plan.n_basis} basis rows, {plan.method} neighbours in "
        f"{plan.n_partitions} partitions, {format_bytes(plan.memory_bytes)} for a task",
        f"{'':<12}{'seconds':^32}{'bytes of a worker':^32}",
        f"{'stage':<12}" + 2 * f"{'predicted':>11}{'measured':>11}{'ratio':>9} ",
    ]
    figures = {}
    for each in plan.stages:
        seconds, peak = (stages[each.name][name] for name in ("seconds", "peak_bytes"))
        figures[each.name] = (each.seconds, seconds, each.cost.held_bytes, peak)
    expected, measured, held, peaks = zip(*figures.values(), strict=True)
    figures["all"] = (sum(expected), sum(measured), max(held), max(peaks))
    for name, (planned, seconds, most, peak) in figures.items():
        lines.append(
            f"{name:<12}{planned:>11.1f}{seconds:>11.1f}{seconds / planned:>9.2f} "
            f"{format_bytes(most):>11}{format_bytes(peak):>11}{peak / most:>9.2f}"
        )
    audit = stages["recall"]
    lines.append(
        f"recall {audit['recall']:.4f} +- {audit['recall_standard_error']:.4f}, "
        f"eps {stages['weights']['fitting_error']:.4f}"
    )
    return "\n".join(lines)


def row_table(runs: Sequence[Run]) -> str:
    """Return the microseconds of a row in every stage of every run."""
    heads = "".join(f"{run.n_rows:>12,}" for run in runs)
    lines = [f"\n{'us of a row':<12}{heads}"]
    stages = [run.stages for run in runs]
    for stage in stages[0]:
        costs = (
            1e6 * records[stage]["seconds"] / run.n_rows
            for run, records in zip(runs, stages, strict=True)
        )
        lines.append(f"{stage:<12}" + "".join(f"{cost:>12.2f}" for cost in costs))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
