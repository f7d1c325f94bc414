"""Bytes that tasks need, checked before they start."""

import math

from dask.utils import format_bytes

from dask_nrbfn.engine.tasks import Engine
from dask_nrbfn.errors import MemoryBudgetError

# Resident size of a fresh worker with numpy, scipy, zarr and scikit-learn loaded.
PROCESS_BYTES = 300 * 2**20


def check_budget(stage: str, needed_bytes: int, engine: Engine, *, remedy: str) -> None:
    """Raise MemoryBudgetError if a task of `stage` needs more than a worker has."""
    total = needed_bytes + PROCESS_BYTES
    if total > engine.memory_bytes:
        raise MemoryBudgetError(
            f"a {stage} task needs {format_bytes(total)}, "
            f"workers have {format_bytes(engine.memory_bytes)} for a task.",
            f"{remedy}, or raise the workers' memory to {_rounded_up(total)}.",
        )


def _rounded_up(n_bytes: int) -> str:
    """Return a size that `--memory` takes and that is enough."""
    return f"{math.ceil(n_bytes / 2**30 * 100) / 100:g} GiB"
