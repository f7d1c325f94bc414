"""Lines of text tables in plain Python: their headers, and what a strict reader refuses."""

import csv
import io
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain, dropwhile, islice
from pathlib import PurePath
from typing import Any, Self

import duckdb
import pyarrow as pa

from dask_nrbfn.errors import DataError
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.source import check_found

logger = logging.getLogger(__name__)

_DELIMITERS = ",;\t|"
# How comments begin, and the most lines before a header that can be titles.
_COMMENTS, _MOST_TITLES = ("#", "%", "!", "//"), 10
_PACKED = {".gz": "gzip", ".zst": "zstd"}
# Bytes that are not UTF-8, as `surrogateescape` reads them, and the NUL of UTF-16.
_NOT_UTF8, _NOT_LATIN = re.compile("[\0\udc80-\udcff]"), re.compile("[\udc80-\udc9f]")
BY_SQL = "with `sql`=\"FROM read_csv('FILE', {})\" in place of the source."
JOINED = "Leave out the headers of joined files, except the first. If it is a row, read the file "
JOINED += BY_SQL.format("header = true")


def literal(value: object) -> str:
    """Return a text as an SQL literal."""
    return "'" + str(value).replace("'", "''") + "'"


def path_sql(file: File) -> str:
    """Return a path as an SQL literal, in which no mark stands for other characters."""
    is_web = file.path.startswith(("http://", "https://"))
    return literal(file if is_web else re.sub(r"([\[?*])", r"[\1]", file.path))


@dataclass(frozen=True)
class Dialect:
    """How text is written; delimiter: None for the most frequent one of the first row."""

    delimiter: str | None = None
    quote: str = '"'
    escape: str = '"'
    skip: int = 0
    encoding: str = "utf-8"

    @classmethod
    def of(cls, sniffed: Mapping[str, Any], encoding: str) -> Self:
        """Return the dialect that DuckDB found, with double quotes if it found none."""
        found = {name: value for name, value in sniffed.items() if value != "(empty)"}
        quote = found.get("Quote", '"')
        marks = found["Delimiter"], quote, found.get("Escape", quote)
        return cls(*marks, found["SkipRows"], encoding)

    def options(self) -> dict[str, str]:
        """Return the arguments of read_csv."""
        marks = {"delim": self.delimiter, "quote": self.quote, "escape": self.escape}
        return {name: literal(mark) for name, mark in marks.items()} | {"skip": str(self.skip)}

    def rows(self, lines: Iterator[str], **options: Any) -> Iterator[list[str]]:
        """Return the cells of lines that have a delimiter."""
        escape: dict[str, Any] = {} if self.escape == self.quote else {"escapechar": self.escape}
        # A delimiter of several characters as one.
        mark = str(self.delimiter) if len(str(self.delimiter)) == 1 else "\x1f"
        cut = (line.lstrip("\ufeff").replace(str(self.delimiter), mark) for line in lines)
        return csv.reader(cut, delimiter=mark, quotechar=self.quote, **escape, **options)

    def first(self, lines: Iterator[str]) -> list[str]:
        """Return the cells of the first row; none if it is too long for the csv module."""
        with suppress(csv.Error):
            return [cell.strip() for cell in next(self.rows(lines), [])]
        return []

    def width(self, line: str) -> int:
        """Return the number of cells of a line."""
        return len(self.first(iter([line])))


@contextmanager
def _lines_of(file: File, encoding: str) -> Iterator[io.TextIOWrapper]:
    """Open the lines of a file, which keep their ends."""
    with file.open() as stored:
        packed = _PACKED.get(PurePath(file.name.lower()).suffix)
        if packed:
            stored = io.BufferedReader(pa.CompressedInputStream(stored, packed))
        errors = "surrogateescape" if encoding == "utf-8" else "replace"
        # DuckDB reads no other order of bytes.
        codec = "utf-16-le" if encoding == "utf-16" else encoding
        yield io.TextIOWrapper(stored, codec, errors=errors, newline="")


def width_of(file: File, encoding: str) -> int:
    """Return about how many cells the first rows of a file have."""
    with _lines_of(file, encoding) as lines:
        return max(
            (line.count(mark) for line in islice(lines, 9) for mark in _DELIMITERS), default=0
        )


def _is_comment(line: str) -> bool:
    return not line.strip() or line.startswith(_COMMENTS)


def header_of(file: File, dialect: Dialect) -> list[str]:
    """Return the cells of the first row of a file; raise DataError if rows lie before it."""
    with _lines_of(file, dialect.encoding) as lines:
        before = [*dropwhile(_is_comment, islice(lines, dialect.skip))]
        header = dialect.first(lines)
    widths = [dialect.width(line) for line in before if line.strip()]
    # A title and lines of metadata are few; rows have as many cells as others.
    are_rows = any(width > 1 and times > 1 for width, times in Counter(widths).items())
    if are_rows or len(widths) > _MOST_TITLES:
        raise _other_width(file, dialect.skip + 1, len(header), widths[0])
    if dialect.skip:
        logger.info("%s: %d lines before the first row are left out", file, dialect.skip)
    return header


def check_repeats(names: Sequence[str], origin: object) -> None:
    """Raise DataError if a name is repeated."""
    check_found([*filter(None, names)], names, origin, "Give each column a different name.")


@contextmanager
def lines_named(files: Sequence[tuple[File, Dialect]]) -> Iterator[None]:
    """Raise an error that names the line in place of errors of DuckDB, if a line is wrong."""
    try:
        yield
    except (duckdb.Error, OSError):
        check_lines(files)
        raise


def check_lines(files: Iterable[tuple[File, Dialect]]) -> None:
    """Raise DataError about the first line that a strict reader refuses."""
    for file, dialect in files:
        with _lines_of(file, dialect.encoding) as lines:
            header, first, own = _first_lines(lines, dialect)
            _check_rows(file, own, header, chain([first], lines))


def check_split(files: Iterable[tuple[File, Dialect]]) -> None:
    """Raise DataError about a file that is read as one column, but whose first lines have more."""
    for file, dialect in files:
        with _lines_of(file, dialect.encoding) as lines:
            header, first, own = _first_lines(lines, dialect)
            if max(own.width(header), own.width(first)) < 2:
                continue
            # An error about a line says more.
            _check_rows(file, own, header, chain([first], lines))
        remedy, option = f"Leave out `delimiter`, or pass `delimiter`={own.delimiter!r}.", ""
        if own.skip > dialect.skip:
            remedy, option = "Leave out the comments", f"skip = {own.skip}"
        problem = f"is not split into columns: {header.strip()[:80]}"
        raise _of_line(file, dialect.skip + 1, problem, remedy, option)


def _first_lines(lines: Iterator[str], dialect: Dialect) -> tuple[str, str, Dialect]:
    """Return the first line, the first one that is no comment, and the dialect from there on."""
    for _ in islice(lines, dialect.skip):
        pass
    header = first = next(lines, "")
    skip = dialect.skip
    while first and _is_comment(first):
        first, skip = next(lines, ""), skip + 1
    mark = dialect.delimiter or ","
    if mark not in first:
        mark = max(mark, *_DELIMITERS, key=lambda one: (first.count(one), header.count(one)))
    return header, first, replace(dialect, delimiter=mark, skip=skip)


def _check_rows(file: File, dialect: Dialect, header: str, lines: Iterator[str]) -> None:
    """Raise DataError about the first row that differs from the first one, or is no text."""
    if header.startswith('\ufeff"'):
        remedy = r"Delete the mark, such as by sed -i '1s/^\xEF\xBB\xBF//' FILE"
        raise _of_line(file, 1, "has a byte order mark before a quote", remedy)
    held, number, width, ending = list[str](), dialect.skip + 1, 0, ""

    def noted() -> Iterator[str]:
        for line in lines:
            if _NOT_UTF8.search(line):
                raise _of_line(file, number + len(held), "is not UTF-8", _encoding_remedy(line))
            held.append(line)
            yield line

    try:
        for row in dialect.rows(noted(), strict=True):
            line_end = held[-1][len(held[-1].rstrip("\r\n")) :]
            width, ending = width or len(row), ending or line_end
            if len(row) not in (0, width):
                if held[0].isspace():
                    raise _of_line(file, number, "has only blanks", "Delete the line.")
                raise _other_width(file, number, len(row), width)
            if line_end not in ("", ending):
                problem = f"ends in {line_end!r}, but the lines before in {ending!r}"
                remedy = "Write all ends of lines alike, or read the file"
                raise _of_line(file, number, problem, remedy, "strict_mode = false")
            number += len(held)
            held.clear()
    except csv.Error as error:
        # A cell that is too long for the csv module can be right.
        if len(held) > 1 or "limit" not in str(error):
            place = f"has a cell in column {dialect.width(held[0])} (the first is 1)"
            problem = f"{place} whose quotes do not match: {held[0].strip()[:80]}"
            remedy = "Correct the cell. If quotes are part of the text, read the file"
            raise _of_line(file, number, problem, remedy, "quote = ''") from None


def _of_line(file: File, number: int, problem: str, remedy: str, option: str = "") -> DataError:
    """Return an error about a line, whose remedy is an option of read_csv."""
    remedy += f" {BY_SQL.format(option)}" if option else ""
    return DataError(f"{file}: line {number} {problem}.", remedy)


def _other_width(file: File, number: int, width: int, first: int) -> DataError:
    """Return an error about a row of another length."""
    problem = f"has {width} cells, and the first row has {first}"
    if width < first:
        remedy = (
            "Correct the line, or pass `missing`='impute' and read short rows as missing values"
        )
        return _of_line(file, number, problem, remedy, "null_padding = true")
    remedy = (
        f"Correct the line. If files were joined, write the lines from {number} on to another "
        "file, with a header of their own, and give the directory of both. If the lines before it "
        "are no rows, leave them out"
    )
    return _of_line(file, number, problem, remedy, f"skip = {number - 1}")


def _encoding_remedy(line: str) -> str:
    """Return the remedy for a line in another encoding than UTF-8."""
    if _NOT_LATIN.search(line):
        return "Convert text of Windows, such as by iconv -f CP1252 -t UTF-8 FILE > NEW.csv"
    return f"Pass `encoding`='{'utf-16' if chr(0) in line else 'latin-1'}'."
