"""Products of blocks of rows, symmetric systems, and elementwise work on blocks in strips.

Products use scipy's BLAS, which adds to a matrix in place. All products use the same BLAS: threads
of numpy's own BLAS spin for a while after each product, and a loop that alternates between the two
loses up to half of its speed (measured on two cores).

scipy's Python wrappers hold the interpreter lock, which stops the thread that reads the next block
and, for minutes at large r, a worker's heartbeat. So the functions of `scipy.linalg.cython_blas`
and `cython_lapack` are called through ctypes, which releases the lock.
"""

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from ctypes import byref, c_char, c_double, c_int, c_void_p
from functools import cache
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
from scipy.linalg import cython_blas, cython_lapack

from dask_nrbfn.numeric.device import array_module, beside, gpu_of, to_host
from dask_nrbfn.numeric.types import Floats


def _fortran_function(
    module: ModuleType, name: str, result: type[c_double] | None = None
) -> Callable[..., Any]:
    capsule = module.__pyx_capi__[name]
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype = ctypes.c_char_p
    get_name.argtypes = [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype = c_void_p
    get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    return ctypes.CFUNCTYPE(result)(get_pointer(capsule, get_name(capsule)))


_dgemm = _fortran_function(cython_blas, "dgemm")
_dsyrk = _fortran_function(cython_blas, "dsyrk")
_dpotrf = _fortran_function(cython_lapack, "dpotrf")
_dpotrs = _fortran_function(cython_lapack, "dpotrs")
_dtrtrs = _fortran_function(cython_lapack, "dtrtrs")
_dlansy = _fortran_function(cython_lapack, "dlansy", c_double)


def row_products(A: Floats, B: Floats, *, out: Floats | None = None) -> Floats:
    """Return ``A @ B.T``, float64 (m, n), in `out`; A and B are copied unless C-contiguous."""
    if out is None:
        out = array_module(A).empty((len(A), len(B)))
    if (gpu := gpu_of(A)) is not None:
        gpu.row_products(A, B, out)
    else:
        # In Fortran's order all arrays are transposed: out.T = B A.T.
        _multiply(b"T", np.ascontiguousarray(B), b"N", np.ascontiguousarray(A), 0.0, out)
    return out


def add_products(sums: Floats, A: Floats, B: Floats) -> None:
    """Add ``A.T @ B`` to `sums` (m, n) in place; all are C-contiguous."""
    if (gpu := gpu_of(sums)) is not None:
        gpu.add_products(sums, A, B)
        return
    _multiply(b"N", B, b"T", A, 1.0, sums)


def add_gram(sums: Floats, A: Floats) -> None:
    """Add the upper triangle of ``A.T @ A`` to `sums` (r, r) in place; both are C-contiguous."""
    n_rows, r = A.shape
    if A.size == 0:
        return
    if (gpu := gpu_of(sums)) is not None:
        gpu.add_gram(sums, A)
    else:
        _call(_dsyrk, b"L", b"N", r, n_rows, 1.0, A, r, 1.0, sums, r)


def frobenius_norm(matrix: Floats) -> float:
    """Return the norm of a symmetric matrix (r, r), also if the squares of elements overflow.

    Only one triangle is read; on a GPU both are, and squares may overflow.
    """
    if (gpu := gpu_of(matrix)) is not None:
        starts = range(0, len(matrix), _NORMED_ROWS)
        norms = [float(gpu.xp.linalg.norm(matrix[a : a + _NORMED_ROWS])) for a in starts]
        return float(np.linalg.norm(norms))
    size, unused = len(matrix), 0.0
    return float(_call(_dlansy, b"F", b"L", size, matrix, size, unused))


def factor_in_place(matrix: Floats) -> bool:
    """Replace a symmetric C-contiguous matrix (r, r) by its Cholesky factor; False if it has none.

    Takes ``r^3 / 3`` flops and no memory for another matrix.
    """
    if (gpu := gpu_of(matrix)) is not None:
        return gpu.factor(matrix)
    size, failed = len(matrix), c_int(0)
    _call(_dpotrf, b"L", size, matrix, size, failed)
    return failed.value == 0


def solve_in_place(factor: Floats, right: Floats) -> None:
    """Replace `right` (K, r) by ``right @ matrix^-1``; ``2 K r^2`` flops; see `factor_in_place`.

    `right` is on the host, also if the factor is on a GPU.
    """
    if (gpu := gpu_of(factor)) is not None:
        solved = gpu.upload(right)
        gpu.solve(factor, solved)
        right[...] = gpu.download(solved)
        return
    n_right, r = right.shape
    _call(_dpotrs, b"L", r, n_right, factor, r, right, r, c_int(0))


def inverse_products(factor: Floats, rows: Floats) -> Floats:
    """Return ``x' matrix^-1 x`` of each row (b, r), float64 (b,); `rows` are overwritten.

    ``b r^2`` flops, on a GPU twice as many; see `factor_in_place`.
    """
    if gpu_of(factor) is None:
        n_rows, r = rows.shape
        _call(_dtrtrs, b"L", b"N", b"N", r, n_rows, factor, r, rows, r, c_int(0))
        return np.asarray(np.einsum("br,br->b", rows, rows))
    solved = rows.copy()
    solve_in_place(factor, solved)
    return np.asarray(np.einsum("br,br->b", rows, solved))


def times_symmetric(weights: Floats, matrix: Floats) -> Floats:
    """Return ``weights @ matrix`` (K, r) on the host; the symmetric matrix may be on a GPU."""
    if gpu_of(matrix) is None:
        return weights @ matrix
    return to_host(row_products(beside(weights, matrix), matrix))


def _multiply(first: bytes, B: Floats, second: bytes, A: Floats, beta: float, sums: Floats) -> None:
    """Set Fortran's ``sums' = beta sums' + op(B') op(A')``; `first` and `second` name each op."""
    m, n = sums.shape
    inner = B.shape[1] if first == b"T" else B.shape[0]
    b_columns, a_columns = B.shape[1], A.shape[1]
    if sums.size:
        _call(_dgemm, first, second, n, m, inner, 1.0, B, b_columns, A, a_columns, beta, sums, n)


def _call(function: Callable[..., Any], *arguments: bytes | int | float | c_int | Floats) -> Any:
    """Return the result of a Fortran function, whose arguments are passed by address."""
    return function(*map(_address, arguments))


def _address(argument: bytes | int | float | c_int | Floats) -> Any:
    match argument:
        case bytes():
            return byref(c_char(argument))
        case int():
            return byref(c_int(argument))
        case float():
            return byref(c_double(argument))
        case c_int():
            return byref(argument)
    if argument.dtype != np.float64 or not argument.flags.c_contiguous:
        raise TypeError(f"BLAS needs contiguous float64, not {argument.dtype} {argument.strides}.")
    return c_void_p(argument.ctypes.data)


T = TypeVar("T")

# Elements of a strip: 1 MiB of float64 fits into the cache of a core, and its exponentials take ten
# times as long as the start of a task in a thread.
_STRIP_ELEMENTS = 2**17

# Rows of a matrix on a GPU that are squared at a time.
_NORMED_ROWS = 512


def over_strips(
    step: Callable[[slice], T], array: Floats | tuple[int, int], threads: int
) -> list[T]:
    """Return the results of `step` for every strip of rows of an array, or of a shape, in order.

    An array on a GPU is one strip. Other strips depend only on the number of columns, so results
    have the same bits with any number of threads. If a step raises, its error is raised after all
    running steps have ended. A step must not call `over_strips`.
    """
    n_rows, n_columns = array if isinstance(array, tuple) else array.shape
    size = max(1, _STRIP_ELEMENTS // n_columns if gpu_of(array) is None else n_rows)
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
    """Return the threads that all blocks share, because the start of a thread takes time."""
    return ThreadPoolExecutor(threads, thread_name_prefix="strips")


# A forked process inherits the pools without their threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
