"""Rows of one .npy file, or of all .npy files of a directory as one array."""

import os
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from tempfile import mkstemp
from typing import Any

import numpy as np

from dask_nrbfn.errors import DataError, MissingDataError
from dask_nrbfn.sources.arrays import ArrayRows, check_header, numpy_damage_named
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.formats import data_files
from dask_nrbfn.sources.source import Reading


def open_rows(reading: Reading) -> ArrayRows:
    """Return the rows of .npy files, with labels, targets and weights from other .npy files."""
    return with_columns(reading, NpyFiles(reading.files))


def with_columns(reading: Reading, x: Any) -> ArrayRows:
    """Return rows whose labels, targets and weights are .npy files, or directories of them."""
    names, arrays = {"x": str(reading.place)}, {"x": x}
    for role in ("y", "target", "weights"):
        if (path := getattr(reading, role)) is not None:
            place = replace(reading.place, path=path)
            if not (place.is_remote or os.path.exists(place)):
                raise MissingDataError(
                    f"`{role}`={path} does not exist.",
                    "Give the path of an .npy file, or of a directory of .npy files.",
                )
            arrays[role] = NpyFiles(data_files(place) if place.is_directory() else (place,))
            names[role] = path
    return ArrayRows(arrays, names)


class NpyFiles:
    """The rows of .npy files as one array, one file after another."""

    def __init__(self, files: Iterable[File]) -> None:
        first, *others = self._files = [_NpyFile(file) for file in files]
        for other in others:
            if (other.shape[1:], other.dtype.kind) != (first.shape[1:], first.dtype.kind):
                raise DataError(
                    f"{other.name} has shape {other.shape} and dtype {other.dtype}, but "
                    f"{first.name} has shape {first.shape} and dtype {first.dtype}.",
                    "Write the same columns, of one kind, to all files of a directory.",
                )
        self.dtype = np.result_type(*(file.dtype for file in self._files))
        n_rows = sum(file.shape[0] for file in self._files if file.shape)
        self.shape = (n_rows, *first.shape[1:]) if first.shape else ()

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return some rows."""
        pieces, start = [], 0
        for file in self._files:
            first, last = max(rows.start - start, 0), min(rows.stop - start, file.shape[0])
            if first < last:
                pieces.append(file[first:last])
            start += file.shape[0]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


class _NpyFile:
    """The rows of one .npy file; a URL is copied, and the copy lives as long as this object."""

    def __init__(self, file: File) -> None:
        self.name = str(file)
        copy = ExitStack()
        self._path = copy.enter_context(local_copy(file))
        weakref.finalize(self, copy.close)
        with numpy_damage_named(self.name):
            with open(self._path, "rb") as stream:
                check_header(stream, os.path.getsize(self._path), self.name)
            mapped = np.lib.format.open_memmap(self._path, mode="r")
        self.shape, self.dtype = mapped.shape, mapped.dtype

    def __getitem__(self, rows: slice) -> np.ndarray:
        # Mapped each time: pages of a mapping that stays open count as this process's memory.
        with numpy_damage_named(self.name):
            mapped = np.lib.format.open_memmap(self._path, mode="r")
            if (mapped.shape, mapped.dtype) != (self.shape, self.dtype):
                raise ValueError("it was written again while it was read")
        return np.array(mapped[rows])


@contextmanager
def local_copy(file: File) -> Iterator[str]:
    """Yield the path of a local file, or of a temporary copy of a URL."""
    if not file.is_remote:
        yield file.path
        return
    handle, path = mkstemp(prefix="dask-nrbfn-")
    try:
        os.close(handle)
        file.copy_to(path)
        yield path
    finally:
        os.remove(path)
