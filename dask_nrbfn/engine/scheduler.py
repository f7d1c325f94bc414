"""The scheduler of a cluster: its address, connections to it, and the error if it is gone."""

import asyncio
import logging
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from distributed import Client

from dask_nrbfn.errors import ClusterError
from dask_nrbfn.private import reach_scheduler


@contextmanager
def open_client(address: str) -> Iterator[Client]:
    """Yield a client of a scheduler, which does not become dask's default client."""
    _run(reach_scheduler(address))
    client = Client(address, set_as_default=False)
    its_logger = logging.getLogger("distributed.client")
    before = its_logger.disabled
    try:
        yield client
    finally:
        # A client that has lost its scheduler tries to connect again, and would log a traceback.
        its_logger.disabled = before or client.status != "running"
        try:
            client.close()
        finally:
            its_logger.disabled = before


def _run(coroutine: Coroutine[None, None, None]) -> None:
    """Run a coroutine in a thread; an interrupt of the caller does not wait for the thread."""
    done: Future[None] = Future()

    def run() -> None:
        try:
            done.set_result(asyncio.run(coroutine))
        except Exception as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    done.result()


def scheduler_address(client: Client) -> str:
    """Return the address of the scheduler of a connected client."""
    assert client.scheduler is not None
    return str(client.scheduler.address)


def scheduler_lost(address: str) -> ClusterError:
    """Return the error for a scheduler that is gone."""
    return ClusterError(
        f"the connection to the scheduler {address} is lost.",
        "Start the scheduler and the job again: finished parts are kept.",
    )
