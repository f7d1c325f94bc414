"""Passes over all rows in parts, each of which is stored completely or not at all.

`map_parts` keeps the result of every part. `reduce_parts` adds the sums of the parts in a tree of
fixed shape. The task that finishes the last of some siblings adds all of them, and goes on with
the sum. So few sums are on the disk at a time. The tree and its order are fixed, so the result is
the same to the last bit, whichever part is finished first.
"""

import logging
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from operator import add
from typing import Any, NamedTuple, Protocol, Self, TypeVar, TypeVarTuple

from numpy.typing import NDArray

from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import DamagedResultError, ParameterError
from dask_nrbfn.numeric.folds import FoldedBlock
from dask_nrbfn.numeric.sums import RowSum
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location
from dask_nrbfn.storage.layout import PartLayout
from dask_nrbfn.storage.model import PinnedModel
from dask_nrbfn.storage.run import Run, part_place
from dask_nrbfn.weighting import Reading, folded_blocks

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

# How often a job computes a damaged result again before it gives up.
MAX_REDONE = 3

# Number of sums that are added at a time.
_SIBLINGS = 4

Sums = dict[str, Any]
"""Sums over the same rows: a `RowSum` by the suffix of the names of its arrays."""


class PartResult(NamedTuple):
    """The record of a part and its arrays, which may be read in slices of `slice_rows` rows."""

    record: dict[str, Any]
    arrays: Mapping[str, NDArray[Any]] = {}
    slice_rows: int | None = None


PartTask = Callable[..., PartResult]
"""Called with the open run and dataset, and the arguments of its unit of work."""


class RowPass(Protocol):
    """The work of a task on the blocks of its part."""

    @property
    def reading(self) -> Reading | None:
        """How the rows are read. None: `sums` reads what it needs, and `add` is never called."""
        return None

    def add(self, block: FoldedBlock) -> None:
        """Add a block."""

    def sums(self) -> Sums:
        """Return the sums over all blocks; called once, after the last block."""


class Reduction(NamedTuple):
    """A pass over rows whose result is a sum.

    begin: takes the open run and dataset, the first and last-plus-one row of a part, and `context`;
        returns a `RowPass`.
    finish: stores the sums over all rows outside the parts, and returns the names of the arrays;
        takes the open run, the `SumRecord` and the `Sums`, which it may overwrite. None: they are
        stored like a part, for `read_total`.
    """

    stage: str
    begin: Callable[..., RowPass]
    kinds: Mapping[str, type[RowSum]]
    layout: PartLayout
    context: tuple[Any, ...] = ()
    finish: "Callable[[Run, SumRecord, Sums], list[str]] | None" = None

    @property
    def n_parts(self) -> int:
        """Number of parts."""
        return self.layout.n_parts


@dataclass(frozen=True)
class SumRecord:
    """Number of summed rows, sum of their weights, and seconds of work."""

    rows: int
    weight: float
    seconds: float

    def __add__(self, other: Self) -> Self:
        return type(self)(
            self.rows + other.rows,
            self.weight + other.weight,
            self.seconds + other.seconds,
        )


def map_parts(
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

    units: further arguments of the task, part by part; default: the spans of the run.
    sizes: work of every part; the largest are started first.
    """
    units = run.spans if units is None else units
    stored = run.finished_parts(stage)
    _drop_begun(run, stage, stored)
    finished = {parts.start: record for parts, record in stored.items()}
    missing = [index for index in range(len(units)) if index not in finished]
    if sizes is not None:
        missing.sort(key=lambda index: -sizes[index])
    seconds = sum(record["seconds"] for record in finished.values())
    _log_finished(stage, len(units) - len(missing), len(units), seconds)
    arguments = [
        (task, stage, run.location, dataset.location, index, units[index]) for index in missing
    ]
    finished |= zip(missing, run_tasks(engine, _run_part, arguments, label=stage), strict=True)
    return [finished[index] for index in range(len(units))]


def reduce_parts(run: Run, dataset: Dataset, engine: Engine, reduction: Reduction) -> SumRecord:
    """Sum the rows of all parts that are not summed yet; return the record of all rows."""
    stage, spans = reduction.stage, reduction.layout.spans
    every = range(len(spans))
    finished = _finished(run, stage)
    _drop_begun(run, stage, finished)
    missing = sorted(set(every).difference(*finished))
    n_finished = len(every) - len(missing)
    _log_finished(stage, n_finished, len(every), sum(each.seconds for each in finished.values()))
    arguments = [
        (run.location, reduction, range(part, part + 1), dataset.location, spans[part])
        for part in missing
    ]
    run_tasks(engine, _sum_part, arguments, label=stage)
    while (record := _record(run, stage, every)) is None:
        # A job was killed, or the last siblings were stored at the same time.
        finished = _finished(run, stage)
        above = {family_of(parts, len(every)) for parts in finished}
        ready = [
            family
            for family in above - finished.keys()
            if family and finished.keys() >= {*members_of(family)}
        ]
        if not ready:
            raise _gone(stage, sorted(set(every).difference(*finished)))
        families = [(run.location, reduction, family) for family in ready]
        run_tasks(engine, _add_family, families, label=stage)
    return record


def _drop_begun(run: Run, stage: str, finished: Container[range]) -> None:
    """Delete parts that a killed job began and did not finish."""
    for parts in run.stored_parts(stage):
        if parts not in finished:
            run.drop_part(stage, parts)


def read_total(run: Run, reduction: Reduction, key: str = "") -> Any:
    """Return one of the sums over all rows."""
    return _read(run, reduction, range(reduction.n_parts), key)


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
    result: Result
    (result,) = run_tasks(engine, task, [arguments], label=label)
    return result


def run_tasks(
    engine: Engine,
    task: Callable[..., Result],
    arguments: Sequence[tuple[Any, ...]],
    *,
    label: str,
) -> list[Result]:
    """Run tasks; a worker opens the runs, datasets and pinned models among their arguments."""
    sent = [tuple(_Place.of(each) for each in values) for values in arguments]
    for value in sent[0] if sent else ():
        if "memory://" in str(value) and not engine.in_memory:
            raise ParameterError(
                f"{value} is in the memory of this process.",
                "Give a path or URL that the dask workers can open.",
            )
    return engine.run(_call, [(task, *values) for values in sent], label=label)


@dataclass(frozen=True)
class _Place:
    """The location of a run or dataset, which a task opens."""

    kind: type[Run] | type[Dataset]
    location: Location

    @classmethod
    def of(cls, argument: Any) -> Any:
        """Return the place of a run or dataset; return other arguments unchanged."""
        opened = isinstance(argument, Run | Dataset)
        return cls(type(argument), argument.location) if opened else argument

    def open(self) -> Run | Dataset:
        """Return the run or dataset."""
        return self.kind.open(self.location)

    def __str__(self) -> str:
        return str(self.location)


def _call(task: Callable[..., Result], *arguments: Any) -> Result:
    return task(
        *(each.open() if isinstance(each, _Place | PinnedModel) else each for each in arguments)
    )


def _log_finished(stage: str, n_finished: int, n_parts: int, seconds: float) -> None:
    if n_finished:
        logger.info(
            "%s: %d of %d parts found (%.1f s of work), %d to do",
            stage,
            n_finished,
            n_parts,
            seconds,
            n_parts - n_finished,
        )


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


def _sum_part(
    run_location: Location,
    reduction: Reduction,
    part: range,
    dataset_location: Location,
    span: tuple[int, int],
) -> None:
    """Sum a part, and add its siblings as `_add_up` does."""
    run = Run.open(run_location)
    if _is_summed(run, reduction, part):
        # dask runs a task again when the worker that had its result is lost.
        return
    _add_up(run, reduction, part, *_summed(run, Dataset.open(dataset_location), reduction, span))


def _add_family(run_location: Location, reduction: Reduction, family: range) -> None:
    """Add the stored members of a family, and continue with their sum."""
    run, first = Run.open(run_location), members_of(family)[0]
    if not _is_summed(run, reduction, family):
        sums = {key: _read(run, reduction, first, key) for key in reduction.kinds}
        _add_up(run, reduction, first, _stored_record(run, reduction.stage, first), sums)


def _add_up(run: Run, reduction: Reduction, parts: range, record: SumRecord, sums: Sums) -> None:
    """Add the stored siblings of `sums` while families are complete; store the result.

    Siblings are checked again after storing, because one may have been stored at the same time. So
    two tasks may find the same family complete, and dask may run a task twice. If a sum is then
    missing for one task, the other task has already added it. But only one task may call `finish`:
    if the members of the last family were stored at the same time, `reduce_parts` adds them later.
    """
    every = range(reduction.n_parts)
    complete = True
    try:
        while complete:
            used = []
            while (family := _complete_family(run, reduction, parts)) is not None:
                record, sums = _added(run, reduction, family, parts, record, sums)
                used += members_of(family)
                parts = family
            finished = _store(run, reduction, parts, record, sums)
            if used:
                # After a power cut, a larger sum must exist if its members were deleted.
                for name in finished:
                    run.flush(name)
                run.flush(part_place(reduction.stage, parts))
            for each in used:
                run.drop_part(reduction.stage, each)
            family = _complete_family(run, reduction, parts)
            complete = family is not None and not (reduction.finish and family == every)
    except OSError:
        if not _is_summed(run, reduction, family_of(parts, reduction.n_parts) or parts):
            raise


def _summed(
    run: Run, dataset: Dataset, reduction: Reduction, span: tuple[int, int]
) -> tuple[SumRecord, Sums]:
    begun, n_rows = time.perf_counter(), span[1] - span[0]
    work = reduction.begin(run, dataset, *span, *reduction.context)
    weight = float(n_rows)
    if work.reading is not None:
        weight = 0.0
        for block in folded_blocks(dataset, *span, work.reading):
            work.add(block)
            weight += block.total_weight
    sums = work.sums()
    return SumRecord(n_rows, weight, time.perf_counter() - begun), sums


def _complete_family(run: Run, reduction: Reduction, parts: range) -> range | None:
    """Return the family of a sum if its siblings are stored."""
    family = family_of(parts, reduction.n_parts)
    if family is None:
        return None
    # Later siblings usually finish later, so a missing one is found sooner.
    siblings = (member for member in reversed(members_of(family)) if member != parts)
    complete = all(_record(run, reduction.stage, member) is not None for member in siblings)
    return family if complete else None


def _added(
    run: Run, reduction: Reduction, family: range, parts: range, record: SumRecord, sums: Sums
) -> tuple[SumRecord, Sums]:
    """Return the sum of a family; `sums`, the sums of `parts`, is emptied to save memory."""
    members, total = members_of(family), {}
    records = (
        record if member == parts else _stored_record(run, reduction.stage, member)
        for member in members
    )
    for key in reduction.kinds:
        of_members = (
            sums.pop(key) if member == parts else _read(run, reduction, member, key)
            for member in members
        )
        total[key] = _sum_of(of_members)
    return reduce(add, records), total


def _sum_of(sums: Iterator[Any]) -> Any:
    total = next(sums)
    for one in sums:
        total += one
        # Free it before the next one is read.
        del one
    return total


def _is_summed(run: Run, reduction: Reduction, parts: range | None) -> bool:
    """Return whether the sum of some parts, or a larger sum that includes it, is stored."""
    while parts is not None:
        if _record(run, reduction.stage, parts) is not None:
            return True
        parts = family_of(parts, reduction.n_parts)
    return False


def _finished(run: Run, stage: str) -> dict[range, SumRecord]:
    return {parts: SumRecord(**each) for parts, each in run.finished_parts(stage).items()}


def _record(run: Run, stage: str, parts: range) -> SumRecord | None:
    written = run.part_record(stage, parts)
    return None if written is None else SumRecord(**written)


def _stored_record(run: Run, stage: str, parts: range) -> SumRecord:
    record = _record(run, stage, parts)
    if record is None:
        raise _gone(stage, parts)
    return record


def _gone(stage: str, parts: Iterable[int]) -> DamagedResultError:
    problem = f"stored sums of {stage} are missing."
    return DamagedResultError(problem, "Start the job again.", stage, tuple(parts))


def _store(
    run: Run, reduction: Reduction, parts: range, record: SumRecord, sums: Sums
) -> list[str]:
    """Store sums; return the names of the arrays that are not in the part."""
    if reduction.finish is not None and parts == range(reduction.n_parts):
        if Run.open(run.location).run_id != run.run_id:
            # The job of this task was killed, and its run was replaced.
            return []
        names = reduction.finish(run, record, sums)
        arrays = {}
    else:
        names = []
        arrays = {
            name + key: values for key, one in sums.items() for name, values in one.arrays().items()
        }
    run.write_part(reduction.stage, parts, asdict(record), arrays)
    return names


def _read(run: Run, reduction: Reduction, parts: range, key: str) -> Any:
    kind = reduction.kinds[key]
    return kind.from_arrays(
        {name: run.read_part(reduction.stage, parts, name + key) for name in kind.array_names()}
    )
