"""Undocumented names of other packages still do what `dask_nrbfn.private` says."""

import asyncio
import inspect
import threading
import time

import dask
import psutil
import pytest
from distributed import Client, LocalCluster, Status, system
from distributed.comm import connect
from zarr.core.sync import sync
from zarr.storage import LocalStore, MemoryStore

from dask_nrbfn.private import kill_workers, memory_limit, reach_scheduler, run_in_zarr
from tests.engine.processes import wait_until


def test_run_in_zarr__runs_in_one_thread_that_is_not_this():
    async def thread():
        return threading.current_thread()

    first, second = run_in_zarr(thread()), run_in_zarr(thread())
    assert first is second
    assert first is not threading.current_thread()


def test_run_in_zarr__shares_the_loop_that_stores_write_in(tmp_path):
    async def loop():
        return asyncio.get_running_loop()

    assert run_in_zarr(loop()) is sync(loop())
    assert run_in_zarr(MemoryStore().exists("zarr.json")) is False
    assert run_in_zarr(LocalStore(tmp_path).exists("zarr.json")) is False


def test_run_in_zarr__raises_what_the_coroutine_raises():
    async def fail():
        raise KeyError("name")

    with pytest.raises(KeyError, match="name"):
        run_in_zarr(fail())


def test_memory_limit__is_that_of_distributed():
    assert isinstance(system.MEMORY_LIMIT, int)
    assert memory_limit() == system.MEMORY_LIMIT > 2**28


def test_reach_scheduler__takes_a_time_limit_and_tells_that_nobody_answers():
    assert "timeout" in inspect.signature(connect).parameters
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "0.2s"}),
        pytest.raises(OSError, match=r"127\.0\.0\.1"),
    ):
        asyncio.run(reach_scheduler("tcp://127.0.0.1:1"))


def test_kill_workers__ends_them_at_once_and_for_good():
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        (nanny,) = cluster.workers.values()
        worker = psutil.Process(nanny.pid)
        with Client(cluster, set_as_default=False) as client:
            client.submit(time.sleep, 600)
            kill_workers(cluster)
            worker.wait(60)
            wait_until(lambda: nanny.status is Status.closed)
