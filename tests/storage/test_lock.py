"""One job at a time on a run: with second processes that live, are killed, or stop renewing."""

import json
import logging
import os
import subprocess
import sys
import threading
import time
import uuid
from types import SimpleNamespace

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore, MemoryStore

from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.errors import ParameterError, RunBusyError
from dask_nrbfn.params import FitParams
from dask_nrbfn.storage import lock
from dask_nrbfn.storage.location import RemoteLocation
from dask_nrbfn.storage.lock import locked_run
from dask_nrbfn.storage.remote import file_system
from dask_nrbfn.storage.run import Run
from tests.engine.processes import wait_until
from tests.storage.written import table, write_dataset
from tests.tables import spirals, write_table

HOLD = """
import sys, time
from dask_nrbfn.storage.lock import locked_run
with locked_run(sys.argv[1]):
    print("locked", flush=True)
    time.sleep(100)
"""


@pytest.fixture(params=["path", "store of a path", "memory store", "url"])
def place(request, tmp_path):
    return {
        "path": tmp_path / "run",
        "store of a path": LocalStore(tmp_path / "run"),
        "memory store": MemoryStore(),
        "url": f"memory://lock-{uuid.uuid4().hex}/run",
    }[request.param]


@pytest.fixture
def url():
    return RemoteLocation(f"memory://lock-{uuid.uuid4().hex}/run", {})


def refuse(place):
    with pytest.raises(RunBusyError) as caught, locked_run(place):
        pytest.fail("two jobs on one run")
    return caught.value


def hold(place):
    """Start a process that works on a run until it is killed."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(place)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "locked\n"
    return holder


def kill(holder):
    holder.kill()
    holder.communicate()


def leases(url):
    fs, path = file_system(RemoteLocation(f"{url}".replace("/run", "/.run.lock")))
    return {name: json.loads(fs.cat_file(name)) for name in fs.find(path)}


def write_lease(url, **holder):
    fs, path = file_system(RemoteLocation(f"{url}".replace("/run", "/.run.lock")))
    fs.pipe_file(f"{path}/other.json", json.dumps(holder).encode())


def test_locked_run__second_is_refused_until_the_first_is_done(place):
    with locked_run(place):
        error = refuse(place)
        assert f"process {os.getpid()} on " in error.problem
        assert "Wait until the other job is finished" in error.remedy
    with locked_run(place):
        pass


def test_locked_run__ends_with_an_error(place):
    with pytest.raises(ZeroDivisionError), locked_run(place):
        _ = 1 / 0
    with locked_run(place):
        pass


def test_locked_run__leaves_nothing(tmp_path, url):
    for place in (tmp_path / "a" / "run", url):
        with locked_run(place):
            pass
    assert list((tmp_path / "a").iterdir()) == []
    assert leases(url) == {}


def test_locked_run__of_a_process_that_is_killed(tmp_path):
    holder = hold(tmp_path / "run")
    try:
        error = refuse(tmp_path / "run")
        assert f"process {holder.pid} on " in error.problem
        assert ", since 20" in error.problem
        assert f"works on {tmp_path}/run" in error.problem
    finally:
        kill(holder)
    with locked_run(tmp_path / "run"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_locked_run__one_run_by_any_name(tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "runs/run")
    with locked_run(tmp_path / "link"):
        refuse(f"file://{tmp_path}/runs/run")
        refuse(tmp_path / "runs/../runs/run")


def test_locked_run__a_directory_that_cannot_be_written(tmp_path, monkeypatch):
    # The tests may run as root, who may write anywhere.
    def refuse_opening(path, *arguments):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(lock.os, "open", refuse_opening)
    with pytest.raises(ParameterError, match=r"lock file .*\.run\.lock cannot") as caught:
        locked_run(tmp_path / "run").__enter__()
    assert "directory that you may write to" in caught.value.remedy


def test_locked_run__a_file_system_without_locks_warns(tmp_path, monkeypatch, caplog):
    def refuse_locking(descriptor, operation):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(lock.fcntl, "flock", refuse_locking)
    with caplog.at_level(logging.WARNING), locked_run(tmp_path / "run"):
        pass
    assert "run only one job at a time there" in caplog.text


def test_lease__is_renewed_and_keeps_others_out(url, monkeypatch):
    now = [time.time()]
    monkeypatch.setattr(lock, "time", SimpleNamespace(time=lambda: now[0], sleep=time.sleep))
    monkeypatch.setattr(lock, "_RENEWAL_S", 0.01)
    with locked_run(url) as check:
        for _ in range(5):
            now[0] += lock._EXPIRY_S / 2
            wait_until(lambda: next(iter(leases(url).values()))["renewed"] == now[0])
            refuse(url)
        check()
    assert leases(url) == {}


def test_lease__of_another_machine_expires(url, monkeypatch):
    holder = {"host": "elsewhere", "pid": 1, "since": "2026-01-01", "machine": "other"}
    write_lease(url, **holder, renewed=time.time() - lock._EXPIRY_S + 10)
    error = refuse(url)
    assert "process 1 on elsewhere, since 2026-01-01, works on" in error.problem
    assert "expires after 120 s" in error.remedy
    write_lease(url, **holder, renewed=time.time() - lock._EXPIRY_S - 1)
    with locked_run(url):
        assert len(leases(url)) == 1


def test_lease__of_a_dead_process_of_this_machine(url):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    write_lease(url, **lock._holder() | {"pid": ended.pid}, renewed=time.time())
    if lock._machine() is None:
        refuse(url)
    else:
        with locked_run(url):
            pass


def is_lost(check):
    try:
        check()
    except RunBusyError:
        return True
    return False


def test_lease__taken_over_while_the_machine_slept(url, monkeypatch):
    monkeypatch.setattr(lock, "_RENEWAL_S", 0.05)
    with locked_run(url) as check:
        check()
        fs, path = file_system(RemoteLocation(f"{url}".replace("/run", "/.run.lock")))
        fs.rm(path, recursive=True)
        write_lease(url, renewed=time.time())
        wait_until(lambda: is_lost(check))
        with pytest.raises(RunBusyError, match="another job now writes to"):
            check()
    # The lease of the other job is its own.
    assert len(leases(url)) == 1


def test_lease__jobs_of_the_same_moment(url, monkeypatch):
    monkeypatch.setattr(lock, "_LONGEST_PAUSE_S", 0.05)
    inside, most = [], []

    def work():
        try:
            with locked_run(url):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.02)
                inside.pop()
        except RunBusyError:
            pass

    for _ in range(10):
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert set(most) == {1}


# The fit


def test_fit__is_refused_while_another_job_works_on_the_run(tmp_path):
    dataset = write_table(tmp_path / "data", *spirals(80))
    params = FitParams(alpha=1e-4, n_neighbors=5, n_parts=2)
    holder = hold(tmp_path / "run")
    try:
        with pytest.raises(RunBusyError):
            fit_dataset(dataset, tmp_path / "run", params, InlineEngine())
        assert not (tmp_path / "run").exists()
    finally:
        kill(holder)
    run = fit_dataset(dataset, tmp_path / "run", params, InlineEngine())
    assert "model" in run.stages
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "run"]


def test_lock__does_not_keep_readers_out(tmp_path):
    dataset = write_dataset(tmp_path / "data", table(9), np.arange(9) % 2)
    run = Run.start(tmp_path / "run", dataset, FitParams(), {})
    with locked_run(run.location):
        assert Run.open(run.location).run_id == run.run_id
        assert list(zarr.open_group(run.location, mode="r").members()) == []
