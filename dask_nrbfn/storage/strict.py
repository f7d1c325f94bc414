"""Checks that stored data is read only as it was written."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import zarr.abc.store
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest
from zarr.buffer import default_buffer_prototype
from zarr.storage import StorePath, WrapperStore

from dask_nrbfn.errors import DamagedDataError, MissingDataError, NRBFNError

RESTORE = "Restore the data from a copy, or write the data again."
"""The remedy for damaged data."""

# All other keys are those of chunks.
METADATA_NAMES = ("zarr.json", ".zgroup", ".zarray", ".zattrs", ".zmetadata")


class StrictStore(WrapperStore[zarr.abc.store.Store]):
    """A store that raises an error for a missing chunk; zarr would read fill values."""

    def __str__(self) -> str:
        return str(self._store)

    async def get(
        self,
        key: str,
        prototype: BufferPrototype,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Return the value of a key; None if the key is of missing metadata."""
        value = await super().get(key, prototype, byte_range)
        if value is None and not key.endswith(METADATA_NAMES):
            raise MissingDataError(f"chunk {key} of {self._store} is missing.", RESTORE)
        return value


@contextmanager
def metadata_named(place: object) -> Iterator[None]:
    """Turn errors of reading or converting the metadata of `place` into a DamagedDataError.

    zarr has no common error: flipped, cut and exchanged metadata raised all of the types below.
    """
    try:
        yield
    except (NRBFNError, OSError):
        # zarr raises an error for missing members that is an OSError and a ValueError.
        raise
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise DamagedDataError(
            f"the metadata of {place} cannot be read ({type(error).__name__}: {error}).", RESTORE
        ) from error


@contextmanager
def values_named(values: str, remedy: str) -> Iterator[None]:
    """Turn errors of decoding into a DamagedDataError about `values`; every codec has its own."""
    try:
        yield
    except NRBFNError:
        raise
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        raise DamagedDataError(f"{values} cannot be read ({error}).", remedy) from error


def checksum(content: object) -> str:
    """Return a digest of JSON content; zarr's metadata has no checksum."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def check_sealed(attributes: Mapping[str, Any], place: object) -> None:
    """Raise DamagedDataError if the attributes of `place` fail their checksum."""
    if _sealed(attributes) != attributes:
        raise DamagedDataError(f"the attributes of {place} fail their checksum.", RESTORE)


async def delete_all(place: StorePath) -> None:
    """Delete everything under a place, even while another task deletes it too."""
    while True:
        with suppress(FileNotFoundError):
            return await place.delete_dir()


async def write_group(place: StorePath, attributes: Mapping[str, Any]) -> None:
    """Write the metadata of a group in one piece, with a checksum of the attributes."""
    await (place / "zarr.json").set(_group_metadata(_sealed(attributes)))


def _sealed(attributes: Mapping[str, Any]) -> dict[str, Any]:
    content = {name: value for name, value in attributes.items() if name != "checksum"}
    return {**content, "checksum": checksum(content)}


async def make_groups(place: StorePath) -> None:
    """Make a group, and those that contain it, where they are missing."""
    names = place.path.split("/")
    for depth in range(1, len(names) + 1):
        inner = StorePath(place.store, "/".join(names[:depth]))
        await (inner / "zarr.json").set_if_not_exists(_group_metadata({}))


def _group_metadata(attributes: Mapping[str, Any]) -> Buffer:
    content = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    return default_buffer_prototype().buffer.from_bytes(json.dumps(content).encode())
