"""What a job is doing, as Prometheus reads it."""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, start_http_server, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from dask_nrbfn.engine.watch import StageFigures, Watch
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.outputs import check_path_outside_groups

logger = logging.getLogger(__name__)

_JOB_LABELS = ("command", "run")

# Of the name of every metric.
_PREFIX = "nrbfn_"


class _Kind(NamedTuple):
    """A metric; `value` takes the figures of a stage, or the job's collector."""

    family: type[GaugeMetricFamily] | type[CounterMetricFamily]
    name: str
    help: str
    value: Callable[[Any], float]

    def of(self, labels: tuple[str, ...], samples: Iterable[tuple[tuple[str, ...], Any]]) -> Metric:
        """Return the metric with a value for each sample, which is label values and its source."""
        family = self.family(self.name, self.help, labels=labels)
        for label_values, source in samples:
            family.add_metric(label_values, self.value(source))
        return family


_OF_STAGE = (
    _Kind(
        GaugeMetricFamily,
        "nrbfn_stage_in_progress",
        "1 while the stage is computed.",
        attrgetter("in_progress"),
    ),
    _Kind(
        GaugeMetricFamily,
        "nrbfn_stage_tasks",
        "Tasks of the stage so far; each of its passes adds its own.",
        attrgetter("n_tasks"),
    ),
    _Kind(
        GaugeMetricFamily,
        "nrbfn_stage_tasks_done",
        "Tasks of the stage that are done.",
        attrgetter("n_done"),
    ),
    _Kind(
        GaugeMetricFamily,
        "nrbfn_stage_rows",
        "Rows that the stage goes over.",
        attrgetter("n_rows"),
    ),
    _Kind(
        GaugeMetricFamily,
        "nrbfn_stage_duration_seconds",
        "What the stage took, or has taken so far.",
        StageFigures.seconds_so_far,
    ),
    _Kind(
        GaugeMetricFamily,
        "nrbfn_stage_peak_memory_bytes",
        "Largest resident size of a process while it ran a task of the stage.",
        attrgetter("peak_bytes"),
    ),
    _Kind(
        GaugeMetricFamily,
        "nrbfn_stage_predicted_memory_bytes",
        "What a task of the stage was expected to hold with its process; 0: unknown.",
        attrgetter("predicted_bytes"),
    ),
    _Kind(
        CounterMetricFamily,
        "nrbfn_stage_starts_total",
        "How often the stage was begun; again if its result was found damaged.",
        attrgetter("n_starts"),
    ),
    _Kind(
        CounterMetricFamily,
        "nrbfn_stage_errors_total",
        "How often the stage failed.",
        attrgetter("n_errors"),
    ),
)

_OF_JOB = (
    _Kind(
        CounterMetricFamily,
        "nrbfn_task_retries_total",
        "Results that were lost on their way from a worker and computed again.",
        attrgetter("watch.n_retries"),
    ),
    _Kind(
        CounterMetricFamily,
        "nrbfn_workers_lost_total",
        "Workers that were there and are gone.",
        attrgetter("watch.n_workers_lost"),
    ),
    _Kind(
        CounterMetricFamily,
        "nrbfn_job_errors_total",
        "1 if the job failed.",
        attrgetter("n_errors"),
    ),
    _Kind(
        GaugeMetricFamily,
        "nrbfn_job_start_time_seconds",
        "When the job began, in seconds since 1970.",
        attrgetter("started"),
    ),
)

_LAST_SUCCESS = _Kind(
    GaugeMetricFamily,
    "nrbfn_last_success_timestamp_seconds",
    "When a job last ended well, in seconds since 1970.",
    float,
)


@contextmanager
def exported_metrics(
    watch: Watch,
    *,
    command: str,
    run: str,
    metrics: tuple[str, int] | None = None,
    metrics_file: Path | None = None,
) -> Iterator[None]:
    """Let Prometheus read the figures of a job while the block runs, and after it.

    Parameters
    ----------
    watch : Watch
        The figures.
    command, run : str
        Labels of every metric: what the job does, and to what.
    metrics : tuple of str and int, optional
        Host and port to serve the metrics at while the block runs. Port 0: any that is free.
    metrics_file : path, optional
        File for the textfile collector of Prometheus's node exporter. It is written when the block
        begins and when it ends, each time as a whole, and takes the place of one that an earlier
        job left. The time of the last success in it is kept until there is another one.

    Raises
    ------
    ParameterError
        If nothing can be served at the address, or the file cannot be written, is inside a Zarr
        group or holds something else than these metrics.
    """
    job = _JobCollector(watch, (command, run))
    registry = CollectorRegistry()
    registry.register(job)
    if metrics_file is not None:
        check_path_outside_groups(metrics_file)
        job.last_success = _last_success(metrics_file)
        _check_write(registry, metrics_file)
    try:
        with _served(registry, metrics):
            yield
            job.last_success = job.labels, time.time()
    except BaseException:
        job.n_errors += 1
        raise
    finally:
        if metrics_file is not None:
            _try_write(registry, metrics_file)


class _JobCollector(Collector):
    """Reads the figures of a job whenever it is asked."""

    def __init__(self, watch: Watch, labels: tuple[str, ...]) -> None:
        self.watch, self.labels = watch, labels
        self.started, self.n_errors = time.time(), 0
        self.last_success: tuple[tuple[str, ...], float] | None = None

    def collect(self) -> Iterator[Metric]:
        # A copy, because the job goes on meanwhile.
        stages = [((*self.labels, name), stage) for name, stage in list(self.watch.stages.items())]
        for kind in _OF_STAGE:
            yield kind.of((*_JOB_LABELS, "stage"), stages)
        for kind in _OF_JOB:
            yield kind.of(_JOB_LABELS, [(self.labels, self)])
        if self.last_success is not None:
            yield _LAST_SUCCESS.of(_JOB_LABELS, [self.last_success])


@contextmanager
def _served(registry: CollectorRegistry, address: tuple[str, int] | None) -> Iterator[None]:
    """Serve metrics over HTTP while the block runs."""
    if address is None:
        yield
        return
    host, port = address
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ParameterError(
            f"metrics cannot be served at {host}:{port} ({error.strerror}).",
            "Give a port of this machine that is free.",
        ) from error
    url = f"http://{host}:{server.server_port}/metrics"
    logger.info("metrics: %s", url, extra={"metrics": url})
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _check_write(registry: CollectorRegistry, textfile: Path) -> None:
    try:
        write_to_textfile(str(textfile), registry)
    except OSError as error:
        raise ParameterError(
            f"metrics cannot be written to {textfile} ({error.strerror}).",
            "Give a file in a directory that is there and can be written to.",
        ) from error


def _try_write(registry: CollectorRegistry, textfile: Path) -> None:
    """Write the file, or log that it cannot be: what the job did counts for more."""
    try:
        write_to_textfile(str(textfile), registry)
    except OSError as error:
        logger.warning("metrics could not be written to %s (%s)", textfile, error.strerror)


def _last_success(textfile: Path) -> tuple[tuple[str, ...], float] | None:
    """Return labels and time of the last success that a file of metrics tells of."""
    if not os.path.lexists(textfile):
        return None
    families = _families(textfile)
    if not families or not all(
        family.name.startswith(_PREFIX) and {*_JOB_LABELS} <= sample.labels.keys()
        for family in families
        for sample in family.samples
    ):
        raise ParameterError(
            f"{textfile} exists and holds something else than metrics of this program.",
            "Give another path.",
        )
    for family in families:
        if family.name == _LAST_SUCCESS.name:
            (sample,) = family.samples
            return tuple(sample.labels[name] for name in _JOB_LABELS), sample.value
    return None


def _families(textfile: Path) -> list[Metric]:
    """Return the metrics in a file, none if it is no file of them."""
    if not textfile.is_file():
        return []
    try:
        return list(text_string_to_metric_families(textfile.read_text()))
    except ValueError:
        return []
