"""Rows, targets and weights of dask collections, checked before anything is computed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.rows import canonical, is_scipy
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.sources.dtypes import (
    FLOAT64,
    NO_LABEL,
    STRING,
    check_weight_dtype,
    feature_dtype,
    label_dtype,
    to_labels,
)
from dask_nrbfn.sources.frames import as_columns, plain_dtype, plain_rows, typed_labels
from dask_nrbfn.sources.source import Block, Source
from dask_nrbfn.storage.chunks import Mark

if TYPE_CHECKING:
    import dask.array as da
    from dask.delayed import Delayed

    from dask_nrbfn.sources.options import TableOptions

# Number of surveys that one task merges.
_MERGED = 8


@dataclass(kw_only=True)
class DaskRows(Source):
    """Rows, targets and weights of dask collections.

    rows (n, p): blocks are arrays, or in CSR.
    columns (n, ...): targets, then weights.
    """

    rows: "da.Array"
    columns: "tuple[da.Array | None, da.Array | None]"

    @classmethod
    def of(
        cls,
        rows: "da.Array",
        targets: "da.Array | None",
        weights: "da.Array | None",
        **options: Any,
    ) -> Self:
        """Return a source of rows; estimates the number of values in CSR from the first block."""
        n_values = None
        if is_scipy(rows._meta):
            first = rows.blocks[0].compute()
            n_values = round(first.nnz * rows.shape[0] / first.shape[0])
        return cls(
            n_rows=rows.shape[0],
            n_features=rows.shape[1],
            n_values=n_values,
            x_dtype=rows.dtype,
            y_dtype=None if targets is None else targets.dtype,
            has_weights=weights is not None,
            rows=rows,
            columns=(targets, weights),
            **options,
        )

    def _parts(self, block_rows: int) -> Iterator[Block]:
        """Yield the rows of each chunk in CSR; computes one chunk at a time."""
        import dask

        computed = (dask.compute(*part) for part in self.parts(self.rows.chunks[0]))
        return (Block(canonical(X), y, weights) for X, y, weights in computed)

    def parts(self, chunk_rows: int | tuple[int, ...]) -> "Iterator[tuple[Delayed | None, ...]]":
        """Yield rows, targets and weights of chunks of `chunk_rows` rows as delayed objects."""
        blocks = self.rows.rechunk((chunk_rows, -1)).to_delayed().ravel()
        columns = (
            [None] * len(blocks)
            if column is None
            else column.rechunk((chunk_rows, *column.shape[1:])).to_delayed().ravel()
            for column in self.columns
        )
        return zip(blocks, *columns, strict=True)


def dask_rows(
    X: Any, *, lengths: bool | None = None, name: str = "X", schema: Schema | None = None
) -> "da.Array":
    """Return the rows of a dask collection as numbers, or as a schema encodes them.

    lengths: whether the lengths of the partitions of a frame are computed.
    name: name of X in error messages.
    X (n, c), returns dask array (n, c).
    """
    if schema is not None:
        return _stored(X, schema, name)
    if hasattr(X, "columns"):
        for column, dtype in X.dtypes.items():
            if hasattr(dtype, "categories"):
                _check_known(X[column], f"Column {column!r} of {name}")
        X = X.map_partitions(plain_rows, name, meta=plain_rows(X._meta, name))
    rows = X.to_dask_array(lengths=lengths) if hasattr(X, "to_dask_array") else X
    if rows.ndim != 2 or 0 in rows.shape[1:]:
        raise _no_table(name, rows.shape)
    return rows.astype(feature_dtype(rows.dtype, name))


def _stored(X: Any, schema: Schema, name: str) -> "da.Array":
    """Return the rows of a dask collection as a schema encodes them, without counting them."""
    from dask_nrbfn.sources.stored import column_labels, stored_rows

    # Row numbers in error messages start at the first row of each block.
    n_columns, part = len(schema.columns), f"a block of {name}"
    if hasattr(X, "columns"):
        own = X[column_labels(X._meta, schema, name)]
        return own.map_partitions(stored_rows, schema, part, meta=np.empty((0, n_columns)))
    # Raises errors before anything is computed.
    stored_rows(_no_rows(X), schema, name)
    chunks = (X.chunks[0], (n_columns,))
    whole = X.rechunk({1: -1})
    return whole.map_blocks(stored_rows, schema, part, chunks=chunks, dtype=FLOAT64)


def rows_and_schema(
    X: Any, missing: str, schema: Schema | None
) -> "tuple[da.Array, Schema | None]":
    """Return the rows of a collection as they are to be stored, and their schema.

    missing: see `ingest_arrays`.
    schema: None: inferred from the values, which are then computed once more.
    rows (n, c): with known lengths.
    schema: None: all columns are numbers.
    X (n, c).
    """
    import dask
    import dask.array as da

    from dask_nrbfn.sources.stored import decided, frame_options, needs_schema

    options = frame_options(missing)
    if schema is not None or not needs_schema(_no_rows(X), options):
        return _counted_rows(X, schema=schema), schema
    parts = _parts(X)
    lengths = [dask.delayed(len)(part) for part in parts]
    surveys, *lengths = dask.compute(_surveyed(X, parts, options), *lengths)
    schema = decided(surveys, options)
    rows = dask_rows(X, schema=schema)
    return da.Array(rows.dask, rows.name, (tuple(lengths), rows.chunks[1]), rows.dtype), schema


def _no_rows(X: Any) -> Any:
    """Return an empty table in memory with the columns of a dask collection."""
    return X._meta if hasattr(X, "columns") else np.empty((0, *X.shape[1:]), dtype=X.dtype)


def _parts(X: Any) -> "list[Delayed]":
    """Return the partitions of a frame, or the blocks of an array, each with whole rows."""
    whole = X if hasattr(X, "columns") else X.rechunk({1: -1})
    return list(np.ravel(whole.to_delayed()))


def _surveyed(X: Any, parts: "list[Delayed]", options: "TableOptions") -> "Delayed":
    """Return the survey of the cells of each column over all parts."""
    import dask

    from dask_nrbfn.sources.stored import kinds_of, survey_columns, types_of
    from dask_nrbfn.sources.survey import merged

    found = [types_of(_no_rows(X))]
    if '"NULL"' in found[0].values() or _has_unknown_categories(X):
        # Only the parts show the types of these columns.
        found = dask.compute(*map(dask.delayed(types_of), parts))
    types = {column: {part[column] for part in found} for column in found[0]}
    kinds = kinds_of(types, options)
    fills = options.missing == "impute"
    surveys = [dask.delayed(survey_columns)(part, kinds, fills=fills) for part in parts]
    while len(surveys) > 1:
        groups = [surveys[first : first + _MERGED] for first in range(0, len(surveys), _MERGED)]
        surveys = list(map(dask.delayed(merged), groups))
    return surveys[0]


def _has_unknown_categories(X: Any) -> bool:
    dtypes = X.dtypes.items() if hasattr(X, "columns") else ()
    return any(hasattr(of, "categories") and not X[column].cat.known for column, of in dtypes)


def _counted_rows(X: Any, name: str = "X", schema: Schema | None = None) -> "da.Array":
    rows = _with_lengths(dask_rows(X, lengths=True, name=name, schema=schema))
    if len(rows) == 0:
        raise _no_table(name, rows.shape)
    return rows


def _no_table(name: str, shape: tuple[float, ...]) -> DataError:
    return DataError(
        f"{name} has shape {shape}.", "Give a table with at least one row and one column."
    )


def dask_numbers(target: Any, n_rows: int) -> "da.Array":
    """Return numeric targets, float64 (n, q)."""
    table = as_columns(target)
    numbers = _counted_rows(table[:, None] if table.ndim == 1 else table, "target")
    _check_length(numbers, n_rows, "target", "target")
    return numbers.astype(FLOAT64)


def dask_labels(y: Any, n_rows: int, unlabelled: Mark | None = None) -> "da.Array":
    """Return labels (n,), int64 or text; missing labels are those of `typed_labels`."""
    import dask.array as da

    if hasattr(y.dtype, "categories"):
        _check_known(y, "y")
    typed = isinstance(y.dtype, np.dtype)
    # Dask warns when it turns extension types of pandas into object arrays.
    labels = _dask_column(y if typed else y.astype(object), n_rows, "y", "label")
    # pandas stores text as Python objects; each block is checked when it is computed.
    given = plain_dtype(y.dtype)
    dtype = STRING if given.kind in "OT" else label_dtype(given, "y")
    return da.map_blocks(
        _block_labels, labels, dtype, unlabelled, dtype=dtype, meta=np.empty(0, dtype=dtype)
    )


def _check_known(column: Any, name: str) -> None:
    if not column.cat.known:
        raise DataError(
            f"{name} is a category whose values are unknown to dask.",
            "Make the categories known: X = X.categorize(), or y = y.cat.as_known().",
        )


def dask_weights(weights: Any, n_rows: int) -> "da.Array":
    """Return sample weights, float64 (n,)."""
    column = _dask_column(weights, n_rows, "weights", "weight")
    check_weight_dtype(column.dtype, "weights")
    return column.astype(FLOAT64)


def _dask_column(values: Any, n_rows: int, name: str, noun: str) -> "da.Array":
    column = _with_lengths(values)
    if column.ndim != 1:
        raise DataError(f"{name} has shape {column.shape}.", f"Give one {noun} per row of X.")
    _check_length(column, n_rows, name, noun)
    return column


def _check_length(column: "da.Array", n_rows: int, name: str, noun: str) -> None:
    if len(column) != n_rows:
        raise DataError(
            f"{name} has {len(column)} rows but X has {n_rows}.",
            f"Write {name} with one {noun} per row of X.",
        )


def _with_lengths(values: Any) -> "da.Array":
    array = values.to_dask_array(lengths=True) if hasattr(values, "to_dask_array") else values
    return array.compute_chunk_sizes() if np.isnan(sum(array.shape)) else array


def _block_labels(
    labels: NDArray[Any], dtype: np.dtype[Any], unlabelled: Mark | None, block_info: Any = None
) -> NDArray[Any]:
    first_row = block_info[0]["array-location"][0][0] if block_info else 0
    values = typed_labels(labels, first_row=first_row, unlabelled=unlabelled)
    values = to_labels(values, "y", first_row=first_row)
    if dtype == STRING and (values == NO_LABEL).all():
        # This block alone does not show that the other blocks have text.
        return np.full(len(values), str(unlabelled), dtype=dtype)
    if values.dtype != dtype:
        raise DataError(
            f"y has the label {labels[0]!r} in row {first_row} (the first is 0), as an object.",
            "Give the column a type, such as y.astype(bool), y.astype(int) or y.astype(str).",
        )
    return values
