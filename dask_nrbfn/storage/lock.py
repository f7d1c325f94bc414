"""Locks that let one job at a time write to a location, and that end with the job.

On a local file system the kernel holds the lock and releases it when the process ends for any
reason. In an object store each job has a lease: an object that it renews.
"""

import json
import logging
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dask_nrbfn.errors import NRBFNError, ParameterError, RunBusyError
from dask_nrbfn.storage.location import Location, RemoteLocation, beside, local_path, remote
from dask_nrbfn.storage.remote import explained, file_system

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

# A job counts as dead after five failed renewals, or one that is late by as much. The clocks of
# machines that share a run may differ by up to the difference of both numbers.
_RENEWAL_S = 20
_EXPIRY_S = 120

# Jobs that start at the same moment see each other's lease. Each removes its own and retries.
_ATTEMPTS = 4
_LONGEST_PAUSE_S = 2.0

# Ids of the store objects that jobs of this process work on.
_busy_stores: set[int] = set()
_busy_stores_lock = threading.Lock()


@contextmanager
def locked_run(location: Location) -> Iterator[Callable[[], None]]:
    """Keep other jobs from writing to `location`, which need not exist yet.

    Raises RunBusyError if the lease expired and another job now writes to `location`. That can
    happen while a machine sleeps.
    """
    # Locks of the kernel and of this process cannot be lost.
    if (path := local_path(location)) is not None:
        with _locked_file(location, Path(os.path.realpath(path))):
            yield lambda: None
    elif (url := remote(location)) is not None:
        lease = _Lease(url)
        try:
            lease.acquire()
            yield lease.check
        finally:
            lease.release()
    else:
        with _reserved_store(location):
            yield lambda: None


@contextmanager
def _reserved_store(store: object) -> Iterator[None]:
    with _busy_stores_lock:
        if id(store) in _busy_stores:
            raise _busy(store, _holder(), "Wait until the other job is finished.")
        _busy_stores.add(id(store))
    try:
        yield
    finally:
        _busy_stores.discard(id(store))


@contextmanager
def _locked_file(location: Location, run: Path) -> Iterator[None]:
    # Not inside the run, whose directory must be empty or absent at the start.
    path = run.with_name(f".{run.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _lock(path, location)
    except PermissionError as error:
        raise ParameterError(
            f"the lock file {path} cannot be written ({error}).",
            "Give a path in a directory that you may write to.",
        ) from error
    try:
        yield
    finally:
        if descriptor is not None:
            # Somebody may have removed the file, and another job may have made a new one.
            if _is_still(path, descriptor):
                path.unlink(missing_ok=True)
            os.close(descriptor)


@contextmanager
def locked_directory(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Lock a directory while the block runs, at most until the process ends.

    Whether it is locked: False if another process has locked it, or the file system has no locks.
    """
    if fcntl is None:
        yield False
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError:
            yield False
        else:
            yield True
    finally:
        # A process that was forked in the meantime has the descriptor too.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _lock(path: Path, location: Location) -> int | None:
    """Return the descriptor of a locked file, None if the file system has no locks."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if fcntl is None:
                raise OSError("this system has no flock")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            remedy = "Wait until the other job is finished, or end it and start this job again."
            raise _busy(location, _read_holder(path), remedy) from error
        except OSError as error:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            logger.warning("cannot lock %s (%s): run only one job at a time there", location, error)
            return None
        if _is_still(path, descriptor):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, json.dumps(_holder()).encode())
            return descriptor
        # The last holder removed the file before it was locked here.
        os.close(descriptor)


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _read_holder(path: Path) -> dict[str, Any]:
    # A file that was just locked may still be empty.
    with suppress(OSError, ValueError, TypeError):
        return dict(json.loads(path.read_text()))
    return {}


class _Lease:
    """An object of this job beside the run, renewed by a thread until it is released.

    Two jobs never continue together: each writes its lease before it looks for others, and an
    object store lists every written object. Conditional writes, which some stores lack, are not
    needed.
    """

    def __init__(self, run: RemoteLocation) -> None:
        self._run = run
        self._fs, self._directory = file_system(beside(run, "lock"))
        self._path = f"{self._directory}/{uuid.uuid4().hex}.json"
        self._holder = _holder()
        self._lost = False
        self._ended = threading.Event()
        self._renewer = threading.Thread(target=self._keep, name="renew-lease", daemon=True)

    def acquire(self) -> None:
        """Write the lease, or raise RunBusyError."""
        for _ in range(_ATTEMPTS):
            if other := self._other():
                break
            self._write()
            if not (other := self._other()):
                self._renewer.start()
                return
            self._remove(self._path)
            time.sleep(random.uniform(0, _LONGEST_PAUSE_S))
        raise _busy(
            self._run,
            other,
            "Wait until the other job is finished. The lease of a dead job expires after "
            f"{_EXPIRY_S} s.",
        )

    def release(self) -> None:
        """Stop renewing and remove the lease."""
        self._ended.set()
        if self._renewer.is_alive():
            self._renewer.join()
        self._remove(self._path)

    def check(self) -> None:
        """Raise RunBusyError if another job took over."""
        if self._lost:
            raise RunBusyError(
                f"the lease on {self._run} was not renewed for {_EXPIRY_S} s, and another job now "
                f"writes to {self._run}.",
                "Wait until the other job is finished.",
            )

    def _other(self) -> dict[str, Any]:
        """Return the holder of another valid lease, else {}; remove invalid leases."""
        with explained(str(self._run)):
            for path in self._fs.find(self._directory):
                if path == self._path:
                    continue
                holder: dict[str, Any] = {}
                with suppress(FileNotFoundError, ValueError, TypeError):
                    holder = dict(json.loads(self._fs.cat_file(path)))
                if holder and not _is_dead(holder):
                    return holder
                self._remove(path)
        return {}

    def _keep(self) -> None:
        while not self._lost and not self._ended.wait(_RENEWAL_S):
            try:
                self._lost = not self._fs.exists(self._path)
                if not self._lost:
                    self._write()
            except Exception as error:
                # The next renewal may succeed. If none does, other jobs continue after the expiry.
                logger.warning("the lease on %s was not renewed: %s", self._run, error)

    def _write(self) -> None:
        content = json.dumps({**self._holder, "renewed": time.time()}).encode()
        with explained(str(self._run)):
            self._fs.pipe_file(self._path, content)

    def _remove(self, path: str) -> None:
        # A lease that cannot be removed expires.
        with suppress(NRBFNError), explained(str(self._run)):
            self._fs.rm_file(path)


def _holder() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": _machine(),
    }


def _machine() -> str | None:
    """Return an id of the namespace of process ids; containers can share a host name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _is_dead(holder: dict[str, Any]) -> bool:
    if time.time() - holder.get("renewed", 0) > _EXPIRY_S:
        return True
    if holder.get("machine") is None or holder["machine"] != _machine():
        return False
    try:
        os.kill(holder["pid"], 0)
    except (ProcessLookupError, PermissionError) as error:
        return isinstance(error, ProcessLookupError)
    return False


def _busy(place: object, holder: dict[str, Any], remedy: str) -> RunBusyError:
    who = "another job"
    if holder:
        who = f"process {holder.get('pid')} on {holder.get('host')}, since {holder.get('since')},"
    return RunBusyError(f"{who} works on {place}.", remedy)
