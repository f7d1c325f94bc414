"""Where things are stored: local paths, URLs with or without storage options, store objects."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import zarr.abc.store
from zarr.storage import FsspecStore, LocalStore

from dask_nrbfn.errors import MissingDataError, NRBFNError, ParameterError, StorageError
from dask_nrbfn.sources.files import File

# Metadata has a few kilobytes and is read first. File systems may retry for minutes if a server
# accepts connections and never answers: s3fs for 6, gcsfs for more.
_METADATA_TIMEOUT_S = 30

# A command gets its settings from the environment; in Python a location can have storage options.
_WHERE = "in the environment variables or storage options"

# Object below a location while a group is moved to it; the object stays if the move fails.
_MOVING = ".dask_nrbfn.moving"

Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(frozen=True)
class RemoteLocation:
    """An fsspec URL and the storage options of its file system.

    Options from the environment or from fsspec's configuration are not needed here. The options are
    sent to the workers with every task. The text of the location does not contain the options, so
    they appear in no log, error or record.

    Parameters
    ----------
    url : str
        Such as ``s3://bucket/run.zarr``.
    storage_options : mapping
        Arguments of the fsspec file system, such as ``{"key": ..., "secret": ...}``.

    Raises
    ------
    ParameterError
        If `url` is not a URL, or has no name after the protocol.

    Examples
    --------
    >>> print(RemoteLocation("s3://bucket/run.zarr", {"secret": "abc"}))
    s3://bucket/run.zarr
    """

    url: str
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        if "://" not in self.url:
            raise ParameterError(
                f"{self.url} has storage options, but is not a URL.",
                "Give a URL such as s3://bucket/name, or a path without storage options.",
            )
        if not self.url.partition("://")[2].strip("/"):
            raise ParameterError(
                f"{self.url} has no name after the protocol.",
                "Give a complete URL, such as s3://bucket/name.",
            )

    def __str__(self) -> str:
        return self.url


Location = str | os.PathLike[str] | RemoteLocation | zarr.abc.store.Store
"""A local path, an fsspec URL, or a zarr store object of this process."""


def locate(text: str, storage_options: Mapping[str, Any]) -> str | RemoteLocation:
    """Return the location of a path or URL; storage options apply to URLs only."""
    if storage_options and "://" in text:
        return RemoteLocation(text, storage_options)
    return text


def normalize(location: Location) -> Location:
    """Return a location with an absolute local path, which means the same in every process."""
    if isinstance(location, zarr.abc.store.Store):
        return location
    if isinstance(location, RemoteLocation):
        return normalize(location.url) if location.url.startswith("file://") else location
    text = os.fspath(location).removeprefix("file://")
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))


def join(location: Location, name: str) -> str | RemoteLocation:
    """Return the location of `name` in the directory, or under the URL, `location`."""
    located = _in_directory(location)
    if isinstance(located, RemoteLocation):
        return replace(located, url=f"{located.url.rstrip('/')}/{name}")
    return f"{located.rstrip('/')}/{name}"


def hidden_sibling(location: Location, suffix: str) -> str | RemoteLocation:
    """Return ``.NAME.suffix`` next to a path or URL that ends in NAME."""
    if (path := local_path(location)) is not None:
        real = real_path(path)
        return str(real.with_name(f".{real.name}.{suffix}"))
    url = remote(_in_directory(location))
    assert url is not None
    place, _, name = url.url.rstrip("/").rpartition("/")
    # memory:// URLs have no bucket.
    if place.endswith(":/") and not place.startswith("memory:"):
        raise ParameterError(
            f"{location} is a whole bucket.",
            f"Give a name in the bucket, such as {location}/name.zarr.",
        )
    return replace(url, url=f"{place}/.{name}.{suffix}")


def _in_directory(location: Location) -> str | RemoteLocation:
    located = normalize(location)
    if isinstance(located, str | RemoteLocation):
        return located
    raise ParameterError(
        f"{location} is a Zarr store object, but a directory or URL is needed here.",
        "Give a directory or URL.",
    )


def local_path(location: Location) -> str | None:
    """Return the absolute path of a location on this machine's file system, else None."""
    located = normalize(location)
    if isinstance(located, LocalStore):
        return str(located.root.absolute())
    return located if isinstance(located, str) and "://" not in located else None


def real_path(path: str) -> Path:
    """Return a local path with links followed."""
    return Path(os.path.realpath(path))


def remote(location: Location) -> RemoteLocation | None:
    """Return a location that fsspec opens with its options, else None."""
    located = normalize(location)
    if isinstance(located, str) and "://" in located:
        return RemoteLocation(located)
    return located if isinstance(located, RemoteLocation) else None


def file_of(location: Location) -> File:
    """Return a path or URL as a file for `dask_nrbfn.sources`."""
    place = _in_directory(location)
    if isinstance(place, RemoteLocation):
        return File(place.url, place.storage_options)
    return File(place)


# Object stores through fsspec: readable errors, no caches, and groups that move as a whole


class NotMovedError(StorageError):
    """A complete group stays under its hidden name, because the store failed to move it."""


def guarded(method: Method) -> Method:
    """Return a method of a store whose first argument is a key, run inside `guard` of the store."""

    @wraps(method)
    async def run(store: Any, key: str, *arguments: Any, **options: Any) -> Any:
        async with store.guard(key):
            return await method(store, key, *arguments, **options)

    return cast(Method, run)


class _RemoteStore(FsspecStore):
    """An fsspec store whose errors name the problem and a remedy."""

    def __str__(self) -> str:
        return str(self.fs.unstrip_protocol(self.path))

    get = guarded(FsspecStore.get)
    set = guarded(FsspecStore.set)
    delete = guarded(FsspecStore.delete)
    delete_dir = guarded(FsspecStore.delete_dir)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        async with self.guard(prefix):
            listed = super().list_dir(prefix)
            names = [name async for name in listed]
        for name in names:
            yield name

    @asynccontextmanager
    async def guard(self, key: str) -> AsyncIterator[None]:
        """Limit the time of the block, and explain its errors."""
        seconds = _METADATA_TIMEOUT_S if key.endswith("zarr.json") else None
        with explained(str(self)):
            async with asyncio.timeout(seconds):
                yield


def open_store(location: RemoteLocation) -> FsspecStore:
    """Return the zarr store of a group, without any request."""
    file_system(location)
    return _RemoteStore.from_url(location.url, storage_options=file_of(location).options)


def file_system(location: RemoteLocation) -> tuple[Any, str]:
    """Return the fsspec file system of a location, for synchronous use, and the path in it."""
    return file_of(location).file_system()


@contextmanager
def explained(place: str) -> Iterator[None]:
    """Turn errors of a file system into a StorageError or MissingDataError about `place`."""
    try:
        yield
    except (NRBFNError, FileExistsError):
        raise
    except FileNotFoundError as error:
        raise MissingDataError(
            f"{place} cannot be used ({error}).", "Create the bucket, or give an existing bucket."
        ) from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".rstrip(".: ")
        if isinstance(error, TimeoutError):
            reason = f"no answer in {_METADATA_TIMEOUT_S} s"
        problem = f"{place} cannot be read or written ({reason})."
        remedy = f"Check the network, and the endpoint {_WHERE}, and try again."
        # Every cloud's library has its own error for missing credentials.
        if isinstance(error, PermissionError) or "credential" in reason.lower():
            problem = f"access to {place} is refused ({reason})."
            remedy = f"Check the credentials {_WHERE}, and their permissions."
        raise StorageError(problem, remedy) from error


def remove_tree(location: RemoteLocation) -> None:
    """Delete everything under a location."""
    fs, path = file_system(location)
    with explained(str(location)), suppress(FileNotFoundError):
        fs.rm(path, recursive=True)


def occupied(location: RemoteLocation) -> bool:
    """Return whether a location has content, other than the remains of a failed move."""
    fs, path = file_system(location)
    with explained(str(location)), suppress(FileNotFoundError):
        # Some tools store an object whose name ends in "/" for a folder.
        names = {str(name) for name in fs.ls(path, detail=False)} - {f"{path}/"}
        return bool(names) and f"{path}/{_MOVING}" not in names
    return False


def move_group(source: RemoteLocation, target: RemoteLocation) -> None:
    """Replace `target` with a complete group inside an object store.

    The root's zarr.json is removed first and copied last, so a partial group is never opened. If
    the move fails or the process dies, the new group is still complete at `source`, and `target` is
    marked as unused.
    """
    fs, old = file_system(source)
    _, new = file_system(target)
    names = [path.removeprefix(f"{old}/") for path in fs.find(old)]
    # Zarr 2 has other names.
    root = next(name for name in ("zarr.json", ".zgroup", ".zarray") if name in names)
    names.remove(root)
    try:
        fs.pipe_file(f"{new}/{_MOVING}", b"")
        with suppress(FileNotFoundError):
            fs.rm_file(f"{new}/{root}")
        replaced = [path for path in fs.find(new) if path != f"{new}/{_MOVING}"]
        if replaced:
            fs.rm(replaced)
        fs.copy([f"{old}/{name}" for name in names], [f"{new}/{name}" for name in names])
        fs.copy([f"{old}/{root}"], [f"{new}/{root}"])
        fs.rm_file(f"{new}/{_MOVING}")
    except Exception as error:
        raise NotMovedError(
            f"{target} could not be replaced ({type(error).__name__}: {error}).",
            f"The new group is complete at {source}: move it to {target}, or write it again.",
        ) from error
    remove_tree(source)
