"""Sums over all rows: every part leaves its own, and these are added in a tree of fixed shape.

Whoever finishes a part adds it to its siblings once they are all finished, and goes on with what
comes out. So what lies on the disk grows with the tasks at a time and not with the parts, and no
sum is read twice; and as the tree and the order in it are fixed, so are the bits, whoever is first.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from functools import reduce
from operator import add
from typing import Any, NamedTuple, Protocol, Self

from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import DamagedResultError
from dask_nrbfn.numeric.folds import FoldedBlock
from dask_nrbfn.numeric.sums import RowSum
from dask_nrbfn.stages.parts import log_finished, run_tasks
from dask_nrbfn.stages.weighting import Reading, folded_blocks
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location
from dask_nrbfn.storage.run import Run

# Sums that are added at a time.
_SIBLINGS = 4

# Each a RowSum over the same rows, by what the names of its arrays end in.
Sums = dict[str, Any]


class RowPass(Protocol):
    """What a task does with the blocks of its part.

    Attributes
    ----------
    reading : Reading
        How the rows are read.
    """

    reading: Reading

    def add(self, block: FoldedBlock) -> None:
        """Take a block."""

    def sums(self) -> Sums:
        """Return the sums over all blocks, after which none is added."""


class Summation(NamedTuple):
    """A pass over rows that ends in sums.

    Attributes
    ----------
    stage : str
        Names the parts.
    begin : callable
        Takes the open run and dataset, the first and last-plus-one row of a part, and what else is
        in `context`; returns a `RowPass`.
    kinds : mapping of str to type
        Of the sums.
    n_parts : int
    context : tuple
    """

    stage: str
    begin: Callable[..., RowPass]
    kinds: Mapping[str, type[RowSum]]
    n_parts: int
    context: tuple[Any, ...] = ()


@dataclass(frozen=True)
class SumRecord:
    """What is known of rows that were summed, beside the sums.

    Attributes
    ----------
    rows : int
    weight, least_weight : float
        Sum of the weights of the rows, and the least of them.
    seconds : float
        That summing took.
    """

    rows: int
    weight: float
    least_weight: float
    seconds: float

    def __add__(self, other: Self) -> Self:
        return type(self)(
            self.rows + other.rows,
            self.weight + other.weight,
            min(self.least_weight, other.least_weight),
            self.seconds + other.seconds,
        )


def sum_rows(
    run: Run,
    dataset: Dataset,
    engine: Engine,
    summation: Summation,
    spans: list[tuple[int, int]],
) -> SumRecord:
    """Sum the rows of all parts that are not summed yet; return the record of all.

    Parameters
    ----------
    run, dataset, engine, summation
    spans : list of (int, int)
        First and last-plus-one row of every part.

    Raises
    ------
    DamagedResultError
        If a sum cannot be read. It names the parts in it.
    """
    stage, every = summation.stage, range(len(spans))
    finished = _finished(run, stage)
    for parts in run.stored_parts(stage):
        if parts not in finished:
            run.drop_part(stage, parts)
    missing = sorted(set(every).difference(*finished))
    n_finished = len(every) - len(missing)
    log_finished(stage, n_finished, len(every), sum(each.seconds for each in finished.values()))
    arguments = [
        (run.location, summation, range(part, part + 1), dataset.location, spans[part])
        for part in missing
    ]
    run_tasks(engine, _sum_part, arguments, label=stage)
    while (record := _record(run, stage, every)) is None:
        # Left of a job that was killed after the last of a family was summed.
        finished = _finished(run, stage)
        above = {family_of(parts, len(every)) for parts in finished}
        ready = [
            family
            for family in above - finished.keys()
            if family and finished.keys() >= {*members_of(family)}
        ]
        if not ready:
            raise _gone(stage, sorted(set(every).difference(*finished)))
        families = [(run.location, summation, family) for family in ready]
        run_tasks(engine, _add_family, families, label=stage)
    return record


def read_total(run: Run, summation: Summation, key: str = "") -> Any:
    """Return one of the sums over all rows."""
    return _read(run, summation, range(summation.n_parts), key)


def family_of(parts: range, n_parts: int) -> range | None:
    """Return the parts in the sum that a sum becomes a member of; None for that of all.

    Examples
    --------
    >>> family_of(range(5, 6), 18), family_of(range(16, 18), 18)
    (range(4, 8), range(0, 18))
    """
    size = _SIBLINGS
    while len(parts) < n_parts:
        first = parts.start // size * size
        family = range(first, min(first + size, n_parts))
        if len(family) > len(parts):
            return family
        size *= _SIBLINGS
    return None


def members_of(family: range) -> list[range]:
    """Return the parts in each of the sums that are added to one, in order.

    Examples
    --------
    >>> members_of(range(0, 18))
    [range(0, 16), range(16, 18)]
    """
    size = 1
    while size * _SIBLINGS < len(family):
        size *= _SIBLINGS
    starts = range(family.start, family.stop, size)
    return [range(start, min(start + size, family.stop)) for start in starts]


def last_read(n_parts: int) -> int:
    """Return how many sums the last task reads, that comes to the sum of all, at most.

    Examples
    --------
    >>> last_read(1), last_read(4), last_read(64)
    (0, 3, 9)
    """
    n_levels = 0
    while _SIBLINGS**n_levels < n_parts:
        n_levels += 1
    return (_SIBLINGS - 1) * n_levels


def _sum_part(
    run_location: Location,
    summation: Summation,
    part: range,
    dataset_location: Location,
    span: tuple[int, int],
) -> None:
    """Sum a part; add it to its siblings if that was the last of them, and so on."""
    run = Run.open(run_location)
    if _is_summed(run, summation, part):
        # dask runs a task again when the worker that had its result is lost.
        return
    _add_up(run, summation, part, *_summed(run, Dataset.open(dataset_location), summation, span))


def _add_family(run_location: Location, summation: Summation, family: range) -> None:
    """Add the members of a family, which are stored, and go on with their sum."""
    run, first = Run.open(run_location), members_of(family)[0]
    if not _is_summed(run, summation, family):
        sums = {key: _read(run, summation, first, key) for key in summation.kinds}
        _add_up(run, summation, first, _stored_record(run, summation.stage, first), sums)


def _add_up(run: Run, summation: Summation, parts: range, record: SumRecord, sums: Sums) -> None:
    """Add the siblings of sums at hand to them if they are stored, and so on; store what comes out.

    Where a sibling was stored at the same time, once more. The last two of a family may both find
    it complete then, and dask may run a task twice: what one of them misses, the other has used.
    """
    complete = True
    try:
        while complete:
            used = []
            while (family := _complete_family(run, summation, parts)) is not None:
                record, sums = _added(run, summation, family, parts, record, sums)
                used += members_of(family)
                parts = family
            _store(run, summation, parts, record, sums)
            if used:
                # A power cut must not leave less than there was.
                run.flush_part(summation.stage, parts)
            for each in used:
                run.drop_part(summation.stage, each)
            complete = _complete_family(run, summation, parts) is not None
    except OSError:
        if not _is_summed(run, summation, family_of(parts, summation.n_parts)):
            raise


def _summed(
    run: Run, dataset: Dataset, summation: Summation, span: tuple[int, int]
) -> tuple[SumRecord, Sums]:
    begun, weights, least_weight = time.perf_counter(), [], float("inf")
    work = summation.begin(run, dataset, *span, *summation.context)
    for block in folded_blocks(dataset, *span, work.reading):
        work.add(block)
        weights.append(block.total_weight)
        least_weight = min(least_weight, block.least_weight)
    sums = work.sums()
    seconds = time.perf_counter() - begun
    return SumRecord(span[1] - span[0], sum(weights), least_weight, seconds), sums


def _complete_family(run: Run, summation: Summation, parts: range) -> range | None:
    """Return the family of a sum if its siblings are stored."""
    family = family_of(parts, summation.n_parts)
    if family is None:
        return None
    # The last are finished last.
    siblings = (member for member in reversed(members_of(family)) if member != parts)
    complete = all(_record(run, summation.stage, member) is not None for member in siblings)
    return family if complete else None


def _added(
    run: Run, summation: Summation, family: range, parts: range, record: SumRecord, sums: Sums
) -> tuple[SumRecord, Sums]:
    """Return the sum of a family, of which that of some parts is at hand, and is used up."""
    members, total = members_of(family), {}
    records = (
        record if member == parts else _stored_record(run, summation.stage, member)
        for member in members
    )
    for key in summation.kinds:
        of_members = (
            sums.pop(key) if member == parts else _read(run, summation, member, key)
            for member in members
        )
        total[key] = _sum_of(of_members)
    return reduce(add, records), total


def _sum_of(sums: Iterator[Any]) -> Any:
    total = next(sums)
    for one in sums:
        total += one
        # Or it is held while the next is read.
        del one
    return total


def _is_summed(run: Run, summation: Summation, parts: range | None) -> bool:
    """Return whether parts are in a sum that is stored, their own or a larger one."""
    while parts is not None:
        if _record(run, summation.stage, parts) is not None:
            return True
        parts = family_of(parts, summation.n_parts)
    return False


def _finished(run: Run, stage: str) -> dict[range, SumRecord]:
    records = {parts: _record_of(each) for parts, each in run.finished_parts(stage).items()}
    return {parts: record for parts, record in records.items() if record is not None}


def _record(run: Run, stage: str, parts: range) -> SumRecord | None:
    return _record_of(run.part_record(stage, parts))


def _stored_record(run: Run, stage: str, parts: range) -> SumRecord:
    record = _record(run, stage, parts)
    if record is None:
        raise _gone(stage, parts)
    return record


def _gone(stage: str, parts: Iterable[int]) -> DamagedResultError:
    problem = f"sums of {stage} that were stored are gone."
    return DamagedResultError(problem, "Start the job again.", stage, tuple(parts))


def _record_of(written: dict[str, Any] | None) -> SumRecord | None:
    """Return a record; None if it is none, or of a part that an older version left."""
    if written is None:
        return None
    names = [each.name for each in fields(SumRecord)]
    known = {name: written[name] for name in names if name in written}
    return SumRecord(**known) if len(known) == len(names) else None


def _store(run: Run, summation: Summation, parts: range, record: SumRecord, sums: Sums) -> None:
    arrays = {
        name + key: values for key, one in sums.items() for name, values in one.arrays().items()
    }
    run.write_part(summation.stage, parts, asdict(record), arrays)


def _read(run: Run, summation: Summation, parts: range, key: str) -> Any:
    kind = summation.kinds[key]
    return kind.from_arrays(
        {name: run.read_part(summation.stage, parts, name + key) for name in kind.array_names()}
    )
