"""The choice between dense rows and rows in CSR."""

import numpy as np

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.rows import canonical
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.sources.dtypes import FLOAT64
from dask_nrbfn.sources.source import Source

_SPARSE = ("auto", "yes", "no")

# Narrower rows are as small when dense, and every step of a fit accepts dense rows.
_WIDE = 256
# CSR stores an int32 column index with each value.
_INDEX_BYTES = 4
# Bytes of the first rows of a table, from which the number of values is estimated.
_SHOWN_BYTES = 2**24


def _check_sparse_option(sparse: str) -> None:
    """Raise ParameterError unless `sparse` is one of its choices."""
    if sparse not in _SPARSE:
        raise ParameterError(f"`sparse` is {sparse!r}.", f"Give {', '.join(_SPARSE)}.")


def _pays(row_values: float, n_features: int, dtype: np.dtype) -> bool:
    """Return whether rows in CSR take less than half of the bytes, and are wide.

    >>> _pays(100, 30_000, FLOAT64), _pays(100, 300, FLOAT64), _pays(1, 30, FLOAT64)
    (True, False, False)
    """
    dense_bytes = n_features * dtype.itemsize
    return n_features >= _WIDE and 2 * row_values * (dtype.itemsize + _INDEX_BYTES) < dense_bytes


def stored_values(source: Source, sparse: str) -> int | None:
    """Return about how many values of a source are stored in CSR; None if it is stored dense.

    With "auto", CSR is chosen if it takes less than half of the bytes. A table must also have only
    0 and 1 in its first rows, from which the number of its values is estimated.
    """
    _check_sparse_option(sparse)
    of_numbers = source.schema is None or source.schema.is_plain
    if sparse == "no" or not of_numbers:
        return None
    n_values, width = source.n_values, source.n_features
    if n_values is not None:
        wanted = sparse == "yes" or _pays(n_values / source.n_rows, width, source.x_dtype)
        return n_values if wanted else None
    if sparse == "auto" and (source.schema is None or width < _WIDE):
        return None
    first = next(iter(source.blocks(max(1, _SHOWN_BYTES // (width * FLOAT64.itemsize))))).X
    shown = canonical(first)
    row_values = shown.nnz / shown.shape[0]
    indicates = bool((shown.data == 1).all()) and _pays(row_values, width, source.x_dtype)
    return round(row_values * source.n_rows) if indicates or sparse == "yes" else None


def expanded_values(schema: Schema | None, sparse: str) -> int | None:
    """Return the largest number of nonzero values of a row in CSR; None if features are dense."""
    if schema is None or schema.is_plain or sparse == "no":
        return None
    wanted = sparse == "yes" or _pays(schema.row_values, schema.n_features, FLOAT64)
    return schema.row_values if wanted else None
