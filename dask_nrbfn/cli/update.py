"""Commands that change a run: update, merge, refresh."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from dask_nrbfn.cli.job import Job
from dask_nrbfn.cli.options import ENGINE, READING, command, given, params, take
from dask_nrbfn.cli.show import show
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.params import FitLimits

if TYPE_CHECKING:
    from dask_nrbfn.commands.update import Judge


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


@command(
    ["run", "rows"],
    given("forget", "max_new_error", "evaluate", "max_error_rate", *READING, *ENGINE, "json"),
    places=["run", "rows", "evaluate"],
)
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
    reading = take(options, READING)
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


@command(
    ["run", "other"],
    given("evaluate", "max_error_rate", *ENGINE, "json"),
    places=["run", "other", "evaluate"],
)
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


@command(
    ["run", "rows*"],
    given("evaluate", "max_error_rate"),
    params(FitLimits),
    given(*READING, *ENGINE, "json"),
    places=["run", "rows", "evaluate"],
)
def refresh(
    job: Job,
    run: str,
    rows: tuple[str, ...],
    evaluate: str | None,
    max_error_rate: float | None,
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
    from dask_nrbfn.commands.fit import refresh_run

    job.begin("refresh", run, keeps=True)
    reading, limits = take(options, READING), take(options, FitLimits.options())
    with ExitStack() as stack:
        judge = stack.enter_context(_judging(run, evaluate, max_error_rate))
        opened = [
            stack.enter_context(opened_rows(each, run, beside=run, **reading)).dataset
            for each in rows
        ]
        engine = stack.enter_context(job.engine(options))
        refreshed = refresh_run(run, opened, engine, judge=judge, **limits)
    job.n_rows = refreshed.n_rows
    show(describe_run(refreshed), as_json)


def _figures(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in ("members", "place")}
