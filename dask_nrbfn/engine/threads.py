"""How many threads a process computes with."""

from dask.system import cpu_count
from threadpoolctl import threadpool_info


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
