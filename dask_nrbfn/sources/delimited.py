"""Rows from CSV and TSV files, one or several.

Files are read one by one with pyarrow's own reader rather than as one pyarrow dataset, which loses
the line of a bad cell and fills columns that a file lacks with nulls.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from dask_nrbfn.errors import DataError, NRBFNError
from dask_nrbfn.sources.dialect import BLANKS
from dask_nrbfn.sources.dtypes import FLOAT64, INT64, LABEL_RULE, STRING, label_of_text
from dask_nrbfn.sources.layout import Layout, check_size
from dask_nrbfn.sources.quotes import (
    QuoteScan,
    ScannedFile,
    line_of_byte,
    line_of_long_row,
    line_of_row,
    open_quote,
)
from dask_nrbfn.sources.recut import recut
from dask_nrbfn.sources.source import Block
from dask_nrbfn.sources.tables import (
    common_columns,
    feature_columns,
    first_not_finite,
    label_values,
    no_value_error,
    not_finite_error,
)
from dask_nrbfn.sources.textfile import UNREADABLE, TextFile, not_csv

# Text of one CSV batch. pyarrow reads dozens ahead and has no option against it: 480 MB of text
# took 213 MiB of memory with batches of 4 MiB and 96 MiB with 1 MiB; smaller was no slower.
TEXT_BYTES = 256 << 10
# A CSV batch must hold whole lines, and the first two only hint at the longest.
LINES_PER_BATCH = 16
CANONICAL_INTEGER = r"^(0|-?[1-9][0-9]*)$"
BAD_CELL = re.compile(
    r"CSV column #(\d+): Row #(\d+): CSV conversion error to (\w+): invalid value '(.*)'$",
    re.DOTALL,
)
BAD_LENGTH = re.compile(r"CSV parse error: Row #(\d+): Expected (\d+) columns, got (\d+)")
# What pyarrow says when a cell goes on over more than two batches, or a header to the end.
LONG_CELL = re.compile("straddling object|out of sync|Empty CSV file")
DECIMAL_COMMA = re.compile(r"[ \t]*[+-]?[0-9]*,[0-9]+[ \t]*")


@dataclass(frozen=True)
class _Columns:
    """What the columns of a file are called.

    Attributes
    ----------
    originals : mapping
        What pyarrow calls each.
    booleans : frozenset of str
        Those that say true and false.
    """

    originals: Mapping[str, str]
    booleans: frozenset[str]

    def numbers(self, names: Sequence[str]) -> dict[str, pa.DataType]:
        """Return the types that some of the columns are read as, by what pyarrow calls them."""
        return {
            self.originals[name]: pa.bool_() if name in self.booleans else pa.float64()
            for name in names
        }


@dataclass(kw_only=True)
class CsvSource(Layout):
    """Rows of CSV files, in the order of `files`, with float64 features.

    Attributes
    ----------
    files : mapping
        The columns of each.
    label_is_plain : bool
        Whether every label is written as Python writes an integer, or is text.
    """

    files: Mapping[TextFile, _Columns]
    label: str | None
    weights: str | None
    label_is_plain: bool = True

    def blocks(self, block_rows: int) -> Iterator[Block]:
        """Yield all rows in order, `block_rows` at a time.

        Raises
        ------
        DataError
            If a feature, target or weight is not a number, a feature or target not finite, or a
            weight empty.
        DamagedDataError
            If a file cannot be read as CSV.
        """
        return recut(self._batches(), block_rows)

    def _batches(self) -> Iterator[Block]:
        for file, columns in self.files.items():
            row = 0
            for batch in _csv_batches(file, self._types(columns)):
                yield self._block(batch, file, row)
                row += batch.num_rows

    def _types(self, columns: _Columns) -> dict[str, pa.DataType]:
        types = columns.numbers([*(self.feature_names or ()), *(self.target_names or ())])
        if self.label is not None:
            as_integers = self.y_dtype == INT64 and self.label_is_plain
            types[columns.originals[self.label]] = pa.int64() if as_integers else pa.string()
        if self.weights is not None:
            types[columns.originals[self.weights]] = pa.float64()
        return types

    def _block(self, batch: pa.RecordBatch, file: TextFile, first_row: int) -> Block:
        # In the order of the types asked for; finding each by its name takes quadratic time.
        columns, p = batch.columns, self.n_features
        X = _csv_numbers(columns[:p], self.feature_names or (), file, first_row)
        y = None
        if self.target_names is not None:
            own = columns[p : p + len(self.target_names)]
            y = _csv_numbers(own, self.target_names, file, first_row)
        elif self.label is not None:
            y = self._labels(columns[p], file.dialect.decimal)
        weights = None if self.weights is None else columns[-1]
        if weights is not None and weights.null_count:
            line = _line_of_row(file, first_row + pc.index(pc.is_null(weights), True).as_py())
            raise no_value_error(f"Column {self.weights!r} of {file}", f"line {line}")
        return Block(X, y, None if weights is None else weights.to_numpy(zero_copy_only=False))

    def _labels(self, column: pa.Array, decimal: str) -> np.ndarray:
        if self.y_dtype == INT64 and self.label_is_plain:
            return label_values(column)
        texts = _bare(column)
        if self.y_dtype != INT64:
            return label_values(texts)
        encoded = texts.dictionary_encode()
        values = [label_of_text(text, decimal) for text in encoded.dictionary.to_pylist()]
        return np.array(values, dtype=INT64)[encoded.indices.to_numpy()]


def open_csv(
    files: tuple[TextFile, ...],
    *,
    origin: str,
    label: str | None = None,
    targets: tuple[str, ...] | None = None,
    weights: str | None = None,
) -> CsvSource:
    """Source of the rows of CSV files; reads labels or targets once, for their type and length.

    Parameters
    ----------
    files : tuple of TextFile
        With the same columns. Feature columns are numbers, or true and false.
    origin : str
        What the user named: the only path, or the directory.
    label : str, optional
        Label column. Its type is int64 if every label is a whole number ("3", "-1", "2.0"; not
        "03"), true or false, otherwise string.
    targets : tuple of str, optional
        Columns of numbers to be learned, instead of labels.
    weights : str, optional
        Column with the weights of the rows.

    Raises
    ------
    DataError
        If columns do not fit, there are no rows or no features, a label is empty, all labels are
        numbers but not all are whole, a target is no number, or a quote is left open.
    ParameterError
        If `weights` is also the label or a target.
    DamagedDataError
        If a file cannot be read as CSV.
    """
    schemas = {file: _csv_schema(file) for file in files}
    names = {file: file.dialect.names(schema.names) for file, schema in schemas.items()}
    common = common_columns(names)
    features = feature_columns(common, label, targets, weights, origin)
    columns = {file: _columns(schema, names[file]) for file, schema in schemas.items()}
    n_rows, kind = 0, _LabelKind()
    for file, own in columns.items():
        file_rows = 0
        looked_at = {own.originals[label or common[0]]: pa.string()}
        if targets is not None:
            looked_at = own.numbers(targets)
        for batch in _csv_batches(file, looked_at, scanned=True):
            if label is not None:
                kind.see(_bare(batch.column(0)), label, file, file_rows)
            file_rows += batch.num_rows
        n_rows += file_rows
    check_size(origin, n_rows=n_rows, n_features=len(features))
    y_dtype = None if targets is None else FLOAT64
    return CsvSource(
        n_rows=n_rows,
        n_features=len(features),
        x_dtype=FLOAT64,
        y_dtype=y_dtype if label is None else kind.dtype(),
        has_weights=weights is not None,
        feature_names=features,
        target_names=targets,
        files=columns,
        label=label,
        weights=weights,
        label_is_plain=kind.plain,
    )


class _LabelKind:
    """What the cells of a label column have been so far: whole numbers, or text.

    Attributes
    ----------
    plain : bool
        Whether all are written as Python writes integers.
    """

    def __init__(self) -> None:
        self.plain = True
        self._text = False
        self._refused: DataError | None = None

    def see(self, labels: pa.Array, name: str, file: TextFile, first_row: int) -> None:
        """Take the labels of a file from `first_row` on, none of which may be empty."""
        empty = pc.index(labels, "").as_py()
        if empty >= 0:
            line = _line_of_row(file, first_row + empty)
            raise no_value_error(f"Column {name!r} of {file}", f"line {line}")
        if self._text or (self.plain and _are_integers(labels)):
            return
        self.plain = False
        values = {
            text: label_of_text(text, file.dialect.decimal)
            for text in pc.unique(labels).to_pylist()
        }
        if any(isinstance(value, str) for value in values.values()):
            self._text = True
        elif self._refused is None:
            wrong = [text for text, value in values.items() if isinstance(value, float)]
            if wrong:
                row = first_row + pc.index(labels, wrong[0]).as_py()
                self._refused = DataError(
                    f"Column {name!r} of {file} has the label {wrong[0]} in line "
                    f"{_line_of_row(file, row)}.",
                    LABEL_RULE,
                )

    def dtype(self) -> np.dtype:
        """Return what all labels are stored as; raises DataError if some are not whole numbers."""
        if self._text:
            return STRING
        if self._refused is not None:
            raise self._refused
        return INT64


def _csv_numbers(
    columns: Sequence[pa.Array], names: Sequence[str], file: TextFile, first_row: int
) -> np.ndarray:
    values = np.empty((len(columns[0]), len(columns)))
    for j, column in enumerate(columns):
        values[:, j] = _floats(column)
    wrong = first_not_finite(values)
    if wrong is not None:
        row, j = wrong
        place = f"line {_line_of_row(file, first_row + row)}"
        raise not_finite_error(columns[j][row], f"Column {names[j]!r} of {file}", place)
    return values


def _columns(schema: pa.Schema, names: Sequence[str]) -> _Columns:
    typed = zip(names, schema.types, strict=True)
    return _Columns(
        dict(zip(names, schema.names, strict=True)),
        frozenset(name for name, dtype in typed if pa.types.is_boolean(dtype)),
    )


def _bare(labels: pa.Array) -> pa.Array:
    """Return text without the blanks around it, as pyarrow reads numbers."""
    return pc.utf8_trim(labels, BLANKS)


@contextmanager
def _csv_reader(
    file: TextFile, types: Mapping[str, pa.DataType], scan: QuoteScan | None = None
) -> Iterator[csv.CSVStreamingReader]:
    head, dialect = file.head(), file.dialect
    with file.open() as text:
        stream = text if scan is None else ScannedFile(text, scan)
        with csv.open_csv(
            pa.PythonFile(stream, mode="r"),
            # pyarrow gives the row of a bad cell only when it reads with one thread.
            read_options=csv.ReadOptions(
                use_threads=False,
                block_size=_block_bytes(head),
                autogenerate_column_names=not dialect.header,
            ),
            parse_options=csv.ParseOptions(
                delimiter=dialect.delimiter,
                quote_char=dialect.quote,
                newlines_in_values=True,
                ignore_empty_lines=_skips_empty_lines(head, dialect.delimiter),
            ),
            convert_options=csv.ConvertOptions(
                column_types=types, include_columns=list(types), decimal_point=dialect.decimal
            ),
        ) as reader:
            yield reader


def _block_bytes(head: list[bytes]) -> int:
    return max(TEXT_BYTES, LINES_PER_BATCH * max(len(line) for line in head))


def _skips_empty_lines(head: list[bytes], delimiter: str) -> bool:
    # In a table of one column, an empty line is an empty cell. A header may begin with one, or
    # have a line end within quotes.
    return any(delimiter.encode() in line for line in head)


def _csv_schema(file: TextFile) -> pa.Schema:
    """Names of the columns, and types that their first rows suggest."""
    with _csv_errors(file), _csv_reader(file, {}) as reader:
        return reader.schema


def _csv_batches(
    file: TextFile, types: Mapping[str, pa.DataType], *, scanned: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield batches of the columns asked for; once `scanned`, no quote is left open."""
    scan = file.scan() if scanned else None
    with _csv_errors(file):
        with _csv_reader(file, types, scan) as reader:
            yield from reader
        if scan is not None and scan.inside:
            raise _open_quote_error(file, scan.opened)


@contextmanager
def _csv_errors(file: TextFile) -> Iterator[None]:
    try:
        yield
    except (NRBFNError, PermissionError):
        raise
    except UNREADABLE as error:
        raise _explained(file, error) from error


def _explained(file: TextFile, error: Exception) -> NRBFNError:
    message = str(error)
    if LONG_CELL.search(message):
        with file.open() as text:
            opened = open_quote(text, file.scan())
        if opened is not None:
            return _open_quote_error(file, opened)
        limit = _block_bytes(file.head())
        with file.open() as text:
            line = line_of_long_row(text, limit, file.scan())
        if line is not None:
            return DataError(
                f"{file} has a row of more than {limit} bytes in line {line}.",
                "Shorten its cells; labels are names of classes.",
            )
    if cell := BAD_CELL.search(message):
        return _bad_cell_error(file, *cell.groups())
    if "Empty CSV file" in message:
        return DataError(f"{file} is empty: it has no rows.", "Give at least one row.")
    if length := BAD_LENGTH.search(message):
        row, n_expected, n_found = map(int, length.groups())
        return DataError(
            f"{file} has a line of another length than its first row: line "
            f"{_line_of_row(file, _counted(file, row))} has {n_found} cells, not {n_expected}.",
            "Write as many cells in every line, with quotes around text that holds the delimiter.",
        )
    return not_csv(file.file, error)


def _bad_cell_error(file: TextFile, column: str, row: str, kind: str, value: str) -> DataError:
    name = file.dialect.names(_csv_schema(file).names)[int(column)]
    expected = "neither true nor false" if kind == "bool" else "not a number"
    remedy = (
        "Write numbers only, or true and false only, in the column of a feature or `target`, "
        "and numbers in that of `weights`."
    )
    if file.dialect.decimal != "," and DECIMAL_COMMA.fullmatch(value):
        remedy = "Say `decimal`=, if numbers have decimal commas."
    return DataError(
        f"Column {name!r} of {file} has {value!r} in line "
        f"{_line_of_row(file, _counted(file, int(row)))}, which is {expected}.",
        remedy,
    )


def _open_quote_error(file: TextFile, opened: int) -> DataError:
    with file.open() as text:
        line = line_of_byte(text, opened)
    quote = file.dialect.quote
    return DataError(
        f"{file} ends inside a quote that opens in line {line}.",
        f"Close it at the end of its cell, or write {quote}{quote} for a quote that belongs to "
        "the text.",
    )


def _counted(file: TextFile, row: int) -> int:
    """Return from 0 and without the header what pyarrow counts from 1 and with it."""
    return row - 1 - file.dialect.header


def _line_of_row(file: TextFile, row: int) -> int:
    """Line, from 1, in which a row begins whose number counts from 0 without the header."""
    skip_empty = _skips_empty_lines(file.head(), file.dialect.delimiter)
    with file.open() as text:
        return line_of_row(text, row + file.dialect.header, file.scan(), skip_empty=skip_empty)


def _floats(column: pa.Array) -> np.ndarray:
    if pa.types.is_boolean(column.type):
        column = pc.cast(pc.cast(column, pa.uint8()), pa.float64())
    return column.to_numpy(zero_copy_only=False)


def _are_integers(labels: pa.Array) -> bool:
    if not pc.all(pc.match_substring_regex(labels, CANONICAL_INTEGER), min_count=0).as_py():
        return False
    try:
        pc.cast(labels, pa.int64())
    except pa.ArrowInvalid:
        return False
    return True
