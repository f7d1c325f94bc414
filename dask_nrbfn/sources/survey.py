"""The stored values of cells as SQL, statistics of the cells, and the schema that these decide."""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import pyarrow as pa

from dask_nrbfn.errors import Advice, DataError
from dask_nrbfn.numeric.bins import Bins, median
from dask_nrbfn.numeric.schema import UNSEEN, Column, Kind, Schema
from dask_nrbfn.sources.conversions import Conversions, doubt_about
from dask_nrbfn.sources.options import ReadOptions, joined_names, named_columns
from dask_nrbfn.sources.relation import NUMBERED, Table, kind_of
from dask_nrbfn.sources.text import literal

logger = logging.getLogger(__name__)

MOST_TEXTS = 2**16
"""Largest number of different texts of a column that are counted, which takes some MiB."""

Values = dict[str, tuple[Kind, str]]
"""Kind and SQL of the values of each column."""

# Names that pandas gives to an index without a name, or DuckDB to a column without a name.
_INDEX = re.compile(r"(Unnamed: 0(\.\d+)*|column0+)?|__index_level_\d+__")
# Texts of at least `_FEW_ROWS` rows look like ids if this share of them differs.
_FEW_ROWS, _IDS_DIFFER = 50, 0.9
# Times of day that differ by less than this share of a day, a tenth of a second, are equal.
_EQUAL_TIMES = 1e-6
# Dates of more than 30 years are rarely those of events.
_MOST_DAYS = 30 * 366
_MARKS = (
    "In text tables, texts such as NA and None mark a missing value; pass `missing_values`='' if "
    "they are values."
)
GAP = (
    "Pass `missing`='impute' to fill in missing features, or `missing`='drop' to leave out every "
    f"row that lacks a value. {_MARKS}"
)
GAP_OF_ROLE = (
    "Leave out these rows{}. Pass `unlabelled`='' to keep rows without a label "
    f"('nan' for numeric targets). {_MARKS}"
)
GAP_OF_X = "Pass `missing`='impute' to the fit to fill in missing features, or leave out the row."


def text_of(table: Table, name: str) -> str:
    """Return the SQL of the text of cells, NULL for empty text and for the marks of the table."""
    own = table.column(name)
    if kind_of(table.types[name]) == "number":
        # Whole numbers have no decimals, so that a category has one text in every file.
        is_whole = f"abs({own}::DOUBLE) < 1e15 AND {own} = floor({own})"
        text = f"CASE WHEN {is_whole} THEN {own}::BIGINT::VARCHAR ELSE {own}::VARCHAR END"
        return f"CASE WHEN NOT isnan({own}::DOUBLE) THEN {text} END"
    # DuckDB would join longer lists of IN, and lose the order of rows.
    none, text = ", ".join(map(literal, ("", *table.marks))), f"trim({own}::VARCHAR)"
    return f"CASE WHEN list_position([{none}], {text}) IS NULL THEN {text} END"


def value_of(table: Table, name: str, kind: Kind) -> str:
    """Return the SQL of DOUBLE values: NULL or NaN if missing, infinite for unreadable cells."""
    own, given = table.column(name), kind_of(table.types[name])
    if given == "date" == kind:
        # DuckDB has no such function of nanoseconds with a time zone, the dates of pandas.
        instant = f"{own}::TIMESTAMPTZ" if table.types[name] == "TIMESTAMPTZ_NS" else own
        return f"(epoch_us({instant}) / 86400e6)"
    if given in ("number", "boolean") and kind != "date":
        return f"{own}::DOUBLE"
    is_text = kind_of(table.found.get(name, "VARCHAR")) == "category"
    text = text_of(table, name) if is_text else own
    value = f"TRY_CAST({text} AS DOUBLE)"
    if kind == "boolean":
        value = f"TRY_CAST(trim({text}) AS BOOLEAN)::DOUBLE"
    elif kind == "date":
        formats = [table.written.get(each) for each in ("timestampformat", "dateformat")]
        times = [f"try_strptime({text}, {literal(each)})" for each in formats if each]
        # Text may have an offset from UTC.
        times.append(f"TRY_CAST({text} AS TIMESTAMPTZ)::TIMESTAMP")
        value = f"(epoch_us(coalesce({', '.join(times)})) / 86400e6)"
    marks = "|".join(map(re.escape, ("", *table.marks)))
    is_mark = f"regexp_full_match({own}::VARCHAR, {literal(f' *({marks}) *')})"
    # Only cells without a value are matched.
    return f"coalesce({value}, CASE WHEN NOT {is_mark} THEN 'inf'::DOUBLE END)"


def stored_of(table: Table, column: Column) -> str:
    """Return the SQL of the stored values of a column of a schema, as `value_of`."""
    if column.kind != "category":
        return value_of(table, column.name, column.kind)
    found = text = text_of(table, column.name)
    listed = list(map(literal, column.categories))
    if kind_of(table.types[column.name]) != "number":
        # Only cells without a category are compared with the marks: this reads CSV a tenth faster.
        found = f"trim({table.column(column.name)}::VARCHAR)"
        marks = set(map(literal, ("", *table.marks)))
        # No trimmed text is a space; NULL would be the place of empty cells.
        listed = ["' '" if each in marks else each for each in listed]
    other = float(len(column.categories)) if column.others else UNSEEN
    # A failed cast to an enumeration takes many times as long.
    place = f"list_position([{', '.join(listed)}]::VARCHAR[], {found})"
    return f"coalesce({place}::DOUBLE - 1, CASE WHEN {text} IS NOT NULL THEN {other} END)"


@dataclass(kw_only=True)
class Cells:
    """Statistics of the cells of one column.

    n_rows, n_values: number of rows, and of rows with a value.
    n_unread: number of values that are not of the kind of the column.
    times: the first and the last time of day of dates, as shares of a day.
    days: the first and the last day.
    are_months: whether all dates are the first of a month.
    texts: number of rows with each text; None for more than 65,536 texts.
    bins: counts of the numbers or dates, if medians are needed.
    first: the first number, if each is one more than that of the row before; else NaN.
    are_codes: whether the type of the column is that of categories.
    """

    kind: Kind
    n_rows: int = 0
    n_values: int = 0
    n_unread: int = 0
    times: tuple[float, float] = (np.inf, -np.inf)
    days: tuple[float, float] = (np.inf, -np.inf)
    are_months: bool = True
    texts: Counter[str] | None = field(default_factory=Counter)
    bins: Bins | None = None
    first: float = np.nan
    are_codes: bool = False

    @classmethod
    def of(cls, kind: Kind, column: pa.Array, *, fills: bool) -> Self:
        """Return the statistics of texts or values of `value_of`."""
        given = column.drop_null()
        own = cls(kind=kind, n_rows=len(column), n_values=len(given))
        if kind == "category":
            texts, counts = given.value_counts().flatten()
            own.texts = Counter(dict(zip(texts.to_pylist(), counts.to_pylist(), strict=True)))
            return own
        values = given.to_numpy(zero_copy_only=False).astype(np.float64)
        values = values[~np.isnan(values)]
        own.n_values, values = len(values), values[np.isfinite(values)]
        own.n_unread = own.n_values - len(values)
        if fills:
            own.bins = Bins.of_values(values, np.ones((len(values), 1), dtype=np.int64))
        if len(values) == own.n_rows > 0 and (np.diff(values) == 1).all():
            own.first = float(values[0])
        if kind == "date" and len(values):
            days = np.floor(values)
            times = values - days
            own.times = (float(times.min()), float(times.max()))
            own.days = (float(days.min()), float(days.max()))
            dates = days.astype("datetime64[D]")
            own.are_months = bool((dates == dates.astype("datetime64[M]")).all())
        return own

    def add(self, other: Self) -> None:
        """Add the statistics of other rows."""
        if other.n_values and other.kind != self.kind:
            self.kind = "number" if self.n_values else other.kind
        if other.n_rows and other.first != self.first + self.n_rows:
            self.first = np.nan if self.n_rows else other.first
        self.n_rows += other.n_rows
        self.n_values += other.n_values
        self.n_unread += other.n_unread
        self.times = min(self.times[0], other.times[0]), max(self.times[1], other.times[1])
        self.days = min(self.days[0], other.days[0]), max(self.days[1], other.days[1])
        self.are_months &= other.are_months
        if self.texts is not None and other.texts is not None:
            self.texts.update(other.texts)
        if other.texts is None or len(self.texts or ()) > MOST_TEXTS:
            self.texts = None
        if self.bins is not None and other.bins is not None:
            self.bins += other.bins

    @property
    def has_weekdays(self) -> bool:
        """Whether the day of the week may matter: not that of months, nor of dates of birth."""
        return not self.are_months and self.days[1] - self.days[0] <= _MOST_DAYS

    @property
    def n_missing(self) -> int:
        """Number of rows without a value."""
        return self.n_rows - self.n_values


def values_of(table: Table, names: Iterable[str], given: Mapping[str, Kind]) -> Values:
    """Return what `survey` reads of columns, whose kinds are given or those of their types."""
    values: Values = {}
    for name in names:
        kind = given.get(name) or kind_of(table.found.get(name, table.types[name]))
        if kind is None or kind_of(table.types[name]) is None:
            raise DataError(
                f"Column {name!r} of {table.origin} has type {table.types[name]}, which is not a "
                "number, boolean, text, category or date.",
                "Leave the column out (`drop`), or convert it; in SQL, lists of one length with "
                f"{name}::FLOAT[LENGTH].",
            )
        sql = text_of(table, name) if kind == "category" else value_of(table, name, kind)
        values[name] = kind, sql
    return values


def survey(table: Table, values: Values, *, fills: bool) -> dict[str, Cells]:
    """Return statistics of the values of each column; `fills`: whether medians are needed."""
    bins = Bins.zeros(n_kinds=1) if fills else None
    types = {**table.types, **table.found}
    cells = {
        name: Cells(kind=kind, bins=bins, are_codes=types.get(name, "").startswith("ENUM"))
        for name, (kind, _) in values.items()
    }
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


def decide(
    cells: Mapping[str, Cells],
    options: ReadOptions,
    roles: Schema,
    origin: str,
    conversions: Conversions | None = None,
) -> tuple[Schema, Conversions | None]:
    """Return `roles` with columns decided by statistics, and how texts would become numbers.

    Choices that no option made are logged. conversions: None for rows that no query can convert.
    """
    columns, left_out, doubts = [], dict[str, str](), dict[str, str]()
    # DuckDB also numbers the columns of a query of a file without a header.
    numbered = options.sql is not None and all(map(NUMBERED.fullmatch, cells))
    no_header = numbered or bool(roles.written.get("no_header"))
    for name, own in cells.items():
        reason = _reason_against(name, own, options, no_header=no_header)
        is_given = name in options.kinds or own.are_codes
        doubt = None if is_given else doubt_about(name, own.texts or ())
        if doubt is not None:
            state = "read" if reason is None else "left out"
            logger.warning("%s is %s as text: %s", name, state, doubt.reason)
            doubts[name] = doubt.sql
        elif reason is not None:
            logger.info("%s", Advice(f"{name or repr(name)} is left out: {reason}"))
        if reason is not None:
            left_out[name] = reason
            continue
        columns.append(_decided(name, own, options))
        is_given |= name in named_columns(options.columns) or origin == "X"
        # 0 for whole numbers, NaN if they do not number the rows.
        if own.kind == "number" and own.first % 1 == 0 and own.n_rows >= _FEW_ROWS and not is_given:
            told = f"{name} is a feature, but it numbers the rows from {own.first:.0f} on. Pass "
            told += f"`id`={name!r} if it only names the rows, or `numeric`={name!r} to keep it."
            logger.warning("%s", Advice(told))
    if doubts:
        if conversions is not None:
            known = {name: sql for name, sql in doubts.items() if sql}
            conversions = replace(conversions, columns=known)
        logger.warning("%s", Advice(_converting(conversions, [*doubts])))
    if not columns:
        name, reason = next(iter(left_out.items()))
        raise DataError(f"{origin} has no feature: {name} is left out: {reason}", "Add columns.")
    ignored = (*roles.ignored, *left_out)
    schema = replace(roles, columns=tuple(columns), ignored=ignored, missing=options.missing)
    return schema, conversions


def _converting(conversions: Conversions | None, names: Sequence[str]) -> str:
    """Return advice about columns of texts that may be numbers or dates."""
    what = names[0] if len(names) == 1 else "such columns"
    if conversions is None:
        return (
            f"Convert {what} before, with pandas by str.replace and to_numeric, or by to_datetime "
            "with a format."
        )
    convert = ""
    if conversions.columns:
        convert = f"Convert {what} by {conversions.option}. "
    if len(conversions.columns) < len(names):
        convert += "Convert dates and times of other forms by try_strptime in a query. "
    return (
        f"{convert}Pass texts that mark missing values in `missing_values`, and names of columns "
        "of codes in `categorical`."
    )


def check_gaps(cells: Mapping[str, Cells], origin: str, remedy: str = GAP) -> None:
    """Raise DataError if any of the columns lacks a value in some rows."""
    gaps = {name: own.n_missing for name, own in cells.items() if own.n_missing}
    if gaps:
        counts = ", ".join(f"{name!r} {count}" for name, count in gaps.items())
        of = "a column" if len(gaps) == 1 else f"{len(gaps)} columns"
        raise DataError(f"{origin} has no value in some rows of {of}: {counts}.", remedy)


def _reason_against(
    name: str, cells: Cells, options: ReadOptions, *, no_header: bool
) -> str | None:
    """Return the reason why a column does not become a feature; None if it does."""
    if not cells.n_values:
        return "it has no value in any row."
    if _INDEX.fullmatch(name) and name not in named_columns(options.columns) and not no_header:
        return "its name is that of an index of pandas. Name it in `columns` to use it."
    if cells.kind != "category":
        return None
    if name in named_columns(options.categorical):
        if cells.texts is None:
            raise DataError(
                f"Column {name!r} has more than {MOST_TEXTS} different values.",
                f"Pass `drop`={joined_names([name])!r} to leave the column out, or write fewer "
                "categories.",
            )
        return None
    differ = cells.texts is None or len(cells.texts) > _IDS_DIFFER * cells.n_values
    if cells.n_rows < _FEW_ROWS or not differ:
        return None
    many = f"more than {MOST_TEXTS}" if cells.texts is None else f"{len(cells.texts)}"
    return (
        f"{many} different texts in {cells.n_values} rows look like ids or free text. Pass "
        f"`categorical`={joined_names([name])!r} to use them as a feature, `numeric` or `date` to "
        "convert them."
    )


def _decided(name: str, cells: Cells, options: ReadOptions) -> Column:
    """Return the schema's column."""
    imputes = options.missing == "impute"
    missing = cells.n_missing / cells.n_rows if imputes else 0.0
    if cells.kind != "category":
        bins = cells.bins
        # Exact for up to 16,384 different values.
        fill = median(bins) if bins is not None and len(bins.keys) else 0.0
        vary = cells.kind == "date" and cells.times[1] - cells.times[0] > _EQUAL_TIMES
        column = Column(name, cells.kind, fill=fill, missing=missing, times=vary)
        return replace(column, weekdays=cells.has_weekdays)
    texts = cells.texts or Counter()
    by_rows = sorted(texts, key=lambda text: (-texts[text], text))
    shown = tuple(sorted(by_rows[: options.max_categories]))
    others = len(shown) < len(by_rows)
    if others:
        told = f"{name} has {len(by_rows)} categories: the {len(shown)} most frequent have a "
        logger.info("%s", Advice(told + "feature each, all others share one (`max_categories`)."))
    return Column(name, "category", shown, others=others, missing=missing)
