"""The formats of sources. To add one, write its opener and add its line to `FORMATS`.

An opener takes a `Request` and returns a `Source`. Its module is imported when a file of the format
is read, so that a command starts without its libraries.
"""

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from glob import glob
from importlib import import_module
from typing import Any, NamedTuple

from dask_nrbfn.errors import DataError, MissingDataError, NRBFNError, ParameterError
from dask_nrbfn.sources.files import File, data_files
from dask_nrbfn.sources.options import ReadOptions
from dask_nrbfn.sources.source import Request, Source, check_one_kind, shown_names
from dask_nrbfn.sources.zarr_arrays import zarr_format


class Format(NamedTuple):
    """One format: its opener, suffixes and options, and whether its rows are always in one file."""

    opener: str
    suffixes: tuple[str, ...]
    options: tuple[str, ...]
    one_file: bool = False


_ARRAYS = ("y", "target", "weights")
PARQUET, ARROW = (".parquet", ".pq"), (".arrow", ".feather")
DUCKDB, SQLITE = (".duckdb", ".ddb"), (".sqlite", ".sqlite3", ".db")
_PACKED = ("", ".gz", ".zst")
JSON = tuple(suffix + packed for suffix in (".json", ".jsonl", ".ndjson") for packed in _PACKED)
_TEXT = tuple(suffix + packed for suffix in (".csv", ".tsv", ".txt") for packed in _PACKED)
_TABLES = PARQUET + JSON + ARROW + DUCKDB + SQLITE
_OF_TABLES = (
    *("label", "target", "weights", "id", "columns", "drop", "categorical", "numeric", "date"),
    *("missing", "missing_values", "max_categories", "schema", "sql"),
)
FORMATS = {
    "npz": Format("arrays.open_npz", (".npz",), ("x", *_ARRAYS), one_file=True),
    "npy": Format("arrays.open_npy", (".npy",), _ARRAYS),
    "table": Format("tables.open_table", _TABLES, _OF_TABLES),
    "text": Format("tables.open_table", _TEXT, (*_OF_TABLES, "delimiter", "encoding", "no_header")),
    "zarr": Format("zarr_arrays.open_zarr", (), ("x", *_ARRAYS, "id")),
    "anndata": Format("anndata.open_cells", (".h5ad",), ("x", *_ARRAYS), one_file=True),
    "scene": Format("scene.open_pixels", (), ("label", "target", "variable", "feature_dim")),
}
"""Every format by name. A file with an unknown suffix is a text table."""
# A schema decides these.
_OF_NO_SCHEMA = ("columns", "drop", "categorical", "numeric", "date", "missing", "max_categories")

SUFFIXES = {suffix: name for name, each in FORMATS.items() for suffix in each.suffixes}
# Files that are not text.
_NOT_READ = (".xls", ".xlsx", ".ods", ".nc", ".nc4", ".grib", ".grib2", ".grb", ".tif", ".tiff")
_QUERY = re.compile(r"\s*(from|select|with)\s", re.IGNORECASE)
# A text in quotes, or a word without quotes.
_WORD = re.compile(r"""(['"])(.*?)\1|([^\s'"(),;]+)""", re.DOTALL)


def open_source(
    source: Any,
    options: ReadOptions,
    *,
    classes: Sequence[int | str] | None = None,
    spoiled: bool = False,
    read_as: Mapping[str, str] | None = None,
) -> Source:
    """Return the rows of a source; `Request` describes what else a model asks for."""
    if hasattr(source, "store_path"):
        # An open Zarr group or array.
        source = str(source.store_path)
        if not source.startswith("file://"):
            raise ParameterError(
                f"source is the open Zarr group {source}.",
                "Pass its URL, or pass dask.array.from_zarr of its arrays to ingest_arrays.",
            )
    is_place = isinstance(source, str | os.PathLike) and not is_query(source)
    if not is_place and (source is None) == (options.sql is None):
        raise ParameterError(
            "no source is given, or `sql` is given for rows that are not a file.",
            "Give a file, a query or rows; `sql` goes with a file, or stands alone.",
        )
    if is_query(source):
        options = replace(options, sql=source)
    place = _place(source if is_place else "")
    if is_place and (options.variable or options.feature_dim):
        name, files = "scene", list[File]()
    else:
        name, files = _recognized(place)
    if not name:
        raise DataError(
            f"{place} is a group of dask_nrbfn, such as a dataset or a run.",
            "Ingest the file or the Zarr group that has the rows.",
        )
    _check_options(options, name, place.path or "the rows")
    check_one_kind("y", options.y, options.target)
    check_one_kind("label", options.label, options.target)
    request = Request(
        options=options,
        place=place,
        files=files,
        rows=None if is_place or options.sql is not None else source,
        classes=classes,
        spoiled=spoiled,
        read_as=read_as or {},
    )
    module, opener = FORMATS[name].opener.split(".")
    opened: Source = getattr(import_module(f"{__package__}.{module}"), opener)(request)
    given = {"unlabelled": options.unlabelled, "sql": options.sql}
    recorded = {name: str(each) for name, each in given.items() if each is not None}
    opened.read_as = {**(opened.read_as or {}), **recorded} or None
    return opened


def is_query(source: object) -> bool:
    """Return whether a source is an SQL query: a text that begins with FROM, SELECT or WITH."""
    return isinstance(source, str) and bool(_QUERY.match(source)) and not os.path.exists(source)


def holds_rows(source: Any) -> bool:
    """Return whether `open_source` reads a source, by the names of its files."""
    if is_query(source) or not isinstance(source, str | os.PathLike):
        return True
    place = _place(source)
    try:
        name, files = _recognized(place)
    except MissingDataError:
        return place.suffix in SUFFIXES
    # Some servers do not list directories, which look like files.
    is_file = not place.is_remote or [*files] != [place] or place.suffix in SUFFIXES
    return name != "" and is_file


def places_read(source: Any) -> list[str]:
    """Return the files and stores that `open_source` reads; of a query, the files that it names."""
    if is_query(source):
        names = set()
        for _, quoted, bare in _WORD.findall(source):
            path = os.path.expanduser(quoted.removeprefix("file://"))
            names |= {bare, *glob(path, recursive=True, include_hidden=True)}
        return sorted(filter(os.path.isfile, names))
    source = str(source.store_path) if hasattr(source, "store_path") else source
    if not isinstance(source, str | os.PathLike):
        return []
    place = _place(source)
    files: Sequence[File] = ()
    if not place.is_remote:
        # The reader of the rows names the problem.
        with suppress(NRBFNError):
            files = _recognized(place)[1]
    return [str(file) for file in files or [place]]


def _place(source: str | os.PathLike[str]) -> File:
    return source if isinstance(source, File) else File(os.fspath(source).removeprefix("file://"))


def _recognized(place: File) -> tuple[str, list[File]]:
    """Return the name of the format of a place, "" for a group of this package, and its files."""
    if not place.path:
        return "table", []
    matches = place.matches()
    is_directory = not matches and place.is_directory()
    kind = zarr_format(place) if is_directory else None
    if kind is not None:
        return kind, []
    files = data_files(place) if is_directory else matches or [place]
    empty = next((file for file in files if file.info()["size"] == 0), None)
    if empty is not None:
        raise DataError(f"{empty} is empty: it has no bytes.", "Give a file with rows, not a pipe.")
    suffix = files[0].suffix
    name = SUFFIXES.get(suffix, "text")
    if suffix in _NOT_READ or (FORMATS[name].one_file and files != [place]):
        single = [known for each in FORMATS.values() if each.one_file for known in each.suffixes]
        raise DataError(
            f"{place} is not read as rows: its suffix is {suffix}.",
            f"Save tables as CSV or Parquet, and give one {' or '.join(single)} file. For a scene, "
            "name its variables with `variable`.",
        )
    return name, files


def _check_options(options: ReadOptions, name: str, place: str) -> None:
    """Raise ParameterError if an option is given that the format does not accept."""
    taken, schema = FORMATS[name].options, options.schema
    given = [
        option
        for option, each in ReadOptions.options().items()
        if getattr(options, option) not in (None, each.default)
    ]
    both = [each for each in given if each in _OF_NO_SCHEMA]
    if schema is not None and both:
        remedy = f"Leave out `{both[0]}` or `schema`."
        raise ParameterError(f"`{both[0]}` and `schema` are both given.", remedy)
    # Arrays have the columns of a plain schema, in the same order.
    if schema is not None and not schema.is_plain and "schema" not in taken:
        remedy = f"Give a table with the columns {shown_names([c.name for c in schema.columns])}."
        raise ParameterError(f"{place} is not a table: its format is {name}.", remedy)
    for option in given:
        if option not in (*taken, "schema", "unlabelled"):
            value = getattr(options, option)
            value = ",".join(value) if isinstance(value, tuple) else value
            raise ParameterError(
                f"`{option}`={value} does not go with {place}, whose format is {name}.",
                f"Leave it out; {name} takes {', '.join(f'`{own}`' for own in taken)}.",
            )
