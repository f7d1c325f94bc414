"""Sums of absolute differences between rows and basis rows, compiled loops over cache-sized blocks.

Each loop runs in one thread and holds no interpreter lock. Strips of rows run side by side in the
project's own threads, because numba's abort the process when two tasks use them at once.
"""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.device import gpu_of
from dask_nrbfn.numeric.types import Floats

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# Rows and columns of a block of sums: 64 KiB, and 16 KiB of basis values.
_BLOCK_ROWS, _BLOCK_COLUMNS = 16, 512


def absolute_sums(
    rows: Floats, columns: Floats, out: Floats, *, factor: float | None = None
) -> None:
    """Write ``s = sum_l |x_l - g_l|`` of rows and basis rows, or ``f s^2``, to `out`.

    Rows (b, p) and the transposed basis (p, r) are float64, C-contiguous and writable, because
    numba compiles a loop for each layout; `out` is (b, r).

    ``3 b r p`` flops. All numbers are float64, because the difference of two near rows may have no
    right digit in float32. Blocks do not change the order in which columns are added, nor bits.
    """
    gpu = gpu_of(out)
    # Both loops square the sums only with a factor that is not 0.
    factor = 0.0 if factor is None else factor
    if gpu is None:
        _compiled(_absolute_sums)(rows, columns, factor, out)
    else:
        gpu.absolute_sums(rows, columns, out, factor)


def sparse_absolute_sums(
    rows: "csr_array",
    columns: "csr_array",
    norms: Floats,
    out: Floats,
    *,
    factor: float | None = None,
) -> None:
    """Write the result of `absolute_sums` for rows (b, p) and columns (p, r) in CSR to `out`.

    ``|x| + |g|`` summed over the stored values, with ``sum_l |g_l|`` in `norms` (r,), plus
    ``|x_l - g_l| - |x_l| - |g_l|`` where both rows store column l. Rounding is relative to the two
    norms.
    """
    stored = np.concatenate([[0.0], np.cumsum(np.abs(rows.data))])
    own = stored[rows.indptr[1:]] - stored[rows.indptr[:-1]]
    np.add(own[:, None], norms, out=out)
    loop = _compiled(_add_meetings)
    loop(rows.data, rows.indices, rows.indptr, columns.data, columns.indices, columns.indptr, out)
    np.maximum(out, 0.0, out=out)
    if factor is not None:
        np.square(out, out=out)
        out *= factor


def signed_sums(rows: Floats, basis: Floats, factors: Floats) -> Floats:
    """Return ``sum_j f_cij s_ijl`` (K, b, p), s the sign of ``x_il - g_jl``."""
    sums = np.zeros((len(factors), *rows.shape))
    _compiled(_add_signed)(rows, basis, factors, sums)
    return sums


@cache
def _compiled(loop: Callable[..., None]) -> Callable[..., None]:
    """Return a loop as machine code; numba is imported when a loop is first needed."""
    from numba import njit

    try:
        compiled: Callable[..., None] = njit(nogil=True, cache=True)(loop)
    except RuntimeError:
        # Numba has no writable directory for the machine code.
        compiled = njit(nogil=True)(loop)
    return compiled


def _absolute_sums(rows: Floats, columns: Floats, factor: float, out: Floats) -> None:
    """Write the sums, or their squares times a factor that is not 0."""
    n_rows, p = rows.shape
    r = columns.shape[1]
    for first in range(0, n_rows, _BLOCK_ROWS):
        last = min(n_rows, first + _BLOCK_ROWS)
        for start in range(0, r, _BLOCK_COLUMNS):
            stop = min(r, start + _BLOCK_COLUMNS)
            out[first:last, start:stop] = 0.0
            # Each time a sum is loaded and stored, four columns are added.
            for k in range(0, p - 3, 4):
                g0, g1 = columns[k, start:stop], columns[k + 1, start:stop]
                g2, g3 = columns[k + 2, start:stop], columns[k + 3, start:stop]
                for i in range(first, last):
                    x0, x1, x2, x3 = rows[i, k], rows[i, k + 1], rows[i, k + 2], rows[i, k + 3]
                    sums = out[i, start:stop]
                    for j in range(stop - start):
                        sums[j] += (abs(x0 - g0[j]) + abs(x1 - g1[j])) + (
                            abs(x2 - g2[j]) + abs(x3 - g3[j])
                        )
            for k in range(p - p % 4, p):
                g0 = columns[k, start:stop]
                for i in range(first, last):
                    x0, sums = rows[i, k], out[i, start:stop]
                    for j in range(stop - start):
                        sums[j] += abs(x0 - g0[j])
            if factor != 0.0:
                for i in range(first, last):
                    sums = out[i, start:stop]
                    for j in range(stop - start):
                        sums[j] = factor * (sums[j] * sums[j])


def _add_meetings(
    values: Floats,
    indices: NDArray[Any],
    starts: NDArray[Any],
    basis_values: Floats,
    basis_indices: NDArray[Any],
    basis_starts: NDArray[Any],
    out: Floats,
) -> None:
    for i in range(len(starts) - 1):
        sums = out[i]
        for place in range(starts[i], starts[i + 1]):
            x, column = values[place], indices[place]
            for other in range(basis_starts[column], basis_starts[column + 1]):
                g = basis_values[other]
                sums[basis_indices[other]] += abs(x - g) - abs(x) - abs(g)


def _add_signed(rows: Floats, basis: Floats, factors: Floats, sums: Floats) -> None:
    n_rows, p = rows.shape
    signed = np.empty(p)
    for i in range(n_rows):
        x = rows[i]
        for j in range(len(basis)):
            g = basis[j]
            for k in range(p):
                signed[k] = 0.0
                if x[k] > g[k]:
                    signed[k] = 1.0
                elif x[k] < g[k]:
                    signed[k] = -1.0
            for c in range(len(factors)):
                factor, of_target = factors[c, i, j], sums[c, i]
                for k in range(p):
                    of_target[k] += factor * signed[k]
