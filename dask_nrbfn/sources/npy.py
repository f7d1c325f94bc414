"""Rows of one .npy file, or of all .npy files of a directory as one array."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import IO

import numpy as np

from dask_nrbfn.errors import DataError, MissingDataError
from dask_nrbfn.sources.arrays import (
    ArrayRows,
    Header,
    ReadRows,
    array_rows,
    check_length,
    check_roles,
    numpy_damage_named,
    read_header,
    read_rows,
    stored_by_column,
)
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.formats import data_files, suffix_of
from dask_nrbfn.sources.source import Reading


def open_rows(reading: Reading) -> ArrayRows:
    """Return the rows of .npy files, with labels, targets and weights from other .npy files."""
    files = {"x": (str(reading.place), (*reading.files,)), **column_files(reading)}
    check_roles({role: name for role, (name, _) in files.items()})
    shards = {role: shards_of(role, name, own) for role, (name, own) in files.items()}
    for table in ("x", "target"):
        for file, header in shards[table].files.items() if table in shards else ():
            if header.fortran_order and file.is_remote:
                raise stored_by_column(header.name)
    headers = {role: own.header for role, own in shards.items()}
    return array_rows(headers, partial(opened_shards, shards.values()))


def column_files(reading: Reading) -> dict[str, tuple[str, tuple[File, ...]]]:
    """Return the paths given for labels, targets and weights, each with its .npy files."""
    roles = {role: getattr(reading, role) for role in ("y", "target", "weights")}
    return {role: (path, _npy_files(path, reading.place)) for role, path in roles.items() if path}


def _npy_files(path: str, beside: File) -> tuple[File, ...]:
    """Return the .npy file or files at a path, with the storage options of another file."""
    place = replace(beside, path=path)
    if not (place.is_directory() if place.is_remote else os.path.isdir(place)):
        return (place,)
    files = data_files(place)
    if suffix_of(next(iter(files))) != ".npy":
        raise DataError(
            f"{place} has no .npy files.", "Give an .npy file, or a directory of .npy files."
        )
    return tuple(files)


@dataclass(frozen=True)
class Shards:
    """The rows of one array in .npy files, one after the other.

    header: header of the whole array.
    files: the header of each file, in order.
    """

    header: Header
    files: Mapping[File, Header]


@contextmanager
def opened_shards(arrays: Iterable[Shards]) -> Iterator[ReadRows]:
    """Yield a reader of the rows of several arrays, each in order."""
    with ExitStack() as stack:
        readers = {
            shards.header.name: stack.enter_context(closing(_ShardReader(shards)))
            for shards in arrays
        }
        yield lambda header, start, stop: readers[header.name].read(stop - start)


def shards_of(role: str, name: str, files: Sequence[File]) -> Shards:
    """Return files of rows that follow one another, as one array.

    role: "x", or the option that names the files.
    name: the array, for errors.
    files: in order.
    """
    headers = {file: _file_header(file, option=None if role == "x" else role) for file in files}
    first, *others = headers.values()
    for other in others:
        if (other.shape[1:], other.dtype.kind) != (first.shape[1:], first.dtype.kind):
            raise DataError(
                f"{other.name} has shape {other.shape} and dtype {other.dtype}, but {first.name} "
                f"has shape {first.shape} and dtype {first.dtype}.",
                "Write the same columns, of one kind, to all files of a directory.",
            )
    n_rows = sum(header.shape[0] for header in headers.values() if header.shape)
    dtype = np.result_type(*(header.dtype for header in headers.values()))
    shape = (n_rows, *first.shape[1:]) if first.shape else ()
    return Shards(Header(name, shape, dtype), headers)


def _file_header(file: File, *, option: str | None = None) -> Header:
    """Return the header of an .npy file, if the file has all its rows; `option` names the file."""
    if option and not file.is_remote and not os.path.isfile(file):
        raise MissingDataError(
            f"{file} is not a file.",
            f"Give `{option}` the path of an .npy file, or of a directory of .npy files.",
        )
    with numpy_damage_named(file), file.open() as stream:
        header = read_header(stream, str(file))
        n_bytes = file.n_bytes()
        if n_bytes is not None:
            check_length(header, n_bytes - stream.tell())
    return header


class _ShardReader:
    """Reads rows in their order; one file is open at a time."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._files = iter(shards.files.items())
        self._file: IO[bytes] | None = None
        self._header, self._start = Header("", (0,), shards.header.dtype), 0

    def read(self, n_rows: int) -> np.ndarray:
        """Return the next rows."""
        pieces = []
        while n_rows:
            while self._start == self._header.shape[0]:
                self._open_next()
            stop = min(self._start + n_rows, self._header.shape[0])
            pieces.append(self._rows(stop))
            n_rows -= stop - self._start
            self._start = stop
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _open_next(self) -> None:
        self.close()
        file, self._header = next(self._files)
        self._start = 0
        with numpy_damage_named(file):
            self._file = file.open()
            read_header(self._file, str(file))

    def _rows(self, stop: int) -> np.ndarray:
        header = self._header
        with numpy_damage_named(header.name):
            if not header.fortran_order:
                assert self._file is not None
                return read_rows({header.name: self._file}, header, self._start, stop)
            # Mapped each time: pages of a mapping that stays open count as this process's
            # memory.
            return np.array(np.lib.format.open_memmap(header.name, mode="r")[self._start : stop])
