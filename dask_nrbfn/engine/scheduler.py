"""The scheduler of a cluster: its address, connections to it, and the error if it is gone."""

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from distributed import Client, Security

from dask_nrbfn.errors import ClusterError
from dask_nrbfn.private import reach_scheduler


@contextmanager
def open_client(address: str, security: Security | None = None) -> Iterator[Client]:
    """Yield a client of a scheduler, which does not become dask's default client.

    Parameters
    ----------
    address : str
    security : distributed.Security, optional
        Default: the TLS settings of dask's configuration.

    Yields
    ------
    distributed.Client

    Raises
    ------
    OSError, RuntimeError, ValueError, TypeError, AssertionError
        If no scheduler answers at the address, or it is not an address.
    """
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, reach_scheduler(address, security)).result()
    client = Client(address, security=security, set_as_default=False)
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
