"""Writes to local file systems that survive a crash or a power cut."""

import asyncio
import logging
import os
import shutil
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.store import ByteRequest
from zarr.storage import LocalStore

from dask_nrbfn.errors import DamagedDataError, ExistsError
from dask_nrbfn.outputs import place_new
from dask_nrbfn.private import run_in_zarr
from dask_nrbfn.storage.lock import locked_directory
from dask_nrbfn.storage.strict import METADATA_NAMES, guarded

logger = logging.getLogger(__name__)

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

    exists = guarded(LocalStore.exists)
    delete = guarded(LocalStore.delete)

    @guarded
    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Return a value, None if it is missing.

        Metadata is small: to hand it to another thread takes longer than to read it.
        """
        if key.endswith(METADATA_NAMES):
            return self.get_sync(key, prototype=prototype, byte_range=byte_range)
        return await super().get(key, prototype, byte_range)

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
    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Store a value if the key has none.

        zarr calls this for every group above a new one, and most of them exist.
        """
        if not (self.root / key).is_file():
            await super().set_if_not_exists(key, value)

    @guarded
    async def set(self, key: str, value: Buffer) -> None:
        """Store a value; top-level metadata is on the disk when this returns."""
        if not key.endswith(METADATA_NAMES):
            await super().set(key, value)
            return
        if key != "zarr.json":
            self.set_sync(key, value)
            return
        unfinished = f"{key}.{uuid.uuid4().hex}.partial"
        await asyncio.to_thread(_write_durably, self.root, unfinished, key, value.to_bytes())

    @asynccontextmanager
    async def guard(self, key: str) -> AsyncIterator[None]:
        """Raise DamagedDataError if a link on the path to a key leads out of the directory."""
        path = os.fspath(self.root)
        for name in key.split("/"):
            path = f"{path}/{name}"
            if os.path.islink(path) and not self._holds(path):
                raise DamagedDataError(
                    f"{path} is a link that leads out of {self.root}, to {os.path.realpath(path)}.",
                    "Replace the link by its target, or remove the link.",
                )
        yield

    def _holds(self, path: str) -> bool:
        root = os.path.realpath(self.root)
        return os.path.commonpath((root, os.path.realpath(path))) == root


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


def replace_path(new: Path, target: Path, check: Callable[[Path], None] | None = None) -> None:
    """Replace `target`, which may exist, with the file or directory `new`.

    An old directory is removed after the new name is on the disk, or put back after an error.

    check: called with the path of the old directory; raises an error if it must not be replaced.
    """
    if not new.is_dir():
        os.replace(new, target)
        _flush_directory(target.parent)
        return
    moved: list[Path] = []
    with ExitStack() as held:
        try:
            while not _exchanged(new, target, check, moved, held):
                # Another job has just put its group at `target`; replace that group too.
                pass
        except BaseException:
            _put_back(moved, target)
            raise
        _flush_directory(target.parent)
        for old in moved:
            shutil.rmtree(old)


def _exchanged(
    new: Path,
    target: Path,
    check: Callable[[Path], None] | None,
    moved: list[Path],
    held: ExitStack,
) -> bool:
    """Move `target` away, add its new path to `moved`, and rename `new` to `target`.

    Return whether `new` was renamed; if not, another job was faster.
    """
    old = target.with_name(f".{target.name}.{uuid.uuid4().hex}{MOVED}")
    # `target` is missing, or another job has just moved it away.
    with suppress(FileNotFoundError):
        # Other processes remove directories with the new name that are not locked.
        _lock_in_place(target, held)
        os.rename(target, old)
        moved.append(old)
    if old in moved and check is not None:
        # No other job can exchange the directory under this name.
        check(old)
    try:
        place_new(new, target)
    except ExistsError:
        return False
    return True


def _lock_in_place(target: Path, held: ExitStack) -> None:
    """Lock the directory at `target`; another job may exchange it before it is locked."""
    while True:
        with ExitStack() as lock:
            before = os.stat(target)
            lock.enter_context(locked_directory(target, wait=True))
            if os.path.samestat(before, os.stat(target)):
                held.push(lock.pop_all())
                return


def _put_back(moved: list[Path], target: Path) -> None:
    """Rename the path that was moved last back to `target`, and remove the earlier ones."""
    if not moved:
        return
    *earlier, last = moved
    try:
        place_new(last, target)
    except (ExistsError, OSError):
        # Later jobs would remove it under the name that it has now.
        with suppress(OSError):
            last = last.rename(last.with_suffix(".kept"))
        logger.warning("the old content of %s was moved to %s", target, last)
    for old in earlier:
        shutil.rmtree(old, ignore_errors=True)
