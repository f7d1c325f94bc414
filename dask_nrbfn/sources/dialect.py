"""How cells are written in CSV text: what a user says of it, and what its first lines show."""

import csv
import re
import string
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from dask_nrbfn.errors import ParameterError

DELIMITERS = (",", ";", "\t", "|")
QUOTES = ('"', "'")
DECIMALS = (".", ",")
# pyarrow takes one byte; these are in no number and are no quote.
MARKS = {*string.punctuation, "\t"} - {*"\"'.+-_"}
# Blanks around a cell are no part of it.
BLANKS = " \t"


class Written(TypedDict, total=False):
    """What a user may say of how files are written, as `text_files` has it."""

    delimiter: str | None
    quote: str | None
    decimal: str | None
    encoding: str | None
    no_header: bool


@dataclass(frozen=True)
class Dialect:
    r"""How the cells of a file are written.

    Attributes
    ----------
    delimiter, quote, decimal : str
        One character each: between cells, around text, before the decimals of a number.
    encoding : str
        A name that Python knows.
    header : bool
        Whether the first row names the columns.
    padded : bool
        Whether spaces stand before quotes.

    Examples
    --------
    >>> str(Dialect(delimiter="\t"))
    '\'\\t\' between cells, " around text, utf-8'
    """

    delimiter: str = ","
    quote: str = '"'
    decimal: str = "."
    encoding: str = "utf-8"
    header: bool = True
    padded: bool = False

    def __str__(self) -> str:
        return f"{self.delimiter!r} between cells, {self.quote} around text, {self.encoding}"

    def names(self, header: Iterable[str]) -> tuple[str, ...]:
        """Names of the columns whose first row is read as `header`.

        >>> Dialect().names(["age", " class "]), Dialect(header=False).names(["39", " <=50K"])
        (('age', 'class'), ('column_0', 'column_1'))
        """
        if self.header:
            return tuple(name.strip(BLANKS) for name in header)
        return tuple(f"column_{j}" for j, _ in enumerate(header))


def check_dialect(
    *, delimiter: str | None, quote: str | None, decimal: str | None, encoding: str | None
) -> None:
    """Refuse what a CSV file cannot be written in; None is what nobody said.

    Raises
    ------
    ParameterError
        If a value is none that is allowed, or delimiter and decimal point are the same.
    """
    if delimiter is not None and delimiter not in MARKS:
        raise ParameterError(
            f"`delimiter` is {delimiter!r}.",
            "Give one character that is in no number, such as ; or |, or a tab.",
        )
    for name, value, allowed in (("quote", quote, QUOTES), ("decimal", decimal, DECIMALS)):
        if value is not None and value not in allowed:
            raise ParameterError(f"`{name}` is {value!r}.", f"Give {' or '.join(allowed)}.")
    if decimal is not None and decimal == delimiter:
        raise ParameterError(
            f"`delimiter` and `decimal` are both {decimal!r}.",
            "Tables with decimal commas have another `delimiter`, such as ;",
        )
    try:
        " ".encode(encoding or "utf-8")
    except (LookupError, ValueError) as error:
        raise ParameterError(
            f"`encoding` is {encoding!r}.", "Give one that Python knows, such as latin-1 or utf-16."
        ) from error


def sniffed(
    lines: Sequence[str],
    usual: Dialect,
    *,
    delimiters: Collection[str] = DELIMITERS,
    quotes: Collection[str] = QUOTES,
    cut: bool = False,
) -> Dialect:
    r"""Dialect of a text that begins with `lines`: the usual one, unless they contradict it.

    Parameters
    ----------
    lines : sequence of str
        With their ends.
    usual : Dialect
        Stays in doubt.
    delimiters, quotes : collection of str
        Those that may be.
    cut : bool
        Whether the text goes on.

    Returns
    -------
    Dialect
        With the usual delimiter if all rows have the same number of cells and more than one.
        Otherwise no reader accepts the table, unless it is one column of numbers, and then no other
        delimiter divides all its rows alike: the only one that does is taken. Another quote is
        taken if it is around cells of every row and closes at the end of each.

    Examples
    --------
    >>> sniffed(["a;b\n", "1,5;2\n"], Dialect()).delimiter
    ';'
    >>> sniffed(["a,b\n", "1;2,3;4\n"], Dialect()).delimiter
    ','
    >>> sniffed(["a,b\n", "1,'x, y'\n"], Dialect()).quote
    "'"
    >>> sniffed(["a,b\n", "1,'tis\n"], Dialect()).quote
    '"'
    """
    marks = {*delimiters, *quotes, " " + usual.quote} - {usual.delimiter, usual.quote}
    text = "".join(lines)
    if not any(mark in text for mark in marks):
        return usual
    found = []
    for delimiter in dict.fromkeys([usual.delimiter, *delimiters]):
        try:
            way = _divided(lines, replace(usual, delimiter=delimiter), quotes, cut)
        except csv.Error:  # a cell longer than the csv module takes
            return usual
        if way is not None:
            found.append(way)
    kept = found and (found[0].delimiter == usual.delimiter or len(found) == 1)
    return found[0] if kept else usual


def _divided(
    lines: Sequence[str], usual: Dialect, quotes: Collection[str], cut: bool
) -> Dialect | None:
    """Dialect with this delimiter that divides all rows alike, into more than one cell."""
    others = [replace(usual, quote=quote) for quote in quotes if quote != usual.quote]
    padded = [replace(way, padded=True) for way in (*others, usual)]
    for way in (*padded, *others, usual):
        if _n_cells(lines, way, cut) > 1 and (way == usual or _is_seen(lines, way, usual.quote)):
            return way
    return None


def _is_seen(lines: Sequence[str], way: Dialect, usual_quote: str) -> bool:
    """Whether cells are quoted this way, an unusual one: none is written otherwise."""
    try:
        rows = _bare_rows(lines, way, strict=True)
    except csv.Error:
        return False
    if way.padded and rows == _bare_rows(lines, replace(way, padded=False)):
        return False
    begin = f"(?:^|{re.escape(way.delimiter)}) *"
    written = [line for line in lines if line.strip()]
    return way.quote == usual_quote or (
        len(rows) == len(written)
        and all(re.search(begin + way.quote, line) for line in written[1:] or written)
        and not any(re.search(begin + usual_quote, line) for line in written)
    )


def _bare_rows(lines: Sequence[str], way: Dialect, *, strict: bool = False) -> list[list[str]]:
    rows = _reader(lines, way, strict=strict)
    return [[cell.strip(BLANKS) for cell in row] for row in rows if row]


def _n_cells(lines: Sequence[str], way: Dialect, cut: bool) -> int:
    """Cells of every row, or 0 if rows differ; the last of a text that is cut may be a part."""
    counts = [len(row) for row in _reader(lines, way) if row]
    counts = counts[:-1] if cut else counts
    return counts[0] if len(set(counts)) == 1 else 0


def _reader(lines: Sequence[str], way: Dialect, *, strict: bool = False) -> Iterator[list[str]]:
    return csv.reader(
        lines,
        delimiter=way.delimiter,
        quotechar=way.quote,
        skipinitialspace=way.padded,
        strict=strict,
    )
