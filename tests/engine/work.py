"""Tasks; workers import them by name."""

import os
import signal
import time
from pathlib import Path

import numpy as np
from distributed import get_client
from threadpoolctl import threadpool_info

from dask_nrbfn.engine import EngineOptions, connect
from dask_nrbfn.engine.threads import worker_environment
from dask_nrbfn.numeric.threads import n_threads
from tests.engine.processes import PATIENCE_S, wait_until


def square(number):
    return number * number


def square_later(number):
    time.sleep(0.02 * (number % 3))
    return number * number


def process_id(number):
    return os.getpid()


def wait_for(path):
    """Wait until somebody makes a file."""
    wait_until(Path(path).exists)


def meet(directory, number, n_tasks):
    """Wait until so many tasks run at once; return the process of this one."""
    Path(directory, str(number)).touch()
    wait_until(lambda: len(list(Path(directory).iterdir())) == n_tasks)
    return os.getpid()


def squares_of_tasks(directory, number):
    """Return squares that other tasks compute, once as many tasks as threads want some."""
    meet(directory, number, 2)
    with connect(client=get_client()) as engine:
        return engine.run(square, [(number,), (2 * number,)], label="squares")


def start_workers():
    with connect(EngineOptions(workers=1)):
        pass


def raise_error(error_type, problem, remedy):
    raise error_type(problem, remedy)


def fail_on(bad, number):
    if number == bad:
        raise ZeroDivisionError(f"task {number}")
    return number


def fail_first(path, number):
    """Fail as the first task, which the others wait for."""
    if number == 0:
        Path(path).touch()
        raise ZeroDivisionError
    wait_for(path)


def kill_worker(number):
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def kill_worker_once(marker, number):
    if number == 1 and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def allocate(n_bytes):
    return int(np.ones(n_bytes, dtype=np.uint8).sum())


def environment():
    """Return what libraries of this process use, and were told."""
    import numba

    return {
        "variables": {name: os.environ.get(name) for name in worker_environment(1)},
        "blas": [p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"],
        "numba": numba.config.NUMBA_NUM_THREADS,
        "threads": n_threads(),
    }


def task_threads():
    """Return the threads of this task, and those of BLAS while it runs."""
    blas = {p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"}
    return n_threads(), blas


def mark_and_sleep(directory, number, seconds):
    """Leave a file that says the task has begun."""
    Path(directory, str(number)).touch()
    time.sleep(seconds)
    return number


def allocate_slowly(n_bytes):
    """Hold more and more memory, and what is too much until a nanny notices."""
    blocks = []
    for _ in range(n_bytes // 2**25):
        blocks.append(np.ones(2**25, dtype=np.uint8))
        time.sleep(0.02)
    if n_bytes > 2**30:
        time.sleep(PATIENCE_S)
    return len(blocks)


def refuse_memory(number):
    return np.empty(2**60, dtype=np.uint8)


def refuse_import():
    raise ModuleNotFoundError("No module named 'dask_nrbfn'")
