"""Locks that let one job at a time write to a location, and that end with the job.

On a local file system the kernel holds the lock and releases it when the process ends for any
reason. Object stores have no locks: the job that began last keeps the location, and earlier jobs
stop before they record anything else.
"""

import fcntl
import logging
import os
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from dask_nrbfn.errors import RunBusyError, StorageError
from dask_nrbfn.outputs import disk_errors_named
from dask_nrbfn.storage.location import (
    Location,
    RemoteLocation,
    hidden_sibling,
    local_path,
    real_path,
    remote,
)
from dask_nrbfn.storage.remote import explained, file_system

logger = logging.getLogger(__name__)


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
    descriptor = _lock(path, target)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            # Somebody may have removed the file, and another job may have made a new one.
            if _is_still(path, descriptor):
                path.unlink(missing_ok=True)
            os.close(descriptor)


def _lock(path: Path, target: Path) -> int | None:
    """Return the descriptor of a locked file, None if the file system has no locks."""
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
            os.close(descriptor)
            path.unlink(missing_ok=True)
            return None
        if _is_still(path, descriptor):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, _holder().encode())
            return descriptor
        # The last holder removed the file before it was locked here.
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
