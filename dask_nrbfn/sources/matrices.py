"""Rows of a sparse matrix in an .npz file of `scipy.sparse.save_npz`."""

import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.rows import canonical
from dask_nrbfn.sources.arrays import (
    ArrayLayout,
    Header,
    damage_named,
    file_header,
    layout_of,
    member_header,
    member_opened,
    npy_rows,
    read_header,
    read_rows,
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
    columns: tuple[File, ...]

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
            opened = {}
            for file in self.columns:
                with damage_named(file):
                    opened[str(file)] = stack.enter_context(file.open())
                    read_header(opened[str(file)], str(file))
            rows = stack.enter_context(self._opened())

            def read(header: Header, start: int, stop: int) -> Any:
                if header is self.x:
                    return rows(start, stop)
                return npy_rows(opened, header, start, stop)

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


def open_matrix(
    file: File, *, y: str | None = None, target: str | None = None, weights: str | None = None
) -> MatrixSource:
    """Source of the rows of a sparse matrix.

    Parameters
    ----------
    file : File
        Of `scipy.sparse.save_npz`, in any format that it writes.
    y, target, weights : str, optional
        .npy files, as in `open_npy`.

    Raises
    ------
    DataError
        If a shape or type does not fit.
    ParameterError
        If a file is named for two of them.
    DamagedDataError
        If a file is cut short, or no such file.
    MissingDataError
        If the file `y`, `target` or `weights` does not exist.
    """
    check_apart("target", target, str(file))
    check_apart("weights", weights, str(file), y, target)
    others = {"y": y, "target": target, "weights": weights}
    files = {name: replace(file, path=path) for name, path in others.items() if path is not None}
    headers = {name: file_header(other, option=name) for name, other in files.items()}
    with (
        damage_named(file),
        file.open(jumps=True) as stream,
        zipfile.ZipFile(stream) as archive,
    ):
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        data = {name: member_header(archive, name) for name in names}["data"]
        written_as = _whole_member(file, "format").item().decode()
        shape = tuple(map(int, _whole_member(file, "shape")))
    if len(shape) != 2:
        raise DataError(f"{file} holds an array of shape {shape}.", "Save a matrix: (n, p).")
    x = Header(str(file), shape, data.dtype)
    layout = layout_of(x, headers.get("y"), headers.get("weights"), headers.get("target"))
    layout.n_values = data.shape[0] if len(data.shape) == 1 else int(np.prod(data.shape))
    layout.x_dtype = sparse_dtype(data.dtype, str(file))
    return MatrixSource(**vars(layout), file=file, format=written_as, columns=tuple(files.values()))


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
    if ends.shape != (shape[0] + 1,) or ends.dtype.kind != "i" or (np.diff(ends) < 0).any():
        raise ValueError("its rows do not end where they should")
    with ExitStack() as stack:
        names = ("data", "indices")
        members = {name: stack.enter_context(member_opened(file, name)) for name in names}
        headers = {name: read_header(member, name) for name, member in members.items()}

        def rows(start: int, stop: int) -> "csr_array":
            first, last = int(ends[start]), int(ends[stop])
            values, columns = (read_rows(members, headers[name], first, last) for name in names)
            if len(columns) and not 0 <= columns.min() <= columns.max() < shape[1]:
                raise ValueError(f"a value is in none of its {shape[1]} columns")
            own = (values, columns, ends[start : stop + 1] - first)
            return canonical(csr_array(own, shape=(stop - start, shape[1])))

        yield rows
