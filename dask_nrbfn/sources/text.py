"""Lines of text tables in plain Python: their headers, and what a strict reader refuses."""

import csv
import io
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import PurePath
from typing import Any, Self

import duckdb
import pyarrow as pa

from dask_nrbfn.errors import DataError
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.source import check_found

logger = logging.getLogger(__name__)

_DELIMITERS = ",;\t|"
JOINED = "Leave out the headers of joined files, except the first."
_PACKED = {".gz": "gzip", ".zst": "zstd"}
# Bytes that UTF-8 has not, as `surrogateescape` reads them, and the NUL of UTF-16.
_NOT_UTF8, _NOT_LATIN = re.compile("[\0\udc80-\udcff]"), re.compile("[\udc80-\udc9f]")
_BY_SQL = "by `sql`=\"FROM read_csv('FILE', {})\"."
# A row that repeats so many names is a header.
_NAMES_TOLD = 16


def literal(value: object) -> str:
    """Return a text as an SQL literal."""
    return "'" + str(value).replace("'", "''") + "'"


@dataclass(frozen=True)
class Dialect:
    """How text is written; delimiter: None for the most frequent one of the first row."""

    delimiter: str | None = None
    quote: str = '"'
    escape: str = '"'
    skip: int = 0

    @classmethod
    def of(cls, sniffed: Mapping[str, Any]) -> Self:
        """Return the dialect that DuckDB found, with double quotes if it found none."""
        none = "(empty)"
        quote = '"' if sniffed["Quote"] == none else sniffed["Quote"]
        escape = quote if sniffed["Escape"] == none else sniffed["Escape"]
        return cls(sniffed["Delimiter"], quote, escape, sniffed["SkipRows"])

    def options(self) -> dict[str, str]:
        """Return the arguments of read_csv."""
        marks = {"delim": self.delimiter, "quote": self.quote, "escape": self.escape}
        return {name: literal(mark) for name, mark in marks.items()} | {"skip": str(self.skip)}

    def rows(self, lines: Iterator[str], **options: Any) -> Iterator[list[str]]:
        """Return the cells of lines that have a delimiter."""
        escape: dict[str, Any] = {} if self.escape == self.quote else {"escapechar": self.escape}
        # A delimiter of several characters as one.
        mark = str(self.delimiter) if len(str(self.delimiter)) == 1 else "\x1f"
        cut = (line.replace(str(self.delimiter), mark) for line in lines)
        return csv.reader(cut, delimiter=mark, quotechar=self.quote, **escape, **options)


@contextmanager
def _lines_of(file: File) -> Iterator[io.TextIOWrapper]:
    """Open the lines of a file, which keep their ends."""
    with file.open() as stored:
        codec = _PACKED.get(PurePath(file.name.lower()).suffix)
        opened: Any = (
            io.BufferedReader(pa.CompressedInputStream(stored, codec)) if codec else stored
        )
        yield io.TextIOWrapper(opened, "utf-8-sig", errors="surrogateescape", newline="")


def width_of(file: File) -> int:
    """Return about how many cells the first rows of a file have."""
    with _lines_of(file) as lines:
        rows = [*islice(lines, 9)]
    return max((line.count(mark) for line in rows for mark in _DELIMITERS), default=0)


def _is_preamble(line: str, place: int, delimiter: str) -> bool:
    """Return whether a line before the first row is blank, a comment, or a title in line 0."""
    is_comment = line.startswith(("# ", "##")) or (line.startswith("#") and delimiter not in line)
    return not line.strip() or is_comment or (place == 0 and delimiter not in line)


def header_of(file: File, dialect: Dialect) -> list[str]:
    """Return the cells of the first row of a file; raise DataError if a row lies before it."""
    with _lines_of(file) as lines:
        for place, line in enumerate(islice(lines, dialect.skip)):
            if not _is_preamble(line, place, dialect.delimiter or ","):
                if str(dialect.delimiter) in line:
                    check_lines([file], replace(dialect, skip=place))
                raise DataError(
                    f"{file}: line {place + 1} is left out, because the first row seems to be in "
                    f"line {dialect.skip + 1}.",
                    "Delete the lines before the first row, or leave them out "
                    + _BY_SQL.format(f"skip = {dialect.skip}"),
                )
        if dialect.skip:
            logger.info("%s: %d lines before the first row are left out", file, dialect.skip)
        return [cell.strip() for cell in next(dialect.rows(lines), [])]


def repeats_header(columns: Mapping[str, str]) -> str:
    """Return the SQL of whether a row repeats the header, from the SQL of columns by name."""
    some = [*columns.items()][:_NAMES_TOLD]
    return " AND ".join(f"trim({sql}) = {literal(name)}" for name, sql in some)


def check_repeats(names: Sequence[str], origin: object) -> None:
    """Raise DataError if a name is repeated."""
    check_found([*filter(None, names)], names, origin, "Give each column a different name.")


@contextmanager
def lines_named(files: Sequence[File], dialect: Dialect) -> Iterator[None]:
    """Raise an error that names the line in place of errors of DuckDB, if a line is wrong."""
    try:
        yield
    except (duckdb.Error, OSError):
        check_lines(files, dialect)
        raise


def check_lines(files: Sequence[File], dialect: Dialect) -> None:
    """Raise DataError about the first line that a strict reader refuses."""
    for file in files:
        with file.open() as stored:
            if stored.read(4) == b'\xef\xbb\xbf"':
                raise DataError(
                    f"{file} begins with a byte order mark before a quote.",
                    r"Delete the mark, such as by sed -i '1s/^\xEF\xBB\xBF//' FILE",
                )
        with _lines_of(file) as lines:
            given, skip = islice(lines, dialect.skip, None), dialect.skip
            first = next(given, "")
            while first.isspace() or first.startswith("#"):
                first, skip = next(given, ""), skip + 1
            delimiter = dialect.delimiter or ","
            if delimiter not in first:
                delimiter = max(delimiter, *_DELIMITERS, key=first.count)
            _check_rows(
                file, replace(dialect, delimiter=delimiter, skip=skip), chain([first], given)
            )


def _check_rows(file: File, dialect: Dialect, lines: Iterator[str]) -> None:
    """Raise DataError about the first row that differs from the first one, or is no text."""
    held, number, width, ending = list[str](), dialect.skip + 1, 0, ""

    def noted() -> Iterator[str]:
        for line in lines:
            if _NOT_UTF8.search(line):
                raise _not_utf8(file, number + len(held), line)
            held.append(line)
            yield line

    try:
        for row in dialect.rows(noted(), strict=True):
            width, own = width or len(row), held[-1][len(held[-1].rstrip("\r\n")) :]
            if row and len(row) != width:
                raise _other_width(file, number, len(row), width)
            if own and own != (ending := ending or own):
                raise DataError(
                    f"{file}: line {number} ends in {own!r}, but the lines before in {ending!r}.",
                    "Write all ends of lines alike, or read the file "
                    + _BY_SQL.format("strict_mode = false"),
                )
            number += len(held)
            held.clear()
    except csv.Error:
        place = len(next(dialect.rows(iter(held[:1]))))
        raise DataError(
            f"{file}: line {number} has a cell in column {place} (the first is 1) whose quotes do "
            f"not match: {held[0].strip()[:80]}",
            "Correct the cell. If quotes are part of the text, read the file "
            + _BY_SQL.format("quote = ''"),
        ) from None


def _other_width(file: File, number: int, width: int, first: int) -> DataError:
    """Return an error about a row of another length."""
    remedy = "Correct the line, or read short rows with missing values "
    remedy += _BY_SQL.format("null_padding = true")
    if width > first:
        remedy = (
            f"Correct the line. If files were joined, write the lines from {number} on to another "
            "file, with a header of their own, and give the directory of both."
        )
    return DataError(
        f"{file}: line {number} has {width} cells, and the first row has {first}.", remedy
    )


def _not_utf8(file: File, number: int, line: str) -> DataError:
    """Return an error about a line in another encoding than UTF-8."""
    problem = f"{file}: line {number} is not UTF-8."
    if "\0" in line or line.startswith(("\udcff\udcfe", "\udcfe\udcff")):
        return DataError(problem, "Read UTF-16 " + _BY_SQL.format("encoding = 'utf-16'"))
    if _NOT_LATIN.search(line):
        remedy = "Convert the file, such as by iconv -f CP1252 -t UTF-8 FILE > NEW.csv"
        return DataError(problem, f"{remedy} for text that Windows wrote.")
    return DataError(problem, "Read Latin-1 " + _BY_SQL.format("encoding = 'latin-1'"))
