"""What each column of a table becomes, by what its cells are."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from types import MappingProxyType
from typing import NamedTuple

from dask_nrbfn.errors import DataError
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

# What pandas calls an index that it wrote to a file and reads as a column, or a header does.
_INDEX = re.compile(r"(Unnamed: 0(\.\d+)*)?")


class Remedies(NamedTuple):
    """What may be done about gaps, and about a column, whose name stands for {0}."""

    gap: str
    label_gap: str
    text_id: str
    number_id: str
    misspelt: str
    others: str
    dates: str
    units: str


FOR_FILES = Remedies(
    "Say `missing`='impute' to fill such cells in, `missing`='drop' to leave their rows out; or "
    "fill them in.",
    "Say `missing`='drop' to leave such rows out; or `missing`='impute' to fill features in, with "
    "`unlabelled`='' to keep rows without a label, 'nan' for numbers.",
    "Carry it along with `id`={0!r}, or take it with `categorical`={0!r}.",
    "leave it out with `drop`={0!r}, or carry it along with `id`={0!r}.",
    "`{1}`={0!r} says where it is; if it stands for no value, say so with `missing_values`.",
    " (`max_categories`)",
    "say `date_format`='{0}={1}'",
    "Write one unit, or leave the column out with `drop`={0!r}.",
)
FOR_FRAMES = Remedies(
    "Fill such cells in, as networks do with `missing`='impute', or leave their rows out.",
    "Fill such cells in, or leave their rows out.",
    "To take it, make numbers of it.",
    "leave it out if it is one.",
    "make it a number or a date, or none, and the column one of numbers or dates.",
    "",
    "make it a column of dates, as pandas.to_datetime does with format={1!r}",
    "Write one unit, or leave the column out.",
)


class Decision(NamedTuple):
    """What the columns of a table are.

    Attributes
    ----------
    schema : Schema
    lines : tuple of str
        What was decided without being asked.
    unread : tuple of Column
        Those that have cells which cannot be read.
    """

    schema: Schema
    lines: tuple[str, ...]
    unread: tuple[Column, ...] = ()


class _Found(NamedTuple):
    """A column whose texts were looked at: its cells, how they are written, and what is said."""

    survey: ColumnSurvey
    written: str = ""
    lines: tuple[str, ...] = ()


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
    """Return what each column is.

    Parameters
    ----------
    surveys : mapping
        Of the columns that may become features, by name, in their order.
    roles : Roles
    options : TableOptions
    ignored : tuple of str
        Further columns that the table has.
    gap : callable, optional
        Returns what is said of the first gap of a column, such as "of rows.csv has no value in
        line 3".
    label_gaps : mapping
        How many rows have no value in the columns of labels and targets, by name.
    remedies : Remedies
        What can be done about what is said.
    origin : object
        What the table is called.

    Raises
    ------
    DataError
        If rows have no value and `missing` is "error", a category that was asked for has too many
        values, or dates that were asked for may be read in two ways.

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
        survey, written, found_lines = _found(name, given, options, remedies)
        reason = _reason_against(name, survey, options, remedies)
        if reason:
            lines += [f"{name or repr(name)} is left out: {reason}", *found_lines]
            left_out.append(name)
            continue
        if name == "":
            raise unnamed_error(origin, 0)
        if survey.n_missing and options.missing == "error":
            gaps[name] = survey.n_missing
            continue
        column, further = _decided(name, survey, options, written)
        columns.append(column)
        lines += [*found_lines, *further, *_remarks(column, survey, options, remedies)]
        if given.kind == "text" and column.kind != "category":
            unread += [column] * bool(given.unread(column.kind, written))
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
    """Return the error about a column without a name, the first being at 0."""
    return DataError(
        f"Column {place + 1} of {origin} has no name.",
        "Name it if it is a feature; leave it out if it is an index.",
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
    further = f" and {count - 1} further rows" * (count > 1)
    return DataError(f"Column {name!r} {gap(name)}{further}.", remedy)


def gap_error(problem: str, *, decided: bool = False) -> DataError:
    """Return the error about a row without a value where there must be one.

    What becomes of gaps may have been decided before.
    """
    if decided:
        return DataError(problem, "Fill it in, or leave the row out, as `skip_bad` does.")
    return DataError(problem, FOR_FILES.gap)


def _found(name: str, survey: ColumnSurvey, options: TableOptions, remedies: Remedies) -> _Found:
    """Return what the texts of a column are; a column of another kind as it is."""
    if survey.kind != "text":
        return _Found(survey)
    said = options.said_kind(name)
    if said is None and survey.texts:
        return _recognized(name, survey, options, remedies)
    kind = said or "category"
    written = options.formats.get(name, options.formats.get(None, "")) if kind == "date" else ""
    if kind == "number":
        (written,) = _numbers(survey)[0].written
    elif kind == "date" and not written:
        written = _date_format(name, survey, remedies)
    return _read_as(name, survey, kind, written)


def _date_format(name: str, survey: ColumnSurvey, remedies: Remedies) -> str:
    """Return how dates are written that were asked for; raise DataError where that is open."""
    reading = date_reading(survey.texts)
    if reading.n_read <= survey.n_read("date", ""):
        return ""
    if reading.is_open:
        problem, remedy = _open_days(name, survey, reading.written, remedies)
        raise DataError(f"Column {name!r} {problem}.", f"{remedy[0].upper()}{remedy[1:]}.")
    return reading.written[0]


def _open_days(
    name: str, survey: ColumnSurvey, formats: Sequence[str], remedies: Remedies
) -> tuple[str, str]:
    """Return what is said of dates of which the day or the month may be first."""
    ways = " or ".join(remedies.dates.format(name, each) for each in formats[:2])
    return f"looks like a date: {min(survey.texts)!r} may be day first or month first", ways


def _recognized(
    name: str, survey: ColumnSurvey, options: TableOptions, remedies: Remedies
) -> _Found:
    """Return what texts are of which nothing is said."""
    n_texts = sum(survey.texts.values())
    general = options.formats.get(None)
    if general and survey.n_read("date", general) >= MOST * n_texts:
        return _read_as(name, survey, "date", general)
    numbers, units = _numbers(survey)
    if line := _open_decimals(name, survey, numbers.n_read >= MOST * n_texts):
        return _Found(survey.read_as("category", ""), "", (line,))
    if numbers.written != ("",) and numbers.n_read >= MOST * n_texts:
        return _read_as(name, survey, "number", numbers.written[0])
    dates = date_reading(survey.texts)
    if (n_iso := survey.n_read("date", "")) > dates.n_read:
        dates = Reading(("",), n_iso)
    if dates.n_read == n_texts and is_told(dates, [*survey.texts]):
        return _read_as(name, survey, "date", dates.written[0])
    line = ""
    if units:
        shown = ", ".join(map(repr, units))
        line = f"{name} has numbers of several units, {shown}, and is text. "
        line += remedies.units.format(name)
    elif dates.n_read == n_texts and dates.is_open:
        line = "{} {}; {}.".format(name, *_open_days(name, survey, dates.written, remedies))
    elif dates.n_read == n_texts:
        way = remedies.dates.format(name, dates.written[0])
        line = f"{name} looks like a date, such as {min(survey.texts)!r}; {way}."
    elif dates.n_read > numbers.n_read:
        line = _nearly(name, survey, "date", dates, remedies)
    else:
        line = _nearly(name, survey, "number", numbers, remedies)
    return _Found(survey.read_as("category", ""), "", (line,) * bool(line))


def _open_decimals(name: str, survey: ColumnSurvey, by_points: bool) -> str:
    """Return what is said of numbers whose decimals may stand behind a comma, if nobody knows."""
    if survey.decimal:
        return ""
    texts = survey.sample()
    commas, _ = number_reading(texts, ",")
    shown = min((text for text in texts if {".", ","} & {*text}), default="")
    if not shown or commas.n_read < MOST * sum(texts.values()):
        return ""
    line = f"{name} has numbers such as {shown!r} and is text. Say `decimal`=, if "
    if not by_points:
        return line + "they have decimal commas."
    return f"{line}points stand between thousands, or `numeric`={name!r} if before decimals."


def _numbers(survey: ColumnSurvey) -> tuple[Reading, tuple[str, ...]]:
    """Return how numbers are written, by some texts, and how many rows of all are; and units."""
    reading, units = number_reading(survey.sample(), survey.decimal)
    return reading._replace(n_read=survey.n_read("number", reading.written[0])), units


def _read_as(name: str, survey: ColumnSurvey, kind: Kind, written: str) -> _Found:
    """Return a column as what its texts are read as, which is said if it is no usual way."""
    line = f"{name}: {kind}s written as {written}"
    return _Found(survey.read_as(kind, written), written, (line,) * bool(written))


def _nearly(
    name: str, survey: ColumnSurvey, kind: Kind, reading: Reading, remedies: Remedies
) -> str:
    """Return what is said of text most of which is of another kind: a cell may be misspelt."""
    if survey.overflows or reading.n_read <= survey.n_values / 2:
        return ""
    others = survey.unread(kind, reading.written[0])
    if not others:
        return ""
    way = f" written as {reading.written[0]}" * bool(reading.written[0])
    mend = remedies.misspelt.format(name, "numeric" if kind == "number" else "date")
    return (
        f"{name} is text, though {reading.n_read} of {survey.n_values} values are {kind}s{way}, "
        f"but {others[0]!r} is none. If that is a mistake, {mend}"
    )


def _reason_against(
    name: str, survey: ColumnSurvey, options: TableOptions, remedies: Remedies
) -> str | None:
    """Return why a column is no feature, if so."""
    if not survey.n_values:
        return "it has no value in any row."
    if _INDEX.fullmatch(name) and name not in options.columns and survey.counts_rows():
        return "it counts the rows, as an index of pandas does."
    if survey.kind != "category":
        return None
    asked = name in options.categorical
    if asked and survey.overflows:
        raise DataError(
            f"Column {name!r} has more than {MOST_TEXTS} values.",
            f"Leave it out with `drop`={name!r}, or write fewer categories.",
        )
    if asked or not survey.looks_like_id:
        return None
    many = "more than " * survey.overflows + str(min(survey.n_different, MOST_TEXTS))
    return (
        f"{many} texts in {survey.n_values} rows look like an id or free text. "
        f"{remedies.text_id.format(name)}"
    )


def _decided(
    name: str, survey: ColumnSurvey, options: TableOptions, written: str
) -> tuple[Column, list[str]]:
    """Return what a column is, and what is said of its categories."""
    imputes = options.missing == "impute"
    missing = survey.n_missing / survey.n_rows if imputes else 0.0
    if survey.kind != "category":
        fill = survey.median if imputes and len(survey.bins.keys) else 0.0
        return replace(survey.column(name), fill=fill, missing=missing, written=written), []
    texts, lines = _by_value(name, survey.texts)
    by_rows = sorted(texts.items(), key=lambda each: (-each[1], each[0]))
    shown = [text for text, _ in by_rows[: options.max_categories]]
    others = len(shown) < len(by_rows)
    return Column(name, "category", tuple(sorted(shown)), others=others, missing=missing), lines


def _by_value(name: str, texts: Mapping[str, int]) -> tuple[Mapping[str, int], list[str]]:
    """Return the rows of each category, those of equal numbers under the shortest text of them."""
    numbers = numbers_of(texts)
    if numbers is None or len({*numbers}) == len(texts):
        return texts, []
    alike: dict[Decimal, list[str]] = {}
    for text, number in zip(texts, numbers, strict=True):
        alike.setdefault(number, []).append(text)
    spelt = [sorted(each, key=lambda text: (len(text), text)) for each in alike.values()]
    first = min(each for each in spelt if len(each) > 1)
    line = f"{name} has {first[1]!r} and {first[0]!r}, which are one category: their number is one."
    return {each[0]: sum(texts[text] for text in each) for each in spelt}, [line]


def _remarks(
    column: Column, survey: ColumnSurvey, options: TableOptions, remedies: Remedies
) -> list[str]:
    name, lines = column.name, []
    if column.others:
        lines.append(
            f"{name} has {survey.n_different} categories: the {len(column.categories)} most "
            f"frequent have a feature each, the others one together{remedies.others}."
        )
    if column.kind != "number" or name in options.numeric:
        return lines
    if survey.are_days:
        way = remedies.dates.format(name, DIGITS)
        lines.append(
            f"{name} looks like a date: its numbers are days such as 20201231. It is taken as a "
            f"number; {way}."
        )
    elif survey.looks_like_id:
        lines.append(
            f"{name} looks like an id: {survey.n_different} different whole numbers in "
            f"{survey.n_values} rows. It is taken as a number; {remedies.number_id.format(name)}"
        )
    return lines
