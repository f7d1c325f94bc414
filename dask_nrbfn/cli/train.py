"""Commands that train and show what was learnt: fit, tune, embed, plan, report."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dask_nrbfn.cli.group import EXIT_MENDABLE, Command
from dask_nrbfn.cli.job import Job
from dask_nrbfn.cli.options import (
    engine_options,
    fit_params,
    json_option,
    locations,
    open_rows,
    options_of,
    schema_option,
    take,
)
from dask_nrbfn.outputs import check_output_file
from dask_nrbfn.params import TUNED, FitLimits, FitParams, TuneParams

if TYPE_CHECKING:
    from dask_nrbfn.storage.run import Run


@click.command(cls=Command)
@click.argument("dataset")
@click.argument("run")
@options_of(FitParams)
@options_of(FitLimits)
@schema_option
@engine_options
@json_option
@locations("dataset", "run", "schema")
@click.pass_obj
def fit(
    job: Job,
    dataset: str,
    run: str,
    schema: str | None,
    min_recall: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Train on DATASET and keep every step in RUN.

    To resume an interrupted fit, repeat the command with the same RUN.
    """
    from dask_nrbfn.commands.fit import fit_dataset

    job.begin("fit", run, keeps=True)
    opened = open_rows(dataset, schema)
    params, basis = fit_params(options)
    job.n_rows = opened.n_rows
    with job.engine(options) as engine:
        finished = fit_dataset(opened, run, params, engine, basis=basis, min_recall=min_recall)
    _tell(finished, as_json)


@click.command(cls=Command)
@click.argument("dataset")
@click.argument("run")
@options_of(TuneParams)
@options_of(FitParams, leave_out=TUNED)
@options_of(FitLimits)
@schema_option
@engine_options
@json_option
@locations("dataset", "run", "validation", "schema")
@click.pass_obj
def tune(
    job: Job,
    dataset: str,
    run: str,
    validation: str | None,
    schema: str | None,
    min_recall: float,
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
    tuning = TuneParams(**take(options, TuneParams))
    opened = open_rows(dataset, schema)
    params, basis = fit_params(options)
    judged = None if validation is None else Dataset.open(validation)
    job.n_rows = opened.n_rows
    with job.engine(options) as engine:
        finished = tune_dataset(
            opened,
            run,
            params,
            tuning,
            engine,
            validation=judged,
            basis=basis,
            min_recall=min_recall,
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
    if tuned:
        click.echo(tuning_table(finished))
    click.echo(run_table(finished))


# Options about targets, options that an embedding lacks, and options with another help text.
_NOT_OF_EMBEDDINGS = frozenset(
    {"features", "class_weight", "alpha", "penalty", "locality", "loss", "prune", "components"}
    | {"cells"}
)


@click.command(cls=Command)
@click.argument("dataset")
@click.argument("run")
@click.option("--components", type=int, default=2, show_default=True, help="Number of coordinates.")
@click.option("--output", metavar="OUT", help="Also write the coordinates of all rows to OUT.")
@options_of(FitParams, leave_out=_NOT_OF_EMBEDDINGS)
@options_of(FitLimits)
@schema_option
@engine_options
@click.option(
    "--overwrite",
    is_flag=True,
    help="Replace OUT once the new one is complete.",
)
@json_option
@locations("dataset", "run", "schema", "output")
@click.pass_obj
def embed(
    job: Job,
    dataset: str,
    run: str,
    schema: str | None,
    output: str | None,
    min_recall: float,
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
    opened = open_rows(dataset, schema)
    params, basis = fit_params(options)
    job.n_rows = opened.n_rows
    if output is not None:
        check_prediction_place(output, overwrite=overwrite)
    with job.engine(options) as engine:
        finished = embed_dataset(opened, run, params, engine, basis=basis, min_recall=min_recall)
        if output is not None:
            engine.begin_stage()
            predict_dataset(run, opened, output, engine, overwrite=overwrite)
    _tell(finished, as_json)


@click.command(cls=Command)
@click.argument("run")
@click.option("--out", metavar="FILE", help="Where to write the page.  [default: RUN.html]")
@click.option("--overwrite", is_flag=True, help="Replace FILE once the new page is complete.")
@click.option(
    "--evaluate",
    metavar="ROWS",
    help="Evaluate RUN on these rows too: a dataset, or a file like the training file.",
)
@engine_options
@locations("run", "evaluate")
@click.pass_obj
def report(
    job: Job, run: str, out: str | None, overwrite: bool, evaluate: str | None, **options: Any
) -> None:
    """Write one HTML page about RUN; the page needs no network and can be printed."""
    from dask_nrbfn.commands.evaluate import evaluate_dataset
    from dask_nrbfn.commands.files import opened_rows
    from dask_nrbfn.report.page import write_report
    from dask_nrbfn.storage.run import Run

    job.begin("report", run)
    target = f"{Path(str(run)).resolve().name}.html" if out is None else out
    opened, evaluation = Run.open(run), None
    check_output_file(target, overwrite=overwrite)
    if evaluate is not None:
        with opened_rows(evaluate, run, beside=run) as judged:
            job.n_rows = judged.dataset.n_rows
            with job.engine(options) as engine:
                evaluation = evaluate_dataset(run, judged.dataset, engine)
    write_report(opened, target, evaluation=evaluation, overwrite=overwrite)
    click.echo(target)


@click.command(cls=Command)
@click.argument("dataset")
@options_of(FitParams)
@click.option(
    "--tune",
    type=click.Choice(TuneParams.options()["effort"].choices),
    help="Plan a tuning of this --effort instead of a fit.",
)
@click.option(
    "--n-rows",
    type=int,
    metavar="N",
    help="Number of rows to plan for.  [default: the rows of DATASET]",
)
@click.option(
    "--rates",
    type=click.Path(dir_okay=False, path_type=Path),
    help="JSON with the rates of a worker, as plan --json prints them.  [default: measured]",
)
@schema_option
@engine_options
@json_option
@locations("dataset", "schema")
@click.pass_context
def plan(
    ctx: click.Context,
    dataset: str,
    schema: str | None,
    tune: str | None,
    n_rows: int | None,
    rates: Path | None,
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

    opened = open_rows(dataset, schema)
    params, _ = fit_params(options)
    engine = EngineOptions(**options)
    tuning = None if tune is None else TuneParams(effort=tune)
    planned = plan_on_options(opened, params, engine, tuning=tuning, rates=rates, n_rows=n_rows)
    if as_json:
        click.echo(json.dumps(describe_plan(planned)))
    else:
        click.echo(plan_table(planned))
    if not planned.fits:
        ctx.exit(EXIT_MENDABLE)
