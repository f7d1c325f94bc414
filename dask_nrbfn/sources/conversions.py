"""Texts that look like numbers or dates, and the query that makes numbers and dates of them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

from dask_nrbfn.sources.relation import quoted
from dask_nrbfn.sources.text import literal

# Texts like numbers and dates: most of their characters are digits and marks among them.
_FORM = re.compile(r"[-+$€£¥]?\s?\d[\d.,/: '-]*(\s?[%$€£¥+]|(?P<unit>\s?[a-zA-Z]{1,3}))?")
# Marks between the parts of dates and times.
_LIKE_DATE = re.compile(r"[/:]|\d-")
# Dates that DuckDB takes for texts.
_MONTH = "(0?[1-9]|1[0-2])"
_DATES = {rf"{_MONTH}{mark}\d{{4}}": f"%m{mark}%Y" for mark in "/-"}
_DATES |= {rf"\d{{4}}{mark}{_MONTH}": f"%Y{mark}%m" for mark in "/-"}
# A column of no more texts with marks of dates, such as 2/3 or 18-25, has categories.
_FEW_TEXTS = 100
# More units of a column are letters of codes.
_MOST_UNITS = 3
# A comma that is not between thousands.
_DECIMAL_COMMA = re.compile(r"\b0,|,\d{0,2}(?!\d)|,\d{4}|\.\d{3},")
# Points between thousands, if every point of a column is like these.
_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(\.\d{3})+(?![\d.,])")


class Doubt(NamedTuple):
    """What a column of texts may be, and the SQL of its values; "" if its form is not known."""

    reason: str
    sql: str


@dataclass(frozen=True)
class Conversions:
    """The SQL that converts columns by their names; query: that of the given rows, if any."""

    query: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)

    def with_number(self, name: str, text: str) -> Self | None:
        """Return also the conversion of a column of such texts; None if they are no numbers."""
        if not _formed([text]) or _LIKE_DATE.search(text):
            return None
        return replace(self, columns={**self.columns, name: _number_sql(name, [text])})

    @property
    def option(self) -> str:
        """The option whose query converts the columns."""
        changed = ", ".join(f"{sql} AS {quoted(name)}" for name, sql in self.columns.items())
        return self._option(f"SELECT * REPLACE ({changed})")

    def option_without_gaps(self, names: Iterable[str]) -> str:
        """Return the option whose query leaves out rows without a value of columns."""
        return self._option("", " AND ".join(f"{quoted(name)} IS NOT NULL" for name in names))

    def _option(self, select: str, where: str = "") -> str:
        rows = f"({self.query})" if self.query else "source"
        query = f"{select} FROM {rows}{' WHERE ' * bool(where)}{where}".strip()
        escaped = re.sub(r'(["\\])', r"\\\1", query)
        return f'`sql`="{escaped}"'


def doubt_about(name: str, texts: Iterable[str]) -> Doubt | None:
    """Return why most texts of a column may be numbers or dates; None if they are categories."""
    found = {*texts}
    formed, others = _formed(found), set(found)
    others.difference_update(formed)
    if len(formed) < 2 or len(formed) <= len(others):
        return None
    is_date = any(map(_LIKE_DATE.search, formed))
    sql = _date_sql(name, formed) if is_date else _number_sql(name, formed)
    if not sql and len(found) <= _FEW_TEXTS:
        return None
    reason = f"it has {formed[0]!r}, which may be a {'date' if is_date else 'number'}"
    reason += f", but also {min(others)!r}." if others else "."
    units = {each["unit"].strip() for each in map(_FORM.fullmatch, formed) if each and each["unit"]}
    if 1 < len(units) <= _MOST_UNITS:
        reason += f" Its units ({', '.join(sorted(units))}) differ: scale the numbers of each."
    return Doubt(reason, sql)


def _formed(texts: Iterable[str]) -> list[str]:
    """Return the texts that may be numbers, with or without a unit, or dates."""
    found = [each for text in sorted(texts) if (each := _FORM.fullmatch(text))]
    # Letters without a blank before them are units if few of them are at many numbers; else they
    # belong to codes, such as 12A, or 4WD and 2WD.
    joined = [each["unit"] for each in found if (each["unit"] or " ").isalpha()]
    if len({*joined}) > min(_MOST_UNITS, (len(joined) - 1) // 2):
        found = [each for each in found if not (each["unit"] or " ").isalpha()]
    return [each[0] for each in found]


def _number_sql(name: str, texts: Sequence[str]) -> str:
    """Return the SQL that makes numbers of texts, without units and the like."""
    pointed = [text for text in texts if "." in text]
    by_points = bool(pointed) and all(map(_THOUSANDS.search, pointed))
    mark = "," if by_points or any(map(_DECIMAL_COMMA.search, texts)) else "."
    number = f"regexp_replace({quoted(name)}, '[^0-9{mark}-]', '', 'g')"
    number = f"replace({number}, ',', '.')" if mark == "," else number
    return f"TRY_CAST({number} AS DOUBLE)"


def _date_sql(name: str, texts: Iterable[str]) -> str:
    """Return the SQL that makes dates of texts; "" if they have no known form."""
    for form, of_dates in _DATES.items():
        if all(re.fullmatch(form, text) for text in texts):
            return f"try_strptime({quoted(name)}, {literal(of_dates)})"
    return ""
