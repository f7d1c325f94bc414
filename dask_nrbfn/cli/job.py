"""One call of the program: its input, its duration, and its output."""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from dask_nrbfn.cli.show import show
from dask_nrbfn.engine import EngineOptions
from dask_nrbfn.engine.measure import peak_resident_bytes
from dask_nrbfn.report.formats import readable_bytes

if TYPE_CHECKING:
    from dask_nrbfn.commands.files import OpenedRows
    from dask_nrbfn.engine import Engine

logger = logging.getLogger(__name__)

# The exit codes of a command that was stopped by SIGINT (Ctrl-C) and by SIGTERM.
EXITS_STOPPED = (130, 143)


@dataclass
class Job:
    """The job of a command, which gets it as its first argument.

    bar: draw progress bars on a terminal.
    options: where tasks run.
    as_json: whether figures are printed as one JSON object.
    command, subject: name and main argument of the command; no `subject` for a short command.
    resumable: whether the same command continues one that was stopped.
    n_rows: number of rows of the work, once known.
    stop_code: exit code of a stop, by the signal that a command got last.
    """

    stop_code: ClassVar[int] = EXITS_STOPPED[0]

    bar: bool = False
    options: EngineOptions = field(default_factory=EngineOptions)
    as_json: bool = False
    command: str = ""
    subject: str = ""
    resumable: bool = False
    n_rows: int | None = None
    _engine: "Engine | None" = None
    _start: float = field(default_factory=time.perf_counter)

    def begin(self, subject: object, *, resumable: bool = False) -> None:
        """Record the main argument of a long command; `summary` logs its end."""
        self.subject, self.resumable = str(subject), resumable

    def show(self, figures: Mapping[str, Any]) -> None:
        """Print figures, as JSON or as lines."""
        show(figures, self.as_json)

    @contextmanager
    def engine(self) -> "Iterator[Engine]":
        """Yield the engine that the command selects."""
        from dask_nrbfn.engine import connect
        from dask_nrbfn.engine.threads import threads_of_workers

        options = self.options
        if options.run_here and options.threads is None:
            # A worker has these threads too, even if a batch system sets OMP_NUM_THREADS to 1. With
            # the same number of threads, results have the same bits.
            options = replace(options, threads=threads_of_workers(1))
        with connect(options) as self._engine:
            yield self._engine

    @contextmanager
    def opened(
        self, rows: str, run: str, *, beside: str, **reading: Any
    ) -> "Iterator[tuple[OpenedRows, Engine]]":
        """Yield rows that a command uses a run on, see `opened_rows`, and the engine."""
        from dask_nrbfn.commands.files import opened_rows

        with opened_rows(rows, run, beside=beside, **reading) as opened:
            self.n_rows = opened.dataset.n_rows
            with self.engine() as engine:
                yield opened, engine

    @contextmanager
    def summary(self) -> Iterator[None]:
        """Log one line when the block ends, if `begin` was called."""
        code: Any = 0
        try:
            yield
        except KeyboardInterrupt:
            code = self.stop_code
            raise SystemExit(code) from None
        except BaseException as error:
            # Of click's exceptions, and of SystemExit.
            code = getattr(error, "exit_code", getattr(error, "code", 1))
            raise
        finally:
            if self.subject:
                self._log_summary(code)

    def _log_summary(self, exit_status: int) -> None:
        seconds = time.perf_counter() - self._start
        if exit_status in EXITS_STOPPED:
            level = logging.ERROR
            outcome = "nothing is kept; the same command starts again"
            if self.resumable:
                outcome = "finished parts are kept, and the same command continues"
            end = f"stopped after {seconds:.1f} s; {outcome}"
        else:
            of_tasks = 0 if self._engine is None else self._engine.most_bytes
            peak_bytes = readable_bytes(max(of_tasks, peak_resident_bytes()))
            rows = "no" if self.n_rows is None else self.n_rows
            level = logging.INFO
            end = f"{rows} rows in {seconds:.1f} s, peak {peak_bytes}, exit status {exit_status}"
        logger.log(level, "%s %s: %s", self.command, self.subject, end)
