"""Checks that stored data is read only as it was written."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

import zarr.abc.store
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest
from zarr.storage import WrapperStore

from dask_nrbfn.errors import DamagedDataError, MissingDataError, NRBFNError, ParameterError

RESTORE = "Restore the data from a copy, or write the data again."
"""The remedy for damaged data."""

# All other keys are those of chunks.
METADATA_NAMES = ("zarr.json", ".zgroup", ".zarray", ".zattrs", ".zmetadata")


Method = TypeVar("Method", bound=Callable[..., Any])


def guarded(method: Method) -> Method:
    """Return a method of a store whose first argument is a key, run inside `guard` of the store."""

    @wraps(method)
    async def run(store: Any, key: str, *arguments: Any, **options: Any) -> Any:
        async with store.guard(key):
            return await method(store, key, *arguments, **options)

    return cast(Method, run)


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
            raise self._missing(key)
        return value

    async def getsize(self, key: str) -> int:
        """Return the size of a value in bytes."""
        try:
            return await self._store.getsize(key)
        except FileNotFoundError as error:
            raise self._missing(key) from error

    def _missing(self, key: str) -> MissingDataError:
        return MissingDataError(f"chunk {key} of {self._store} is missing.", RESTORE)


def is_our_mistake(error: BaseException) -> bool:
    """Return whether an error was raised by this package itself, not by a library."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    module = "" if last is None else str(last.tb_frame.f_globals.get("__name__"))
    return module.partition(".")[0] == __package__.partition(".")[0]


@contextmanager
def metadata_named(place: object) -> Iterator[None]:
    """Turn errors of zarr for unreadable metadata into a DamagedDataError about `place`.

    zarr has no common error: flipped, cut and exchanged metadata raised all of the types below.
    Errors of the same types from this package are bugs, and are not changed.
    """
    try:
        yield
    except (NRBFNError, OSError):
        # zarr raises an error for missing members that is an OSError and a ValueError.
        raise
    except ImportError as error:
        raise ParameterError(
            f"{place} needs a package that is not installed ({error}).", "Install the package."
        ) from error
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        if is_our_mistake(error):
            raise
        raise _unreadable(place, error) from error


@contextmanager
def recorded_by(place: object) -> Iterator[None]:
    """Turn the errors of converting values that `place` records into a DamagedDataError.

    The block converts and compares recorded values, and does nothing else.
    """
    try:
        yield
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise _unreadable(place, error) from error


def _unreadable(place: object, error: Exception) -> DamagedDataError:
    return DamagedDataError(
        f"the metadata of {place} cannot be read ({type(error).__name__}: {error}).",
        RESTORE,
    )


def checksum(content: object) -> str:
    """Return a digest of JSON content; zarr's metadata has no checksum."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def sealed(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes with a new checksum."""
    content = _content(attributes)
    return {**content, "checksum": checksum(content)}


def is_sealed(attributes: Mapping[str, Any]) -> bool:
    """Return whether attributes have the right checksum."""
    return attributes.get("checksum") == checksum(_content(attributes))


def _content(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if name != "checksum"}
