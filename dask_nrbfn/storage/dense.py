"""Zarr arrays whose chunks carry a checksum, and whose missing chunks are errors."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import zarr
from numpy.typing import DTypeLike, NDArray
from zarr.codecs import Crc32cCodec, ZstdCodec

from dask_nrbfn.errors import DamagedDataError, NRBFNError
from dask_nrbfn.private import run_in_zarr
from dask_nrbfn.storage.strict import RESTORE, checksum, is_our_mistake, metadata_named

Array = zarr.Array[Any]

INDEX_BYTES, ROW_BYTES = 4, 8
"""Bytes that CSR adds: the column of each value, and the end of each row."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ChunkedRows:
    """Rows in CSR, or rows of another store, opened for reading; (n, p), read by `chunk_rows`.

    n_values, most_values: number of values in CSR, of all rows and of the largest chunk. None: rows
        are not in CSR.
    """

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    chunk_rows: int
    n_values: int | None
    most_values: int | None

    @property
    def arrays(self) -> dict[str, Array]:
        """The arrays of this package that hold the rows, by name."""
        return {}

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

    def planned(self, n_rows: int, chunk_rows: int) -> Self:
        """Return a placeholder of other sizes without stored rows, for a plan."""
        most = self.most_values
        return replace(
            self,
            shape=(n_rows, self.shape[1]),
            chunk_rows=chunk_rows,
            n_values=None if self.n_values is None else round(n_rows * self.row_values),
            most_values=None if most is None else round(most * chunk_rows / self.chunk_rows),
        )


def create_array(
    group: zarr.Group,
    name: str,
    *,
    shape: tuple[int, ...],
    dtype: DTypeLike,
    chunks: tuple[int, ...],
    dimensions: tuple[str, ...],
    shards: tuple[int, ...] | None = None,
    compress: bool = False,
) -> Array:
    """Add an array whose chunks carry a checksum; it replaces one of that name.

    Floating-point results hardly compress, so Zstandard is used only with `compress`.

    shards: shape of the values in one file; None: one chunk.
    """
    text = np.dtype(dtype).kind in "TU"
    array = group.create_array(
        name,
        shape=shape,
        dtype=str if text else np.dtype(dtype),
        chunks=tuple(max(1, c) for c in chunks),
        shards=shards,
        compressors=ZstdCodec(level=1, checksum=True) if compress else Crc32cCodec(),
        dimension_names=dimensions,
        overwrite=True,
        config={"write_empty_chunks": True},
    )
    return seal_layout(array)


def seal_layout(array: Array) -> Array:
    """Return an array that records the checksum of its layout."""
    return array.update_attributes({"checksum": checksum(_layout(array))})


def write_dense(
    group: zarr.Group,
    name: str,
    values: NDArray[Any],
    *dimensions: str,
    slice_rows: int | None = None,
) -> None:
    """Store an array in chunks of about 16 MiB, or of `slice_rows` in one file."""
    row_bytes = max(1, values.itemsize * int(np.prod(values.shape[1:])))
    rows = slice_rows or min(len(values), max(1, 2**24 // row_bytes))
    shard = None if slice_rows is None else max(1, -(-len(values) // rows)) * rows
    array = create_array(
        group,
        name,
        shape=values.shape,
        dtype=values.dtype,
        chunks=(rows, *values.shape[1:]),
        dimensions=dimensions,
        shards=None if shard is None else (shard, *values.shape[1:]),
    )
    array[...] = values


def read_dense(array: Array, start: int = 0, stop: int | None = None) -> NDArray[Any]:
    """Return ``array[start:stop]``."""
    try:
        return np.asarray(array[start:stop])
    except (ValueError, RuntimeError, TypeError) as error:
        if isinstance(error, NRBFNError) or is_our_mistake(error):
            raise
        raise DamagedDataError(
            f"rows {start} to {stop if stop is not None else array.shape[0]} of "
            f"{array.store_path} cannot be read ({error}).",
            "Restore the damaged chunk from a copy, or write the data again.",
        ) from error


def check_stored(array: Array) -> None:
    """Raise MissingDataError if the last chunk is missing."""
    if 0 in array.shape:
        return
    # With shards, the grid consists of shards.
    chunks = array.shards or array.chunks
    last = tuple(max(0, size - 1) // chunk for size, chunk in zip(array.shape, chunks, strict=True))
    place = array.store_path / array.metadata.encode_chunk_key(last)
    run_in_zarr(place.store.getsize(place.path))


def get_array(group: zarr.Group, name: str) -> Array:
    """Return an array of the group."""
    return sound_array(get_member(group, name), f"{group.store_path}/{name}")


def get_member(group: zarr.Group, name: str) -> Array | zarr.Group | None:
    """Return an array or group inside a group, None if it is missing."""
    with metadata_named(f"{group.store_path}/{name}"):
        return group.get(name)


def sound_array(member: Array | zarr.Group | None, place: str) -> Array:
    """Return a member of a group if it is an array with the metadata that was written."""
    with metadata_named(place):
        sound = isinstance(member, zarr.Array) and member.attrs.get("checksum") == checksum(
            _layout(member)
        )
    if not isinstance(member, zarr.Array) or not sound:
        raise DamagedDataError(
            f"{place} is {'missing' if member is None else 'not the array that was written'}.",
            RESTORE,
        )
    # The setting belongs to the open array, not to the stored one.
    return member.with_config({"write_empty_chunks": True})


def _layout(array: Array) -> dict[str, Any]:
    """Return the metadata of an array without its attributes, which hold the checksum."""
    layout = array.metadata.to_dict()
    del layout["attributes"]
    return layout
