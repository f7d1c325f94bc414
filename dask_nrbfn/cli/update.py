"""Commands that change a run: update, merge, refresh."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import click

from dask_nrbfn.cli.group import Command
from dask_nrbfn.cli.job import Job
from dask_nrbfn.cli.options import (
    engine_options,
    json_option,
    locations,
    options_of,
    together,
)
from dask_nrbfn.cli.reading import take_reading, target_options, written_options, x_option
from dask_nrbfn.cli.show import show
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.params import FitLimits

if TYPE_CHECKING:
    from dask_nrbfn.commands.update import Judge

_judge_options = together(
    click.option(
        "--evaluate",
        metavar="ROWS",
        help="Evaluate the new model on these rows: a dataset, or a file like the training file.",
    ),
    click.option(
        "--max-error-rate",
        type=click.FloatRange(0, 1),
        help="Keep the old model, and exit with 2, if the new model has a larger error rate on the "
        "--evaluate rows. For numbers the error is 1 - R2.",
    ),
)


@contextmanager
def _judging(
    run: Any, evaluate: str | None, max_error_rate: float | None
) -> "Iterator[Judge | None]":
    """Yield the judge of a new model, if the options ask for one."""
    if (evaluate is None) != (max_error_rate is None):
        raise ParameterError(
            "one of `evaluate` and `max_error_rate` is missing.",
            "Give both options, or neither.",
        )
    if evaluate is None or max_error_rate is None:
        yield None
        return
    from dask_nrbfn.commands.files import opened_rows
    from dask_nrbfn.commands.update import Judge

    with opened_rows(evaluate, run, beside=run) as opened:
        yield Judge(opened.dataset, max_error_rate)


@click.command(cls=Command)
@click.argument("run")
@click.argument("rows")
@click.option("--forget", is_flag=True, help="Remove the rows from RUN.")
@click.option(
    "--max-new-error",
    type=click.FloatRange(min=0),
    help="Keep the old model, and exit with 2, if it has a larger error rate on ROWS: their labels "
    "may be wrong. For numbers the error is the squared error over the variance. Rows count by "
    "their weights.",
)
@_judge_options
@x_option
@target_options
@written_options
@engine_options
@json_option
@locations("run", "rows", "evaluate")
@click.pass_obj
def update(
    job: Job,
    run: str,
    rows: str,
    forget: bool,
    max_new_error: float | None,
    evaluate: str | None,
    max_error_rate: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Add the rows of ROWS to RUN at its basis and width, without reading older rows.

    ROWS is a dataset, or a file, directory or SQL query that ingest accepts. Columns are found by
    name, in any order, and read like the columns that RUN was trained on.

    The new version becomes the run's latest model. Rows that the run already holds are an error.
    Prints the error of the old model on the new rows, and whether a refresh of the basis is due.
    """
    from dask_nrbfn.commands.files import opened_rows
    from dask_nrbfn.commands.update import update_run

    job.begin("update", run, keeps=True)
    reading = take_reading(options)
    with (
        _judging(run, evaluate, max_error_rate) as judge,
        opened_rows(rows, run, beside=run, **reading) as opened,
    ):
        job.n_rows = opened.dataset.n_rows
        with job.engine(options) as engine:
            record = update_run(
                run,
                opened.dataset,
                engine,
                forget=forget,
                judge=judge,
                max_new_error=max_new_error,
            )
    show({**_figures(record), "ignored_columns": list(opened.ignored)}, as_json)


@click.command(cls=Command)
@click.argument("run")
@click.argument("other")
@_judge_options
@engine_options
@json_option
@locations("run", "other", "evaluate")
@click.pass_obj
def merge(
    job: Job,
    run: str,
    other: str,
    evaluate: str | None,
    max_error_rate: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Add all rows of OTHER, which began as a copy of RUN, to RUN; OTHER is not changed."""
    from dask_nrbfn.commands.update import merge_runs

    job.begin("merge", run, keeps=True)
    with _judging(run, evaluate, max_error_rate) as judge, job.engine(options) as engine:
        record = merge_runs(run, other, engine, judge=judge)
    job.n_rows = record["n_rows"]
    show(_figures(record), as_json)


@click.command(cls=Command)
@click.argument("run")
@click.argument("rows", nargs=-1)
@_judge_options
@options_of(FitLimits)
@x_option
@target_options
@written_options
@engine_options
@json_option
@locations("run", "rows", "evaluate")
@click.pass_obj
def refresh(
    job: Job,
    run: str,
    rows: tuple[str, ...],
    evaluate: str | None,
    max_error_rate: float | None,
    min_recall: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Fit RUN again with a new basis on all ROWS, and replace RUN with the new run.

    ROWS are datasets, files, directories or queries, as for update.  [default: all rows of RUN]

    To resume an interrupted refresh, repeat the command. RUN is not changed until the new run is
    complete, nor if the new model has more errors than --max-error-rate.
    """
    from dask_nrbfn.commands.describe import describe_run
    from dask_nrbfn.commands.files import opened_rows
    from dask_nrbfn.commands.refresh import refresh_run

    job.begin("refresh", run, keeps=True)
    reading = take_reading(options)
    with ExitStack() as stack:
        judge = stack.enter_context(_judging(run, evaluate, max_error_rate))
        opened = [
            stack.enter_context(opened_rows(each, run, beside=run, **reading)).dataset
            for each in rows
        ]
        engine = stack.enter_context(job.engine(options))
        refreshed = refresh_run(run, opened, engine, judge=judge, min_recall=min_recall)
    job.n_rows = refreshed.n_rows
    show(describe_run(refreshed), as_json)


def _figures(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in ("members", "place")}
