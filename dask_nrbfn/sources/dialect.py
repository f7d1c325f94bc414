"""The dialect of CSV text: given by the user, or found from the first lines."""

import csv
import io
import math
import re
import string
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, pairwise, takewhile

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.sources.dtypes import NUMBER
from dask_nrbfn.sources.quotes import BlanksOut

DELIMITERS = (",", ";", "\t", "|")
BLANK_RUNS = " "
"""The delimiter of cells that any number of spaces and tabs separates."""
QUOTES = ('"', "'")
DECIMALS = (".", ",")
# Allowed delimiters: one byte, as pyarrow requires, that is not a quote or part of a number.
MARKS = {*string.punctuation, "\t", BLANK_RUNS} - {*"\"'.+-_"}
# Names of a tab in a shell.
_TYPED = {"tab": "\t", r"\t": "\t"}
# Blanks around a cell do not belong to it.
BLANKS = " \t"
_COLUMN_NAME = "column_{}"
_NUMBERED = re.compile(_COLUMN_NAME.format("([0-9]+)"))
# The line that sets the delimiter for Excel.
_SEP_LINE = re.compile(r"\"?sep=(.)\"?[\r\n]*", re.IGNORECASE)
# At least this many numbers in ascending or descending order are column names, such as wavelengths.
# Fewer may be a row of data, such as the first row of iris.
_NAMES_IN_ORDER = 8


@dataclass(frozen=True)
class Dialect:
    r"""How the cells of a file are written.

    delimiter, quote, decimal: one character each: between cells, around text, before the decimals
        of a number.
    encoding: A name that Python knows.
    header: whether the first row names the columns.
    padded: whether spaces stand before quotes.
    skipped: lines before the table.

    Examples
    --------
    >>> str(Dialect(delimiter="\t", header=False))
    '\'\\t\' between cells, " around text, utf-8, no header'
    """

    delimiter: str = ","
    quote: str = '"'
    decimal: str = "."
    encoding: str = "utf-8"
    header: bool = True
    padded: bool = False
    skipped: int = 0

    def __str__(self) -> str:
        between = "blanks" if self.delimiter == BLANK_RUNS else repr(self.delimiter)
        lines = "a line" if self.skipped == 1 else f"{self.skipped} lines"
        return (
            f"{between} between cells, {self.quote} around text, {self.encoding}"
            + ", no header" * (not self.header)
            + f", {lines} before the table" * (self.skipped > 0)
        )

    @property
    def mark(self) -> str:
        """The delimiter between cells after blanks are removed."""
        return "\t" if self.delimiter == BLANK_RUNS else self.delimiter

    def names(self, header: Iterable[str]) -> tuple[str, ...]:
        """Return the names of columns whose first row has the cells `header`.

        >>> Dialect().names(["age", " class "]), Dialect(header=False).names(["39", " <=50K"])
        (('age', 'class'), ('column_0', 'column_1'))
        """
        if self.header:
            return tuple(name.strip(BLANKS) for name in header)
        return tuple(_COLUMN_NAME.format(j) for j, _ in enumerate(header))


def delimiter_of(typed: str) -> str:
    r"""Return the delimiter of an option; a tab can be given as tab or ``\t``.

    >>> delimiter_of("tab"), delimiter_of(r"\t"), delimiter_of(";")
    ('\t', '\t', ';')
    """
    return _TYPED.get(typed, typed)


def check_dialect(
    *, delimiter: str | None, quote: str | None, decimal: str | None, encoding: str | None
) -> None:
    """Raise ParameterError if no CSV file can have this dialect.

    delimiter, quote, decimal, encoding: as in `Dialect`; None is not checked.
    """
    if delimiter is not None and delimiter not in MARKS:
        raise ParameterError(
            f"`delimiter` is {delimiter!r}.",
            "Give one character that is in no number, such as ; or |, tab, or a space for any "
            "number of blanks.",
        )
    for name, value, allowed in (("quote", quote, QUOTES), ("decimal", decimal, DECIMALS)):
        if value is not None and value not in allowed:
            raise ParameterError(f"`{name}` is {value!r}.", f"Give {' or '.join(allowed)}.")
    if decimal is not None and decimal == delimiter:
        raise ParameterError(
            f"`delimiter` and `decimal` are both {decimal!r}.",
            "Give another `delimiter`, such as ; for tables with decimal commas.",
        )
    try:
        " ".encode(encoding or "utf-8")
    except (LookupError, ValueError) as error:
        raise ParameterError(
            f"`encoding` is {encoding!r}.",
            "Give an encoding that Python knows, such as latin-1 or utf-16.",
        ) from error


@dataclass(frozen=True)
class Beginning:
    r"""The first lines of a text, and the dialects that it may have.

    lines: with their line ends.
    usual: used in doubt.
    delimiters, quotes: the allowed characters.
    cut: whether the text goes on after these lines.
    """

    lines: Sequence[str]
    usual: Dialect = Dialect()
    delimiters: Collection[str] = DELIMITERS
    quotes: Collection[str] = QUOTES
    cut: bool = False

    def recognized(self, named: Collection[str] | None = None) -> Dialect:
        r"""Return the dialect, with the line where the table begins and whether it has a header.

        `named` are columns that a user names; None: `usual` says whether there is a header.

        A line ``sep=;`` gives the delimiter and is skipped. A line that begins with ``#`` is
        skipped if it has another number of cells than the table, stands above a line that can only
        be a header, or has no numbers where a table without a header has them.

        Examples
        --------
        >>> found = Beginning(["# drawn by hand\n", "#id;a\n", "7;2\n"]).recognized(named=())
        >>> found.delimiter, found.header, found.skipped
        (';', True, 1)
        """
        lines, text = self.lines, self
        skipped = 0
        if lines and (told := _SEP_LINE.fullmatch(lines[0])) and told[1] in MARKS:
            skipped = 1
            if len(self.delimiters) > 1:
                usual = replace(self.usual, delimiter=told[1])
                text = replace(self, delimiters=[told[1]], usual=usual)
        marked = _n_marked(lines[skipped:])
        table = lines[skipped + marked :]
        way = replace(text, lines=table).sniffed()
        with suppress(csv.Error):  # a cell longer than the csv module takes
            if marked and table:
                numbered = any(map(_NUMBERED.fullmatch, named or ()))
                likely = replace(way, header=way.header and not numbered)
                skipped += _n_comments(lines[skipped : skipped + marked], table, likely)
            if named is not None:
                way = replace(way, header=has_header(lines[skipped:], way, named))
        return replace(way, skipped=skipped)

    def sniffed(self) -> Dialect:
        r"""Return the dialect: the usual one, unless the lines contradict it.

        The usual delimiter is kept if all rows have the same number of cells, more than one.
        Otherwise another delimiter is used if it is the only one that divides all rows into
        equally many cells; a table of one column of numbers has none. Another quote is used if it
        surrounds cells of every row and closes at the end of each. If no delimiter divides all
        rows, blanks may.

        Examples
        --------
        >>> [Beginning([first, "1;2,3;4\n"]).sniffed().delimiter for first in ("a;b;c\n", "a,b\n")]
        [';', ',']
        >>> [Beginning(["a,b\n", row]).sniffed().quote for row in ("1,'x, y'\n", "1,'tis\n")]
        ["'", '"']
        """
        usual = self.usual
        marks = {*self.delimiters, *self.quotes, " ", "\t"} - {usual.delimiter, usual.quote}
        text = "".join(self.lines)
        if not any(mark in text for mark in marks):
            return usual
        try:
            delimiters = dict.fromkeys([usual.delimiter, *self.delimiters])
            found = [way for mark in delimiters if (way := self._divided(mark))]
            if len(self.delimiters) > 1 and (way := self._by_blanks(found)):
                return way
        except csv.Error:  # a cell longer than the csv module takes
            return usual
        kept = found and (found[0].delimiter == usual.delimiter or len(found) == 1)
        return found[0] if kept else usual

    def n_cells(self, way: Dialect) -> int:
        """Return the number of cells of each row, or 0 if rows differ; the last row may be cut."""
        counts = [len(row) for row in _rows(self.lines, way) if row]
        counts = counts[:-1] if self.cut else counts
        return counts[0] if len(set(counts)) == 1 else 0

    def _by_blanks(self, found: Sequence[Dialect]) -> Dialect | None:
        """Return the dialect with blanks between cells, if no other one divides all rows.

        A column must have numbers, and no other delimiter may be in all lines outside of quotes. If
        tabs divide all rows too, each line must have several spaces between cells.
        """
        lines, usual = self.lines, self.usual
        if found and ([way.delimiter for way in found] != ["\t"] or usual.delimiter == "\t"):
            return None
        if found and not all(re.search(r"\S {2,}\S", line) for line in lines if line.strip()):
            return None
        ways = [replace(usual, delimiter=BLANK_RUNS, quote=quote) for quote in self.quotes]
        way = next((way for way in ways if self.n_cells(way) > 1), None)
        if way is None:
            return None
        bare = re.sub(f"{way.quote}[^{way.quote}]*{way.quote}", "", "".join(lines))
        written = [line for line in bare.splitlines() if line.strip()]
        others = [mark for mark in self.delimiters if mark not in BLANKS]
        if written and any(all(mark in line for line in written) for mark in others):
            return None
        rows = [[*_are_numbers(row, way)] for row in _rows(lines, way) if row]
        rows = rows[: -1 if self.cut else None]
        return way if any(map(all, zip(*(rows[1:] or rows), strict=True))) else None

    def _divided(self, delimiter: str) -> Dialect | None:
        """Return the dialect with this delimiter that divides all rows into equally many cells."""
        usual = replace(self.usual, delimiter=delimiter)
        others = [replace(usual, quote=quote) for quote in self.quotes if quote != usual.quote]
        padded = [replace(way, padded=True) for way in (*others, usual)]
        for way in (*padded, *others, usual):
            if self.n_cells(way) > 1 and (way == usual or self._is_seen(way)):
                return way
        return None

    def _is_seen(self, way: Dialect) -> bool:
        """Return whether cells use this unusual quoting, and no cell uses another one."""
        lines = self.lines
        try:
            rows = _bare_rows(lines, way, strict=True)
        except csv.Error:
            return False
        if way.padded and rows == _bare_rows(lines, replace(way, padded=False)):
            return False
        begin = f"(?:^|{re.escape(way.delimiter)}) *"
        written = [line for line in lines if line.strip()]
        return way.quote == self.usual.quote or (
            len(rows) == len(written)
            and all(re.search(begin + way.quote, line) for line in written[1:] or written)
            and not any(re.search(begin + self.usual.quote, line) for line in written)
        )


def _bare_rows(lines: Sequence[str], way: Dialect, *, strict: bool = False) -> list[list[str]]:
    rows = _rows(lines, way, strict=strict)
    return [[cell.strip(BLANKS) for cell in row] for row in rows if row]


def has_header(lines: Sequence[str], way: Dialect, named: Collection[str] = ()) -> bool:
    r"""Return whether the first row names the columns.

    lines: with their line ends.
    way: how the lines are written.
    named: columns that a user names.

    The first row is a header if it has a column that a user names. It is not one if a user names
    ``column_3`` or the like, as columns without a header are named. Otherwise it is a header unless
    it has numbers above numbers. Numbers that may be column names do not count: whole numbers, or
    many numbers, in ascending or descending order.

    Examples
    --------
    >>> [has_header([first, "5.5,2,b\n"], Dialect()) for first in ("x,y,kind\n", "4.5,3,a\n")]
    [True, False]
    """
    rows = islice(filter(None, _rows(lines, way)), 2)
    first, *others = [[cell.strip(BLANKS) for cell in row] for row in rows] or [[]]
    if not {*named}.isdisjoint(first):
        return True
    places = [found for name in named if (found := _NUMBERED.fullmatch(name))]
    if any(int(place[1]) < len(first) for place in places):
        return False
    pairs = zip(first, others[0] if others else (), strict=False)
    numbers = [own for own, below in pairs if all(_are_numbers((own, below), way))]
    values = [_number(number, way) for number in numbers]
    in_order = all(a < b for a, b in pairwise(values)) or all(a > b for a, b in pairwise(values))
    may_be_names = all(map(str.isdecimal, numbers)) or len(numbers) >= _NAMES_IN_ORDER
    return in_order and may_be_names


def _n_marked(lines: Sequence[str]) -> int:
    """Return the number of lines at the top up to the last one that begins with a number sign."""
    top = takewhile(lambda line: line.startswith("#") or not line.strip(), lines)
    return max((place for place, line in enumerate(top, 1) if line.strip()), default=0)


def _n_comments(marked: Sequence[str], table: Sequence[str], way: Dialect) -> int:
    """Return how many of the lines that begin with a number sign are comments."""
    first, *others = [*islice(filter(None, _rows(table, way)), 2)] or [[]]
    tells_names = not any(_are_numbers(first, way)) and any(
        any(_are_numbers(row, way)) for row in others
    )
    if way.header and tells_names:
        return len(marked)
    rows = [next(_rows([line], way)) for line in marked]
    numbers = [place for place, is_one in enumerate(_are_numbers(first, way)) if place and is_one]

    def is_comment(row: list[str]) -> bool:
        if len(row) != len(first) or (way.delimiter == BLANK_RUNS and row[0] == "#"):
            return bool(row)
        return not way.header and not any(_are_numbers([row[j] for j in numbers] or ["0"], way))

    return max((place for place, row in enumerate(rows, 1) if is_comment(row)), default=0)


def _are_numbers(row: Iterable[str], way: Dialect) -> Iterator[bool]:
    return (not math.isnan(_number(cell, way)) for cell in row)


def _number(cell: str, way: Dialect) -> float:
    """Return the number in a cell, NaN if the cell is not a number or infinite."""
    text = cell.strip(BLANKS).translate(str.maketrans(f".{way.decimal}", f"{way.decimal}."))
    value = float(text) if NUMBER.fullmatch(text) else math.nan
    return value if math.isfinite(value) else math.nan


def _rows(lines: Sequence[str], way: Dialect, *, strict: bool = False) -> Iterator[list[str]]:
    if way.delimiter == BLANK_RUNS:
        blanks_out = BlanksOut(BLANK_RUNS.encode(), way.quote.encode())
        text = blanks_out.feed("".join(lines).encode()) + blanks_out.feed(b"")
        lines = [*io.StringIO(text.decode(), newline="")]
    return csv.reader(
        lines,
        delimiter=way.mark,
        quotechar=way.quote,
        skipinitialspace=way.padded,
        strict=strict,
    )
