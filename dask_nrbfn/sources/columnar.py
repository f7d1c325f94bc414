"""Rows of files whose columns have types, one or several.

Files are read one by one with pyarrow's own readers rather than as one pyarrow dataset: a dataset
reads whole row groups ahead, and fills columns that a file lacks with nulls.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
from dask_nrbfn.sources.survey import Roles, TableOptions
from dask_nrbfn.sources.tables import (
    Asked,
    common_columns,
    first_not_finite,
    label_values,
    no_value_error,
    not_finite_error,
)

logger = logging.getLogger(__name__)

# X of one batch.
BATCH_BYTES = 4 << 20
# What Hive calls the directory of rows that have no value.
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


class Table(Protocol):
    """A file of columns with names and types; its text is the path."""

    def footer(self) -> tuple[pa.Schema, int]:
        """Return the columns and the number of rows."""
        ...

    def batches(self, columns: Sequence[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some columns in order, at most `batch_rows` at a time.

        The columns may be in any order.
        """
        ...


@dataclass(frozen=True, eq=False)
class KeyedTable:
    """A `Table` with further columns, whose values are the same in all of its rows.

    Attributes
    ----------
    table : Table
    keys : mapping
        The value of each.
    """

    table: Table
    keys: Mapping[str, pa.Scalar]

    def __str__(self) -> str:
        return str(self.table)

    def footer(self) -> tuple[pa.Schema, int]:
        """Return the columns and the number of rows."""
        schema, n_rows = self.table.footer()
        for name, value in self.keys.items():
            schema = schema.append(pa.field(name, value.type))
        return schema, n_rows

    def batches(self, columns: Sequence[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some columns."""
        keys = {name: value for name, value in self.keys.items() if name in columns}
        own = [name for name in columns if name not in keys]
        for batch in self.table.batches(own, batch_rows):
            for name, value in keys.items():
                batch = batch.append_column(name, pa.repeat(value, batch.num_rows))
            yield batch


def with_keys(tables: Mapping[Table, Mapping[str, str]]) -> list[Table]:
    """Return tables with the columns that the names of their directories are, key=value.

    Of the columns that a file has itself, the names of its directories say nothing new. The type
    of a key is that of all its values: integers, numbers, truth values, dates or text.
    """
    names = list(dict.fromkeys(name for keys in tables.values() for name in keys))
    if not names:
        return list(tables)
    logger.info("ingest: columns %s are from the names of directories", ", ".join(names))
    values = {name: _typed([keys.get(name) for keys in tables.values()]) for name in names}
    keyed: list[Table] = []
    for place, (table, keys) in enumerate(tables.items()):
        own = set(table.footer()[0].names)
        further = {name: values[name][place] for name in keys if name not in own}
        keyed.append(KeyedTable(table, further))
    return keyed


def _typed(texts: Sequence[str | None]) -> pa.Array:
    values = pa.array([None if text == HIVE_NULL else text for text in texts], pa.string())
    for dtype in (pa.int64(), pa.float64(), pa.bool_(), pa.date32()):
        with suppress(pa.ArrowInvalid):
            return pc.cast(values, dtype)
    return values


@contextmanager
def damage_named(file: File, format_name: str) -> Iterator[None]:
    """Name the file in what pyarrow says of bytes that are not of its format."""
    try:
        yield
    except (NRBFNError, PermissionError):
        raise
    except (pa.ArrowException, OSError) as error:
        raise DamagedDataError(
            f"{file} cannot be read as {format_name}: {error}.", "Write the file again."
        ) from error


@dataclass(kw_only=True)
class ColumnarSource(Layout):
    """Rows of tables, in their order.

    Attributes
    ----------
    tables : tuple of Table
    lengths : mapping
        Columns of features, and how long the lists of each are; None where they are numbers.
    label, weights : str or None
    """

    tables: tuple[Table, ...]
    lengths: Mapping[str, int | None]
    label: str | None
    weights: str | None

    def blocks(self, block_rows: int) -> Iterator[Block]:
        """Yield all rows in order, `block_rows` at a time.

        Raises
        ------
        DataError
            If a feature, label, target or weight is null, a feature or target not finite, a label
            not a whole number, or a list of another length.
        DamagedDataError
            If a file is cut short.
        """
        return recut(self._batches(block_rows), block_rows)

    def _batches(self, block_rows: int) -> Iterator[Block]:
        targets = self.target_names or ()
        row_bytes = self.n_features * self.x_dtype.itemsize + len(targets) * FLOAT64.itemsize
        batch_rows = max(1, min(block_rows, BATCH_BYTES // row_bytes))
        named = [name for name in (self.label, self.weights) if name is not None]
        columns = [*self.lengths, *targets, *named]
        for table in self.tables:
            row = 0
            for batch in table.batches(columns, batch_rows):
                yield self._block(batch, table, row)
                row += batch.num_rows

    def _block(self, batch: pa.RecordBatch, table: Table, first_row: int) -> Block:
        # In the order of the file, not of the names asked for.
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        features = {name: columns[name] for name in self.lengths}
        X = _numbers(features, self.lengths, table, first_row, self.x_dtype)
        y = weights = None
        if self.target_names is not None:
            targets = {name: columns[name] for name in self.target_names}
            y = _numbers(targets, dict.fromkeys(targets), table, first_row, FLOAT64)
        elif self.label is not None:
            where = f"Column {self.label!r} of {table}"
            column = columns[self.label]
            _refuse_nulls(column, where, first_row)
            y = to_labels(label_values(column), where, first_row=first_row)
        if self.weights is not None:
            where = f"Column {self.weights!r} of {table}"
            _refuse_nulls(columns[self.weights], where, first_row)
            weights = _feature_values(columns[self.weights], where, first_row, FLOAT64)
        return Block(X, y, None if weights is None else weights.astype(FLOAT64, copy=False))


def open_columnar(
    tables: Sequence[Table],
    *,
    origin: str,
    x: tuple[str, ...] | None = None,
    label: str | None = None,
    targets: tuple[str, ...] | None = None,
    weights: str | None = None,
) -> ColumnarSource:
    """Source of the rows of tables, whose footers give size and types.

    Parameters
    ----------
    tables : sequence of Table
        With the same columns. Index columns written by pandas are not features.
    origin : str
        What the user named: the only path, or the directory.
    x : tuple of str, optional
        Columns of features, by default all others. Of a column with lists of numbers, each element
        is a feature.
    label : str, optional
        Label column.
    targets : tuple of str, optional
        Columns of numbers to be learned, instead of labels.
    weights : str, optional
        Column with the weights of the rows.

    Returns
    -------
    ColumnarSource
        ``x_dtype`` is uint8 if all features are bool, int64 if all are integers or bool, float32
        if all are float16 or float32, otherwise float64.

    Raises
    ------
    DataError
        If columns or types do not fit, or there are no rows or no features.
    ParameterError
        If `weights` is also the label or a target.
    DamagedDataError
        If a file is not of the format that its name says.
    """
    footers = {table: table.footer() for table in tables}
    asked = (label, *(targets or ()), weights)
    names = {table: _columns(schema, asked) for table, (schema, _) in footers.items()}
    roles = Roles(label, targets, weights)
    features = (
        Asked(origin=origin, roles=roles, options=TableOptions())
        .columns(common_columns(names))
        .features
    )
    if x is not None:
        features = _named_columns(features, x, origin)
    n_rows = sum(n_rows for _, n_rows in footers.values())
    check_size(origin, n_rows=n_rows, n_features=len(features))
    feature_types, label_types = set(), set()
    for table, (schema, _) in footers.items():
        types = dict(zip(schema.names, schema.types, strict=True))
        for name in features:
            is_list = x is not None and _is_list(types[name])
            of = types[name].value_type if is_list else types[name]
            feature_types.add(_feature_type(of, name, table))
        for name in targets or ():
            _feature_type(types[name], name, table)
        if label is not None:
            label_types.add(_label_type(types[label], label, table))
        if weights is not None:
            where = f"Column {weights!r} of {table}"
            check_weight_dtype(_feature_type(types[weights], weights, table), where)
    if len(label_types) > 1:
        raise DataError(
            f"Column {label!r} is numbers in some files of {origin} and strings in others.",
            "Write labels with one type.",
        )
    types = footers[tables[0]][0]
    lengths = {
        name: _length(tables, name) if _is_list(types.field(name).type) else None
        for name in features
    }
    feature_names = tuple(name for column in lengths.items() for name in _feature_names(*column))
    y_dtype = None if targets is None else FLOAT64
    return ColumnarSource(
        n_rows=n_rows,
        n_features=len(feature_names),
        x_dtype=_common_type(feature_types),
        y_dtype=label_types.pop() if label_types else y_dtype,
        has_weights=weights is not None,
        feature_names=feature_names,
        target_names=targets,
        tables=tuple(tables),
        lengths=lengths,
        label=label,
        weights=weights,
    )


def _columns(schema: pa.Schema, asked: tuple[str | None, ...]) -> tuple[str, ...]:
    # pandas lists the index either as the name of a column or as a range that is not stored.
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    return tuple(name for name in schema.names if name not in index or name in asked)


def _named_columns(columns: tuple[str, ...], x: tuple[str, ...], origin: str) -> tuple[str, ...]:
    for name in x:
        if name not in columns:
            raise DataError(
                f"{origin} has no column {name!r} that holds nothing else.",
                "Name columns of features with `x`.",
            )
    return tuple(name for name in columns if name in x)


def _is_text(arrow: pa.DataType) -> bool:
    return (
        pa.types.is_string(arrow)
        or pa.types.is_large_string(arrow)
        or pa.types.is_string_view(arrow)
    )


def _is_list(arrow: pa.DataType) -> bool:
    return any(
        is_kind(arrow)
        for is_kind in (
            pa.types.is_list,
            pa.types.is_large_list,
            pa.types.is_fixed_size_list,
            pa.types.is_list_view,
            pa.types.is_large_list_view,
        )
    )


def _length(tables: Sequence[Table], name: str) -> int:
    """Return how long the first list of a column is, of which every row has one."""
    firsts = (batch.column(0)[0] for table in tables for batch in table.batches([name], 1))
    first = next(firsts).as_py()
    if not first:
        raise no_value_error(f"Column {name!r} of {tables[0]}", "its first row")
    return len(first)


def _feature_names(name: str, length: int | None) -> list[str]:
    return [name] if length is None else [f"{name}_{place}" for place in range(length)]


def _numbers(
    columns: Mapping[str, pa.Array],
    lengths: Mapping[str, int | None],
    table: Table,
    first_row: int,
    dtype: np.dtype,
) -> np.ndarray:
    widths = {name: lengths[name] or 1 for name in columns}
    values = np.empty((len(next(iter(columns.values()))), sum(widths.values())), dtype=dtype)
    start = 0
    for name, column in columns.items():
        where = f"Column {name!r} of {table}"
        if lengths[name] is not None:
            column = _elements(column, widths[name], where, first_row)
        stop = start + widths[name]
        numbers = _feature_values(column, where, first_row, dtype)
        values[:, start:stop] = numbers.reshape(-1, widths[name])
        start = stop
    wrong = first_not_finite(values)
    if wrong is not None:
        row, j = wrong
        name, place = [(name, place) for name in columns for place in range(widths[name])][j]
        cell = columns[name][row]
        if lengths[name] is not None:
            cell = cell.values[place]
        where = f"Column {name!r} of {table}"
        raise not_finite_error(cell, where, f"row {first_row + row} (the first is 0)")
    return values


def _elements(lists: pa.Array, length: int, where: str, first_row: int) -> pa.Array:
    """Return the numbers of all lists, none of which is null or of another length."""
    _refuse_nulls(lists, where, first_row)
    lengths = pc.list_value_length(lists)
    other = pc.index(pc.not_equal(lengths, length), True).as_py()
    if other >= 0:
        raise DataError(
            f"{where} has a list of {lengths[other]} in row {first_row + other} (the first is 0), "
            f"not of {length}.",
            "Write lists of one length.",
        )
    elements = lists.flatten()
    if elements.null_count:
        row = first_row + pc.index(pc.is_null(elements), True).as_py() // length
        raise no_value_error(where, f"row {row} (the first is 0)")
    return elements


def _feature_type(arrow: pa.DataType, name: str, table: Table) -> np.dtype:
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
        f"Column {name!r} of {table} has type {arrow}, which is not a number.",
        "Write numbers, or true and false, in all columns but that of `label`; name a column of "
        "lists of numbers as `x`.",
    )


def _common_type(types: set[np.dtype]) -> np.dtype:
    if types == {np.dtype(np.bool_)}:
        return np.dtype(np.uint8)
    if types <= {np.dtype(np.bool_), INT64}:
        return INT64
    return np.dtype(np.float32) if types == {np.dtype(np.float32)} else FLOAT64


def _label_type(arrow: pa.DataType, name: str, table: Table) -> np.dtype:
    if pa.types.is_dictionary(arrow):
        arrow = arrow.value_type
    if pa.types.is_integer(arrow) or pa.types.is_boolean(arrow) or pa.types.is_floating(arrow):
        return INT64
    if _is_text(arrow):
        return STRING
    raise DataError(f"Label column {name!r} of {table} has type {arrow}.", LABEL_RULE)


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
