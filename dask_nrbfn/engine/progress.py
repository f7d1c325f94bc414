"""Progress of long work: a bar on a terminal, plain lines in a log."""

import logging
import sys
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
        Draw a bar if standard error is a terminal; otherwise lines are logged.
    """
    if bar and sys.stderr.isatty():
        with click.progressbar(length=total, label=f"{label:<11}", file=sys.stderr) as drawn:
            yield lambda: drawn.update(1)
        return
    lines = _Lines(label, total)
    yield lines.advance


class _Lines:
    def __init__(self, label: str, total: int) -> None:
        self._label, self._total, self._done = label, total, 0
        self._last = time.monotonic()

    def advance(self) -> None:
        self._done += 1
        if time.monotonic() - self._last >= _LINE_INTERVAL_S and self._done < self._total:
            self._last = time.monotonic()
            logger.info("%s: %d of %d parts done", self._label, self._done, self._total)
