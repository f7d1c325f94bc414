"""The stored values of tables in memory: frames of any library, and arrays of columns."""

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import narwhals as nw
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dask_nrbfn.errors import Advice, DataError, ParameterError
from dask_nrbfn.numeric.schema import Schema
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
from dask_nrbfn.sources.tables import bad_cells, schema_columns, tell_unseen, unseen_in

logger = logging.getLogger(__name__)

_BATCH_ROWS = 1 << 16


def schema_of(X: Any, missing: str = "error", *, weights: Any = None) -> Schema | None:
    """Return the schema of a table (n, c); None if all columns are numbers.

    Rows of weight 0 are ignored.
    """
    if not needs_schema(X, missing):
        return None
    table = table_in_memory(X, "X", kept=None if weights is None else np.asarray(weights) != 0)
    kinds = kinds_of({column: {of} for column, of in table.types.items()})
    return decided(survey(table, kinds, fills=missing == "impute"), missing)


def needs_schema(X: Any, missing: str) -> bool:
    """Return whether a schema is needed to make features of the columns of a table (n, c)."""
    if missing not in ("error", "impute"):
        raise ParameterError(
            f"`missing` is {missing!r}.", "Give error or impute, or remove rows yourself."
        )
    return missing == "impute" or has_kinds(X)


def types_of(X: Any) -> dict[str, str]:
    """Return the SQL types of the columns of a frame, or of an array (n, c) as x0, x1, ..."""
    return dict(table_in_memory(X, "X").types)


def kinds_of(types: Mapping[str, Collection[str]]) -> dict[str, CellKind]:
    """Return the kind of each column, from its SQL types in the parts of a table."""
    kinds = {}
    for column, given in types.items():
        kind = cell_kind(None, given)
        if kind is None:
            raise DataError(
                f"Column {column!r} of X has type {', '.join(given)}, which is not a number, "
                "boolean, text, category or date.",
                "Leave the column out, or convert it.",
            )
        kinds[column] = kind
    return kinds


def survey_columns(X: Any, kinds: Mapping[str, CellKind], *, fills: bool) -> dict[str, Cells]:
    """Return the statistics of each column of a part of a table (n, c)."""
    return survey(table_in_memory(X, "X"), kinds, fills=fills)


def decided(cells: Mapping[str, Cells], missing: str) -> Schema:
    """Return the schema of surveyed columns; choices that no option made are logged."""
    options = TableOptions(missing=missing)
    schema, lines, warnings = decide(cells, Roles(), options, remedies=FOR_FRAMES, origin="X")
    if cells and not schema.columns:
        raise DataError(f"X has no feature: {lines[0]}", "Add feature columns.")
    for line in lines:
        logger.info("%s", Advice(line))
    for warning in warnings:
        logger.warning("%s", Advice(warning))
    return schema


def column_labels(X: Any, schema: Schema, name: str = "X") -> list[Any]:
    """Return the labels that the columns of a schema have in a frame, in the schema's order."""
    labels = {str(label): label for label in X.columns}
    names = tuple(labels)
    return [labels[column] for column in schema_columns(schema, names, name, names)]


def stored_rows(X: Any, schema: Schema, name: str = "X") -> Floats:
    """Return the stored rows (n, c) of a table (n, c)."""
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
    tell_unseen(unseen_in(rows, schema), name)
    return rows


def check_gaps(stored: Floats, schema: Schema, *, first_row: int = 0, within: str = "") -> None:
    """Raise DataError naming the first value that is missing and is not filled in.

    `first_row` is the index of the first row, in the part of the table that `within` names.
    """
    gaps = np.isnan(stored)
    if gaps.any() and not schema.fills:
        row, place = np.argwhere(gaps)[0]
        raise DataError(
            f"Column {schema.columns[place].name!r} of X has no value in row "
            f"{first_row + row}{within} (the first is 0).",
            FOR_FRAMES.gap,
        )


def table_in_memory(
    X: Any, name: str, schema: Schema | None = None, kept: NDArray[np.bool_] | None = None
) -> Table:
    """Return the kept rows of a frame, or of an array with a schema's columns, as a table."""
    frame = as_frame(X, name)
    if frame is not None:
        columns = {column.name: column for column in frame.iter_columns()}
        convert: Callable[[Any], Any] = nw.Series.to_arrow
    else:
        # Masked cells have no value.
        rows = X if isinstance(X, np.ma.MaskedArray) else np.asarray(X)
        if rows.ndim != 2:
            raise DataError(
                f"{name} has shape {rows.shape}.",
                "Give a frame in memory, or a dense array with two dimensions.",
            )
        columns = dict(zip(_array_names(rows.shape[1], name, schema), rows.T, strict=True))
        convert = partial(pa.array, from_pandas=True)
    cells = pa.table(
        {str(label): _arrow_of(convert, values, label, name) for label, values in columns.items()}
    )
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


def _arrow_of(convert: Callable[[Any], Any], values: Any, label: Any, name: str) -> pa.Array:
    try:
        cells = convert(values)
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        raise DataError(
            f"Column {label!r} of {name} has values of several types, or of an unknown type "
            f"({error}).",
            "Convert the column to one type, such as float or str.",
        ) from error
    # DuckDB knows categories of text only.
    is_other = pa.types.is_dictionary(cells.type) and not pa.types.is_string(cells.type.value_type)
    return cells.dictionary_decode() if is_other else cells
