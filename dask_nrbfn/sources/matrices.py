"""Rows of a sparse matrix in an .npz file of `scipy.sparse.save_npz`."""

import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.rows import canonical
from dask_nrbfn.sources.arrays import (
    ArrayLayout,
    Header,
    ShardReader,
    Shards,
    damage_named,
    layout_of,
    member_header,
    member_opened,
    read_header,
    read_rows,
    shards_of,
    spans,
)
from dask_nrbfn.sources.dtypes import sparse_dtype
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.layout import check_apart
from dask_nrbfn.sources.source import Block

if TYPE_CHECKING:
    from scipy.sparse import csr_array

ReadRows = Callable[[int, int], "csr_array"]


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
