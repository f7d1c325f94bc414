"""Notations of numbers and dates in text, recognized from the values of a column."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.sources.dtypes import NUMBER

# A column has one notation if at least this share of its cells has this notation.
MOST = 0.99
# With more units than this, the units are words that happen to follow numbers.
_MOST_UNITS = 5
_BLANK = "[ \u00a0\u202f]"
_MARKS = {".": ",'’ \u00a0\u202f", ",": ".'’ \u00a0\u202f"}
_CURRENCY = "$€£¥₹₽₩₪₺₫฿₴₦₱"
_CODES = (
    "USD|EUR|GBP|JPY|CHF|CNY|INR|CAD|AUD|NZD|SEK|NOK|DKK|PLN|CZK|HUF|RUB|BRL|MXN|ZAR|SGD|HKD|KRW|"
    "TRY"
)
_PREFIX = re.compile(rf"[A-Z]{{0,3}}[{_CURRENCY}]|{_CODES}|Rs\.?")
# Other letters that stand at a number may be part of a code, such as 12A.
_UNIT = re.compile(
    rf"[%‰°{_CURRENCY}]|°[CF]|{_CODES}|mm|cm|dm|km|in|ft|yd|mi|[nµm]g|mcg|k?g|lbs?|oz|[mcd]l|gal|cc|"
    "ccm|ms|sec|min|hr?s?|k?Hz|[MG]Hz|[kM]Wh?|Wh|mV|mA|m?bar|[hk]?Pa|psi|mmHg|[kKMGT]B|hp|PS|bhp|mph|"
    "km/?h|kmpl|mpg|rpm|k?m[2²]|sqft|pp[mb]|px"
)
_WORDS = re.compile(r"[^\W\d_][^\d,;:()]{0,15}")
_TEXT = re.compile(
    rf"(?P<sign>[+-]?)(?P<prefix>[^\d\s.,+-][^\d\s,+-]*)?(?P<gap>{_BLANK}?)(?P<inner>[+-]?)"
    rf"(?P<number>\.?\d(?:[\d.,'’]|{_BLANK}(?=\d))*)(?P<space>{_BLANK}?)"
    r"(?P<suffix>[^\d\s.,+-](?:.*\S)?)?"
)
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_FULL_MONTHS = (
    "january february march april may june july august september october november december"
)
_MONTH = "|".join((*_FULL_MONTHS.split(), "sept", *_MONTHS))
_DIRECTIVES = {
    "Y": r"[0-9]{4}",
    "y": r"[0-9]{2}",
    "m": r"[0-9]{1,2}",
    "d": r"[0-9]{1,2}",
    "b": rf"(?i:{_MONTH})\.?",
    "H": r"[0-9]{1,2}",
    "I": r"[0-9]{1,2}",
    "M": r"[0-9]{2}",
    "S": r"[0-9]{2}",
    "f": r"[0-9]{1,9}",
    "p": r"(?i:[ap]\.?m\.?)",
    "a": r"(?i:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*)\.?",
}
_SAME = {"B": "b", "A": "a", "e": "d", "h": "b"}
# Only the values show whether the month or the day is first.
_DAYS = (
    *("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y-%m-%d", "%Y/%m/%d"),
    *("%Y.%m.%d", "%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d-%m-%y", "%m-%d-%y", "%B %d, %Y"),
    *("%B %d %Y", "%d %B %Y", "%d. %B %Y", "%d-%B-%Y", "%d-%B-%y", "%A, %d %B %Y", "%A, %B %d, %Y"),
)
_CLOCKS = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p")
DIGITS = "%Y%m%d"
"""Format of days as whole numbers, such as 20201231."""
FORMATS = (*map("".join, product(_DAYS, _CLOCKS)), DIGITS)
# Number of texts that formats are first tried on.
_TRIED = 32
# No number or date has more characters.
_LONGEST = 64


@dataclass(frozen=True)
class NumberForm:
    """How the numbers of a column are written.

    prefix, suffix: texts before and after each number, with blanks.
    mark: thousands separator; empty if there is none.
    """

    prefix: str = ""
    mark: str = ""
    decimal: str = "."
    suffix: str = ""

    @classmethod
    def of(cls, written: str) -> Self | None:
        """Return the form whose ``str`` is `written`; None if there is no such form.

        >>> NumberForm.of("$1,234.5") == NumberForm("$", ",")
        True
        """
        found = re.fullmatch(r"(\D*)1(\D?)234([.,])5(|\D.*)", written)
        if found is None or found[2] == found[3]:
            return None
        return cls(found[1], found[2], found[3], found[4])

    def __str__(self) -> str:
        return f"{self.prefix}1{self.mark}234{self.decimal}5{self.suffix}"

    @property
    def unit(self) -> tuple[str, str]:
        """Prefix and suffix of the numbers, without blanks."""
        return self.prefix.strip(), self.suffix.strip()

    def read(self, texts: pa.Array) -> np.ndarray:
        """Return the numbers of texts, float64 (m,); NaN for texts in another form."""
        whole, decimal = "[0-9]+", re.escape(self.decimal)
        if self.mark:
            mark = _BLANK if re.fullmatch(_BLANK, self.mark) else f"[{self.mark}]"
            whole = rf"(?:[1-9][0-9]{{0,2}}(?:{mark}[0-9]{{3}})+|{whole})"
        number = rf"(?:{whole}(?:{decimal}[0-9]*)?|{decimal}[0-9]+)"
        before, after = map(_quoted, self.unit)
        before = f"(?P<sign>[+-]?){before}{_BLANK}*(?P<inner>[+-]?)"
        pattern = f"^{before}(?P<number>{number}){_BLANK}*{after}$"
        found = pc.extract_regex(texts, pattern)
        parts = {name: pc.struct_field(found, name) for name in ("sign", "inner", "number")}
        digits = pc.replace_substring_regex(parts["number"], rf"[^0-9{decimal}]", "")
        digits = pc.replace_substring(digits, self.decimal, ".")
        values = pc.fill_null(digits.cast(pa.float64()), np.nan).to_numpy(zero_copy_only=False)
        signs = pc.binary_join_element_wise(parts["sign"], parts["inner"], "")
        signs = pc.fill_null(signs, "").to_pylist()
        return values * np.array([_SIGNS.get(sign, np.nan) for sign in signs], dtype=np.float64)


_SIGNS = {"": 1.0, "+": 1.0, "-": -1.0}


@dataclass(frozen=True)
class DateFormat:
    """How the dates of a column are written.

    text: see `datetime.strptime`.
    pattern: A regular expression, with a group for each directive.
    """

    text: str
    pattern: str

    @classmethod
    @cache
    def of(cls, text: str) -> Self:
        """Return the format of a text."""
        parts = re.findall(r"%.|[^%]+|%", text)
        names, pattern = [], ""
        for place, part in enumerate(parts):
            if not part.startswith("%"):
                pattern += re.sub(r"(?:\\?\s)+", " +", _quoted(part))
                continue
            name = _SAME.get(part[1:], part[1:])
            if name not in _DIRECTIVES or name in names:
                raise _no_format(text)
            names.append(name)
            beside = parts[place - 1 : place] + parts[place + 1 : place + 2]
            digits = _DIRECTIVES[name]
            if any(other.startswith("%") for other in beside):
                digits = digits.replace("{1,2}", "{2}")
            pattern += f"(?P<{name}>{digits})"
        known = {*names}
        if not (known & {"Y", "y"} and known & {"m", "b"} and "d" in known):
            raise _no_format(text)
        if ("I" in known) != ("p" in known) or ({"H", "I"} <= known):
            raise _no_format(text)
        return cls(text, pattern)

    def __str__(self) -> str:
        return self.text

    def matches(self, text: str) -> bool:
        """Return whether a text has this form; the day may not exist."""
        return _compiled(self.pattern).fullmatch(text) is not None

    def read(self, texts: pa.Array) -> np.ndarray:
        """Return texts as days since 1970, float64 (m,); NaN for texts in another form."""
        found = pc.extract_regex(texts, f"^{self.pattern}$")
        named = {field.name: pc.struct_field(found, field.name) for field in found.type}
        none = pc.is_null(found).to_numpy(zero_copy_only=False)

        def number(name: str) -> np.ndarray:
            if name not in named:
                return np.zeros(len(texts), np.int64)
            values = pc.fill_null(named[name], "0").cast(pa.int64())
            return values.to_numpy(zero_copy_only=False)

        year, month, day = number("Y"), number("m"), number("d")
        if "y" in named:
            short = number("y")
            year = short + np.where(short < 69, 2000, 1900)
        if "b" in named:
            starts = pc.utf8_slice_codeunits(pc.utf8_lower(named["b"]), 0, 3)
            month = pc.fill_null(pc.index_in(starts, pa.array(_MONTHS)), -1).to_numpy() + 1
        hour = number("H")
        if "I" in named:
            half = number("I")
            none = none | (half < 1) | (half > 12)
            afternoon = pc.match_substring(pc.utf8_lower(pc.fill_null(named["p"], "")), "p")
            hour = half % 12 + 12 * afternoon.to_numpy(zero_copy_only=False)
        minute, second = number("M"), number("S")
        none = none | (month < 1) | (month > 12) | (hour > 23) | (minute > 59) | (second > 59)
        years = np.where(none, 1970, year).astype(np.int64)
        months = (years - 1970) * 12 + np.where(none, 1, month) - 1
        first = months.astype("M8[M]").astype("M8[D]").astype(np.int64)
        after = (months + 1).astype("M8[M]").astype("M8[D]").astype(np.int64)
        none = none | (day < 1) | (first + day - 1 >= after)
        seconds = hour * 3600.0 + minute * 60.0 + second
        if "f" in named:
            fraction = pc.fill_null(pc.utf8_rpad(named["f"], 9, "0"), "0").cast(pa.int64())
            seconds = seconds + fraction.to_numpy(zero_copy_only=False) / 1e9
        return np.where(none, np.nan, first + day - 1 + seconds / 86_400.0)


def form_of(kind: str, written: str) -> NumberForm | DateFormat | None:
    """Return the form of a column of a kind; None if the text means no form.

    written: see `Column`.
    """
    if kind == "date":
        return DateFormat.of(written)
    return NumberForm.of(written) if kind == "number" else None


def is_way(kind: str, written: str) -> bool:
    """Return whether columns of a kind can have this form."""
    with suppress(ParameterError):
        return form_of(kind, written) is not None
    return False


class Reading(NamedTuple):
    """The forms in which the texts of a column can be read.

    written: notations; for dates, every format that reads the largest number of rows.
    n_read: number of rows that are read in this notation.
    """

    written: tuple[str, ...]
    n_read: int

    @property
    def is_open(self) -> bool:
        """Whether the day or the month may be first."""
        return len({"".join(sorted(text)) for text in self.written}) < len(self.written)


def number_reading(texts: Mapping[str, int], decimal: str) -> tuple[Reading, tuple[str, ...]]:
    """Return the form of most numbers of some texts, and an example of each of several units.

    texts: number of rows of each text.
    decimal: the decimal mark. If it is unknown, a comma needs evidence to separate thousands.
    """
    short = [text for text in texts if len(text) <= _LONGEST]
    parsed = {text: found for text in short if (found := _parsed(text, decimal or "."))}
    units = Counter[tuple[str, str]]()
    for text, form in parsed.items():
        units[form.unit] += texts[text]
    if not units:
        return Reading(("",), 0), ()
    unit = min(units, key=lambda each: (-units[each], each))
    of_unit = {text: form for text, form in parsed.items() if form.unit == unit}
    marks = Counter[str]()
    for text, form in of_unit.items():
        marks[form.mark] += texts[text]
    mark = min((each for each in marks if each), key=lambda each: (-marks[each], each), default="")
    if mark and not _is_thousands(mark, of_unit, decimal):
        del marks[mark]
        mark = ""
    n_read = marks[""] + (marks[mark] if mark else 0)
    shown = min(of_unit)
    form = NumberForm(of_unit[shown].prefix, mark, decimal or ".", of_unit[shown].suffix)
    plain = form == NumberForm(decimal=form.decimal)
    examples: dict[tuple[str, str], str] = {}
    for text in sorted(parsed):
        examples.setdefault(parsed[text].unit, text)
    mixed = 1 < len(units) <= _MOST_UNITS and sum(units.values()) >= MOST * sum(texts.values())
    mixed = mixed and units[unit] < MOST * sum(texts.values())
    return Reading(("" if plain else str(form),), n_read), tuple(examples.values()) * mixed


def date_reading(texts: Mapping[str, int]) -> Reading:
    """Return the format of most dates of some texts, other than ISO 8601."""
    tried = sorted(texts)[:: max(1, len(texts) // _TRIED)]
    tried = [text for text in tried if len(text) <= _LONGEST and sum(map(str.isdigit, text)) >= 3]
    likely = []
    for format_text in FORMATS if tried else ():
        own = DateFormat.of(format_text)
        if 2 * sum(map(own.matches, tried)) >= len(tried):
            likely.append(own)
    if not likely:
        return Reading((), 0)
    array, counts = pa.array(texts, pa.string()), np.array([*texts.values()])
    n_read = {str(own): int(counts[~np.isnan(own.read(array))].sum()) for own in likely}
    most = max(n_read.values())
    return Reading(tuple(name for name in n_read if n_read[name] == most), most)


def is_told(reading: Reading, texts: Sequence[str]) -> bool:
    """Return whether dates have a format that only dates have.

    Whole numbers, and three short numbers as in 1.2.10, may be anything.
    """
    if len(reading.written) != 1 or reading.written[0] == DIGITS:
        return False
    if reading.written[0] == "":
        return True
    day = reading.written[0].split(" ")[0]
    return not re.fullmatch(r"%[dm].%[dm].%y", day) or all(
        re.match(r"\d\d\D\d\d\D\d\d(?!\d)", text) for text in texts
    )


def _parsed(text: str, decimal: str) -> NumberForm | None:
    """Return the form of a number, None if no form matches."""
    if NUMBER.fullmatch(text) and decimal == ".":
        return NumberForm(decimal=decimal) if text[-1].isdigit() else None
    found = _TEXT.fullmatch(text)
    if found is None or (found["sign"] and found["inner"]):
        return None
    prefix, suffix = found["prefix"] or "", found["suffix"] or ""
    if prefix and not _PREFIX.fullmatch(prefix):
        return None
    is_word = found["space"] and _WORDS.fullmatch(suffix)
    if suffix and not (is_word or _UNIT.fullmatch(suffix)):
        return None
    mark = _mark_of(found["number"], decimal)
    if mark is None:
        return None
    before, after = found["gap"] * bool(prefix), found["space"] * bool(suffix)
    return NumberForm(prefix + before, mark, decimal, after + suffix)


def _mark_of(number: str, decimal: str) -> str | None:
    """Return the thousands separator, None if a text is not a number or a code like 007."""
    point = re.escape(decimal)
    if re.fullmatch(rf"(?:0|[1-9]\d*)(?:{point}\d*)?|{point}\d+", number):
        return ""
    found = re.fullmatch(
        rf"[1-9]\d{{0,2}}([{_MARKS[decimal]}])\d{{3}}(?:\1\d{{3}})*(?:{point}\d+)?", number
    )
    return found and found[1]


def _is_thousands(mark: str, texts: Mapping[str, NumberForm], decimal: str) -> bool:
    """Return whether a mark in some texts is certain to be between thousands."""
    marked = [text for text, form in texts.items() if form.mark == mark]
    if mark == "," and not decimal:
        return any(text.count(",") > 1 or "." in text for text in marked)
    if re.fullmatch(_BLANK, mark) and len(marked) == len(texts):
        # Telephone numbers and postal codes have blanks too, always in the same place.
        digits = {re.sub(r"\D", "", text) for text in marked}
        return len({*map(len, digits)}) > 1 or len(next(iter(digits))) % 3 > 0
    return True


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _quoted(text: str) -> str:
    """Return a text as a regular expression of both RE2 and Python."""
    return "".join(f"[{sign}]" if sign in ".$|()[{*+?" else re.escape(sign) for sign in text)


def _no_format(text: str) -> ParameterError:
    known = ", ".join(f"%{name}" for name in (*_DIRECTIVES, "A", "B"))
    return ParameterError(
        f"`date_format` is {text!r}.",
        f"Give year, month and day, such as %d/%m/%Y. Known directives are {known}; %I needs %p.",
    )
