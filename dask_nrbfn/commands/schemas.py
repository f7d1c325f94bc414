"""Schemas in TOML files, and of stored datasets, runs and models."""

import os
import tomllib
from pathlib import Path

from dask_nrbfn.errors import DataError, MissingDataError, ParameterError
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.outputs import check_output_file, new_file
from dask_nrbfn.storage.group import Location, attributes_of, kind_of, open_group

_SUFFIX = ".toml"


def load_schema(location: Location) -> Schema:
    """Return the schema of a TOML file, a dataset, a run or a model."""
    if isinstance(location, str | os.PathLike) and Path(location).suffix == _SUFFIX:
        try:
            found = tomllib.loads(Path(location).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise MissingDataError(
                f"{location} is not a file.", "Give `schema` the path of a TOML file."
            ) from error
        except ValueError as error:
            problem = f"{location} cannot be read as TOML: {error}."
            raise DataError(problem, "Correct the file.") from error
        return Schema.from_dict(found)
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
    """Write a schema to a TOML file."""
    import tomli_w

    with new_file(path, overwrite=overwrite) as unfinished:
        unfinished.write_text(tomli_w.dumps(schema.to_dict()), encoding="utf-8")


def check_schema_file(path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Raise an error if no schema can be written to a path."""
    if Path(path).suffix != _SUFFIX:
        raise ParameterError(
            f"`write_schema` is {os.fspath(path)}.", "Give a name that ends in .toml."
        )
    check_output_file(path, overwrite=overwrite)
