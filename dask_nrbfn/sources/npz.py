"""Members of an .npz file: arrays, or the sparse matrix that `scipy.sparse.save_npz` wrote.

All of them are held in memory as a whole.
"""

import zipfile
from collections.abc import Collection
from typing import Any

import numpy as np

from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.rows import canonical
from dask_nrbfn.sources.arrays import ArrayRows, check_header, numpy_damage_named
from dask_nrbfn.sources.npy import local_copy, with_columns
from dask_nrbfn.sources.source import Reading


def open_rows(reading: Reading) -> ArrayRows:
    """Return the rows of an .npz file; labels and weights of a sparse matrix are .npy files."""
    file = reading.place
    with local_copy(file) as path, numpy_damage_named(file), zipfile.ZipFile(path) as archive:
        if wrong := archive.testzip():
            raise zipfile.BadZipFile(f"{wrong} does not have its checksum")
        sizes = {
            info.filename.removesuffix(".npy"): info.file_size
            for info in archive.infolist()
            if info.filename.endswith(".npy")
        }
        is_matrix = {"data", "format", "shape"} <= sizes.keys()
        names = {name: name for name in sizes} if is_matrix else _names(reading, sizes)
        for name in names.values():
            with archive.open(f"{name}.npy") as member:
                check_header(member, sizes[name], name)
        if is_matrix:
            matrix = _matrix(path)
        else:
            with np.load(path, allow_pickle=False) as loaded:
                arrays = {role: loaded[name] for role, name in names.items()}
    if not is_matrix:
        return ArrayRows(arrays, names)
    if reading.x is not None:
        raise ParameterError(
            f"`x`={reading.x} is given, but {file} has only a sparse matrix.", "Leave `x` out."
        )
    return with_columns(reading, matrix)


def _names(reading: Reading, members: Collection[str]) -> dict[str, str]:
    """Return the member of each role: the one that is named, or the usual one."""
    roles = ("x", "y", "target", "weights")
    names = {role: name for role in roles if (name := getattr(reading, role)) is not None}
    names.setdefault("x", "X")
    if "target" not in names and "y" in members:
        names.setdefault("y", "y")
    for role, given in names.items():
        names[role] = given.removesuffix(".npy")
        if names[role] not in members:
            existing = ", ".join(map(repr, members)) or "none"
            raise DataError(
                f"{reading.place} has no array {given!r}; it has {existing}.",
                "Name the features with `x`, labels with `y` or numeric targets with `target`, and "
                "weights with `weights`.",
            )
    return names


def _matrix(path: str) -> Any:
    """Return a sparse matrix as a csr_array."""
    from scipy.sparse import load_npz

    matrix = load_npz(path)
    if hasattr(matrix, "check_format"):
        # A wrong index would make scipy read outside of its arrays.
        matrix.check_format(full_check=True)
    return canonical(matrix)
