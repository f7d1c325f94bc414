"""The progress of tasks, as a bar or lines in the log, and a log without repeated errors."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

logger = logging.getLogger(__name__)

# One line every 10 s keeps the log of a long job readable.
_LINE_INTERVAL_S = 10.0


@contextmanager
def progress(label: str, total: int, *, bar: bool) -> Iterator[Callable[[], None]]:
    """Yield a function to call when a task is done; a bar on a terminal, or lines at intervals."""
    if bar and sys.stderr.isatty():
        with click.progressbar(length=total, label=f"{label:<11}", file=sys.stderr) as drawn:
            yield lambda: drawn.update(1)
        return
    # Tasks may run in the calling thread.
    done = 0
    start = time.monotonic()
    ended = threading.Event()

    def advance() -> None:
        nonlocal done
        done += 1

    def log() -> None:
        while not ended.wait(_LINE_INTERVAL_S):
            seconds = time.monotonic() - start
            logger.info("%s: %d of %d parts done, %.0f s so far", label, done, total, seconds)

    thread = threading.Thread(target=log, name="progress", daemon=True)
    thread.start()
    try:
        yield advance
    finally:
        ended.set()
        thread.join()


def leave_out_echoes() -> None:
    """Keep errors of further zarr requests out of the log: zarr raises that of the first one."""
    logging.getLogger("asyncio").addFilter(_is_no_echo)


def _is_no_echo(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    task = message.partition(" exception=")[0]
    of_zarr = f"{os.sep}zarr{os.sep}" in task
    return not (of_zarr and message.startswith("Task exception was never retrieved"))
