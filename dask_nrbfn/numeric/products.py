"""Products of blocks of rows, symmetric systems, and elementwise work on blocks in strips.

Products use scipy's BLAS, which adds to a matrix in place. Large ones are computed in tiles by the
threads of the task, each with one BLAS thread. Tiles depend on the shapes only, so results have the
same bits with any number of threads.

scipy's Python wrappers hold the interpreter lock, which stops the thread that reads the next block
and, for minutes at large r, a worker's heartbeat. So the functions of `scipy.linalg.cython_blas`
and `cython_lapack` are called through ctypes, which releases the lock.
"""

import ctypes
from collections.abc import Callable
from ctypes import byref, c_char, c_double, c_int, c_void_p
from functools import partial
from itertools import combinations, product
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
from scipy.linalg import cython_blas, cython_lapack

from dask_nrbfn.numeric.device import array_module, beside, gpu_of, to_host
from dask_nrbfn.numeric.threads import side_by_side
from dask_nrbfn.numeric.types import Floats, Singles


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
_dtrsm = _fortran_function(cython_blas, "dtrsm")
_dpotrf = _fortran_function(cython_lapack, "dpotrf")
_dpotrs = _fortran_function(cython_lapack, "dpotrs")
_spotrf = _fortran_function(cython_lapack, "spotrf")
_spotrs = _fortran_function(cython_lapack, "spotrs")
_dtrtrs = _fortran_function(cython_lapack, "dtrtrs")
_dlansy = _fortran_function(cython_lapack, "dlansy", c_double)

# Rows and columns of a tile of a product. BLAS copies them into its own layout first: on one core,
# sums of 2,000 basis rows take 7 % longer in tiles of 512 than in one piece, in tiles of 256 22 %.
_TILE = 512

# Rows of a Cholesky factor that are computed at a time; one thread begins them alone.
_FACTOR_ROWS = 256

# Right-hand sides that a thread solves at a time.
_SOLVED_ROWS = 64


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
    if A.size == 0:
        return
    if (gpu := gpu_of(sums)) is not None:
        gpu.add_gram(sums, A)
    else:
        _add_gram(sums, A, 1.0)


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

    Only the upper triangle is used. Takes ``r^3 / 3`` flops and no memory for another matrix.
    """
    if (gpu := gpu_of(matrix)) is not None:
        return gpu.factor(matrix)
    r = len(matrix)
    for start in range(0, r, _FACTOR_ROWS):
        stop, failed = min(start + _FACTOR_ROWS, r), c_int(0)
        _call(_dpotrf, b"L", stop - start, _place(matrix, start, start), r, failed)
        if failed.value:
            return False
        side_by_side(partial(_factor_tile, matrix, start), range(stop, r, _FACTOR_ROWS))
        _add_gram(matrix, matrix[start:stop], -1.0, first=stop)
    return True


def _factor_tile(matrix: Floats, row: int, column: int) -> None:
    """Replace a tile to the right of a factored diagonal tile, which is in the same rows."""
    r, diagonal, tile = len(matrix), _place(matrix, row, row), _place(matrix, row, column)
    size, n_rows = min(_FACTOR_ROWS, r - column), _FACTOR_ROWS
    _call(_dtrsm, b"R", b"L", b"T", b"N", size, n_rows, 1.0, diagonal, r, tile, r)


def solve_in_place(factor: Floats, right: Floats) -> None:
    """Replace `right` (K, r) by ``right @ matrix^-1``; ``2 K r^2`` flops; see `factor_in_place`.

    `right` is on the host, also if the factor is on a GPU.
    """
    if (gpu := gpu_of(factor)) is not None:
        solved = gpu.upload(right)
        gpu.solve(factor, solved)
        right[...] = gpu.download(solved)
        return
    r = len(factor)

    def solve(rows: slice) -> None:
        own = right[rows]
        _call(_dpotrs, b"L", r, len(own), factor, r, own, r, c_int(0))

    side_by_side(solve, _parts(0, len(right), _SOLVED_ROWS))


def solve_single(matrix: Singles, right: Singles) -> bool:
    """Replace `right` (K, r) by ``right @ matrix^-1`` in float32; False if there is no factor.

    `matrix` is overwritten; both are C-contiguous.
    """
    (n_right, r), failed = right.shape, c_int(0)
    factor, solution = c_void_p(matrix.ctypes.data), c_void_p(right.ctypes.data)
    _call(_spotrf, b"L", r, factor, r, failed)
    if failed.value == 0:
        _call(_spotrs, b"L", r, n_right, factor, r, solution, r, c_int(0))
    return failed.value == 0


def inverse_products(factor: Floats, rows: Floats) -> Floats:
    """Return ``x' matrix^-1 x`` of each row (b, r), float64 (b,); `rows` are overwritten.

    ``b r^2`` flops, on a GPU twice as many; see `factor_in_place`.
    """
    if gpu_of(factor) is not None:
        solved = rows.copy()
        solve_in_place(factor, solved)
        return np.asarray(np.einsum("br,br->b", rows, solved))
    r = len(factor)

    def solve(part: slice) -> None:
        own = rows[part]
        _call(_dtrtrs, b"L", b"N", b"N", r, len(own), factor, r, own, r, c_int(0))

    side_by_side(solve, _parts(0, len(rows), _SOLVED_ROWS))
    return np.asarray(np.einsum("br,br->b", rows, rows))


def times_symmetric(weights: Floats, matrix: Floats) -> Floats:
    """Return ``weights @ matrix`` (K, r) on the host; the symmetric matrix may be on a GPU."""
    return to_host(row_products(beside(weights, matrix), matrix))


def _multiply(first: bytes, B: Floats, second: bytes, A: Floats, beta: float, sums: Floats) -> None:
    """Set Fortran's ``sums' = beta sums' + op(B') op(A')``; `first` and `second` name each op."""
    m, n = sums.shape
    by_rows = first == b"T", second == b"N"
    inner, b_columns, a_columns = B.shape[by_rows[0]], B.shape[1], A.shape[1]

    def multiply(tile: tuple[slice, slice]) -> None:
        rows, columns = tile
        b = _place(B, columns.start, 0) if by_rows[0] else _place(B, 0, columns.start)
        a = _place(A, rows.start, 0) if by_rows[1] else _place(A, 0, rows.start)
        size, c = (_length(columns), _length(rows)), _place(sums, rows.start, columns.start)
        _call(_dgemm, first, second, *size, inner, 1.0, b, b_columns, a, a_columns, beta, c, n)

    side_by_side(multiply, list(product(_parts(0, m, _TILE), _parts(0, n, _TILE))))


def _add_gram(sums: Floats, A: Floats, factor: float, *, first: int = 0) -> None:
    """Add the upper triangle of ``factor A' A`` to `sums` (r, r), from row and column `first`."""
    n_rows, r = A.shape

    def add(tile: tuple[slice, slice]) -> None:
        rows, columns = tile
        left, right = _place(A, 0, columns.start), _place(A, 0, rows.start)
        size, c = (_length(columns), _length(rows)), _place(sums, rows.start, columns.start)
        if rows == columns:
            _call(_dsyrk, b"L", b"N", size[0], n_rows, factor, left, r, 1.0, c, r)
        else:
            _call(_dgemm, b"N", b"T", *size, n_rows, factor, left, r, right, r, 1.0, c, r)

    parts = _parts(first, r, _TILE)
    # Tiles of half the work come last, so that all threads end at about the same time.
    side_by_side(add, [*combinations(parts, 2), *zip(parts, parts, strict=True)])


def _parts(start: int, stop: int, most: int) -> list[slice]:
    """Return the fewest parts of a range that have at most `most` elements, about equally many."""
    size = -(-(stop - start) // max(1, -(-(stop - start) // most)))
    return [slice(a, min(a + size, stop)) for a in range(start, stop, max(size, 1))]


def _length(part: slice) -> int:
    return int(part.stop - part.start)


Argument = bytes | int | float | c_int | c_void_p | Floats


def _call(function: Callable[..., Any], *arguments: Argument) -> Any:
    """Return the result of a Fortran function, whose arguments are passed by address."""
    return function(*map(_address, arguments))


def _address(argument: Argument) -> Any:
    match argument:
        case bytes():
            return byref(c_char(argument))
        case int():
            return byref(c_int(argument))
        case float():
            return byref(c_double(argument))
        case c_int():
            return byref(argument)
        case c_void_p():
            return argument
    return _place(argument, 0, 0)


def _place(matrix: Floats, row: int, column: int) -> c_void_p:
    """Return the address of an element; a tile that begins there has the matrix's row length."""
    if matrix.dtype != np.float64 or not matrix.flags.c_contiguous:
        raise TypeError(f"BLAS needs contiguous float64, not {matrix.dtype} {matrix.strides}.")
    return c_void_p(matrix.ctypes.data + 8 * (row * matrix.shape[-1] + column))


T = TypeVar("T")

# Elements of a strip: 1 MiB of float64 fits into the cache of a core, and its exponentials take ten
# times as long as the start of a task in a thread.
_STRIP_ELEMENTS = 2**17

# Rows of a matrix on a GPU that are squared at a time.
_NORMED_ROWS = 512


def over_strips(step: Callable[[slice], T], array: Floats | tuple[int, int]) -> list[T]:
    """Return the results of `step` for every strip of rows of an array, or of a shape, in order.

    An array on a GPU is one strip. Other strips depend only on the number of columns, so results
    have the same bits with any number of threads; see `side_by_side`.
    """
    n_rows, n_columns = array if isinstance(array, tuple) else array.shape
    size = max(1, _STRIP_ELEMENTS // n_columns if gpu_of(array) is None else n_rows)
    strips = [slice(a, min(a + size, n_rows)) for a in range(0, max(n_rows, 1), size)]
    return side_by_side(step, strips)
