"""Directories of local file systems: kept on the disk, and replaced as a whole."""

import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path

from dask_nrbfn.outputs import place_new

MOVED = ".replaced"
"""Suffix of the hidden name of a directory that another replaces."""


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
    """Replace `target`, which may exist, with the complete file or directory `new`.

    If the process is killed in between, both directories have hidden names.
    """
    if not new.is_dir():
        os.replace(new, target)
        flush(target.parent)
        return
    old = target.with_name(f".{target.name}.{uuid.uuid4().hex}{MOVED}")
    with suppress(FileNotFoundError):
        os.rename(target, old)
    place_new(new, target)
    flush(target.parent)
    # Other jobs remove it too.
    shutil.rmtree(old, ignore_errors=True)
