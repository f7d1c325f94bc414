"""Output files: written as a whole, outside every Zarr group, replaced only on request.

The last step renames the finished file, which is atomic. If two jobs write to the same new name,
the second job gets an error.
"""

import errno
import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dask_nrbfn.errors import ExistsError, NRBFNError, ParameterError, StorageError

# Files that mark a directory as part of a Zarr hierarchy, in version 3 and 2.
_ZARR_NAMES = ("zarr.json", ".zgroup", ".zarray")

# An empty file fits on a full disk, one block does not.
_PROBE_BYTES = 4096


def check_output_file(path: str | os.PathLike[str], *, overwrite: bool) -> Path:
    """Return the path of an output file, links followed, and make its directory."""
    text = os.fspath(path).removeprefix("file://")
    if "://" in text:
        raise ParameterError(f"{path} is not a local file.", "Give a path on this machine.")
    text = os.path.expanduser(text)
    target = Path(os.path.realpath(text))
    with disk_errors_named(path):
        check_path_outside_groups(text)
        if os.path.lexists(target) and not target.is_file():
            raise ExistsError(f"{path} exists, but is not a file.", "Give the name of a file.")
        if target.exists() and not overwrite:
            raise ExistsError(
                f"{path} already exists.",
                "Give another path, or set `overwrite` to replace the file.",
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=target.parent) as probe:
            probe.write(bytes(_PROBE_BYTES))
    return target


def check_path_outside_groups(path: str | os.PathLike[str]) -> None:
    """Raise ParameterError if a local path, links followed, is inside a Zarr group or array."""
    for parent in Path(os.path.realpath(path)).parents:
        if any(os.path.lexists(parent / name) for name in _ZARR_NAMES):
            raise ParameterError(
                f"{path} is inside the Zarr group {parent}.", "Give a path outside the group."
            )


def check_not_input(out: object, inputs: Iterable[object]) -> None:
    """Raise ParameterError if an output is, contains or is inside an input; links are followed."""
    target = _resolved(out)
    for place in inputs:
        source = _resolved(place)
        both_exist = os.path.exists(source) and os.path.exists(target)
        if source == target or (both_exist and os.path.samefile(source, target)):
            relation = "is"
        elif target in source.parents:
            relation = "contains"
        elif source in target.parents:
            relation = "is inside"
        else:
            continue
        raise ParameterError(
            f"the output {out} {relation} the input {place}.", "Give another path for the output."
        )


def _resolved(place: object) -> Path:
    """Return a path with links followed; the names of a URL as a relative path."""
    text = os.path.expanduser(str(place).removeprefix("file://"))
    return Path(os.path.normpath(text) if "://" in text else os.path.realpath(text))


@contextmanager
def new_file(path: str | os.PathLike[str], *, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary path, which is renamed to `path` when the block succeeds."""
    target = check_output_file(path, overwrite=overwrite)
    # dask and other writers choose a format by the suffix.
    name = f".{target.name}.{uuid.uuid4().hex[:8]}.unfinished{target.suffix}"
    unfinished = target.with_name(name)
    try:
        with disk_errors_named(path, full_only=True):
            yield unfinished
        with disk_errors_named(path):
            if overwrite:
                os.replace(unfinished, target)
            else:
                place_new(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


def place_new(new: Path, target: Path) -> None:
    """Rename a file or directory without replacing anything but an empty directory."""
    try:
        if os.path.lexists(target) and not new.is_dir():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        # The system refuses to rename a directory to a file or to a directory with entries.
        os.rename(new, target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
        raise ExistsError(
            f"{target} exists: another job wrote it during this one.", "Give another path."
        ) from error


@contextmanager
def disk_errors_named(place: object, *, full_only: bool = False) -> Iterator[None]:
    """Turn OSError into a StorageError about `place`; with `full_only` only that of a full disk."""
    try:
        yield
    except NRBFNError:
        raise
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if full_only and not is_full:
            raise
        fault, remedy = "cannot be written", "Give a path in a directory that you may write to."
        if is_full:
            fault, remedy = "does not fit on the disk", "Free disk space, or write to another disk."
        raise StorageError(f"{place} {fault} ({error.strerror or error}).", remedy) from error
