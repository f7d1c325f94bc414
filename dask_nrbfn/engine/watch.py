"""The progress of a job and of its stages: figures, a bar on a terminal, lines in the log."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import click

logger = logging.getLogger(__name__)

# One line every 10 s keeps the log of a long job readable.
_LINE_INTERVAL_S = 10.0


@dataclass
class StageFigures:
    """Progress, seconds and memory of a stage.

    Attributes
    ----------
    n_rows : int
        Rows that the stage reads.
    n_tasks, n_done : int
        Tasks of its passes so far, and those that are done.
    peak_bytes : int
        Largest resident size of a process while it ran a task.
    predicted_bytes : int
        Predicted peak. 0: unknown.
    n_starts, n_errors : int
        How often the stage began and failed in this job.
    seconds : float or None
        Duration; None while it is in progress.
    """

    n_rows: int = 0
    n_tasks: int = 0
    n_done: int = 0
    peak_bytes: int = 0
    predicted_bytes: int = 0
    n_starts: int = 0
    n_errors: int = 0
    seconds: float | None = None
    _start: float = field(default_factory=time.perf_counter, repr=False)

    @property
    def in_progress(self) -> bool:
        """Whether the stage is still running."""
        return self.seconds is None

    @property
    def seconds_so_far(self) -> float:
        """Duration so far, or of the whole stage."""
        return time.perf_counter() - self._start if self.seconds is None else self.seconds


@dataclass
class Watch:
    """The figures of a job, kept by the engine; they may be read from other threads.

    Attributes
    ----------
    stages : dict of str to StageFigures
        In the order in which they were begun.
    n_retries : int
        Results that were lost in transfer and computed again.
    n_workers_lost : int
        Workers that were there and are gone.
    """

    stages: dict[str, StageFigures] = field(default_factory=dict)
    n_retries: int = 0
    n_workers_lost: int = 0
    _current: StageFigures | None = field(default=None, repr=False)

    @property
    def peak_bytes(self) -> int:
        """Largest resident size of a process while it ran a task of any stage."""
        return max((figures.peak_bytes for figures in list(self.stages.values())), default=0)

    @contextmanager
    def stage(self, name: str, *, n_rows: int, predicted_bytes: int = 0) -> Iterator[StageFigures]:
        """Count the tasks of the block for a stage.

        Parameters
        ----------
        name : str
        n_rows, predicted_bytes : int
            See `StageFigures`.

        Yields
        ------
        StageFigures
        """
        before = self.stages.get(name, StageFigures())
        figures = StageFigures(
            n_rows=n_rows,
            predicted_bytes=predicted_bytes,
            n_starts=before.n_starts + 1,
            n_errors=before.n_errors,
        )
        self.stages[name] = self._current = figures
        try:
            yield figures
        except BaseException:
            figures.n_errors += 1
            raise
        finally:
            figures.seconds = figures.seconds_so_far
            self._current = None

    def tasks_begin(self, n_tasks: int, *, expected_bytes: int) -> None:
        """Count new tasks.

        Parameters
        ----------
        n_tasks : int
        expected_bytes : int
            Expected memory of a task with its process. 0: unknown.
        """
        if self._current is not None:
            self._current.n_tasks += n_tasks
            self._current.predicted_bytes = expected_bytes

    def task_done(self, peak_bytes: int) -> None:
        """Count a task that is done."""
        if self._current is not None:
            self._current.n_done += 1
            self._current.peak_bytes = max(self._current.peak_bytes, peak_bytes)


@contextmanager
def progress(label: str, total: int, *, bar: bool) -> Iterator[Callable[[], None]]:
    """Give a function to call when one of `total` tasks is done.

    Parameters
    ----------
    label : str
    total : int
    bar : bool
        Draw a bar if standard error is a terminal. Otherwise lines are logged at intervals, even if
        no further task is done.

    Yields
    ------
    callable
    """
    if bar and sys.stderr.isatty():
        with click.progressbar(length=total, label=f"{label:<11}", file=sys.stderr) as drawn:
            yield lambda: drawn.update(1)
        return
    # Tasks may run in the calling thread.
    done, start, ended = 0, time.monotonic(), threading.Event()

    def advance() -> None:
        nonlocal done
        done += 1

    def log() -> None:
        while not ended.wait(_LINE_INTERVAL_S):
            seconds = time.monotonic() - start
            logger.info(
                "%s: %d of %d parts done, %.0f s so far",
                label,
                done,
                total,
                seconds,
                extra={
                    "task": label,
                    "tasks_done": done,
                    "tasks": total,
                    "seconds": round(seconds, 3),
                },
            )

    thread = threading.Thread(target=log, name="progress", daemon=True)
    thread.start()
    try:
        yield advance
    finally:
        ended.set()
        thread.join()
