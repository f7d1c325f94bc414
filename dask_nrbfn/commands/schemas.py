"""Schemas in TOML and JSON files, and of stored datasets, runs and models."""

import json
import os
import tomllib
from collections import Counter
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
        return _of_file(Path(location))
    schema = Schema.of_record(_attributes(location)["schema"])
    if schema is None:
        raise DataError(
            f"{location} has no schema: it was made of arrays of numbers.",
            "Leave `schema` out.",
        )
    return schema


def save_schema(schema: Schema, path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Write a schema to a TOML or JSON file."""
    check_schema_file(path)
    with new_file(path, overwrite=overwrite) as unfinished:
        unfinished.write_text(_text(schema, Path(path).suffix), encoding="utf-8")


def check_schema_file(path: str | os.PathLike[str]) -> None:
    """Raise ParameterError if the suffix of a file is not that of a schema."""
    if Path(path).suffix not in _SUFFIXES:
        raise ParameterError(
            f"`write_schema` is {os.fspath(path)}.", "Give a name that ends in .toml or .json."
        )


def _attributes(location: Location) -> dict[str, Any]:
    if kind_of(location, ("dataset", "run", "model")) == "dataset":
        return attributes_of(open_group(location, kind="dataset"))
    # Imports scipy, which no table needs.
    from dask_nrbfn.storage.model import open_model_group

    return attributes_of(open_model_group(location))


def _of_file(path: Path) -> Schema:
    """Return the schema of a file; raise DataError if no cell can be read as it says."""
    import pyarrow as pa

    from dask_nrbfn.sources.cells import texts_of
    from dask_nrbfn.sources.written import is_way

    schema = Schema.from_dict(_read_file(path))
    for column in schema.columns:
        if column.written and not is_way(column.kind, column.written):
            raise DataError(
                f"column {column.name!r} of {path} is a {column.kind} written as "
                f"{column.written!r}, which is not supported.",
                "For numbers, give 1234.5 with the marks and unit of the column, such as $1,234.5. "
                "For dates, give a format such as %d/%m/%Y. For other columns, give nothing.",
            )
        texts = texts_of(pa.array(column.categories, pa.string())).to_pylist()
        for category, text in zip(column.categories, texts, strict=True):
            if category != text:
                raise DataError(
                    f"column {column.name!r} of {path} has the category {category!r}, but a cell "
                    f"with this text is read as {text!r}.",
                    "Write the category as cells are read, or leave out a category read as None.",
                )
    return schema


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
    values = dict(pairs)
    if len(values) < len(pairs):
        name, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"{name!r} occurs twice")
    return values


def _text(schema: Schema, suffix: str) -> str:
    if suffix == ".json":
        return json.dumps(schema.to_dict(), indent=1, ensure_ascii=False) + "\n"
    import tomli_w

    return tomli_w.dumps(schema.to_dict())
