"""Local file systems: what a crash or a power cut must not tear apart."""

import asyncio
import logging
import os
import shutil
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from zarr.abc.buffer import Buffer
from zarr.storage import LocalStore

from dask_nrbfn.errors import DamagedDataError, ExistsError
from dask_nrbfn.outputs import place_new
from dask_nrbfn.private import run_in_zarr
from dask_nrbfn.storage.strict import guarded

logger = logging.getLogger(__name__)

# Tasks that wait for all others do not wait for each other.
_WAITING = "finish_writes"


class DurableStore(LocalStore):
    """A directory whose own record is on the disk, old or new as a whole, once it is written.

    zarr writes a file beside and renames it, but leaves it to the system when either reaches the
    disk. All below is left at that: most of it is computed again when it turns out to be damaged,
    and what could not be is flushed as a whole, by `flush_tree`, before the record names it.

    A link inside that leads out of the directory is followed neither for reading nor for writing:
    whoever made the data would choose which of the reader's files are read or replaced.
    """

    get = guarded(LocalStore.get)
    exists = guarded(LocalStore.exists)
    set_if_not_exists = guarded(LocalStore.set_if_not_exists)
    delete = guarded(LocalStore.delete)

    @guarded
    async def delete_dir(self, prefix: str) -> None:
        """Remove a directory and what is in it, also if another task does so too."""
        while True:
            with suppress(FileNotFoundError):
                return await super().delete_dir(prefix)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Give the names in a directory."""
        async with self.guard(prefix):
            names = super().list_dir(prefix)
        async for name in names:
            yield name

    @guarded
    async def set(self, key: str, value: Buffer) -> None:
        """Store a value; the metadata at the top so that it is on the disk when this returns."""
        if key != "zarr.json":
            await super().set(key, value)
            return
        unfinished = f"{key}.{uuid.uuid4().hex}.partial"
        await super().set(unfinished, value)
        await asyncio.to_thread(_publish, self.root / unfinished, self.root / key)

    @asynccontextmanager
    async def guard(self, key: str) -> AsyncIterator[None]:
        """Raise DamagedDataError if a link leads out of the directory on the way to a key."""
        path = os.fspath(self.root)
        for name in key.split("/"):
            path = f"{path}/{name}"
            if os.path.islink(path) and not self._holds(path):
                raise DamagedDataError(
                    f"{path} is a link that leads out of {self.root}, to {os.path.realpath(path)}.",
                    "Put what it leads to in its place if it belongs there, or remove it.",
                )
        yield

    def _holds(self, path: str) -> bool:
        root = os.path.realpath(self.root)
        return os.path.commonpath((root, os.path.realpath(path))) == root


def _publish(unfinished: Path, target: Path) -> None:
    """Rename a file, flushed before and its directory after."""
    try:
        _flush(unfinished)
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)
    _flush_directory(target.parent)


def finish_writes() -> None:
    """Wait until zarr has written what it began to: it does so in a thread of its own.

    Whoever is interrupted while it waits for zarr, as by a signal, would else remove a directory
    that zarr makes again.
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
            # A task that runs twice may be writing still, and renames what it writes.
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
    """Give the file or directory `new` the name `target`, where nothing is.

    Parameters
    ----------
    new, target : Path

    Raises
    ------
    ExistsError
        If something is there.
    """
    place_new(new, target)
    _flush_directory(target.parent)


def replace_path(new: Path, target: Path, check: Callable[[Path], None] | None = None) -> None:
    """Put the file or directory `new` in the place of `target`, which may exist.

    An old directory is removed when the new one's name is on the disk; it is put back if anything
    goes wrong before. `check` raises an error if what is at a path must not be replaced.

    Parameters
    ----------
    new, target : Path
    check : callable, optional
        Gets the path of what is about to be replaced.
    """
    if not new.is_dir():
        os.replace(new, target)
        _flush_directory(target.parent)
        return
    moved: list[Path] = []
    try:
        while not _exchanged(new, target, check, moved):
            # Another job has put its own there meanwhile, which is replaced like the old one.
            pass
    except BaseException:
        _put_back(moved, target)
        raise
    _flush_directory(target.parent)
    for old in moved:
        shutil.rmtree(old)


def _exchanged(
    new: Path, target: Path, check: Callable[[Path], None] | None, moved: list[Path]
) -> bool:
    """Move away what is at `target`, add it to `moved`, and put `new` there if nothing came."""
    old = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.replaced")
    # Nothing may be there, or another job that replaces it has just moved it away.
    with suppress(FileNotFoundError):
        os.rename(target, old)
        moved.append(old)
    if old in moved and check is not None:
        # Here no other job can exchange it.
        check(old)
    try:
        place_new(new, target)
    except ExistsError:
        return False
    return True


def _put_back(moved: list[Path], target: Path) -> None:
    """Give what was moved away last its name again, and remove what was there before it."""
    if not moved:
        return
    *earlier, last = moved
    try:
        place_new(last, target)
    except (ExistsError, OSError):
        logger.warning("what was at %s is in %s now", target, last)
    for old in earlier:
        shutil.rmtree(old, ignore_errors=True)
