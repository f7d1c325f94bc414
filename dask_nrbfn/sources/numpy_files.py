"""Rows of .npy files, which are mapped, and of the members of one .npz file, which are in memory.

Labels, targets and weights of .npy files, and of a sparse matrix that `scipy.sparse.save_npz`
wrote, are other .npy files.
"""

import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.rows import canonical
from dask_nrbfn.sources.arrays import ArrayRows
from dask_nrbfn.sources.files import File, damage_named
from dask_nrbfn.sources.formats import data_files
from dask_nrbfn.sources.source import Reading


def open_rows(reading: Reading) -> ArrayRows:
    """Return the rows of .npy files, or of one .npz file."""
    place = reading.place
    if not place.name.lower().endswith(".npz"):
        return _with_columns(reading, NpyFiles(reading.files))
    with (
        place.local() as path,
        _damage_named(place),
        # numpy leaves a file open that is no zip file.
        open(path, "rb") as stream,
        np.load(stream, allow_pickle=False) as loaded,
    ):
        # A damaged header may leave bytes unread, whose checksum numpy then does not compare.
        if wrong := loaded.zip.testzip():
            raise ValueError(f"{wrong} does not have its checksum")
        if reading.x is None and {"data", "format", "shape"} <= {*loaded.files}:
            matrix = _matrix(path)
        else:
            names = _names(reading, loaded.files)
            return ArrayRows({role: loaded[name] for role, name in names.items()}, names)
    return _with_columns(reading, matrix)


def _names(reading: Reading, members: list[str]) -> dict[str, str]:
    """Return the member of each role: the one that is named, or the usual one."""
    usual = {"x": "X"} if "y" not in members or reading.target else {"x": "X", "y": "y"}
    given = {role: getattr(reading, role) for role in ("x", "y", "target", "weights")}
    names = usual | {role: name for role, name in given.items() if name is not None}
    for role, name in names.items():
        if name not in members:
            raise DataError(
                f"{reading.place} has no array {name!r}; it has {', '.join(members) or 'none'}.",
                f"Name an existing array with `{role}`.",
            )
    return names


def _matrix(path: str) -> Any:
    from scipy.sparse import load_npz

    matrix = load_npz(path)
    if hasattr(matrix, "check_format"):
        # A wrong index would make scipy read outside of its arrays.
        matrix.check_format(full_check=True)
    return canonical(matrix)


def _with_columns(reading: Reading, x: Any) -> ArrayRows:
    """Return rows whose labels, targets and weights are .npy files, or directories of them."""
    names, arrays = {"x": str(reading.place)}, {"x": x}
    for role in ("y", "target", "weights"):
        if (path := getattr(reading, role)) is not None:
            place = replace(reading.place, path=path)
            arrays[role] = NpyFiles(data_files(place) if place.is_directory() else (place,))
            names[role] = path
    return ArrayRows(arrays, names)


class NpyFiles:
    """The rows of .npy files as one array; copies of URLs live as long as this object."""

    def __init__(self, files: Iterable[File]) -> None:
        copies = ExitStack()
        weakref.finalize(self, copies.close)
        self._files = [(str(file), copies.enter_context(file.local())) for file in files]
        first, *_ = arrays = [_mapped(*each) for each in self._files]
        for (name, _), array in zip(self._files, arrays, strict=True):
            if (array.shape[1:], array.dtype.kind) != (first.shape[1:], first.dtype.kind):
                raise DataError(
                    f"{name} has shape {array.shape} and dtype {array.dtype}, but "
                    f"{self._files[0][0]} has shape {first.shape} and dtype {first.dtype}.",
                    "Write the same columns, of one kind, to all files of a directory.",
                )
        self._lengths = [array.shape[0] if array.ndim else 0 for array in arrays]
        self.dtype = np.result_type(*(array.dtype for array in arrays))
        self.shape = (sum(self._lengths), *first.shape[1:])

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return some rows."""
        pieces, start = [], 0
        for file, length in zip(self._files, self._lengths, strict=True):
            first, last = max(rows.start - start, 0), min(rows.stop - start, length)
            if first < last:
                # Pages of a mapping that stays open would count as this process's memory.
                pieces.append(_mapped(*file)[first:last])
            start += length
        return np.concatenate(pieces)


def _mapped(name: str, path: str) -> np.ndarray:
    with _damage_named(name):
        return np.asarray(np.lib.format.open_memmap(path, mode="r"))


def _damage_named(name: object) -> AbstractContextManager[None]:
    # numpy, zipfile and scipy have no common error for bytes that they cannot read.
    problem = f"{name} is damaged or not a numpy file of numbers or text"
    return damage_named(problem, "Write the file again.", Exception)
