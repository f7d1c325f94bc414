"""Rows of features: an array, or in CSR if most values are 0."""

import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, Union

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.device import gpu_of
from dask_nrbfn.numeric.types import Floats

if TYPE_CHECKING:
    from scipy.sparse import csr_array

# scipy is loaded only for sparse rows, so that commands that only read a record start faster.
Rows: TypeAlias = Union[NDArray[Any], "csr_array"]
"""Rows (b, p). In CSR the columns of a row ascend without repeats, and no stored value is 0."""


def is_csr(X: Rows) -> TypeGuard["csr_array"]:
    """Return whether rows are stored in CSR."""
    # Another thread may be loading scipy.
    return isinstance(X, getattr(sys.modules.get("scipy.sparse"), "csr_array", ()))


def is_scipy_sparse(X: object) -> bool:
    """Return whether rows are a sparse matrix or array of scipy, in any of its formats."""
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and sparse.issparse(X)


def unmasked(values: Any) -> Any:
    """Return a masked array as an array whose masked numbers are NaN; anything else as it is."""
    if not isinstance(values, np.ma.MaskedArray):
        return values
    if not np.ma.is_masked(values):
        return values.data
    return np.ma.filled(values.astype(np.result_type(values, np.float16)), np.nan)


def canonical(X: Any) -> "csr_array":
    """Return a sparse matrix or array (b, p) as rows in CSR, which may share its memory.

    Duplicate entries are added. Column indices are int32, which scikit-learn requires. An array of
    float16, which scipy does not support, becomes float32.
    """
    from scipy.sparse import csr_array

    if isinstance(X, np.ndarray) and X.dtype == np.float16:
        X = X.astype(np.float32)
    rows = csr_array(X)
    if rows.indices.dtype != np.int32 and max(rows.nnz, *rows.shape) < 2**31:
        indices, indptr = rows.indices.astype(np.int32), rows.indptr.astype(np.int32)
        rows = csr_array((rows.data, indices, indptr), shape=rows.shape)
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()
    if not rows.data.all():
        rows = rows.copy()
        rows.eliminate_zeros()
    return rows


def with_values(X: "csr_array", values: NDArray[Any]) -> "csr_array":
    """Return rows in CSR with other values in the same places."""
    from scipy.sparse import csr_array

    return csr_array((values, X.indices, X.indptr), shape=X.shape)


def with_columns(X: Rows, other: Rows, span: slice) -> Rows:
    """Return rows (b, p) with some consecutive columns of other rows, both arrays or in CSR."""
    if is_csr(X):
        from scipy.sparse import hstack

        return canonical(hstack([X[:, : span.start], other[:, span], X[:, span.stop :]]))
    rows = X.copy()
    rows[:, span] = other[:, span]
    return rows


def stacked(blocks: Sequence[Rows]) -> Rows:
    """Return the rows of blocks, all arrays or all in CSR, one block after another."""
    if is_csr(blocks[0]):
        from scipy.sparse import csr_array, vstack

        return csr_array(vstack(blocks, format="csr"))
    return np.concatenate(blocks)


def gathered(blocks: Iterable[Rows], shape: tuple[int, int]) -> Rows:
    """Return the rows of blocks (b, p) in `shape`; arrays are copied one block at a time."""
    waiting = iter(blocks)
    first = next(waiting, None)
    if first is None:
        return np.empty(shape)
    if is_csr(first):
        return stacked([first, *waiting])
    rows = np.empty(shape, first.dtype)
    start = 0
    for block in chain([first], waiting):
        rows[start : start + len(block)] = block
        start += len(block)
    return rows


def dense(X: Rows) -> NDArray[Any]:
    """Return rows as an array; a new one for rows in CSR."""
    return X.toarray() if is_csr(X) else X


def squared_norms(X: Rows) -> Floats:
    """Return the squared length of each row, float64 (b,), infinite where it overflows."""
    if is_csr(X):
        with np.errstate(over="ignore"):
            squares = np.square(X.data, dtype=np.float64)
        return np.asarray(with_values(X, squares).sum(axis=1))
    if gpu_of(X) is not None:
        lengths: Floats = np.square(X, dtype=np.float64).sum(axis=1)
        return lengths
    return np.asarray(np.einsum("ij,ij->i", X, X, dtype=np.float64))


def mean_stored_values(X: Rows) -> float:
    """Return the mean number of stored values of a row; p for an array."""
    n_rows, p = X.shape
    if is_csr(X):
        return float(X.nnz / max(1, n_rows))
    return float(p)
