"""Zarr groups that fail loudly.

Arrays carry a checksum, missing chunks are errors instead of fill values, and a new group takes
the place of an old one only when it is complete.
"""

import glob
import os
import shlex
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import zarr
import zarr.abc.store
from zarr.buffer import default_buffer_prototype
from zarr.storage import LocalStore

from dask_nrbfn.errors import (
    DamagedDataError,
    ExistsError,
    FormatVersionError,
    MissingDataError,
    NRBFNError,
    ParameterError,
    RunBusyError,
    RunMismatchError,
)
from dask_nrbfn.outputs import (
    check_path_outside_groups,
    disk_errors_named,
    full_disk_named,
    inside_group,
)
from dask_nrbfn.private import run_in_zarr
from dask_nrbfn.storage.local import (
    MOVED,
    DurableStore,
    finish_writes,
    flush_tree,
    place_path,
    replace_path,
)
from dask_nrbfn.storage.location import Location as Location
from dask_nrbfn.storage.location import RemoteLocation, beside, local_path, remote
from dask_nrbfn.storage.location import normalize as normalize
from dask_nrbfn.storage.lock import locked_path, locked_run
from dask_nrbfn.storage.remote import (
    enclosing_group,
    move_group,
    occupied,
    open_store,
    remove_tree,
)
from dask_nrbfn.storage.strict import StrictStore, is_sealed, metadata_named, sealed

# The kind of a group that is still being written.
_UNFINISHED = "unfinished"

BUILT = ".unfinished"
"""Suffix of the hidden name of a directory that one job builds."""

FORMAT_VERSION = 1
"""The number of the stored format; any change of what is stored raises it."""

RECORDED = ("kind", "format_version", "checksum")
"""Attributes that identify a group of this package."""


def create_group(location: Location, *, kind: str, attributes: Mapping[str, Any]) -> zarr.Group:
    """Create a group that is complete at once, where nothing is stored yet."""
    check_outside_groups(location)
    identity = _identity(kind, attributes)
    if (path := local_path(location)) is None:
        return zarr.create_group(store_at(location), attributes=identity, overwrite=False)
    target = Path(os.path.realpath(path))
    with _directory_beside(target) as unfinished:
        zarr.create_group(DurableStore(unfinished), attributes=identity)
        place_path(unfinished, target)
    return zarr.open_group(DurableStore(target), mode="r+", zarr_format=3)


def open_group(location: Location, *, kind: str, writable: bool = False) -> zarr.Group:
    """Open a group of this package, of the kind that `mark_complete` recorded.

    A writable group reads missing chunks as fill values; a read-only one raises.
    """
    group = _open(location, kind=kind, mode="r+" if writable else "r")
    _check_identity(group, kind)
    return group


def open_member(group: zarr.Group, name: str, *, kind: str) -> zarr.Group | None:
    """Return a group of this package inside another; None if it is missing or not finished."""
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
                f"{place} is not a dask_nrbfn.{kind}, or was not finished.",
                f"Give the path of a {kind}, or write the unfinished {kind} again."
                f"{_ingested_first(place, kind)}",
            )
        raise DamagedDataError(
            f"{place} is a {found}, not a dask_nrbfn.{kind}.", f"Give the path of a {kind}."
        )
    version = attributes.get("format_version")
    if version != FORMAT_VERSION:
        raise FormatVersionError(
            f"{place} has format version {version}, but this version of dask_nrbfn reads "
            f"{FORMAT_VERSION}.",
            f"Use the version of dask_nrbfn that wrote the {kind}, or write the {kind} again.",
        )
    if not is_sealed(attributes):
        raise DamagedDataError(
            f"the attributes of {place} fail their checksum.",
            f"Restore the zarr.json of the {kind} from a copy, or write the {kind} again.",
        )


def _ingested_first(place: object, kind: str) -> str:
    """Return how to ingest the rows at a place, as part of an error about a dataset."""
    how = f"To ingest rows: dask-nrbfn ingest {shlex.quote(str(place))} data.zarr --label COLUMN"
    return f" {how}, or --y for arrays." if kind == "dataset" else ""


def kind_of(location: Location, kinds: tuple[str, ...]) -> str:
    """Return which of `kinds` is stored at `location`."""
    wanted = " or ".join(kinds)
    found = attributes_of(_open(location, kind=wanted, mode="r")).get("kind")
    for kind in kinds:
        if found == f"dask_nrbfn.{kind}":
            return kind
    raise DamagedDataError(f"{location} is not a {wanted}.", f"Give the path of a {wanted}.")


def _open(location: Location, *, kind: str, mode: Literal["r", "r+"]) -> zarr.Group:
    path = local_path(location)
    try:
        if path is not None and not os.path.isdir(path):
            # zarr would create the directory of a writable store.
            raise FileNotFoundError(path)
        with metadata_named(location):
            # Without the format zarr requests five names at once. If one request fails, the
            # others log their errors.
            store = store_at(location)
            strict = store if mode == "r+" else StrictStore(store)
            return zarr.open_group(strict, mode=mode, zarr_format=3)
    except (FileNotFoundError, NotADirectoryError) as error:
        if path is not None and os.path.lexists(path):
            raise DamagedDataError(
                f"{location} is not a {kind}.",
                f"Give the path of a {kind}.{_ingested_first(location, kind)}",
            ) from error
        remedy = f"Give the path of a {kind}."
        if path is not None and (moved := _hidden(Path(os.path.realpath(path)), MOVED)):
            remedy = f"Rename {moved[0]} to {path}: a job was killed while it replaced this {kind}."
        raise MissingDataError(f"there is no {kind} at {location}.", remedy) from error


def attributes_of(group: zarr.Group) -> dict[str, Any]:
    """Return all attributes of a group."""
    return group.attrs.asdict()


def mark_complete(group: zarr.Group, *, kind: str, attributes: Mapping[str, Any]) -> None:
    """Record kind and attributes of a group; call it last: only a group with a kind is opened."""
    group.update_attributes(_identity(kind, attributes))


def update_record(group: zarr.Group, attributes: Mapping[str, Any]) -> None:
    """Change attributes, JSON-serializable values, of a group that is marked complete."""
    group.update_attributes(sealed({**attributes_of(group), **attributes}))


@contextmanager
def replacing_group(location: Location, *, kind: str, overwrite: bool) -> Iterator[zarr.Group]:
    """Yield an empty group that is moved to `location` when the block succeeds.

    It is built beside `location`, under a hidden name; a store object is written in place. An error
    leaves the old group. Of two jobs that write to one location, the group of the job that ends
    first is kept, with `overwrite` the group of the job that ends last. If both end at the same
    moment, one raises ExistsError.
    """
    location = normalize(location)
    check = partial(check_target, location, kind=kind, overwrite=overwrite)
    check()
    build: AbstractContextManager[zarr.Group]
    if (path := local_path(location)) is not None:
        place = replace_path if overwrite else place_path
        build = _built_beside(Path(os.path.realpath(path)), check, place)
    elif (url := remote(location)) is not None:
        build = _built_remotely(url, check)
    else:
        build = _built_in_place(location)
    with build as group:
        yield group


@contextmanager
def _built_beside(
    target: Path, check: Callable[[], None], place: Callable[[Path, Path], None]
) -> Iterator[zarr.Group]:
    with _directory_beside(target) as unfinished:
        with disk_errors_named(target):
            group = zarr.create_group(DurableStore(unfinished))
        with full_disk_named(target):
            yield group
            flush_tree(unfinished)
            check()
            place(unfinished, target)
    _remove_abandoned(target)


@contextmanager
def scratch_beside(location: Location) -> Iterator[Location]:
    """Yield a hidden location for a group, which is removed when the block ends."""
    location = normalize(location)
    if (path := local_path(location)) is not None:
        with _directory_beside(Path(os.path.realpath(path))) as directory:
            yield str(directory / "scratch")
    else:
        scratch = hidden_sibling(location, f"{uuid.uuid4().hex}{BUILT}")
        try:
            yield scratch
        finally:
            remove_group(scratch)


@contextmanager
def _directory_beside(target: Path) -> Iterator[Path]:
    """Yield a new hidden directory, locked until the block ends; then it is removed."""
    with ExitStack() as held:
        with disk_errors_named(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(target)
            unfinished = target.with_name(f".{target.name}.{uuid.uuid4().hex}{BUILT}")
            # Locked first, because other processes remove directories that are not locked.
            held.enter_context(locked_path(unfinished))
            unfinished.mkdir()
        try:
            yield unfinished
        except BaseException:
            finish_writes()
            raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def _remove_abandoned(target: Path) -> None:
    """Delete what killed processes have left of the same group.

    A process that was killed while it replaced `target` has left the old and the new group, and
    nothing at `target`: they stay.
    """
    moved = _hidden(target, MOVED)
    # A process may have been killed after it locked a name, and before it made the directory.
    locks = target.parent.glob(f".{_drawn(target, BUILT)}.lock")
    only_locked = [lock.with_name(lock.stem.removeprefix(".")) for lock in locks]
    for left in [*moved, *_hidden(target, BUILT), *only_locked]:
        with suppress(OSError, RunBusyError), locked_path(left) as is_abandoned:
            if is_abandoned and not (moved and not exists(str(target))):
                shutil.rmtree(left, ignore_errors=True)


def _hidden(target: Path, suffix: str) -> list[Path]:
    """Return what has a drawn name beside `target`."""
    return [*target.parent.glob(_drawn(target, suffix))]


def _drawn(target: Path, suffix: str) -> str:
    return f".{glob.escape(target.name)}.{'[0-9a-f]' * 32}{suffix}"


@contextmanager
def locked_group(location: Location) -> Iterator[Callable[[], None]]:
    """Lock a location as `locked_run` does, and delete what killed jobs left of its group."""
    path = local_path(location)
    target = None if path is None else Path(os.path.realpath(path))
    with locked_run(location) as check_still_locked:
        if target is not None:
            _remove_abandoned(target)
        yield check_still_locked
        if target is not None:
            _remove_abandoned(target)
            # Killed workers leave files that are not finished.
            for left in filter(Path.is_file, target.rglob("*.partial")):
                left.unlink(missing_ok=True)


def remove_abandoned(location: Location) -> None:
    """Delete what killed jobs left of a group on a disk, unless another job writes to it now."""
    if local_path(location) is not None:
        with suppress(RunBusyError), locked_group(location):
            pass


@contextmanager
def _built_remotely(target: RemoteLocation, check: Callable[[], None]) -> Iterator[zarr.Group]:
    unfinished = beside(target, f"{uuid.uuid4().hex}{BUILT}")
    try:
        yield zarr.create_group(open_store(unfinished))
        check()
    except BaseException:
        # The user needs the first error.
        with suppress(NRBFNError):
            remove_tree(unfinished)
        raise
    with locked_run(target):
        move_group(unfinished, target)


@contextmanager
def _built_in_place(store: Location) -> Iterator[zarr.Group]:
    with locked_run(store):
        yield zarr.create_group(store_at(store), overwrite=True)


@contextmanager
def resumed_group(
    location: Location, *, kind: str, identity: Mapping[str, str], overwrite: bool
) -> Iterator[zarr.Group]:
    """Yield a group that is moved to `location` when the block succeeds.

    It is built beside `location`, under a hidden name. If the block fails, it stays there, and a
    later call with the same `identity` continues it; `overwrite` replaces work of another identity.
    """
    location = normalize(location)
    check_target(location, kind=kind, overwrite=overwrite)
    unfinished = hidden_sibling(location, "unfinished")
    with locked_group(location) as check_still_locked:
        begun = _kind_begun(unfinished, location, identity, (_UNFINISHED, kind), overwrite)
        if begun is None:
            remove_group(unfinished)
            create_group(unfinished, kind=_UNFINISHED, attributes=identity)
        yield open_group(unfinished, kind=begun or _UNFINISHED, writable=True)
        check_still_locked()
        _publish(unfinished, location, kind=kind, overwrite=overwrite)


def _kind_begun(
    unfinished: Location,
    location: Location,
    identity: Mapping[str, str],
    kinds: tuple[str, ...],
    overwrite: bool,
) -> str | None:
    """Return the kind of unfinished work; None if there is none, or it is damaged or replaced."""
    try:
        kind = kind_of(unfinished, kinds)
        begun = attributes_of(open_group(unfinished, kind=kind))
    except (MissingDataError, DamagedDataError):
        return None
    other = next((name for name, value in identity.items() if begun.get(name) != value), None)
    if other is None:
        return kind
    if overwrite:
        return None
    raise RunMismatchError(
        f"{unfinished}, the unfinished part of {location}, has another "
        f"{other.removeprefix('of_').replace('_', ' ')}.",
        f"Repeat the earlier call to continue, set `overwrite` to start again, or delete "
        f"{unfinished}.",
    )


def _publish(new: Location, location: Location, *, kind: str, overwrite: bool) -> None:
    """Move a complete group from beside `location` to `location`."""
    path, url = local_path(location), remote(location)
    if path is not None:
        flush_tree(Path(str(new)))
    check_target(location, kind=kind, overwrite=overwrite)
    if path is not None:
        target = Path(os.path.realpath(path))
        (replace_path if overwrite else place_path)(Path(str(new)), target)
    elif url is not None:
        move_group(cast(RemoteLocation, remote(new)), url)


def hidden_sibling(location: Location, suffix: str) -> Location:
    """Return ``.NAME.suffix`` beside a path or URL that ends in NAME."""
    if (path := local_path(location)) is not None:
        real = Path(os.path.realpath(path))
        return str(real.with_name(f".{real.name}.{suffix}"))
    if (url := remote(location)) is not None:
        return beside(url, suffix)
    raise ParameterError(
        f"{location} is a Zarr store object, but a directory or URL is needed here.",
        "Give a directory or URL.",
    )


def replace_group(new: Location, target: Location) -> None:
    """Replace the group at `target` with a complete one on the same disk or object store."""
    path, url = local_path(new), remote(new)
    if path is not None:
        flush_tree(Path(path))
        replace_path(Path(path), Path(os.path.realpath(str(local_path(target)))))
    elif url is not None:
        old = remote(target)
        assert old is not None
        move_group(url, old)


def flush_member(location: Location, name: str) -> None:
    """Wait until a group inside another is on the disk; object stores need no wait."""
    path = local_path(location)
    if path is not None:
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


def remove_group(location: Location) -> None:
    """Delete a group at a path or URL."""
    path, url = local_path(location), remote(location)
    if path is not None:
        shutil.rmtree(path, ignore_errors=True)
    elif url is not None:
        remove_tree(url)


def check_target(location: Location, *, kind: str, overwrite: bool) -> None:
    """Raise an error if a group must not be written to `location`."""
    url = remote(location)
    something_is_there = exists(location) or (url is not None and occupied(url))
    check_outside_groups(location)
    if not something_is_there:
        return
    if not overwrite:
        raise ExistsError(
            f"{location} already exists.",
            f"Give another path, or set `overwrite` to replace the {kind}.",
        )
    found = _kind_stored(location, kind)
    if found != f"dask_nrbfn.{kind}":
        what = f"a {found}" if found is not None else f"not a dask_nrbfn.{kind}"
        raise ExistsError(
            f"{location} exists, but is {what}.", f"Give another path, or delete {location}."
        )


def _kind_stored(location: Location, kind: str) -> object:
    """Return the kind of the group at `location`, None if it is not a group of this package."""
    try:
        attributes = attributes_of(_open(location, kind="group", mode="r"))
    except (MissingDataError, DamagedDataError):
        return None
    if isinstance(location, zarr.abc.store.Store) and local_path(location) is None:
        # An unfinished job has left an empty group.
        return attributes.get("kind") if attributes else f"dask_nrbfn.{kind}"
    return attributes.get("kind")


def check_outside_groups(location: Location) -> None:
    """Raise ParameterError if a location is inside a group, at a path or a URL."""
    path, url = local_path(location), remote(location)
    if path is not None:
        check_path_outside_groups(path)
    elif url is not None and (group := enclosing_group(url)) is not None:
        raise inside_group(url, group)


def exists(location: Location) -> bool:
    """Return whether anything is stored at a path, or a group at a URL or in a store object."""
    path = local_path(location)
    if path is not None:
        try:
            # An empty directory counts as free.
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


def _identity(kind: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    return sealed({"kind": f"dask_nrbfn.{kind}", "format_version": FORMAT_VERSION, **attributes})


def store_at(location: Location) -> zarr.abc.store.Store:
    """Return the zarr store of a location."""
    location = normalize(location)
    if type(location) is LocalStore:
        return DurableStore(location.root, read_only=location.read_only)
    if isinstance(location, zarr.abc.store.Store):
        return location
    if (url := remote(location)) is not None:
        return open_store(url)
    return DurableStore(str(local_path(location)))
