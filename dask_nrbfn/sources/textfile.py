"""Files of CSV text: decompressed and decoded, with the dialect of each file."""

import codecs
import csv
import gzip
import io
import logging
import re
import zlib
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import IO, Any

import pyarrow as pa

from dask_nrbfn.errors import DamagedDataError, DataError
from dask_nrbfn.sources.dialect import (
    BLANK_RUNS,
    DECIMALS,
    DELIMITERS,
    QUOTES,
    Beginning,
    Dialect,
    check_dialect,
)
from dask_nrbfn.sources.files import File, damage_named
from dask_nrbfn.sources.quotes import BlanksOut, QuoteScan, lines_of

logger = logging.getLogger(__name__)

# Errors of Python and pyarrow for bytes that cannot be decompressed or decoded.
UNREADABLE = (OSError, EOFError, ValueError, zlib.error)
# Bounds the search for a line end in a file that has none.
_LONGEST_LINE_BYTES = 64 << 20
# Lines and bytes from which a dialect is found.
_SNIFFED_LINES = 1000
_SNIFFED_BYTES = 1 << 20
_NO_TEXT = re.compile(r"[^\t\n\f\r\x20-\uffff\U00010000-\U0010ffff]")
# First characters of JSON, XML, ARFF and scripts.
_OTHER_FORMATS = ("{", "[", "<", "@", "%", "#!")
_LINE_END = re.compile(rb"\r\n|\r|\n")


@dataclass(frozen=True)
class TextFile:
    """A file, and how it is written.

    file: compressed if its name ends in .gz or .zst.
    """

    file: File
    dialect: Dialect

    def __str__(self) -> str:
        return str(self.file)

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open the table as UTF-8, with one `dialect.mark` and no padding between cells."""
        with _unpacked(self.file) as stream:
            text: Any = stream
            if codecs.lookup(self.dialect.encoding).name != "utf-8":
                text = pa.transcoding_input_stream(_arrow(text), self.dialect.encoding, "utf8")
            if self.dialect.skipped:
                text = pa.lib.TransformInputStream(_arrow(text), _FromLine(self.dialect.skipped))
            if self.dialect.padded or self.dialect.delimiter == BLANK_RUNS:
                blanks_out = BlanksOut(self.dialect.delimiter.encode(), self.dialect.quote.encode())
                text = pa.lib.TransformInputStream(
                    _arrow(text), lambda piece: blanks_out.feed(piece.to_pybytes())
                )
            yield text

    def head(self) -> list[bytes]:
        """Return the first two lines, or fewer, each up to 64 MiB."""
        with csv_damage_named(self.file):
            with self.open() as text:
                lines = [*islice(lines_of(text, _LONGEST_LINE_BYTES), 2)] or [b""]
            if any(b"\0" in line for line in lines):
                raise ValueError("it has NUL bytes")
            lines[0].decode("utf-8")
        return lines

    def scan(self) -> QuoteScan:
        """Return a fresh `QuoteScan` for its text."""
        return QuoteScan(self.dialect.mark.encode(), self.dialect.quote.encode())


class _FromLine:
    """Leaves the first lines out of consecutive pieces of text."""

    def __init__(self, n_lines: int) -> None:
        self._n_lines = n_lines
        self._held = b""

    def __call__(self, piece: pa.Buffer) -> bytes:
        text = self._held + piece.to_pybytes()
        while self._n_lines and (end := _LINE_END.search(text)):
            # What follows a carriage return at the end of a piece is not known yet.
            if end[0] == b"\r" and end.end() == len(text) and len(piece):
                break
            text, self._n_lines = text[end.end() :], self._n_lines - 1
        self._held = text if self._n_lines else b""
        return b"" if self._n_lines else text


@contextmanager
def _unpacked(file: File) -> Iterator[IO[bytes]]:
    name = file.name.lower()
    with file.open() as stream:
        text: Any = nullcontext(stream)
        if name.endswith(".gz"):
            text = gzip.GzipFile(fileobj=stream)
        elif name.endswith(".zst"):
            text = pa.CompressedInputStream(_arrow(stream), "zstd")
        with text as unpacked:
            yield unpacked


def _arrow(stream: IO[bytes]) -> pa.NativeFile:
    return stream if isinstance(stream, pa.NativeFile) else pa.PythonFile(stream, mode="r")


def csv_damage_named(file: File) -> AbstractContextManager[None]:
    """Return a context manager that raises DamagedDataError if a file is not text."""
    return damage_named(
        f"{file} cannot be read as CSV",
        "Write the file as UTF-8 text, or pass its `encoding`, such as cp1252, which Excel writes.",
        *UNREADABLE,
    )


def is_table(file: File) -> bool:
    """Return whether all first lines of a file have the same number of cells, more than one."""
    try:
        beginning = _beginning(file, None)
    except DamagedDataError:
        return False
    text = "".join(beginning.lines)
    if _NO_TEXT.search(text) or text.lstrip().startswith(_OTHER_FORMATS):
        return False
    way = beginning.recognized()
    table = replace(beginning, lines=beginning.lines[way.skipped :])
    try:
        return table.n_cells(way) > 1
    except csv.Error:  # a cell longer than the csv module takes
        return False


def text_files(
    files: tuple[File, ...],
    *,
    delimiter: str | None = None,
    quote: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    no_header: bool = False,
    named: Collection[str] | None = None,
) -> tuple[TextFile, ...]:
    """Return the files of a table with their dialects, from options or from the first lines.

    delimiter, quote: by default a comma (in .tsv a tab, with decimal commas a semicolon) and double
        quotes, unless the first lines contradict it.
    decimal: by default a point.
    encoding: by default UTF-8, or UTF-16 where a file begins with its byte order mark.
    no_header: whether the first row has values already.
    named: columns that a user names, if the first rows may be data and not a header.
    """
    check_dialect(delimiter=delimiter, quote=quote, decimal=decimal, encoding=encoding)
    tabs = re.search(r"\.tsv(\.\w+)?$", files[0].name, re.IGNORECASE)
    usual = Dialect(
        delimiter=delimiter or ("\t" if tabs else ";" if decimal == "," else ","),
        quote=quote or QUOTES[0],
        decimal=decimal or DECIMALS[0],
        encoding=encoding or "utf-8",
        header=not no_header,
    )
    delimiters = [delimiter] if delimiter else [mark for mark in DELIMITERS if mark != decimal]
    quotes = [quote] if quote else QUOTES
    texts: list[TextFile] = []
    for file in files:
        beginning = _beginning(file, encoding)
        like = replace(texts[0].dialect, padded=False) if texts else usual
        like = replace(like, encoding=beginning.usual.encoding)
        beginning = replace(beginning, usual=like, delimiters=delimiters, quotes=quotes)
        # The first file decides for all files.
        found = beginning.recognized(None if texts or no_header else named)
        texts.append(TextFile(file, found))
    _check_alike(texts)
    if texts[0].dialect != usual:
        logger.info("ingest: %s has %s", texts[0], texts[0].dialect)
    return tuple(texts)


def _beginning(file: File, encoding: str | None) -> Beginning:
    """Return the beginning of a file in the given encoding, or in the encoding of its byte mark."""
    with csv_damage_named(file), _unpacked(file) as stream:
        beginning, more = stream.read(_SNIFFED_BYTES), bool(stream.read(1))
    marked = beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    encoding = encoding or ("utf-16" if marked else "utf-8")
    text = beginning.decode(encoding, "replace").removeprefix("\ufeff")
    lines = [*io.StringIO(text, newline="")]
    # The last line may be incomplete if the text goes on.
    whole = lines[: len(lines) - more][:_SNIFFED_LINES]
    return Beginning(whole, Dialect(encoding=encoding), cut=len(whole) < len(lines))


def _check_alike(texts: list[TextFile]) -> None:
    first = texts[0]
    for text in texts:
        own = text.dialect
        if (own.delimiter, own.quote) != (first.dialect.delimiter, first.dialect.quote):
            raise DataError(
                f"{text} has {own}, but {first} has {first.dialect}.",
                "Write all files of a directory with the same delimiter and quote.",
            )
