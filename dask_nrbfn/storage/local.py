"""Writes to local file systems that survive a crash or a power cut."""

import asyncio
import os
import shutil
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from zarr.abc.buffer import Buffer
from zarr.storage import LocalStore

from dask_nrbfn.errors import DamagedDataError
from dask_nrbfn.outputs import place_new
from dask_nrbfn.private import run_in_zarr
from dask_nrbfn.storage.strict import guarded

MOVED = ".replaced"
"""Suffix of the hidden name of a directory that another replaces."""

# Name of the tasks that wait for all others; they do not wait for each other.
_WAITING = "finish_writes"


class DurableStore(LocalStore):
    """A directory whose top-level metadata is replaced as a whole and flushed to the disk.

    zarr writes a file beside the target and renames it, but does not flush either. That suffices
    for everything below the top level: damaged results are computed again, and other data is
    flushed by `flush_tree` before the metadata refers to it.

    Links that lead out of the directory are not followed. Otherwise the author of the data could
    choose which files of the reader are read or replaced.
    """

    get = guarded(LocalStore.get)
    exists = guarded(LocalStore.exists)
    delete = guarded(LocalStore.delete)
    set_if_not_exists = guarded(LocalStore.set_if_not_exists)

    @guarded
    async def delete_dir(self, prefix: str) -> None:
        """Remove a directory with its content, even while another task removes it too."""
        while True:
            with suppress(FileNotFoundError):
                return await super().delete_dir(prefix)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Yield the names in a directory."""
        async with self.guard(prefix):
            names = super().list_dir(prefix)
        async for name in names:
            yield name

    @guarded
    async def set(self, key: str, value: Buffer) -> None:
        """Store a value; top-level metadata is on the disk when this returns."""
        if key != "zarr.json":
            await super().set(key, value)
            return
        unfinished = f"{key}.{uuid.uuid4().hex}.partial"
        await asyncio.to_thread(_write_durably, self.root, unfinished, key, value.to_bytes())

    @asynccontextmanager
    async def guard(self, key: str) -> AsyncIterator[None]:
        """Raise DamagedDataError if a link on the path to a key leads out of the directory."""
        path, root = os.fspath(self.root), os.path.realpath(self.root)
        for name in key.split("/"):
            path = f"{path}/{name}"
            if not os.path.islink(path):
                continue
            target = os.path.realpath(path)
            if os.path.commonpath((root, target)) != root:
                raise DamagedDataError(
                    f"{path} is a link that leads out of {self.root}, to {target}.",
                    "Replace the link by its target, or remove the link.",
                )
        yield


def _write_durably(directory: Path, unfinished_name: str, name: str, content: bytes) -> None:
    """Write a file under another name, flush it, rename it, and flush its directory."""
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = directory / unfinished_name
    try:
        unfinished.write_bytes(content)
        _flush(unfinished)
        os.replace(unfinished, directory / name)
    finally:
        unfinished.unlink(missing_ok=True)
    _flush_directory(directory)


def finish_writes() -> None:
    """Wait until zarr has finished the writes in its own thread.

    After an interruption, such as a signal, zarr could otherwise create a directory again that was
    just removed.
    """
    run_in_zarr(_wait_for_others())


async def _wait_for_others() -> None:
    own = asyncio.current_task()
    assert own is not None
    own.set_name(_WAITING)
    others = {task for task in asyncio.all_tasks() if task.get_name() != _WAITING}
    if others:
        await asyncio.wait(others)


def flush_tree(directory: Path) -> None:
    """Wait until a directory and everything below it is on the disk."""
    for inner, _, names in os.walk(directory):
        for name in names:
            # A task that runs twice may still write and rename files.
            with suppress(FileNotFoundError):
                _flush(Path(inner, name))
        _flush_directory(Path(inner))


def _flush_directory(path: Path) -> None:
    """Wait until the names in a directory are on the disk, where the file system can do that."""
    with suppress(OSError):
        _flush(path)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def place_path(new: Path, target: Path) -> None:
    """Rename a file or directory to a free name."""
    place_new(new, target)
    _flush_directory(target.parent)


def replace_path(new: Path, target: Path) -> None:
    """Replace `target`, which may exist, with the complete file or directory `new`.

    If the process is killed in between, both directories have hidden names.
    """
    if not new.is_dir():
        os.replace(new, target)
        _flush_directory(target.parent)
        return
    old = target.with_name(f".{target.name}.{uuid.uuid4().hex}{MOVED}")
    with suppress(FileNotFoundError):
        os.rename(target, old)
    place_path(new, target)
    # Other jobs remove it too.
    shutil.rmtree(old, ignore_errors=True)
