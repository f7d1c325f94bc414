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
    STRING,
    check_weight_dtype,
    feature_dtype,
    label_dtype,
)
from dask_nrbfn.sources.frames import as_columns, labels_of, plain_dtype, plain_rows
from dask_nrbfn.sources.source import Block, Source
from dask_nrbfn.storage.chunks import Mark

if TYPE_CHECKING:
    import dask.array as da
    from dask.delayed import Delayed

# Number of surveys that one task merges.
_MERGED = 8


@dataclass(kw_only=True)
class DaskRows(Source):
    """Rows (n, p), in blocks that are arrays or CSR; and targets, then weights, (n, ...)."""

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


def dask_rows(X: Any, *, name: str = "X", schema: Schema | None = None) -> "da.Array":
    """Return the rows of a dask collection as numbers, or as a schema encodes them, (n, c)."""
    if schema is not None:
        return _stored(X, schema, name)
    rows = X
    if hasattr(X, "columns"):
        rows = X.map_partitions(plain_rows, name, meta=plain_rows(X._meta, name))
    if rows.ndim != 2 or 0 in rows.shape[1:]:
        raise _no_table(name, rows.shape)
    return rows.astype(feature_dtype(rows.dtype, name))


def _stored(X: Any, schema: Schema, name: str) -> "da.Array":
    """Return the rows of a dask collection as a schema encodes them, without counting them."""
    from dask_nrbfn.sources.stored import column_labels, stored_rows

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
    """Return the rows (n, c) of a collection as they are to be stored, and their schema.

    A schema that is not given is decided from the values, which are then computed once more.
    """
    import dask
    import dask.array as da

    from dask_nrbfn.sources.stored import decided, needs_schema

    if schema is not None or not needs_schema(_no_rows(X), missing):
        return _counted_rows(dask_rows(X, schema=schema), "X"), schema
    whole = X if hasattr(X, "columns") else X.rechunk({1: -1})
    parts = list(np.ravel(whole.to_delayed()))
    lengths = [dask.delayed(len)(part) for part in parts]
    surveyed = _surveyed(X, parts, fills=missing == "impute")
    cells, *lengths = dask.compute(surveyed, *lengths)
    schema = decided(cells, missing)
    rows = dask_rows(X, schema=schema)
    return da.Array(rows.dask, rows.name, (tuple(lengths), rows.chunks[1]), rows.dtype), schema


def _no_rows(X: Any) -> Any:
    """Return an empty table in memory with the columns of a dask collection."""
    return X._meta if hasattr(X, "columns") else np.empty((0, *X.shape[1:]), dtype=X.dtype)


def _surveyed(X: Any, parts: "list[Delayed]", *, fills: bool) -> "Delayed":
    """Return the statistics of the cells of each column over all parts."""
    import dask

    from dask_nrbfn.sources.stored import kinds_of, survey_columns, types_of
    from dask_nrbfn.sources.survey import merged

    found = [types_of(_no_rows(X))]
    if '"NULL"' in found[0].values() or _has_unknown_categories(X):
        # Only the parts show the types of these columns.
        found = dask.compute(*map(dask.delayed(types_of), parts))
    kinds = kinds_of({column: {part[column] for part in found} for column in found[0]})
    surveys = [dask.delayed(survey_columns)(part, kinds, fills=fills) for part in parts]
    while len(surveys) > 1:
        groups = [surveys[first : first + _MERGED] for first in range(0, len(surveys), _MERGED)]
        surveys = list(map(dask.delayed(merged), groups))
    return surveys[0]


def _has_unknown_categories(X: Any) -> bool:
    dtypes = X.dtypes.items() if hasattr(X, "columns") else ()
    return any(hasattr(of, "categories") and not X[column].cat.known for column, of in dtypes)


def _no_table(name: str, shape: tuple[float, ...]) -> DataError:
    return DataError(
        f"{name} has shape {shape}.", "Give a table with at least one row and one column."
    )


def dask_numbers(target: Any, n_rows: int) -> "da.Array":
    """Return numeric targets, float64 (n, q)."""
    table = as_columns(target)
    table = table[:, None] if table.ndim == 1 else table
    numbers = _counted_rows(dask_rows(table, name="target"), "target")
    _check_length(numbers, n_rows, "target", "target")
    return numbers.astype(FLOAT64)


def dask_labels(y: Any, n_rows: int, unlabelled: Mark | None = None) -> "da.Array":
    """Return labels (n,) as `Labels.stored` of each block."""
    import dask.array as da

    typed = isinstance(y.dtype, np.dtype)
    # Dask warns when it turns extension types of pandas into object arrays.
    labels = _dask_column(y if typed else y.astype(object), n_rows, "y", "label")
    # pandas stores text as Python objects; each block is checked when it is computed.
    given = plain_dtype(y.dtype)
    dtype = STRING if given.kind in "OT" else label_dtype(given, "y")
    return da.map_blocks(
        _block_labels, labels, dtype, unlabelled, dtype=dtype, meta=np.empty(0, dtype=dtype)
    )


def _block_labels(
    labels: NDArray[Any], dtype: np.dtype[Any], unlabelled: Mark | None, block_info: Any = None
) -> NDArray[Any]:
    first_row = block_info[0]["array-location"][0][0] if block_info else 0
    found = labels_of(labels, unlabelled, first_row=first_row)
    if dtype == STRING and found.missing is not None and found.missing.all():
        # This block alone does not show that the other blocks have text.
        return np.full(len(labels), str(unlabelled), dtype=dtype)
    stored = found.stored(unlabelled)
    if stored.dtype != dtype:
        raise DataError(
            f"y has the label {labels[0]!r} in row {first_row} (the first is 0), as an object.",
            "Give the column a type, such as y.astype(bool), y.astype(int) or y.astype(str).",
        )
    return stored


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


def _counted_rows(rows: "da.Array", name: str) -> "da.Array":
    counted = _with_lengths(rows)
    if not len(counted):
        raise _no_table(name, counted.shape)
    return counted


def _check_length(column: "da.Array", n_rows: int, name: str, noun: str) -> None:
    if len(column) != n_rows:
        raise DataError(
            f"{name} has {len(column)} rows but X has {n_rows}.",
            f"Write {name} with one {noun} per row of X.",
        )


def _with_lengths(values: Any) -> "da.Array":
    array = values.to_dask_array(lengths=True) if hasattr(values, "to_dask_array") else values
    return array.compute_chunk_sizes() if np.isnan(sum(array.shape)) else array
