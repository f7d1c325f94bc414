"""Queries that make numbers and dates of texts, and that leave out rows without a value."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple, Self

from dask_nrbfn.sources.relation import quoted
from dask_nrbfn.sources.text import literal

# Texts like numbers and dates: most of their characters are digits and marks among them.
_FORM = re.compile(
    r"[-+]?\s?[$€£¥]?\s?-?\d([\d.,/:\s'-]*[\d.,])?(\s?[%$€£¥+]|(?P<unit>\s?[a-zA-Z]{1,3}))?"
)
# Marks between the parts of dates, times and ranges.
_PARTS = re.compile(r"[/:]|\d\s?-")
# Forms of dates that DuckDB takes for texts, or for texts if words are among them.
_DATES = ["%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y"]
_DATES += ["%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M"]
_DATES += ["%m/%Y", "%Y/%m", "%m-%Y", "%Y-%m", "%m.%Y"]
_YEARS = range(1800, 2101)
# Letters after numbers are units if they are few, else codes.
_MOST_UNITS = 3
# Texts that decide the form of a column, and the most texts of a column of categories that has
# neither numbers nor dates, such as 2/3 or 18-25.
_MOST_TEXTS, _FEW_TEXTS = 1000, 100
# A comma that is not between thousands, and points between thousands.
_DECIMAL_COMMA = re.compile(r"\b0,|,\d{0,2}(?![\d,])|,\d{4}|\.\d{3},")
_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(\.\d{3})+(?![\d.,])")
# Numbers that lose their exponent with their letters.
_EXPONENT = re.compile(r"\d[eE][+-]?\d")


class Doubt(NamedTuple):
    """Why a column of texts may have numbers or dates, and the SQL of these; "" if unknown."""

    reason: str
    sql: str


@dataclass(frozen=True)
class Conversions:
    """The SQL that converts columns, by name; query: that of the given rows, if any."""

    query: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)

    def having(self, name: str, unread: Sequence[str], others: Sequence[str]) -> Self | None:
        """Return also the conversion of a column of numbers; None if unread texts are none."""
        texts = _formed([*unread, *others])
        mark, numbers = _numbers_of(texts)
        if 2 * len(numbers) <= len(texts) or numbers.keys().isdisjoint(unread):
            return None
        sql = _number_sql(name, mark, others)
        return replace(self, columns={**self.columns, name: sql})

    @property
    def option(self) -> str:
        """The option whose query converts the columns."""
        changed = ", ".join(f"{sql} AS {quoted(name)}" for name, sql in self.columns.items())
        return sql_option(f"SELECT * REPLACE ({changed}) FROM {self._rows}")

    def option_with_gaps(self, names: Iterable[str]) -> str:
        """Return the option whose query adds columns without a value."""
        added = ", ".join(f"NULL AS {quoted(name)}" for name in names)
        return sql_option(f"SELECT *, {added} FROM {self._rows}")

    def where(self, condition: str) -> str:
        """Return the option whose query leaves out rows."""
        return sql_option(f"SELECT * FROM {self._rows} WHERE {condition}")

    @property
    def _rows(self) -> str:
        if self.query is None:
            return "source"
        # A comment ends at the end of its line.
        end = "\n" if "--" in self.query else ""
        return f"({self.query.strip().rstrip(';')}{end})"


def sql_option(query: str) -> str:
    """Return the option of a query as an error names it."""
    escaped = re.sub(r'(["\\])', r"\\\1", query)
    return f'`sql`="{escaped}"'


def doubt_about(name: str, texts: Iterable[str]) -> Doubt | None:
    """Return why most texts of a column may be numbers or dates; None if they are categories."""
    found = {*texts}
    formed = _formed(found)
    others = found.difference(formed)
    if len(formed) < 2 or len(formed) <= len(others):
        return None
    few = formed[:: -(-len(formed) // _MOST_TEXTS)]
    but = f", but also {min(others)!r}." if others else "."
    form, dates = _dates_of(few)
    mark, numbers = _numbers_of(few)
    if 2 * len(dates) > len(few):
        shown, value = next(iter(dates.items()))
        sql = f"try_strptime({quoted(name)}, {literal(form)})"
        return Doubt(f"it has {shown!r}, which may be the date {value:%Y-%m-%d}{but}", sql)
    if 2 * len(numbers) > len(few):
        shown, number = next(iter(numbers.items()))
        reason = f"it has {shown!r}, which may be the number {number:.15g}{but}{_units_of(few)}"
        return Doubt(reason, _number_sql(name, mark, others))
    if len(found) <= _FEW_TEXTS:
        return None
    return Doubt(f"it has {few[0]!r}, which may be a date, a time or a range{but}", "")


def _formed(texts: Iterable[str]) -> list[str]:
    """Return the texts that may be numbers, with or without a unit, or dates, in order."""
    found = [each for text in sorted(texts) if (each := _FORM.fullmatch(text))]
    # Letters without a blank before them are units if few of them are at many numbers; else they
    # belong to codes, such as 12A, or 4WD and 2WD.
    for is_joined in (True, False):
        own = [each for each in found if each["unit"] and each["unit"].isalpha() is is_joined]
        most = min(_MOST_UNITS, (len(own) - 1) // 2) if is_joined else _MOST_UNITS
        if len({each["unit"] for each in own}) > most:
            found = [each for each in found if (each["unit"] or "").isalpha() is not is_joined]
    return [each[0] for each in found]


def _units_of(texts: Iterable[str]) -> str:
    """Return a sentence about units that differ; "" if they do not."""
    units = {each["unit"].strip() for each in map(_FORM.fullmatch, texts) if each and each["unit"]}
    shown = ", ".join(sorted(units))
    return f" Its units ({shown}) differ: scale the numbers of each." if len(units) > 1 else ""


def _dates_of(texts: Sequence[str]) -> tuple[str, dict[str, datetime]]:
    """Return the form of most dates among texts, and these dates."""
    found = dict[str, dict[str, datetime]]()
    marks = [re.sub("[0-9]", "", text) for text in texts]
    for form in _DATES:
        found[form], between = {}, re.sub("[a-zA-Z%]", "", form)
        for text in (text for text, own in zip(texts, marks, strict=True) if own == between):
            with suppress(ValueError):
                date = datetime.strptime(text, form)
                if date.year in _YEARS:
                    found[form][text] = date
    best = max(found, key=lambda form: len(found[form]))
    return best, found[best]


def _numbers_of(texts: Sequence[str]) -> tuple[str, dict[str, float]]:
    """Return the decimal mark of texts, and the numbers that they are without all other marks."""
    n_commas = sum(map(bool, map(_DECIMAL_COMMA.search, texts)))
    pointed = [text for text in texts if "." in text and not _DECIMAL_COMMA.search(text)]
    n_points = sum(not _THOUSANDS.search(text) for text in pointed)
    mark = "," if n_commas > n_points or (pointed and not n_points) else "."
    numbers = {}
    for text in texts:
        if not _PARTS.search(text):
            with suppress(ValueError):
                numbers[text] = float(re.sub(f"[^0-9{mark}-]", "", text).replace(",", "."))
    return mark, numbers


def _number_sql(name: str, mark: str, others: Iterable[str]) -> str:
    """Return the SQL that makes numbers of texts with a decimal mark, beside other texts."""
    number = f"regexp_replace({quoted(name)}, '[^0-9{mark}-]', '', 'g')"
    number = f"replace({number}, ',', '.')" if mark == "," else number
    converted = f"TRY_CAST({number} AS DOUBLE)"
    if any(map(_EXPONENT.search, others)):
        return f"coalesce(TRY_CAST({quoted(name)} AS DOUBLE), {converted})"
    return converted
