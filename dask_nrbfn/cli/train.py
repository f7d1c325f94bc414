"""Commands that train and show what was learnt: fit, tune, embed, plan, report."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dask_nrbfn.cli.group import EXIT_MENDABLE
from dask_nrbfn.cli.job import Job
from dask_nrbfn.cli.options import (
    ENGINE,
    WITH_DEVICE,
    command,
    fit_params,
    given,
    open_rows,
    params,
    take,
)
from dask_nrbfn.outputs import check_output_file
from dask_nrbfn.params import TUNED, FitLimits, FitParams, TuneParams

if TYPE_CHECKING:
    from dask_nrbfn.storage.run import Run

# Parameters that change the cost of a fit little are rare in a plan.
_FREE = (
    *("class_weight", "alpha", "width_factor", "confidence_threshold"),
    *("locality", "prune", "components"),
)

# Options about targets, options that an embedding lacks, and options with another help text.
_NOT_OF_EMBEDDINGS = frozenset(
    {"features", "class_weight", "alpha", "penalty", "locality", "loss", "prune", "components"}
    | {"cells"}
)


@command(
    ["dataset", "run"],
    params(FitParams, FitLimits),
    given("schema", *WITH_DEVICE, "json"),
    places=["dataset", "run", "schema"],
)
def fit(
    job: Job, dataset: str, run: str, schema: str | None, as_json: bool, **options: Any
) -> None:
    """Train on DATASET and keep every step in RUN.

    To resume an interrupted fit, repeat the command with the same RUN.
    """
    from dask_nrbfn.commands.fit import fit_dataset

    job.begin("fit", run, keeps=True)
    opened = open_rows(dataset, schema)
    params, basis = fit_params(options)
    limits = take(options, FitLimits.options())
    job.n_rows = opened.n_rows
    with job.engine(options) as engine:
        finished = fit_dataset(opened, run, params, engine, basis=basis, **limits)
    _tell(finished, as_json)


@command(
    ["dataset", "run"],
    params(TuneParams, FitParams, FitLimits, leave_out=TUNED),
    given("schema", *ENGINE, "json"),
    places=["dataset", "run", "validation", "schema"],
)
def tune(
    job: Job,
    dataset: str,
    run: str,
    validation: str | None,
    schema: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Choose scale, basis, width, features and penalty from DATASET, and train RUN with them.

    Prints the tried choices and their errors on held-out rows. To resume an interrupted tuning,
    repeat the command with the same RUN.
    """
    from dask_nrbfn.commands.fit import tune_dataset
    from dask_nrbfn.storage.dataset import Dataset

    job.begin("tune", run, keeps=True)
    tuning = TuneParams(**take(options, TuneParams.options()))
    opened = open_rows(dataset, schema)
    params, basis = fit_params(options)
    limits = take(options, FitLimits.options())
    judged = None if validation is None else Dataset.open(validation)
    job.n_rows = opened.n_rows
    with job.engine(options) as engine:
        finished = tune_dataset(
            opened, run, params, tuning, engine, validation=judged, basis=basis, **limits
        )
    _tell(finished, as_json)


def _tell(finished: "Run", as_json: bool) -> None:
    """Print the figures of a run, and the choices that its tuning tried."""
    from dask_nrbfn.commands.describe import describe_run, describe_tuning
    from dask_nrbfn.report.console import run_table, tuning_table

    tuned = finished.tuning is not None
    if as_json:
        tuning = describe_tuning(finished) if tuned else {}
        click.echo(json.dumps({**describe_run(finished), **tuning}))
        return
    click.echo(run_table(finished))
    if tuned:
        click.echo(f"\n{tuning_table(finished)}")


@command(
    ["dataset", "run"],
    [click.Option(["--components"], type=int, default=2, show_default=True, help="Coordinates.")],
    params(FitParams, FitLimits, leave_out=_NOT_OF_EMBEDDINGS),
    given("output", "overwrite", *ENGINE, "json"),
    places=["dataset", "run", "output"],
)
def embed(
    job: Job,
    dataset: str,
    run: str,
    output: str | None,
    overwrite: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Compute coordinates of the rows of DATASET by eigenfunctions of a basis; needs no labels.

    With --basis auto, the basis is random. Use predict to write the coordinates of other rows, and
    report to plot some. OUT is a Zarr group, or a file that ends in .csv or .parquet. To resume an
    interrupted embedding, repeat the command with the same RUN.
    """
    from dask_nrbfn.commands.fit import embed_dataset
    from dask_nrbfn.commands.predict import check_prediction_place, predict_dataset

    job.begin("embed", run, keeps=True)
    opened = open_rows(dataset)
    params, basis = fit_params(options)
    limits = take(options, FitLimits.options())
    job.n_rows = opened.n_rows
    if output is not None:
        check_prediction_place(output, overwrite=overwrite)
    with job.engine(options) as engine:
        finished = embed_dataset(opened, run, params, engine, basis=basis, **limits)
        if output is not None:
            engine.begin_stage()
            predict_dataset(run, opened, output, engine, overwrite=overwrite)
    _tell(finished, as_json)


@command(
    ["run"],
    given("out", "overwrite", "evaluate", *ENGINE, "json"),
    places=["run", "evaluate"],
)
def report(
    job: Job,
    run: str,
    out: str | None,
    overwrite: bool,
    evaluate: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Write one HTML page about RUN; the page needs no network and can be printed.

    With --json, print the figures, warnings and tables of the page instead.
    """
    from dask_nrbfn.commands.evaluate import evaluate_dataset
    from dask_nrbfn.commands.files import opened_rows
    from dask_nrbfn.report.console import report_figures
    from dask_nrbfn.storage.run import Run

    job.begin("report", run)
    target = f"{Path(str(run)).resolve().name}.html" if out is None else out
    opened, evaluation = Run.open(run), None
    if not as_json:
        check_output_file(target, overwrite=overwrite)
    if evaluate is not None:
        with opened_rows(evaluate, run, beside=run) as judged:
            job.n_rows = judged.dataset.n_rows
            with job.engine(options) as engine:
                evaluation = evaluate_dataset(run, judged.dataset, engine)
    if as_json:
        click.echo(json.dumps(report_figures(opened, evaluation)))
        return
    from dask_nrbfn.report.page import write_report

    write_report(opened, target, evaluation=evaluation, overwrite=overwrite)
    click.echo(target)


@command(
    ["dataset"],
    params(FitParams, rare=_FREE),
    given("tune", "n_rows", "rates", *ENGINE, "json"),
    places=["dataset"],
)
def plan(
    job: Job,
    dataset: str,
    tune: str | None,
    n_rows: int | None,
    rates: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Print the expected cost of fitting or tuning DATASET, stage by stage, without fitting.

    The rates are measured in a few seconds, in this process or on a worker of --scheduler. With
    --workers, --threads, --memory and --rates the plan is for a cluster that need not exist.

    Exits with 2 if the fit needs more memory than a worker has.
    """
    from dask_nrbfn.commands.plan import describe_plan, plan_on_options
    from dask_nrbfn.engine import EngineOptions
    from dask_nrbfn.report.console import plan_table

    opened = open_rows(dataset)
    params, _ = fit_params(options)
    planned = plan_on_options(
        opened,
        params,
        EngineOptions(**options),
        tuning=None if tune is None else TuneParams(effort=tune),
        rates=None if rates is None else Path(rates),
        n_rows=n_rows,
    )
    click.echo(json.dumps(describe_plan(planned)) if as_json else plan_table(planned))
    if not planned.fits:
        raise click.exceptions.Exit(EXIT_MENDABLE)
