"""The nearest rows of some of them, the candidates, as a sum over all rows."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from dask_nrbfn.neighbors.distances import measure_pairs
from dask_nrbfn.neighbors.exact import nearest_rows
from dask_nrbfn.neighbors.merge import MISSING
from dask_nrbfn.neighbors.partition import cluster_means
from dask_nrbfn.numeric.hashing import hash_rows
from dask_nrbfn.numeric.strips import over_strips
from dask_nrbfn.numeric.sums import RowSum

Floats = NDArray[np.float64]

# A tile of products, 1 MiB in single precision, stays in a core's cache until it is compared.
_TILE_ROWS, _TILE_CANDIDATES = 256, 1024

# Candidates whose neighbours in a sample tell how many partitions each must look into, and the
# share of these neighbours that lie there.
_ASKED = 1000
_SOUGHT = 0.975

# Rows of the sample that k-means takes for each partition.
_ROWS_OF_PARTITION = 128

# A fourth of the sample is searched for the first bounds, which leave four times k rows of it.
_FIRST_SHARE = 4


@dataclass(frozen=True, eq=False)
class NearestRows(RowSum):
    """The nearest rows of every candidate among those that were summed.

    The sum keeps the nearest of both; of equal ones those of the first, whose rows stand before.

    Attributes
    ----------
    indices : int64 (N, k)
        Row numbers, nearest first, of equal ones the first; -1 where there are fewer.
    distances : float64 (N, k)

    Examples
    --------
    >>> first = NearestRows(np.array([[4, 2]]), np.array([[1.0, 3.0]]))
    >>> (first + NearestRows(np.array([[7, 8]]), np.array([[1.0, 2.0]]))).indices
    array([[4, 7]])
    """

    indices: NDArray[np.int64]
    distances: Floats

    @classmethod
    def none(cls, n_candidates: int, n_neighbors: int) -> Self:
        """Return the sum over no rows."""
        shape = n_candidates, n_neighbors
        return cls(np.full(shape, MISSING), np.full(shape, np.inf))

    @classmethod
    def of_pairs(
        cls,
        candidates: NDArray[np.int64],
        rows: NDArray[np.int64],
        distances: Floats,
        *,
        n_candidates: int,
        n_neighbors: int,
    ) -> Self:
        """Return the nearest rows that pairs of a candidate and a row tell, each (m,)."""
        nearest = cls.none(n_candidates, n_neighbors)
        order = np.lexsort((rows, distances, candidates))
        candidates = candidates[order]
        ranks = np.arange(len(order)) - np.searchsorted(candidates, candidates)
        kept = ranks < n_neighbors
        places, order = (candidates[kept], ranks[kept]), order[kept]
        nearest.indices[places], nearest.distances[places] = rows[order], distances[order]
        return nearest

    def __add__(self, other: Self) -> Self:
        indices = np.hstack([self.indices, other.indices])
        distances = np.hstack([self.distances, other.distances])
        # A stable sort finds two that are in order, and leaves the first ones first.
        order = np.argsort(distances, axis=1, kind="stable")[:, : self.indices.shape[1]]
        return type(self)(
            np.take_along_axis(indices, order, axis=1),
            np.take_along_axis(distances, order, axis=1),
        )


class Pairs(NamedTuple):
    """Places of candidates and of rows that may be neighbours, int64 (m,) each."""

    candidates: NDArray[np.int64]
    rows: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class InvertedFile:
    """The candidates by the partitions that each looks into; a row belongs to the nearest one.

    Attributes
    ----------
    candidates : float (N, p)
    centroids : float (S, p)
        Of the partitions; with one of them every candidate looks at every row.
    probes : int64 (N, m)
        The partitions that each candidate looks into.
    """

    candidates: NDArray[Any]
    centroids: NDArray[Any]
    probes: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        candidates: NDArray[Any],
        sample: NDArray[Any],
        *,
        n_partitions: int,
        n_neighbors: int,
        seed: int,
    ) -> Self:
        """Place partitions, as many as asked for if as many rows of the sample are distinct.

        Parameters
        ----------
        candidates : float (N, p)
        sample : float (s, p)
            Rows drawn from all rows.
        n_partitions, n_neighbors, seed : int

        Notes
        -----
        Every candidate looks into as many of the nearest partitions as hold `_SOUGHT` of the
        neighbours that candidates have in the sample; among all rows they are nearer, and in
        fewer. k-means runs on one thread, because with more the last bits differ from run to run.
        """
        if n_partitions == 1:
            nowhere = np.zeros((1, sample.shape[1]), sample.dtype)
            return cls(candidates, nowhere, np.zeros((len(candidates), 1), np.int64))
        _, first = np.unique(hash_rows(sample, seed=seed), return_index=True)
        distinct = sample[np.sort(first)][: n_partitions * _ROWS_OF_PARTITION]
        with threadpool_limits(1):
            centroids = cluster_means(distinct, min(n_partitions, len(distinct)), seed=seed)
        asked = candidates[:: -(-len(candidates) // _ASKED)]
        homes = nearest_centroids(sample, centroids, count=1)[:, 0]
        neighbors = nearest_rows(sample, asked, count=n_neighbors + 1)[:, 1:]
        order = nearest_centroids(asked, centroids, count=len(centroids))
        ranks = np.take_along_axis(np.argsort(order, axis=1), homes[neighbors], axis=1)
        n_probes = 1 + int(np.quantile(ranks, _SOUGHT, method="inverted_cdf"))
        return cls(candidates, centroids, nearest_centroids(candidates, centroids, count=n_probes))

    @cached_property
    def _members(self) -> list[NDArray[np.int64]]:
        """The candidates that look into each partition."""
        order = np.argsort(self.probes, axis=None, kind="stable")
        counts = np.bincount(self.probes.ravel(), minlength=len(self.centroids))
        return np.split(order // self.probes.shape[1], np.cumsum(counts)[:-1])

    def near(self, rows: NDArray[Any], bounds: Floats, *, threads: int) -> Pairs:
        """Return the pairs that are no further apart than the candidate's bound, and a few more.

        Parameters
        ----------
        rows : float (b, p)
            As precise as the candidates.
        bounds : float64 (N,)
            Squared distances.
        threads : int

        Notes
        -----
        One product and one comparison for each pair: ``x y - |x|^2 / 2 >= (|y|^2 - bound) / 2``.
        Bounds are raised by what rounding can make of it, so no pair is lost.
        """
        dtype = rows.dtype
        squared = np.einsum("ij,ij->i", rows, rows)
        own = np.einsum("ij,ij->i", self.candidates, self.candidates)
        rounding = (rows.shape[1] + 4) * np.finfo(dtype).eps * (own + squared.max(initial=0.0))
        lifted = np.column_stack([rows, -0.5 * squared, np.ones(len(rows), dtype)])
        sought = np.column_stack(
            [self.candidates, np.ones(len(own), dtype), 0.5 * (bounds + 2 * rounding - own)]
        ).astype(dtype, copy=False)
        tiles = self._tiles(rows, threads)

        def compare(strip: slice) -> list[Pairs]:
            return [
                pairs
                for members, places in tiles[strip]
                for pairs in _near_of_tile(lifted, sought, members, places)
            ]

        with threadpool_limits(1):
            # A tile is a strip of its own.
            found = over_strips(compare, (len(tiles), _TILE_ROWS * _TILE_CANDIDATES), threads)
        none = Pairs(np.empty(0, np.int64), np.empty(0, np.int64))
        pairs = [none, *(each for of_strip in found for each in of_strip)]
        return Pairs(*map(np.concatenate, zip(*pairs, strict=True)))

    def _tiles(
        self, rows: NDArray[Any], threads: int
    ) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Return candidates and the places of a few rows of one of their partitions."""
        homes = nearest_centroids(rows, self.centroids, count=1, threads=threads)[:, 0]
        order = np.argsort(homes, kind="stable")
        counts = np.bincount(homes, minlength=len(self.centroids))
        return [
            (members, places[start : start + _TILE_ROWS])
            for members, places in zip(
                self._members, np.split(order, np.cumsum(counts)[:-1]), strict=True
            )
            if len(members)
            for start in range(0, len(places), _TILE_ROWS)
        ]


def _near_of_tile(
    lifted: NDArray[Any],
    sought: NDArray[Any],
    members: NDArray[np.int64],
    places: NDArray[np.int64],
) -> list[Pairs]:
    rows, found = lifted[places], []
    for start in range(0, len(members), _TILE_CANDIDATES):
        some = members[start : start + _TILE_CANDIDATES]
        near = np.flatnonzero(sought[some] @ rows.T >= 0.0)
        if len(near):
            candidate, row = np.divmod(near, len(rows))
            found.append(Pairs(some[candidate], places[row]))
    return found


def nearest_centroids(
    rows: NDArray[Any], centroids: NDArray[Any], *, count: int, threads: int = 1
) -> NDArray[np.int64]:
    """Return the `count` centroids (S, p) that are nearest to each row (b, p), int64 (b, count)."""
    norms = 0.5 * np.einsum("ij,ij->i", centroids, centroids)

    def nearest(strip: slice) -> NDArray[np.int64]:
        far = norms - rows[strip] @ centroids.T
        if count == 1:
            return np.argmin(far, axis=1, keepdims=True)
        return np.argsort(far, axis=1, kind="stable")[:, :count]

    with threadpool_limits(1):
        return np.concatenate(over_strips(nearest, (len(rows), len(centroids)), threads))


def bounds_of(
    file: InvertedFile, sample: NDArray[Any], *, n_neighbors: int, threads: int
) -> Floats:
    """Return what the squared distance to the k-th nearest other row is at most, float64 (N,).

    Parameters
    ----------
    file : InvertedFile
    sample : float (s, p)
        More than k of all rows; candidates may be among them.
    n_neighbors, threads : int

    Notes
    -----
    A part of the sample gives bounds with which the whole of it is searched, and that better ones.
    """
    candidates, count = file.candidates, n_neighbors + 1
    begun = sample[: max(count, len(sample) // _FIRST_SHARE)]
    furthest = nearest_rows(begun, candidates, count=count)[:, -1]
    bounds = measure_pairs(begun, candidates, furthest, np.arange(len(candidates)))
    pairs = file.near(sample, bounds, threads=threads)
    squared = measure_pairs(sample, candidates, pairs.rows, pairs.candidates)
    shape = {"n_candidates": len(candidates), "n_neighbors": count}
    nearest = NearestRows.of_pairs(pairs.candidates, pairs.rows, squared, **shape)
    return np.minimum(bounds, nearest.distances[:, -1])
