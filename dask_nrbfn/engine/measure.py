"""Measure a task: its seconds and the memory of its process."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from dask_nrbfn.errors import NRBFNError

_lock = threading.Lock()
_n_running = 0


class Measured(NamedTuple):
    """Result of a task, its seconds, and the peak memory of its process."""

    value: Any
    seconds: float
    peak_bytes: int


def measure(task: Callable[..., Any], *arguments: Any) -> Measured:
    """Run a task and measure its seconds and the peak memory of its process.

    Tasks that run at the same time in threads of one process all report the same memory, counted
    from when the process was last idle, or from its start if the kernel cannot reset the peak.
    """
    start = time.perf_counter()
    with _peak_from_here():
        try:
            value = task(*arguments)
        except NRBFNError as error:
            # Its causes may not survive pickling on the way from a worker.
            error.__cause__ = error.__context__ = None
            raise
        return Measured(value, time.perf_counter() - start, peak_resident_bytes())


@contextlib.contextmanager
def _peak_from_here() -> Iterator[None]:
    """Reset the peak before a task, unless another task of this process is running."""
    global _n_running
    with _lock:
        if _n_running == 0:
            reset_peak()
        _n_running += 1
    try:
        yield
    finally:
        with _lock:
            _n_running -= 1


def reset_peak() -> None:
    """Reset the peak of this process to its present resident size, if the kernel permits it."""
    # 5 is documented in proc(5): VmHWM becomes VmRSS. Other systems have no such file.
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def peak_resident_bytes() -> int:
    """Return the largest resident size of this process since its start or `reset_peak`."""
    if sys.platform == "linux":
        # getrusage also counts the parent process.
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
