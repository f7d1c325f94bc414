"""Rows that stay in another Zarr store, to which a dataset refers.

The dataset has a digest of each chunk of rows, which is compared when the rows are read.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import zarr
from numpy.typing import DTypeLike
from zarr.storage import LocalStore

from dask_nrbfn.errors import DamagedDataError, MissingDataError, NRBFNError
from dask_nrbfn.numeric.rows import Rows, is_sparse
from dask_nrbfn.sources.source import StoredAt
from dask_nrbfn.storage.dense import Array, ChunkedRows
from dask_nrbfn.storage.location import remote
from dask_nrbfn.storage.remote import open_store
from dask_nrbfn.storage.strict import is_our_mistake, is_sealed, metadata_named, sealed

_DIGEST_BYTES = 8


@dataclass(frozen=True, eq=False, kw_only=True)
class ReferencedRows(ChunkedRows):
    """Rows `path` of the Zarr store `place`; `digests` has the digest of each chunk in order."""

    place: str
    path: str
    array: Array
    digests: str

    @classmethod
    def open(cls, group: zarr.Group) -> Self:
        """Open the rows that a group refers to."""
        recorded: dict[str, Any] = group.attrs.asdict()
        if not is_sealed(recorded):
            raise DamagedDataError(
                f"the attributes of {group.store_path} fail their checksum.",
                "Restore the zarr.json of this group from a copy, or ingest the rows again.",
            )
        place, path = recorded["place"], recorded["path"]
        array = _array_at(place, path)
        rows = cls(
            array=array,
            shape=tuple(recorded["shape"]),
            dtype=np.dtype(recorded["dtype"]),
            n_values=None,
            most_values=None,
            **{name: recorded[name] for name in ("place", "path", "chunk_rows", "digests")},
        )
        if array.shape != rows.shape:
            raise DamagedDataError(
                f"{rows} has the shape {array.shape}, but had {rows.shape} when it was ingested.",
                "Ingest the rows again.",
            )
        return rows

    def __str__(self) -> str:
        return f"{self.path} of {self.place}" if self.path else self.place

    def read(self, start: int, stop: int) -> Rows:
        """Return the rows of one chunk, (stop - start, p)."""
        stop = min(stop, self.shape[0])
        try:
            rows = np.asarray(self.array[start:stop]).astype(self.dtype, copy=False)
        # Every codec has its own errors.
        except (OSError, ValueError, RuntimeError, TypeError) as error:
            if isinstance(error, NRBFNError) or is_our_mistake(error):
                raise
            raise DamagedDataError(
                f"rows {start} to {stop} of {self} cannot be read ({error}).",
                "Restore the rows from a copy, or ingest the rows again.",
            ) from error
        place = 2 * _DIGEST_BYTES * (start // self.chunk_rows)
        if digest_of(rows) != self.digests[place : place + 2 * _DIGEST_BYTES]:
            raise DamagedDataError(
                f"rows {start} to {stop} of {self} changed after they were ingested.",
                "Restore the rows from a copy, or ingest the rows again.",
            )
        return rows


def digest_of(rows: Rows) -> str:
    """Return the digest of a chunk of rows, in hexadecimal."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    update_digest(digest, rows)
    return digest.hexdigest()


def update_digest(digest: "hashlib.blake2b", rows: Rows) -> None:
    """Add the bytes of rows to a digest."""
    for values in (rows.data, rows.indices, rows.indptr) if is_sparse(rows) else (rows,):
        digest.update(np.ascontiguousarray(values).data)


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


def refers(member: object) -> bool:
    """Return whether a member of a group is a reference to rows in another store."""
    return isinstance(member, zarr.Group) and "refers" in member.attrs


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
