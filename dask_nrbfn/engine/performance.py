"""dask's report of what a cluster did."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distributed import Client, performance_report

from dask_nrbfn.errors import ParameterError

logger = logging.getLogger(__name__)


def check_report_path(path: str | os.PathLike[str]) -> None:
    """Raise ParameterError if no report could be written to `path`."""
    target = Path(path).absolute()
    if target.is_dir() or not os.access(target if target.exists() else target.parent, os.W_OK):
        raise ParameterError(
            f"`performance_report` {path} cannot be written.",
            "Give a file in a directory that is there and can be written to.",
        )


@contextmanager
def reported_performance(client: Client, path: str | os.PathLike[str] | None) -> Iterator[None]:
    """Write what the cluster does in the block to `path`, also if the block fails."""
    if path is None:
        yield
        return
    report = performance_report(filename=os.fspath(path))
    with client.as_current():
        report.__enter__()
    try:
        yield
    finally:
        _write(client, report)


def _write(client: Client, report: performance_report) -> None:
    """Write a report that was begun, or log why there is none.

    Neither the results of the work nor an error that it raised are given up for it.
    """
    try:
        if client.status != "running":
            # dask would wait half a minute for the scheduler to come back.
            raise ConnectionError("the scheduler is lost")
        with client.as_current():
            report.__exit__(None, None, None)
    except Exception as error:
        logger.warning("no performance report: %s", error)
    else:
        logger.info("performance report: %s", report.filename)
