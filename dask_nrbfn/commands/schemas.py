"""Schemas in TOML and JSON files, and of stored datasets, runs and models."""

import json
import os
import tomllib
from pathlib import Path
from typing import Any

from dask_nrbfn.errors import DataError, MissingDataError, ParameterError
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.outputs import new_file
from dask_nrbfn.storage.group import Location, attributes_of, kind_of, open_group

_SUFFIXES = (".toml", ".json")


def load_schema(location: Location) -> Schema:
    """Return the schema of a TOML or JSON file, a dataset, a run or a model."""
    if isinstance(location, str | os.PathLike) and Path(location).suffix in _SUFFIXES:
        return Schema.from_dict(_read_file(Path(location)))
    if kind_of(location, ("dataset", "run", "model")) == "dataset":
        group = open_group(location, kind="dataset")
    else:
        # Imports scipy, which no table needs.
        from dask_nrbfn.storage.model import open_model_group

        group = open_model_group(location)
    schema = Schema.of_record(attributes_of(group)["schema"])
    if schema is None:
        raise DataError(
            f"{location} has no schema: it was made of arrays of numbers.",
            "Leave `schema` out.",
        )
    return schema


def save_schema(schema: Schema, path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Write a schema to a TOML or JSON file."""
    import tomli_w

    check_schema_file(path)
    text = json.dumps(schema.to_dict(), indent=1, ensure_ascii=False) + "\n"
    if Path(path).suffix == ".toml":
        text = tomli_w.dumps(schema.to_dict())
    with new_file(path, overwrite=overwrite) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def check_schema_file(path: str | os.PathLike[str]) -> None:
    """Raise ParameterError if the suffix of a file is not that of a schema."""
    if Path(path).suffix not in _SUFFIXES:
        raise ParameterError(
            f"`write_schema` is {os.fspath(path)}.", "Give a name that ends in .toml or .json."
        )


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".toml":
            return tomllib.loads(text)
        return json.loads(text, object_pairs_hook=_distinct)
    except FileNotFoundError as error:
        raise MissingDataError(
            f"{path} is not a file.", "Give `schema` the path of a TOML or JSON file."
        ) from error
    except ValueError as error:
        raise DataError(
            f"{path} cannot be read as {path.suffix[1:].upper()}: {error}.", "Correct the file."
        ) from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; raise ValueError if it has two values of one name."""
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"{name!r} occurs twice")
        values[name] = value
    return values
