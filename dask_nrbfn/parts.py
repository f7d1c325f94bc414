"""Passes over all rows in parts, each of which is stored completely or not at all.

`map_parts` keeps the result of every part. `reduce_parts` adds the sums of the parts in a tree of
fixed shape. This process decides when the sums of a family are complete, and then submits their
addition before further parts, so few sums are on the disk at a time. The tree and its order are
fixed, so the result is the same to the last bit, whichever part is finished first.
"""

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple, Protocol, Self, TypeVar, TypeVarTuple
from zlib import crc32

from numpy.typing import NDArray

from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.folds import FoldedBlock
from dask_nrbfn.numeric.sums import RowSum
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import PartLayout
from dask_nrbfn.storage.model import PinnedModel
from dask_nrbfn.storage.run import Run
from dask_nrbfn.weighting import RowReading, folded_blocks

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

# Number of sums that are added at a time.
_SIBLINGS = 4

Sums = dict[str, Any]
"""Sums over the same rows: a `RowSum` by the suffix of the names of its arrays."""


class PartResult(NamedTuple):
    """The record of a part and its arrays, which may be read in slices of `slice_rows` rows."""

    record: dict[str, Any]
    arrays: Mapping[str, NDArray[Any]] = {}
    slice_rows: int | None = None


class RowPass(Protocol):
    """The work of a task on the blocks of its part."""

    @property
    def reading(self) -> RowReading | None:
        """How the rows are read. None: `sums` reads what it needs, and `add` is never called."""
        return None

    def add(self, block: FoldedBlock) -> None:
        """Add a block."""

    def sums(self) -> Sums:
        """Return the sums over all blocks; called once, after the last block."""


class Reduction(NamedTuple):
    """A pass over rows whose result is a sum.

    begin: takes the open run and dataset, the first and last-plus-one row of a part, and `others`;
        returns a `RowPass`.
    finish: stores the sums over all rows outside the parts; takes the open run, the `SumRecord` and
        the `Sums`, which it may overwrite. None: they are stored like a part, for `read_total`.
    """

    stage: str
    begin: Callable[..., RowPass]
    kinds: Mapping[str, type[RowSum]]
    layout: PartLayout
    others: tuple[Any, ...] = ()
    finish: "Callable[[Run, SumRecord, Sums], None] | None" = None


@dataclass(frozen=True)
class SumRecord:
    """Number of summed rows, sum of their weights, and seconds of work."""

    rows: int
    weight: float
    seconds: float

    def __add__(self, other: Self) -> Self:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return type(self)(*(one + another for one, another in pairs))


def map_parts(
    run: Run,
    dataset: Dataset,
    engine: Engine,
    *,
    stage: str,
    task: Callable[..., PartResult],
    units: Sequence[tuple[Any, ...]] | None = None,
    sizes: Sequence[int] | None = None,
    only: Sequence[int] | None = None,
) -> list[dict[str, Any]]:
    """Run `task` on every unit of work that is not finished; return all records in order.

    units: arguments of the task after run and dataset, part by part; default: spans of the run.
    sizes: work of every part; the largest are started first.
    only: the parts that are wanted; default: all.
    """
    units = run.layout.spans if units is None else units
    finished = {parts.start: record for parts, record in run.finished_parts(stage).items()}
    # A resumed tuning with another time left has other units.
    checksums = [crc32(json.dumps(unit, default=str).encode()) for unit in units]
    wanted = range(len(units)) if only is None else only
    missing = [i for i in wanted if finished.get(i, {}).get("unit") != checksums[i]]
    run.drop_part(stage, *(range(index, index + 1) for index in missing if index in finished))
    if sizes is not None:
        missing.sort(key=lambda index: -sizes[index])
    _log_finished(stage, len(wanted), len(missing), finished.values())
    arguments = [(task, stage, run, dataset, i, units[i], checksums[i]) for i in missing]
    finished |= zip(missing, run_tasks(engine, _run_part, arguments, label=stage), strict=True)
    return [finished[index] for index in wanted]


def reduce_parts(run: Run, dataset: Dataset, engine: Engine, reduction: Reduction) -> SumRecord:
    """Sum the rows of all parts that are not summed yet; return the record of all rows."""
    stage, spans = reduction.stage, reduction.layout.spans
    finished = run.finished_parts(stage)
    records = {parts: SumRecord(**record) for parts, record in finished.items()}
    summed = {part for parts in records for part in parts}
    _log_finished(stage, len(spans), len(spans) - len(summed), finished.values())
    asked = set(records)

    def follow(done: tuple[range, SumRecord] | None) -> list[tuple[Any, ...]]:
        """Return the arguments of the additions that a finished sum makes possible."""
        new = [*records] if done is None else [done[0]]
        if done is not None:
            parts, record = done
            members = [each for each in members_of(parts) if each in records]
            for member in members:
                del records[member]
            records[parts] = record
            run.drop_part(stage, *members)
        families = {family_of(parts, len(spans)) for parts in new} - asked
        ready = [each for each in families if each and records.keys() >= {*members_of(each)}]
        asked.update(ready)
        return [(run, reduction, family) for family in ready]

    arguments = follow(None) + [
        (run, reduction, range(part, part + 1), dataset, span)
        for part, span in enumerate(spans)
        if part not in summed
    ]
    run_tasks(engine, _sum_parts, arguments, label=stage, follow=follow)
    return records[range(len(spans))]


def read_total(run: Run, reduction: Reduction, key: str = "") -> Any:
    """Return one of the sums over all rows."""
    return _read(run, reduction, range(reduction.layout.n_parts), key)


def family_of(parts: range, n_parts: int) -> range | None:
    """Return the parts in the next larger sum of the tree; None for the sum of all parts."""
    size = _SIBLINGS
    while len(parts) < n_parts:
        first = parts.start // size * size
        family = range(first, min(first + size, n_parts))
        if len(family) > len(parts):
            return family
        size *= _SIBLINGS
    return None


def members_of(family: range) -> list[range]:
    """Return, in order, the parts in each sum that is added to form the sum of `family`."""
    size = 1
    while size * _SIBLINGS < len(family):
        size *= _SIBLINGS
    starts = range(family.start, family.stop, size)
    return [range(start, min(start + size, family.stop)) for start in starts]


def run_task(
    engine: Engine, task: Callable[[*Arguments], Result], *arguments: *Arguments, label: str
) -> Result:
    """Return ``task(*arguments)``, run by a worker as `run_tasks` does."""
    return run_tasks(engine, task, [arguments], label=label)[0]


def run_tasks(
    engine: Engine,
    task: Callable[..., Result],
    arguments: Sequence[tuple[Any, ...]],
    *,
    label: str,
    follow: Callable[[Result], list[tuple[Any, ...]]] | None = None,
) -> list[Result]:
    """Run tasks; a worker gets open runs and datasets, and reads the pinned models it is given.

    follow: takes a result, and returns the arguments of tasks that come next.
    """
    for value in arguments[0] if arguments else ():
        location = getattr(value, "location", value)
        if "memory://" in str(location) and not engine.in_memory:
            raise ParameterError(
                f"{location} is in the memory of this process.",
                "Give a path or URL that the dask workers can open.",
            )
    return engine.run(partial(_call, task), arguments, label=_spoken(label), follow=follow)


def _call(task: Callable[..., Result], *arguments: Any) -> Result:
    return task(*(each.open() if isinstance(each, PinnedModel) else each for each in arguments))


def _spoken(stage: str) -> str:
    """Return the name of a stage in words, such as "search, comparing sizes"."""
    return stage.replace("-", ", ", 1).replace("-", " ")


def _log_finished(
    stage: str, n_parts: int, n_missing: int, records: Iterable[Mapping[str, Any]]
) -> None:
    if n_missing < n_parts:
        seconds = sum(record["seconds"] for record in records)
        message = "%s: %d of %d parts found (%.1f s of work), %d to do"
        logger.info(message, _spoken(stage), n_parts - n_missing, n_parts, seconds, n_missing)


def _run_part(
    task: Callable[..., PartResult],
    stage: str,
    run: Run,
    dataset: Dataset,
    index: int,
    unit: tuple[Any, ...],
    checksum: int,
) -> dict[str, Any]:
    if (finished := run.part_record(stage, index)) is not None:
        # dask runs a task again when the worker that had its result is lost.
        return finished
    start = time.perf_counter()
    result = task(run, dataset, *unit)
    record = {**result.record, "seconds": time.perf_counter() - start, "unit": checksum}
    run.write_part(stage, index, record, result.arrays, slice_rows=result.slice_rows)
    return record


def _sum_parts(
    run: Run,
    reduction: Reduction,
    parts: range,
    dataset: Dataset | None = None,
    span: tuple[int, int] = (0, 0),
) -> tuple[range, SumRecord]:
    """Store the sum of one part, or of the members of a family; return its record."""
    if (stored := run.part_record(reduction.stage, parts)) is not None:
        # dask runs a task again when the worker that had its result is lost.
        return parts, SumRecord(**stored)
    if dataset is None:
        record, sums = _added(run, reduction, members_of(parts))
    else:
        record, sums = _summed(run, dataset, reduction, span)
    if reduction.finish is None or parts != range(reduction.layout.n_parts):
        arrays = {
            name + key: values for key, one in sums.items() for name, values in one.arrays().items()
        }
    elif Run.open(run.location).run_id == run.run_id:
        reduction.finish(run, record, sums)
        arrays = {}
    else:
        # The job of this task was killed, and its run was replaced.
        return parts, record
    run.write_part(reduction.stage, parts, asdict(record), arrays)
    return parts, record


def _summed(
    run: Run, dataset: Dataset, reduction: Reduction, span: tuple[int, int]
) -> tuple[SumRecord, Sums]:
    begun, n_rows = time.perf_counter(), span[1] - span[0]
    work = reduction.begin(run, dataset, *span, *reduction.others)
    weight = float(n_rows)
    if work.reading is not None:
        weight = 0.0
        for block in folded_blocks(dataset, *span, work.reading):
            work.add(block)
            weight += block.total_weight
    sums = work.sums()
    return SumRecord(n_rows, weight, time.perf_counter() - begun), sums


def _added(run: Run, reduction: Reduction, members: list[range]) -> tuple[SumRecord, Sums]:
    """Return the sum of stored sums, in order."""
    records = [run.part_record(reduction.stage, member) for member in members]
    total: Sums = {}
    for key in reduction.kinds:
        total[key] = _read(run, reduction, members[0], key)
        for member in members[1:]:
            total[key] += _read(run, reduction, member, key)
    # A part whose record is missing raised an error above.
    return reduce(add, (SumRecord(**record) for record in records if record)), total


def _read(run: Run, reduction: Reduction, parts: range, key: str) -> Any:
    kind = reduction.kinds[key]
    names = kind.array_names()
    places = run.part_arrays(reduction.stage, parts, [name + key for name in names])
    return kind.from_arrays(dict(zip(names, map(run.read, places), strict=True)))
