"""Rows from tables with named columns: CSV and Parquet, one file or several.

Files are read one by one with pyarrow's own readers rather than as one pyarrow dataset: a dataset
reads whole row groups ahead, loses the line of a bad cell, and fills columns that a file lacks
with nulls.
"""

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet

from dask_nrbfn.errors import DamagedDataError, DataError, NRBFNError
from dask_nrbfn.sources.dtypes import FLOAT64, INT64, STRING, check_weight_dtype, to_labels
from dask_nrbfn.sources.layout import Layout, check_not_empty, check_weights_apart
from dask_nrbfn.sources.recut import recut
from dask_nrbfn.sources.source import Block

# X of one Parquet batch.
BATCH_BYTES = 4 << 20
# Text of one CSV batch. pyarrow reads dozens ahead and has no option against it: 480 MB of text
# took 213 MiB of memory with batches of 4 MiB and 96 MiB with 1 MiB; smaller was no slower.
TEXT_BYTES = 256 << 10
# A CSV batch must hold whole lines, and the first two only hint at the longest.
LINES_PER_BATCH = 16
# Bounds the search for a line end in a file that has none.
LONGEST_LINE_BYTES = 64 << 20
# What pyarrow buffers of each column of a Parquet file; by default, all of a row group.
COLUMN_BYTES = 64 << 10
CANONICAL_INTEGER = r"^(0|-?[1-9][0-9]*)$"
BAD_CELL = re.compile(
    r"CSV column #(\d+): Row #(\d+): CSV conversion error to \w+: invalid value '(.*)'$", re.DOTALL
)
NAMES_SHOWN = 10


@dataclass(kw_only=True)
class CsvSource(Layout):
    """Rows of CSV files, in the order of `paths`, with float64 features."""

    paths: tuple[str, ...]
    label: str | None
    weights: str | None

    def blocks(self, block_rows: int) -> Iterator[Block]:
        """Yield all rows in order, `block_rows` at a time; an empty feature or weight is NaN.

        Raises
        ------
        DataError
            If a feature or weight is not a number.
        DamagedDataError
            If a file cannot be read as CSV.
        """
        return recut(self._batches(), block_rows)

    def _batches(self) -> Iterator[Block]:
        types = dict.fromkeys(self.feature_names or (), pa.float64())
        if self.label is not None:
            types[self.label] = pa.int64() if self.y_dtype == INT64 else pa.string()
        if self.weights is not None:
            types[self.weights] = pa.float64()
        for path in self.paths:
            for batch in _csv_batches(path, types):
                X = np.empty((batch.num_rows, self.n_features))
                # In the order of `types`; finding each by its name takes quadratic time.
                columns = batch.columns
                for j in range(self.n_features):
                    X[:, j] = columns[j].to_numpy(zero_copy_only=False)
                yield Block(
                    X,
                    None if self.label is None else _label_values(columns[self.n_features]),
                    None if self.weights is None else columns[-1].to_numpy(zero_copy_only=False),
                )


@dataclass(kw_only=True)
class ParquetSource(Layout):
    """Rows of Parquet files, in the order of `paths`."""

    paths: tuple[str, ...]
    label: str | None
    weights: str | None

    def blocks(self, block_rows: int) -> Iterator[Block]:
        """Yield all rows in order, `block_rows` at a time; a null in a float column is NaN.

        Raises
        ------
        DataError
            If an integer or label is null, or a label is not a whole number.
        DamagedDataError
            If a file is cut short.
        """
        return recut(self._batches(block_rows), block_rows)

    def _batches(self, block_rows: int) -> Iterator[Block]:
        row_bytes = self.n_features * self.x_dtype.itemsize
        batch_rows = max(1, min(block_rows, BATCH_BYTES // row_bytes))
        named = [name for name in (self.label, self.weights) if name is not None]
        columns = [*(self.feature_names or ()), *named]
        for path in self.paths:
            row = 0
            with _open_parquet(path) as file:
                for batch in file.iter_batches(batch_rows, columns=columns):
                    yield self._block(batch, path, row)
                    row += batch.num_rows

    def _block(self, batch: pa.RecordBatch, path: str, first_row: int) -> Block:
        X = np.empty((batch.num_rows, self.n_features), dtype=self.x_dtype)
        # In the order of the file, not of the names asked for.
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        for j, name in enumerate(self.feature_names or ()):
            where = f"Column {name!r} of {path}"
            X[:, j] = _feature_values(columns[name], where, first_row, self.x_dtype)
        y = weights = None
        if self.label is not None:
            where = f"Column {self.label!r} of {path}"
            column = columns[self.label]
            _refuse_nulls(column, where, first_row)
            y = to_labels(_label_values(column), where, first_row=first_row)
        if self.weights is not None:
            where = f"Column {self.weights!r} of {path}"
            weights = _feature_values(columns[self.weights], where, first_row, FLOAT64)
        return Block(X, y, None if weights is None else weights.astype(FLOAT64, copy=False))


def open_csv(
    paths: tuple[str, ...], *, origin: str, label: str | None = None, weights: str | None = None
) -> CsvSource:
    """Source of the rows of CSV files; reads the label column once, for its type and length.

    Parameters
    ----------
    paths : tuple of str
        Files with the same columns, each with a header line; gzip where the name ends in .gz.
    origin : str
        What the user named: the only path, or the directory.
    label : str, optional
        Label column. Its type is int64 if every label is an integer as Python would write it
        ("3", "-1"; not "03" or "3.0"), otherwise string.
    weights : str, optional
        Column with the weights of the rows.

    Raises
    ------
    DataError
        If columns do not fit, there are no rows or no features, or a label is empty.
    ParameterError
        If `weights` is also `label`.
    DamagedDataError
        If a file cannot be read as CSV.
    """
    columns = _common_columns({path: _csv_columns(path) for path in paths})
    features = _features(columns, label, weights, origin)
    n_rows, integers = 0, True
    for path in paths:
        first_row = n_rows
        for batch in _csv_batches(path, {label or columns[0]: pa.string()}):
            if label is not None:
                labels = batch.column(label)
                _refuse_empty_labels(labels, f"Column {label!r} of {path}", n_rows - first_row)
                integers = integers and _are_integers(labels)
            n_rows += batch.num_rows
    check_not_empty(origin, n_rows=n_rows, n_features=len(features))
    return CsvSource(
        n_rows=n_rows,
        n_features=len(features),
        x_dtype=FLOAT64,
        y_dtype=None if label is None else INT64 if integers else STRING,
        has_weights=weights is not None,
        feature_names=features,
        paths=paths,
        label=label,
        weights=weights,
    )


def open_parquet(
    paths: tuple[str, ...], *, origin: str, label: str | None = None, weights: str | None = None
) -> ParquetSource:
    """Source of the rows of Parquet files, whose footers give size and types.

    Parameters
    ----------
    paths : tuple of str
        Files with the same columns. Index columns written by pandas are not features.
    origin : str
        What the user named: the only path, or the directory.
    label : str, optional
        Label column.
    weights : str, optional
        Column with the weights of the rows.

    Returns
    -------
    ParquetSource
        ``x_dtype`` is uint8 if all features are bool, int64 if all are integers or bool, float32
        if all are float16 or float32, otherwise float64.

    Raises
    ------
    DataError
        If columns or types do not fit, or there are no rows or no features.
    ParameterError
        If `weights` is also `label`.
    DamagedDataError
        If a file is not a Parquet file.
    """
    n_rows, schemas = 0, {}
    for path in paths:
        with _open_parquet(path) as file:
            schemas[path] = file.schema_arrow
            n_rows += file.metadata.num_rows
    names = {path: _parquet_columns(schema, (label, weights)) for path, schema in schemas.items()}
    features = _features(_common_columns(names), label, weights, origin)
    check_not_empty(origin, n_rows=n_rows, n_features=len(features))
    feature_types, label_types = set(), set()
    for path, schema in schemas.items():
        types = dict(zip(schema.names, schema.types, strict=True))
        for name in features:
            feature_types.add(_feature_type(types[name], name, path))
        if label is not None:
            label_types.add(_label_type(types[label], label, path))
        if weights is not None:
            where = f"Column {weights!r} of {path}"
            check_weight_dtype(_feature_type(types[weights], weights, path), where)
    if len(label_types) > 1:
        raise DataError(
            f"Column {label!r} is numbers in some files of {origin} and strings in others.",
            "Write labels with one type.",
        )
    return ParquetSource(
        n_rows=n_rows,
        n_features=len(features),
        x_dtype=_common_type(feature_types),
        y_dtype=label_types.pop() if label_types else None,
        has_weights=weights is not None,
        feature_names=features,
        paths=paths,
        label=label,
        weights=weights,
    )


def _common_columns(columns: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    first, *others = columns
    for path, names in columns.items():
        name, count = Counter(names).most_common(1)[0] if names else ("", 1)
        if count > 1:
            raise DataError(
                f"{path} has several columns named {name!r}.",
                "Give each column its own name, in the first line of a CSV file.",
            )
        if "" in names:
            raise DataError(
                f"Column {names.index('') + 1} of {path} has no name.",
                "Name it if it is a feature; leave it out if it is an index.",
            )
    for path in others:
        for name in sorted(set(columns[first]) ^ set(columns[path])):
            has, lacks = (first, path) if name in columns[first] else (path, first)
            raise DataError(
                f"{lacks} has no column {name!r}, which {has} has.",
                "Write the same columns to every file of a directory.",
            )
    return columns[first]


def _features(
    columns: tuple[str, ...], label: str | None, weights: str | None, origin: str
) -> tuple[str, ...]:
    check_weights_apart(weights, label)
    for option, wanted in (("label", label), ("weights", weights)):
        if wanted is not None and wanted not in columns:
            shown = ", ".join(repr(name) for name in columns[:NAMES_SHOWN])
            more = f" and {len(columns) - NAMES_SHOWN} more" if len(columns) > NAMES_SHOWN else ""
            raise DataError(
                f"{origin} has no column {wanted!r}; it has {shown}{more}.",
                f"Name one of its columns with `{option}`.",
            )
    return tuple(name for name in columns if name not in (label, weights))


def _csv_head(path: str) -> list[bytes]:
    opener = gzip.open if path.lower().endswith(".gz") else open
    try:
        with opener(path, "rb") as file:
            lines = [file.readline(LONGEST_LINE_BYTES) for _ in range(2)]
        if any(b"\0" in line for line in lines):
            raise ValueError("it has NUL bytes")
        lines[0].decode("utf-8")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise _not_csv(path, error) from error
    return lines


def _csv_reader(path: str, convert: csv.ConvertOptions) -> csv.CSVStreamingReader:
    head = _csv_head(path)
    block_bytes = max(TEXT_BYTES, LINES_PER_BATCH * max(len(line) for line in head))
    return csv.open_csv(
        path,
        # pyarrow gives the line of a bad cell only when it reads with one thread.
        read_options=csv.ReadOptions(use_threads=False, block_size=block_bytes),
        # In a table of one column, an empty line is an empty cell.
        parse_options=csv.ParseOptions(ignore_empty_lines=b"," in head[0]),
        convert_options=convert,
    )


def _csv_columns(path: str) -> tuple[str, ...]:
    with _csv_errors(path), _csv_reader(path, csv.ConvertOptions()) as reader:
        return tuple(reader.schema.names)


def _csv_batches(path: str, types: dict[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    convert = csv.ConvertOptions(column_types=types, include_columns=list(types))
    with _csv_errors(path), _csv_reader(path, convert) as reader:
        yield from reader


@contextmanager
def _csv_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (NRBFNError, PermissionError):
        raise
    except (ValueError, OSError) as error:
        message = str(error)
        if cell := BAD_CELL.search(message):
            column, line, text = cell.groups()
            name = _csv_columns(path)[int(column)]
            raise DataError(
                f"Column {name!r} of {path} has {text!r} in line {line}, which is not a number.",
                "Write numbers in all columns but the one named with `label`.",
            ) from error
        if "Empty CSV file" in message:
            raise DataError(
                f"{path} is empty: it has no rows.", "Give at least one row."
            ) from error
        if message.startswith("CSV parse error"):
            raise DataError(
                f"{path} has a line of another length than its header: {message}.",
                "Write as many cells in every line, with quotes around a comma.",
            ) from error
        raise _not_csv(path, error) from error


def _not_csv(path: str, error: Exception) -> DamagedDataError:
    return DamagedDataError(
        f"{path} cannot be read as CSV: {error}.", "Write it as comma-separated UTF-8 text."
    )


def _refuse_empty_labels(labels: pa.Array, where: str, first_row: int) -> None:
    _refuse_nulls(pc.if_else(pc.equal(labels, ""), None, labels), where, first_row)


def _are_integers(labels: pa.Array) -> bool:
    if not pc.all(pc.match_substring_regex(labels, CANONICAL_INTEGER), min_count=0).as_py():
        return False
    try:
        pc.cast(labels, pa.int64())
    except pa.ArrowInvalid:
        return False
    return True


@contextmanager
def _open_parquet(path: str) -> Iterator[parquet.ParquetFile]:
    try:
        with parquet.ParquetFile(path, buffer_size=COLUMN_BYTES, pre_buffer=False) as file:
            yield file
    except (NRBFNError, PermissionError):
        raise
    except (pa.ArrowException, OSError) as error:
        raise DamagedDataError(
            f"{path} cannot be read as Parquet: {error}.", "Write the file again."
        ) from error


def _parquet_columns(schema: pa.Schema, asked: tuple[str | None, ...]) -> tuple[str, ...]:
    # pandas lists the index either as the name of a column or as a range that is not stored.
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    return tuple(name for name in schema.names if name not in index or name in asked)


def _feature_type(arrow: pa.DataType, name: str, path: str) -> np.dtype:
    if pa.types.is_boolean(arrow):
        return np.dtype(np.bool_)
    if pa.types.is_integer(arrow):
        return INT64
    if pa.types.is_float16(arrow) or pa.types.is_float32(arrow):
        return np.dtype(np.float32)
    if pa.types.is_float64(arrow) or pa.types.is_decimal(arrow):
        return FLOAT64
    raise DataError(
        f"Column {name!r} of {path} has type {arrow}, which is not a number.",
        "Write numbers in all columns but the one named with `label`.",
    )


def _common_type(types: set[np.dtype]) -> np.dtype:
    if types == {np.dtype(np.bool_)}:
        return np.dtype(np.uint8)
    if types <= {np.dtype(np.bool_), INT64}:
        return INT64
    return np.dtype(np.float32) if types == {np.dtype(np.float32)} else FLOAT64


def _label_type(arrow: pa.DataType, name: str, path: str) -> np.dtype:
    if pa.types.is_dictionary(arrow):
        arrow = arrow.value_type
    if pa.types.is_integer(arrow) or pa.types.is_boolean(arrow) or pa.types.is_floating(arrow):
        return INT64
    if pa.types.is_string(arrow) or pa.types.is_large_string(arrow):
        return STRING
    raise DataError(
        f"Label column {name!r} of {path} has type {arrow}.", "Write labels as integers or strings."
    )


def _feature_values(column: pa.Array, where: str, first_row: int, dtype: np.dtype) -> np.ndarray:
    if pa.types.is_decimal(column.type):
        column = pc.cast(column, pa.float64())
    if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        _refuse_nulls(column, where, first_row)
    if pa.types.is_uint64(column.type) and dtype == INT64:
        try:
            column = pc.cast(column, pa.int64())
        except pa.ArrowInvalid as error:
            raise DataError(
                f"{where} has a number too large for int64 after row {first_row} (the first is 0).",
                "Write the column as float64.",
            ) from error
    return column.to_numpy(zero_copy_only=False)


def _label_values(column: pa.Array) -> np.ndarray:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    values = column.to_numpy(zero_copy_only=False)
    return values.astype(STRING) if values.dtype == object else values


def _refuse_nulls(column: pa.Array, where: str, first_row: int) -> None:
    if column.null_count:
        row = first_row + pc.index(pc.is_null(column), True).as_py()
        raise DataError(
            f"{where} has no value in row {row} (the first is 0).",
            "Fill the cell or leave the row out.",
        )
