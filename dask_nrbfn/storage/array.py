"""What is stored by name in a group: arrays, or rows in CSR."""

import zarr

from dask_nrbfn.numeric.rows import Rows, is_sparse
from dask_nrbfn.storage.dense import Array, read_dense, write_dense
from dask_nrbfn.storage.dense import create_array as create_array
from dask_nrbfn.storage.dense import get_array as get_array
from dask_nrbfn.storage.referenced import ReferencedRows, refers
from dask_nrbfn.storage.sparse import SparseArray, is_csr, write_sparse
from dask_nrbfn.storage.strict import metadata_named

Stored = Array | SparseArray | ReferencedRows


def write_array(
    group: zarr.Group,
    name: str,
    values: Rows,
    *dimensions: str,
    slice_rows: int | None = None,
) -> None:
    """Store a whole array, in chunks of about 16 MiB along its first axis, or rows in CSR.

    With `slice_rows` in chunks of as many rows, all in one file.
    """
    if is_sparse(values):
        write_sparse(group, name, values, slice_rows=slice_rows)
    else:
        write_dense(group, name, values, *dimensions, slice_rows=slice_rows)


def get_stored(group: zarr.Group, name: str) -> Stored:
    """Return an array of the group, rows in CSR, or rows elsewhere.

    Raises
    ------
    DamagedDataError
        If it is not there, or not what was written.
    """
    with metadata_named(f"{group.store_path}/{name}"):
        member = group.get(name)
    if isinstance(member, zarr.Group) and is_csr(member):
        return SparseArray.open(member)
    if isinstance(member, zarr.Group) and refers(member):
        return ReferencedRows.open(member)
    return get_array(group, name)


def read_rows(array: Stored, start: int = 0, stop: int | None = None) -> Rows:
    """Return ``array[start:stop]``.

    Raises
    ------
    MissingDataError, DamagedDataError
        If a chunk is not there or fails its checksum, or the whole array is not what was written.
    """
    if isinstance(array, SparseArray):
        return array.read(start, stop)
    if isinstance(array, ReferencedRows):
        return array.read(start, array.shape[0] if stop is None else stop)
    return read_dense(array, start, stop)
