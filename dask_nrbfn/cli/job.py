"""One call of the program: its input, its duration, and its output."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import click

from dask_nrbfn.engine.measure import peak_resident_bytes
from dask_nrbfn.report.formats import readable_bytes

if TYPE_CHECKING:
    from dask_nrbfn.engine import Engine

logger = logging.getLogger(__name__)

# The exit codes of a command that was stopped by SIGINT (Ctrl-C) and by SIGTERM.
EXITS_STOPPED = (130, 143)


@dataclass
class Job:
    """The job of a command; click passes it to the commands that ask for it.

    bar: draw progress bars on a terminal.
    storage_options: options of the file system of URLs.
    command, what: name and main argument of the command; empty for a short command.
    keeps: whether the same command continues one that was stopped.
    n_rows: number of rows of the work, once known.
    stop_code: exit code of a stop, by the signal that a command got last.
    """

    stop_code: ClassVar[int] = EXITS_STOPPED[0]

    bar: bool = False
    storage_options: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    what: str = ""
    keeps: bool = False
    n_rows: int | None = None
    _engine: "Engine | None" = None
    _start: float = field(default_factory=time.perf_counter)

    def begin(self, command: str, what: object, *, keeps: bool = False) -> None:
        """Record the work; `summary` logs its end."""
        self.command, self.what, self.keeps = command, str(what), keeps

    @contextmanager
    def engine(self, options: dict[str, Any]) -> "Iterator[Engine]":
        """Yield the engine for the ``engine_options`` of a command."""
        from dask_nrbfn.engine import EngineOptions, connect
        from dask_nrbfn.engine.threads import threads_of_workers

        chosen = EngineOptions(**options, bar=self.bar)
        if chosen.run_here and chosen.threads is None:
            # A worker has these threads too, even if a batch system sets OMP_NUM_THREADS to 1. With
            # the same number of threads, results have the same bits.
            chosen = replace(chosen, threads=threads_of_workers(1))
        with connect(chosen) as self._engine:
            yield self._engine

    @contextmanager
    def summary(self) -> Iterator[None]:
        """Log one line when the block ends, if `begin` was called."""
        try:
            yield
        except (click.exceptions.Exit, click.ClickException) as error:
            self._log_summary(error.exit_code)
            raise
        except KeyboardInterrupt:
            self._log_summary(self.stop_code)
            raise SystemExit(self.stop_code) from None
        except BaseException as error:
            self._log_summary(getattr(error, "code", 1))
            raise
        self._log_summary(0)

    def _log_summary(self, exit_status: int) -> None:
        if not self.command:
            return
        seconds = time.perf_counter() - self._start
        of_tasks = 0 if self._engine is None else self._engine.most_bytes
        peak_bytes = max(of_tasks, peak_resident_bytes())
        rows = "no" if self.n_rows is None else self.n_rows
        end = f"{rows} rows in {seconds:.1f} s, peak {readable_bytes(peak_bytes)}"
        level, end = logging.INFO, f"{end}, exit status {exit_status}"
        if exit_status in EXITS_STOPPED:
            kept = "finished parts are kept, and" if self.keeps else "nothing is kept;"
            again = "continues" if self.keeps else "starts again"
            level = logging.ERROR
            end = f"stopped after {seconds:.1f} s; {kept} the same command {again}"
        logger.log(level, "%s %s: %s", self.command, self.what, end)
