"""How many threads a process computes with."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from threading import Lock
from typing import TypeVar

from dask.system import cpu_count
from threadpoolctl import ThreadpoolController, threadpool_info

Value = TypeVar("Value")
Result = TypeVar("Result")

# Threads of BLAS are the process's: of two tasks that limit them the first to end would give them
# back to both. All cores are at work for one task.
_ONE_TASK = Lock()


def available_threads() -> int:
    """Return the threads that a task in this process may use.

    No more than the cores that it may run on, by its affinity and its cgroup, and no more than BLAS
    and OpenMP were told to use: joblib tells its workers to share the cores.
    """
    cores = cpu_count()
    return min(cores, blas_threads(default=cores))


def threads_of_workers(n_workers: int) -> int:
    """Return the threads of each of so many worker processes that share this one's cores."""
    return max(1, cpu_count() // n_workers)


def blas_threads(*, default: int = 1) -> int:
    """Return the threads that BLAS uses in this process, `default` where it does not tell."""
    import numpy  # noqa: F401  BLAS is listed once numpy has loaded it

    return max((pool["num_threads"] for pool in threadpool_info()), default=default)


def side_by_side(
    step: Callable[[Value], Result], values: Sequence[Value], *, at_once: int
) -> list[Result]:
    """Return `step` of every value, in order, each computed with one BLAS thread.

    Parameters
    ----------
    step : callable
        Its products release the interpreter lock.
    values : sequence
    at_once : int
        Steps at the same time at most; no more than the threads that BLAS had.

    Notes
    -----
    The results have the same bits however many run at the same time. Threads that share a small
    product wait for each other by spinning: beside other busy processes that takes many times as
    long as the product. Where BLAS has one thread anyway, other tasks of the process go on beside
    this one.
    """
    with _ONE_TASK:
        own = max((pool["num_threads"] for pool in _blas().info()), default=1)
        n_threads = min(own, at_once, len(values))
        # MKL and a BLAS on OpenMP have a number of threads for every thread that calls them.
        limit = partial(_blas().limit, limits=1)
        if n_threads > 1:
            with limit(), ThreadPoolExecutor(n_threads, "systems", initializer=limit) as pool:
                return list(pool.map(step, values))
        if own > 1:
            with limit():
                return list(map(step, values))
    return list(map(step, values))


@cache
def _blas() -> ThreadpoolController:
    """Return what sets the threads of BLAS: looking for it takes as long as a small system."""
    import scipy.linalg  # noqa: F401  numpy's and scipy's are listed once they are loaded

    return ThreadpoolController().select(user_api="blas")
