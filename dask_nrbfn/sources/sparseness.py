"""The choice between dense rows and rows in CSR."""

import numpy as np

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.rows import canonical
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.sources.dtypes import FLOAT64
from dask_nrbfn.sources.source import Source

# Narrower rows are as small when dense, and every step of a fit accepts dense rows.
_WIDE = 256
# CSR stores an int32 column index with each value.
_INDEX_BYTES = 4
# Bytes of the first dense rows, from which the number of values is estimated.
_SHOWN_BYTES = 2**24


def stored_values(source: Source, sparse: str) -> int | None:
    """Return about how many values of a source are stored in CSR; None if it is stored dense."""
    if sparse not in ("auto", "yes", "no"):
        raise ParameterError(f"`sparse` is {sparse!r}.", "Give auto, yes or no.")
    n_values, width = source.n_values, source.n_features
    if source.schema is not None and not source.schema.is_plain:
        return None
    if n_values is None and sparse == "yes":
        first = canonical(next(source.blocks(max(1, _SHOWN_BYTES // (width * 8)))).X)
        n_values = round(first.nnz / first.shape[0] * source.n_rows)
    if n_values is None or not _in_csr(sparse, n_values / source.n_rows, width, source.x_dtype):
        return None
    return n_values


def expanded_values(schema: Schema | None, sparse: str) -> int | None:
    """Return the largest number of nonzero values of a row in CSR; None if features are dense."""
    if schema is None or schema.is_plain:
        return None
    wanted = _in_csr(sparse, schema.row_values, schema.n_features, FLOAT64)
    return schema.row_values if wanted else None


def _in_csr(sparse: str, row_values: float, n_features: int, dtype: np.dtype) -> bool:
    """Return whether rows are stored in CSR: with "auto" if they are wide and half as large."""
    half = n_features * dtype.itemsize / 2
    pays = n_features >= _WIDE and row_values * (dtype.itemsize + _INDEX_BYTES) < half
    return sparse == "yes" or (sparse == "auto" and pays)
