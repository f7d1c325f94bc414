"""Passes over all rows, cut into parts that are complete or absent."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from numpy.typing import NDArray
from zarr.storage import MemoryStore

from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

# Elements of one block of activations: 256 MiB of float64. Rows beyond 4,096 gain nothing in the
# symmetric product.
_BLOCK_ELEMENTS = 2**25
_MAX_BLOCK_ROWS = 4096


class PartResult(NamedTuple):
    """What a part leaves: a small record, and arrays stored under the part's name."""

    record: dict[str, Any]
    arrays: Mapping[str, NDArray[Any]] = {}


PartTask = Callable[[Run, Dataset, int, int], PartResult]


def run_parts(
    run: Run, dataset: Dataset, engine: Engine, *, stage: str, task: PartTask
) -> list[dict[str, Any]]:
    """Run `task` on the span of every part that is not finished; return all records in order."""
    finished = run.finished_parts(stage)
    missing = [index for index in range(len(run.spans)) if index not in finished]
    if finished:
        logger.info(
            "%s: %d of %d parts found (%.1f s of work), %d to do",
            stage,
            len(finished),
            len(run.spans),
            sum(record["seconds"] for record in finished.values()),
            len(missing),
        )
    arguments = [(task, stage, run.location, dataset.location, index) for index in missing]
    finished |= zip(missing, run_tasks(engine, _run_part, arguments, label=stage), strict=True)
    return [finished[index] for index in range(len(run.spans))]


def run_tasks(
    engine: Engine, task: Callable[..., Any], arguments: list[tuple[Any, ...]], *, label: str
) -> list[Any]:
    """Run tasks whose arguments name store locations that every worker can open."""
    for value in arguments[0] if arguments else ():
        in_memory = isinstance(value, MemoryStore) or str(value).startswith("memory://")
        if in_memory and not engine.in_memory:
            raise ParameterError(
                f"{value} is in the memory of this process.",
                "Give a path or URL that the dask workers can open.",
            )
    return engine.run(task, arguments, label=label)


def _run_part(
    task: PartTask, stage: str, run_location: Location, dataset_location: Location, index: int
) -> dict[str, Any]:
    run = Run.open(run_location)
    if (finished := run.part_record(stage, index)) is not None:
        # dask runs a task again when the worker that had its result is lost.
        return finished
    dataset = Dataset.open(dataset_location)
    start = time.perf_counter()
    result = task(run, dataset, *run.spans[index])
    record = {**result.record, "seconds": time.perf_counter() - start}
    run.write_part(stage, index, record, result.arrays)
    return record


def block_rows(n_columns: int) -> int:
    """Return the rows of a block whose rows become `n_columns` float64 each.

    It depends on nothing but the width, so that sums come out the same wherever they run.
    """
    return max(1, min(_MAX_BLOCK_ROWS, _BLOCK_ELEMENTS // n_columns))
