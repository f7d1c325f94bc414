"""Threads that a task may use, and the environment and dask settings of workers."""

from typing import Any

from dask.system import cpu_count

from dask_nrbfn.numeric.threads import n_threads


def available_threads() -> int:
    """Return the number of threads that a task in this process may use.

    That is at most the cores of its affinity and cgroup, and at most the threads that BLAS is
    limited to: joblib limits its workers in this way.
    """
    cores = cpu_count()
    return min(cores, n_threads(default=cores))


def threads_of_workers(n_workers: int) -> int:
    """Return the number of threads of each worker if `n_workers` share the cores of this one."""
    return max(1, cpu_count() // n_workers)


def worker_environment(threads: int) -> dict[str, str]:
    """Return the environment variables of a worker that computes with `threads` threads.

    Libraries read them when they are loaded, and dask's own default is 1. Numba's workqueue layer
    aborts the process when two threads use it at once, so a thread-safe layer is set. OpenBLAS's
    idle threads spin for 2^26 cycles by default and take a core from what follows a product:
    elementwise steps on two cores ran at the speed of one; 2^14 cycles bridge the calls of one
    loop. The trim threshold is dask's own: freed memory goes back to the system.
    """
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    return {
        **dict.fromkeys(names, str(threads)),
        "NUMBA_THREADING_LAYER": "threadsafe",
        "OPENBLAS_THREAD_TIMEOUT": "14",
        "MALLOC_TRIM_THRESHOLD_": "65536",
    }


def cluster_settings(threads: int) -> dict[str, Any]:
    """Return the dask configuration for a scheduler and nannies started from this process.

    The time to live is how long a worker may be silent before the scheduler gives its task to
    another. What holds the interpreter lock silences it, so the default of 5 minutes is short.
    dask's profiler and event loops look at a worker 100 and 50 times a second, which takes a
    fiftieth of two cores whose threads wait for each other.
    """
    return {
        "distributed.nanny.pre-spawn-environ": worker_environment(threads),
        "distributed.scheduler.worker-ttl": "30 minutes",
        "distributed.worker.profile.interval": "200ms",
        "distributed.admin.tick.interval": "200ms",
    }
