"""BLAS threads of this process, and steps that share them."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from threading import Lock
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

from dask_nrbfn.numeric.device import active_gpu

Value = TypeVar("Value")
Result = TypeVar("Result")

# BLAS threads belong to the process. If two tasks limited them, the first to end would lift the
# limit for both. One task already uses all cores.
_ONE_TASK = Lock()


def blas_threads(*, default: int = 1) -> int:
    """Return the number of BLAS threads of this process, `default` if it is unknown."""
    return max((pool["num_threads"] for pool in _blas().info()), default=default)


def side_by_side(
    step: Callable[[Value], Result], values: Sequence[Value], *, at_once: int
) -> list[Result]:
    """Return `step` of every value, in order, each computed with one BLAS thread.

    The results have the same bits for any `at_once`. Threads that share a small product wait for
    each other by spinning, which takes many times as long as the product if other processes are
    busy. If BLAS has one thread anyway, other tasks of the process run at the same time.
    """
    with _ONE_TASK:
        own = blas_threads()
        n_threads = min(own, at_once, len(values))
        # MKL and a BLAS on OpenMP have a number of threads for every thread that calls them.
        limit = partial(_blas().limit, limits=1)
        if n_threads > 1:
            with limit(), ThreadPoolExecutor(n_threads, "systems", initializer=limit) as pool:
                return list(pool.map(step, values))
        if own > 1:
            with limit():
                return [step(value) for value in values]
    return [step(value) for value in values]


# Bytes of the steps that run at the same time as the first.
_CONCURRENT_BYTES = 2**28


def concurrent_map(step_bytes: int) -> Callable[..., Iterable[Any]]:
    """Return `side_by_side` if the bytes of the steps allow it, else `map` with all threads.

    The steps of a task on a GPU run one after another, because only its own thread uses the GPU.
    """
    n_others = _CONCURRENT_BYTES // step_bytes
    if active_gpu() is not None or n_others == 0:
        return map
    return partial(side_by_side, at_once=1 + n_others)


def concurrent_bytes(n_steps: int, step_bytes: int) -> int:
    """Return the largest number of bytes of the steps that run at the same time as the first."""
    return min(_CONCURRENT_BYTES, (n_steps - 1) * step_bytes)


@cache
def _blas() -> ThreadpoolController:
    """Return the controller of the BLAS threads; finding it takes as long as a small system."""
    import scipy.linalg  # noqa: F401  numpy's and scipy's are listed once they are loaded

    return ThreadpoolController().select(user_api="blas")
