"""Measure the memory of the process of a task."""

import contextlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from dask_nrbfn.errors import NRBFNError


class Measured(NamedTuple):
    """Result of a task, and the peak memory of its process."""

    value: Any
    peak_bytes: int


def measure(task: Callable[..., Any], *arguments: Any) -> Measured:
    """Run a task and measure the peak memory of its process.

    Tasks that run at the same time in threads of one process report the memory of all of them,
    counted from the start of the last one, or of the process if the kernel cannot reset the peak.
    """
    reset_peak()
    try:
        value = task(*arguments)
    except NRBFNError as error:
        # Its causes may not survive pickling on the way from a worker.
        error.__cause__ = error.__context__ = None
        raise
    return Measured(value, peak_resident_bytes())


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
