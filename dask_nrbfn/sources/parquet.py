"""Rows from Parquet files, one or several.

Files are read one by one with pyarrow's own reader rather than as one pyarrow dataset: a dataset
reads whole row groups ahead, and fills columns that a file lacks with nulls.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from dask_nrbfn.errors import DamagedDataError, DataError, NRBFNError
from dask_nrbfn.sources.dtypes import (
    FLOAT64,
    INT64,
    LABEL_RULE,
    STRING,
    check_weight_dtype,
    to_labels,
)
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.layout import Layout, check_size
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

# X of one batch.
BATCH_BYTES = 4 << 20
# What pyarrow buffers of each column of a file; by default, all of a row group.
COLUMN_BYTES = 64 << 10


@dataclass(kw_only=True)
class ParquetSource(Layout):
    """Rows of Parquet files, in the order of `files`."""

    files: tuple[File, ...]
    label: str | None
    weights: str | None

    def blocks(self, block_rows: int) -> Iterator[Block]:
        """Yield all rows in order, `block_rows` at a time.

        Raises
        ------
        DataError
            If a feature, label, target or weight is null, a feature or target not finite, or a
            label not a whole number.
        DamagedDataError
            If a file is cut short.
        """
        return recut(self._batches(block_rows), block_rows)

    def _batches(self, block_rows: int) -> Iterator[Block]:
        targets = self.target_names or ()
        row_bytes = self.n_features * self.x_dtype.itemsize + len(targets) * FLOAT64.itemsize
        batch_rows = max(1, min(block_rows, BATCH_BYTES // row_bytes))
        named = [name for name in (self.label, self.weights) if name is not None]
        columns = [*(self.feature_names or ()), *targets, *named]
        for file in self.files:
            row = 0
            with _open_parquet(file) as opened:
                # All row groups at once would be fetched at once from a URL.
                for group in range(opened.num_row_groups):
                    for batch in opened.iter_batches(
                        batch_rows, row_groups=[group], columns=columns
                    ):
                        yield self._block(batch, file, row)
                        row += batch.num_rows

    def _block(self, batch: pa.RecordBatch, file: File, first_row: int) -> Block:
        # In the order of the file, not of the names asked for.
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        features = {name: columns[name] for name in self.feature_names or ()}
        X = _parquet_numbers(features, file, first_row, self.x_dtype)
        y = weights = None
        if self.target_names is not None:
            targets = {name: columns[name] for name in self.target_names}
            y = _parquet_numbers(targets, file, first_row, FLOAT64)
        elif self.label is not None:
            where = f"Column {self.label!r} of {file}"
            column = columns[self.label]
            _refuse_nulls(column, where, first_row)
            y = to_labels(label_values(column), where, first_row=first_row)
        if self.weights is not None:
            where = f"Column {self.weights!r} of {file}"
            _refuse_nulls(columns[self.weights], where, first_row)
            weights = _feature_values(columns[self.weights], where, first_row, FLOAT64)
        return Block(X, y, None if weights is None else weights.astype(FLOAT64, copy=False))


def open_parquet(
    files: tuple[File, ...],
    *,
    origin: str,
    label: str | None = None,
    targets: tuple[str, ...] | None = None,
    weights: str | None = None,
) -> ParquetSource:
    """Source of the rows of Parquet files, whose footers give size and types.

    Parameters
    ----------
    files : tuple of File
        With the same columns. Index columns written by pandas are not features.
    origin : str
        What the user named: the only path, or the directory.
    label : str, optional
        Label column.
    targets : tuple of str, optional
        Columns of numbers to be learned, instead of labels.
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
        If `weights` is also the label or a target.
    DamagedDataError
        If a file is not a Parquet file.
    """
    n_rows, schemas = 0, {}
    for file in files:
        with _open_parquet(file) as opened:
            schemas[file] = opened.schema_arrow
            n_rows += opened.metadata.num_rows
    asked = (label, *(targets or ()), weights)
    names = {file: _parquet_columns(schema, asked) for file, schema in schemas.items()}
    features = feature_columns(common_columns(names), label, targets, weights, origin)
    check_size(origin, n_rows=n_rows, n_features=len(features))
    feature_types, label_types = set(), set()
    for file, schema in schemas.items():
        types = dict(zip(schema.names, schema.types, strict=True))
        for name in features:
            feature_types.add(_feature_type(types[name], name, file))
        for name in targets or ():
            _feature_type(types[name], name, file)
        if label is not None:
            label_types.add(_label_type(types[label], label, file))
        if weights is not None:
            where = f"Column {weights!r} of {file}"
            check_weight_dtype(_feature_type(types[weights], weights, file), where)
    if len(label_types) > 1:
        raise DataError(
            f"Column {label!r} is numbers in some files of {origin} and strings in others.",
            "Write labels with one type.",
        )
    y_dtype = None if targets is None else FLOAT64
    return ParquetSource(
        n_rows=n_rows,
        n_features=len(features),
        x_dtype=_common_type(feature_types),
        y_dtype=label_types.pop() if label_types else y_dtype,
        has_weights=weights is not None,
        feature_names=features,
        target_names=targets,
        files=files,
        label=label,
        weights=weights,
    )


def _parquet_numbers(
    columns: Mapping[str, pa.Array], file: File, first_row: int, dtype: np.dtype
) -> np.ndarray:
    places = [f"Column {name!r} of {file}" for name in columns]
    arrays = list(columns.values())
    values = np.empty((len(arrays[0]), len(arrays)), dtype=dtype)
    for j, (column, where) in enumerate(zip(arrays, places, strict=True)):
        values[:, j] = _feature_values(column, where, first_row, dtype)
    wrong = first_not_finite(values)
    if wrong is not None:
        row, j = wrong
        place = f"row {first_row + row} (the first is 0)"
        raise not_finite_error(arrays[j][row], places[j], place)
    return values


@contextmanager
def _open_parquet(file: File) -> Iterator[parquet.ParquetFile]:
    try:
        with _parquet_file(file) as opened:
            yield opened
    except (NRBFNError, PermissionError):
        raise
    except (pa.ArrowException, OSError) as error:
        raise DamagedDataError(
            f"{file} cannot be read as Parquet: {error}.", "Write the file again."
        ) from error


@contextmanager
def _parquet_file(file: File) -> Iterator[parquet.ParquetFile]:
    if not file.is_remote:
        with parquet.ParquetFile(file, buffer_size=COLUMN_BYTES, pre_buffer=False) as opened:
            yield opened
        return
    # One request for what lies side by side in a row group, instead of one for each column.
    with (
        file.open(jumps=True, ahead=False) as stream,
        parquet.ParquetFile(stream, pre_buffer=True) as opened,
    ):
        yield opened


def _parquet_columns(schema: pa.Schema, asked: tuple[str | None, ...]) -> tuple[str, ...]:
    # pandas lists the index either as the name of a column or as a range that is not stored.
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    return tuple(name for name in schema.names if name not in index or name in asked)


def _feature_type(arrow: pa.DataType, name: str, file: File) -> np.dtype:
    if pa.types.is_dictionary(arrow):
        arrow = arrow.value_type
    if pa.types.is_boolean(arrow):
        return np.dtype(np.bool_)
    if pa.types.is_integer(arrow):
        return INT64
    if pa.types.is_float16(arrow) or pa.types.is_float32(arrow):
        return np.dtype(np.float32)
    if pa.types.is_float64(arrow) or pa.types.is_decimal(arrow):
        return FLOAT64
    raise DataError(
        f"Column {name!r} of {file} has type {arrow}, which is not a number.",
        "Write numbers, or true and false, in all columns but that of `label`.",
    )


def _common_type(types: set[np.dtype]) -> np.dtype:
    if types == {np.dtype(np.bool_)}:
        return np.dtype(np.uint8)
    if types <= {np.dtype(np.bool_), INT64}:
        return INT64
    return np.dtype(np.float32) if types == {np.dtype(np.float32)} else FLOAT64


def _label_type(arrow: pa.DataType, name: str, file: File) -> np.dtype:
    if pa.types.is_dictionary(arrow):
        arrow = arrow.value_type
    if pa.types.is_integer(arrow) or pa.types.is_boolean(arrow) or pa.types.is_floating(arrow):
        return INT64
    if pa.types.is_string(arrow) or pa.types.is_large_string(arrow):
        return STRING
    raise DataError(f"Label column {name!r} of {file} has type {arrow}.", LABEL_RULE)


def _feature_values(column: pa.Array, where: str, first_row: int, dtype: np.dtype) -> np.ndarray:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
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


def _refuse_nulls(column: pa.Array, where: str, first_row: int) -> None:
    if column.null_count:
        row = first_row + pc.index(pc.is_null(column), True).as_py()
        raise no_value_error(where, f"row {row} (the first is 0)")
