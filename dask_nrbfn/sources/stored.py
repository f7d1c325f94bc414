"""Schemas and stored values of tables in memory, and of the parts of larger tables."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.sources.decide import GAP, check_gaps, decide
from dask_nrbfn.sources.frames import has_kinds
from dask_nrbfn.sources.memory import table_in_memory
from dask_nrbfn.sources.source import Reading
from dask_nrbfn.sources.survey import Cells, stored_of, survey, values_of
from dask_nrbfn.sources.tables import (
    check_columns,
    kinds_of,
    stored_batches,
    tell_unseen,
    unreadable,
    unseen_in,
)


def schema_of(X: Any, missing: str = "error", *, weights: Any = None) -> Schema | None:
    """Return the schema of a table (n, c); None if all columns are numbers.

    Rows of weight 0 are ignored.
    """
    if not needs_schema(X, missing):
        return None
    return decided(surveyed(X, fills=missing == "impute", weights=weights), missing)


def needs_schema(X: Any, missing: str) -> bool:
    """Return whether a schema is needed to make features of the columns of a table (n, c)."""
    if missing not in ("error", "impute"):
        raise ParameterError(
            f"`missing` is {missing!r}.", "Give error or impute, or remove rows yourself."
        )
    return missing == "impute" or has_kinds(X)


def surveyed(X: Any, *, fills: bool, weights: Any = None) -> dict[str, Cells]:
    """Return the statistics of each column of a table (n, c), without rows of weight 0."""
    table = table_in_memory(X, "X", kept=None if weights is None else np.asarray(weights) != 0)
    values = values_of(table, kinds_of(table, table.names))
    return dict(zip(values, survey(table, [*values.values()], fills=fills), strict=True))


def decided(cells: Mapping[str, Cells], missing: str) -> Schema:
    """Return the schema of surveyed columns."""
    schema = decide(cells, Reading(missing=missing), Schema(()), "X")
    if missing == "error":
        check_gaps({column.name: cells[column.name] for column in schema.columns}, "X", schema)
    return schema


def stored_rows(X: Any, schema: Schema, name: str = "X") -> Floats:
    """Return the stored rows (n, c) of a table (n, c)."""
    table = table_in_memory(X, name, schema)
    check_columns(schema, table.names, name)
    blocks = [block for block, _ in stored_batches(table, schema)]
    rows = np.concatenate([np.empty((0, len(schema.columns))), *blocks])
    if (bad := np.isinf(rows)).any():
        column = schema.columns[int(np.argwhere(bad)[0][1])]
        raise unreadable(table, column.name, stored_of(table, column))
    tell_unseen(unseen_in(rows, schema), name)
    return rows


def check_filled(stored: Floats, schema: Schema, *, first_row: int = 0, within: str = "") -> None:
    """Raise DataError naming the first value that is missing and is not filled in.

    `first_row` is the index of the first row, in the part of the table that `within` names.
    """
    gaps = np.isnan(stored)
    if gaps.any() and not schema.fills:
        row, place = np.argwhere(gaps)[0]
        raise DataError(
            f"Column {schema.columns[place].name!r} of X has no value in row "
            f"{first_row + row}{within} (the first is 0).",
            GAP,
        )
