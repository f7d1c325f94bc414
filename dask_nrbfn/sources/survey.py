"""Options for the columns of a table, and the statistics of its cells that decide its schema."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import Literal, Self

import numpy as np

from dask_nrbfn.numeric.bins import Bins, median
from dask_nrbfn.numeric.schema import UNSEEN, Column, Kind
from dask_nrbfn.sources.relation import Table, kind_of, literal

CellKind = Kind | Literal["text"]
"""Kind of the cells of a column; "text" may turn out to be of any kind."""

MOST_TEXTS = 2**16
"""Largest number of different texts of a column that are counted, which takes some MiB."""

# A column with at least `_FEW_ROWS` rows looks like an id if this share of its values differs.
_FEW_ROWS = 50
_TEXTS_OF_IDS, _NUMBERS_OF_IDS = 0.9, 0.95
# Times of day that differ by less than this share of a day, a tenth of a second, are equal.
_EQUAL_TIMES = 1e-6
# DuckDB's estimate of the number of different values is off by up to a tenth.
_ESTIMATE = 1.2
_BATCH_ROWS = 1 << 16
# The time to plan a query grows with the square of its columns.
_MOST_COLUMNS = 200


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Statistics of the cells of one column; those of different rows can be added.

    n_rows, n_missing: number of rows, and of rows without a value.
    n_different: number of different values, estimated, and the sum of those of the parts.
    n_numbers, n_dates: number of values that can be read as numbers or dates.
    are_whole: whether all numbers are whole.
    low, high: the smallest and the largest number, in days for dates.
    times: the first and the last time of day of dates, as shares of a day.
    texts: number of rows with each text; None for more than 65,536 texts.
    bins: counts of the numbers or dates, where they were asked for.
    """

    kind: CellKind
    n_rows: int
    n_missing: int
    n_different: int
    n_numbers: int = 0
    n_dates: int = 0
    are_whole: bool = True
    low: float = np.inf
    high: float = -np.inf
    times: tuple[float, float] = (np.inf, -np.inf)
    texts: Mapping[str, int] | None = field(default_factory=dict)
    bins: Bins | None = None

    def __add__(self, other: Self) -> Self:
        texts = None
        if self.texts is not None and other.texts is not None:
            counted = Counter(self.texts) + Counter(other.texts)
            texts = dict(counted) if len(counted) <= MOST_TEXTS else None
        bins = None if self.bins is None or other.bins is None else self.bins + other.bins
        (first, last), (other_first, other_last) = self.times, other.times
        return replace(
            self,
            **{
                name: getattr(self, name) + getattr(other, name)
                for name in ("n_rows", "n_missing", "n_different", "n_numbers", "n_dates")
            },
            are_whole=self.are_whole and other.are_whole,
            low=min(self.low, other.low),
            high=max(self.high, other.high),
            times=(min(first, other_first), max(last, other_last)),
            texts=texts,
            bins=bins,
        )

    def read_as(self, kind: Kind) -> Self:
        """Return the cells of text as another kind."""
        return replace(self, kind=kind, texts={}, are_whole=False)

    @property
    def n_values(self) -> int:
        """Number of rows that have a value."""
        return self.n_rows - self.n_missing

    @property
    def looks_like_id(self) -> bool:
        """Whether nearly all values differ: texts, or whole numbers."""
        if self.n_rows < _FEW_ROWS:
            return False
        if self.kind in ("category", "text"):
            n_different = self.n_different if self.texts is None else len(self.texts)
            return n_different > _TEXTS_OF_IDS * self.n_values
        return self.are_whole and self.n_different > _NUMBERS_OF_IDS * self.n_values

    @property
    def counts_rows(self) -> bool:
        """Whether the values count the rows from 0 or 1, as an index does."""
        ends = (self.low, self.high - self.n_rows + 1)
        return self.kind == "number" and self.are_whole and ends in ((0, 0), (1, 1))

    @property
    def median(self) -> float:
        """Median of the values, exact for up to 16,384 different ones; 0 without any."""
        return 0.0 if self.bins is None or not len(self.bins.keys) else median(self.bins)

    @property
    def times_vary(self) -> bool:
        """Whether dates have different times of day."""
        return self.kind == "date" and self.times[1] - self.times[0] > _EQUAL_TIMES


def text_of(table: Table, name: str, marks: Sequence[str] | None = None) -> str:
    """Return the SQL of the text of cells, NULL for a missing value; marked by `marks`.

    Whole numbers have no decimals, so that a category has one text in every file.
    """
    text = _raw_text(table, name)
    if kind_of(table.types[name]) == "number":
        return text
    return _marked(text, table.marks if marks is None else marks)


def _raw_text(table: Table, name: str) -> str:
    own = table.identifier(name)
    if kind_of(table.types[name]) != "number":
        return f"{own}::VARCHAR"
    is_whole = f"abs({own}) < 1e15 AND {own} = floor({own})"
    text = f"CASE WHEN {is_whole} THEN CAST({own} AS BIGINT)::VARCHAR ELSE {own}::VARCHAR END"
    return f"CASE WHEN NOT isnan({own}::DOUBLE) THEN {text} END"


def _marked(text: str, marks: Sequence[str]) -> str:
    # DuckDB would join longer lists of IN, and lose the order of rows.
    none = ", ".join(map(literal, ("", *marks)))
    return f"CASE WHEN list_position([{none}], trim({text})) IS NULL THEN trim({text}) END"


def value_of(table: Table, name: str, kind: CellKind) -> str:
    """Return the SQL of the stored value of cells as DOUBLE; NULL where they cannot be read."""
    is_read = _is_read(table, name, kind)
    own = text_of(table, name) if is_read else table.identifier(name)
    if kind == "date" and not is_read:
        return f"(epoch_us({own}) / 86400e6)"
    if kind == "date":
        formats = [table.written.get(each) for each in ("timestampformat", "dateformat")]
        times = [f"try_strptime({own}, {literal(each)})" for each in formats if each]
        # Text may have an offset from UTC.
        times.append(f"TRY_CAST({own} AS TIMESTAMPTZ)::TIMESTAMP")
        return f"(epoch_us(coalesce({', '.join(times)})) / 86400e6)"
    if kind == "boolean":
        return f"TRY_CAST(TRY_CAST({own} AS BOOLEAN) AS DOUBLE)"
    value = f"TRY_CAST({own} AS DOUBLE)"
    return f"CASE WHEN NOT isnan({value}) THEN {value} END"


def _is_read(table: Table, name: str, kind: CellKind) -> bool:
    """Return whether values of a kind are read from the texts of a column of another kind."""
    given = kind_of(table.types[name])
    return kind not in ("category", given) and {given, kind} != {"number", "boolean"}


def stored_of(table: Table, column: Column) -> str:
    """Return the SQL of the stored values of a column of a schema, NULL for a missing value."""
    if column.kind != "category":
        return value_of(table, column.name, column.kind)
    text = text_of(table, column.name)
    other = float(len(column.categories)) if column.others else UNSEEN
    unknown = f"CASE WHEN {text} IS NOT NULL THEN {other} END"
    if not column.categories:
        return unknown
    listed = ", ".join(map(literal, column.categories))
    return f"coalesce(enum_code(TRY_CAST({text} AS ENUM({listed})))::DOUBLE, {unknown})"


def unread_of(table: Table, column: Column) -> str:
    """Return the SQL of the text of cells that are not of the kind of their column, else NULL."""
    if not _is_read(table, column.name, column.kind):
        return "NULL::VARCHAR"
    return f"CASE WHEN {stored_of(table, column)} IS NULL THEN {text_of(table, column.name)} END"


def survey(
    table: Table,
    kinds: Mapping[str, CellKind],
    *,
    fills: bool,
    counted: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Cells]:
    """Return statistics of some columns, from one pass; texts and medians take one more each.

    kinds: kind of each column.
    fills: whether medians are needed.
    counted: SQL of further columns, of which only the values are counted.
    """
    names, cells = [*kinds], dict[str, Cells]()
    for start in range(0, len(names), _MOST_COLUMNS):
        some = {name: kinds[name] for name in names[start : start + _MOST_COLUMNS]}
        cells |= _cells(table, some, {} if start else counted)
    cells |= _with_texts(table, cells)
    wanted = [name for name in kinds if fills and number_kind(cells[name]) is not None]
    return cells | _with_bins(table, {name: cells[name] for name in wanted})


def _cells(
    table: Table, kinds: Mapping[str, CellKind], counted: Mapping[str, str]
) -> dict[str, Cells]:
    """Return statistics of some columns, without texts and medians, from one pass."""
    values = [sql for name, kind in kinds.items() for sql in _values(table, name, kind)]
    named = ", ".join(f"{sql} AS c{j}" for j, sql in enumerate([*values, *counted.values()]))
    projected = replace(table, relation=table.relation.project(named))
    asked = [sql for j in range(len(kinds)) for sql in _aggregates(3 * j)]
    asked += [f"count(c{len(values) + j})" for j in range(len(counted))]
    n_rows, *rest = projected.aggregate(["count(*)", *asked])
    found, cells = iter(rest), {}
    for name, kind in kinds.items():
        n_values, n_different, n_numbers, n_dates, whole, low, high, first, last = islice(found, 9)
        cells[name] = Cells(
            kind=kind,
            n_rows=n_rows,
            n_missing=n_rows - n_values,
            n_different=min(n_different, n_values),
            n_numbers=n_numbers,
            n_dates=n_dates,
            are_whole=whole is not False,
            low=np.inf if low is None else low,
            high=-np.inf if high is None else high,
            times=(np.inf, -np.inf) if first is None else (first, last),
        )
    return cells | {
        name: Cells(kind="number", n_rows=n_rows, n_missing=n_rows - n_given, n_different=0)
        for name, n_given in zip(counted, found, strict=True)
    }


def number_kind(cells: Cells) -> Kind | None:
    """Return the kind of a column of numbers, booleans or dates, also of text; else None."""
    if cells.kind == "category":
        return None
    if cells.kind != "text":
        return cells.kind
    if not cells.n_values:
        return None
    if cells.n_numbers == cells.n_values:
        return "number"
    return "date" if cells.n_dates == cells.n_values else None


def _values(table: Table, name: str, kind: CellKind) -> tuple[str, str, str]:
    """Return the SQL of the values of a column, and of those as numbers and as dates."""
    if kind not in ("category", "text"):
        value = value_of(table, name, kind)
        return value, value, value if kind == "date" else "NULL::DOUBLE"
    date = value_of(table, name, "date") if kind == "text" else "NULL::DOUBLE"
    return text_of(table, name), value_of(table, name, "number"), date


def _aggregates(place: int) -> list[str]:
    value, number, date = (f"c{place + j}" for j in range(3))
    return [
        f"count({value})",
        f"approx_count_distinct({value})",
        f"count({number})",
        f"count({date})",
        f"bool_and({number} = floor({number}))",
        f"min({number})",
        f"max({number})",
        f"min({date} - floor({date}))",
        f"max({date} - floor({date}))",
    ]


def _with_texts(table: Table, cells: Mapping[str, Cells]) -> dict[str, Cells]:
    """Return the columns of text with the number of rows of each text."""
    texts = {name: each for name, each in cells.items() if each.kind in ("category", "text")}
    few = [name for name, each in texts.items() if each.n_different <= _ESTIMATE * MOST_TEXTS]
    counts: dict[str, dict[str, int] | None] = {name: {} for name in few if texts[name].n_values}
    if counts:
        # Equal texts are counted first: they are few.
        columns = ", ".join(f"{_raw_text(table, name)} AS c{j}" for j, name in enumerate(counts))
        counted = f"(UNPIVOT (SELECT {columns} FROM own) ON COLUMNS(*) INTO NAME k VALUE v)"
        counted = f"(SELECT k, v, count(*) AS n FROM {counted} GROUP BY k, v)"
        text = _marked("v", table.marks)
        names = list(counts)
        for key, shown, n_rows in table.query(
            f"SELECT k, {text}, sum(n) FROM {counted} GROUP BY 1, 2"
        ):
            if shown is not None:
                counts[names[int(key[1:])]][shown] = int(n_rows)  # type: ignore[index]
    found = {name: counts.get(name, None if each.n_values else {}) for name, each in texts.items()}
    return {
        name: replace(texts[name], texts=None if own is None or len(own) > MOST_TEXTS else own)
        for name, own in found.items()
    }


def _with_bins(table: Table, cells: Mapping[str, Cells]) -> dict[str, Cells]:
    """Return columns with the counts of their values."""
    bins = {name: Bins.of_sorts(1) for name in cells}
    wanted = [value_of(table, name, number_kind(each) or "number") for name, each in cells.items()]
    for batch in table.batches(wanted, _BATCH_ROWS) if wanted else ():
        for name, column in zip(bins, batch.columns, strict=True):
            values = column.drop_null().to_numpy()
            values = values[np.isfinite(values)]
            bins[name] += Bins.of_values(values, np.ones((len(values), 1), dtype=np.int64))
    return {name: replace(each, bins=bins[name]) for name, each in cells.items()}


def merged(parts: Sequence[Mapping[str, Cells]]) -> dict[str, Cells]:
    """Return the statistics of a table from those of its parts."""
    first, *others = parts
    total = dict(first)
    for part in others:
        total = {name: own + part[name] for name, own in total.items()}
    return total


def cell_kind(said: Kind | None, types: Iterable[str]) -> CellKind | None:
    """Return the kind that a column is read as; None if a feature cannot have its types.

    said: the kind that an option gives.
    types: SQL types of the column in the parts of a table.
    """
    if said == "category":
        return said
    kinds = {kind_of(of) for of in types if of != '"NULL"'}
    if None in kinds:
        return None
    if kinds == {"number", "boolean"} or (said == "number" and kinds == {"boolean"}):
        return "number"
    one = kinds.pop() if len(kinds) == 1 else "category"
    return "text" if one == "category" or said not in (None, one) else one
