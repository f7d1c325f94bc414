"""Members of a group: an array, rows in CSR, or a reference to rows in another store.

Rows in CSR are three Zarr arrays in AnnData's encoding, which other tools can open.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import zarr
from numpy.typing import DTypeLike

from dask_nrbfn.errors import DamagedDataError
from dask_nrbfn.numeric.rows import Rows, canonical, is_sparse
from dask_nrbfn.storage.dense import (
    Array,
    ChunkedRows,
    get_member,
    read_dense,
    seal_layout,
    sound_array,
    write_dense,
)
from dask_nrbfn.storage.dense import create_array as create_array
from dask_nrbfn.storage.dense import get_array as get_array
from dask_nrbfn.storage.referenced import ReferencedRows, refers
from dask_nrbfn.storage.strict import RESTORE, is_sealed, sealed

if TYPE_CHECKING:
    from scipy.sparse import csr_array

ENCODING = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0"}

_PARTS = ("data", "indices", "indptr")

# 8 MiB of float64 values, 4 MiB of column indices.
_CHUNK_VALUES = 2**20
# Ends of rows: 1 MiB.
_CHUNK_ROWS = 2**17


@dataclass(frozen=True, eq=False, kw_only=True)
class SparseArray(ChunkedRows):
    """Stored rows in CSR, opened for reading; column indices ascend within a row."""

    data: Array
    indices: Array
    indptr: Array
    n_values: int

    @classmethod
    def open(cls, group: zarr.Group) -> Self:
        """Open rows in CSR."""
        place = group.store_path
        recorded: dict[str, Any] = group.attrs.asdict()
        if not is_sealed(recorded):
            raise _changed(place)
        n_rows, n_features = recorded["shape"]
        arrays: dict[str, Any] = {name: get_array(group, name) for name in _PARTS}
        rows = cls(
            **arrays,
            shape=(n_rows, n_features),
            dtype=np.dtype(arrays["data"].dtype),
            **{name: recorded[name] for name in ("chunk_rows", "n_values", "most_values")},
        )
        lengths = [array.shape for array in arrays.values()]
        if lengths != [(rows.n_values,), (rows.n_values,), (n_rows + 1,)]:
            raise _changed(place)
        return rows

    @property
    def arrays(self) -> dict[str, Array]:
        """The stored arrays by name."""
        return {name: getattr(self, name) for name in _PARTS}

    def read(self, start: int = 0, stop: int | None = None) -> "csr_array":
        """Return rows in CSR, csr_array (stop - start, p)."""
        from scipy.sparse import csr_array

        start, stop, _ = slice(start, stop).indices(self.shape[0])
        n_rows = max(0, stop - start)
        ends = read_dense(self.indptr, start, start + n_rows + 1)
        first, last = int(ends[0]), int(ends[-1])
        if not 0 <= first <= last <= self.n_values or (np.diff(ends) < 0).any():
            raise _changed(self.indptr.store_path)
        values, columns = read_dense(self.data, first, last), read_dense(self.indices, first, last)
        if len(columns) and not 0 <= columns.min() <= columns.max() < self.shape[1]:
            raise _changed(self.indices.store_path)
        # scipy copies the larger of both if their types differ.
        ends = (ends - first).astype(columns.dtype if last - first < 2**31 else np.int64)
        return canonical(csr_array((values, columns, ends), shape=(n_rows, self.shape[1])))


def _changed(place: object) -> DamagedDataError:
    return DamagedDataError(f"{place} differs from what was written.", RESTORE)


def create_sparse(
    group: zarr.Group,
    name: str,
    shape: tuple[int, int],
    dtype: DTypeLike,
    *,
    chunk_rows: int,
    n_values: int,
) -> None:
    """Lay out rows in CSR for `append_rows`; more than `n_values` values can be written."""
    member = group.create_group(name, overwrite=True)
    written = {"shape": shape, "chunk_rows": chunk_rows, "most_values": 0}
    member.update_attributes({**ENCODING, **written})
    for part, of, length, chunk, dimension in (
        ("data", dtype, n_values, _CHUNK_VALUES, "value"),
        ("indices", np.int32, n_values, _CHUNK_VALUES, "value"),
        ("indptr", np.int64, shape[0] + 1, _CHUNK_ROWS, "end"),
    ):
        create_array(
            member,
            part,
            shape=(length,),
            dtype=of,
            chunks=(min(length, chunk),),
            dimensions=(dimension,),
            compress=True,
        )


def append_rows(group: zarr.Group, name: str, start: int, X: "csr_array") -> None:
    """Append rows to rows in CSR, of which `start` are stored."""
    member, arrays = _being_written(group, name)
    data, indices, indptr = arrays.values()
    first = _end(indptr, start) if start else 0
    last = first + X.nnz
    if last > data.shape[0]:
        # More than expected: grow by half, so that few chunks need a resize.
        for array in (data, indices):
            array.resize((max(last, first * 3 // 2),))
    indptr[start : start + X.shape[0] + 1] = X.indptr.astype(np.int64) + first
    if X.nnz:
        data[first:last], indices[first:last] = X.data, X.indices
    attributes: dict[str, Any] = member.attrs.asdict()
    member.update_attributes({"most_values": max(X.nnz, attributes["most_values"])})


def finish_sparse(group: zarr.Group, name: str) -> None:
    """Finish rows in CSR."""
    member, arrays = _being_written(group, name)
    n_values = _end(arrays["indptr"], -1)
    for part in ("data", "indices"):
        arrays[part].resize((n_values,))
        # Needed even if the last append left the array with this length.
        seal_layout(arrays[part])
    member.update_attributes(sealed({**member.attrs.asdict(), "n_values": n_values}))


def _being_written(group: zarr.Group, name: str) -> tuple[zarr.Group, dict[str, Array]]:
    member = group[name]
    assert isinstance(member, zarr.Group)
    arrays = {}
    for part in _PARTS:
        array = member[part]
        assert isinstance(array, zarr.Array)
        # The setting belongs to the open array, not to the stored one.
        arrays[part] = array.with_config({"write_empty_chunks": True})
    return member, arrays


def _end(indptr: Array, row: int) -> int:
    return int(np.asarray(indptr[row]))


def _write_sparse(
    group: zarr.Group, name: str, X: "csr_array", *, slice_rows: int | None = None
) -> None:
    """Store all rows in CSR; with `slice_rows`, each array is one file that is read in slices."""
    member = group.create_group(name, overwrite=True)
    n_rows, n_values = max(1, X.shape[0]), X.nnz
    slice_values = None if slice_rows is None else max(1, slice_rows * n_values // n_rows)
    ends = X.indptr.astype(np.int64)
    write_dense(member, "data", X.data, "value", slice_rows=slice_values)
    write_dense(member, "indices", X.indices, "value", slice_rows=slice_values)
    write_dense(member, "indptr", ends, "end", slice_rows=slice_rows)
    chunk_rows = slice_rows or n_rows
    firsts = ends[:-1:chunk_rows]
    most = int(np.diff(np.append(firsts, n_values)).max(initial=0))
    recorded = {"shape": X.shape, "chunk_rows": chunk_rows, "most_values": most}
    member.update_attributes(sealed({**ENCODING, **recorded, "n_values": n_values}))


def _is_csr(group: zarr.Group) -> bool:
    """Return whether the attributes of a group mark it as rows in CSR."""
    return ENCODING.items() <= group.attrs.asdict().items()


Stored = Array | SparseArray | ReferencedRows


def write_array(
    group: zarr.Group,
    name: str,
    values: Rows,
    *dimensions: str,
    slice_rows: int | None = None,
) -> None:
    """Store an array or rows in CSR, in chunks of 16 MiB, or of `slice_rows` in one file."""
    if is_sparse(values):
        _write_sparse(group, name, values, slice_rows=slice_rows)
    else:
        write_dense(group, name, values, *dimensions, slice_rows=slice_rows)


def get_stored(group: zarr.Group, name: str) -> Stored:
    """Return a member of a group: an array, rows in CSR, or rows of another store."""
    member = get_member(group, name)
    if isinstance(member, zarr.Group) and _is_csr(member):
        return SparseArray.open(member)
    if isinstance(member, zarr.Group) and refers(member):
        return ReferencedRows.open(member)
    return sound_array(member, f"{group.store_path}/{name}")


def read_rows(array: Stored, start: int = 0, stop: int | None = None) -> Rows:
    """Return ``array[start:stop]``."""
    if isinstance(array, SparseArray):
        return array.read(start, stop)
    if isinstance(array, ReferencedRows):
        return array.read(start, array.shape[0] if stop is None else stop)
    return read_dense(array, start, stop)
