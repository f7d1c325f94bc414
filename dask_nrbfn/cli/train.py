"""Commands that train and show what was learnt: fit, tune, embed, plan, report."""

import logging
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from dask_nrbfn.cli.group import EXIT_MENDABLE
from dask_nrbfn.cli.job import Job
from dask_nrbfn.cli.options import ENGINE, command, fit_params, given, params, take
from dask_nrbfn.outputs import check_output_file
from dask_nrbfn.params import TUNED, FitLimits, FitParams, TuneParams

if TYPE_CHECKING:
    from dask_nrbfn.storage.dataset import Dataset
    from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

# Parameters about targets, those that an embedding lacks, and those with another help text.
_NOT_OF_EMBEDDINGS = {
    "features", "class_weight", "alpha", "penalty", "locality", "loss", "prune", "components",
    "cells", "time_limit",
}  # fmt: skip


def _begin(
    job: Job, dataset: str, run: str, options: dict[str, Any]
) -> "tuple[Dataset, FitParams]":
    """Return rows and parameters, which are taken out of the options."""
    from dask_nrbfn.storage.dataset import Dataset

    job.begin(run, resumable=True)
    opened = Dataset.open(dataset)
    job.n_rows = opened.n_rows
    return opened, fit_params(options)


@command(["dataset", "run"], params(FitParams, FitLimits, leave_out={"time_limit"}), ENGINE)
def fit(job: Job, dataset: str, run: str, **options: Any) -> None:
    """Train on DATASET and keep every step in RUN.

    To resume an interrupted fit, repeat the command with the same RUN.
    """
    _fit(job, dataset, run, options)


@command(
    ["dataset", "run"], params(TuneParams), params(FitParams, FitLimits, leave_out=TUNED), ENGINE
)
def tune(job: Job, dataset: str, run: str, validation: str | None = None, **options: Any) -> None:
    """Choose scale, basis, width, features and penalty from DATASET, and train RUN with them.

    Prints the tried choices and their errors on held-out rows. To resume an interrupted tuning,
    repeat the command with the same RUN.
    """
    from dask_nrbfn.storage.dataset import Dataset

    tuning = TuneParams(**take(options, TuneParams.options()))
    judged = None if validation is None else Dataset.open(validation)
    _fit(job, dataset, run, options, tuning=tuning, validation=judged)


@command(
    ["dataset", "run"],
    [click.Option(["--components"], type=int, default=2, show_default=True, help="Coordinates.")],
    params(FitParams, FitLimits, leave_out=_NOT_OF_EMBEDDINGS),
    given("output", "overwrite"),
    ENGINE,
)
def embed(
    job: Job, dataset: str, run: str, *, output: str | None = None, overwrite: bool, **options: Any
) -> None:
    """Compute coordinates of the rows of DATASET by eigenfunctions of a basis; needs no labels.

    With --basis auto, the basis is random. Use predict to write the coordinates of other rows, and
    report to plot some. OUT is a Zarr group, or a file that ends in .csv or .parquet. To resume an
    interrupted embedding, repeat the command with the same RUN.
    """
    from dask_nrbfn.commands.fit import fit_dataset
    from dask_nrbfn.commands.predict import check_output, predict_dataset
    from dask_nrbfn.storage.dataset import check_apart

    opened, params = _begin(job, dataset, run, options)
    if output is not None:
        check_apart(output, opened, run)
        check_output(output, "predictions", overwrite=overwrite)
    with job.engine() as engine:
        finished = fit_dataset(opened, run, params, engine, embeds=True, **options)
        if output is not None:
            engine.begin_stage()
            predict_dataset(run, opened, output, engine, overwrite=overwrite)
    _show(job, finished)


def _fit(job: Job, dataset: str, run: str, options: dict[str, Any], **tuning: Any) -> None:
    from dask_nrbfn.commands.fit import fit_dataset

    opened, params = _begin(job, dataset, run, options)
    with job.engine() as engine:
        finished = fit_dataset(opened, run, params, engine, **tuning, **options)
    _show(job, finished)
    if not tuning and params == FitParams():
        logger.info(
            "fit: with default options, only alpha is chosen. In the time of a few fits, tune also "
            "chooses kernel, scale, width and size of the basis: dask-nrbfn tune %s NEW_RUN",
            quote(str(dataset)),
        )


def _show(job: Job, finished: "Run") -> None:
    """Print the figures of a run, and the choices that its tuning tried."""
    from dask_nrbfn.commands.describe import describe_run, describe_tuning
    from dask_nrbfn.report.console import run_table, tuning_table

    if job.as_json:
        figures = describe_run(finished)
        if finished.begun_by == "tune":
            figures |= describe_tuning(finished)
        job.show(figures)
        return
    click.echo(run_table(finished))
    if tables := tuning_table(finished):
        click.echo(f"\n{tables}")


@command(["run"], given("out", "overwrite", "evaluate", "sql", "encoding"), ENGINE)
def report(
    job: Job,
    run: str,
    *,
    out: str | None = None,
    overwrite: bool,
    evaluate: str | None = None,
    **reading: Any,
) -> None:
    """Write one HTML page about RUN; the page needs no network and can be printed.

    With --sql alone, the rows of the query are evaluated.
    """
    from dask_nrbfn.commands.evaluate import MOST_PERMUTED, evaluate_dataset
    from dask_nrbfn.commands.files import check_not_given
    from dask_nrbfn.report.page import write_report
    from dask_nrbfn.storage.dataset import check_apart
    from dask_nrbfn.storage.run import Run

    job.begin(run)
    evaluate = evaluate or reading.pop("sql", None)
    if evaluate is None:
        check_not_given("no rows are evaluated", **reading)
    if out is None:
        out = f"{Path(str(run)).resolve().name}.html"
    opened, evaluation = Run.open(run), None
    check_apart(out, run, evaluate)
    check_output_file(out, overwrite=overwrite)
    if evaluate is not None:
        with job.opened(evaluate, run, beside=run, **reading) as (judged, engine):
            few = judged.dataset.X.shape[1] <= MOST_PERMUTED
            evaluation = evaluate_dataset(run, judged.dataset, engine, importance=few)
    write_report(opened, out, evaluation=evaluation, overwrite=overwrite)
    job.show({"page": out})


@command(["dataset"], params(FitParams), given("tune", "n_rows", "rates"), ENGINE)
def plan(
    job: Job,
    dataset: str,
    tune: str | None = None,
    n_rows: int | None = None,
    rates: str | None = None,
    **options: Any,
) -> None:
    """Print the expected cost of fitting or tuning DATASET, stage by stage, without fitting.

    The rates are measured in a few seconds, in this process or on a worker of --scheduler. With
    --workers, --threads, --memory and --rates the plan is for a cluster that need not exist. With
    --device gpu it ends with the largest basis that the GPU of this machine holds.

    Exits with 2 if the fit needs more memory than a worker has.
    """
    from dask_nrbfn.commands.plan import describe_plan, plan_on_options
    from dask_nrbfn.numeric.device import largest_basis_of_gpu
    from dask_nrbfn.report.console import plan_table
    from dask_nrbfn.storage.dataset import Dataset

    planned = plan_on_options(
        Dataset.open(dataset),
        fit_params(options),
        job.options,
        tuning=None if tune is None else TuneParams(effort=tune),
        rates=None if rates is None else Path(rates),
        n_rows=n_rows,
    )
    figures, text = describe_plan(planned), plan_table(planned)
    if job.options.device == "gpu":
        largest = figures["largest_basis"] = largest_basis_of_gpu(planned.gpu_bytes_of_square)
        holds = "This machine has no GPU that CuPy can use, so the largest basis is not known."
        if largest is not None:
            holds = f"The GPU holds at most {largest:,} basis rows."
        text += f"\n\nThe seconds are those of the CPU. {holds}"
    if job.as_json:
        job.show(figures)
    else:
        click.echo(text)
    if not planned.fits:
        raise click.exceptions.Exit(EXIT_MENDABLE)
