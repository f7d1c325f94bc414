"""Threads that a task may use, and steps that share them.

Threads of BLAS wait for each other by spinning. If other processes are busy, a product by two of
them takes up to ten times as long as by two Python threads with one BLAS thread each. So BLAS has
one thread while a task runs, and the steps of the task run side by side in Python threads.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from threading import Lock
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

from dask_nrbfn.numeric.device import active_gpu

Value = TypeVar("Value")
Result = TypeVar("Result")

# Set in the blocks of `task_threads`, where BLAS is limited: the threads of the block, and of the
# outermost block of the task, whose pool all steps share.
_given: ContextVar[int | None] = ContextVar("threads", default=None)
_whole: ContextVar[int | None] = ContextVar("whole", default=None)


def n_threads(*, default: int = 1) -> int:
    """Return the number of threads that this thread may use.

    That is the number given to `task_threads`, or else the number of BLAS threads of the process
    from outside of tasks, `default` if it is unknown.
    """
    given = _given.get()
    return _LIMIT.outside(default) if given is None else given


@contextmanager
def task_threads(threads: int | None = None) -> Iterator[None]:
    """Limit BLAS to one thread in the block, whose steps share `threads`; None: `n_threads`."""
    number = n_threads() if threads is None else threads
    before = _given.set(number), _whole.set(number)
    _LIMIT.begin()
    try:
        yield
    finally:
        _LIMIT.end()
        _given.reset(before[0])
        _whole.reset(before[1])


def on_threads(threads: int | None, task: Callable[..., Result], *arguments: Any) -> Result:
    """Return ``task(*arguments)``, computed on `task_threads`."""
    with task_threads(threads):
        return task(*arguments)


def side_by_side(
    step: Callable[[Value], Result], values: Sequence[Value], *, at_once: int | None = None
) -> list[Result]:
    """Return `step` of every value, in order, computed by at most `at_once` threads of the task.

    Each step has one BLAS thread, and for its own steps its share of the threads. If a step raises,
    its error is raised after all running steps have ended.
    """
    available, whole = _given.get(), _whole.get()
    if available is None or whole is None:
        with task_threads():
            return side_by_side(step, values, at_once=at_once)
    threads = min(available, len(values), available if at_once is None else at_once)
    if threads <= 1:
        return [step(value) for value in values]
    waiting, results = deque(enumerate(values)), dict[int, Result]()

    def work() -> None:
        # A thread of the pool has the context of no task.
        shares = _given.set(available // threads), _whole.set(whole)
        try:
            while item := _next(waiting):
                place, value = item
                results[place] = step(value)
        except BaseException:
            waiting.clear()
            raise
        finally:
            _given.reset(shares[0])
            _whole.reset(shares[1])

    others = [_pool(whole).submit(work) for _ in range(threads - 1)]
    try:
        # On a busy machine the others may begin when nothing is left.
        work()
    finally:
        begun = [other for other in others if not other.cancel()]
        wait(begun)
    for other in begun:
        other.result()
    return [results[place] for place in range(len(values))]


def _next(waiting: deque[Value]) -> Value | None:
    try:
        return waiting.popleft()
    except IndexError:
        return None


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


class _Limit:
    """Limits BLAS to one thread while any block of the process needs it.

    BLAS threads belong to the process: if each block set its own limit, the first to end would lift
    the limit of all.
    """

    def __init__(self) -> None:
        self._lock, self._n_blocks = Lock(), 0

    def begin(self) -> None:
        with self._lock:
            if not self._n_blocks:
                self._found = self._numbers()
                self._lift = _blas().limit(limits=1).restore_original_limits
            self._n_blocks += 1

    def end(self) -> None:
        with self._lock:
            self._n_blocks -= 1
            if not self._n_blocks:
                self._lift()

    def outside(self, default: int) -> int:
        """Return the number of BLAS threads without the limit."""
        with self._lock:
            return max(self._found if self._n_blocks else self._numbers(), default=default)

    def begin_thread(self) -> None:
        """Limit a new thread, because BLAS on OpenMP has a number of threads for each thread."""
        with self._lock:
            # The last block may have ended before the thread began.
            if self._n_blocks:
                _blas().limit(limits=1)

    def _numbers(self) -> list[int]:
        return [pool.num_threads for pool in _blas().lib_controllers]


_LIMIT = _Limit()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Return the other threads of tasks with so many; the start of a thread takes time."""
    return ThreadPoolExecutor(threads - 1, "steps", initializer=_LIMIT.begin_thread)


# A forked process inherits the pools without their threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)


@cache
def _blas() -> ThreadpoolController:
    """Return the controller of the BLAS threads; finding it takes as long as a small system."""
    import scipy.linalg  # noqa: F401  numpy's and scipy's are listed once they are loaded

    return ThreadpoolController().select(user_api="blas")
