"""Rows from numpy arrays: members of an .npz file, .npy files, and arrays in memory."""

import math
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from dask_nrbfn.errors import DamagedDataError, DataError, MissingDataError, NRBFNError
from dask_nrbfn.sources.dtypes import (
    FLOAT64,
    check_weight_dtype,
    feature_dtype,
    label_dtype,
    to_labels,
)
from dask_nrbfn.sources.layout import Layout, check_not_empty, check_weights_apart
from dask_nrbfn.sources.source import Block

# A zip member hands out bytes by copying them; small pieces keep those copies out of the peak.
READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Header:
    """Name, shape and type of one stored array."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    fortran_order: bool = False


@dataclass(kw_only=True)
class ArrayLayout(Layout):
    """Layout of a table whose features, labels and weights are arrays of their own."""

    x: Header
    y: Header | None
    weights: Header | None

    def block(self, first_row: int, read: Callable[[Header], np.ndarray]) -> Block:
        """Block of the rows from `first_row` on, which `read` gives of one array."""
        return Block(
            _features(read(self.x), self.x_dtype),
            None if self.y is None else to_labels(read(self.y), self.y.name, first_row=first_row),
            None if self.weights is None else read(self.weights).astype(FLOAT64, copy=False),
        )


class ArraySource(ArrayLayout):
    """Rows of arrays in memory.

    Parameters
    ----------
    X : ndarray (n, ...)
        Features, at least 2-D; further dimensions are flattened to (n, p).
    y : ndarray (n,), optional
        Labels.
    weights : ndarray (n,), optional
        Weights of the rows.

    Raises
    ------
    DataError
        If the shapes or types do not fit.

    Examples
    --------
    >>> source = ArraySource(np.eye(3), np.array([0, 1, 0]))
    >>> [len(block.X) for block in source.blocks(2)]
    [2, 1]
    """

    def __init__(
        self, X: np.ndarray, y: np.ndarray | None = None, weights: np.ndarray | None = None
    ) -> None:
        given = {"X": X, "y": y, "weights": weights}
        self.arrays = {name: np.asarray(a) for name, a in given.items() if a is not None}
        headers = {name: Header(name, a.shape, a.dtype) for name, a in self.arrays.items()}
        layout = _layout(headers["X"], headers.get("y"), headers.get("weights"))
        super().__init__(**vars(layout))

    def blocks(self, block_rows: int) -> Iterator[Block]:
        """Yield all rows in order, `block_rows` at a time.

        Raises
        ------
        DataError
            If a label is not a whole number.
        """
        for start, stop in _spans(self.n_rows, block_rows):
            yield self.block(start, partial(self._rows, start, stop))

    def _rows(self, start: int, stop: int, header: Header) -> np.ndarray:
        return self.arrays[header.name][start:stop]


@dataclass(kw_only=True)
class NpzSource(ArrayLayout):
    """Rows of members of an .npz file, read straight from the zip archive."""

    path: str

    def blocks(self, block_rows: int) -> Iterator[Block]:
        """Yield all rows in order, `block_rows` at a time.

        Raises
        ------
        DataError
            If a label is not a whole number.
        DamagedDataError
            If a member is cut short or fails its checksum.
        """
        names = [h.name for h in (self.x, self.y, self.weights) if h is not None]
        with _damage_named(self.path), ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(self.path))
            files = {name: stack.enter_context(archive.open(f"{name}.npy")) for name in names}
            for name, file in files.items():
                _read_header(file, name)
            for start, stop in _spans(self.n_rows, block_rows):
                yield self.block(start, partial(_read_rows, files, stop - start))
            # The archive compares the checksum when a read meets the end.
            if any(file.read(1) for file in files.values()):
                raise EOFError("a member is longer than its header says")


@dataclass(kw_only=True)
class NpySource(ArrayLayout):
    """Rows of an .npy file, with labels and weights in others, all mapped into memory."""

    def blocks(self, block_rows: int) -> Iterator[Block]:
        """Yield all rows in order, `block_rows` at a time.

        Raises
        ------
        DataError
            If a label is not a whole number.
        DamagedDataError
            If a file is cut short.
        """
        for start, stop in _spans(self.n_rows, block_rows):
            yield self.block(start, partial(_mapped_rows, start, stop))


def open_npz(
    path: str, *, x: str | None = None, y: str | None = None, weights: str | None = None
) -> NpzSource:
    """Source of the members `x`, `y` and `weights` of an .npz file.

    Parameters
    ----------
    path : str
    x : str, optional
        Member with the features, by default "X".
    y : str, optional
        Member with the labels, by default "y" where there is one.
    weights : str, optional
        Member with the weights of the rows.

    Raises
    ------
    DataError
        If a member is missing, or its shape or type does not fit.
    ParameterError
        If `weights` is also `x` or `y`.
    DamagedDataError
        If the file is not an .npz file.
    """
    with _damage_named(path), zipfile.ZipFile(path) as archive:
        members = [n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")]
        x = _member(path, members, x or "X")
        y = _member(path, members, y) if y else ("y" if "y" in members else None)
        weights = _member(path, members, weights) if weights else None
        check_weights_apart(weights, x, y)
        layout = _layout(
            _member_header(archive, x),
            None if y is None else _member_header(archive, y),
            None if weights is None else _member_header(archive, weights),
        )
    if layout.x.fortran_order:
        raise DataError(
            f"{layout.x.name} in {path} is stored column by column (Fortran order).",
            f"Save numpy.ascontiguousarray({layout.x.name}), which can be read row by row.",
        )
    return NpzSource(**vars(layout), path=path)


def open_npy(path: str, *, y: str | None = None, weights: str | None = None) -> NpySource:
    """Source of the rows of an .npy file.

    Parameters
    ----------
    path : str
        File with the features.
    y, weights : str, optional
        .npy files with the labels and the weights of the rows.

    Raises
    ------
    DataError
        If a shape or type does not fit.
    ParameterError
        If `weights` is also `path` or `y`.
    DamagedDataError
        If a file is not an .npy file, or is cut short.
    MissingDataError
        If the file `y` or `weights` does not exist.
    """
    check_weights_apart(weights, path, y)
    layout = _layout(
        _file_header(path),
        None if y is None else _file_header(y, option="y"),
        None if weights is None else _file_header(weights, option="weights"),
    )
    return NpySource(**vars(layout))


def _layout(x: Header, y: Header | None, weights: Header | None) -> ArrayLayout:
    x_dtype = feature_dtype(x.dtype, x.name)
    if len(x.shape) < 2:
        raise DataError(
            f"{x.name} has shape {x.shape}.", "Write one row of features per sample: (n, p)."
        )
    n_rows, n_features = x.shape[0], math.prod(x.shape[1:])
    check_not_empty(x.name, n_rows=n_rows, n_features=n_features)
    y_dtype = None
    if y is not None:
        y_dtype = label_dtype(y.dtype, y.name)
        _check_column(y, x, "label")
    if weights is not None:
        check_weight_dtype(weights.dtype, weights.name)
        _check_column(weights, x, "weight")
    return ArrayLayout(
        n_rows=n_rows,
        n_features=n_features,
        x_dtype=x_dtype,
        y_dtype=y_dtype,
        has_weights=weights is not None,
        x=x,
        y=y,
        weights=weights,
    )


def _check_column(column: Header, x: Header, noun: str) -> None:
    if len(column.shape) != 1:
        raise DataError(
            f"{column.name} has shape {column.shape}.", f"Write one {noun} per row: (n,)."
        )
    if column.shape[0] != x.shape[0]:
        raise DataError(
            f"{column.name} has {column.shape[0]} rows but {x.name} has {x.shape[0]}.",
            f"Write {column.name} with one {noun} per row of {x.name}.",
        )


def _member(path: str, members: list[str], name: str) -> str:
    if name.removesuffix(".npy") in members:
        return name.removesuffix(".npy")
    existing = ", ".join(repr(member) for member in members) or "none"
    raise DataError(
        f"{path} has no array {name!r}; it has {existing}.",
        "Name the features' array with `x` and the labels' array with `y`, the weights' array "
        "with `weights`.",
    )


def _member_header(archive: zipfile.ZipFile, name: str) -> Header:
    with archive.open(f"{name}.npy") as file:
        return _read_header(file, name)


def _file_header(path: str, *, option: str | None = None) -> Header:
    if option and not Path(path).is_file():
        raise MissingDataError(
            f"{path} is not a file.", f"Give `{option}` the path of an .npy file."
        )
    with _damage_named(path), open(path, "rb") as file:
        header = _read_header(file, path)
        n_bytes = Path(path).stat().st_size - file.tell()
        # Objects are pickled, of unknown length; _layout refuses them.
        if n_bytes < math.prod(header.shape) * header.dtype.itemsize and not header.dtype.hasobject:
            raise EOFError(f"{header.name} ends before its last row")
    return header


def _read_header(file: IO[bytes], name: str) -> Header:
    version = np.lib.format.read_magic(file)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"{name} is of .npy version {version}, not (1, 0) or (2, 0)")
    shape, fortran_order, dtype = readers[version](file)
    return Header(name, shape, dtype, fortran_order)


def _read_rows(files: Mapping[str, IO[bytes]], n_rows: int, header: Header) -> np.ndarray:
    file = files[header.name]
    rows = np.empty((n_rows, *header.shape[1:]), dtype=header.dtype)
    unread = rows.reshape(-1).view(np.uint8).data
    while unread:
        n_bytes = file.readinto(unread[:READ_BYTES])  # type: ignore[attr-defined]
        if n_bytes == 0:
            raise EOFError(f"{header.name} ends before its last row")
        unread = unread[n_bytes:]
    return rows


def _mapped_rows(start: int, stop: int, header: Header) -> np.ndarray:
    # Mapped anew for each block: pages of a mapping that stays open count as this process's memory.
    with _damage_named(header.name):
        return np.array(np.lib.format.open_memmap(header.name, mode="r")[start:stop])


def _features(rows: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return rows.reshape(len(rows), -1).astype(dtype, copy=False)


def _spans(n_rows: int, block_rows: int) -> Iterator[tuple[int, int]]:
    for start in range(0, n_rows, block_rows):
        yield start, min(start + block_rows, n_rows)


@contextmanager
def _damage_named(path: str) -> Iterator[None]:
    # zipfile raises RuntimeError for encryption, and a kind of it for unknown compression.
    try:
        yield
    except NRBFNError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
        raise DamagedDataError(
            f"{path} is damaged or not a numpy file: {error}.", "Write the file again."
        ) from error
