"""Which format a path is of, and which options go with it."""

import csv
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Unpack
from urllib.parse import unquote

from dask_nrbfn.errors import DamagedDataError, DataError, MissingDataError, ParameterError
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.sources.anndata import is_anndata, open_anndata
from dask_nrbfn.sources.arrays import holds_matrix, open_npy, open_npz
from dask_nrbfn.sources.dialect import Written
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.layout import check_one_kind
from dask_nrbfn.sources.source import Source

if TYPE_CHECKING:
    from dask_nrbfn.sources.survey import TableOptions
    from dask_nrbfn.sources.tablefile import TypedFile
    from dask_nrbfn.sources.tables import Asked

logger = logging.getLogger(__name__)

SUFFIXES = {
    ".npz": "npz",
    ".npy": "npy",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".csv.zst": "csv",
    ".tsv": "csv",
    ".tsv.gz": "csv",
    ".tsv.zst": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".svm": "svmlight",
    ".svmlight": "svmlight",
    ".libsvm": "svmlight",
    ".h5ad": "anndata",
    ".xlsx": "excel",
    ".xlsm": "excel",
}
# Tables of programs that can save CSV.
_SHEETS = (".xls", ".xlsb", ".ods", ".numbers")
_OF_TABLES = {
    *("label", "target", "weights", "id", "columns", "drop", "categorical", "numeric", "date"),
    *("date_format", "missing", "missing_values", "max_categories", "schema"),
}
OPTIONS = {
    "npz": {"x", "y", "target", "weights"},
    "npy": {"y", "target", "weights"},
    "csv": {*_OF_TABLES, *Written.__annotations__},
    "parquet": {"x", *_OF_TABLES},
    "arrow": {"x", *_OF_TABLES},
    "excel": _OF_TABLES,
    "svmlight": {"target", "n_features"},
    "anndata": {"x", "y", "target", "weights"},
    "scene": {"label", "target"},
}
# AnnData and scenes are known by what is in them.
_FORMATS = tuple(name for name in OPTIONS if name not in ("anndata", "scene"))
OPTION_RULE = (
    "Use `x`, `y` or `target`, and `weights` with .npz (array names), `y` or `target`, and "
    "`weights` with .npy (other files), the same and `x` with AnnData (elements and columns of "
    "obs), `label` or `target`, and `weights` with tables (columns), `label` or `target` with "
    "scenes (variables), and none but `target` and `n_features` with svmlight; `schema` and what "
    "is said of columns with tables, `x` (columns) with .parquet and .arrow, `delimiter`, `quote`, "
    "`decimal`, `encoding` and `no_header` with .csv alone, `format` with files alone."
)
# What Hugging Face's datasets write beside their Arrow files, and beside several datasets.
_HUGGING_FACE, _HUGGING_FACE_DICT = {"state.json", "dataset_info.json"}, "dataset_dict.json"
# What a line of svmlight text begins with.
SVMLIGHT_TARGET = "label"


def open_source(
    source: str | os.PathLike[str],
    *,
    format: str | None = None,
    x: str | None = None,
    y: str | None = None,
    label: str | None = None,
    target: str | None = None,
    weights: str | None = None,
    schema: Schema | None = None,
    table: "TableOptions | None" = None,
    n_features: int | None = None,
    variable: str | None = None,
    feature_dim: str | None = None,
    unlabelled: int | str | float | None = None,
    classes: Sequence[int | str] | None = None,
    trained_features: int | None = None,
    spoiled: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    read_as: Mapping[str, str] | None = None,
    **written: Unpack[Written],
) -> Source:
    r"""Source of the rows of a file, a directory of .npy, table or svmlight files, or AnnData.

    Parameters
    ----------
    source : path or URL
        File ending in .npz, .npy, .csv, .tsv (both also with .gz or .zst), .parquet, .arrow,
        .arrows, .feather, .svm, .svmlight, .libsvm, .h5ad or .xlsx (the first sheet), a Zarr store
        of AnnData, or a directory of such files of one suffix, read in the order of their names.
        Those of Parquet and Arrow may be in subdirectories key=value, whose keys are columns.
    format : str, optional
        csv, parquet, arrow, excel, npz, npy or svmlight; by default the suffix tells, and where it
        is unknown, the first lines of text do.
    x, y : str, optional
        Names of the arrays in an .npz file, by default "X" and "y" (where there is one). With
        .npy files, or an .npz file of `scipy.sparse.save_npz`, `y` is the path of an .npy file, or
        of a directory of them, with the labels. With Parquet and Arrow, `x` names columns as
        `target` does: those of features, of which a list of numbers has one for each element. In
        AnnData `x` is X, raw/X, layers/NAME or obsm/NAME, by default X; `y`, `target` and `weights`
        too, obs/NAME.
    label : str, optional
        Name of the label column of a table; by default there are no labels.
    target : str, optional
        What holds numbers to be learned, instead of labels: names of columns of a table
        with commas between them, and double quotes around a name that has one; the name of
        an array (n,) or (n, q) in an .npz file; such an .npy file or directory; with svmlight
        "label", the number at the beginning of each line.
    weights : str, optional
        Name of the array in an .npz file, of the column in a table, or path of the
        .npy file or directory with one weight per row; by default there are none.
    schema : Schema, optional
        What the columns of a table are, and how its files are written where that is not said here;
        by default what they have decides.
    table : TableOptions, optional
        What is said of the columns of a table.
    n_features : int, optional
        Features of svmlight text, which leaves zeros out, so that it may show fewer; by default as
        many as it shows.
    variable, feature_dim : str, optional
        `source` is what xarray opens: its rows are the pixels of this variable, whose features lie
        along this dimension, but for those that lack a feature or a label. Variables "A,B" are a
        feature each, or have one for every coordinate. `label` and `target` are variables too.
    unlabelled : int, float or str, optional
        Pixels without a label are rows too, and this is their label. In a table "" and nan mean
        empty cells.
    classes : sequence of int or str, optional
        The labels that a model knows: those of a table that differ from one of them by a full stop
        at the end are taken for it.
    trained_features : int, optional
        The features that a model knows: `n_features` of svmlight text, unless that is given.
    spoiled : bool
        Whether rows of a table may lack values, and have cells that are not of the kind of their
        column, which then count as none.
    storage_options : mapping, optional
        Arguments of the fsspec file system that opens a URL.
    read_as : mapping of str, optional
        What `x`, `y`, `target` and `weights` of AnnData are where that is not said, and whether
        svmlight text counts its features from 0.
    **written : Written
        How CSV files are written; what is not said, their first lines show.

    Returns
    -------
    Source

    Raises
    ------
    MissingDataError
        If there is no such file.
    ParameterError
        If an option does not go with the format, `target` is given beside labels, or one thing is
        named for two purposes.
    DataError
        If the format is unknown, or the table is empty or has types that cannot be used.
    DamagedDataError
        If a file is cut short or not of the format that its name says.
    StorageError
        If a URL cannot be read.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "iris.csv")
    >>> _ = path.write_text("width,length,species\n1.5,2,setosa\n3,4,virginica\n")
    >>> source = open_source(path, label="species")
    >>> source.n_rows, source.feature_names
    (2, ('width', 'length'))
    """
    if not isinstance(source, str | os.PathLike):
        raise ParameterError(
            f"source is of type {type(source).__name__}.", "Give the path of a file or directory."
        )
    place = File(os.fspath(source).removeprefix("file://"), storage_options or {})
    if format is not None and format not in _FORMATS:
        raise ParameterError(f"`format` is {format!r}.", f"Give one of {', '.join(_FORMATS)}.")
    is_scene = variable is not None or feature_dim is not None
    is_directory = place.is_directory()
    in_zarr = is_scene or (is_directory and format is None and is_anndata(place))
    files = _data_files(place) if is_directory and not in_zarr else {place: {}}
    for file in () if in_zarr else files:
        if file.n_bytes() == 0:
            raise DataError(f"{file} is empty: it has no bytes.", "Write the file again.")
    if in_zarr:
        kind = "scene" if is_scene else "anndata"
    else:
        kind = format or _kind(next(iter(files)), is_csv=any(written.values()))
        if is_directory:
            _check_directory(place, files, kind)
    options = {"x": x, "y": y, "label": label, "target": target, "weights": weights}
    # Those of cells are found by their names.
    features = tuple(column.name for column in schema.columns) if schema is not None else None
    if schema is not None and schema.is_plain and "schema" not in OPTIONS[kind]:
        # Arrays of numbers have such columns in their order.
        schema = None
    options |= {} if table is None else table.said
    options["schema"] = None if schema is None else "FILE"
    options["format"] = format if is_scene else None
    options["n_features"] = None if n_features is None else str(n_features)
    _check_options(str(place), kind, {**options, **written})
    check_one_kind("y", y, target)
    check_one_kind("label", label, target)
    if kind == "scene":
        from dask_nrbfn.sources.scene import Scene

        variables = None if variable is None else named_columns("variable", variable)
        return Scene.at(place, variables, feature_dim).source(
            label=label,
            targets=() if target is None else named_columns("target", target),
            unlabelled=unlabelled,
        )
    if kind == "npz" and holds_matrix(place):
        return _open_matrix(place, x, {"y": y, "target": target, "weights": weights})
    if kind == "npz":
        return open_npz(place, x=x, y=y, target=target, weights=weights)
    if kind == "npy":
        return _open_npy(tuple(files), place, {"y": y, "target": target, "weights": weights})
    if kind == "svmlight":
        width = trained_features if n_features is None else n_features
        return _open_svmlight(tuple(files), str(place), target, width, read_as or {})
    targets = None if target is None else named_columns("target", target)
    if kind == "anndata":
        named = {"x": x, "weights": weights, "y": y, "target": target}
        return open_anndata(place, features=features or None, **_as_before(named, read_as or {}))
    asked = _asked(
        origin=str(place),
        roles=(label, targets, weights),
        options=table,
        schema=schema,
        classes=None if classes is None else tuple(classes),
        spoiled=spoiled,
        unlabelled=unlabelled,
    )
    if kind == "csv":
        return _open_csv(tuple(files), written, asked)
    return _open_columnar(kind, files, asked, () if x is None else named_columns("x", x))


def holds_rows(
    source: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    format: str | None = None,
) -> bool:
    """Return whether a path or URL is one that `open_source` reads, by the names of its files."""
    place = File(os.fspath(source).removeprefix("file://"), storage_options or {})
    try:
        if not place.is_directory():
            # A server may know no directories.
            return not place.is_remote or format is not None or _suffix(place) in SUFFIXES
    except MissingDataError:
        return format is not None or _suffix(place) in SUFFIXES
    inside = place.entries()
    if any(entry.name in ("zarr.json", ".zgroup") for entry in inside):
        return is_anndata(place)
    return format is not None or any(
        _suffix(entry) in SUFFIXES or "=" in entry.name for entry in inside
    )


# Each format's own library is loaded where a file of it is read.


def _open_svmlight(
    files: tuple[File, ...],
    origin: str,
    target: str | None,
    n_features: int | None,
    read_as: Mapping[str, str],
) -> Source:
    from dask_nrbfn.sources.svmlight import COUNTED_FROM_ZERO, open_svmlight

    if target not in (None, SVMLIGHT_TARGET):
        raise ParameterError(
            f"`target`={target} does not go with {origin}, whose format is svmlight.",
            f"Give `target` as {SVMLIGHT_TARGET}: the number that each line begins with.",
        )
    return open_svmlight(
        files,
        origin=origin,
        numbers=target is not None,
        n_features=n_features,
        from_zero=COUNTED_FROM_ZERO.items() <= read_as.items(),
    )


def _open_matrix(place: File, x: str | None, others: Mapping[str, str | None]) -> Source:
    from dask_nrbfn.sources.matrices import open_matrix

    if x is not None:
        raise ParameterError(
            f"`x`={x} is given, and {place} holds a sparse matrix alone.", "Leave it out."
        )
    return open_matrix(place, _npy_columns(place, others))


def _as_before(named: Mapping[str, str | None], read_as: Mapping[str, str]) -> dict[str, Any]:
    """Return what is named in AnnData, where it is not as in `read_as`."""
    if named["y"] or named["target"]:
        read_as = {name: value for name, value in read_as.items() if name not in ("y", "target")}
    found = {name: value or read_as.get(name) for name, value in named.items()}
    target = found.pop("target")
    return {**found, "targets": () if target is None else named_columns("target", target)}


def _asked(
    *,
    roles: tuple[str | None, tuple[str, ...] | None, str | None],
    options: "TableOptions | None",
    schema: Schema | None,
    **further: Any,
) -> "Asked":
    from dask_nrbfn.sources.survey import Roles, TableOptions
    from dask_nrbfn.sources.tables import Asked

    options, own = options or TableOptions(), Roles(*roles)
    if schema is not None:
        options = options.beside(schema)
        if not schema.is_complete:
            given = own if any(own) else Roles(schema.label, schema.targets, schema.weights)
            return Asked(roles=given, options=options.like(schema), **further)
    return Asked(roles=own, options=options, schema=schema, **further)


def _open_csv(files: tuple[File, ...], written: Written, asked: "Asked") -> Source:
    from dask_nrbfn.sources.delimited import open_csv
    from dask_nrbfn.sources.dialect import delimiter_of
    from dask_nrbfn.sources.textfile import text_files

    said = {name: value for name, value in written.items() if value not in (None, False)}
    before = {} if asked.schema is None else asked.schema.written
    said = {name: before[name] for name in Written.__annotations__ if name in before} | said
    if "delimiter" in said:
        said["delimiter"] = delimiter_of(str(said["delimiter"]))
    texts = text_files(files, named=asked.named, **said)  # type: ignore[arg-type]
    source = open_csv(texts, asked)
    if not texts[0].dialect.header:
        # Files to predict from have none either.
        said["no_header"] = True
    if "missing_values" in asked.options.said:
        said["missing_values"] = list(asked.options.missing_values)
    source.schema = replace(source.schema, written=said)
    return source


def _open_columnar(
    kind: str, files: Mapping[File, Mapping[str, str]], asked: "Asked", x: tuple[str, ...]
) -> Source:
    from dask_nrbfn.sources.columnar import open_columnar
    from dask_nrbfn.sources.tablefile import MarkedFile, with_keys

    marks = asked.options.missing_values
    typed = with_keys({_typed_file(kind, file, marks): keys for file, keys in files.items()})
    if "missing_values" not in asked.options.said:
        return open_columnar(typed, asked, x)
    source = open_columnar([MarkedFile(file, marks) for file in typed], asked, x)
    written = {**source.schema.written, "missing_values": list(marks)}
    source.schema = replace(source.schema, written=written)
    return source


def _typed_file(kind: str, file: File, marks: Sequence[str]) -> "TypedFile":
    from dask_nrbfn.sources.tablefile import NamedFile, class_names

    typed: TypedFile
    if kind == "parquet":
        from dask_nrbfn.sources.parquet import ParquetFile

        typed = ParquetFile(file)
    elif kind == "excel":
        from dask_nrbfn.sources.excel import ExcelFile

        typed = ExcelFile(file, marks)
    else:
        from dask_nrbfn.sources.arrowfile import ArrowFile

        typed = ArrowFile(file)
    names = class_names(typed.footer.schema)
    return NamedFile(typed, names) if names else typed


def _open_npy(files: tuple[File, ...], place: File, others: Mapping[str, str | None]) -> Source:
    return open_npy({"x": (str(place), files), **_npy_columns(place, others)})


def _npy_columns(
    place: File, others: Mapping[str, str | None]
) -> dict[str, tuple[str, tuple[File, ...]]]:
    """Return the paths of the .npy files of labels, targets and weights, and these files."""
    return {role: (path, _npy_files(path, place)) for role, path in others.items() if path}


def _npy_files(path: str, beside: File) -> tuple[File, ...]:
    """Return an .npy file, or those of a directory; URLs are opened as the one beside them."""
    place = replace(beside, path=path)
    if not (place.is_directory() if place.is_remote else os.path.isdir(place)):
        return (place,)
    files = _data_files(place)
    if _suffix(next(iter(files))) != ".npy":
        raise DataError(f"{place} has no .npy files.", "Give a directory of .npy files, or one.")
    return tuple(files)


def _data_files(directory: File) -> dict[File, dict[str, str]]:
    """Return the files of a directory, in order, with the keys that their directories name."""
    found = _files_below(directory, {})
    suffixes = sorted({_suffix(file) for file in found})
    if len(suffixes) > 1:
        raise DataError(
            f"{directory} has files of several suffixes: {', '.join(suffixes)}.",
            "Keep files of one suffix in a directory.",
        )
    return found


def _check_directory(directory: File, files: Mapping[File, Mapping[str, str]], kind: str) -> None:
    file, keys = next(iter(files.items()))
    if kind in ("npz", "anndata"):
        raise DataError(
            f"{directory} is a directory of {_suffix(file)} files.",
            f"Give one {_suffix(file)} file instead.",
        )
    if keys and kind not in ("parquet", "arrow"):
        raise _subdirectory_error(directory, "=".join(next(iter(keys.items()))))


def _files_below(directory: File, keys: dict[str, str]) -> dict[File, dict[str, str]]:
    # Names with an underscore hold what other writers say about the data, such as _SUCCESS.
    entries = [file for file in directory.entries() if not file.name.startswith((".", "_"))]
    names = {entry.name for entry in entries}
    if _HUGGING_FACE_DICT in names:
        splits = ", ".join(sorted(names - {_HUGGING_FACE_DICT}))
        raise DataError(
            f"{directory} has several datasets of Hugging Face: {splits}.", "Give one of them."
        )
    if names >= _HUGGING_FACE:
        entries = _hugging_face_files(directory, {entry.name: entry for entry in entries})
    if not entries:
        raise DataError(
            f"{directory} is empty: it has no files.", "Give a directory with data files."
        )
    found = {}
    for entry in entries:
        if not entry.is_directory():
            found[entry] = keys
        elif "=" in entry.name:
            key, _, value = map(unquote, entry.name.partition("="))
            found |= _files_below(entry, {**keys, key: value})
        else:
            raise _subdirectory_error(directory, entry.name)
    return found


def _hugging_face_files(directory: File, entries: Mapping[str, File]) -> list[File]:
    """Return the data files that a directory says it has."""
    state = entries["state.json"]
    try:
        with state.open() as file:
            names = [told["filename"] for told in json.loads(file.read())["_data_files"]]
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedDataError(
            f"{state} does not say what {directory} has ({error!r}).", "Write the directory again."
        ) from error
    absent = [name for name in names if name not in entries]
    if absent:
        raise MissingDataError(
            f"{directory} has no {', '.join(absent)}, of which its state.json tells.",
            "Bring all files that were written together.",
        )
    return [entries[name] for name in names]


def _subdirectory_error(directory: File, name: str) -> DataError:
    return DataError(
        f"{directory} has a subdirectory, {name}.",
        "Put all data files side by side; those of Parquet and Arrow may be in subdirectories "
        "named key=value.",
    )


def _suffix(file: File) -> str:
    matches = [suffix for suffix in SUFFIXES if file.name.lower().endswith(suffix)]
    return max(matches, key=len) if matches else PurePath(file.name).suffix or "(none)"


def _kind(file: File, *, is_csv: bool) -> str:
    """Return the format of a file by its suffix or, if that is unknown, by its first lines."""
    suffix = _suffix(file)
    if suffix in SUFFIXES:
        return SUFFIXES[suffix]
    if suffix.lower() in _SHEETS:
        raise DataError(
            f"{file} has the suffix {suffix}, which is not read.",
            "Save the sheet as CSV or .xlsx in the program that wrote it.",
        )
    from dask_nrbfn.sources.textfile import text_kind

    kind = "csv" if is_csv else text_kind(file)
    if kind is None:
        raise DataError(
            f"{file} has the suffix {suffix}, which is not a known format, and does not look like "
            "a table of text.",
            f"Say its `format`: {', '.join(_FORMATS)}. Supported are {', '.join(SUFFIXES)}, and "
            "with `feature_dim` or `variable` scenes.",
        )
    logger.info("ingest: %s is read as %s, as its first lines show", file, kind)
    return kind


def named_columns(option: str, given: str) -> tuple[str, ...]:
    """Return the names with commas between them that an option gives.

    Raises
    ------
    ParameterError
        If they cannot be told apart, or one is given twice.
    """
    try:
        # Nothing at all is a line without any name.
        names = tuple(next(csv.reader([given], skipinitialspace=True))) or ("",)
    except csv.Error as error:
        raise ParameterError(
            f"`{option}`={given!r} names no columns ({error}).",
            "Write their names with commas between them, and quotes around a name that has one.",
        ) from error
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ParameterError(f"`{option}`={given} names {twice!r} twice.", "Name each column once.")
    return names


def _check_options(origin: str, kind: str, options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if value not in (None, False) and name not in OPTIONS[kind]:
            raise ParameterError(
                f"`{name}`={value} does not go with {origin}, whose format is {kind}.", OPTION_RULE
            )
