"""Metrics of a job for Prometheus."""

import logging
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from dask_nrbfn.engine.watch import Watch
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.outputs import check_path_outside_groups

logger = logging.getLogger(__name__)

_JOB_LABELS = ("command", "run")

# Prefix of the name of every metric.
_PREFIX = "nrbfn_"

_LAST_SUCCESS = "nrbfn_last_success_timestamp_seconds"

# Name, attribute of `StageFigures`, and help. Names that end in _total are counters.
_OF_STAGE = (
    ("nrbfn_stage_in_progress", "in_progress", "1 while the stage is computed."),
    ("nrbfn_stage_tasks", "n_tasks", "Tasks of the stage so far; each of its passes adds its own."),
    ("nrbfn_stage_tasks_done", "n_done", "Tasks of the stage that are done."),
    ("nrbfn_stage_rows", "n_rows", "Rows that the stage goes over."),
    ("nrbfn_stage_duration_seconds", "seconds_so_far", "What the stage took, or has taken so far."),
    (
        "nrbfn_stage_peak_memory_bytes",
        "peak_bytes",
        "Largest resident size of a process while it ran a task of the stage.",
    ),
    (
        "nrbfn_stage_predicted_memory_bytes",
        "predicted_bytes",
        "What a task of the stage was expected to hold with its process; 0: unknown.",
    ),
    (
        "nrbfn_stage_starts_total",
        "n_starts",
        "How often the stage was begun; again if its result was found damaged.",
    ),
    ("nrbfn_stage_errors_total", "n_errors", "How often the stage failed."),
)

# Name, attribute of the collector of the job, and help.
_OF_JOB = (
    (
        "nrbfn_task_retries_total",
        "watch.n_retries",
        "Results that were lost on their way from a worker and computed again.",
    ),
    ("nrbfn_workers_lost_total", "watch.n_workers_lost", "Workers that were there and are gone."),
    ("nrbfn_job_errors_total", "n_errors", "1 if the job failed."),
    ("nrbfn_job_start_time_seconds", "started", "When the job began, in seconds since 1970."),
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
        Labels of every metric: the command, and its run or output.
    metrics : tuple of str and int, optional
        Host and port to serve the metrics at while the block runs. Port 0: any that is free.
    metrics_file : path, optional
        File for the textfile collector of Prometheus's node exporter. It is written as a whole when
        the block begins and when it ends, and replaces the file of an earlier job. It keeps the
        time of the last success until the next one.

    Raises
    ------
    ParameterError
        If the address cannot be served, or the file cannot be written, is inside a Zarr group, or
        has other content than these metrics.
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
            try:
                write_to_textfile(str(metrics_file), registry)
            except OSError as error:
                # The job itself may have succeeded.
                text = "metrics could not be written to %s (%s)"
                logger.warning(text, metrics_file, error.strerror)


class _JobCollector(Collector):
    """Reads the figures of a job on every request."""

    def __init__(self, watch: Watch, labels: tuple[str, ...]) -> None:
        self.watch, self.labels = watch, labels
        self.started, self.n_errors = time.time(), 0
        self.last_success: tuple[tuple[str, ...], float] | None = None

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its present values."""
        # A copy, because the job continues meanwhile.
        stages = [((*self.labels, name), stage) for name, stage in list(self.watch.stages.items())]
        for name, attribute, about in _OF_STAGE:
            value = attrgetter(attribute)
            samples = [(labels, value(stage)) for labels, stage in stages]
            yield _metric(name, about, (*_JOB_LABELS, "stage"), samples)
        for name, attribute, about in _OF_JOB:
            yield _metric(name, about, _JOB_LABELS, [(self.labels, attrgetter(attribute)(self))])
        if self.last_success is not None:
            about = "When a job last ended well, in seconds since 1970."
            yield _metric(_LAST_SUCCESS, about, _JOB_LABELS, [self.last_success])


def _metric(
    name: str, about: str, labels: tuple[str, ...], samples: Iterable[tuple[tuple[str, ...], float]]
) -> Metric:
    """Return a metric with its samples, pairs of label values and value."""
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    metric = kind(name, about, labels=labels)
    for label_values, value in samples:
        metric.add_metric(label_values, value)
    return metric


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


def _last_success(textfile: Path) -> tuple[tuple[str, ...], float] | None:
    """Return labels and time of the last success in a file of metrics."""
    if not os.path.lexists(textfile):
        return None
    families: list[Metric] = []
    if textfile.is_file():
        # Other files have no families.
        with suppress(ValueError):
            families = list(text_string_to_metric_families(textfile.read_text()))
    if not families or not all(
        family.name.startswith(_PREFIX) and {*_JOB_LABELS} <= sample.labels.keys()
        for family in families
        for sample in family.samples
    ):
        raise ParameterError(
            f"{textfile} exists and does not contain metrics of this program.",
            "Give another path.",
        )
    for family in families:
        if family.name == _LAST_SUCCESS:
            (sample,) = family.samples
            return tuple(sample.labels[name] for name in _JOB_LABELS), sample.value
    return None
