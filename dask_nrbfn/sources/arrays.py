"""Rows from numpy arrays: members of an .npz file, .npy files, and arrays in memory."""

import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from dask_nrbfn.errors import DamagedDataError, DataError, MissingDataError
from dask_nrbfn.sources.dtypes import feature_dtype, label_dtype, to_labels
from dask_nrbfn.sources.layout import Layout, check_not_empty
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


class ArraySource(Layout):
    """Rows of arrays in memory.

    Parameters
    ----------
    X : ndarray (n, ...)
        Features, at least 2-D; further dimensions are flattened to (n, p).
    y : ndarray (n,), optional
        Labels.

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

    def __init__(self, X: np.ndarray, y: np.ndarray | None = None) -> None:
        self.X = np.asarray(X)
        self.y = None if y is None else np.asarray(y)
        layout = _layout(
            Header("X", self.X.shape, self.X.dtype),
            None if self.y is None else Header("y", self.y.shape, self.y.dtype),
        )
        super().__init__(**vars(layout))

    def blocks(self, block_rows: int) -> Iterator[Block]:
        """Yield all rows in order, `block_rows` at a time.

        Raises
        ------
        DataError
            If a label is not a whole number.
        """
        for start, stop in _spans(self.n_rows, block_rows):
            X = _features(self.X[start:stop], self.x_dtype)
            if self.y is None:
                yield Block(X, None)
            else:
                yield Block(X, to_labels(self.y[start:stop], "y", first_row=start))


@dataclass(kw_only=True)
class NpzSource(Layout):
    """Rows of two members of an .npz file, read straight from the zip archive."""

    path: str
    x: Header
    y: Header | None

    def blocks(self, block_rows: int) -> Iterator[Block]:
        """Yield all rows in order, `block_rows` at a time.

        Raises
        ------
        DataError
            If a label is not a whole number.
        DamagedDataError
            If a member is cut short or fails its checksum.
        """
        with _damage_named(self.path), ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(self.path))
            x_file = stack.enter_context(archive.open(f"{self.x.name}.npy"))
            _read_header(x_file, self.x.name)
            if self.y is not None:
                y_file = stack.enter_context(archive.open(f"{self.y.name}.npy"))
                _read_header(y_file, self.y.name)
            for start, stop in _spans(self.n_rows, block_rows):
                X = _features(_read_rows(x_file, stop - start, self.x), self.x_dtype)
                if self.y is None:
                    yield Block(X, None)
                else:
                    values = _read_rows(y_file, stop - start, self.y)
                    yield Block(X, to_labels(values, self.y.name, first_row=start))
            # The archive compares the checksum when a read meets the end.
            if x_file.read(1) or (self.y is not None and y_file.read(1)):
                raise EOFError("a member is longer than its header says")


@dataclass(kw_only=True)
class NpySource(Layout):
    """Rows of an .npy file, with the labels in another, both mapped into memory."""

    x: Header
    y: Header | None

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
            X = _features(_mapped_rows(self.x.name, start, stop), self.x_dtype)
            if self.y is None:
                yield Block(X, None)
            else:
                values = _mapped_rows(self.y.name, start, stop)
                yield Block(X, to_labels(values, self.y.name, first_row=start))


def open_npz(path: str, *, x: str | None = None, y: str | None = None) -> NpzSource:
    """Source of the members `x` and `y` of an .npz file.

    Parameters
    ----------
    path : str
    x : str, optional
        Member with the features, by default "X".
    y : str, optional
        Member with the labels, by default "y" where there is one.

    Raises
    ------
    DataError
        If a member is missing, or its shape or type does not fit.
    DamagedDataError
        If the file is not an .npz file.
    """
    with _damage_named(path), zipfile.ZipFile(path) as archive:
        members = [n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")]
        x_name = _member(path, members, x or "X")
        y_name = _member(path, members, y) if y else ("y" if "y" in members else None)
        headers = []
        for name in (x_name, y_name):
            if name is None:
                continue
            with archive.open(f"{name}.npy") as file:
                headers.append(_read_header(file, name))
    x_header, y_header = headers if y_name else (headers[0], None)
    if x_header.fortran_order:
        raise DataError(
            f"{x_header.name} in {path} is stored column by column (Fortran order).",
            f"Save numpy.ascontiguousarray({x_header.name}), which can be read row by row.",
        )
    return NpzSource(**vars(_layout(x_header, y_header)), path=path, x=x_header, y=y_header)


def open_npy(path: str, *, y: str | None = None) -> NpySource:
    """Source of the rows of an .npy file.

    Parameters
    ----------
    path : str
        File with the features.
    y : str, optional
        .npy file with the labels.

    Raises
    ------
    DataError
        If a shape or type does not fit.
    DamagedDataError
        If a file is not an .npy file, or is cut short.
    MissingDataError
        If the file `y` does not exist.
    """
    headers = []
    for name in (path, y):
        if name is None:
            continue
        if not Path(name).is_file():
            raise MissingDataError(f"{name} is not a file.", "Give --y the path of an .npy file.")
        with _damage_named(name), open(name, "rb") as file:
            header = _read_header(file, name)
            n_bytes = Path(name).stat().st_size - file.tell()
            # Objects are pickled, of unknown length; _layout refuses them.
            if (
                n_bytes < math.prod(header.shape) * header.dtype.itemsize
                and not header.dtype.hasobject
            ):
                raise EOFError(f"{header.name} ends before its last row")
            headers.append(header)
    x_header, y_header = headers if y else (headers[0], None)
    return NpySource(**vars(_layout(x_header, y_header)), x=x_header, y=y_header)


def _layout(x: Header, y: Header | None) -> Layout:
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
        if len(y.shape) != 1:
            raise DataError(f"{y.name} has shape {y.shape}.", "Write one label per row: (n,).")
        if y.shape[0] != n_rows:
            raise DataError(
                f"{y.name} has {y.shape[0]} rows but {x.name} has {n_rows}.",
                f"Write {y.name} with one label per row of {x.name}.",
            )
    return Layout(n_rows=n_rows, n_features=n_features, x_dtype=x_dtype, y_dtype=y_dtype)


def _member(path: str, members: list[str], name: str) -> str:
    if name.removesuffix(".npy") in members:
        return name.removesuffix(".npy")
    existing = ", ".join(repr(member) for member in members) or "none"
    raise DataError(
        f"{path} has no array {name!r}; it has {existing}.",
        "Name the features' array with --x and the labels' array with --y.",
    )


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


def _read_rows(file: IO[bytes], n_rows: int, header: Header) -> np.ndarray:
    rows = np.empty((n_rows, *header.shape[1:]), dtype=header.dtype)
    unread = rows.reshape(-1).view(np.uint8).data
    while unread:
        n_bytes = file.readinto(unread[:READ_BYTES])  # type: ignore[attr-defined]
        if n_bytes == 0:
            raise EOFError(f"{header.name} ends before its last row")
        unread = unread[n_bytes:]
    return rows


def _mapped_rows(path: str, start: int, stop: int) -> np.ndarray:
    # Mapped anew for each block: pages of a mapping that stays open count as this process's memory.
    with _damage_named(path):
        return np.array(np.lib.format.open_memmap(path, mode="r")[start:stop])


def _features(rows: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return rows.reshape(len(rows), -1).astype(dtype, copy=False)


def _spans(n_rows: int, block_rows: int) -> Iterator[tuple[int, int]]:
    for start in range(0, n_rows, block_rows):
        yield start, min(start + block_rows, n_rows)


@contextmanager
def _damage_named(path: str) -> Iterator[None]:
    # NotImplementedError and RuntimeError: unknown compression and encryption.
    foreign = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)
    try:
        yield
    except DataError:
        raise
    except (*foreign, ValueError) as error:
        raise DamagedDataError(
            f"{path} is damaged or not a numpy file: {error}.", "Write the file again."
        ) from error
