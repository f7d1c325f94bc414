"""dask's report of what a cluster did."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from distributed import Client, performance_report

from dask_nrbfn.outputs import new_file

logger = logging.getLogger(__name__)


@contextmanager
def reported_performance(
    client: Client, path: str | os.PathLike[str] | None, *, overwrite: bool
) -> Iterator[None]:
    """Write what the cluster does in the block to `path`, also if the block fails."""
    if path is None:
        yield
        return
    report = performance_report()
    with client.as_current():
        report.__enter__()
    try:
        yield
    finally:
        _write(client, report, path, overwrite=overwrite)


def _write(
    client: Client, report: performance_report, path: str | os.PathLike[str], *, overwrite: bool
) -> None:
    """Write a report that was begun, or log why there is none.

    Neither the results of the work nor an error that it raised are given up for it.
    """
    try:
        if client.status != "running":
            # dask would wait half a minute for the scheduler to come back.
            raise ConnectionError("the scheduler is lost")
        with new_file(path, overwrite=overwrite) as unfinished, client.as_current():
            report.filename = os.fspath(unfinished)
            report.__exit__(None, None, None)
    except Exception as error:
        logger.warning("no performance report: %s", error)
    else:
        logger.info("performance report: %s", path)
