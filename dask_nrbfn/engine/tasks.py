"""Engines run a list of tasks and return their results in order."""

import logging
import math
import time
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, Queue
from typing import Any, ClassVar

from dask.utils import format_bytes
from distributed import CancelledError, Client, Future, KilledWorker

from dask_nrbfn.engine.measure import Measured, measure
from dask_nrbfn.engine.threads import available_threads
from dask_nrbfn.engine.watch import progress
from dask_nrbfn.errors import ClusterError, MemoryBudgetError, NRBFNError, WorkerLostError
from dask_nrbfn.numeric.device import Device, on_gpu
from dask_nrbfn.numeric.threads import on_threads
from dask_nrbfn.private import memory_limit

logger = logging.getLogger(__name__)

Task = Callable[..., Any]
Arguments = Sequence[tuple[Any, ...]]
Waiting = deque[tuple[int, tuple[Any, ...]]]
"""The numbers and arguments of tasks to start, the smallest number first; it may grow."""

Finished = Generator[tuple[int, Measured]]

# Tasks given to dask for every one that can run. A worker always finds the next one, and a thousand
# tasks do not burden the scheduler.
_TASKS_PER_SLOT = 4

# How often the workers of the cluster are counted while tasks run.
_LOOK_INTERVAL_S = 2.0


@dataclass(kw_only=True)
class Engine(ABC):
    """Runs tasks somewhere.

    worker_limit_bytes: memory limit of the worker with the least memory per task; None: all of it.
    expected_bytes: expected memory of the current tasks, for error messages; 0: unknown.
    peak_bytes, most_bytes: peak resident size of a process in the current stage, and in any stage.
    device: where tasks compute their blocks.
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
    device: Device = "cpu"
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
        self.peak_bytes = 0
        self.expected_bytes = expected_bytes

    def run(
        self,
        task: Task,
        arguments: Arguments,
        *,
        label: str,
        follow: Callable[[Any], Arguments] | None = None,
    ) -> list[Any]:
        """Return ``[task(*a) for a in arguments]``; tasks start in this order.

        follow: takes a result, and returns the arguments of tasks that start before the others.
        """
        # Workers know their own number of threads.
        task = partial(on_threads, self.threads if self.in_memory else None, task)
        if self.device == "gpu":
            task = partial(on_gpu, task)
        waiting: Waiting = deque(enumerate(map(tuple, arguments)))
        results: dict[int, Any] = {}
        n_followed = 0
        with (
            _memory_errors(label, self),
            progress(label, len(arguments), bar=self.bar) as advance,
            closing(self._finished(task, waiting, label)) as finished,
        ):
            for number, measured in finished:
                self.peak_bytes = max(self.peak_bytes, measured.peak_bytes)
                self.most_bytes = max(self.most_bytes, measured.peak_bytes)
                results[number] = measured.value
                if follow is not None:
                    for each in follow(measured.value):
                        n_followed += 1
                        waiting.appendleft((-n_followed, tuple(each)))
                if number >= 0:
                    advance()
        return [results[number] for number in range(len(arguments))]

    @abstractmethod
    def _finished(self, task: Task, waiting: Waiting, label: str) -> Finished:
        """Run the waiting tasks; yield the number and result of each as it finishes."""


@dataclass
class InlineEngine(Engine):
    """Runs one task after the other in this process."""

    in_memory = True

    def _finished(self, task: Task, waiting: Waiting, label: str) -> Finished:
        while waiting:
            number, values = waiting.popleft()
            yield number, measure(task, *values)


@dataclass
class DaskEngine(Engine):
    """Runs tasks on the workers of a `distributed.Client`.

    no_workers_timeout_s: how long tasks wait while the cluster has no workers.
    """

    client: Client
    no_workers_timeout_s: float = 300.0
    address: str = field(init=False)

    def __post_init__(self) -> None:
        # A client that gives up connecting forgets the address.
        assert self.client.scheduler is not None
        self.address = str(self.client.scheduler.address)

    def _finished(self, task: Task, waiting: Waiting, label: str) -> Finished:
        """Submit the tasks, a few for each that can run; yield them as they finish."""
        # dask takes the letters before the first dash as the kind of task, and expects tasks of one
        # kind to last equally long.
        name = f"{label}-{uuid.uuid4().hex}"
        running: dict[Future[Any], int] = {}
        done: Queue[Future[Any]] = Queue()
        n_slots = self._slots(label)
        try:
            while waiting or running:
                n_free = _TASKS_PER_SLOT * next(n_slots) - len(running)
                for _ in range(min(n_free, len(waiting))):
                    number, values = waiting.popleft()
                    future = self.client.submit(
                        measure, task, *values, key=f"{name}-{number}", priority=-number
                    )
                    running[future] = number
                    future.add_done_callback(done.put)
                try:
                    future = done.get(timeout=_LOOK_INTERVAL_S)
                except Empty:
                    continue
                measured = self._result(future)
                if measured is None:
                    # It is looked at again later.
                    done.put(future)
                    continue
                # Otherwise dask computes it again if its worker dies.
                future.release()
                yield running.pop(future), measured
        finally:
            # Tasks that already run are not stopped.
            if running and self.client.status == "running":
                self.client.cancel(list(running))

    def _result(self, future: "Future[Any]") -> Measured | None:
        """Return the result; None if it was lost with its worker."""
        try:
            measured: Measured = future.result(timeout=_LOOK_INTERVAL_S)
        except CancelledError as error:
            raise scheduler_lost(self.address) from error
        except OSError:
            if future.status == "error":
                raise
            time.sleep(0.1)
            return None
        return measured

    def _slots(self, label: str) -> Iterator[int]:
        """Yield how many tasks can run at the same time; ClusterError if it stays at 0."""
        n_slots = self.n_workers
        looked = time.monotonic()
        none_since: float | None = None
        patience_s = self.no_workers_timeout_s
        while True:
            if self.client.status != "running":
                raise scheduler_lost(self.address)
            now = time.monotonic()
            if now - looked > _LOOK_INTERVAL_S:
                looked = now
                try:
                    found = sum(self.client.nthreads().values())
                except OSError as error:
                    raise scheduler_lost(self.address) from error
                if found:
                    n_slots, none_since = found, None
                elif none_since is None:
                    none_since = now
                    message = "%s: all workers are lost; waiting %g s for a worker"
                    logger.warning(message, label, patience_s)
                elif now - none_since > patience_s:
                    raise ClusterError(
                        f"the scheduler {self.address} has had no workers for {patience_s:g} s.",
                        "Start workers and the job again: finished parts are kept.",
                    )
            yield n_slots


def scheduler_lost(address: str) -> ClusterError:
    """Return the error for a scheduler that is gone."""
    return ClusterError(
        f"the connection to the scheduler {address} is lost.",
        "Start the scheduler and the job again: finished parts are kept.",
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
