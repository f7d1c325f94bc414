"""Undocumented names of other packages still do what `dask_nrbfn.private` says."""

import asyncio
import inspect
import time

import dask
import psutil
import pytest
from distributed import Client, LocalCluster, Status
from distributed.comm import connect
from zarr.core.sync import sync
from zarr.storage import LocalStore, MemoryStore

from dask_nrbfn.private import kill_workers, reach_scheduler, run_in_zarr
from tests.engine.processes import wait_until


def test_run_in_zarr__shares_the_loop_that_stores_write_in(tmp_path):
    async def loop():
        return asyncio.get_running_loop()

    assert run_in_zarr(loop()) is sync(loop())
    assert run_in_zarr(MemoryStore().exists("zarr.json")) is False
    assert run_in_zarr(LocalStore(tmp_path).exists("zarr.json")) is False


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
