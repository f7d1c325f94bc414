"""Sums of absolute differences between rows and basis rows, compiled loops over cache-sized blocks.

A product of matrices cannot compute these sums. Each loop runs in one thread and holds no
interpreter lock. Strips of rows run side by side in the project's own threads, because numba's
thread layers abort the process when two tasks use these layers at once.
"""

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.types import Floats

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# Rows and columns of a block of sums: 64 KiB, and 16 KiB of basis values.
_BLOCK_ROWS, _BLOCK_COLUMNS = 16, 512


def power_sums(
    rows: Floats, columns: Floats, exponent: float, out: Floats, *, factor: float | None = None
) -> None:
    """Write ``s = sum_l |x_l - g_l|^q`` of all pairs of a row x and a basis row g into `out`.

    Parameters
    ----------
    rows : float64 (b, p)
        C-contiguous and writable, because numba compiles a loop for each layout.
    columns : float64 (p, r)
        The transposed basis, C-contiguous and writable.
    exponent : float
        q.
    out : float64 (b, r)
    factor : float, optional
        f, for squared distances ``f s^(2/q)`` instead of sums.

    Notes
    -----
    ``3 b r p`` flops for q = 1, at .7 times the pairs per second of a float64 product. All numbers
    are float64, because the difference of two near rows may have no right digit in float32. The
    columns of a pair are added in the same order in every block, so blocks do not change bits.
    """
    if exponent == 1:
        _compiled(_absolute_sums)(rows, columns, 0.0 if factor is None else factor, out)
        return
    out[...] = 0.0
    powers = np.empty_like(out)
    for values, of_basis in zip(rows.T, columns, strict=True):
        np.subtract(values[:, None], of_basis, out=powers)
        np.abs(powers, out=powers)
        # The operator is faster than np.power for 2 and 0.5.
        powers **= exponent
        out += powers
    if factor is not None:
        out **= 2.0 / exponent
        out *= factor


def sparse_power_sums(
    rows: "csr_array",
    columns: "csr_array",
    norms: Floats,
    exponent: float,
    out: Floats,
    *,
    factor: float | None = None,
) -> None:
    """Write the result of `power_sums` for rows in CSR into `out`.

    Parameters
    ----------
    rows : CSR (b, p)
    columns : CSR (p, r)
        The transposed basis.
    norms : float64 (r,)
        ``sum_l |g_l|^q``.
    exponent : float
        q.
    out : float64 (b, r)
    factor : float, optional
        f.

    Notes
    -----
    ``|x|^q + |g|^q`` summed over the stored values, plus ``|x_l - g_l|^q - |x_l|^q - |g_l|^q``
    where both rows store column l. Rounding is relative to the two norms.
    """
    stored = np.concatenate([[0.0], np.cumsum(np.abs(rows.data) ** exponent)])
    own = stored[rows.indptr[1:]] - stored[rows.indptr[:-1]]
    np.add(own[:, None], norms, out=out)
    loop = _compiled(_add_meetings)
    basis = (columns.data, columns.indices, columns.indptr)
    loop(rows.data, rows.indices, rows.indptr, *basis, exponent, out)
    np.maximum(out, 0.0, out=out)
    if factor is not None:
        out **= 2.0 / exponent
        out *= factor


def signed_power_sums(rows: Floats, basis: Floats, factors: Floats, exponent: float) -> Floats:
    """Return ``sum_j f_cij s_ijl |x_il - g_jl|^(q - 1)``, s the sign of ``x_il - g_jl``.

    Parameters
    ----------
    rows : float64 (b, p)
        Contiguous and writable, like all arrays here.
    basis : float64 (r, p)
    factors : float64 (K, b, r)
        f.
    exponent : float
        q. Terms whose difference is 0 are 0.

    Returns
    -------
    float64 (K, b, p)

    Notes
    -----
    ``(2 K + 3) b r p`` flops.
    """
    sums = np.zeros((len(factors), *rows.shape))
    _compiled(_add_signed_powers)(rows, basis, factors, exponent, sums)
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
    """Write the sums of q = 1, or their squares times a factor that is not 0."""
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
    exponent: float,
    out: Floats,
) -> None:
    for i in range(len(starts) - 1):
        sums = out[i]
        for place in range(starts[i], starts[i + 1]):
            x, column = values[place], indices[place]
            own = abs(x) ** exponent
            for other in range(basis_starts[column], basis_starts[column + 1]):
                g = basis_values[other]
                if exponent == 1.0:
                    sums[basis_indices[other]] += abs(x - g) - own - abs(g)
                else:
                    power = abs(x - g) ** exponent - own - abs(g) ** exponent
                    sums[basis_indices[other]] += power


def _add_signed_powers(
    rows: Floats, basis: Floats, factors: Floats, exponent: float, sums: Floats
) -> None:
    n_rows, p = rows.shape
    signed = np.empty(p)
    for i in range(n_rows):
        x = rows[i]
        for j in range(len(basis)):
            g = basis[j]
            for k in range(p):
                signed[k] = 1.0 if x[k] > g[k] else (-1.0 if x[k] < g[k] else 0.0)
            if exponent != 1.0:
                for k in range(p):
                    if signed[k] != 0.0:
                        signed[k] *= abs(x[k] - g[k]) ** (exponent - 1.0)
            for c in range(len(factors)):
                factor, of_target = factors[c, i, j], sums[c, i]
                for k in range(p):
                    of_target[k] += factor * signed[k]
