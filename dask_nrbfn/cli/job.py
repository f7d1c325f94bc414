"""One call of the program: its input, its duration, and its output."""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

from dask_nrbfn.cli.show import readable_bytes
from dask_nrbfn.engine.measure import peak_resident_bytes
from dask_nrbfn.engine.watch import Watch

if TYPE_CHECKING:
    from dask_nrbfn.engine import Engine

logger = logging.getLogger(__name__)

# The start of a local cluster takes about five seconds. Work is planned at half of the speed of two
# cores, so it is done in about half of these seconds.
SMALL_WORK_S = 20.0


@dataclass
class Job:
    """The job of a command; click passes it to the commands that ask for it.

    Attributes
    ----------
    bar : bool
        Draw progress bars on a terminal.
    json_logs : bool
        Everything on standard error is JSON.
    command, what : str
        Name and main argument of the command; empty for a short command.
    n_rows : int or None
        Number of rows of the work, once known.
    watch : Watch
        What its engine does.
    """

    bar: bool = False
    json_logs: bool = False
    command: str = ""
    what: str = ""
    n_rows: int | None = None
    watch: Watch = field(default_factory=Watch)
    _start: float = field(default_factory=time.perf_counter)

    def begin(self, command: str, what: object) -> None:
        """Record the work; `summary` logs its end.

        Parameters
        ----------
        command : str
        what : object
            Main argument of the command.
        """
        self.command, self.what = command, str(what)

    @contextmanager
    def engine(
        self,
        options: dict[str, Any],
        *,
        out: Any = None,
        overwrite: bool | None = None,
        expected_s: float = math.inf,
        stage: str | None = None,
    ) -> "Iterator[Engine]":
        """Yield the engine for the ``engine_options`` and ``watch_options`` of a command.

        Parameters
        ----------
        options : dict
            Values of the options; some are taken out.
        out : path or URL, optional
            The output of the command.
        overwrite : bool, optional
            Whether to replace the output and the performance report, of a command whose
            ``--overwrite`` is for both.
        expected_s : float
            Seconds of work. If they are few and no option asks for a cluster, none is started.
        stage : str, optional
            Name of the only stage of the work, which goes over `n_rows` rows.
        """
        from dask_nrbfn.engine import EngineOptions, connect, exported_metrics
        from dask_nrbfn.engine.threads import threads_of_workers
        from dask_nrbfn.outputs import check_distinct

        files = {name: options.get(name) for name in ("performance_report", "metrics_file")}
        check_distinct({"out": None if out is None else str(out), **files})
        metrics = {name: options.pop(name, None) for name in ("metrics", "metrics_file")}
        if overwrite is not None:
            options["overwrite"] = overwrite and options["performance_report"] is not None
        chosen = EngineOptions(**options, bar=self.bar)
        if expected_s <= SMALL_WORK_S and not chosen.asks_for_cluster:
            logger.info("%s: small work runs in this process, without a cluster", self.command)
            # With the number of threads of a cluster's worker, results have the same bits.
            threads = chosen.threads or threads_of_workers(1)
            chosen = replace(chosen, workers=0, threads=threads)
        with (
            exported_metrics(self.watch, command=self.command, run=self.what, **metrics),
            connect(chosen, watch=self.watch) as engine,
        ):
            if stage is None:
                yield engine
                return
            with engine.stage(stage, n_rows=self.n_rows or 0):
                yield engine

    @contextmanager
    def summary(self) -> Iterator[None]:
        """Log one line when the block ends, if `begin` was called."""
        try:
            yield
        except (click.exceptions.Exit, click.ClickException) as error:
            self._log_summary(error.exit_code)
            raise
        except BaseException as error:
            self._log_summary(getattr(error, "code", 1))
            raise
        self._log_summary(0)

    def _log_summary(self, exit_status: int) -> None:
        if not self.command:
            return
        seconds = time.perf_counter() - self._start
        peak_bytes = max(self.watch.peak_bytes, peak_resident_bytes())
        logger.info(
            "%s %s: %s rows in %.1f s, peak %s, exit status %d",
            self.command,
            self.what,
            "no" if self.n_rows is None else self.n_rows,
            seconds,
            readable_bytes(peak_bytes),
            exit_status,
            extra={
                "command": self.command,
                "what": self.what,
                "rows": self.n_rows,
                "seconds": round(seconds, 3),
                "peak_bytes": peak_bytes,
                "exit_status": exit_status,
            },
        )

    def tell_error(self, kind: str, problem: str, remedy: str) -> None:
        """Print an error on standard error.

        Parameters
        ----------
        kind : str
            Name of its class, for JSON logs.
        problem, remedy : str
        """
        if self.json_logs:
            logger.error(problem, extra={"error": kind, "fix": remedy})
        else:
            click.echo(f"error: {problem}", err=True)
            click.echo(f"  fix: {remedy}", err=True)
