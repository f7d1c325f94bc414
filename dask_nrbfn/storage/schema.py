"""A schema among the attributes of what has one."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.storage.group import EXPANDED_VERSION


def schema_attributes(schema: Schema | None) -> dict[str, Any]:
    """Return what a group records of a schema, which those that have none may lack."""
    if schema is None:
        return {}
    # Who does not know schemas would take stored values for features.
    version = {} if schema.is_plain else {"format_version": EXPANDED_VERSION}
    return {"schema": schema.to_dict(), **version}


def read_schema(attributes: Mapping[str, Any]) -> Schema | None:
    """Return the schema that a group records.

    Raises
    ------
    DataError
        If it is none.
    """
    recorded = attributes.get("schema")
    return None if recorded is None else Schema.from_dict(recorded)


def check_gaps(stored: NDArray[Any], schema: Schema | None, first_row: int, place: object) -> None:
    """Raise DataError naming the first gap of stored values (b, c) of a dataset at `place`."""
    gaps = np.isnan(stored)
    if gaps.any():
        row, column = np.argwhere(gaps)[0]
        assert schema is not None
        raise DataError(
            f"Column {schema.columns[column].name!r} of {place} has no value in row "
            f"{first_row + row} (the first is 0), and the schema fills none.",
            "Take a `schema` that fills gaps, or leave the row out.",
        )
