"""Tables in memory: frames of any library, Arrow readers, and arrays of columns."""

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.sources.frames import arrow_of, as_frame
from dask_nrbfn.sources.relation import Table, connected, explained


def table_in_memory(
    X: Any,
    name: str,
    schema: Schema | None = None,
    *,
    marks: tuple[str, ...] = (),
    kept: NDArray[np.bool_] | None = None,
) -> Table:
    """Return the kept rows of a frame or of an array with a schema's columns, or a reader."""
    connection = connected()
    with explained(name):
        if isinstance(X, pa.RecordBatchReader):
            connection.from_arrow(X).create("rows")
            return Table.of(name, connection.table("rows"), connection, marks=marks)
        columns = _columns(X, name, schema)
        # DuckDB does not tell names apart that differ only in case.
        cells = pa.table({f"c{j}": column for j, column in enumerate(columns.values())})
        # Weights of another shape are refused where they are used.
        if kept is not None and kept.shape == (cells.num_rows,):
            cells = cells.filter(pa.array(kept))
        rows = connection.from_arrow(cells)
        return Table.of(name, rows, connection, names=[*columns], marks=marks)


def _columns(X: Any, name: str, schema: Schema | None) -> dict[str, pa.Array]:
    """Return the columns of a frame or array by their names."""
    frame = as_frame(X, name)
    if frame is not None:
        columns = {column.name: column for column in frame.iter_columns()}
    else:
        # Masked cells have no value.
        rows = X if isinstance(X, np.ma.MaskedArray) else np.asarray(X)
        if rows.ndim != 2:
            raise DataError(
                f"{name} has shape {rows.shape}.",
                "Give a frame in memory, or a dense array with two dimensions.",
            )
        columns = dict(zip(_array_names(rows.shape[1], name, schema), rows.T, strict=True))
    return {
        str(label): arrow_of(column, f"Column {label!r} of {name}")
        for label, column in columns.items()
    }


def _array_names(n_columns: int, name: str, schema: Schema | None) -> list[str]:
    """Return the names of the columns of an array: their numbers, or those of a schema."""
    numbered = [f"x{j}" for j in range(n_columns)]
    names = [] if schema is None else [column.name for column in schema.columns]
    if schema is None or {*numbered} == {*names, *schema.ignored}:
        return numbered
    if len(names) != n_columns:
        raise DataError(
            f"{name} has {n_columns} columns, but the model was trained on {len(names)}.",
            "Give a frame, or an array, with the columns of the training rows.",
        )
    return names
