"""Which format a path is of, and which options go with it."""

import os
from pathlib import Path

from dask_nrbfn.errors import DataError, MissingDataError, ParameterError
from dask_nrbfn.sources.arrays import open_npy, open_npz
from dask_nrbfn.sources.source import Source

SUFFIXES = {
    ".npz": "npz",
    ".npy": "npy",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".parquet": "parquet",
    ".svm": "svmlight",
    ".svmlight": "svmlight",
    ".libsvm": "svmlight",
}
OPTIONS = {
    "npz": {"x", "y", "weights"},
    "npy": {"y", "weights"},
    "csv": {"label", "weights"},
    "parquet": {"label", "weights"},
    "svmlight": set[str](),
}
OPTION_RULE = (
    "Use `x`, `y` and `weights` with .npz (array names), `y` and `weights` with .npy (other "
    "files), `label` and `weights` with .csv and .parquet (columns), and none with svmlight."
)


def open_source(
    source: str | os.PathLike[str],
    *,
    x: str | None = None,
    y: str | None = None,
    label: str | None = None,
    weights: str | None = None,
) -> Source:
    r"""Source of the rows of a file, or of a directory of CSV, Parquet or svmlight files.

    Parameters
    ----------
    source : path
        File ending in .npz, .npy, .csv, .csv.gz, .parquet, .svm, .svmlight or .libsvm, or a
        directory of such files of one suffix, read in the order of their names.
    x, y : str, optional
        Names of the arrays in an .npz file, by default "X" and "y" (where there is one). With an
        .npy file, `y` is the path of another one that holds the labels.
    label : str, optional
        Name of the label column of a CSV or Parquet table; by default there are no labels.
    weights : str, optional
        Name of the array in an .npz file, of the column in a CSV or Parquet table, or path of the
        .npy file with one weight per row; by default there are none.

    Returns
    -------
    Source

    Raises
    ------
    MissingDataError
        If there is no such file.
    ParameterError
        If an option does not go with the format, or `weights` is also the features or labels.
    DataError
        If the format is unknown, or the table is empty or has types that cannot be used.
    DamagedDataError
        If a file is cut short or not of the format that its name says.

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
    origin = os.fspath(source)
    paths = _files(origin)
    kind = _kind(paths[0])
    if os.path.isdir(origin) and kind in ("npz", "npy"):
        raise DataError(
            f"{origin} is a directory of .{kind} files.", f"Give one .{kind} file instead."
        )
    _check_options(origin, kind, {"x": x, "y": y, "label": label, "weights": weights})
    for path in paths:
        if os.path.getsize(path) == 0:
            raise DataError(f"{path} is empty: it has no bytes.", "Write the file again.")
    if kind == "npz":
        return open_npz(origin, x=x, y=y, weights=weights)
    if kind == "npy":
        return open_npy(origin, y=y, weights=weights)
    # Each format's own library is loaded where a file of it is read.
    if kind == "svmlight":
        from dask_nrbfn.sources.svmlight import open_svmlight

        return open_svmlight(paths, origin=origin)
    from dask_nrbfn.sources.tabular import open_csv, open_parquet

    if kind == "csv":
        return open_csv(paths, origin=origin, label=label, weights=weights)
    return open_parquet(paths, origin=origin, label=label, weights=weights)


def _files(origin: str) -> tuple[str, ...]:
    path = Path(origin)
    if path.is_file():
        return (origin,)
    if not path.is_dir():
        raise MissingDataError(f"{origin} does not exist.", "Check the path.")
    # Names with an underscore hold what other writers say about the data, such as _SUCCESS.
    entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith((".", "_")))
    if not entries:
        raise DataError(f"{origin} is empty: it has no files.", "Give a directory with data files.")
    for entry in entries:
        if entry.is_dir():
            raise DataError(
                f"{origin} has a subdirectory, {entry.name}.", "Put all data files side by side."
            )
    suffixes = sorted({_suffix(entry.name) for entry in entries})
    if len(suffixes) > 1:
        raise DataError(
            f"{origin} has files of several suffixes: {', '.join(suffixes)}.",
            "Keep files of one suffix in a directory.",
        )
    return tuple(str(entry) for entry in entries)


def _suffix(path: str) -> str:
    matches = [suffix for suffix in SUFFIXES if path.lower().endswith(suffix)]
    return max(matches, key=len) if matches else Path(path).suffix or "(none)"


def _kind(path: str) -> str:
    suffix = _suffix(path)
    if suffix not in SUFFIXES:
        raise DataError(
            f"{path} has the suffix {suffix}, which is not a known format.",
            f"Supported are {', '.join(SUFFIXES)}.",
        )
    return SUFFIXES[suffix]


def _check_options(origin: str, kind: str, options: dict[str, str | None]) -> None:
    for name, value in options.items():
        if value is not None and name not in OPTIONS[kind]:
            raise ParameterError(
                f"`{name}`={value} does not go with {origin}, whose format is {kind}.", OPTION_RULE
            )
