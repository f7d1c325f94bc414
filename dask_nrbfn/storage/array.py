"""Members of a group: an array, rows in CSR, or a reference to rows in another store.

Chunks carry a checksum, and missing chunks are errors. Rows in CSR are three arrays in AnnData's
encoding, which other tools can open. A reference has a digest of each chunk of rows, which is
compared when the rows are read.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeGuard

import numpy as np
import zarr
import zarr.api.asynchronous
from numpy.typing import DTypeLike, NDArray
from zarr.buffer import default_buffer_prototype
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.storage import LocalStore, MemoryStore, StorePath

from dask_nrbfn.errors import DamagedDataError, MissingDataError
from dask_nrbfn.numeric.rows import Rows, canonical, is_sparse
from dask_nrbfn.private import run_in_zarr
from dask_nrbfn.sources.source import StoredAt
from dask_nrbfn.storage.location import remote
from dask_nrbfn.storage.remote import open_store
from dask_nrbfn.storage.strict import (
    RESTORE,
    check_sealed,
    checksum,
    metadata_named,
    sealed,
    values_named,
    write_group,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Array = zarr.Array[Any]
AsyncArray = zarr.AsyncArray[Any]

# Belongs to an open array, not to the stored one. A missing chunk is then always damage.
_CONFIG: Any = {"write_empty_chunks": True}

INDEX_BYTES, ROW_BYTES = 4, 8
"""Bytes that CSR adds: the column of each value, and the end of each row."""

_ENCODING = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0"}

_CSR_ARRAYS = ("data", "indices", "indptr")

# 8 MiB of float64 values, 4 MiB of column indices; ends of rows: 1 MiB.
_CHUNK_VALUES, _CHUNK_ROWS = 2**20, 2**17

_DIGEST_BYTES = 8


@dataclass(frozen=True, eq=False, kw_only=True)
class ChunkedRows:
    """Rows (n, p) that are read by `chunk_rows`; this base class is a placeholder for a plan.

    n_values, most_values: number of values in CSR, of all rows and of the largest chunk. None: rows
        are not in CSR.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    chunk_rows: int
    n_values: int | None = None
    most_values: int | None = None

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

    def planned(self, n_rows: int, chunk_rows: int) -> "ChunkedRows":
        """Return a placeholder of other sizes, for a plan."""
        most = self.most_values
        return ChunkedRows(
            shape=(n_rows, self.shape[1]),
            dtype=self.dtype,
            chunk_rows=chunk_rows,
            n_values=None if self.n_values is None else round(n_rows * self.row_values),
            most_values=None if most is None else round(most * chunk_rows / self.chunk_rows),
        )


def chunked(rows: "Stored") -> ChunkedRows:
    """Return the sizes of stored rows (n, p)."""
    if isinstance(rows, ChunkedRows):
        return rows
    n_rows, n_columns = rows.shape
    return ChunkedRows(shape=(n_rows, n_columns), dtype=rows.dtype, chunk_rows=rows.chunks[0])


@dataclass(frozen=True, eq=False, kw_only=True)
class SparseArray(ChunkedRows):
    """Stored rows in CSR, opened for reading; column indices ascend within a row."""

    data: Array
    indices: Array
    indptr: Array
    n_values: int

    @classmethod
    def of(cls, arrays: dict[str, Any], recorded: dict[str, Any]) -> Self:
        """Return rows in CSR from their arrays and attributes."""
        n_rows, n_features = recorded["shape"]
        return cls(
            **arrays,
            shape=(n_rows, n_features),
            dtype=np.dtype(arrays["data"].dtype),
            **{name: recorded[name] for name in ("chunk_rows", "n_values", "most_values")},
        )

    def read(self, start: int = 0, stop: int | None = None) -> "csr_array":
        """Return rows in CSR, csr_array (stop - start, p)."""
        from scipy.sparse import csr_array

        start, stop, _ = slice(start, stop).indices(self.shape[0])
        n_rows = max(0, stop - start)
        ends = read_rows(self.indptr, start, start + n_rows + 1)
        first, last = int(ends[0]), int(ends[-1])
        values = read_rows(self.data, first, last)
        columns = read_rows(self.indices, first, last)
        # scipy copies the larger of both if their types differ.
        ends = (ends - first).astype(columns.dtype if last - first < 2**31 else np.int64)
        return canonical(csr_array((values, columns, ends), shape=(n_rows, self.shape[1])))


@dataclass(frozen=True, eq=False, kw_only=True)
class ReferencedRows(ChunkedRows):
    """Rows `path` of the Zarr store `place`; `digests` has the digest of each chunk in order."""

    place: str
    path: str
    array: Array
    digests: str

    @classmethod
    def of(cls, recorded: dict[str, Any]) -> Self:
        """Open the rows to which the attributes of a group refer."""
        rows = cls(
            array=_array_at(recorded["place"], recorded["path"]),
            shape=tuple(recorded["shape"]),
            dtype=np.dtype(recorded["dtype"]),
            **{name: recorded[name] for name in ("place", "path", "chunk_rows", "digests")},
        )
        if rows.array.shape != rows.shape:
            raise DamagedDataError(
                f"{rows} has the shape {rows.array.shape}, but had {rows.shape} when it was "
                "ingested.",
                "Ingest the rows again.",
            )
        return rows

    def __str__(self) -> str:
        return f"{self.path} of {self.place}" if self.path else self.place

    def read(self, start: int = 0, stop: int | None = None) -> Rows:
        """Return the rows of one chunk, (stop - start, p)."""
        stop = self.shape[0] if stop is None else min(stop, self.shape[0])
        remedy = "Restore the rows from a copy, or ingest the rows again."
        with values_named(f"rows {start} to {stop} of {self}", remedy):
            rows = np.asarray(self.array[start:stop]).astype(self.dtype, copy=False)
        place = 2 * _DIGEST_BYTES * (start // self.chunk_rows)
        if digest_of(rows) != self.digests[place : place + 2 * _DIGEST_BYTES]:
            raise DamagedDataError(
                f"rows {start} to {stop} of {self} changed after they were ingested.", remedy
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


def digest_of(rows: Rows) -> str:
    """Return the digest of a chunk of rows, in hexadecimal."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    update_digest(digest, rows)
    return digest.hexdigest()


def update_digest(digest: "hashlib.blake2b", rows: Rows) -> None:
    """Add the bytes of rows to a digest."""
    for values in (rows.data, rows.indices, rows.indptr) if is_sparse(rows) else (rows,):
        digest.update(np.ascontiguousarray(values).data)


Stored = Array | ChunkedRows

# Reading


def get_array(group: zarr.Group, name: str) -> Array:
    """Return an array of the group; raise DamagedDataError unless its metadata is as written."""
    array = get_stored(group, name)
    if not isinstance(array, zarr.Array):
        raise _not_written(f"{group.store_path}/{name}")
    return array


def get_stored(group: zarr.Group, name: str) -> Stored:
    """Return a member of a group: an array, rows in CSR, or rows of another store."""
    place = f"{group.store_path}/{name}"
    found = run_in_zarr(_open(group, name))
    if isinstance(found, zarr.AsyncArray):
        return zarr.Array(found)
    with metadata_named(place):
        if _ENCODING.items() <= found.items():
            check_sealed(found, place)
            arrays = {each: get_array(group, f"{name}/{each}") for each in _CSR_ARRAYS}
            return SparseArray.of(arrays, found)
        if "refers" in found:
            check_sealed(found, place)
            return ReferencedRows.of(found)
    raise _not_written(place)


def read_stored(group: zarr.Group, name: str, start: int = 0, stop: int | None = None) -> Rows:
    """Return rows of a member of a group, of an array in one step."""

    async def read() -> NDArray[Any] | None:
        found = await _open(group, name)
        return await _read(found, start, stop) if isinstance(found, zarr.AsyncArray) else None

    rows = run_in_zarr(read())
    return read_rows(get_stored(group, name), start, stop) if rows is None else rows


async def _open(group: zarr.Group, name: str) -> AsyncArray | dict[str, Any]:
    """Return an array, or the attributes of a group; its checksum is that which was written."""
    with metadata_named(f"{group.store_path}/{name}"):
        place = group.store_path / name
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
    if isinstance(array, zarr.Array):
        return run_in_zarr(_read(array.async_array, start, stop))
    assert isinstance(array, SparseArray | ReferencedRows), "a placeholder has no rows"
    return array.read(start, stop)


async def _read(array: AsyncArray, start: int, stop: int | None) -> NDArray[Any]:
    last = array.shape[0] if stop is None else stop
    remedy = "Restore the damaged chunk from a copy, or write the data again."
    with values_named(f"rows {start} to {last} of {array.store_path}", remedy):
        return np.asarray(await array.getitem(slice(start, stop)))


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
    text, memory = np.dtype(dtype).kind in "TU", MemoryStore()
    array = await zarr.api.asynchronous.create_array(
        memory,
        shape=shape,
        dtype=str if text else np.dtype(dtype),
        chunks=tuple(max(1, c) for c in chunks),
        shards=shards,
        compressors=ZstdCodec(level=1, checksum=True) if compress else Crc32cCodec(),
        dimension_names=dimensions,
    )
    await array.update_attributes({"checksum": _layout_checksum(array)})
    metadata = await memory.get("zarr.json", default_buffer_prototype())
    assert metadata is not None
    await place.delete_dir()
    await (place / "zarr.json").set(metadata)
    return zarr.AsyncArray(array.metadata, place, config=_CONFIG)


def write_array(group: zarr.Group, name: str, values: Rows, *dimensions: str) -> None:
    """Store an array or rows in CSR, in chunks of 16 MiB."""
    run_in_zarr(write_values(group.store_path / name, values, dimensions))


async def write_values(
    place: StorePath, values: Rows, dimensions: Iterable[str], slice_rows: int | None = None
) -> None:
    """Store an array or rows in CSR, in chunks of 16 MiB, or of `slice_rows` in one file."""
    if is_sparse(values):
        await _write_sparse(place, values, slice_rows)
        return
    row_bytes = max(1, values.itemsize * int(np.prod(values.shape[1:])))
    rows = slice_rows or min(len(values), max(1, 2**24 // row_bytes))
    shard = None if slice_rows is None else max(1, -(-len(values) // rows)) * rows
    array = await _create(
        place,
        shape=values.shape,
        dtype=values.dtype,
        chunks=(rows, *values.shape[1:]),
        dimensions=dimensions,
        shards=None if shard is None else (shard, *values.shape[1:]),
    )
    await array.setitem(..., values)


async def _write_sparse(place: StorePath, X: "csr_array", slice_rows: int | None) -> None:
    """Store all rows in CSR; with `slice_rows`, each array is one file that is read in slices."""
    n_rows, n_values = max(1, X.shape[0]), X.nnz
    slice_values = None if slice_rows is None else max(1, slice_rows * n_values // n_rows)
    ends = X.indptr.astype(np.int64)
    await place.delete_dir()
    await write_values(place / "data", X.data, ["value"], slice_values)
    await write_values(place / "indices", X.indices, ["value"], slice_values)
    await write_values(place / "indptr", ends, ["end"], slice_rows)
    chunk_rows = slice_rows or n_rows
    firsts = ends[:-1:chunk_rows]
    most = int(np.diff(np.append(firsts, n_values)).max(initial=0))
    recorded = {"shape": X.shape, "chunk_rows": chunk_rows, "most_values": most}
    await write_group(place, sealed({**_ENCODING, **recorded, "n_values": n_values}))


def create_sparse(
    group: zarr.Group,
    name: str,
    shape: tuple[int, int],
    dtype: DTypeLike,
    *,
    chunk_rows: int,
    n_values: int,
) -> None:
    """Lay out rows in CSR for `append_rows`; `n_values` is the expected number of values."""
    written = {"shape": shape, "chunk_rows": chunk_rows, "most_values": 0}
    member = group.create_group(name, attributes={**_ENCODING, **written}, overwrite=True)
    for part, of, length, chunk_values, dimension in (
        ("data", dtype, 0, min(n_values, _CHUNK_VALUES), "value"),
        ("indices", np.int32, 0, min(n_values, _CHUNK_VALUES), "value"),
        ("indptr", np.int64, 1, min(shape[0] + 1, _CHUNK_ROWS), "end"),
    ):
        create_array(
            member,
            part,
            shape=(length,),
            dtype=of,
            chunks=(chunk_values,),
            dimensions=(dimension,),
            compress=True,
        )


def append_rows(group: zarr.Group, name: str, X: "csr_array") -> None:
    """Append rows to rows in CSR."""
    member, (data, indices, indptr) = _being_written(group, name)
    ends = X.indptr[1:].astype(np.int64) + data.shape[0]
    for array, values in ((data, X.data), (indices, X.indices), (indptr, ends)):
        array.append(values)
    member.update_attributes({"most_values": max(X.nnz, member.attrs["most_values"])})


def finish_sparse(group: zarr.Group, name: str) -> None:
    """Finish rows in CSR."""
    member, arrays = _being_written(group, name)
    for array in arrays:
        array.update_attributes({"checksum": _layout_checksum(array)})
    n_values = arrays[0].shape[0]
    member.update_attributes(sealed({**member.attrs.asdict(), "n_values": n_values}))


def _being_written(group: zarr.Group, name: str) -> tuple[Any, list[Any]]:
    """Return unfinished rows in CSR, and their arrays, whose layout is not sealed."""
    member: Any = group[name]
    return member, [member[part].with_config(_CONFIG) for part in _CSR_ARRAYS]


def refer(
    group: zarr.Group,
    name: str,
    at: StoredAt,
    shape: tuple[int, int],
    dtype: DTypeLike,
    *,
    chunk_rows: int,
) -> None:
    """Begin a reference to rows (n, p) in another store, of which `chunk_rows` are read at once."""
    recorded = {"place": at.place, "path": at.path, "shape": shape, "dtype": str(np.dtype(dtype))}
    group.create_group(
        name, attributes={"refers": True, **recorded, "chunk_rows": chunk_rows}, overwrite=True
    )


def finish_reference(group: zarr.Group, name: str, digests: str) -> None:
    """Record the digests of all chunks of rows."""
    member = group[name]
    member.attrs.update(sealed({**member.attrs.asdict(), "digests": digests}))


def refers(member: object) -> TypeGuard[zarr.Group]:
    """Return whether a member of a group is a reference to rows in another store."""
    return isinstance(member, zarr.Group) and "refers" in member.attrs
