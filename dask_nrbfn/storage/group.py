"""Zarr groups that fail loudly.

Attributes carry a checksum, and missing chunks are errors instead of fill values. One job at a time
writes to a group, and a new group takes the place of an old one only when it is complete.
"""

import fcntl
import glob
import hashlib
import json
import logging
import os
import shlex
import shutil
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import zarr
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest, Store
from zarr.buffer import default_buffer_prototype
from zarr.storage import LocalStore, StorePath, WrapperStore

from dask_nrbfn.errors import (
    DamagedDataError,
    ExistsError,
    FormatVersionError,
    MissingDataError,
    NRBFNError,
    RunBusyError,
    StorageError,
)
from dask_nrbfn.outputs import check_path_outside_groups, disk_errors_named, place_new
from dask_nrbfn.private import run_in_zarr
from dask_nrbfn.storage.location import Location as Location
from dask_nrbfn.storage.location import (
    NotMovedError,
    RemoteLocation,
    explained,
    file_system,
    hidden_sibling,
    local_path,
    move_group,
    normalize,
    occupied,
    open_store,
    real_path,
    remote,
    remove_tree,
)

logger = logging.getLogger(__name__)

RESTORE = "Restore the data from a copy, or write the data again."
"""The remedy for damaged data."""

MOVED = ".replaced"
"""Suffix of the hidden name of a directory that another replaces."""

BUILT = ".unfinished"
"""Suffix of the hidden name of a directory that is built."""

FORMAT_VERSION = 1
"""The number of the stored format; any change of what is stored raises it."""

# Metadata and checksums


class StrictStore(WrapperStore[Store]):
    """A store that raises an error for a missing chunk; zarr would read fill values."""

    def __str__(self) -> str:
        return str(self._store)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Return the value of a key; None if the key is of missing metadata."""
        value = await super().get(key, prototype, byte_range)
        if value is None and not key.endswith("zarr.json"):
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
    content = dict(attributes)
    content.pop("checksum", None)
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


# Opening


def open_group(location: Location, *, kind: str, writable: bool = False) -> zarr.Group:
    """Open a group of this package, of a kind that `mark_complete` recorded, or of several kinds.

    A writable group reads missing chunks as fill values; a read-only one raises.
    """
    group = _open(location, kind=kind, mode="r+" if writable else "r")
    check_identity(group, kind)
    return group


def check_identity(group: zarr.Group, kind: str) -> None:
    """Raise an error unless a group is finished, of a kind and of this format, and undamaged."""
    place, attributes = group.store_path, attributes_of(group)
    found = attributes.get("kind")
    if found not in [f"dask_nrbfn.{each}" for each in kind.split(" or ")]:
        problem = f"{place} is a {found}, not a dask_nrbfn.{kind}."
        remedy = f"Give the path of a {kind}."
        if found is None:
            problem = f"{place} is not a dask_nrbfn.{kind}, or was not finished."
            remedy += f" Or write the unfinished {kind} again.{_how_to_ingest(place, kind)}"
        raise DamagedDataError(problem, remedy)
    version = attributes.get("format_version")
    if version != FORMAT_VERSION:
        raise FormatVersionError(
            f"{place} has format version {version}, but this version of dask_nrbfn reads "
            f"{FORMAT_VERSION}.",
            f"Use the version of dask_nrbfn that wrote the {kind}, or write the {kind} again.",
        )
    check_sealed(attributes, place)


def _how_to_ingest(place: object, kind: str) -> str:
    """Return how to ingest the rows at a place, as part of an error about a dataset."""
    if "dataset" not in kind.split(" or "):
        return ""
    command = f"dask-nrbfn ingest {shlex.quote(str(place))} data.zarr --label COLUMN"
    return f" To ingest rows: {command}, or --y for arrays."


def _open(location: Location, *, kind: str, mode: Literal["r", "r+"]) -> zarr.Group:
    path = local_path(location)
    try:
        if path is not None and not os.path.isdir(path):
            # zarr would create the directory of a writable store.
            raise FileNotFoundError(path)
        with metadata_named(location):
            # Without the format zarr requests five names at once. If one request fails, the
            # others log their errors.
            store = store_at(location) if mode == "r+" else StrictStore(store_at(location))
            return zarr.open_group(store, mode=mode, zarr_format=3)
    except (FileNotFoundError, NotADirectoryError) as error:
        remedy = f"Give the path of a {kind}."
        if path is not None and os.path.lexists(path):
            remedy += _how_to_ingest(location, kind)
            raise DamagedDataError(f"{location} is not a {kind}.", remedy) from error
        if path is not None and (moved := _hidden(real_path(path), MOVED)):
            remedy = f"Rename {moved[0]} to {path}: a job was killed while it replaced this {kind}."
        raise MissingDataError(f"there is no {kind} at {location}.", remedy) from error


def attributes_of(group: zarr.Group) -> dict[str, Any]:
    """Return all attributes of a group."""
    return group.attrs.asdict()


def exists(location: Location) -> bool:
    """Return whether anything is stored at a location."""
    if (path := local_path(location)) is not None:
        with suppress(FileNotFoundError, NotADirectoryError):
            # An empty directory counts as free.
            return bool(os.listdir(path))
        return os.path.lexists(path)
    if (url := remote(location)) is not None:
        return occupied(url)
    return not run_in_zarr(store_at(location).is_empty(""))


def store_at(location: Location) -> Store:
    """Return the zarr store of a location."""
    location = normalize(location)
    if isinstance(location, Store):
        return location
    if (url := remote(location)) is not None:
        return open_store(url)
    return LocalStore(str(local_path(location)))


# Recording


def mark_complete(group: zarr.Group, *, kind: str, attributes: Mapping[str, Any]) -> None:
    """Record kind and attributes of a group; call it last: only a group with a kind is opened."""
    identity = {"kind": f"dask_nrbfn.{kind}", "format_version": FORMAT_VERSION}
    run_in_zarr(write_group(group.store_path, {**identity, **attributes}))


def update_record(group: zarr.Group, attributes: Mapping[str, Any]) -> None:
    """Change attributes, JSON-serializable values, of a group that is marked complete."""
    run_in_zarr(write_group(group.store_path, {**attributes_of(group), **attributes}))
    if isinstance(group.store, LocalStore):
        flush(group.store.root / group.path / "zarr.json")


# Locks that let one job at a time write to a location, and that end with the job
#
# On a local file system the kernel holds the lock and releases it when the process ends for any
# reason. Object stores have no locks: the job that began last keeps the location, and earlier jobs
# stop before they record anything else.


@contextmanager
def locked_run(location: Location) -> Iterator[Callable[[], None]]:
    """Keep other jobs from writing to `location`, which need not exist yet.

    Yields a function that raises RunBusyError if another job took over; call it before anything is
    recorded. Locks of the kernel cannot be lost. Store objects are not locked.
    """
    if (url := remote(location)) is not None:
        with _claimed(url) as check_still_claimed:
            yield check_still_claimed
        return
    with ExitStack() as held:
        if (path := local_path(location)) is not None:
            target = real_path(path)
            with disk_errors_named(f"the lock of {target}"):
                if not held.enter_context(locked_path(target)):
                    logger.warning("cannot lock %s: run only one job at a time there", target)
        yield lambda: None


@contextmanager
def locked_path(target: Path) -> Iterator[bool]:
    """Lock a local path, which need not exist; False if its file system has no locks."""
    # Not inside a run, whose directory must be empty or absent at the start.
    path = target.with_name(f".{target.name}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            remedy = "Wait until the other job is finished, or end it and start this job again."
            holder = ""
            with suppress(OSError, ValueError):
                # A file that was just locked may still be empty.
                holder = path.read_text()
            raise _busy(target, holder, remedy) from error
        except OSError:
            has_locks = False
            break
        if _is_still(path, descriptor):
            has_locks = True
            os.ftruncate(descriptor, 0)
            os.write(descriptor, _holder().encode())
            break
        # The last holder removed the file before it was locked here.
        os.close(descriptor)
    try:
        yield has_locks
    finally:
        # Somebody may have removed the file, and another job may have made a new one.
        if _is_still(path, descriptor):
            path.unlink(missing_ok=True)
        os.close(descriptor)


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextmanager
def _claimed(run: RemoteLocation) -> Iterator[Callable[[], None]]:
    """Claim a location in an object store; an earlier job loses its claim."""
    lock = hidden_sibling(run, "lock")
    assert isinstance(lock, RemoteLocation)
    fs, path = file_system(lock)
    # The second line tells two claims of one process apart.
    own = f"{_holder()}\n{uuid.uuid4().hex}"

    def holder() -> str:
        with explained(str(run)), suppress(FileNotFoundError):
            return bytes(fs.cat_file(path)).decode(errors="replace")
        return ""

    def check_still_claimed() -> None:
        if (found := holder()) != own:
            raise _busy(run, found, "Wait until the other job, which began later, is finished.")

    if earlier := holder():
        logger.warning("%s stops, if it still works on %s", earlier.partition("\n")[0], run)
    with explained(str(run)):
        fs.pipe_file(path, own.encode())
    try:
        yield check_still_claimed
    finally:
        # The user needs the first error.
        with suppress(StorageError):
            if holder() == own:
                with explained(str(run)):
                    fs.rm_file(path)


def _holder() -> str:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return f"process {os.getpid()} on {socket.gethostname()}, since {since},"


def _busy(place: object, holder: str, remedy: str) -> RunBusyError:
    name = holder.partition("\n")[0] or "another job"
    return RunBusyError(f"{name} works on {place}.", remedy)


# Building next to a location, and moving


@contextmanager
def replacing_group(location: Location, *, kind: str, overwrite: bool) -> Iterator[zarr.Group]:
    """Yield an empty group that is moved to `location` when the block succeeds.

    It is built next to `location`, under a hidden name, and an error leaves the old group; a store
    object is written in place, and an error empties it. Of two jobs that write to one location, the
    group of the job that ends first is kept, with `overwrite` the group of the job that ends last.
    """
    location = normalize(location)
    check_target(location, kind=kind, overwrite=overwrite)
    if isinstance(location, Store) and local_path(location) is None:
        try:
            yield zarr.create_group(location, overwrite=True)
        except BaseException:
            if location.supports_deletes:
                run_in_zarr(location.clear())
            raise
        return
    with disk_errors_named(location, full_only=True), scratch_next_to(location) as scratch:
        yield zarr.create_group(store_at(scratch))
        check_target(location, kind=kind, overwrite=overwrite)
        replace_group(scratch, location)


def check_target(location: Location, *, kind: str, overwrite: bool) -> None:
    """Raise an error if a group must not be written to `location`."""
    something_is_there = exists(location)
    if (path := local_path(location)) is not None:
        check_path_outside_groups(path)
    if not something_is_there:
        return
    if not overwrite:
        raise ExistsError(
            f"{location} already exists.",
            f"Give another path, or set `overwrite` to replace the {kind}.",
        )
    found = None
    with suppress(MissingDataError, DamagedDataError):
        found = attributes_of(_open(location, kind="group", mode="r")).get("kind")
    if found != f"dask_nrbfn.{kind}":
        what = f"a {found}" if found is not None else f"not a dask_nrbfn.{kind}"
        raise ExistsError(
            f"{location} exists, but is {what}.", f"Give another path, or delete {location}."
        )


@contextmanager
def scratch_next_to(location: Location) -> Iterator[Location]:
    """Yield a hidden location for a group, which is removed when the block ends.

    On a disk it is locked meanwhile, because other processes remove what is not.
    """
    location = normalize(location)
    hidden = hidden_sibling(location, f"{uuid.uuid4().hex}{BUILT}")
    if (path := local_path(location)) is None:
        try:
            yield hidden
        except NotMovedError:
            raise
        except BaseException:
            # The user needs the first error.
            with suppress(NRBFNError):
                remove_group(hidden)
            raise
        remove_group(hidden)
        return
    target = real_path(path)
    directory = Path(str(hidden))
    with ExitStack() as held:
        with disk_errors_named(location):
            target.parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(target)
            held.enter_context(locked_path(directory))
            directory.mkdir()
        try:
            yield str(directory / "scratch")
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    _remove_abandoned(target)


def _remove_abandoned(target: Path) -> None:
    """Delete what killed processes have left of the same group.

    A process that was killed while it replaced `target` has left the old and the new group, and
    nothing at `target`: they stay.
    """
    moved = _hidden(target, MOVED)
    if moved and not exists(str(target)):
        return
    # A process that was killed after it removed its directory has left only the lock.
    locks = _hidden(target.with_name(f".{target.name}"), ".*.lock")
    only_locked = [lock.with_name(lock.stem.removeprefix(".")) for lock in locks]
    for left in [*moved, *_hidden(target, BUILT), *only_locked]:
        with suppress(OSError, RunBusyError), locked_path(left) as is_abandoned:
            if is_abandoned:
                shutil.rmtree(left, ignore_errors=True)


def _hidden(target: Path, suffix: str) -> list[Path]:
    """Return what has a drawn name next to `target`."""
    pattern = f".{glob.escape(target.name)}.{'[0-9a-f]' * 32}{suffix}"
    return [*target.parent.glob(pattern)]


@contextmanager
def locked_group(location: Location) -> Iterator[Callable[[], None]]:
    """Lock a location as `locked_run` does, and delete what killed jobs left of its group."""
    path = local_path(location)
    target = None if path is None else real_path(path)
    with locked_run(location) as check_still_locked:
        if target is not None:
            _refuse_links(target)
            _remove_abandoned(target)
        yield check_still_locked
        if target is not None:
            _remove_abandoned(target)
            # Killed workers leave files that are not finished.
            for left in filter(Path.is_file, target.rglob("*.partial")):
                left.unlink(missing_ok=True)


def _refuse_links(target: Path) -> None:
    """Raise DamagedDataError for a link in a group: its author could choose what a job replaces."""
    for inner, directories, files in os.walk(target):
        for path in (Path(inner, name) for name in (*directories, *files)):
            if path.is_symlink():
                raise DamagedDataError(
                    f"{path} is a link.", "Replace the link by its target, or remove the link."
                )


def remove_abandoned(location: Location) -> None:
    """Delete what killed jobs left of a group on a disk, unless another job writes to it now."""
    if local_path(location) is not None:
        with suppress(RunBusyError), locked_group(location):
            pass


def replace_group(new: Location, target: Location) -> None:
    """Replace the group at `target` with a complete one on the same disk or object store."""
    path = local_path(new)
    url, old = remote(new), remote(target)
    if path is not None:
        flush_tree(Path(path))
        replace_path(Path(path), real_path(str(local_path(target))))
    elif url is not None and old is not None:
        move_group(url, old)


def flush_tree(directory: Path) -> None:
    """Wait until a directory and everything below it is on the disk."""
    for inner, _, names in os.walk(directory):
        for name in names:
            # A task that runs twice may still write and rename files.
            with suppress(FileNotFoundError):
                flush(Path(inner, name))
        flush(Path(inner))


def flush(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Some file systems cannot do this for directories.
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_path(new: Path, target: Path) -> None:
    """Replace `target`, which may exist, with the complete directory `new`.

    If the process is killed in between, both directories have hidden names.
    """
    old = target.with_name(f".{target.name}.{uuid.uuid4().hex}{MOVED}")
    with suppress(FileNotFoundError):
        os.rename(target, old)
    place_new(new, target)
    flush(target.parent)
    # Other jobs remove it too.
    shutil.rmtree(old, ignore_errors=True)


def remove_group(location: Location) -> None:
    """Delete a group at a path or URL."""
    path, url = local_path(location), remote(location)
    if path is not None:
        shutil.rmtree(path, ignore_errors=True)
    elif url is not None:
        remove_tree(url)


# Groups inside a group


def flush_member(location: Location, name: str) -> None:
    """Wait until a group inside another is on the disk; object stores need no wait."""
    if (path := local_path(location)) is not None:
        flush_tree(Path(path, name))


def member_names(group: zarr.Group, inner: str = "") -> list[str]:
    """Return the names of the members of a group, or of its group `inner`, readable or not."""

    async def listed() -> list[str]:
        place = "/".join(filter(None, (group.path, inner)))
        return [name async for name in group.store.list_dir(place)]

    return run_in_zarr(listed())


def copy_member(source: zarr.Group, target: zarr.Group, name: str) -> None:
    """Copy a group inside another, with everything in it, if it exists."""

    async def copy() -> None:
        old, new = (f"{group.path}/{name}/".lstrip("/") for group in (source, target))
        async for key in source.store.list_prefix(old):
            value = await source.store.get(key, default_buffer_prototype())
            if value is not None:
                await target.store.set(new + key.removeprefix(old), value)

    run_in_zarr(copy())
