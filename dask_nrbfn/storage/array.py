"""Members of a group: an array, rows in CSR, or a reference to rows in another store.

Chunks carry a checksum, and missing chunks are errors. Rows in CSR are three arrays in AnnData's
encoding, which other tools can open. A reference has a digest of each chunk of rows, which is
compared when the rows are read.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
import zarr.api.asynchronous
from numpy.typing import DTypeLike
from zarr.buffer import default_buffer_prototype
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.storage import LocalStore, MemoryStore, StorePath

from dask_nrbfn.errors import DamagedDataError, MissingDataError
from dask_nrbfn.numeric.rows import Rows, canonical, is_csr
from dask_nrbfn.private import run_in_zarr
from dask_nrbfn.storage.group import (
    RESTORE,
    check_sealed,
    checksum,
    delete_all,
    metadata_named,
    values_named,
    write_group,
)
from dask_nrbfn.storage.location import open_store, remote

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Array = zarr.Array[Any]
AsyncArray = zarr.AsyncArray[Any]

# Belongs to an open array, not to the stored one. A missing chunk is then always damage.
_CONFIG: Any = {"write_empty_chunks": True}

INDEX_BYTES, ROW_BYTES = 4, 8
"""Bytes that CSR adds: the column of each value, and the end of each row."""

ENCODING = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0"}
"""Attributes of rows in CSR."""

_CSR_ARRAYS = ("data", "indices", "indptr")

# 8 MiB of float64 values, 4 MiB of column indices; ends of rows: 1 MiB.
_CHUNK_VALUES, _CHUNK_ROWS = 2**20, 2**17

_DIGEST_BYTES = 8


@dataclass(frozen=True, eq=False, kw_only=True)
class StoredRows:
    """Rows (n, p) that are read by `chunk_rows`: in CSR, in another store, or of a plan.

    n_values, most_values: number of values in CSR, of all rows and of the largest chunk. None: rows
        are not in CSR.
    read: takes the first row and the row after the last. None: a plan has no rows.
    place: the array in another store that has the rows.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    chunk_rows: int
    n_values: int | None = None
    most_values: int | None = None
    read: Callable[[int, int], Rows] | None = field(default=None, repr=False)
    place: str | None = None

    @property
    def chunks(self) -> tuple[int, int]:
        """Rows that are read together, and the columns p."""
        return self.chunk_rows, self.shape[1]

    @property
    def row_values(self) -> float:
        """Average number of values of a row in CSR, else p."""
        return self.shape[1] if self.n_values is None else self.n_values / self.shape[0]

    @property
    def most_bytes(self) -> int:
        """Bytes of the largest chunk of rows."""
        if self.most_values is None:
            return self.chunk_rows * self.shape[1] * self.dtype.itemsize
        return self.most_values * (self.dtype.itemsize + INDEX_BYTES) + self.chunk_rows * ROW_BYTES

    def planned(self, n_rows: int, chunk_rows: int) -> "StoredRows":
        """Return the sizes of other numbers of such rows."""
        sizes = StoredRows(shape=(n_rows, self.shape[1]), dtype=self.dtype, chunk_rows=chunk_rows)
        if self.most_values is None:
            return sizes
        most_values = round(self.most_values * chunk_rows / self.chunk_rows)
        return replace(sizes, n_values=round(n_rows * self.row_values), most_values=most_values)


Stored = Array | StoredRows


def chunked(rows: Stored) -> StoredRows:
    """Return the sizes of stored rows (n, p)."""
    if isinstance(rows, StoredRows):
        return rows
    n_rows, n_columns = rows.shape
    return StoredRows(shape=(n_rows, n_columns), dtype=rows.dtype, chunk_rows=rows.chunks[0])


def digest_of(rows: Rows) -> str:
    """Return the digest of a chunk of rows, in hexadecimal."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    update_digest(digest, rows)
    return digest.hexdigest()


def update_digest(digest: "hashlib.blake2b", rows: Rows) -> None:
    """Add the bytes of rows to a digest."""
    arrays = (rows.data, rows.indices, rows.indptr) if is_csr(rows) else (rows,)
    for values in arrays:
        digest.update(np.ascontiguousarray(values).data)


# Reading


def get_array(group: zarr.Group, name: str) -> Array:
    """Return an array of the group; raise DamagedDataError unless its metadata is as written."""
    array = get_stored(group, name)
    if not isinstance(array, zarr.Array):
        raise _not_written(f"{group.store_path}/{name}")
    return array


def get_stored(group: zarr.Group, name: str) -> Stored:
    """Return a member of a group: an array, rows in CSR, or rows of another store."""
    found = run_in_zarr(_open(group, name))
    if isinstance(found, zarr.AsyncArray):
        return zarr.Array(found)
    check_sealed(found, f"{group.store_path}/{name}")
    n_rows, n_columns = found["shape"]
    place = None
    if "place" in found:
        place = f"{found['place']}/{found['path']}".rstrip("/")
        dtype = np.dtype(found["dtype"])
        read = partial(_read_referenced, _array_at(found["place"], found["path"]), found)
    else:
        arrays = [get_array(group, f"{name}/{each}") for each in _CSR_ARRAYS]
        dtype = arrays[0].dtype
        read = partial(_read_sparse, arrays, n_columns)
    return StoredRows(
        shape=(n_rows, n_columns),
        dtype=dtype,
        chunk_rows=found["chunk_rows"],
        n_values=found.get("n_values"),
        most_values=found.get("most_values"),
        read=read,
        place=place,
    )


async def _open(group: zarr.Group, name: str) -> AsyncArray | dict[str, Any]:
    """Return an array, or the attributes of a group; its checksum is that which was written."""
    place = group.store_path / name
    with metadata_named(place):
        content = await (place / "zarr.json").get()
        if content is None:
            raise _not_written(place, is_missing=True)
        metadata = json.loads(content.to_bytes())
        if metadata["node_type"] == "group":
            return dict(metadata["attributes"])
        array: AsyncArray = zarr.AsyncArray.from_dict(place, metadata)
        if array.attrs.get("checksum") != _layout_checksum(array):
            raise _not_written(place)
        return array.with_config(_CONFIG)


def _not_written(place: object, *, is_missing: bool = False) -> DamagedDataError:
    what = "missing" if is_missing else "not the array that was written"
    return DamagedDataError(f"{place} is {what}.", RESTORE)


def _layout_checksum(array: Array | AsyncArray) -> str:
    """Return the checksum of the metadata without the attributes, which hold the checksum."""
    layout = array.metadata.to_dict()
    del layout["attributes"]
    return checksum(layout)


def read_rows(array: Stored, start: int = 0, stop: int | None = None) -> Rows:
    """Return ``array[start:stop]``."""
    start, stop, _ = slice(start, stop).indices(array.shape[0])
    if isinstance(array, StoredRows):
        assert array.read is not None, "a plan has no rows"
        return array.read(start, stop)
    remedy = "Restore the damaged chunk from a copy, or write the data again."
    with values_named(f"rows {start} to {stop} of {array.store_path}", remedy):
        return np.asarray(array[start:stop])


def _read_sparse(arrays: list[Array], n_columns: int, start: int, stop: int) -> "csr_array":
    """Return rows in CSR, csr_array (stop - start, p)."""
    from scipy.sparse import csr_array

    data, indices, indptr = arrays
    n_rows = max(0, stop - start)
    ends = read_rows(indptr, start, start + n_rows + 1)
    first, last = int(ends[0]), int(ends[-1])
    values, columns = read_rows(data, first, last), read_rows(indices, first, last)
    # scipy copies the larger of both if their types differ.
    ends = (ends - first).astype(columns.dtype if last - first < 2**31 else np.int64)
    return canonical(csr_array((values, columns, ends), shape=(n_rows, n_columns)))


def _read_referenced(array: Array, recorded: dict[str, Any], start: int, stop: int) -> Rows:
    """Return the rows of one chunk of another store, (stop - start, p)."""
    place = f"{recorded['path']} of {recorded['place']}".removeprefix(" of ")
    remedy = "Restore the rows from a copy, or ingest the rows again."
    with values_named(f"rows {start} to {stop} of {place}", remedy):
        rows = np.asarray(array[start:stop]).astype(recorded["dtype"], copy=False)
    first = 2 * _DIGEST_BYTES * (start // recorded["chunk_rows"])
    if digest_of(rows) != recorded["digests"][first : first + 2 * _DIGEST_BYTES]:
        raise DamagedDataError(
            f"rows {start} to {stop} of {place} changed after they were ingested.", remedy
        )
    return rows


def _array_at(place: str, path: str) -> Array:
    url = remote(place)
    store = LocalStore(place, read_only=True) if url is None else open_store(url)
    try:
        with metadata_named(place):
            return zarr.open_array(store=store, path=path, mode="r")
    except FileNotFoundError as error:
        raise MissingDataError(
            f"{path} is missing in {place}, from which the dataset reads its rows.",
            "Move the rows back, or ingest the rows again from the new place.",
        ) from error


# Writing


def create_array(group: zarr.Group, name: str, **sizes: Any) -> Array:
    """Add an array with the sizes of `_create`; it replaces what has this name."""
    return zarr.Array(run_in_zarr(_create(group.store_path / name, **sizes)))


async def _create(
    place: StorePath,
    *,
    shape: tuple[int, ...],
    dtype: DTypeLike,
    chunks: tuple[int, ...],
    dimensions: Iterable[str],
    shards: tuple[int, ...] | None = None,
    compress: bool = False,
) -> AsyncArray:
    """Lay out an array whose chunks carry a checksum, and return it.

    Floating-point results hardly compress, so Zstandard is used only with `compress`. The metadata
    gets its checksum in memory, and is written once.

    shards: shape of the values in one file; None: one chunk.
    """
    memory = MemoryStore()
    is_text = np.dtype(dtype).kind in "TU"
    array = await zarr.api.asynchronous.create_array(
        memory,
        shape=shape,
        dtype=str if is_text else np.dtype(dtype),
        chunks=tuple(max(1, length) for length in chunks),
        shards=shards,
        compressors=ZstdCodec(level=1, checksum=True) if compress else Crc32cCodec(),
        dimension_names=dimensions,
    )
    await array.update_attributes({"checksum": _layout_checksum(array)})
    metadata = await memory.get("zarr.json", default_buffer_prototype())
    assert metadata is not None
    await delete_all(place)
    await (place / "zarr.json").set(metadata)
    return zarr.AsyncArray(array.metadata, place, config=_CONFIG)


def write_array(group: zarr.Group, name: str, values: Rows, *dimensions: str) -> None:
    """Store an array or rows in CSR, in chunks of 16 MiB."""
    run_in_zarr(write_values(group.store_path / name, values, dimensions))


async def write_values(
    place: StorePath, values: Rows, dimensions: Iterable[str], slice_rows: int | None = None
) -> None:
    """Store an array or rows in CSR, in chunks of 16 MiB, or of `slice_rows` in one file."""
    if is_csr(values):
        await _write_sparse(place, values, slice_rows)
        return
    n_rows, *inner = values.shape
    shards = None
    if slice_rows is None:
        row_bytes = max(1, values.itemsize * math.prod(inner))
        chunk_rows = min(n_rows, max(1, 2**24 // row_bytes))
    else:
        chunk_rows = slice_rows
        n_slices = max(1, math.ceil(n_rows / slice_rows))
        shards = (n_slices * slice_rows, *inner)
    array = await _create(
        place,
        shape=values.shape,
        dtype=values.dtype,
        chunks=(chunk_rows, *inner),
        dimensions=dimensions,
        shards=shards,
    )
    await array.setitem(..., values)


async def _write_sparse(place: StorePath, X: "csr_array", slice_rows: int | None) -> None:
    """Store all rows in CSR; with `slice_rows`, each array is one file that is read in slices."""
    n_rows, n_values = max(1, X.shape[0]), X.nnz
    slice_values = None
    if slice_rows is not None:
        slice_values = max(1, slice_rows * n_values // n_rows)
    ends = X.indptr.astype(np.int64)
    await delete_all(place)
    await write_values(place / "data", X.data, ["value"], slice_values)
    await write_values(place / "indices", X.indices, ["value"], slice_values)
    await write_values(place / "indptr", ends, ["end"], slice_rows)
    chunk_rows = slice_rows or n_rows
    firsts = ends[:-1:chunk_rows]
    most = int(np.diff(np.append(firsts, n_values)).max(initial=0))
    recorded = {"shape": X.shape, "chunk_rows": chunk_rows, "most_values": most}
    await write_group(place, {**ENCODING, **recorded, "n_values": n_values})


def begin_sparse(group: zarr.Group, dtype: DTypeLike, *, n_rows: int, n_values: int) -> None:
    """Lay out the arrays of rows in CSR; `n_values` is the expected number of values."""
    chunks = (min(n_values, _CHUNK_VALUES),)
    values: Any = {"shape": (0,), "chunks": chunks, "dimensions": ["value"], "compress": True}
    create_array(group, "data", dtype=dtype, **values)
    create_array(group, "indices", dtype=np.int32, **values)
    chunks = (min(n_rows + 1, _CHUNK_ROWS),)
    ends: Any = {"shape": (1,), "chunks": chunks, "dimensions": ["end"], "compress": True}
    create_array(group, "indptr", dtype=np.int64, **ends)


def append_rows(group: Any, X: "csr_array") -> None:
    """Append rows to rows in CSR, whose arrays are sealed at the end."""
    data, indices, indptr = (group[name].with_config(_CONFIG) for name in _CSR_ARRAYS)
    ends = X.indptr[1:].astype(np.int64) + data.shape[0]
    for array, values in ((data, X.data), (indices, X.indices), (indptr, ends)):
        array.append(values)


def finish_rows(group: zarr.Group, found: Mapping[str, Any]) -> None:
    """Seal rows in CSR, or a reference to rows, with what was found while they were written."""
    for _, array in group.arrays():
        array.update_attributes({"checksum": _layout_checksum(array)})
    run_in_zarr(write_group(group.store_path, {**group.attrs.asdict(), **found}))
