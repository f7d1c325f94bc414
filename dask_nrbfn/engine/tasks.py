"""Engines run a list of tasks and return their results in order."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from dask.system import CPU_COUNT
from dask.utils import format_bytes
from distributed import Client, KilledWorker, as_completed
from distributed.system import MEMORY_LIMIT

from dask_nrbfn.engine.progress import progress
from dask_nrbfn.errors import NRBFNError, WorkerLostError


class Measured(NamedTuple):
    """Result of a task and what it took."""

    value: Any
    seconds: float
    peak_bytes: int


class Engine(Protocol):
    """Runs tasks somewhere.

    Attributes
    ----------
    n_workers : int
        Tasks that run at the same time.
    threads : int
        Threads that each task may use.
    memory_bytes : int
        Memory that each task may use.
    peak_bytes : int
        Largest resident size of a process that ran a task, so far.
    in_memory : bool
        Whether tasks share this process's memory, and so its in-memory stores.
    """

    n_workers: int
    threads: int
    memory_bytes: int
    peak_bytes: int
    in_memory: bool

    def run(
        self, task: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], *, label: str
    ) -> list[Any]:
        """Return ``[task(*a) for a in arguments]``."""
        ...


@dataclass
class InlineEngine:
    """Runs one task after the other in this process."""

    bar: bool = False
    n_workers: int = 1
    threads: int = CPU_COUNT
    memory_bytes: int = MEMORY_LIMIT
    peak_bytes: int = 0
    in_memory: bool = True

    def run(
        self, task: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], *, label: str
    ) -> list[Any]:
        """Return ``[task(*a) for a in arguments]``."""
        results = []
        with progress(label, len(arguments), bar=self.bar) as advance:
            for values in arguments:
                measured = measure(task, *values)
                self.peak_bytes = max(self.peak_bytes, measured.peak_bytes)
                results.append(measured.value)
                advance()
        return results


@dataclass
class DaskEngine:
    """Runs tasks on the workers of a `distributed.Client`."""

    client: Client
    n_workers: int
    threads: int
    memory_bytes: int
    bar: bool = False
    peak_bytes: int = 0
    in_memory: bool = False

    def run(
        self, task: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], *, label: str
    ) -> list[Any]:
        """Return ``[task(*a) for a in arguments]``, computed in any order.

        Raises
        ------
        WorkerLostError
            If the same task lost several workers, as it does when they run out of memory.
        """
        futures = [self.client.submit(measure, task, *values, pure=False) for values in arguments]
        numbers = {future.key: number for number, future in enumerate(futures)}
        results: list[Any] = [None] * len(futures)
        try:
            with progress(label, len(futures), bar=self.bar) as advance:
                for future in as_completed(futures, loop=self.client.loop):
                    measured = future.result()
                    self.peak_bytes = max(self.peak_bytes, measured.peak_bytes)
                    results[numbers[future.key]] = measured.value
                    # Or dask computes it again if the worker that holds it dies.
                    future.release()
                    advance()
        except KilledWorker as error:
            raise WorkerLostError(
                f"a {label} task lost {error.allowed_failures + 1} workers, each with "
                f"{format_bytes(self.memory_bytes)} of memory for a task.",
                "Most often they ran out of memory: see the workers' logs, raise their memory, "
                "or lower basis_size. Started again, the run goes on where it stopped.",
            ) from error
        finally:
            if pending := [future for future in futures if future.status == "pending"]:
                self.client.cancel(pending)
        return results


def measure(task: Callable[..., Any], *arguments: Any) -> Measured:
    """Run a task and say how long it took and how large its process has been."""
    start = time.perf_counter()
    try:
        value = task(*arguments)
    except NRBFNError as error:
        # What lies behind it need not survive the way from a worker.
        error.__cause__ = error.__context__ = None
        raise
    return Measured(value, time.perf_counter() - start, peak_resident_bytes())


def peak_resident_bytes() -> int:
    """Return the largest resident size this process has had."""
    if sys.platform == "linux":
        # getrusage would also count the process that started this one.
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
