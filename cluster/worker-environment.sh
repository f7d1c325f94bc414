# shellcheck shell=sh
# The environment of a scheduler and of workers that are started by hand. Libraries read it when
# they are loaded, so source it before `dask scheduler` and `dask worker`:
#     THREADS=8 . cluster/worker-environment.sh
: "${THREADS:?set THREADS to the cores of this machine divided by the workers on it}"

# One task at a time runs in a worker; the threads belong to BLAS, OpenMP and numba.
export OMP_NUM_THREADS="$THREADS"
export OPENBLAS_NUM_THREADS="$THREADS"
export MKL_NUM_THREADS="$THREADS"
export NUMBA_NUM_THREADS="$THREADS"
# The workqueue layer aborts the process when two threads use it at once.
export NUMBA_THREADING_LAYER=threadsafe
# OpenBLAS's idle threads spin for 2^26 cycles by default and take a core from what comes next.
export OPENBLAS_THREAD_TIMEOUT=14
# Memory that was freed goes back to the system; dask's own default.
export MALLOC_TRIM_THRESHOLD_=65536
# What holds the interpreter lock silences a worker, maybe for longer than the default of 5 minutes.
export DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL="30 minutes"
# dask's profiler and event loops wake 5 times a second, not 100 and 50, while BLAS has the cores.
export DASK_DISTRIBUTED__WORKER__PROFILE__INTERVAL="200ms"
export DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL="200ms"
