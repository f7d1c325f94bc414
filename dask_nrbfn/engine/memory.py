"""The memory that tasks need, checked before they start."""

import math
from typing import Protocol

import dask
from dask.utils import format_bytes

from dask_nrbfn.errors import MemoryBudgetError

# Resident size of a worker with numpy, scipy, zarr and scikit-learn loaded: 240 MiB when fresh,
# 278 MiB at its peak once each of them has computed something small.
PROCESS_BYTES = 300 * 2**20

# What numba adds to it with the first approximate search of a process: 453 MiB if it compiles
# everything, 309 MiB if its cache is warm.
NNDESCENT_PROCESS_BYTES = 460 * 2**20

# What numba adds with the first l1 distance: 119 MiB if it compiles, 99 MiB if its cache is warm.
_LOOPS_BYTES = 150 * 2**20


def process_bytes(exponent: float | None) -> int:
    """Return the bytes of a worker that has computed distances.

    Parameters
    ----------
    exponent : float or None
        Of the distances, as `Kernel` has it.

    Returns
    -------
    int
    """
    return PROCESS_BYTES + (0 if exponent is None else _LOOPS_BYTES)


class Memory(Protocol):
    """What a task may use; every engine has it.

    Attributes
    ----------
    memory_bytes : int
        Memory that each task may use.
    limit_bytes : int
        Memory limit of the worker that has the least for a task.
    """

    @property
    def memory_bytes(self) -> int: ...  # noqa: D102
    @property
    def limit_bytes(self) -> int: ...  # noqa: D102


def check_budget(stage: str, held_bytes: int, engine: Memory, *, remedy: str) -> None:
    """Check that a task fits into the memory of a worker.

    Parameters
    ----------
    stage : str
    held_bytes : int
        What a task of the stage holds, with its process.
    engine : Memory
    remedy : str
        A clause that tells what else to change, without a full stop.

    Raises
    ------
    MemoryBudgetError
        If the task holds more than it may.
    """
    if held_bytes > engine.memory_bytes:
        limit = math.ceil(held_bytes * engine.limit_bytes / engine.memory_bytes)
        raise MemoryBudgetError(
            f"a {stage} task needs {format_bytes(held_bytes)}, {describe_memory(engine)}.",
            f"{remedy}, or raise the workers' memory to {_rounded_up(limit)}.",
        )


def describe_memory(engine: Memory) -> str:
    """Return a clause that says what a task may use, and of which limit."""
    usable, limit = format_bytes(engine.memory_bytes), format_bytes(engine.limit_bytes)
    if engine.memory_bytes == engine.limit_bytes:
        return f"workers have {usable} for a task"
    return f"workers are limited to {limit}, of which {usable} can be used by a task"


def usable_bytes(limit_bytes: int, n_threads: int) -> int:
    """Return what each task of a worker may use of the worker's memory limit.

    A nanny kills its worker at a fraction of the limit, before the limit is reached. The fraction
    is read from this process's dask configuration, which may differ from the nanny's.

    Parameters
    ----------
    limit_bytes : int
        Memory limit of the worker.
    n_threads : int
        Tasks that the worker runs at the same time.
    """
    # Absent or False: workers are not killed.
    fraction = float(dask.config.get("distributed.worker.memory.terminate", 0) or 1)
    return int(limit_bytes * fraction) // n_threads


def _rounded_up(n_bytes: int) -> str:
    """Return a size that `--memory` takes and that is enough."""
    hundredths = math.ceil(n_bytes / 2**30 * 100)
    return f"{hundredths / 100:.2f}".rstrip("0").rstrip(".") + " GiB"
