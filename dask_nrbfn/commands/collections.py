"""Rows, targets and weights of dask collections, checked before anything is computed."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.rows import canonical, is_scipy
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.sources.arrays import ArrayRows
from dask_nrbfn.sources.dtypes import FLOAT64, STRING, feature_dtype, label_dtype
from dask_nrbfn.sources.frames import labels_of, plain_dtype, plain_rows
from dask_nrbfn.sources.source import Block
from dask_nrbfn.storage.chunks import Mark

if TYPE_CHECKING:
    import dask.array as da
    from dask.delayed import Delayed

# Number of surveys that one task merges.
_MERGED = 8


class DaskRows(ArrayRows):
    """Rows of dask collections: X (n, p), also of blocks in CSR, and columns as `ArraySource`."""

    def __init__(self, X: Any, y: Any = None, weights: Any = None, target: Any = None) -> None:
        given = {"X": X, "y": y, "weights": weights, "target": target}
        names = {name.lower(): name for name, values in given.items() if values is not None}
        super().__init__({role: _counted(given[name]) for role, name in names.items()}, names)
        if is_scipy(self.arrays["x"]._meta):
            # An estimate from the first block.
            first = self.arrays["x"].blocks[0].compute()
            self.n_values = round(first.nnz * self.n_rows / first.shape[0])

    def _parts(self, block_rows: int) -> Iterator[Block]:
        """Yield the rows of each chunk in CSR; computes one chunk at a time."""
        import dask

        computed = (dask.compute(*part) for part in self.parts(self.arrays["x"].chunks[0]))
        return (Block(canonical(X), y, weights) for X, y, weights in computed)

    def parts(self, chunk_rows: int | tuple[int, ...]) -> "Iterator[tuple[Delayed | None, ...]]":
        """Yield rows, targets and weights of chunks of `chunk_rows` rows as delayed objects."""
        y, target, weights = map(self.arrays.get, ("y", "target", "weights"))
        blocks = self.arrays["x"].rechunk((chunk_rows, -1)).to_delayed().ravel()
        if target is not None:
            y = target.reshape(self.n_rows, -1).astype(FLOAT64)
        columns = (
            [None] * len(blocks)
            if column is None
            else column.rechunk((chunk_rows, *column.shape[1:])).to_delayed().ravel()
            for column in (y, None if weights is None else weights.astype(FLOAT64))
        )
        return zip(blocks, *columns, strict=True)


def dask_numbers(X: Any, name: str) -> "da.Array":
    """Return the numbers of a dask frame, and dask arrays unchanged."""
    if not hasattr(X, "columns"):
        return X
    return X.map_partitions(plain_rows, name, meta=plain_rows(X._meta, name))


def dask_rows(X: Any, *, schema: Schema | None = None) -> "da.Array":
    """Return the rows of a dask collection as numbers, or as a schema encodes them, (n, c)."""
    if schema is not None:
        return _stored(X, schema)
    rows = dask_numbers(X, "X")
    if rows.ndim != 2 or 0 in rows.shape[1:]:
        raise DataError(
            f"X has shape {rows.shape}.", "Give a table with at least one row and one column."
        )
    return rows.astype(feature_dtype(rows.dtype, "X"))


def _stored(X: Any, schema: Schema) -> "da.Array":
    """Return the rows of a dask collection as a schema encodes them, without counting them."""
    from dask_nrbfn.sources.tables import stored_rows

    n_columns, part = len(schema.columns), "a block of X"
    # Raises errors before anything is computed.
    stored_rows(_no_rows(X), schema)
    if hasattr(X, "columns"):
        names = {column.name for column in schema.columns}
        own = X[[label for label in X.columns if str(label) in names]]
        return own.map_partitions(stored_rows, schema, part, meta=np.empty((0, n_columns)))
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

    from dask_nrbfn.sources.tables import decided, needs_schema

    if schema is not None or not needs_schema(_no_rows(X), missing):
        return dask_rows(X, schema=schema), schema
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

    from dask_nrbfn.sources.survey import merged
    from dask_nrbfn.sources.tables import surveyed

    # Raises errors before anything is computed.
    surveyed(_no_rows(X), fills=False)
    surveys = [dask.delayed(surveyed)(part, fills=fills) for part in parts]
    while len(surveys) > 1:
        groups = [surveys[first : first + _MERGED] for first in range(0, len(surveys), _MERGED)]
        surveys = list(map(dask.delayed(merged), groups))
    return surveys[0]


def dask_labels(y: Any, unlabelled: Mark | None = None) -> "da.Array":
    """Return labels (n,) as `Labels.stored` of each block."""
    import dask.array as da

    # Dask warns when it turns extension types of pandas into object arrays.
    labels = _counted(y if isinstance(y.dtype, np.dtype) else y.astype(object))
    # pandas stores text as Python objects; each block is checked when it is computed.
    given = plain_dtype(y.dtype)
    dtype = STRING if given.kind in "OT" else label_dtype(given, "y")
    meta = np.empty((0,) * labels.ndim, dtype=dtype)
    return da.map_blocks(_block_labels, labels, dtype, unlabelled, dtype=dtype, meta=meta)


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


def _counted(values: Any) -> "da.Array":
    """Return a dask array with known lengths."""
    array = values.to_dask_array(lengths=True) if hasattr(values, "to_dask_array") else values
    return array.compute_chunk_sizes() if np.isnan(sum(array.shape)) else array
