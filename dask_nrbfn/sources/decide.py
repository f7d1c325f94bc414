"""The decision of what each column of a table becomes, made from its cells."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from types import MappingProxyType
from typing import NamedTuple, Self

from dask_nrbfn.errors import DataError, plural
from dask_nrbfn.numeric.schema import Column, Kind, Schema
from dask_nrbfn.sources.cells import numbers_of
from dask_nrbfn.sources.survey import MOST_TEXTS, ColumnSurvey, Roles, TableOptions
from dask_nrbfn.sources.written import (
    DIGITS,
    MOST,
    Reading,
    date_reading,
    is_told,
    number_reading,
)

# Name of an index column that pandas wrote to a file: empty, or as pandas names it when reading.
_INDEX = re.compile(r"(Unnamed: 0(\.\d+)*)?")


class Remedies(NamedTuple):
    """Remedies: {0} is a column, {1} an option or date format, {2} a text in the column."""

    gap: str
    label_gap: str
    text_id: str
    number_id: str
    misspelt: str
    others: str
    dates: str
    units: str
    marks: str = ""


# What empty cells are in CSV, as part of errors and lines.
_MARKS = (
    "In CSV, texts such as NA and None mark a missing value; pass `missing_values`='' if they are "
    "values."
)

FOR_FILES = Remedies(
    "Pass `missing`='impute' to fill in missing values, or `missing`='drop' to leave out every row "
    f"that lacks a value. {_MARKS}",
    "Pass `unlabelled`='' to keep rows without a label ('nan' for numeric targets), and "
    "`missing`='impute' to fill in features. Or pass `missing`='drop' to leave out every row that "
    "lacks any value.",
    "Pass `id`={0!r} to use the column as an id, or `categorical`={0!r} to use it as a feature.",
    "pass `drop`={0!r} to leave the column out, or `id`={0!r} to use it as an id.",
    "If {2!r} is a mistake, pass `{1}`={0!r} for an error that names its row; if {2!r} marks a "
    "missing value, pass it in `missing_values`.",
    " (`max_categories`)",
    "pass `date_format`='{0}={1}'",
    "Write all numbers in one unit, or pass `drop`={0!r} to leave the column out.",
    _MARKS,
)
FOR_FRAMES = Remedies(
    "Fill in missing values, as networks do with `missing`='impute', or leave out rows that lack a "
    "value.",
    "Fill in missing values, or leave out rows that lack a value.",
    "Convert the column to numbers to use it as a feature.",
    "leave the column out if it is an id.",
    "If {2!r} is a mistake, correct it or make it missing, and convert the column to numbers or "
    "dates.",
    "",
    "convert the column to dates with pandas.to_datetime and format={1!r}",
    "Write all numbers in one unit, or leave the column out.",
)


class Decision(NamedTuple):
    """The schema of a table.

    lines: log lines about choices that no option made.
    unread: columns with cells that cannot be read.
    """

    schema: Schema
    lines: tuple[str, ...]
    unread: tuple[Column, ...] = ()


def decide(
    surveys: Mapping[str, ColumnSurvey],
    roles: Roles,
    options: TableOptions,
    *,
    ignored: tuple[str, ...] = (),
    gap: Callable[[str], str] | None = None,
    label_gaps: Mapping[str, int] = MappingProxyType({}),
    remedies: Remedies = FOR_FILES,
    origin: object = "the table",
) -> Decision:
    """Return the schema of a table, with lines about choices that no option made.

    surveys: survey of each column that may become a feature, by name and in order.
    ignored: further columns that the table has.
    gap: returns where a column first lacks a value, such as "of rows.csv has no value in line 3".
    label_gaps: number of rows without a value in the label or target columns, by name.
    remedies: for the errors and lines.
    origin: name of the table, for errors.

    Examples
    --------
    >>> import pyarrow
    >>> survey = ColumnSurvey("text")
    >>> _ = survey.add(pyarrow.array(["12 kg", "7 kg"]))
    >>> decide({"mass": survey}, Roles("y"), TableOptions()).lines
    ('mass: numbers written as 1234.5 kg',)
    """
    lines, columns, left_out, unread = [], [], [], []
    gaps: dict[str, int] = {}
    for name, given in surveys.items():
        found = _Candidate(name, given, options, remedies).recognized()
        reason = found.reason_against()
        if reason:
            lines += [f"{name or repr(name)} is left out: {reason}", *found.lines]
            left_out.append(name)
            continue
        if name == "":
            raise unnamed_error(origin, 0)
        if found.survey.n_missing and options.missing == "error":
            gaps[name] = found.survey.n_missing
            continue
        column, further = found.decided()
        columns.append(column)
        lines += [*found.lines, *further]
        if given.kind == "text" and column.kind != "category":
            unread += [column] * bool(given.unread(column.kind, found.written))
    if gaps:
        advice = remedies.label_gap if label_gaps else remedies.gap
        raise _gaps_error({**label_gaps, **gaps}, gap, advice, origin)
    schema = Schema(
        tuple(columns),
        **roles._asdict(),
        id=options.id,
        ignored=(*ignored, *left_out),
        missing=options.missing,
    )
    return Decision(schema, tuple(lines), tuple(unread))


def unnamed_error(origin: object, place: int) -> DataError:
    """Return the error about a column without a name."""
    return DataError(
        f"Column {place + 1} of {origin} has no name.",
        "Name the column if it is a feature, or remove the column if it is an index.",
    )


def _gaps_error(
    gaps: Mapping[str, int], gap: Callable[[str], str] | None, remedy: str, origin: object
) -> DataError:
    """Return the error about columns in which some rows have no value."""
    if len(gaps) > 1:
        counts = ", ".join(f"{name!r} {count}" for name, count in gaps.items())
        return DataError(
            f"{origin} has no value in some rows of {len(gaps)} columns: {counts}.", remedy
        )
    ((name, count),) = gaps.items()
    if gap is None:
        return DataError(f"Column {name!r} has no value in {count} of its rows.", remedy)
    further = f" and {plural(count - 1, 'further row')}" * (count > 1)
    return DataError(f"Column {name!r} {gap(name)}{further}.", remedy)


def gap_error(problem: str, *, decided: bool = False) -> DataError:
    """Return the error about a row without a value where there must be one."""
    remedy = "Fill in the cell, or leave the row out, as `skip_bad` does."
    return DataError(problem, remedy if decided else FOR_FILES.gap)


@dataclass(frozen=True)
class _Candidate:
    """A column that may become a feature.

    survey: its cells.
    written: how its texts are written, as in `Column`; empty: the usual way, or not known yet.
    lines: messages about the column.
    """

    name: str
    survey: ColumnSurvey
    options: TableOptions
    remedies: Remedies
    written: str = ""
    lines: tuple[str, ...] = ()

    def recognized(self) -> Self:
        """Return the column with its texts read as their kind; other columns are unchanged."""
        if self.survey.kind != "text":
            return self
        said = self.options.said_kind(self.name)
        if said is None and self.survey.texts:
            return self._recognized_texts()
        written = ""
        if said == "number":
            (written,) = self._numbers()[0].written
        elif said == "date":
            formats = self.options.formats
            written = formats.get(self.name, formats.get(None, "")) or self._date_format()
        return self._read_as(said or "category", written)

    def _date_format(self) -> str:
        """Return the format of a requested date column; raise DataError if it is ambiguous."""
        reading = date_reading(self.survey.texts)
        if reading.n_read <= self.survey.n_read("date", ""):
            return ""
        if reading.is_open:
            problem, remedy = self._open_days(reading.written)
            raise DataError(f"Column {self.name!r} {problem}.", f"{remedy[0].upper()}{remedy[1:]}.")
        return reading.written[0]

    def _open_days(self, formats: Sequence[str]) -> tuple[str, str]:
        """Return the message about dates with an ambiguous order of day and month."""
        ways = " or ".join(self.remedies.dates.format(self.name, each) for each in formats[:2])
        unread = {text for each in formats[:2] for text in self.survey.unread("date", each)}
        shown = min(self.survey.texts.keys() - unread, default=min(self.survey.texts))
        return f"has an ambiguous order of day and month, for example {shown!r}", ways

    def _recognized_texts(self) -> Self:
        """Return the column read as the kind of most of its texts, if no option sets the kind."""
        survey, name = self.survey, self.name
        n_texts = sum(survey.texts.values())
        general = self.options.formats.get(None)
        if general and survey.n_read("date", general) >= MOST * n_texts:
            return self._read_as("date", general)
        numbers, units = self._numbers()
        if line := self._open_decimals(by_points=numbers.n_read >= MOST * n_texts):
            return self._as_category(line)
        if numbers.written != ("",) and numbers.n_read >= MOST * n_texts:
            return self._read_as("number", numbers.written[0])
        dates = date_reading(survey.texts)
        if (n_iso := survey.n_read("date", "")) > dates.n_read:
            dates = Reading(("",), n_iso)
        if dates.n_read == n_texts and is_told(dates, [*survey.texts]):
            return self._read_as("date", dates.written[0])
        if units:
            shown = ", ".join(map(repr, units))
            line = f"{name} has numbers of several units, {shown}, and is read as text. "
            line += self.remedies.units.format(name)
        elif dates.n_read == n_texts and dates.is_open:
            line = "{} {}; {}.".format(name, *self._open_days(dates.written))
        elif dates.n_read == n_texts:
            way = self.remedies.dates.format(name, dates.written[0])
            line = f"{name} looks like a date, such as {min(survey.texts)!r}; {way}."
        elif dates.n_read > numbers.n_read:
            line = self._nearly("date", dates)
        else:
            line = self._nearly("number", numbers)
        return self._as_category(line)

    def _open_decimals(self, *, by_points: bool) -> str:
        """Return the message about numbers whose decimal mark is unknown and may be a comma."""
        if self.survey.decimal:
            return ""
        texts = self.survey.sample()
        commas, _ = number_reading(texts, ",")
        shown = min((text for text in texts if {".", ","} & {*text}), default="")
        if not shown or commas.n_read < MOST * sum(texts.values()):
            return ""
        line = f"{self.name} has numbers such as {shown!r} and is read as text. Pass `decimal`=','"
        if not by_points:
            return f"{line} if the numbers have decimal commas."
        return (
            f"{line} if points separate thousands, or `numeric`={self.name!r} if points precede "
            "decimals."
        )

    def _numbers(self) -> tuple[Reading, tuple[str, ...]]:
        """Return the form of numbers, from a sample, with their count, and the units."""
        reading, units = number_reading(self.survey.sample(), self.survey.decimal)
        return reading._replace(n_read=self.survey.n_read("number", reading.written[0])), units

    def _read_as(self, kind: Kind, written: str) -> Self:
        """Return the column with its texts read as a kind, and a message about an unusual form."""
        line = f"{self.name}: {kind}s written as {written}"
        survey = self.survey.read_as(kind, written)
        return replace(self, survey=survey, written=written, lines=(line,) * bool(written))

    def _as_category(self, line: str) -> Self:
        return replace(self, survey=self.survey.read_as("category", ""), lines=(line,) * bool(line))

    def _nearly(self, kind: Kind, reading: Reading) -> str:
        """Return the message about text that is mostly of another kind, with a possible typo."""
        survey = self.survey
        if survey.overflows or reading.n_read <= survey.n_values / 2:
            return ""
        others = survey.unread(kind, reading.written[0])
        if not others:
            return ""
        way = f" written as {reading.written[0]}" * bool(reading.written[0])
        option = "numeric" if kind == "number" else "date"
        mend = self.remedies.misspelt.format(self.name, option, others[0])
        return (
            f"{self.name} is read as text: {reading.n_read} of {survey.n_values} values are "
            f"{kind}s{way}, but {others[0]!r} is not. {mend}"
        )

    def reason_against(self) -> str | None:
        """Return the reason why the column does not become a feature; None if it does."""
        name, survey = self.name, self.survey
        if not survey.n_values:
            return "it has no value in any row."
        if _INDEX.fullmatch(name) and name not in self.options.columns and survey.counts_rows():
            return "it counts the rows, as an index of pandas does."
        if survey.kind != "category":
            return None
        asked = name in self.options.categorical
        if asked and survey.overflows:
            raise DataError(
                f"Column {name!r} has more than {MOST_TEXTS} different values.",
                f"Pass `drop`={name!r} to leave the column out, or write fewer categories.",
            )
        if asked or not survey.looks_like_id:
            return None
        many = "more than " * survey.overflows + str(min(survey.n_different, MOST_TEXTS))
        return (
            f"{many} different texts in {survey.n_values} rows look like ids or free text. "
            f"{self.remedies.text_id.format(name)}"
        )

    def decided(self) -> tuple[Column, list[str]]:
        """Return the schema's column, and further messages about it."""
        name, survey, options = self.name, self.survey, self.options
        imputes = options.missing == "impute"
        missing = survey.n_missing / survey.n_rows if imputes else 0.0
        if survey.kind != "category":
            fill = survey.median if imputes and len(survey.bins.keys) else 0.0
            column = replace(survey.column(name), fill=fill, missing=missing, written=self.written)
            column = replace(column, times=survey.times_vary)
            return column, self._about_numbers()
        texts, lines = _by_value(name, survey.texts)
        by_rows = sorted(texts.items(), key=lambda each: (-each[1], each[0]))
        if missing > 0.5 and self.remedies.marks:
            lines.append(f"{name} is missing in {missing:.0%} of the rows. {self.remedies.marks}")
        shown = tuple(sorted(text for text, _ in by_rows[: options.max_categories]))
        others = len(shown) < len(by_rows)
        if others:
            lines.append(
                f"{name} has {survey.n_different} categories: the {len(shown)} most frequent have "
                f"a feature each, all others share one feature{self.remedies.others}."
            )
        return Column(name, "category", shown, others=others, missing=missing), lines

    def _about_numbers(self) -> list[str]:
        """Return the messages about numbers that may be days or an id."""
        name, survey = self.name, self.survey
        if survey.kind != "number" or name in self.options.numeric:
            return []
        if survey.are_days:
            way = self.remedies.dates.format(name, DIGITS)
            return [
                f"{name} looks like a date: its numbers are days such as 20201231. The column is "
                f"used as a number; {way}."
            ]
        if survey.looks_like_id:
            return [
                f"{name} looks like an id: {survey.n_different} different whole numbers in "
                f"{survey.n_values} rows. The column is used as a number; "
                f"{self.remedies.number_id.format(name)}"
            ]
        return []


def _by_value(name: str, texts: Mapping[str, int]) -> tuple[Mapping[str, int], list[str]]:
    """Return the number of rows of each category; equal numbers are one, with the shortest text."""
    numbers = numbers_of(texts)
    if numbers is None or len({*numbers}) == len(texts):
        return texts, []
    alike: dict[Decimal, list[str]] = {}
    for text, number in zip(texts, numbers, strict=True):
        alike.setdefault(number, []).append(text)
    spelt = [sorted(each, key=lambda text: (len(text), text)) for each in alike.values()]
    first = min(each for each in spelt if len(each) > 1)
    line = f"{name}: {first[1]!r} and {first[0]!r} are equal numbers, so they are one category."
    return {each[0]: sum(texts[text] for text in each) for each in spelt}, [line]
