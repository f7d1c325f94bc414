"""Progress of long work: a bar on a terminal, plain lines in a log."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

logger = logging.getLogger(__name__)

# One line in this many seconds keeps the log of a night's job readable.
_LINE_INTERVAL_S = 10.0


@contextmanager
def progress(label: str, total: int, *, bar: bool) -> Iterator[Callable[[], None]]:
    """Give a function to call when one of `total` tasks is done.

    Parameters
    ----------
    label : str
    total : int
    bar : bool
        Draw a bar if standard error is a terminal; otherwise lines are logged, also while no task
        is done, so that one sees that the work goes on.
    """
    if bar and sys.stderr.isatty():
        with click.progressbar(length=total, label=f"{label:<11}", file=sys.stderr) as drawn:
            yield lambda: drawn.update(1)
        return
    with _Lines(label, total) as lines:
        yield lines.advance


class _Lines:
    """Logs from a thread of its own, because tasks may run in the calling one."""

    def __init__(self, label: str, total: int) -> None:
        self._label, self._total, self._done = label, total, 0
        self._start = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._log, name="progress", daemon=True)

    def __enter__(self) -> "_Lines":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def advance(self) -> None:
        self._done += 1

    def _log(self) -> None:
        while not self._ended.wait(_LINE_INTERVAL_S):
            seconds = time.monotonic() - self._start
            logger.info(
                "%s: %d of %d parts done, %.0f s so far",
                self._label,
                self._done,
                self._total,
                seconds,
                extra={
                    "task": self._label,
                    "tasks_done": self._done,
                    "tasks": self._total,
                    "seconds": round(seconds, 3),
                },
            )
