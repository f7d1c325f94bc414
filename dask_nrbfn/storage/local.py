"""Local file systems: what a crash or a power cut must not tear apart."""

import asyncio
import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path

from zarr.core.buffer import Buffer
from zarr.storage import LocalStore


class DurableStore(LocalStore):
    """A directory whose own record is on the disk, old or new as a whole, once it is written.

    zarr writes a file beside and renames it, but leaves it to the system when either reaches the
    disk. All below is left at that: most of it is computed again when it turns out to be damaged,
    and what could not be is flushed as a whole, by `flush_tree`, before the record names it.
    """

    async def set(self, key: str, value: Buffer) -> None:
        """Store a value; the metadata at the top so that it is on the disk when this returns."""
        if key != "zarr.json":
            await super().set(key, value)
            return
        unfinished = f"{key}.{uuid.uuid4().hex}.partial"
        await super().set(unfinished, value)
        await asyncio.to_thread(_publish, self.root / unfinished, self.root / key)


def _publish(unfinished: Path, target: Path) -> None:
    """Rename a file, flushed before and its directory after."""
    try:
        _flush(unfinished)
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)
    _flush_directory(target.parent)


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


def replace_path(new: Path, target: Path) -> None:
    """Put the file or directory `new` in the place of `target`, which may exist.

    An old directory is removed when the new one's name is on the disk.
    """
    if not target.is_dir():
        os.replace(new, target)
        _flush_directory(target.parent)
        return
    old = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.replaced")
    os.rename(target, old)
    try:
        os.rename(new, target)
    except OSError:
        os.rename(old, target)
        raise
    _flush_directory(target.parent)
    shutil.rmtree(old)


def is_group(directory: Path) -> bool:
    """Return whether a local directory is a Zarr group, if perhaps a damaged one."""
    try:
        return '"node_type": "array"' not in (directory / "zarr.json").read_text(errors="replace")
    except OSError:
        return False
