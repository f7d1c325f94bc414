"""Members of an .npz file: arrays, or the sparse matrix that `scipy.sparse.save_npz` wrote."""

import math
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.rows import canonical
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
from dask_nrbfn.sources.npy import Shards, column_files, opened_shards, shards_of
from dask_nrbfn.sources.source import Reading

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# zipfile unpacks other compressions without a limit: a megabyte may become gigabytes.
_BOUNDED_COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

_MatrixRows = Callable[[int, int], "csr_array"]


def open_rows(reading: Reading) -> ArrayRows:
    """Return the rows of an .npz file; labels and weights of a sparse matrix are .npy files."""
    file = reading.place
    with (
        numpy_damage_named(file),
        file.open(jumps=True) as stream,
        zipfile.ZipFile(stream) as archive,
    ):
        members = [
            name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")
        ]
        if {"data", "format", "shape"} <= {*members}:
            return _matrix_rows(reading, {name: _header(archive, name) for name in members})
        headers = {
            role: _header(archive, name) for role, name in _members(reading, members).items()
        }
    for role in ("x", "target"):
        if role in headers and headers[role].fortran_order:
            raise stored_by_column(f"{headers[role].name} in {file}")
    names = [header.name for header in headers.values()]
    return array_rows(headers, partial(_opened_members, file, names))


def _members(reading: Reading, members: Collection[str]) -> dict[str, str]:
    """Return the member of each role: the one that is named, or the usual one."""
    named = {role: getattr(reading, role) for role in ("x", "y", "target", "weights")}
    named["x"] = named["x"] or "X"
    if named["target"] is None and "y" in members:
        named["y"] = named["y"] or "y"
    found = {
        role: name.removesuffix(".npy")
        for role, name in named.items()
        if name or (role == "target" and name is not None)
    }
    for role, name in found.items():
        if name not in members:
            existing = ", ".join(map(repr, members)) or "none"
            raise DataError(
                f"{reading.place} has no array {named[role]!r}; it has {existing}.",
                "Name the features with `x`, labels with `y` or numeric targets with `target`, and "
                "weights with `weights`.",
            )
    check_roles(found)
    return found


@contextmanager
def _opened_members(file: File, names: Collection[str]) -> Iterator[ReadRows]:
    with numpy_damage_named(file), ExitStack() as stack:
        members = {name: stack.enter_context(_opened_member(file, name)) for name in names}
        for name, member in members.items():
            read_header(member, name)
        yield partial(read_rows, members)
        # The archive compares the checksum when a read meets the end.
        if any(member.read(1) for member in members.values()):
            raise EOFError("a member is longer than its header says")


def _matrix_rows(reading: Reading, members: Mapping[str, Header]) -> ArrayRows:
    """Return the rows of a sparse matrix; one that is not in CSR is held in memory as a whole."""
    file = reading.place
    if reading.x is not None:
        raise ParameterError(
            f"`x`={reading.x} is given, but {file} has only a sparse matrix.", "Leave `x` out."
        )
    files = column_files(reading)
    check_roles({"x": str(file), **{role: name for role, (name, _) in files.items()}})
    shards = {role: shards_of(role, name, own) for role, (name, own) in files.items()}
    shape = tuple(map(int, np.atleast_1d(_whole_member(file, "shape"))))
    if len(shape) != 2:
        raise DataError(f"{file} holds an array of shape {shape}.", "Save a matrix (n, p).")
    data = members["data"]
    headers = {role: own.header for role, own in shards.items()}
    headers["x"] = Header(str(file), shape, data.dtype)
    is_csr = _whole_member(file, "format").item() == b"csr"
    opened = partial(_opened_matrix, file, shape, shards.values(), is_csr=is_csr)
    return array_rows(headers, opened, n_values=math.prod(data.shape))


@contextmanager
def _opened_matrix(
    file: File, shape: tuple[int, ...], columns: Collection[Shards], *, is_csr: bool
) -> Iterator[ReadRows]:
    """Yield a reader of the rows of a sparse matrix and of its .npy files."""
    with opened_shards(columns) as read_column, numpy_damage_named(file), ExitStack() as stack:
        csr = _opened_csr(file, shape) if is_csr else nullcontext(_whole_matrix(file))
        rows = stack.enter_context(csr)

        def read(header: Header, start: int, stop: int) -> Any:
            is_matrix = header.name == str(file)
            return rows(start, stop) if is_matrix else read_column(header, start, stop)

        yield read


def _whole_matrix(file: File) -> _MatrixRows:
    from scipy.sparse import load_npz

    with file.open(jumps=True) as stream:
        matrix = canonical(load_npz(stream))
    return lambda start, stop: matrix[start:stop]


@contextmanager
def _opened_csr(file: File, shape: tuple[int, ...]) -> Iterator[_MatrixRows]:
    """Yield a reader of the rows from `start` to `stop`, which must follow the previous rows."""
    from scipy.sparse import csr_array

    ends = _whole_member(file, "indptr")
    if ends.shape != (shape[0] + 1,) or ends.dtype.kind != "i":
        raise ValueError("its row pointers have a wrong shape or type")
    with ExitStack() as stack:
        names = ("data", "indices")
        members = {name: stack.enter_context(_opened_member(file, name)) for name in names}
        headers = {name: read_header(member, name) for name, member in members.items()}
        if [ends[0], ends[-1]] != [0, headers["data"].shape[0]] or (np.diff(ends) < 0).any():
            raise ValueError("its row pointers do not match its values")

        def rows(start: int, stop: int) -> "csr_array":
            first, last = int(ends[start]), int(ends[stop])
            values, columns = (read_rows(members, headers[name], first, last) for name in names)
            if len(columns) and not 0 <= columns.min() <= columns.max() < shape[1]:
                raise ValueError(f"a column index is not below {shape[1]}")
            own = (values, columns, ends[start : stop + 1] - first)
            return canonical(csr_array(own, shape=(stop - start, shape[1])))

        yield rows


def _whole_member(file: File, name: str) -> np.ndarray:
    with _opened_member(file, name) as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def _header(archive: zipfile.ZipFile, name: str) -> Header:
    """Return the header of an array in an .npz file, if the file has all its rows."""
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type not in _BOUNDED_COMPRESSION:
        raise DataError(
            f"{name} has a compression that numpy does not write.",
            "Save the array again with numpy.savez_compressed, which can be read piece by piece.",
        )
    with archive.open(info) as member:
        header = read_header(member, name)
        check_length(header, info.file_size - member.tell())
    return header


@contextmanager
def _opened_member(file: File, name: str) -> Iterator[IO[bytes]]:
    """Yield the stream of an array in an .npz file, at the start of its header."""
    # Each member has its own stream, because members are read in turn from distant places.
    with (
        file.open(jumps=True) as stream,
        zipfile.ZipFile(stream) as archive,
        archive.open(f"{name}.npy") as member,
    ):
        yield member
