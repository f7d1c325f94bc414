"""The stored values of tables in memory: frames of any library, and arrays of columns."""

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dask_nrbfn.errors import Advice, DataError, ParameterError
from dask_nrbfn.numeric.schema import UNSEEN, Schema
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.sources.decide import FOR_FRAMES, decide
from dask_nrbfn.sources.frames import as_frame, has_kinds
from dask_nrbfn.sources.options import Roles, TableOptions
from dask_nrbfn.sources.relation import Table, table_of_arrow
from dask_nrbfn.sources.survey import (
    CellKind,
    Cells,
    cell_kind,
    stored_of,
    survey,
    unread_of,
)
from dask_nrbfn.sources.tables import bad_cells, schema_columns

logger = logging.getLogger(__name__)

_BATCH_ROWS = 1 << 16


def schema_of(
    X: Any, missing: str = "error", name: str = "X", *, weights: Any = None
) -> Schema | None:
    """Return the schema of a table in memory; None if all columns are numbers.

    name: the table, for errors.
    weights (n,): rows of weight 0 are ignored.
    X (n, c).
    """
    options = frame_options(missing)
    if not needs_schema(X, options, name):
        return None
    table = table_in_memory(X, name, kept=None if weights is None else np.asarray(weights) != 0)
    kinds = kinds_of({column: {of} for column, of in table.types.items()}, options, name)
    return decided(survey(table, kinds, fills=missing == "impute"), options, name)


def frame_options(missing: str) -> TableOptions:
    """Return the options of a table in memory, all columns of which are features."""
    if missing not in ("error", "impute"):
        raise ParameterError(
            f"`missing` is {missing!r}.", "Give error or impute, or remove rows yourself."
        )
    return TableOptions(missing=missing)


def needs_schema(X: Any, options: TableOptions, name: str = "X") -> bool:
    """Return whether a schema is needed to make features of the columns of a table (n, c)."""
    return options.missing == "impute" or has_kinds(X, name)


def types_of(X: Any, name: str = "X") -> dict[str, str]:
    """Return the SQL types of the columns of a frame, or of an array (n, c) as x0, x1, ..."""
    return dict(table_in_memory(X, name).types)


def kinds_of(
    types: Mapping[str, Collection[str]], options: TableOptions, name: str = "X"
) -> dict[str, CellKind]:
    """Return the kind that the cells of each column are read as.

    types: SQL types of each column in the parts of a table.
    name: the table, for errors.
    """
    kinds = {}
    for column, given in types.items():
        kind = cell_kind(options.kinds.get(column), given)
        if kind is None:
            raise DataError(
                f"Column {column!r} of {name} has type {', '.join(given)}, which is not a number, "
                "boolean, text, category or date.",
                "Leave the column out, or convert it.",
            )
        kinds[column] = kind
    return kinds


def survey_columns(X: Any, kinds: Mapping[str, CellKind], *, fills: bool) -> dict[str, Cells]:
    """Return the statistics of each column of a part of a table (n, c)."""
    return survey(table_in_memory(X, "X"), kinds, fills=fills)


def decided(cells: Mapping[str, Cells], options: TableOptions, name: str = "X") -> Schema:
    """Return the schema of surveyed columns; choices that no option made are logged."""
    schema, lines = decide(cells, Roles(), options, remedies=FOR_FRAMES, origin=name)
    if cells and not schema.columns:
        raise DataError(f"{name} has no feature: {lines[0]}", "Add feature columns.")
    for line in lines:
        logger.info("%s", Advice(line))
    return schema


def column_labels(X: Any, schema: Schema, name: str = "X") -> list[Any]:
    """Return the labels that the columns of a schema have in a frame, in the order of the schema.

    name: the table, for errors.
    """
    labels = {str(label): label for label in X.columns}
    names = tuple(labels)
    return [labels[column] for column in schema_columns(schema, names, name, names)]


def stored_rows(X: Any, schema: Schema, name: str = "X") -> Floats:
    """Return the stored rows (n, c) of a table (n, c).

    name: name of `X`, for the errors.
    """
    table = table_in_memory(X, name, schema)
    schema_columns(schema, table.names, name, table.names)
    n_columns = len(schema.columns)
    wanted = [stored_of(table, column) for column in schema.columns]
    wanted += [unread_of(table, column) for column in schema.columns]
    blocks = [np.empty((0, n_columns))]
    n_rows = 0
    for batch in table.batches(wanted, _BATCH_ROWS):
        values, unread = batch.columns[:n_columns], batch.columns[n_columns:]
        stored = np.stack([column.to_numpy(zero_copy_only=False) for column in values], axis=1)
        stored = stored.astype(np.float64)
        for row, place in np.argwhere(bad_cells(stored, unread)):
            cell = unread[place][int(row)].as_py() or stored[row, place]
            raise DataError(
                f"Column {schema.columns[place].name!r} of {name} has {cell!r} in row "
                f"{n_rows + row} (the first is 0).",
                "Give a value of the column's kind, or a missing value.",
            )
        blocks.append(stored)
        n_rows += len(stored)
    rows = np.concatenate(blocks)
    for place, column in enumerate(schema.columns):
        if column.kind == "category" and (n_unseen := int((rows[:, place] == UNSEEN).sum())):
            logger.warning(
                "%s: column %s: %d rows have a category that training did not have",
                name,
                column.name,
                n_unseen,
            )
    return rows


def check_gaps(
    stored: Floats,
    schema: Schema,
    *,
    first_row: int = 0,
    within: str = "",
    name: str = "X",
) -> None:
    """Raise DataError naming the first value that is missing and is not filled in.

    first_row: index of the first row, for the error.
    within: the part of the table that `first_row` counts in, for the error.
    name: the table, for errors.
    stored (b, c).
    """
    if schema.fills:
        return
    gaps = np.isnan(stored)
    if gaps.any():
        row, place = np.argwhere(gaps)[0]
        raise DataError(
            f"Column {schema.columns[place].name!r} of {name} has no value in row "
            f"{first_row + row}{within} (the first is 0).",
            FOR_FRAMES.gap,
        )


def table_in_memory(
    X: Any, name: str, schema: Schema | None = None, kept: NDArray[np.bool_] | None = None
) -> Table:
    """Return a frame, or an array (n, c) with the columns of a schema, as a table.

    kept (n,): which rows count, by default all.
    """
    frame = as_frame(X, name)
    if frame is not None:
        columns = {
            str(column.name): _arrow_of(column.to_arrow, column.name, name)
            for column in frame.iter_columns()
        }
    else:
        # Masked cells have no value.
        rows = X if isinstance(X, np.ma.MaskedArray) else np.asarray(X)
        if rows.ndim != 2:
            raise DataError(
                f"{name} has shape {rows.shape}.",
                "Give a frame in memory, or a dense array with two dimensions.",
            )
        names = _array_names(rows.shape[1], name, schema)
        columns = {
            column: _arrow_of(partial(pa.array, values, from_pandas=True), column, name)
            for column, values in zip(names, rows.T, strict=True)
        }
    cells = pa.table(columns)
    # Weights of another shape are refused where they are used.
    if kept is not None and kept.shape == (cells.num_rows,):
        cells = cells.filter(pa.array(kept))
    return table_of_arrow(name, cells)


def _array_names(n_columns: int, name: str, schema: Schema | None) -> list[str]:
    """Return the names of the columns of an array: their numbers, or those of a schema."""
    numbered = [f"x{j}" for j in range(n_columns)]
    if schema is None:
        return numbered
    names = [column.name for column in schema.columns]
    if {*numbered} == {*names, *schema.ignored}:
        return numbered
    if len(names) != n_columns:
        raise DataError(
            f"{name} has {n_columns} columns, but the model was trained on {len(names)}.",
            "Give a frame, or an array, with the columns of the training rows.",
        )
    return names


def _arrow_of(convert: Callable[[], pa.Array], column: Any, name: str) -> pa.Array:
    try:
        values = convert()
    except (ValueError, TypeError, OverflowError, NotImplementedError) as error:
        raise DataError(
            f"Column {column!r} of {name} has values of several types, or of an unknown "
            f"type ({error}).",
            "Convert the column to one type, such as float or str.",
        ) from error
    # DuckDB knows categories of text only.
    is_other = pa.types.is_dictionary(values.type) and not pa.types.is_string(
        values.type.value_type
    )
    return values.dictionary_decode() if is_other else values
