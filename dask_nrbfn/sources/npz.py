"""Members of an .npz file: arrays, or the sparse matrix that `scipy.sparse.save_npz` wrote."""

import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.rows import canonical
from dask_nrbfn.sources.arrays import (
    ArrayLayout,
    Header,
    check_length,
    damage_named,
    layout_of,
    read_header,
    read_rows,
    spans,
    stored_by_column,
    tables_of,
)
from dask_nrbfn.sources.dtypes import sparse_dtype
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.npy import ShardReader, Shards, column_files, shards_of
from dask_nrbfn.sources.source import Block, Reading, Source, check_apart

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# zipfile unpacks any others as far as they go: a megabyte may become gigabytes.
BOUNDED_COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

ReadRows = Callable[[int, int], "csr_array"]


def open_rows(reading: Reading) -> Source:
    """Return the rows of an .npz file; beside a sparse matrix, other columns are .npy files."""
    place = reading.place
    if not holds_matrix(place):
        return open_npz(
            place, x=reading.x, y=reading.y, target=reading.target, weights=reading.weights
        )
    if reading.x is not None:
        raise ParameterError(
            f"`x`={reading.x} is given, and {place} holds a sparse matrix alone.", "Leave it out."
        )
    return open_matrix(place, column_files(reading))


@dataclass(kw_only=True)
class NpzSource(ArrayLayout):
    """Rows of members of an .npz file, read straight from the zip archive."""

    file: File

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
        with damage_named(self.file), ExitStack() as stack:
            members = {name: stack.enter_context(member_opened(self.file, name)) for name in names}
            for name, member in members.items():
                read_header(member, name)
            for start, stop in spans(self.n_rows, block_rows):
                yield self.block(start, stop, partial(read_rows, members))
            # The archive compares the checksum when a read meets the end.
            if any(member.read(1) for member in members.values()):
                raise EOFError("a member is longer than its header says")


def open_npz(
    file: File,
    *,
    x: str | None = None,
    y: str | None = None,
    target: str | None = None,
    weights: str | None = None,
) -> NpzSource:
    """Source of the members `x`, `y` or `target`, and `weights` of an .npz file.

    Parameters
    ----------
    file : File
    x : str, optional
        Member with the features, by default "X".
    y : str, optional
        Member with the labels, by default "y" where there is one.
    target : str, optional
        Member with numbers (n,) or (n, q), instead of the labels.
    weights : str, optional
        Member with the weights of the rows.

    Raises
    ------
    DataError
        If a member is missing, or its shape or type does not fit.
    ParameterError
        If a member is named for two of them.
    DamagedDataError
        If the file is not an .npz file.
    """
    path = str(file)
    with (
        damage_named(file),
        file.open(jumps=True) as stream,
        zipfile.ZipFile(stream) as archive,
    ):
        members = [n.removesuffix(".npy") for n in archive.namelist() if n.endswith(".npy")]
        x = _member(path, members, x or "X")
        target = None if target is None else _member(path, members, target)
        if target is None:
            y = _member(path, members, y) if y else ("y" if "y" in members else None)
        weights = _member(path, members, weights) if weights else None
        check_apart("target", target, x)
        check_apart("weights", weights, x, y, target)
        layout = layout_of(
            member_header(archive, x),
            *(
                None if name is None else member_header(archive, name)
                for name in (y, weights, target)
            ),
        )
    for header in tables_of(layout):
        if header.fortran_order:
            raise stored_by_column(f"{header.name} in {file}")
    return NpzSource(**vars(layout), file=file)


def holds_matrix(file: File) -> bool:
    """Return whether an .npz file is one that `scipy.sparse.save_npz` has written."""
    with (
        damage_named(file),
        file.open(jumps=True) as stream,
        zipfile.ZipFile(stream) as archive,
    ):
        return {"data.npy", "format.npy", "shape.npy"} <= {*archive.namelist()}


@dataclass(kw_only=True)
class MatrixSource(ArrayLayout):
    """Rows of a sparse matrix; one that is not in CSR is held in memory as a whole."""

    file: File
    format: str
    columns: tuple[Shards, ...]

    def blocks(self, block_rows: int) -> Iterator[Block]:
        """Yield all rows in order, in CSR, `block_rows` at a time.

        Raises
        ------
        DataError
            If a label is not a whole number.
        DamagedDataError
            If a file is cut short, or has columns that the matrix has not.
        """
        with ExitStack() as stack:
            readers = {
                shards.header.name: stack.enter_context(closing(ShardReader(shards)))
                for shards in self.columns
            }
            rows = stack.enter_context(self._opened())

            def read(header: Header, start: int, stop: int) -> Any:
                if header is self.x:
                    return rows(start, stop)
                return readers[header.name].read(stop - start)

            for start, stop in spans(self.n_rows, block_rows):
                yield self.block(start, stop, read)

    @contextmanager
    def _opened(self) -> Iterator[ReadRows]:
        with damage_named(self.file):
            if self.format == "csr":
                with _csr_opened(self.file, self.x.shape) as rows:
                    yield rows
            else:
                matrix = _whole(self.file)
                yield lambda start, stop: matrix[start:stop]


def open_matrix(file: File, columns: Mapping[str, tuple[str, Sequence[File]]]) -> MatrixSource:
    """Source of the rows of a sparse matrix.

    Parameters
    ----------
    file : File
        Of `scipy.sparse.save_npz`, in any format that it writes.
    columns : mapping
        By "y", "target" and "weights" what was given as that, and its .npy files.

    Raises
    ------
    DataError
        If a shape or type does not fit.
    ParameterError
        If a file is named for two of them.
    DamagedDataError
        If a file is cut short, or no such file.
    MissingDataError
        If a file does not exist.
    """
    names = {role: name for role, (name, _) in columns.items()}
    check_apart("target", names.get("target"), str(file))
    others = (names.get(role) for role in ("y", "target"))
    check_apart("weights", names.get("weights"), str(file), *others)
    shards = {role: shards_of(role, name, own) for role, (name, own) in columns.items()}
    headers = {role: own.header for role, own in shards.items()}
    with (
        damage_named(file),
        file.open(jumps=True) as stream,
        zipfile.ZipFile(stream) as archive,
    ):
        members = [name.removesuffix(".npy") for name in archive.namelist()]
        data = {name: member_header(archive, name) for name in members}["data"]
        written_as = _whole_member(file, "format").item().decode()
        shape = tuple(map(int, _whole_member(file, "shape")))
    if len(shape) != 2:
        raise DataError(f"{file} holds an array of shape {shape}.", "Save a matrix: (n, p).")
    x = Header(str(file), shape, data.dtype)
    layout = layout_of(x, headers.get("y"), headers.get("weights"), headers.get("target"))
    layout.n_values = data.shape[0] if len(data.shape) == 1 else int(np.prod(data.shape))
    layout.x_dtype = sparse_dtype(data.dtype, str(file))
    return MatrixSource(
        **vars(layout), file=file, format=written_as, columns=tuple(shards.values())
    )


def _whole_member(file: File, name: str) -> np.ndarray:
    with member_opened(file, name) as member:
        header = read_header(member, name)
        whole = replace(header, shape=header.shape or (1,))
        return read_rows({name: member}, whole, 0, whole.shape[0])


def _whole(file: File) -> "csr_array":
    from scipy.sparse import load_npz

    with file.open(jumps=True) as stream:
        return canonical(load_npz(stream))


@contextmanager
def _csr_opened(file: File, shape: tuple[int, ...]) -> Iterator[ReadRows]:
    """Give what reads the rows from `start` to `stop`, which must follow those read before."""
    from scipy.sparse import csr_array

    ends = _whole_member(file, "indptr")
    if ends.shape != (shape[0] + 1,) or ends.dtype.kind != "i":
        raise ValueError("its rows have no ends")
    with ExitStack() as stack:
        names = ("data", "indices")
        members = {name: stack.enter_context(member_opened(file, name)) for name in names}
        headers = {name: read_header(member, name) for name, member in members.items()}
        if [ends[0], ends[-1]] != [0, headers["data"].shape[0]] or (np.diff(ends) < 0).any():
            raise ValueError("its rows do not end where they should")

        def rows(start: int, stop: int) -> "csr_array":
            first, last = int(ends[start]), int(ends[stop])
            values, columns = (read_rows(members, headers[name], first, last) for name in names)
            if len(columns) and not 0 <= columns.min() <= columns.max() < shape[1]:
                raise ValueError(f"a value is in none of its {shape[1]} columns")
            own = (values, columns, ends[start : stop + 1] - first)
            return canonical(csr_array(own, shape=(stop - start, shape[1])))

        yield rows


def _member(path: str, members: list[str], name: str) -> str:
    if name.removesuffix(".npy") in members:
        return name.removesuffix(".npy")
    existing = ", ".join(repr(member) for member in members) or "none"
    raise DataError(
        f"{path} has no array {name!r}; it has {existing}.",
        "Name the array of the features with `x`, of labels with `y` or of numbers with `target`, "
        "of weights with `weights`.",
    )


def member_header(archive: zipfile.ZipFile, name: str) -> Header:
    """Header of an array in an .npz file, which holds all that it says."""
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type not in BOUNDED_COMPRESSION:
        raise DataError(
            f"{name} is compressed in another way than numpy does.",
            "Save it again with numpy.savez_compressed, which can be read piece by piece.",
        )
    with archive.open(info) as member:
        header = read_header(member, name)
        check_length(header, info.file_size - member.tell())
    return header


@contextmanager
def member_opened(file: File, name: str) -> Iterator[IO[bytes]]:
    """Give an array of an .npz file, to be read from its header on."""
    # Each member from a stream of its own: they are read in turn, from places far apart.
    with (
        file.open(jumps=True) as stream,
        zipfile.ZipFile(stream) as archive,
        archive.open(f"{name}.npy") as member,
    ):
        yield member
