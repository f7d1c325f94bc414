"""Commands that change a run: update, merge, refresh."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from dask_nrbfn.cli.job import Job
from dask_nrbfn.cli.options import ENGINE, READING, command, given, params, take
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.params import FitLimits

if TYPE_CHECKING:
    from dask_nrbfn.commands.update import Judge

_JUDGING = ("evaluate", "max_error_rate")


@contextmanager
def _opened_judge(run: Any, options: dict[str, Any]) -> "Iterator[Judge | None]":
    """Yield the judge of a new model, if options that this function takes ask for one."""
    judging = take(options, _JUDGING)
    if not judging:
        yield None
        return
    if len(judging) == 1:
        raise ParameterError(
            "one of `evaluate` and `max_error_rate` is missing.", "Give both options, or neither."
        )
    from dask_nrbfn.commands.files import opened_rows
    from dask_nrbfn.commands.update import Judge

    with opened_rows(judging["evaluate"], run, beside=run) as opened:
        yield Judge(opened.dataset, judging["max_error_rate"])


@command(["run", "rows"], given("forget", "max_new_error", *_JUDGING, *READING), ENGINE)
def update(job: Job, run: str, rows: str, **options: Any) -> None:
    """Add the rows of ROWS to RUN at its basis and width, without reading older rows.

    ROWS is a dataset, or a file, directory or SQL query that ingest accepts. Columns are found by
    name, in any order, and read like the columns that RUN was trained on.

    The new version becomes the run's latest model. Rows that the run already holds are an error.
    Prints the error of the old model on the new rows, and whether a refresh of the basis is due.
    """
    from dask_nrbfn.commands.update import update_run

    job.begin(run, resumable=True)
    reading = take(options, READING)
    with (
        _opened_judge(run, options) as judge,
        job.opened(rows, run, beside=run, **reading) as (opened, engine),
    ):
        record = update_run(run, opened.dataset, engine, judge=judge, **options)
    job.show({**_figures(record), "ignored_columns": list(opened.ignored)})


@command(["run", "other"], given(*_JUDGING), ENGINE)
def merge(job: Job, run: str, other: str, **options: Any) -> None:
    """Add all rows of OTHER, which began as a copy of RUN, to RUN; OTHER is not changed."""
    from dask_nrbfn.commands.update import merge_runs

    job.begin(run, resumable=True)
    with _opened_judge(run, options) as judge, job.engine() as engine:
        record = merge_runs(run, other, engine, judge=judge)
    job.n_rows = record["n_rows"]
    job.show(_figures(record))


@command(
    ["run", "rows*"],
    given(*_JUDGING),
    params(FitLimits, leave_out={"time_limit"}),
    given(*READING),
    ENGINE,
)
def refresh(job: Job, run: str, rows: tuple[str, ...] = (), **options: Any) -> None:
    """Fit RUN again with a new basis on all ROWS, and replace RUN with the new run.

    ROWS are datasets, files, directories or queries, as for update.  [default: all rows of RUN]

    To resume an interrupted refresh, repeat the command. RUN is not changed until the new run is
    complete, nor if the new model has more errors than --max-error-rate.
    """
    from dask_nrbfn.commands.describe import describe_run
    from dask_nrbfn.commands.files import opened_rows
    from dask_nrbfn.commands.fit import refresh_run

    job.begin(run, resumable=True)
    reading = take(options, READING)
    with ExitStack() as stack:
        judge = stack.enter_context(_opened_judge(run, options))
        opened = [
            stack.enter_context(opened_rows(each, run, beside=run, **reading)).dataset
            for each in rows
        ]
        engine = stack.enter_context(job.engine())
        refreshed = refresh_run(run, opened, engine, judge=judge, **options)
    job.n_rows = refreshed.n_rows
    job.show(describe_run(refreshed))


def _figures(record: Mapping[str, Any]) -> dict[str, Any]:
    hidden = ("members", "place", "held_out")
    return {name: value for name, value in record.items() if name not in hidden}
