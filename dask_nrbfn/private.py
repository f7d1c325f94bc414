"""All uses of undocumented parts of other packages; `tests/test_private.py` checks every name.

The imports are in the functions, because storage works without dask, and the command line starts
without zarr and dask.
"""

import multiprocessing
import os
import signal
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from distributed import LocalCluster

Result = TypeVar("Result")


def run_in_zarr(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a coroutine of a zarr store, run in zarr's own thread."""
    from zarr.core.sync import sync

    return sync(coroutine)


def memory_limit() -> int:
    """Return the bytes of memory that this process may use, by its cgroup and its limits."""
    from distributed.system import MEMORY_LIMIT

    return int(MEMORY_LIMIT)


def is_importing_script() -> bool:
    """Return whether this process of multiprocessing imports the script that started it."""
    return getattr(multiprocessing.current_process(), "_inheriting", False)


def kill_workers(cluster: "LocalCluster") -> None:
    """Kill the worker processes of a cluster, which starts no others in their place."""
    for nanny in cluster.workers.values():
        nanny.close_gracefully()
        if nanny.pid:
            os.kill(nanny.pid, signal.SIGKILL)


async def reach_scheduler(address: str) -> None:
    """Open a connection to a scheduler and close it, with the settings of dask's configuration.

    A Client that cannot connect is half open when it is garbage-collected. If another Client starts
    at that time, both wait for the same lock forever. So call this before making a Client.
    """
    from distributed import Security
    from distributed.comm import connect

    comm = await connect(address, **Security().get_connection_args("client"))
    await comm.close()
