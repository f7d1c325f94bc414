"""Zarr groups that fail loudly.

Arrays carry a checksum, missing chunks are errors instead of fill values, and a new group takes
the place of an old one only when it is complete.
"""

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import zarr
import zarr.abc.store
from numpy.typing import DTypeLike, NDArray
from zarr.abc.store import ByteRequest
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.errors import GroupNotFoundError
from zarr.storage import WrapperStore

from dask_nrbfn.errors import DamagedDataError, ExistsError, MissingDataError

Location = str | os.PathLike[str] | zarr.abc.store.Store
"""A local path, an fsspec URL, or a zarr store object of this process."""

Array = zarr.Array[Any]


class _StrictStore(WrapperStore[zarr.abc.store.Store]):
    """Raises where zarr would read a missing chunk as the fill value."""

    async def get(
        self,
        key: str,
        prototype: BufferPrototype,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        value = await super().get(key, prototype, byte_range)
        if value is None and "/c/" in key:
            raise MissingDataError(
                f"chunk {key} of {self._store} is missing.",
                "Restore it from a copy, or write the data again.",
            )
        return value


_FORMAT_VERSION = 1


def normalize(location: Location) -> Location:
    """Return `location` with a local path made absolute, so that it means the same everywhere."""
    if isinstance(location, zarr.abc.store.Store):
        return location
    text = os.fspath(location)
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))


def create_group(location: Location, *, kind: str, attributes: Mapping[str, Any]) -> zarr.Group:
    """Make a group that is complete from its first byte on, where nothing is stored yet."""
    return zarr.create_group(
        _zarr_location(location), attributes=_identity(kind, attributes), overwrite=False
    )


def open_group(location: Location, *, kind: str, writable: bool = False) -> zarr.Group:
    """Open a group of this package.

    Parameters
    ----------
    location : Location
    kind : str
        "dataset", "run", "model" or "predictions"; must be what `mark_complete` recorded.
    writable : bool
        A writable group reads missing chunks as fill values; a read-only one raises.

    Raises
    ------
    MissingDataError
        If nothing is there.
    DamagedDataError
        If it is no such group, was not finished, or has a newer format.
    """
    group = _open(location, kind=kind, mode="r+" if writable else "r")
    attributes = attributes_of(group)
    found = attributes.get("kind")
    if found != f"dask_nrbfn.{kind}":
        raise DamagedDataError(
            f"{location} is {'no' if found is None else f'a {found}, not a'} dask_nrbfn.{kind}.",
            f"Give the path of a {kind}; an unfinished one must be written again.",
        )
    if attributes["format_version"] != _FORMAT_VERSION:
        raise DamagedDataError(
            f"{location} has format version {attributes['format_version']}, "
            f"this package reads {_FORMAT_VERSION}.",
            "Use the version of dask_nrbfn that wrote it, or write it again.",
        )
    return group if writable else _strict(group)


def kind_of(location: Location, kinds: tuple[str, ...]) -> str:
    """Return which of `kinds` is stored at `location`.

    Raises
    ------
    MissingDataError, DamagedDataError
        If nothing is there, or none of them.
    """
    wanted = " or ".join(kinds)
    found = attributes_of(_open(location, kind=wanted, mode="r")).get("kind")
    for kind in kinds:
        if found == f"dask_nrbfn.{kind}":
            return kind
    raise DamagedDataError(f"{location} is no {wanted}.", f"Give the path of a {wanted}.")


def _open(location: Location, *, kind: str, mode: Literal["r", "r+"]) -> zarr.Group:
    try:
        return zarr.open_group(_zarr_location(location), mode=mode)
    except (FileNotFoundError, NotADirectoryError, GroupNotFoundError) as error:
        raise MissingDataError(
            f"there is no {kind} at {location}.", f"Give the path of a {kind}."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedDataError(
            f"the metadata of {location} cannot be read ({error}).", f"Write the {kind} again."
        ) from error


def attributes_of(group: zarr.Group) -> dict[str, Any]:
    """Return everything recorded in the attributes of a group."""
    return group.attrs.asdict()


def mark_complete(group: zarr.Group, *, kind: str, attributes: Mapping[str, Any]) -> None:
    """Record what a group is; written last, because a group without it is not opened."""
    group.update_attributes(_identity(kind, attributes))


@contextmanager
def replacing_group(location: Location, *, overwrite: bool) -> Iterator[zarr.Group]:
    """Give an empty group that takes its place at `location` when the block ends well.

    On a local file system it is built beside `location` and renamed, so that an error leaves what
    was there before. In other stores it is built in place.

    Raises
    ------
    ExistsError
        If something is there and `overwrite` is false.
    """
    location = normalize(location)
    if exists(location):
        _check_replaceable(location, overwrite=overwrite)
    if not isinstance(location, str) or "://" in location:
        yield zarr.create_group(_zarr_location(location), overwrite=True)
        return
    target = Path(location)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.unfinished")
    try:
        yield zarr.create_group(str(unfinished))
        replace_path(unfinished, target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _check_replaceable(location: Location, *, overwrite: bool) -> None:
    if not overwrite:
        raise ExistsError(f"{location} exists.", "Give another path, or overwrite it.")
    try:
        zarr.open_group(_zarr_location(location), mode="r")
    except (FileNotFoundError, GroupNotFoundError, NotADirectoryError) as error:
        raise ExistsError(
            f"{location} exists and is no Zarr group.", "Give another path, or remove it yourself."
        ) from error


def replace_path(new: Path, target: Path) -> None:
    """Put the file or directory `new` in the place of `target`, which may exist."""
    if not target.is_dir():
        os.replace(new, target)
        return
    old = new.with_suffix(".replaced")
    os.rename(target, old)
    os.rename(new, target)
    shutil.rmtree(old)


def exists(location: Location) -> bool:
    """Return whether anything is stored at `location`."""
    if isinstance(location, zarr.abc.store.Store) or "://" in os.fspath(location):
        try:
            zarr.open_group(_zarr_location(location), mode="r")
        except (FileNotFoundError, GroupNotFoundError):
            return False
        return True
    return os.path.lexists(location)


def create_array(
    group: zarr.Group,
    name: str,
    *,
    shape: tuple[int, ...],
    dtype: DTypeLike,
    chunks: tuple[int, ...],
    dimensions: tuple[str, ...],
    compress: bool = False,
) -> Array:
    """Add an array whose chunks carry a checksum; `dimensions` let xarray open it.

    An existing array of the name is replaced. Floating-point results hardly compress, so only
    `compress` runs them through Zstandard.
    """
    text = np.dtype(dtype).kind in "TU"
    return group.create_array(
        name,
        shape=shape,
        dtype=str if text else np.dtype(dtype),
        chunks=tuple(max(1, c) for c in chunks),
        compressors=ZstdCodec(level=1, checksum=True) if compress else Crc32cCodec(),
        dimension_names=dimensions,
        overwrite=True,
        config={"write_empty_chunks": True},
    )


def write_array(group: zarr.Group, name: str, values: NDArray[Any], *dimensions: str) -> None:
    """Store a whole small array, in chunks of about 64 MiB along its first axis."""
    row_bytes = max(1, values.itemsize * int(np.prod(values.shape[1:])))
    chunks = (min(len(values), max(1, 2**26 // row_bytes)), *values.shape[1:])
    array = create_array(
        group, name, shape=values.shape, dtype=values.dtype, chunks=chunks, dimensions=dimensions
    )
    array[...] = values


def read_rows(array: Array, start: int = 0, stop: int | None = None) -> NDArray[Any]:
    """Return ``array[start:stop]``.

    Raises
    ------
    MissingDataError, DamagedDataError
        If a chunk is not there or fails its checksum.
    """
    try:
        return np.asarray(array[start:stop])
    except MissingDataError:
        raise
    except (ValueError, RuntimeError, TypeError) as error:
        raise DamagedDataError(
            f"rows {start} to {stop if stop is not None else array.shape[0]} of "
            f"{array.store_path} cannot be read ({error}).",
            "Restore the damaged chunk from a copy, or write the data again.",
        ) from error


def get_array(group: zarr.Group, name: str) -> Array:
    """Return an array of the group.

    Raises
    ------
    DamagedDataError
        If it is not there.
    """
    try:
        member = group[name]
    except KeyError as error:
        raise DamagedDataError(
            f"{group.store_path} has no array {name}.", "Write it again; it is incomplete."
        ) from error
    assert isinstance(member, zarr.Array)
    # The setting belongs to the open array, not to what is stored.
    return member.with_config({"write_empty_chunks": True})


def _strict(group: zarr.Group) -> zarr.Group:
    return zarr.open_group(_StrictStore(group.store), path=group.path, mode="r")


def _identity(kind: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {"kind": f"dask_nrbfn.{kind}", "format_version": _FORMAT_VERSION, **attributes}


def _zarr_location(location: Location) -> str | zarr.abc.store.Store:
    return location if isinstance(location, zarr.abc.store.Store) else os.fspath(location)
