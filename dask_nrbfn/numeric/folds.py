"""Folds of cross-validation: rows that are held out together."""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.hashing import hash_numbers
from dask_nrbfn.numeric.rows import Rows
from dask_nrbfn.numeric.types import Floats


def folds_of_rows(start: int, stop: int, *, n_folds: int, seed: int) -> NDArray[np.int64]:
    """Return the folds of consecutive rows, int64 (b,), from 0 to ``n_folds - 1``.

    A fold is a hash of the row number, so it does not depend on chunks. Folds are of equal size up
    to chance.
    """
    return folds_of_numbers(np.arange(start, stop), n_folds=n_folds, seed=seed)


def folds_of_numbers(rows: NDArray[np.int64], *, n_folds: int, seed: int) -> NDArray[np.int64]:
    """Return the fold of each row number, int64 (b,); -1 where the number is -1, for no row."""
    hashes = hash_numbers(rows, seed=seed)
    return np.where(rows < 0, -1, (hashes % np.uint64(n_folds)).astype(np.int64))


def places_among(rows: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places of row numbers among ascending rows, int64 (m,); -1 if not among them."""
    places = np.minimum(np.searchsorted(rows, numbers), len(rows) - 1)
    return np.where(rows[places] == numbers, places, -1)


class FoldedBlock(NamedTuple):
    """Rows of a block, fold after fold, in row order within each fold.

    slices: places of the rows of each fold.
    order (b,): index in the block of the row at each place; None: the rows are in row order.
    """

    X: Rows
    targets: NDArray[Any]
    weights: Floats | None
    slices: list[slice]
    start: int = 0
    order: NDArray[np.int64] | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.X.shape[0])

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Row numbers, int64 (b,)."""
        order = np.arange(self.n_rows) if self.order is None else self.order
        return self.start + order

    @property
    def total_weight(self) -> float:
        """Sum of the weights of the rows."""
        return float(self.n_rows if self.weights is None else self.weights.sum())

    @property
    def factors(self) -> Floats | None:
        """Square roots of the weights: the factors of the rows of the ridge system."""
        return None if self.weights is None else np.sqrt(self.weights)


def fold_block(
    X: Rows,
    targets: NDArray[Any],
    weights: Floats | None,
    folds: NDArray[np.int64],
    *,
    n_folds: int,
) -> FoldedBlock:
    """Return the rows of a block sorted by fold; with one fold, in row order."""
    ends = np.cumsum(np.bincount(folds, minlength=n_folds)).tolist()
    slices = [slice(start, end) for start, end in pairwise([0, *ends])]
    if n_folds == 1:
        return FoldedBlock(X, targets, weights, slices)
    order = np.argsort(folds, kind="stable")
    sorted_weights = None if weights is None else weights[order]
    return FoldedBlock(X[order], targets[order], sorted_weights, slices, order=order)
