"""The stored values of cells as SQL, and statistics of the cells that decide a schema."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.bins import Bins, median
from dask_nrbfn.numeric.schema import UNSEEN, Column, Kind
from dask_nrbfn.sources.relation import Table, kind_of, literal

MOST_TEXTS = 2**16
"""Largest number of different texts of a column that are counted, which takes some MiB."""

_NUMBER = r"^[-+]?(0|[1-9][0-9]*)?(\.[0-9]+)?([eE][-+]?[0-9]+)?$"
Values = dict[str, tuple[Kind, str]]
"""Kind and SQL of the values of each column."""


def text_of(table: Table, name: str, *, marks: Sequence[str] | None = None) -> str:
    """Return the SQL of the text of cells, NULL for empty text and `marks`, or the table's."""
    own = table.column(name)
    if kind_of(table.types[name]) == "number":
        # Whole numbers have no decimals, so that a category has one text in every file.
        is_whole = f"abs({own}::DOUBLE) < 1e15 AND {own} = floor({own})"
        text = f"CASE WHEN {is_whole} THEN {own}::BIGINT::VARCHAR ELSE {own}::VARCHAR END"
        return f"CASE WHEN NOT isnan({own}::DOUBLE) THEN {text} END"
    marks = table.marks if marks is None else marks
    if not marks:
        return f"nullif(trim({own}::VARCHAR), '')"
    # DuckDB would join longer lists of IN, and lose the order of rows.
    none, text = ", ".join(map(literal, ("", *marks))), f"trim({own}::VARCHAR)"
    return f"CASE WHEN list_position([{none}], {text}) IS NULL THEN {text} END"


def value_of(table: Table, name: str, kind: Kind) -> str:
    """Return the SQL of DOUBLE values: NULL or NaN if missing, infinite for unreadable cells."""
    own, given = table.column(name), kind_of(table.types[name])
    if given == "date" == kind:
        return f"(epoch_us({own}) / 86400e6)"
    if given in ("number", "boolean") and kind != "date":
        return f"{own}::DOUBLE"
    # The time to plan a query grows with the square of its length.
    text = own if name in table.plain else text_of(table, name)
    value = f"TRY_CAST({text} AS DOUBLE)"
    if kind == "boolean":
        value = f"TRY_CAST(trim({text}) AS BOOLEAN)::DOUBLE"
    elif kind == "date":
        formats = [table.written.get(each) for each in ("timestampformat", "dateformat")]
        times = [f"try_strptime({text}, {literal(each)})" for each in formats if each]
        # Text may have an offset from UTC.
        times.append(f"TRY_CAST({text} AS TIMESTAMPTZ)::TIMESTAMP")
        value = f"(epoch_us(coalesce({', '.join(times)})) / 86400e6)"
    return f"CASE WHEN {text} IS NOT NULL THEN coalesce({value}, 'inf'::DOUBLE) END"


def stored_of(table: Table, column: Column) -> str:
    """Return the SQL of the stored values of a column of a schema, as `value_of`."""
    if column.kind != "category":
        return value_of(table, column.name, column.kind)
    text = text_of(table, column.name)
    other = float(len(column.categories)) if column.others else UNSEEN
    listed = ", ".join(map(literal, column.categories))
    # A failed cast to an enumeration takes many times as long.
    place = f"list_position([{listed}]::VARCHAR[], {text})"
    return f"coalesce({place}::DOUBLE - 1, CASE WHEN {text} IS NOT NULL THEN {other} END)"


@dataclass(kw_only=True)
class Cells:
    """Statistics of the cells of one column.

    n_rows, n_values: number of rows, and of rows with a value.
    n_unread: number of values that are not of the kind of the column.
    low, high: the smallest and the largest number, in days for dates.
    times: the first and the last time of day of dates, as shares of a day.
    texts: number of rows with each text; None for more than 65,536 texts.
    n_numbers: number of rows with a text that is a number without leading zeros.
    bins: counts of the numbers or dates, if medians are needed.
    """

    kind: Kind
    n_rows: int = 0
    n_values: int = 0
    n_unread: int = 0
    are_whole: bool = True
    low: float = np.inf
    high: float = -np.inf
    times: tuple[float, float] = (np.inf, -np.inf)
    texts: Counter[str] | None = field(default_factory=Counter)
    n_numbers: int = 0
    bins: Bins | None = None

    @classmethod
    def of(cls, kind: Kind, column: pa.Array, *, fills: bool) -> Self:
        """Return the statistics of texts or values of `value_of`."""
        given = column.drop_null()
        own = cls(kind=kind, n_rows=len(column), n_values=len(given))
        if kind == "category":
            texts, counts = given.value_counts().flatten()
            own.texts = Counter(dict(zip(texts.to_pylist(), counts.to_pylist(), strict=True)))
            are_numbers = pc.match_substring_regex(texts, _NUMBER).to_numpy(zero_copy_only=False)
            own.n_numbers = int(counts.to_numpy()[are_numbers.astype(bool)].sum())
            return own
        values = given.to_numpy(zero_copy_only=False).astype(np.float64)
        values = values[~np.isnan(values)]
        own.n_values, values = len(values), values[np.isfinite(values)]
        own.n_unread = own.n_values - len(values)
        if fills:
            own.bins = Bins.of_values(values, np.ones((len(values), 1), dtype=np.int64))
        if len(values):
            whole = np.floor(values)
            own.low, own.high = float(values.min()), float(values.max())
            own.are_whole = bool((values == whole).all())
            if kind == "date":
                own.times = (float((values - whole).min()), float((values - whole).max()))
        return own

    def add(self, other: Self) -> None:
        """Add the statistics of other rows."""
        if other.n_values and other.kind != self.kind:
            self.kind = "number" if self.n_values else other.kind
        for name in ("n_rows", "n_values", "n_unread", "n_numbers"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.are_whole &= other.are_whole
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.times = min(self.times[0], other.times[0]), max(self.times[1], other.times[1])
        if self.texts is not None and other.texts is not None:
            self.texts.update(other.texts)
        if other.texts is None or len(self.texts or ()) > MOST_TEXTS:
            self.texts = None
        if self.bins is not None and other.bins is not None:
            self.bins += other.bins

    @property
    def n_missing(self) -> int:
        """Number of rows without a value."""
        return self.n_rows - self.n_values

    @property
    def median(self) -> float:
        """Median of the values, exact for up to 16,384 different ones; 0 without any."""
        return 0.0 if self.bins is None or not len(self.bins.keys) else median(self.bins)


def values_of(table: Table, kinds: Mapping[str, Kind]) -> Values:
    """Return what `survey` reads of columns of these kinds."""
    return {
        name: (kind, text_of(table, name) if kind == "category" else value_of(table, name, kind))
        for name, kind in kinds.items()
    }


def survey(table: Table, values: Values, *, fills: bool) -> dict[str, Cells]:
    """Return statistics of the values of each column; `fills`: whether medians are needed."""
    bins = Bins.of_sorts(1) if fills else None
    cells = {name: Cells(kind=kind, bins=bins) for name, (kind, _) in values.items()}
    for batch in table.batches([sql for _, sql in values.values()]) if values else ():
        for own, column in zip(cells.values(), batch.columns, strict=True):
            own.add(Cells.of(own.kind, column, fills=fills))
    return cells


def merged(parts: Iterable[dict[str, Cells]]) -> dict[str, Cells]:
    """Return the statistics of a table from those of its parts, which stay as they are."""
    first, *others = parts
    first = deepcopy(first)
    for part in others:
        for name, own in first.items():
            kinds = {each.kind for each in (own, part[name]) if each.n_values}
            if len(kinds) > 1 and kinds != {"boolean", "number"}:
                has = " and ".join(sorted(kinds))
                raise DataError(
                    f"Column {name!r} has parts of different kinds: {has}.", "Convert the column."
                )
            own.add(part[name])
    return first
