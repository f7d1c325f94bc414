"""Passes over all rows, cut into parts that are complete or absent."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from zarr.storage import MemoryStore

from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

# How often a job does a damaged result again before it gives up on the disk.
MAX_REDONE = 3

# Elements of one block of activations: 128 MiB of float64. With 2,048 rows the products run at
# their full rate; more rows only touch more memory anew in every task.
_BLOCK_ELEMENTS = 2**24
_MAX_BLOCK_ROWS = 2048

# The same for a block of rows as they are, 32 MiB: columns of fewer rows take as long as the calls.
_NARROW_ELEMENTS = 2**22
_MAX_NARROW_ROWS = 16384


class PartResult(NamedTuple):
    """What a part leaves: a small record, and arrays stored under the part's name.

    Arrays that will be read in slices say of how many rows.
    """

    record: dict[str, Any]
    arrays: Mapping[str, NDArray[Any]] = {}
    slice_rows: int | None = None


PartTask = Callable[..., PartResult]
"""Called with the open run and dataset, and what makes up its unit of work."""


def run_parts(
    run: Run,
    dataset: Dataset,
    engine: Engine,
    *,
    stage: str,
    task: PartTask,
    units: Sequence[tuple[Any, ...]] | None = None,
    sizes: Sequence[int] | None = None,
) -> list[dict[str, Any]]:
    """Run `task` on every unit of work that is not finished; return all records in order.

    Parameters
    ----------
    run, dataset, engine
    stage : str
        Names the parts.
    task : PartTask
    units : sequence of tuples, optional
        Further arguments of the task, part by part; default: first and last-plus-one row of the
        run's spans.
    sizes : sequence of int, optional
        Work of every part; the largest are started first.
    """
    units = run.spans if units is None else units
    finished = {parts.start: record for parts, record in run.finished_parts(stage).items()}
    missing = [index for index in range(len(units)) if index not in finished]
    if sizes is not None:
        missing.sort(key=lambda index: -sizes[index])
    seconds = sum(record["seconds"] for record in finished.values())
    log_finished(stage, len(units) - len(missing), len(units), seconds)
    arguments = [
        (task, stage, run.location, dataset.location, index, units[index]) for index in missing
    ]
    finished |= zip(missing, run_tasks(engine, _run_part, arguments, label=stage), strict=True)
    return [finished[index] for index in range(len(units))]


def log_finished(stage: str, n_finished: int, n_parts: int, seconds: float) -> None:
    """Say how much of a stage was found from an earlier job, if anything was."""
    if n_finished:
        logger.info(
            "%s: %d of %d parts found (%.1f s of work), %d to do",
            stage,
            n_finished,
            n_parts,
            seconds,
            n_parts - n_finished,
        )


def run_tasks(
    engine: Engine, task: Callable[..., Any], arguments: list[tuple[Any, ...]], *, label: str
) -> list[Any]:
    """Run tasks whose arguments name store locations that every worker can open."""
    for value in arguments[0] if arguments else ():
        in_memory = isinstance(value, MemoryStore) or "memory://" in str(value)
        if in_memory and not engine.in_memory:
            raise ParameterError(
                f"{value} is in the memory of this process.",
                "Give a path or URL that the dask workers can open.",
            )
    return engine.run(task, arguments, label=label)


def _run_part(
    task: PartTask,
    stage: str,
    run_location: Location,
    dataset_location: Location,
    index: int,
    unit: tuple[Any, ...],
) -> dict[str, Any]:
    run = Run.open(run_location)
    if (finished := run.part_record(stage, index)) is not None:
        # dask runs a task again when the worker that had its result is lost.
        return finished
    dataset = Dataset.open(dataset_location)
    start = time.perf_counter()
    result = task(run, dataset, *unit)
    record = {**result.record, "seconds": time.perf_counter() - start}
    run.write_part(stage, index, record, result.arrays, slice_rows=result.slice_rows)
    return record


def regroup(blocks: Iterable[NDArray[Any]], n_rows: int) -> Iterator[NDArray[Any]]:
    """Yield the rows of consecutive blocks `n_rows` at a time, the last ones fewer."""
    waiting: list[NDArray[Any]] = []
    for block in blocks:
        waiting.append(block)
        while sum(map(len, waiting)) >= n_rows:
            joined = np.concatenate(waiting)
            yield joined[:n_rows]
            waiting = [joined[n_rows:]]
    if any(map(len, waiting)):
        yield np.concatenate(waiting)


def block_rows(n_basis: int) -> int:
    """Return the rows of a block whose rows become `n_basis` activations each.

    It depends on nothing but the width, so that sums come out the same wherever they run.
    """
    return max(1, min(_MAX_BLOCK_ROWS, _BLOCK_ELEMENTS // n_basis))


def narrow_block_rows(row_values: float) -> int:
    """Return the rows of a block that is looked at as it is, of so many stored values each."""
    return max(1, min(_MAX_NARROW_ROWS, int(_NARROW_ELEMENTS / max(row_values, 1.0))))
