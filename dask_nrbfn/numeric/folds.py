"""Folds: which rows are held out together."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.confidence import splitmix


def folds_of_rows(start: int, stop: int, *, n_folds: int, seed: int) -> NDArray[np.int64]:
    """Return the fold, 0 ... n_folds - 1, of the rows numbered `start` to `stop`, int64 (b,).

    A hash of the row's number, so that neither chunks nor the order of the classes matter; folds
    are of equal size up to chance.

    Examples
    --------
    >>> folds_of_rows(0, 8, n_folds=2, seed=0)
    array([1, 0, 0, 1, 1, 0, 1, 1])
    """
    rows = np.arange(start, stop, dtype=np.uint64)
    hashes = splitmix(rows ^ splitmix(np.array([seed], dtype=np.uint64)))
    return (hashes % np.uint64(n_folds)).astype(np.int64)


class FoldOrder(NamedTuple):
    """Rows of a block, fold after fold.

    Attributes
    ----------
    order : int64 (b,)
        Their places in the block.
    slices : list of slice
        Where each fold stands.
    """

    order: NDArray[np.int64]
    slices: list[slice]


def order_by_fold(folds: NDArray[np.int64], *, n_folds: int) -> FoldOrder:
    """Return the rows of a block sorted by fold, in their order within each."""
    ends = np.cumsum(np.bincount(folds, minlength=n_folds)).tolist()
    slices = [slice(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    return FoldOrder(np.argsort(folds, kind="stable"), slices)
