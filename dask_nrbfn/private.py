"""All uses of undocumented parts of other packages; `tests/test_private.py` checks every name.

The imports are in the functions, because storage works without dask, and the command line starts
without zarr and dask.
"""

import math
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from distributed import Security
    from numpy.typing import NDArray

Result = TypeVar("Result")


def run_in_zarr(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a coroutine of a zarr store, run in zarr's own thread."""
    from zarr.core.sync import sync

    return sync(coroutine)


def nearest_places(
    rows: "NDArray[Any]", targets: "NDArray[Any]", count: int, *, chunk_rows: int
) -> "NDArray[np.int64]":
    """Return the rows that are nearest to each target.

    If there are few targets, scikit-learn's public search divides the rows between threads. Then
    the number of threads decides which of several rows at the same distance are found. Here each
    thread compares some targets with all rows.

    Parameters
    ----------
    rows : float (n, p)
    targets : float (b, p)
        At least one.
    count : int
        At most n.
    chunk_rows : int
        Number of rows, and of targets, that a thread compares at a time.

    Returns
    -------
    int64 (b, count)
        Places in `rows`, nearest first.
    """
    import numpy as np

    # Two threads that begin to import different parts of scikit-learn at once can fail.
    import sklearn.metrics  # noqa: F401
    from sklearn.metrics._pairwise_distances_reduction import ArgKmin
    from sklearn.metrics.pairwise import check_pairwise_arrays

    targets, rows = check_pairwise_arrays(targets, rows)
    found: NDArray[np.int64] = ArgKmin.compute(
        np.ascontiguousarray(targets),
        np.ascontiguousarray(rows),
        count,
        chunk_size=chunk_rows,
        metric="euclidean",
        strategy="parallel_on_X",
    )
    return found


def memory_limit() -> int:
    """Return the bytes of memory that this process may use, by its cgroup and its limits."""
    from distributed.system import MEMORY_LIMIT

    return int(MEMORY_LIMIT)


async def reach_scheduler(
    address: str, security: "Security | None" = None, timeout_s: float = math.inf
) -> None:
    """Open a connection to a scheduler and close it.

    Parameters
    ----------
    address : str
    security : distributed.Security, optional
        Default: the TLS settings of dask's configuration.
    timeout_s : float
        Seconds after which to give up, if dask's own time limit is longer.

    Notes
    -----
    A Client that cannot connect is half open when it is garbage-collected. If another Client starts
    at that time, both wait for the same lock forever. So call this before making a Client.
    """
    import dask
    from dask.utils import parse_timedelta
    from distributed import Security
    from distributed.comm import connect

    own_s = parse_timedelta(dask.config.get("distributed.comm.timeouts.connect"))
    arguments = (security or Security()).get_connection_args("client")
    comm = await connect(address, timeout=min(own_s, timeout_s), **arguments)
    await comm.close()
