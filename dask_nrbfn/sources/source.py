"""The contract between a foreign format and the dataset written from it."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from dask_nrbfn.numeric.rows import Rows
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.sources.layout import StoredAt


class Block(NamedTuple):
    """Consecutive rows.

    ``X`` is (b, c), an array or in CSR, ``y`` labels (b,) or float64 numbers (b, q), float64
    ``weights`` and ``ids`` (b,); None where the source has none.
    """

    X: Rows
    y: np.ndarray | None
    weights: np.ndarray | None = None
    ids: np.ndarray | None = None


class Source(Protocol):
    """Rows of one table, in a fixed order.

    Attributes
    ----------
    n_rows, n_features : int
    x_dtype : dtype
        Type of every ``X`` block: an integer type of 8 to 64 bits, float16, float32 or float64; in
        CSR one of the latter two.
    y_dtype : dtype or None
        ``int64`` or ``numpy.dtypes.StringDType()`` of labels, ``float64`` of numbers; None when
        there are neither.
    has_weights : bool
        Whether every block has weights. Their values are checked when they are stored.
    feature_names : tuple of str or None
        Column names, where the format has them.
    target_names : tuple of str (q,) or None
        Names of the numbers; None where ``y`` are none.
    schema : Schema or None
        What the columns are, of a table that says so. Those of ``X`` are then its stored values,
        in which NaN stands for none.
    id_dtype : dtype or None
        ``int64`` or ``numpy.dtypes.StringDType()`` of the ids; None when there are none.
    n_values : int or None
        About how many values are stored where blocks are in CSR; None: they are arrays.
    unlabelled : int, str, float or None
        What stands in ``y`` for no label, of a source that says so itself.
    read_as : mapping of str or None
        By which options the rows were found, of a source whose columns do not tell.
    stored_at : StoredAt or None
        Where ``X`` is if it need not be copied.
    boolean_labels : bool
        Whether the labels 0 and 1 stand for false and true.
    """

    n_rows: int
    n_features: int
    x_dtype: np.dtype
    y_dtype: np.dtype | None
    has_weights: bool
    feature_names: tuple[str, ...] | None
    target_names: tuple[str, ...] | None
    id_dtype: np.dtype | None
    n_values: int | None
    unlabelled: int | str | float | None
    read_as: Mapping[str, str] | None
    stored_at: StoredAt | None
    boolean_labels: bool

    @property
    def schema(self) -> Schema | None:
        """What the columns are, of a table that says so."""
        ...

    def blocks(self, block_rows: int) -> Iterator[Block]:
        """Yield all rows in order, at most `block_rows` at a time."""
        ...
