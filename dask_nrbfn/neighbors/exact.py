"""Exact neighbours: by brute force, or without a search where a row has k copies."""

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dask_nrbfn.neighbors.lists import MISSING
from dask_nrbfn.numeric.hashing import hash_rows
from dask_nrbfn.numeric.products import over_strips
from dask_nrbfn.numeric.rows import Rows, is_sparse, squared_norms
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.private import nearest_places

# Rows and targets in CSR whose products are held at a time: 2 MiB, and twice as much before the
# products become an array. With fewer rows, finding the columns takes as long as the products.
_TILE_ROWS, _TILE_TARGETS = 2048, 128

# Rows and targets in arrays that are compared at a time. 256 is scikit-learn's own number. With 64
# the 1,000 targets of an audit keep 16 threads busy, but one thread takes a fifth more time with 64
# columns and half as much again with 784.
_CHUNK_ROWS, _CHUNK_OF_FEW, _FEW_TARGETS = 256, 64, 1024


def exact_neighbors(
    rows: Rows, queries: NDArray[np.int64], *, n_neighbors: int, threads: int = 1
) -> NDArray[np.int64]:
    """Return the nearest other rows of some of the rows.

    Parameters
    ----------
    rows : float32 or float64 (n, p)
        All rows. Arrays should be centred, because distances are ``|x|^2 - 2 x y + |y|^2``.
    queries : int64 (b,)
        Numbers of the rows whose neighbours are wanted.
    n_neighbors : int
        k < n.
    threads : int
        For rows in CSR; scikit-learn chooses the threads for arrays.

    Returns
    -------
    int64 (b, k)
        Row numbers.

    Notes
    -----
    ``2 b n p`` flops; for rows in CSR ``2 b n`` times the number of columns that two rows share.
    k + 1 rows are searched, and the row itself is dropped by its number, because it need not come
    first among exact duplicates.

    Examples
    --------
    >>> rows = np.array([[0.0], [1.0], [1.0], [9.0]])
    >>> exact_neighbors(rows, np.arange(4), n_neighbors=1).ravel()
    array([1, 2, 1, 1])
    """
    found = nearest_rows(rows, rows[queries], count=n_neighbors + 1, threads=threads)
    return drop_self(found, queries)


def nearest_rows(rows: Rows, targets: Rows, *, count: int, threads: int = 1) -> NDArray[np.int64]:
    """Return the rows that are nearest to each target.

    Parameters
    ----------
    rows : float (n, p)
    targets : float (b, p)
        In CSR if the rows are.
    count : int
        At most n.
    threads : int
        For rows in CSR.

    Returns
    -------
    int64 (b, count)
        Places in `rows`, nearest first; the same for any number of threads.
    """
    if is_sparse(rows) and is_sparse(targets):
        return _nearest_by_products(rows, targets, count=count, threads=threads)
    assert count <= len(rows)
    if not len(targets):
        return np.empty((0, count), np.int64)
    chunk_rows = _CHUNK_OF_FEW if len(targets) <= _FEW_TARGETS else _CHUNK_ROWS
    return nearest_places(rows, targets, count, chunk_rows=chunk_rows)


def _nearest_by_products(
    rows: csr_array, targets: csr_array, *, count: int, threads: int
) -> NDArray[np.int64]:
    """Return the result of `nearest_rows`, by products of tiles in double precision."""
    n_targets = targets.shape[0]
    places = np.full((n_targets, count), MISSING)
    # Half the squared distances, up to a constant of each target.
    remoteness = np.full((n_targets, count), np.inf)
    tiles = [slice(a, a + _TILE_TARGETS) for a in range(0, n_targets, _TILE_TARGETS)]

    def keep_nearest(first: int, halves: Floats, columns: csr_array, strip: slice) -> None:
        for some in tiles[strip]:
            remote = halves - (targets[some].astype(np.float64) @ columns).toarray()
            # Most rows are far from all targets, and sorting takes longest.
            bounds = remoteness[some].max(axis=1, keepdims=True)
            near = np.flatnonzero((remote < bounds).any(axis=0))
            remote = np.hstack([remoteness[some], remote[:, near]])
            found = np.hstack([places[some], np.tile(first + near, (len(remote), 1))])
            kept = np.argpartition(remote, count - 1, axis=1)[:, :count]
            places[some] = np.take_along_axis(found, kept, axis=1)
            remoteness[some] = np.take_along_axis(remote, kept, axis=1)

    for first in range(0, rows.shape[0], _TILE_ROWS):
        tile = rows[first : first + _TILE_ROWS].astype(np.float64)
        step = partial(keep_nearest, first, 0.5 * squared_norms(tile), tile.T.tocsr())
        # A tile is a strip of its own.
        over_strips(step, (len(tiles), _TILE_ROWS * _TILE_TARGETS), threads)
    order = np.argsort(remoteness, axis=1, kind="stable")
    return np.take_along_axis(places, order, axis=1)


def drop_self(found: NDArray[np.int64], queries: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row numbers without the row's own number, or without the last.

    Parameters
    ----------
    found : int64 (b, k + 1)
        Row numbers.
    queries : int64 (b,)
        The rows' own numbers.

    Returns
    -------
    int64 (b, k)
    """
    own = found == queries[:, None]
    own[~own.any(axis=1), -1] = True
    return found[~own].reshape(len(found), -1)


class Repeats(NamedTuple):
    """Rows of a block that have at least k copies in it.

    Attributes
    ----------
    rows : int64 (m,)
        Their places in the block.
    indices : int64 (m, k)
        Places of k equal rows.
    searched : bool (b,)
        Rows that a search still needs: all except copies beyond the first k + 1 of a row.
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
        Orders the copies, so that neither their neighbours nor the searched copies depend on the
        order of the block.

    Returns
    -------
    Repeats

    Notes
    -----
    k + 1 copies of a row are enough for the neighbours of every other row, so a search does not
    grow with the number of copies.

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
    # The copies form a circle: the neighbours of a copy are the next k.
    following = (place[:, None] + np.arange(1, n_neighbors + 1)) % sizes[:, None]
    searched = np.ones(rows.shape[0], dtype=bool)
    searched[members[place > n_neighbors]] = False
    return Repeats(members, members[starts[:, None] + following], searched)
