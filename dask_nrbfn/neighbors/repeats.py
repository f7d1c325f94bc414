"""Rows that repeat so often that their neighbours need no search."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.hashing import hash_rows
from dask_nrbfn.numeric.rows import Rows


class Repeats(NamedTuple):
    """Rows of a block with at least k equal ones beside them.

    Attributes
    ----------
    rows : int64 (m,)
        Their places in the block.
    indices : int64 (m, k)
        Places of k equal rows.
    searched : bool (b,)
        Rows that a search must still know: all but the copies beyond the first k + 1 of each.
    """

    rows: NDArray[np.int64]
    indices: NDArray[np.int64]
    searched: NDArray[np.bool_]


def find_repeats(rows: Rows, *, n_neighbors: int, seed: int) -> Repeats:
    """Find the rows of a block whose k nearest neighbours are copies of themselves.

    Parameters
    ----------
    rows : float (b, p)
    n_neighbors : int
    seed : int
        Orders the copies, so that neither their neighbours nor those that stand for all of them
        depend on how the block was sorted.

    Notes
    -----
    However often a row repeats, k + 1 copies are enough for every other row's neighbours, so the
    search of a partition does not grow with the copies.

    Examples
    --------
    >>> repeats = find_repeats(np.array([[1.0], [2.0], [1.0], [1.0]]), n_neighbors=1, seed=0)
    >>> sorted(repeats.rows.tolist()), int(repeats.searched.sum())
    ([0, 2, 3], 3)
    """
    drawn = np.random.default_rng(seed).permutation(rows.shape[0])
    _, value, counts = np.unique(
        hash_rows(rows[drawn], seed=seed), return_inverse=True, return_counts=True
    )
    repeated = drawn[counts[value] > n_neighbors]
    value = value[counts[value] > n_neighbors]
    order = np.argsort(value, kind="stable")
    members, value = repeated[order], value[order]
    starts = np.searchsorted(value, value)
    place, sizes = np.arange(len(members)) - starts, counts[value]
    # The copies in a circle: each takes the k that follow it.
    following = (place[:, None] + np.arange(1, n_neighbors + 1)) % sizes[:, None]
    searched = np.ones(rows.shape[0], dtype=bool)
    searched[members[place > n_neighbors]] = False
    return Repeats(members, members[starts[:, None] + following], searched)
