"""Elementwise work on a block of rows: in strips that fit a core's cache, on several cores."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

T = TypeVar("T")

# Elements of a strip: 1 MiB of float64 stays in a core's cache, and its exponentials take ten times
# as long as handing them to a thread.
_STRIP_ELEMENTS = 2**17


def over_strips(step: Callable[[slice], T], shape: tuple[int, ...], threads: int) -> list[T]:
    """Return `step` of every strip of rows of an array of `shape`, in order.

    The strips depend on nothing but the number of columns, so results have the same bits with any
    number of threads. numpy's elementwise functions release the interpreter lock. When this raises
    what a step raised, no step is at work any more. A step must not call this itself.
    """
    n_rows, n_columns = shape
    size = max(1, _STRIP_ELEMENTS // n_columns)
    strips = [slice(a, min(a + size, n_rows)) for a in range(0, max(n_rows, 1), size)]
    if threads == 1 or len(strips) == 1:
        return [step(strip) for strip in strips]
    futures = [_pool(threads).submit(step, strip) for strip in strips]
    try:
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()
        wait(futures)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Return the threads that all blocks share: starting them takes as long as some strips."""
    return ThreadPoolExecutor(threads, thread_name_prefix="strips")


# A forked process has the pools but none of their threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
