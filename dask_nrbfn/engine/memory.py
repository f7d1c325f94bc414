"""The memory of workers and of their processes."""

import dask

# Resident size of a worker with numpy, scipy, zarr and scikit-learn loaded: 240 MiB when fresh,
# 278 MiB at its peak once each of them has computed something small.
PROCESS_BYTES = 300 * 2**20

# What numba adds to it with the first approximate search of a process: 453 MiB if it compiles
# everything, 309 MiB if its cache is warm.
NNDESCENT_PROCESS_BYTES = 460 * 2**20

# What numba adds with the first l1 distance: 119 MiB if it compiles, 99 MiB if its cache is warm.
_LOOPS_BYTES = 150 * 2**20

# What CUDA and its libraries add, with pinned memory and the larger blocks of rows of a GPU.
_GPU_PROCESS_BYTES = 1536 * 2**20


def process_bytes(*, l1: bool, gpu: bool = False) -> int:
    """Return the bytes of a worker that has computed Euclidean or l1 distances."""
    n_bytes = PROCESS_BYTES
    if l1:
        n_bytes += _LOOPS_BYTES
    if gpu:
        n_bytes += _GPU_PROCESS_BYTES
    return n_bytes


def usable_bytes(limit_bytes: int, n_threads: int) -> int:
    """Return the bytes of a worker's memory limit that one task may use.

    A nanny kills its worker at a fraction of the limit, before the limit is reached. The fraction
    is read from this process's dask configuration, which may differ from the nanny's.
    """
    # Absent or False: workers are not killed.
    fraction = float(dask.config.get("distributed.worker.memory.terminate", 0) or 1)
    return int(limit_bytes * fraction) // n_threads
