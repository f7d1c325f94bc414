"""Engines run a list of tasks and return their results in order."""

import logging
import math
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from queue import Empty, Queue
from typing import Any, ClassVar

from dask.utils import format_bytes
from distributed import CancelledError, Client, Future, KilledWorker

from dask_nrbfn.engine.measure import Measured, measure
from dask_nrbfn.engine.scheduler import scheduler_address, scheduler_lost
from dask_nrbfn.engine.threads import available_threads
from dask_nrbfn.engine.watch import progress
from dask_nrbfn.errors import ClusterError, MemoryBudgetError, NRBFNError, WorkerLostError
from dask_nrbfn.private import memory_limit

logger = logging.getLogger(__name__)

Task = Callable[..., Any]
Arguments = Sequence[tuple[Any, ...]]
Finished = Generator[tuple[int, Measured]]

# Tasks given to dask for every one that can run. A worker always finds the next one, and a thousand
# tasks do not burden the scheduler.
_TASKS_PER_SLOT = 4

# How often the cluster is asked for its workers while tasks run.
_LOOK_INTERVAL_S = 2.0

NO_WORKERS_TIMEOUT_S = 300.0


@dataclass(kw_only=True)
class Engine(ABC):
    """Runs tasks somewhere.

    worker_limit_bytes: memory limit of the worker with the least memory per task; None: all of it.
    expected_bytes: expected memory of the current tasks, for error messages; 0: unknown.
    peak_bytes: largest resident size of a process while it ran a task of the current stage.
    in_memory: whether tasks share this process's memory, and so its in-memory stores.
    """

    bar: bool = False
    n_workers: int = 1
    threads: int = field(default_factory=available_threads)
    memory_bytes: int = field(default_factory=memory_limit)
    worker_limit_bytes: int | None = None
    expected_bytes: int = 0
    peak_bytes: int = 0
    most_bytes: int = 0
    in_memory: ClassVar[bool] = False

    @property
    def limit_bytes(self) -> int:
        """Memory limit of the worker with the least memory per task."""
        limit = self.worker_limit_bytes
        return self.memory_bytes if limit is None else limit

    @property
    def memory_text(self) -> str:
        """A clause with the memory that a task may use, and the limit that it is part of."""
        usable, limit = format_bytes(self.memory_bytes), format_bytes(self.limit_bytes)
        if self.memory_bytes == self.limit_bytes:
            return f"workers have {usable} for a task"
        return f"workers are limited to {limit}, of which {usable} can be used by a task"

    def check_budget(self, stage: str, held_bytes: int, *, remedy: str) -> None:
        """Check that a task fits into the memory of a worker."""
        if held_bytes > self.memory_bytes:
            limit = math.ceil(held_bytes * self.limit_bytes / self.memory_bytes)
            raise MemoryBudgetError(
                f"a {stage} task needs {format_bytes(held_bytes)}, {self.memory_text}.",
                f"{remedy}, or raise the workers' memory to {_rounded_up(limit)}.",
            )

    def begin_stage(self, expected_bytes: int = 0) -> None:
        """Forget the peak of earlier tasks; later ones hold `expected_bytes` each, 0: unknown."""
        self.peak_bytes, self.expected_bytes = 0, expected_bytes

    def run(self, task: Task, arguments: Arguments, *, label: str) -> list[Any]:
        """Return ``[task(*a) for a in arguments]``; tasks start in this order."""
        results: list[Any] = [None] * len(arguments)
        with (
            _memory_errors(label, self),
            progress(label, len(arguments), bar=self.bar) as advance,
            closing(self._finished(task, arguments, label)) as finished,
        ):
            for number, measured in finished:
                self.peak_bytes = max(self.peak_bytes, measured.peak_bytes)
                self.most_bytes = max(self.most_bytes, measured.peak_bytes)
                results[number] = measured.value
                advance()
        return results

    @abstractmethod
    def _finished(self, task: Task, arguments: Arguments, label: str) -> Finished:
        """Run the tasks; yield the number and result of each as it finishes."""


@dataclass
class InlineEngine(Engine):
    """Runs one task after the other in this process."""

    in_memory = True

    def _finished(self, task: Task, arguments: Arguments, label: str) -> Finished:
        for number, values in enumerate(arguments):
            yield number, measure(task, *values)


@dataclass
class DaskEngine(Engine):
    """Runs tasks on the workers of a `distributed.Client`.

    Attributes
    ----------
    client : distributed.Client
    no_workers_timeout_s : float
        How long tasks wait while the cluster has no workers.
    address : str
        Of the scheduler.
    """

    client: Client
    no_workers_timeout_s: float = NO_WORKERS_TIMEOUT_S
    address: str = field(init=False)

    def __post_init__(self) -> None:
        # A client that gives up connecting forgets the address.
        self.address = scheduler_address(self.client)

    def _finished(self, task: Task, arguments: Arguments, label: str) -> Finished:
        batch = _Batch(self, task, arguments, label)
        try:
            while (finished := batch.next_finished()) is not None:
                yield finished
        finally:
            batch.cancel()


class _Batch:
    """Tasks that are submitted to dask, a few for each that can run."""

    def __init__(self, engine: DaskEngine, task: Task, arguments: Arguments, label: str) -> None:
        self._engine, self._task, self._arguments = engine, task, arguments
        self._workers = _Workers(engine, label)
        # dask takes the letters before the first dash as the kind of task, and expects tasks of one
        # kind to last equally long.
        self._name = f"{label}-{uuid.uuid4().hex}"
        self._waiting = iter(range(len(arguments)))
        self._running: dict[Future[Any], int] = {}
        self._done: Queue[Future[Any]] = Queue()

    def next_finished(self) -> tuple[int, Measured] | None:
        """Return number and result of the next task to finish; None if no task is left."""
        self._workers.look()
        self._submit()
        while self._running:
            self._workers.look()
            try:
                future = self._done.get(timeout=_LOOK_INTERVAL_S)
            except Empty:
                continue
            measured = self._result(future)
            if measured is None:
                # It is looked at again later.
                self._done.put(future)
                continue
            # Otherwise dask computes it again if its worker dies.
            future.release()
            return self._running.pop(future), measured
        return None

    def cancel(self) -> None:
        """Cancel the unfinished tasks; tasks that already run are not stopped."""
        client = self._engine.client
        if self._running and client.status == "running":
            client.cancel(list(self._running))
        self._running.clear()

    def _submit(self) -> None:
        n_free = max(0, _TASKS_PER_SLOT * self._workers.n_slots - len(self._running))
        for number in islice(self._waiting, n_free):
            future = self._engine.client.submit(
                measure,
                self._task,
                *self._arguments[number],
                key=f"{self._name}-{number}",
                priority=-number,
            )
            self._running[future] = number
            future.add_done_callback(self._done.put)

    def _result(self, future: "Future[Any]") -> Measured | None:
        """Return the result; None if it was lost with its worker."""
        try:
            measured: Measured = future.result(timeout=_LOOK_INTERVAL_S)
        except CancelledError as error:
            raise scheduler_lost(self._engine.address) from error
        except OSError:
            if future.status == "error":
                raise
            time.sleep(0.1)
            return None
        return measured


class _Workers:
    """The workers while tasks run there; `n_slots` is how many tasks can run at the same time."""

    def __init__(self, engine: DaskEngine, label: str) -> None:
        self.n_slots = engine.n_workers
        self._engine, self._label, self._patience_s = engine, label, engine.no_workers_timeout_s
        self._next_look = time.monotonic() + _LOOK_INTERVAL_S
        self._none_since: float | None = None

    def look(self) -> None:
        """Count the tasks that can run every few seconds; raise ClusterError if it stays at 0."""
        now, client = time.monotonic(), self._engine.client
        if client.status != "running":
            raise scheduler_lost(self._engine.address)
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_INTERVAL_S
        try:
            n_slots = sum(client.nthreads().values())
        except OSError as error:
            raise scheduler_lost(self._engine.address) from error
        if n_slots:
            self.n_slots, self._none_since = n_slots, None
        elif self._none_since is None:
            self._none_since = now
            logger.warning(
                "%s: all workers are lost; waiting %g s for a worker", self._label, self._patience_s
            )
        elif now - self._none_since > self._patience_s:
            raise ClusterError(
                f"the scheduler {self._engine.address} has had no workers for "
                f"{self._patience_s:g} s.",
                "Start workers and the job again: finished parts are kept.",
            )


@contextmanager
def _memory_errors(label: str, engine: Engine) -> Iterator[None]:
    """Add the needed and the available memory to errors of lost workers and allocations."""
    needed = ""
    if engine.expected_bytes:
        expected = format_bytes(engine.expected_bytes)
        needed = f"; a {label} task is expected to need {expected}"
    known = f"{needed}; {engine.memory_text}."
    remedy = (
        "raise the workers' memory, run one task at a time on each, lower `basis_size`, or raise "
        "`n_partitions` for the neighbour search. Started again, the run goes on where it stopped."
    )
    try:
        yield
    except KilledWorker as error:
        raise WorkerLostError(
            f"a {label} task lost {error.allowed_failures + 1} workers{known}",
            f"Most often they ran out of memory: see the workers' logs, {remedy}",
        ) from error
    except MemoryError as error:
        if isinstance(error, NRBFNError):
            raise
        raise MemoryBudgetError(
            f"a {label} task could not allocate memory ({error}){known}",
            remedy[0].upper() + remedy[1:],
        ) from error


def _rounded_up(n_bytes: int) -> str:
    """Return a value for `--memory` of at least `n_bytes`."""
    hundredths = math.ceil(n_bytes / 2**30 * 100)
    return f"{hundredths / 100:.2f}".rstrip("0").rstrip(".") + " GiB"
