"""The formats of sources. To add one, write its module and add its line to `FORMATS`.

The module has a function `open_rows(reading) -> Source`. It is imported when a file of the format
is read, so that a command starts without its libraries.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_nrbfn.errors import DataError, MissingDataError, ParameterError
from dask_nrbfn.sources.files import File

if TYPE_CHECKING:
    from dask_nrbfn.sources.source import Reading, Source


class Format(NamedTuple):
    """One format: its module, the suffixes of its files, and the options that it accepts."""

    module: str
    suffixes: tuple[str, ...]
    options: tuple[str, ...]


_ARRAYS = ("y", "target", "weights")
# Text tables may also be compressed.
_TEXT = (".csv", ".tsv", ".txt")
_TYPED = (
    *(".parquet", ".pq", ".json", ".jsonl", ".ndjson", ".arrow", ".feather"),
    *(".duckdb", ".ddb", ".sqlite", ".sqlite3"),
)
_TABLES = (
    *_TYPED,
    *(f"{suffix}{packed}" for suffix in _TEXT for packed in ("", ".gz", ".zst")),
)
_OF_TABLES = (
    *("label", "target", "weights", "id", "columns", "drop", "categorical", "numeric", "date"),
    *("missing", "missing_values", "max_categories", "schema", "delimiter", "no_header"),
)
FORMATS = {
    "npz": Format("npz", (".npz",), ("x", *_ARRAYS)),
    "npy": Format("npy", (".npy",), _ARRAYS),
    "table": Format("tables", _TABLES, _OF_TABLES),
    "zarr": Format("zarr_arrays", (), ("x", *_ARRAYS, "id")),
    "anndata": Format("anndata", (".h5ad",), ("x", *_ARRAYS)),
    "scene": Format("scene", (), ("label", "target", "variable", "feature_dim")),
}
"""Every format by name."""

SUFFIXES = {suffix: name for name, each in FORMATS.items() for suffix in each.suffixes}
# What to do with files that are read otherwise, or not at all.
_REMEDIES = dict.fromkeys(
    (".xls", ".xlsx", ".xlsm", ".xlsb", ".ods", ".numbers"),
    "Save the sheet as CSV in the program that wrote the file, or read it with pandas.",
)
_REMEDIES |= dict.fromkeys(
    (".nc", ".nc4", ".cdf", ".grib", ".grib2", ".grb", ".tif", ".tiff"),
    "For a scene, name its variables with `variable`, and the dimension of their features with "
    "`feature_dim`.",
)
_QUERY = re.compile(r"\s*(from|select|with)\s", re.IGNORECASE)
# Metadata of a Zarr group.
_ZARR = {"zarr.json", ".zgroup", ".zarray"}


def open_source(
    source: Any,
    *,
    storage_options: Mapping[str, Any] | None = None,
    sql: str | None = None,
    **options: Any,
) -> "Source":
    r"""Return the rows of a file, a directory, a store, a query, a relation, a frame or a reader.

    source: files of a directory have one suffix and are read in the order of their names. Parquet
        files may be in subdirectories key=value, whose keys become columns.
    storage_options: arguments of the fsspec file system that opens a URL.
    sql: a query of the source, which is its table "source" or, for databases, has its own tables.
    **options: attributes of `Reading`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "iris.csv")
    >>> _ = path.write_text("width,length,species\n1.5,2,setosa\n3,4,virginica\n")
    >>> source = open_source(path, label="species")
    >>> source.n_rows, source.feature_names
    (2, ('width', 'length'))
    """
    from dask_nrbfn.sources.source import Reading, check_one_kind

    if hasattr(source, "store_path"):
        from dask_nrbfn.sources.zarr_arrays import place_of

        source, storage_options = place_of(source)
    reading = Reading(storage_options=storage_options or {}, query=sql, **options)
    is_file = isinstance(source, str | os.PathLike) and not is_query(source)
    if sql is not None and not (is_file or source is None):
        raise ParameterError(
            "`sql` is given for rows that are not a file.", "Leave `sql` out, or give a file."
        )
    if is_query(source):
        reading = replace(reading, query=source)
    elif is_file:
        reading = replace(reading, place=_place(source, storage_options))
    elif source is not None:
        reading = replace(reading, rows=source)
    elif sql is None:
        raise ParameterError("no source is given.", "Give a file, a directory or a query.")
    name, files = _recognized(reading)
    if reading.query is not None and name != "table":
        raise ParameterError(f"{source} has no table.", "Leave `sql` out, or give a table.")
    _check_options(reading, name, files)
    check_one_kind("y", reading.y, reading.target)
    check_one_kind("label", reading.label, reading.target)
    module = import_module(f"{__package__}.{FORMATS[name].module}")
    opened: Source = module.open_rows(replace(reading, files=files))
    if reading.unlabelled is not None:
        opened.read_as = {**(opened.read_as or {}), "unlabelled": str(reading.unlabelled)}
    return opened


def is_query(source: object) -> bool:
    """Return whether a source is an SQL query.

    >>> is_query("FROM 'rides.parquet' WHERE fare > 0"), is_query("from.csv")
    (True, False)
    """
    given = isinstance(source, str) and _QUERY.match(source) is not None
    return given and not os.path.exists(str(source))


def holds_rows(source: Any, storage_options: Mapping[str, Any] | None = None) -> bool:
    """Return whether `open_source` reads a source, by the names of its files."""
    if is_query(source) or not isinstance(source, str | os.PathLike):
        return True
    place = _place(source, storage_options)
    if place.matches():
        return True
    by_name = suffix_of(place) in SUFFIXES
    try:
        if not place.is_directory():
            # Some servers do not list directories.
            return not place.is_remote or by_name
    except MissingDataError:
        return by_name
    inside = place.entries()
    if any(entry.name in _ZARR for entry in inside):
        return _zarr_format(place) is not None
    return any(suffix_of(entry) in SUFFIXES or "=" in entry.name for entry in inside)


def _place(source: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> File:
    return File(os.fspath(source).removeprefix("file://"), storage_options or {})


def _zarr_format(place: File) -> str | None:
    """Return the format of a Zarr directory; None if this package wrote it."""
    from dask_nrbfn.sources.anndata import is_anndata
    from dask_nrbfn.sources.zarr_arrays import is_plain_zarr

    if is_anndata(place):
        return "anndata"
    return "zarr" if is_plain_zarr(place) else None


def _recognized(reading: "Reading") -> tuple[str, tuple[File, ...]]:
    """Return the name of the format of a place, and its files."""
    place = reading.place
    if not place.path:
        return "table", ()
    if reading.variable is not None or reading.feature_dim is not None:
        place.is_directory()
        return "scene", ()
    matches = place.matches()
    is_directory = not matches and place.is_directory()
    if is_directory and any(each.name in _ZARR for each in place.entries()):
        kind = _zarr_format(place)
        if kind is None:
            raise DataError(
                f"{place} is a group of dask_nrbfn, such as a dataset or a run.",
                "Ingest the file or the Zarr group that has the rows.",
            )
        return kind, ()
    files = data_files(place) if is_directory else matches or (place,)
    for file in files:
        if file.n_bytes() == 0:
            if not (file.is_remote or os.path.isfile(file)):
                raise DataError(
                    f"{file} is a pipe, which can be read only once.",
                    "Write its rows to a file first, and give the file.",
                )
            raise DataError(f"{file} is empty: it has no bytes.", "Write the file again.")
    name = _format_of(files[0])
    if is_directory and name in ("npz", "anndata"):
        raise DataError(
            f"{place} is a directory of {suffix_of(files[0])} files.",
            f"Give one {suffix_of(files[0])} file instead.",
        )
    keyed = [file for file in files if "=" in file.path.removeprefix(place.path)]
    if keyed and suffix_of(files[0]) not in (".parquet", ".pq"):
        raise _subdirectory_error(place, "key=value")
    return name, files


def _check_options(reading: "Reading", name: str, files: tuple[File, ...]) -> None:
    """Raise ParameterError if an option is given that the format does not accept."""
    is_text = name == "table" and files and suffix_of(files[0]) not in _TYPED
    if name == "table" and not is_text and (reading.delimiter or reading.no_header):
        raise ParameterError(
            "`delimiter` or `no_header` is given, but the rows are not a text table.",
            "Leave these options out.",
        )
    taken, given = FORMATS[name].options, reading.given
    if reading.schema is not None and reading.schema.is_plain and "schema" not in taken:
        # Arrays have the columns of a plain schema, in the same order.
        del given["schema"]
    for option, value in given.items():
        if option not in taken:
            others = [other for other, each in FORMATS.items() if option in each.options]
            mend = f"`{option}` goes with {', '.join(others)}; " * bool(others)
            raise ParameterError(
                f"`{option}`={value} does not go with {reading.place.path or 'the rows'}, whose "
                f"format is {name}.",
                f"{mend}{name} takes {', '.join(f'`{own}`' for own in taken)}.",
            )


def data_files(directory: File) -> tuple[File, ...]:
    """Return the files of a directory and of its directories key=value, in order."""
    found = tuple(_files_below(directory))
    suffixes = sorted({suffix_of(file) for file in found})
    if len(suffixes) > 1:
        raise DataError(
            f"{directory} has files of several suffixes: {', '.join(suffixes)}.",
            "Keep files of one suffix in a directory.",
        )
    return found


def _files_below(directory: File) -> Iterator[File]:
    # Files whose names begin with an underscore are metadata of other programs, such as _SUCCESS.
    entries = [file for file in directory.entries() if not file.name.startswith((".", "_"))]
    if not entries:
        raise DataError(
            f"{directory} is empty: it has no files.", "Give a directory with data files."
        )
    for entry in entries:
        if not entry.is_directory():
            yield entry
        elif "=" in entry.name:
            yield from _files_below(entry)
        else:
            raise _subdirectory_error(directory, entry.name)


def _subdirectory_error(directory: File, name: str) -> DataError:
    return DataError(
        f"{directory} has a subdirectory, {name}.",
        "Put all data files into one directory; Parquet files may be in subdirectories named "
        "key=value.",
    )


def suffix_of(file: File) -> str:
    """Return the longest known suffix of a file's name, or its last one."""
    matches = [suffix for suffix in SUFFIXES if file.name.lower().endswith(suffix)]
    return max(matches, key=len) if matches else PurePath(file.name).suffix or "(none)"


def _format_of(file: File) -> str:
    """Return the format of a file by its suffix; a file of another suffix is a text table."""
    suffix = suffix_of(file)
    if remedy := _REMEDIES.get(suffix.lower()):
        raise DataError(f"{file} has the suffix {suffix}, which is not read as a table.", remedy)
    return SUFFIXES.get(suffix, "table")
