"""Object stores through fsspec: readable errors, no caches, and groups that move as a whole."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import wraps
from typing import Any, TypeVar, cast

from fsspec.core import url_to_fs
from zarr.storage import FsspecStore

from dask_nrbfn.errors import MissingDataError, NRBFNError, ParameterError, StorageError
from dask_nrbfn.storage.location import RemoteLocation

# Metadata has a few kilobytes and is read first. File systems may retry for minutes if a server
# accepts connections and never answers: s3fs for 6, gcsfs for more.
_METADATA_TIMEOUT_S = 30

# This process must see what others write, such as the parts of a run.
_OPTIONS: dict[str, Any] = {"use_listings_cache": False}

# Object below a location while a group is moved to it; the object stays if the move fails.
_MOVING = ".dask_nrbfn.moving"

Method = TypeVar("Method", bound=Callable[..., Any])


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
            names = []
            async for name in super().list_dir(prefix):
                names.append(name)
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
    return _RemoteStore.from_url(
        location.url, storage_options={**_OPTIONS, **location.storage_options}
    )


def file_system(location: RemoteLocation) -> tuple[Any, str]:
    """Return the fsspec file system of a location, for synchronous use, and the path in it."""
    try:
        fs, path = url_to_fs(location.url, **{**_OPTIONS, **location.storage_options})
    except ImportError as error:
        raise ParameterError(
            f"{location} needs a package that is not installed ({error}).",
            "Install dask-nrbfn[s3] for s3:// or dask-nrbfn[gcs] for gs://.",
        ) from error
    except (TypeError, ValueError) as error:
        raise ParameterError(
            f"{location} cannot be opened with these storage options ({error}).",
            "Check the URL's protocol and the arguments of its fsspec file system.",
        ) from error
    return fs, path


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
        remedy = "Check the network, the endpoint and the storage options, and try again."
        # Every cloud's library has its own error for missing credentials.
        if isinstance(error, PermissionError) or "credential" in reason.lower():
            problem = f"access to {place} is refused ({reason})."
            remedy = "Check the credentials, their permissions and the storage options."
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
        if replaced := [path for path in fs.find(new) if path != f"{new}/{_MOVING}"]:
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
