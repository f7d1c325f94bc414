"""A schema among the attributes of what has one."""

from collections.abc import Mapping
from typing import Any

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
