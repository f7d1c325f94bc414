"""Zarr groups that fail loudly.

Arrays carry a checksum, missing chunks are errors instead of fill values, and a new group takes
the place of an old one only when it is complete.
"""

import hashlib
import json
import math
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import zarr
import zarr.abc.store
from numpy.typing import DTypeLike, NDArray
from zarr.abc.store import ByteRequest, SuffixByteRequest
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import LocalStore, WrapperStore

from dask_nrbfn.errors import (
    DamagedDataError,
    ExistsError,
    MissingDataError,
    NRBFNError,
    ParameterError,
)
from dask_nrbfn.outputs import (
    check_path_outside_groups,
    disk_errors_named,
    full_disk_named,
    inside_group,
)
from dask_nrbfn.storage.local import (
    DurableStore,
    flush_tree,
    place_path,
    replace_path,
)
from dask_nrbfn.storage.location import Location as Location
from dask_nrbfn.storage.location import RemoteLocation, beside, local_path, remote
from dask_nrbfn.storage.location import normalize as normalize
from dask_nrbfn.storage.lock import locked_run
from dask_nrbfn.storage.remote import (
    enclosing_group,
    move_group,
    occupied,
    open_store,
    remove_tree,
)

Array = zarr.Array[Any]


class _StrictStore(WrapperStore[zarr.abc.store.Store]):
    """Raises where zarr would read a missing chunk as the fill value, or one of another place.

    Attributes
    ----------
    checksums : mapping of str to str
        What chunks end in, in hexadecimal, by their key.
    """

    checksums: Mapping[str, str] = MappingProxyType({})

    def __str__(self) -> str:
        return str(self._store)

    async def get(
        self,
        key: str,
        prototype: BufferPrototype,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        value = await super().get(key, prototype, byte_range)
        if value is None and not key.endswith(_METADATA_NAMES):
            raise self._missing(key)
        if value is not None and byte_range is None and key in self.checksums:
            self._check_whole(key, value)
        return value

    def _check_whole(self, key: str, chunk: Buffer) -> None:
        if chunk[-_CHECKSUM_BYTES:].to_bytes().hex() != self.checksums[key]:
            raise DamagedDataError(
                f"chunk {key} of {self._store} is not the one that was written there.",
                "Restore it from a copy, or write the data again.",
            )

    async def getsize(self, key: str) -> int:
        try:
            return await self._store.getsize(key)
        except FileNotFoundError as error:
            raise self._missing(key) from error

    def _missing(self, key: str) -> MissingDataError:
        return MissingDataError(
            f"chunk {key} of {self._store} is missing.",
            "Restore it from a copy, or write the data again.",
        )


_FORMAT_VERSION, _READ_VERSIONS = 4, (3, 4)

# Every chunk ends in a checksum of what is in it, that of Zstandard or CRC32C, which decoding
# compares; recorded beside it, it also tells the chunk from all others.
_CHECKSUM_BYTES = 4

# Zstandard makes at most 128 KiB of 4 bytes; nothing that is written here can be more than that.
_MOST_EXPANSION = 2**15

# Rows that claim to be more bytes, or chunks, are not read before it is known that they can be.
_READ_AT_SIGHT_BYTES, _READ_AT_SIGHT_CHUNKS = 2**28, 1024

# Whatever else is asked for is a chunk.
_METADATA_NAMES = ("zarr.json", ".zgroup", ".zarray", ".zattrs", ".zmetadata")


def create_group(location: Location, *, kind: str, attributes: Mapping[str, Any]) -> zarr.Group:
    """Make a group that is complete from its first byte on, where nothing is stored yet.

    Raises
    ------
    ParameterError
        If `location` is inside another group.
    """
    check_outside_groups(location)
    return zarr.create_group(
        _store(location), attributes=_identity(kind, attributes), overwrite=False
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
    _check_identity(group, kind)
    return group


def open_member(group: zarr.Group, name: str, *, kind: str) -> zarr.Group | None:
    """Return a group of this package inside another, None if it is not there or not finished.

    Raises
    ------
    DamagedDataError
        As for `open_group`.
    """
    with metadata_named(f"{group.store_path}/{name}"):
        member = group.get(name)
    if not isinstance(member, zarr.Group) or "kind" not in member.attrs:
        return None
    _check_identity(member, kind)
    return member


def _check_identity(group: zarr.Group, kind: str) -> None:
    place, attributes = group.store_path, group.attrs.asdict()
    found = attributes.get("kind")
    if found != f"dask_nrbfn.{kind}":
        if found is None:
            raise DamagedDataError(
                f"{place} is no dask_nrbfn.{kind}, or one that was not finished.",
                f"Give the path of a {kind}; an unfinished one must be written again.",
            )
        raise DamagedDataError(
            f"{place} is a {found}, not a dask_nrbfn.{kind}.", f"Give the path of a {kind}."
        )
    if attributes.get("format_version") not in _READ_VERSIONS:
        raise DamagedDataError(
            f"{place} has format version {attributes.get('format_version')}, "
            f"this package reads {_READ_VERSIONS[0]} to {_READ_VERSIONS[-1]}.",
            "Use the version of dask_nrbfn that wrote it, or write it again.",
        )
    if attributes.pop("checksum", None) != checksum(attributes):
        raise DamagedDataError(
            f"the attributes of {place} fail their checksum.",
            f"Restore its zarr.json from a copy, or write the {kind} again.",
        )


@contextmanager
def metadata_named(place: object) -> Iterator[None]:
    """Say which metadata it is that zarr cannot make sense of, however that shows."""
    try:
        yield
    except (NRBFNError, OSError, MemoryError):
        raise
    except ImportError as error:
        raise ParameterError(
            f"{place} needs a package that is not installed ({error}).", "Install it."
        ) from error
    except Exception as error:
        raise DamagedDataError(
            f"the metadata of {place} cannot be read ({type(error).__name__}: {error}).",
            "Restore it from a copy, or write the data again.",
        ) from error


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
    path = local_path(location)
    try:
        if path is not None and not os.path.isdir(path):
            # zarr would make the directory of a store that is to be written.
            raise FileNotFoundError(path)
        with metadata_named(location):
            # Without the format zarr asks for five names at once, and when one request fails the
            # others are left to complain.
            store = _store(location)
            strict = store if mode == "r+" else _StrictStore(store)
            return zarr.open_group(strict, mode=mode, zarr_format=3)
    except (FileNotFoundError, NotADirectoryError) as error:
        if path is not None and os.path.lexists(path):
            raise DamagedDataError(
                f"{location} is no {kind}.", f"Give the path of a {kind}; ingest makes datasets."
            ) from error
        raise MissingDataError(
            f"there is no {kind} at {location}.", f"Give the path of a {kind}."
        ) from error


def attributes_of(group: zarr.Group) -> dict[str, Any]:
    """Return everything recorded in the attributes of a group."""
    return group.attrs.asdict()


def mark_complete(group: zarr.Group, *, kind: str, attributes: Mapping[str, Any]) -> None:
    """Record what a group is; written last, because a group without it is not opened."""
    group.update_attributes(_identity(kind, attributes))


def update_record(group: zarr.Group, attributes: Mapping[str, Any]) -> None:
    """Change attributes of a group that is marked complete."""
    changed = {**attributes_of(group), **attributes}
    changed.pop("checksum")
    attributes = {**attributes, "format_version": _FORMAT_VERSION}
    group.update_attributes({**attributes, "checksum": checksum(changed | attributes)})


@contextmanager
def replacing_group(
    location: Location, *, kind: str, overwrite: bool, flush: bool = True
) -> Iterator[zarr.Group]:
    """Give an empty group that takes its place at `location` when the block ends well.

    It is built beside `location`, under a hidden name, and renamed or, in an object store, copied
    there by the server; an error leaves what was there before. A store object is written in place.
    On a local disk it is flushed before, unless it is told not to: what can be computed again need
    not be.

    Without `overwrite` nothing is ever replaced: of two jobs that write the same new place the
    first to end has it. With it the last has, as a whole.

    Raises
    ------
    ExistsError
        If something is there and `overwrite` is false, or something other than a `kind` is there;
        when the block begins, or when it ends.
    RunBusyError
        If another job is just moving its own group there, inside an object store.
    ParameterError
        If it is inside another group.
    StorageError
        If it cannot be written there, or there is no room.
    """
    location = normalize(location)
    check = partial(check_target, location, kind=kind, overwrite=overwrite)
    check()
    if (path := local_path(location)) is not None:
        place = partial(_replace, location, kind=kind) if overwrite else partial(_place, check)
        build: AbstractContextManager[zarr.Group] = _built_beside(
            Path(os.path.realpath(path)), place, flush=flush
        )
    elif (url := remote(location)) is not None:
        build = _built_remotely(url, check)
    else:
        build = _built_in_place(location)
    with build as group:
        yield group


@contextmanager
def _built_beside(
    target: Path, place: Callable[[Path, Path], None], *, flush: bool
) -> Iterator[zarr.Group]:
    unfinished = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.unfinished")
    try:
        with disk_errors_named(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            group = zarr.create_group(DurableStore(unfinished))
        with full_disk_named(target):
            yield group
            if flush:
                flush_tree(unfinished)
            place(unfinished, target)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _place(check: Callable[[], None], new: Path, target: Path) -> None:
    check()
    place_path(new, target)


def _replace(location: Location, new: Path, target: Path, *, kind: str) -> None:
    check_outside_groups(location)
    replace_path(new, target, partial(_check_kind, location, kind))


@contextmanager
def _built_remotely(target: RemoteLocation, check: Callable[[], None]) -> Iterator[zarr.Group]:
    unfinished = beside(target, f"{uuid.uuid4().hex[:8]}.unfinished")
    with ExitStack() as lease:
        try:
            yield zarr.create_group(open_store(unfinished))
            # An object store knows no rename that fails.
            check_still_locked = lease.enter_context(locked_run(target))
            check()
            check_still_locked()
        except BaseException:
            # What went wrong first is what the user must know.
            with suppress(NRBFNError):
                remove_tree(unfinished)
            raise
        move_group(unfinished, target)


@contextmanager
def _built_in_place(store: Location) -> Iterator[zarr.Group]:
    with locked_run(store):
        yield zarr.create_group(_store(store), overwrite=True)


def hidden_sibling(location: Location, suffix: str) -> Location:
    """Return ``.NAME.suffix`` beside a path or URL that ends in NAME.

    Raises
    ------
    ParameterError
        If `location` is a store object, which nothing is beside.
    """
    if (path := local_path(location)) is not None:
        real = Path(os.path.realpath(path))
        return str(real.with_name(f".{real.name}.{suffix}"))
    if (url := remote(location)) is not None:
        return beside(url, suffix)
    raise ParameterError(f"{location} is a store object.", "Give a directory or URL.")


def replace_group(new: Location, target: Location) -> None:
    """Put a complete group in the place of the one at `target`, on the same disk or store."""
    path, url = local_path(new), remote(new)
    if path is not None:
        flush_tree(Path(path))
        replace_path(Path(path), Path(os.path.realpath(str(local_path(target)))))
    elif url is not None:
        old = remote(target)
        assert old is not None
        move_group(url, old)


def flush_member(location: Location, name: str) -> None:
    """Wait until a group inside another is stored for good; an object store has done so."""
    path = local_path(location)
    if path is not None:
        flush_tree(Path(path, name))


def member_names(group: zarr.Group, inner: str = "") -> list[str]:
    """Return the names of what is stored directly inside a group, readable or not.

    Or of what is in one further inside, if there is that.
    """

    async def listed() -> list[str]:
        place = "/".join(filter(None, (group.path, inner)))
        return [name async for name in group.store.list_dir(place)]

    return sync(listed())


def remove_group(location: Location) -> None:
    """Delete a group at a path or URL."""
    path, url = local_path(location), remote(location)
    if path is not None:
        shutil.rmtree(path, ignore_errors=True)
    elif url is not None:
        remove_tree(url)


def check_target(location: Location, *, kind: str, overwrite: bool) -> None:
    """Raise an error if no group may be put at `location`, such as that another is there."""
    url = remote(location)
    something_is_there = exists(location) or (url is not None and occupied(url))
    check_outside_groups(location)
    if not something_is_there:
        return
    if not overwrite:
        raise ExistsError(f"{location} exists.", "Give another path, or `overwrite` it.")
    _check_kind(location, kind, location)


def _check_kind(location: Location, kind: str, place: Location) -> None:
    """Raise ExistsError unless what is at `place`, and belongs at `location`, is a `kind`."""
    found = _kind_stored(place, kind)
    if found == f"dask_nrbfn.{kind}":
        return
    if local_path(place) is not None and not exists(place):
        # An empty directory, or another job has just moved away what was there.
        return
    what = f"a {found}" if found is not None else f"no dask_nrbfn.{kind}"
    raise ExistsError(
        f"{location} exists and is {what}.", "Give another path, or remove it yourself."
    )


def _kind_stored(location: Location, kind: str) -> object:
    """Return the kind of the group at `location`, None if none of this package is there.

    Metadata that is damaged is that of a `kind` if it still says so; an empty group in a store
    object is what is left of one that was begun there.
    """
    path = local_path(location)
    # Otherwise zarr would make a directory that is not there any more.
    store = _store(location) if path is None else DurableStore(path, read_only=True)
    stored = None
    with metadata_named(location), suppress(FileNotFoundError, NotADirectoryError):
        stored = sync(store.get("zarr.json", default_buffer_prototype()))
    text = b"" if stored is None else stored.to_bytes()
    try:
        metadata = json.loads(text)
        attributes = metadata["attributes"]
        begun = metadata["node_type"] == "group" and not attributes
        if begun and isinstance(location, zarr.abc.store.Store) and local_path(location) is None:
            return f"dask_nrbfn.{kind}"
        found: object = attributes.get("kind")
    except (ValueError, TypeError, KeyError, AttributeError):
        own = f"dask_nrbfn.{kind}"
        return own if f'"{own}"'.encode() in text else None
    return found


def check_outside_groups(location: Location) -> None:
    """Raise ParameterError if a location is inside a group, at a path or a URL."""
    path, url = local_path(location), remote(location)
    if path is not None:
        check_path_outside_groups(path)
    elif url is not None and (group := enclosing_group(url)) is not None:
        raise inside_group(url, group)


def exists(location: Location) -> bool:
    """Return whether anything is stored at `location`, at a URL whether a group is."""
    path = local_path(location)
    if path is not None:
        try:
            # An empty directory is where something may be put.
            return bool(os.listdir(path))
        except OSError as error:
            if isinstance(error, PermissionError) and os.path.isdir(path):
                raise
            return os.path.lexists(path)
    try:
        _open(location, kind="group", mode="r")
    except MissingDataError:
        return False
    except DamagedDataError:
        pass
    return True


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
    content: str | None = None,
) -> Array:
    """Add an array whose chunks carry a checksum; `dimensions` let xarray open it.

    An existing array of the name is replaced. Floating-point results hardly compress, so only
    `compress` runs them through Zstandard. With `shards`, many chunks share one file. `content` is
    the digest of what will be written.
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
    recorded = {} if content is None else {"content": content}
    return array.update_attributes({"checksum": checksum(_layout(array)), **recorded})


def write_array(
    group: zarr.Group,
    name: str,
    values: NDArray[Any],
    *dimensions: str,
    slice_rows: int | None = None,
) -> None:
    """Store a whole array, in chunks of about 16 MiB along its first axis.

    With `slice_rows` in chunks of as many rows, all in one file.
    """
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
        content=_content(name, values),
    )
    array[...] = values


def _content(name: str, values: NDArray[Any]) -> str:
    """Return a digest of a whole array, which chunks that changed places do not pass."""
    digest = hashlib.blake2b(name.encode(), digest_size=16)
    if values.dtype.kind in "TU":
        digest.update(json.dumps(values.tolist()).encode())
    else:
        native = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))
        digest.update(native.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def read_rows(array: Array, start: int = 0, stop: int | None = None) -> NDArray[Any]:
    """Return ``array[start:stop]``.

    Raises
    ------
    MissingDataError, DamagedDataError
        If a chunk is not there or fails its checksum, or the whole array is not what was written.
    """
    _check_claim(array, start, stop)
    try:
        values = np.asarray(array[start:stop])
    except (MissingDataError, DamagedDataError):
        raise
    except (ValueError, RuntimeError, TypeError) as error:
        raise DamagedDataError(
            f"rows {start} to {stop if stop is not None else array.shape[0]} of "
            f"{array.store_path} cannot be read ({error}).",
            "Restore the damaged chunk from a copy, or write the data again.",
        ) from error
    recorded = array.attrs.get("content") if values.shape == array.shape else None
    if recorded is not None and recorded != _content(array.basename, values):
        raise DamagedDataError(
            f"{array.store_path} has other values than were written.",
            "Restore it from a copy, or write the data again.",
        )
    return values


def _check_claim(array: Array, start: int, stop: int | None) -> None:
    """Let what is stored bound the memory and the time of a reading, whatever metadata says."""
    n_rows = len(range(*slice(start, stop).indices(array.shape[0])))
    shape, chunks = (n_rows, *array.shape[1:]), array.chunks
    n_chunks = math.prod(-(-size // chunk) for size, chunk in zip(shape, chunks, strict=True))
    n_bytes = max(math.prod(shape), math.prod(chunks)) * array.dtype.itemsize
    if n_bytes > _READ_AT_SIGHT_BYTES or n_chunks > _READ_AT_SIGHT_CHUNKS:
        check_stored(array)


def chunk_checksum(array: Array, index: int) -> str:
    """Return what a stored chunk along the first axis ends in, as `expect_chunks` takes it."""
    place = array.store_path / _chunk_key(array, index)
    ending = sync(place.get(byte_range=SuffixByteRequest(_CHECKSUM_BYTES)))
    assert ending is not None
    return ending.to_bytes().hex()


def expect_chunks(array: Array, checksums: str) -> None:
    """Let the chunks of an array opened for reading be only those that were written.

    Parameters
    ----------
    array : zarr.Array
    checksums : str
        The `chunk_checksum` of all its chunks, one after another.
    """
    assert isinstance(array.store, _StrictStore)
    width = 2 * _CHECKSUM_BYTES
    expected = {
        f"{array.path}/{_chunk_key(array, place // width)}": checksums[place : place + width]
        for place in range(0, len(checksums), width)
    }
    array.store.checksums = {**array.store.checksums, **expected}


def _chunk_key(array: Array, index: int) -> str:
    return array.metadata.encode_chunk_key((index, *(0,) * (array.ndim - 1)))


def check_stored(array: Array) -> None:
    """Raise unless the last chunk of an array is there, and can hold what its shape says.

    Raises
    ------
    MissingDataError, DamagedDataError
    """
    # Of an array with shards a chunk of the grid is a shard.
    chunks = array.shards or array.chunks
    last = tuple(max(0, size - 1) // chunk for size, chunk in zip(array.shape, chunks, strict=True))
    place = array.store_path / array.metadata.encode_chunk_key(last)
    stored_bytes = sync(place.store.getsize(place.path))
    claimed_bytes = math.prod(chunks) * array.dtype.itemsize
    # The length of text is not in the shape.
    if array.dtype.kind != "T" and claimed_bytes > _MOST_EXPANSION * stored_bytes:
        raise DamagedDataError(
            f"{array.store_path} is said to have the shape {array.shape}, but its last chunk has "
            f"only {stored_bytes} bytes.",
            "Restore its zarr.json from a copy, or write the data again.",
        )


def chunk_rows_stored(array: Array) -> set[int]:
    """Return the numbers, along the first axis, of the chunks of which anything is stored."""
    first = _chunk_key(array, 0).partition("/")[0]

    async def listed() -> list[str]:
        return [name async for name in array.store.list_dir(f"{array.path}/{first}")]

    return {int(name) for name in sync(listed()) if name.isdecimal()}


def get_array(group: zarr.Group, name: str) -> Array:
    """Return an array of the group.

    Raises
    ------
    DamagedDataError
        If it is not there.
    """
    place = f"{group.store_path}/{name}"
    with metadata_named(place):
        member = group.get(name)
        sound = isinstance(member, zarr.Array) and member.attrs.get("checksum") == checksum(
            _layout(member)
        )
    if not isinstance(member, zarr.Array) or not sound:
        raise DamagedDataError(
            f"{place} is {'not there' if member is None else 'not the array that was written'}.",
            "Restore it from a copy, or write the data again.",
        )
    # The setting belongs to the open array, not to what is stored.
    return member.with_config({"write_empty_chunks": True})


def _identity(kind: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    identity = {"kind": f"dask_nrbfn.{kind}", "format_version": _FORMAT_VERSION, **attributes}
    return {**identity, "checksum": checksum(identity)}


def checksum(content: object) -> str:
    """Return a digest of JSON content, which zarr's metadata has no checksum of its own for."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _layout(array: Array) -> dict[str, Any]:
    """Return the metadata of an array, without the attributes that name their checksum."""
    layout = array.metadata.to_dict()
    del layout["attributes"]
    return layout


def _store(location: Location) -> zarr.abc.store.Store:
    if type(location) is LocalStore:
        return DurableStore(location.root, read_only=location.read_only)
    if isinstance(location, zarr.abc.store.Store):
        return location
    if (url := remote(location)) is not None:
        return open_store(url)
    path = local_path(location)
    assert path is not None
    return DurableStore(path)
