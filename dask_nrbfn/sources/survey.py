"""Options for the columns of a table, and surveys of their cells, made in one pass."""

import copy
import heapq
import math
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.bins import Bins, median
from dask_nrbfn.numeric.hashing import splitmix
from dask_nrbfn.numeric.schema import Column, Kind, Schema
from dask_nrbfn.sources.cells import (
    encoded,
    is_text,
    kind_of,
    stored_values,
    texts_of,
    with_points,
)
from dask_nrbfn.sources.written import DIGITS, DateFormat

MISSING_VALUES = ("?", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "#N/A", "n/a", "<NA>")
"""Markers of a missing value in text, besides empty text."""

CellKind = Kind | Literal["text"]
"""Kind that cells are read as; "text" may turn out to be of any kind."""

MOST_TEXTS = 2**16
"""Largest number of different texts of a column that are counted, which takes some MiB."""

# Number of smallest hashes, and of sampled texts. The hashes estimate the number of distinct
# numbers to 1.6 %.
_MOST_HASHES = 2**12
# A column with at least `_FEW_ROWS` rows looks like an id if this share of its values differs.
_FEW_ROWS = 50
_TEXTS_OF_IDS, _NUMBERS_OF_IDS = 0.9, 0.95
# Times of day that differ by less than this share of a day, a tenth of a second, are equal.
_EQUAL_TIMES = 1e-6
# Patterns of numbers and dates in the standard notation.
_SHAPES: dict[Kind, str] = {
    "number": r"^[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][+-]?[0-9]+)?$",
    "date": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9:.]+(Z|[+-][0-9:]+)?)?$",
}
# Whole numbers that may be days.
_FIRST_DAY, _LAST_DAY = 19_000_101, 21_001_231
# The option that sets the kind of a column.
_OPTIONS_OF_KINDS: dict[Kind, str] = {
    "category": "categorical",
    "number": "numeric",
    "date": "date",
    "boolean": "boolean",
}

# Largest size of the stored sets of columns in which rows lack values.
_GAP_SETS_BYTES = 16 << 20
# Overhead of a stored set in Python.
_SET_BYTES = 150


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Options for the columns of a table.

    columns: columns that become features; empty: all without another role.
    drop: columns that are left out.
    id: column that names the rows; it is copied to predictions.
    categorical, numeric, date, boolean: columns of that kind, whatever their cells look like.
    date_format: formats of dates, as for strptime, or COLUMN=FORMAT for one column.
    missing: whether rows that lack a value are refused, filled or dropped.
    missing_values: markers of a missing value in text, besides empty cells.
    max_categories: number of the most frequent categories that get a feature each.
    """

    columns: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    id: str | None = None
    categorical: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    date: tuple[str, ...] = ()
    boolean: tuple[str, ...] = ()
    date_format: tuple[str, ...] = ()
    missing: str = "error"
    missing_values: tuple[str, ...] = MISSING_VALUES
    max_categories: int = 100

    def __post_init__(self) -> None:
        if self.missing not in ("error", "impute", "drop"):
            raise ParameterError(f"`missing` is {self.missing!r}.", "Give error, impute or drop.")
        if self.max_categories < 1:
            raise ParameterError(
                f"`max_categories` is {self.max_categories}.", "Give an integer of at least 1."
            )
        for text in self.formats.values():
            DateFormat.of(text)
        kept = {"columns": self.columns, "drop": self.drop}
        for groups in (kept, {"drop": self.drop, **self.kinds}):
            seen: dict[str, str] = {}
            for option, names in groups.items():
                for name in names:
                    if seen.setdefault(name, option) != option:
                        raise ParameterError(
                            f"`{seen[name]}` and `{option}` both name {name!r}.",
                            "Name each column in one option only.",
                        )

    @property
    def kinds(self) -> dict[str, tuple[str, ...]]:
        """The columns whose kind an option gives, by option."""
        return {option: getattr(self, option) for option in _OPTIONS_OF_KINDS.values()}

    @property
    def formats(self) -> dict[str | None, str]:
        """Formats of dates by column; the format of None applies to all other columns."""
        given = [text.rpartition("=") for text in self.date_format]
        return {name if sign else None: text for name, sign, text in given}

    def said_kind(self, name: str) -> Kind | None:
        """Return the kind that an option gives for a column, None if no option does."""
        if name in self.formats:
            return "date"
        said = (kind for kind, option in _OPTIONS_OF_KINDS.items() if name in self.kinds[option])
        return next(said, None)

    def beside(self, schema: Schema) -> Self:
        """Return the options to read a table whose schema is given."""
        for option in self.said:
            if option not in ("id", "missing_values"):
                raise ParameterError(
                    f"`{option}` and `schema` are both given.",
                    f"Leave `{option}` out, or leave `schema` out.",
                )
        marks = tuple(schema.written.get("missing_values", self.missing_values))
        return self if "missing_values" in self.said else replace(self, missing_values=marks)

    def like(self, schema: Schema) -> Self:
        """Return the options that set the columns and kinds of a schema."""
        of_kind: dict[str, Any] = {
            option: tuple(column.name for column in schema.columns if column.kind == kind)
            for kind, option in _OPTIONS_OF_KINDS.items()
        }
        dates = [column for column in schema.columns if column.kind == "date" and column.written]
        return replace(
            self,
            columns=tuple(column.name for column in schema.columns),
            missing=schema.missing,
            id=self.id or schema.id,
            date_format=tuple(f"{column.name}={column.written}" for column in dates),
            **of_kind,
        )

    @property
    def said(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            each.name: values[each.name]
            for each in fields(self)
            if values[each.name] != each.default
        }

    def kind(self, name: str, types: Iterable[pa.DataType]) -> CellKind | None:
        """Return the kind that a column is read as; None if no kind fits its types.

        Text is read as "text", whose values decide the kind, unless an option sets a category.
        """
        said, types = self.said_kind(name), [each for each in types if not pa.types.is_null(each)]
        if said in ("category", "boolean"):
            return said
        kinds = {kind_of(each) for each in types}
        if None in kinds:
            return None
        if kinds == {"number", "boolean"} or (said == "number" and kinds == {"boolean"}):
            kinds = {"number"}
        if kinds == {"category"} and said is None and not any(map(is_text, types)):
            return "category"
        one = kinds.pop() if len(kinds) == 1 else "category"
        return "text" if one == "category" or said not in (None, one) else one


class Roles(NamedTuple):
    """Names of the columns with labels, targets and weights, as in `Schema`."""

    label: str | None = None
    targets: tuple[str, ...] | None = None
    weights: str | None = None


class ColumnSurvey:
    """Statistics of the cells of one column; surveys of different rows can be added.

    n_rows, n_missing: number of rows, and of rows without a value.
    texts: number of rows with each text; if there are more than 65,536 texts, of 4,096 of them.
    overflows: whether there were more than 65,536 texts.
    bins: counts of the stored numbers, booleans or dates; empty unless it `fills`.
    are_whole, are_days: whether all numbers are whole, and days such as 20201231.
    kind: kind that its cells are read as; the kind of "text" is decided later from the values.
    fills: whether the median is needed: it takes up to 0.5 MiB for each column.
    decimal: decimal mark of numbers in text; empty if unknown.

    A survey does not depend on how rows are divided into parts. Counts and bins add. The smallest
    hashes of all rows are among the smallest hashes of each part (Bar-Yossef et al. 2002), and so
    are the texts with the smallest checksums.

    Examples
    --------
    >>> survey = ColumnSurvey("number")
    >>> _ = survey.add(pa.array([1, None, 3, 3]))
    >>> survey.n_rows, survey.n_missing, survey.n_different, survey.median
    (4, 1, 2, 3.0)
    """

    def __init__(self, kind: CellKind, *, fills: bool = True, decimal: str = ".") -> None:
        self.kind: CellKind = kind
        self.fills = fills
        self.decimal = decimal
        self.n_rows = self.n_missing = 0
        self.texts: dict[str, int] = {}
        self.overflows = False
        self.bins = Bins.of_sorts(1)
        self.are_whole = self.are_days = True
        self._times = (np.inf, -np.inf)
        self._hashes = np.zeros(0, dtype=np.uint64)

    def add(self, values: pa.Array) -> np.ndarray:
        """Add the cells of further rows, (b,) of any type that can be read as the kind.

        Which cells have no value.
        """
        if self.kind in ("category", "text"):
            codes, texts = encoded(values, as_written=self.kind == "text")
            counts = np.bincount(codes + 1, minlength=len(texts) + 1)
            self._add_counts(len(values), counts[0])
            self._add_texts(zip(texts.to_pylist(), counts[1:].tolist(), strict=True))
            return codes < 0
        stored = stored_values(values, self.column())
        self.add_numbers(stored)
        return np.isnan(stored)

    def column(self, name: str = "") -> Column:
        """Return the column of this kind, which is not text."""
        assert self.kind != "text"
        return Column(name, self.kind)

    def add_numbers(self, stored: np.ndarray) -> None:
        """Add stored values, float64 (b,), of further rows of a number, boolean or date."""
        numbers = stored[~np.isnan(stored)]
        self._add_counts(len(stored), len(stored) - len(numbers))
        if self.fills:
            self.bins += Bins.of_values(numbers, np.ones((len(numbers), 1), dtype=np.int64))
        self.are_whole = self.are_whole and bool((numbers == np.floor(numbers)).all())
        self.are_days = self.are_days and self.are_whole and _are_days(numbers)
        self._see_times(numbers)
        self._keep_hashes(numbers)

    def __add__(self, other: Self) -> Self:
        both = copy.copy(self)
        both.texts = dict(self.texts)
        both._add_counts(other.n_rows, other.n_missing)
        both.overflows = self.overflows or other.overflows
        both._add_texts(other.texts.items())
        both.bins = self.bins + other.bins
        both.are_whole = self.are_whole and other.are_whole
        both.are_days = self.are_days and other.are_days
        (first, last), (other_first, other_last) = self._times, other._times
        both._times = (min(first, other_first), max(last, other_last))
        both._hashes = both._least(other._hashes)
        return both

    def read_as(self, kind: Kind, written: str) -> Self:
        """Return a survey of the texts that can be read as a kind; other texts are left out.

        With more than 65,536 different texts, the median is estimated from 4,096 of them.
        """
        found = type(self)(kind, fills=self.fills, decimal=self.decimal)
        found._add_counts(self.n_rows, self.n_missing)
        if kind == "category":
            texts = pa.array(self.texts, pa.string())
            texts = texts_of(with_points(texts) if self.decimal == "," else texts)
            found.overflows = self.overflows
            found._add_texts(zip(texts.to_pylist(), self.texts.values(), strict=True))
            return found
        values = self._stored(kind, written)
        read = np.isfinite(values)
        counts = np.array([*self.texts.values()], dtype=np.int64)[read, None]
        if self.fills:
            found.bins += Bins.of_values(values[read], counts)
        # Numbers that an option declares, or that have a unit, are not ids.
        found.are_whole = found.are_days = False
        found._see_times(values[read])
        return found

    def sample(self) -> dict[str, int]:
        """Return the row counts of at most 4,096 texts, the same texts in any order of rows."""
        if len(self.texts) <= _MOST_HASHES:
            return self.texts
        kept = heapq.nsmallest(_MOST_HASHES, self.texts, key=lambda text: (_checksum(text), text))
        return {text: self.texts[text] for text in kept}

    def n_read(self, kind: Kind, written: str) -> int:
        """Return the number of rows whose text is of a kind."""
        read = np.isfinite(self._stored(kind, written))
        return int(np.array([*self.texts.values()])[read].sum())

    def unread(self, kind: Kind, written: str) -> list[str]:
        """Return the texts that are not of a kind, ascending."""
        bad = ~np.isfinite(self._stored(kind, written))
        return sorted(text for text, is_bad in zip(self.texts, bad, strict=True) if is_bad)

    def _stored(self, kind: Kind, written: str) -> np.ndarray:
        """Return the stored value of each text of a kind; infinity or NaN for other texts."""
        texts = pa.array(self.texts, pa.string())
        if self.decimal == "," and not written:
            texts = with_points(texts)
        if not written and kind in _SHAPES:
            # Texts of another shape would be read one by one.
            fits = pc.match_substring_regex(texts, _SHAPES[kind])
            texts = pc.if_else(fits, texts, pa.scalar(None, pa.string()))
        return stored_values(texts, Column("", kind, written=written), spoiled=True)

    @property
    def n_values(self) -> int:
        """Number of rows that have a value."""
        return self.n_rows - self.n_missing

    @property
    def n_different(self) -> int:
        """Number of different texts or whole numbers; an estimate if there are many numbers."""
        if self.kind in ("category", "text"):
            return MOST_TEXTS + 1 if self.overflows else len(self.texts)
        if len(self._hashes) < _MOST_HASHES:
            return len(self._hashes)
        return min(self.n_values, round((_MOST_HASHES - 1) * 2.0**64 / float(self._hashes[-1])))

    @property
    def median(self) -> float:
        """Median of one or more stored values, exact for up to 16,384 different values."""
        return median(self.bins)

    @property
    def times_vary(self) -> bool:
        """Whether the values are dates with different times of day."""
        first, last = self._times
        return last - first > _EQUAL_TIMES

    @property
    def looks_like_id(self) -> bool:
        """Whether nearly every row has a different text or whole number."""
        if self.overflows:
            return True
        share = {"category": _TEXTS_OF_IDS, "number": _NUMBERS_OF_IDS}.get(self.kind, np.inf)
        enough = self.n_values >= _FEW_ROWS and self.are_whole
        return enough and self.n_different >= share * self.n_values

    def counts_rows(self) -> bool:
        """Return whether the numbers are the row numbers, counted from 0 or from 1."""
        if self.kind != "number" or self.n_missing or not self.are_whole:
            return False
        for first in (0, 1):
            counted = type(self)("number", fills=False)
            for start in range(first, self.n_rows + first, MOST_TEXTS):
                stop = min(start + MOST_TEXTS, self.n_rows + first)
                counted.add_numbers(np.arange(start, stop, dtype=np.float64))
            if np.array_equal(counted._hashes, self._hashes):
                return True
        return False

    def _add_counts(self, n_rows: int, n_missing: int) -> None:
        self.n_rows += n_rows
        self.n_missing += int(n_missing)

    def _add_texts(self, counts: Iterable[tuple[str | None, int]]) -> None:
        bounded = self.overflows and len(self.texts) >= _MOST_HASHES
        last = max(map(_checksum, self.texts)) if bounded else math.inf
        for text, count in counts:
            if count and text is not None and (not bounded or _checksum(text) <= last):
                self.texts[text] = self.texts.get(text, 0) + count
        if self.overflows or len(self.texts) > MOST_TEXTS:
            self.overflows = True
            self.texts = self.sample()

    def _see_times(self, days: np.ndarray) -> None:
        """Keep the first and the last time of day, as a share of it, of dates."""
        if self.kind == "date" and len(days):
            first, last = self._times
            times = days - np.floor(days)
            self._times = (min(first, float(times.min())), max(last, float(times.max())))

    def _keep_hashes(self, numbers: np.ndarray) -> None:
        if self.kind == "number" and self.are_whole:
            hashes = splitmix((numbers + 0.0).view(np.uint64))
        else:
            hashes = self._hashes[:0]
        self._hashes = self._least(hashes)

    def _least(self, hashes: np.ndarray) -> np.ndarray:
        """Return the smallest of the held and the other hashes; only whole numbers have hashes."""
        if not self.are_whole:
            return hashes[:0]
        if len(self._hashes) == _MOST_HASHES:
            hashes = hashes[hashes < self._hashes[-1]]
        if not len(hashes):
            return self._hashes
        return np.unique(np.append(self._hashes, hashes))[:_MOST_HASHES]


class GapSets:
    """Counts of rows that lack values in the same columns.

    are_all: whether all sets of columns are held; they are dropped if they take more than 16 MiB.

    Examples
    --------
    >>> gap_sets = GapSets()
    >>> gap_sets.add({"a": np.array([True, False, True]), "b": np.array([False, False, True])})
    >>> gap_sets.among(["a", "b"]), gap_sets.among(["b"])
    ((2, {'a': 2, 'b': 1}), (1, {'b': 1}))
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._sets: Counter[bytes] = Counter()
        self.are_all = True

    def add(self, lacking: Mapping[str, np.ndarray]) -> None:
        """Add rows: which of them, bool (b,), lack a value in each column."""
        self._names = tuple(lacking)
        none = np.stack([*lacking.values()], axis=1)
        if self.are_all:
            packed = np.packbits(none[none.any(axis=1)], axis=1)
            self._sets.update(row.tobytes() for row in packed)
            self.are_all = len(self._sets) * (packed.shape[1] + _SET_BYTES) <= _GAP_SETS_BYTES
            if not self.are_all:
                self._sets.clear()

    def among(self, names: Collection[str]) -> tuple[int, dict[str, int]]:
        """Return how many rows lack a value in some columns, and how many in each of them."""
        packed = np.frombuffer(b"".join(self._sets), np.uint8)
        packed = packed.reshape(len(self._sets), (len(self._names) + 7) // 8)
        kept = [place for place, name in enumerate(self._names) if name in names]
        none = np.unpackbits(packed, axis=1, count=len(self._names))[:, kept].astype(bool)
        counts = np.fromiter(self._sets.values(), np.int64, len(self._sets))
        lacking = dict(zip((self._names[place] for place in kept), counts @ none, strict=True))
        return int(counts[none.any(axis=1)].sum()), {name: int(n) for name, n in lacking.items()}


def _checksum(text: str) -> int:
    return zlib.crc32(text.encode())


def _are_days(numbers: np.ndarray) -> bool:
    """Return whether whole numbers are days such as 20201231."""
    if not len(numbers):
        return True
    if numbers.min() < _FIRST_DAY or numbers.max() > _LAST_DAY:
        return False
    texts = pa.array(np.unique(numbers).astype(np.int64)).cast(pa.string())
    return not np.isnan(DateFormat.of(DIGITS).read(texts)).any()
