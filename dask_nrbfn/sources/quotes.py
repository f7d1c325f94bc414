"""Positions of quotes in CSV text, and the line numbers of rows."""

import io
from collections.abc import Iterator
from typing import IO

import numpy as np

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SCAN_BYTES = 1 << 20


class QuoteScan:
    r"""Follows quotes through consecutive pieces of CSV text.

    As in pyarrow, a quote opens only at the start of a cell and closes at the next quote. Two
    quotes inside stand for one.

    inside: whether a quote is open after the last piece.
    opened: byte offset of the last quote that began a cell.
    delimiter, quote: one character each.

    Examples
    --------
    >>> scan = QuoteScan(b",", b'"')
    >>> scan.feed(b'a,"b ""c"" d"\n1,"e')
    >>> scan.inside, scan.opened
    (True, 16)
    """

    def __init__(self, delimiter: bytes, quote: bytes) -> None:
        self._quote = quote
        self.inside = False
        self.opened = 0
        self._starts = np.isin(np.arange(256), list(delimiter + b"\r\n"))
        self._before = ord("\n")
        self._closed = -2
        self._offset = 0

    def feed(self, text: bytes) -> None:
        """Scan the next piece."""
        if self._offset == 0 and text.startswith(_BYTE_ORDER_MARK):
            self._offset = len(_BYTE_ORDER_MARK)
            text = text[self._offset :]
        if self._quote in text:
            values = np.frombuffer(text, dtype=np.uint8)
            quotes = np.flatnonzero(values == self._quote[0])
            before = values[quotes - 1]
            if quotes[0] == 0:
                before[0] = self._before
            starts = self._starts[before]
            if not self._alternate(quotes, starts):
                self._one_by_one(quotes, starts)
        if text:
            self._before = text[-1]
            self._offset += len(text)

    def _alternate(self, quotes: np.ndarray, starts: np.ndarray) -> bool:
        """Scan quotes that open and close in turn; return False, changing nothing, for others."""
        first = int(self.inside)
        doubled = np.diff(quotes, prepend=self._closed - self._offset) == 1
        if not (starts | doubled)[first::2].all():
            return False
        opening = np.flatnonzero((starts & ~doubled)[first::2])
        if len(opening):
            self.opened = self._offset + int(quotes[first::2][opening[-1]])
        self.inside = (len(quotes) + first) % 2 == 1
        closing = quotes[1 - first :: 2]
        if len(closing):
            self._closed = self._offset + int(closing[-1])
        return True

    def _one_by_one(self, quotes: np.ndarray, starts: np.ndarray) -> None:
        for place, begins in zip((quotes + self._offset).tolist(), starts.tolist(), strict=True):
            if self.inside:
                self.inside, self._closed = False, place
            elif place == self._closed + 1:
                self.inside = True
            elif begins:
                self.inside, self.opened = True, place


class BlanksOut:
    r"""Removes blanks that separate or pad cells from consecutive pieces of CSV text.

    delimiter, quote: one character each. If the delimiter is a space, cells are separated by runs
        of blanks: each run becomes one tab, and runs at the ends of lines are removed. Otherwise
        spaces between the delimiter and a quote are removed. Text within quotes does not change.

    Examples
    --------
    >>> blanks_out = BlanksOut(b" ", b'"')
    >>> b"".join(map(blanks_out.feed, [b' 18.0  8\t"buick  "', b" \n9 4 x\n", b""]))
    b'18.0\t8\t"buick  "\n9\t4\tx\n'
    """

    def __init__(self, delimiter: bytes, quote: bytes) -> None:
        self._runs = delimiter == b" "
        self._quote = quote
        # Bytes that may stand before a cell.
        self._before = (b"\t" if self._runs else delimiter) + b"\r\n"
        self._held = b""
        self._last = b"\n"
        self._begins = True
        self._inside = self._closed = False

    def feed(self, text: bytes) -> bytes:
        """Return the next piece without its blanks; an empty piece is the end."""
        if self._begins:
            text, self._begins = text.removeprefix(_BYTE_ORDER_MARK), False
        *parts, rest = (self._held + text).split(self._quote)
        found = [self._before_quote(part) for part in parts]
        self._held = b""
        if not self._inside and rest:
            # Blanks at the end may stand before a quote or the end of a line.
            end = len(rest.rstrip(b" \t" if self._runs else b" "))
            if text:
                self._held = rest[end:]
            if text or self._runs:
                rest = rest[:end]
            rest = self._bare(rest)
        return self._quote.join([*found, rest])

    def _before_quote(self, part: bytes) -> bytes:
        """Return the text before a quote that opens or closes."""
        if self._inside:
            self._inside, self._closed = False, True
        elif self._closed and not part:  # The second of two quotes for one.
            self._inside = True
        else:
            if not self._runs:
                bare = part.rstrip(b" ")
                part = bare if (bare[-1:] or self._last) in self._before else part
            part = self._bare(part)
            self._inside = self._last in self._before
        self._last = self._quote
        return part

    def _bare(self, part: bytes) -> bytes:
        """Return a part outside of quotes in which runs of blanks are tabs."""
        if self._runs:
            # This takes less than half the time of a regular expression.
            part = part.replace(b" ", b"\t")
            while b"\t\t" in part:
                part = part.replace(b"\t\t", b"\t")
            for end in (b"\n", b"\r"):
                part = part.replace(b"\t" + end, end).replace(end + b"\t", end)
            if self._last in b"\r\n":
                part = part.removeprefix(b"\t")
        if part:
            self._last, self._closed = part[-1:], False
        return part


class ScannedFile(io.RawIOBase):
    """A stream that passes its text to a `QuoteScan` while it is read."""

    def __init__(self, stream: IO[bytes], scan: QuoteScan) -> None:
        self._stream = stream
        self._scan = scan

    def readable(self) -> bool:
        """Return True."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        text = self._stream.read(size)
        self._scan.feed(text)
        return text


def open_quote(stream: IO[bytes], scan: QuoteScan) -> int | None:
    """Return the byte offset of the quote that a stream leaves open, None if all are closed.

    stream: A whole file.
    scan: A new scan.
    """
    while text := stream.read(_SCAN_BYTES):
        scan.feed(text)
    return scan.opened if scan.inside else None


def lines_of(stream: IO[bytes], longest: int = -1) -> Iterator[bytes]:
    r"""Yield lines that end in \n, \r or \r\n, as in pyarrow; longer lines come in pieces.

    longest: bytes of a piece; by default a line may have any length.
    """
    text = io.TextIOWrapper(stream, encoding="latin-1", newline="")
    try:
        while line := text.readline(longest):
            yield line.encode("latin-1")
    finally:
        text.detach()


def line_of_byte(stream: IO[bytes], offset: int) -> int:
    """Return the line, from 1, in which a byte of a stream is.

    stream: A whole file.
    """
    end = 0
    for number, line in enumerate(lines_of(stream), 1):
        end += len(line)
        if offset < end:
            return number
    raise ValueError(f"there is no byte {offset}")


def line_of_long_row(stream: IO[bytes], n_bytes: int, scan: QuoteScan) -> int | None:
    """Return the line, from 1, in which the first row of more than `n_bytes` begins.

    stream: A whole file.
    scan: A new scan.
    """
    first, row_bytes = 1, 0
    for number, line in enumerate(lines_of(stream), 1):
        if not scan.inside:
            first, row_bytes = number, 0
        row_bytes += len(line)
        if row_bytes > n_bytes:
            return first
        scan.feed(line)
    return None


def line_of_row(stream: IO[bytes], row: int, scan: QuoteScan, *, skip_empty: bool) -> int:
    """Return the line, from 1, in which a row begins; row 0 may be the header.

    stream: A whole file.
    scan: A new scan.
    skip_empty: whether empty lines are skipped.
    """
    found = -1
    for number, line in enumerate(lines_of(stream), 1):
        if not scan.inside and not (skip_empty and not line.strip(b"\r\n")):
            found += 1
            if found == row:
                return number
        scan.feed(line)
    raise ValueError(f"there is no row {row}")
