"""The nearest rows of the candidates, as a sum over all rows."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from threadpoolctl import threadpool_limits

from dask_nrbfn.neighbors.exact import nearest_rows
from dask_nrbfn.neighbors.lists import MISSING, measure_pairs
from dask_nrbfn.neighbors.partition import cluster_means
from dask_nrbfn.numeric.hashing import hash_rows
from dask_nrbfn.numeric.products import over_strips
from dask_nrbfn.numeric.rows import Rows, is_sparse, squared_norms
from dask_nrbfn.numeric.sums import RowSum
from dask_nrbfn.numeric.types import Floats

# A tile of products, 1 MiB in single precision, stays in a core's cache until it is compared.
_TILE = 256, 1024

# For CSR a tile of many rows is better: few rows share a column with each candidate.
_SPARSE_TILE = 2048, 128

# Number of candidates whose neighbours in a sample decide how many partitions are searched, and the
# share of these neighbours that must lie in the searched partitions.
_ASKED = 1000
_SOUGHT = 0.975

# Rows of the sample that k-means takes for each partition.
_ROWS_OF_PARTITION = 128

# A fourth of the sample is searched for the first bounds; then 4 k rows of the sample are within.
_FIRST_SHARE = 4


@dataclass(frozen=True, eq=False)
class NearestRows(RowSum):
    """The nearest rows of every candidate among the summed rows.

    The sum keeps the nearest rows of both; at equal distances the rows of the left operand come
    first.

    indices (N, k): row numbers, nearest first, at equal distances the smallest first; -1 for no
        row.
    distances (N, k).

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
        """Return the sum over no rows.

        n_candidates, n_neighbors: N and k.
        """
        shape = n_candidates, n_neighbors
        return cls(np.full(shape, MISSING), np.full(shape, np.inf))

    @classmethod
    def _of_pairs(
        cls,
        candidates: NDArray[np.int64],
        rows: NDArray[np.int64],
        distances: Floats,
        *,
        n_candidates: int,
        n_neighbors: int,
    ) -> Self:
        """Return the nearest rows among some pairs.

        candidates, rows (m,): places of candidates and row numbers, pair by pair.
        n_candidates, n_neighbors: N and k.
        distances (m,).
        """
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
        # A stable sort is fast on two sorted lists, and leaves the rows of the first list first.
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
    """The candidates by the partitions that they search; a row belongs to its nearest partition.

    centroids (S, p): centroids of the partitions. With a single partition, every candidate is
        compared with every row.
    probes (ceil(S / 8), N): bits: whether a candidate searches each of eight partitions. Lists of
        partitions would be the largest array for rows without structure.
    candidates (N, p).
    """

    candidates: Rows
    centroids: NDArray[Any]
    probes: NDArray[np.uint8]

    @classmethod
    def of(
        cls,
        candidates: Rows,
        sample: Rows,
        *,
        n_partitions: int,
        n_neighbors: int,
        seed: int,
        threads: int = 1,
    ) -> Self:
        """Place partitions by a sample, at most as many as it has distinct rows.

        sample (s, p): rows drawn from all rows.
        candidates (N, p).

        Every candidate searches as many of the nearest partitions as hold the share `_SOUGHT` of
        the neighbours of candidates in the sample. Neighbours among all rows are nearer and lie in
        fewer partitions.
        """
        n_candidates = candidates.shape[0]
        if n_partitions == 1:
            nowhere = np.zeros((1, sample.shape[1]), sample.dtype)
            return cls(candidates, nowhere, np.full((1, n_candidates), 128, np.uint8))
        _, first = np.unique(hash_rows(sample, seed=seed), return_index=True)
        distinct = sample[np.sort(first)][: n_partitions * _ROWS_OF_PARTITION]
        centroids = cluster_means(distinct, min(n_partitions, distinct.shape[0]), seed=seed)
        asked = candidates[:: -(-n_candidates // _ASKED)]
        homes = _nearest_centroids(sample, centroids)
        found = nearest_rows(sample, asked, count=n_neighbors + 1, threads=threads)
        ranks = np.take_along_axis(
            _over_remoteness(_ranks, asked, centroids), homes[found.indices[:, 1:]], axis=1
        )
        n_probes = 1 + int(np.quantile(ranks, _SOUGHT, method="inverted_cdf"))

        def probed(remoteness: NDArray[Any]) -> NDArray[np.uint8]:
            return np.packbits(_ranks(remoteness) < n_probes, axis=1)

        probes = _over_remoteness(probed, candidates, centroids)
        return cls(candidates, centroids, np.ascontiguousarray(probes.T))

    @property
    def n_probes(self) -> int:
        """Number of partitions that each candidate searches, m."""
        return int(np.unpackbits(self.probes[:, 0]).sum())

    def _members(self, partition: int) -> NDArray[np.int64]:
        """Return the candidates that search a partition."""
        byte, bit = divmod(partition, 8)
        return np.flatnonzero(self.probes[byte] & (128 >> bit))

    def near(
        self, rows: Rows, bounds: Floats, *, threads: int, most: float = math.inf
    ) -> Pairs | None:
        """Return all pairs within the candidate's bound, and a few more.

        None if there are more than `most`.

        rows (b, p): of the dtype of the candidates.
        bounds (N,): squared distances.
        most: maximum number of pairs; little more is held in memory.

        One product and one comparison for each pair, in strips that stay in the cache.
        """
        n_tile_rows, n_tile_candidates = _SPARSE_TILE if is_sparse(rows) else _TILE
        tiles, n_pairs = self._tiles(rows, n_tile_rows, threads), 0

        def compare(strip: slice) -> list[Pairs]:
            nonlocal n_pairs
            found = []
            for partition, places in tiles[strip]:
                tile = rows[places]
                for some in _strips_of(self._members(partition), n_tile_candidates):
                    if n_pairs > most:
                        return []
                    near = _near_of_tile(
                        tile, self.candidates[some], bounds[some], self.centroids[partition]
                    )
                    n_pairs += len(near.rows)
                    found.append(Pairs(some[near.candidates], places[near.rows]))
            return found

        with threadpool_limits(1):
            # A tile is a strip of its own.
            found = over_strips(compare, (len(tiles), n_tile_rows * n_tile_candidates), threads)
        if n_pairs > most:
            return None
        none = Pairs(np.empty(0, np.int64), np.empty(0, np.int64))
        pairs = [none, *(each for of_strip in found for each in of_strip)]
        return Pairs(*map(np.concatenate, zip(*pairs, strict=True)))

    def _tiles(
        self, rows: Rows, n_tile_rows: int, threads: int
    ) -> list[tuple[int, NDArray[np.int64]]]:
        """Return partitions and the places of a few of their rows."""
        homes = _nearest_centroids(rows, self.centroids, threads=threads)
        counts = np.bincount(homes, minlength=len(self.centroids))
        places = np.split(np.argsort(homes, kind="stable"), np.cumsum(counts)[:-1])
        return [
            (int(partition), places[partition][start : start + n_tile_rows])
            for partition in np.flatnonzero(counts)
            for start in range(0, counts[partition], n_tile_rows)
        ]


def _strips_of(members: NDArray[np.int64], size: int) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(members), size):
        yield members[start : start + size]


def _near_of_tile(rows: Rows, candidates: Rows, bounds: Floats, centre: NDArray[Any]) -> Pairs:
    """Return the pairs of a tile that are within the bounds.

    ``x y - |x|^2 / 2 + (bound - |y|^2) / 2 >= 0``. The squares are reduced by more than the likely
    rounding of a product of p numbers. Rows are centred at their partition, where near rows lose
    few digits. Rows in CSR are not centred; their products have double precision instead.
    """
    half = 0.5 - (4.0 + rows.shape[1] ** 0.5) * np.finfo(rows.dtype).eps
    if is_sparse(rows) and is_sparse(candidates):
        surplus = _sparse_surplus(rows, candidates, bounds, half)
    else:
        surplus = _surplus(rows - centre, candidates - centre, bounds, half)
    return Pairs(*np.divmod(np.flatnonzero(surplus >= 0.0), max(1, rows.shape[0])))


def _surplus(
    rows: NDArray[Any], candidates: NDArray[Any], bounds: Floats, half: float
) -> NDArray[Any]:
    """Return half of bound minus squared distance of pairs, as one product of extended rows."""
    dtype, ones = rows.dtype, np.ones
    squares, own = (half * np.einsum("ij,ij->i", each, each) for each in (rows, candidates))
    lifted = np.column_stack([rows, -squares, ones(len(rows))]).astype(dtype, copy=False)
    sought = np.column_stack([candidates, ones(len(own)), 0.5 * bounds - own])
    return sought.astype(dtype, copy=False) @ lifted.T


def _sparse_surplus(rows: csr_array, candidates: csr_array, bounds: Floats, half: float) -> Floats:
    squares, own = (half * squared_norms(each) for each in (rows, candidates))
    products = candidates.astype(np.float64) @ rows.astype(np.float64).T
    return products.toarray() - squares + (0.5 * bounds - own)[:, None]


def _nearest_centroids(
    rows: Rows, centroids: NDArray[Any], *, threads: int = 1
) -> NDArray[np.int64]:
    """Return the centroid (S, p) that is nearest to each row (b, p), int64 (b,)."""
    with threadpool_limits(1):
        return _over_remoteness(_nearest, rows, centroids, threads=threads)


def _over_remoteness(
    step: Callable[[NDArray[Any]], NDArray[Any]],
    rows: Rows,
    centroids: NDArray[Any],
    *,
    threads: int = 1,
) -> NDArray[Any]:
    """Return the results of `step` for the remoteness (b, S) of rows from centroids.

    Remoteness is half the squared distance, up to a constant of each row.
    """
    # In the memory order of products of rows in CSR, which otherwise copy the array each time.
    directions = np.ascontiguousarray(-centroids.T)
    halves = 0.5 * np.einsum("ij,ij->i", centroids, centroids)

    def compare(strip: slice) -> NDArray[Any]:
        return step(rows[strip] @ directions + halves)

    return np.concatenate(over_strips(compare, (rows.shape[0], len(centroids)), threads))


def _nearest(remoteness: NDArray[Any]) -> NDArray[np.int64]:
    return remoteness.argmin(axis=1)


def _ranks(remoteness: NDArray[Any]) -> NDArray[np.int64]:
    """Return the rank of each centroid by its distance from each row, from 0, int64 (b, S)."""
    return np.argsort(np.argsort(remoteness, axis=1, kind="stable"), axis=1)


class CandidateSearch:
    """The nearest rows of candidates among all added rows.

    bounds (N,): upper bounds of the squared distances to the k nearest rows.
    numbers (N,): row numbers of the candidates. A candidate is not a neighbour of itself.
    """

    def __init__(
        self,
        file: InvertedFile,
        bounds: Floats,
        numbers: NDArray[np.int64],
        *,
        n_neighbors: int,
        threads: int,
    ) -> None:
        self._file, self._bounds, self._numbers, self._threads = file, bounds, numbers, threads
        self._nearest = NearestRows.none(len(numbers), n_neighbors)
        self._waiting: list[tuple[NDArray[Any], ...]] = []

    def add(self, rows: Rows, numbers: NDArray[np.int64]) -> None:
        """Add rows.

        If the rows have more pairs than the lists have places, they are added in halves. Nearly all
        are pairs if rows are equally far from each other, or too near to be distinguished.

        numbers (b,): larger than the numbers of all rows added before.
        rows (b, p).
        """
        most = self._nearest.indices.size
        pairs = self._file.near(rows, self._bounds, threads=self._threads, most=most)
        if pairs is None:
            middle = len(numbers) // 2
            self.add(rows[:middle], numbers[:middle])
            self.add(rows[middle:], numbers[middle:])
            return
        others = numbers[pairs.rows] != self._numbers[pairs.candidates]
        candidates, near = pairs.candidates[others], pairs.rows[others]
        squared = measure_pairs(rows, self._file.candidates, near, candidates)
        self._waiting.append((candidates, numbers[near], np.sqrt(squared)))
        # Sorting fewer pairs than the lists have places would take longer than merging.
        if sum(len(each) for each, *_ in self._waiting) > most:
            self.nearest()

    def nearest(self) -> NearestRows:
        """Return the nearest rows so far; the furthest of each list is the bound from now on."""
        if self._waiting:
            columns = map(np.concatenate, zip(*self._waiting, strict=True))
            n_candidates, n_neighbors = self._nearest.indices.shape
            self._nearest += NearestRows._of_pairs(
                *columns, n_candidates=n_candidates, n_neighbors=n_neighbors
            )
            self._bounds = np.minimum(self._bounds, self._nearest.distances[:, -1] ** 2)
            self._waiting = []
        return self._nearest


def bounds_of(file: InvertedFile, sample: Rows, *, n_neighbors: int, threads: int) -> Floats:
    """Return upper bounds of the squared distance to the k-th nearest other row of each candidate.

    sample (s, p): more than k of all rows; candidates may be among them.
    returns float64 (N,).

    The bounds from a part of the sample are used to search the whole sample for better bounds.
    """
    candidates, count = file.candidates, n_neighbors + 1
    n_sampled, n_candidates = sample.shape[0], candidates.shape[0]
    begun = sample[: max(count, n_sampled // _FIRST_SHARE)]
    begun_with = nearest_rows(begun, candidates, count=count, threads=threads)
    furthest = begun_with.indices[:, -1]
    bounds = measure_pairs(begun, candidates, furthest, np.arange(n_candidates))
    nobody = np.full(n_candidates, MISSING)
    search = CandidateSearch(file, bounds, nobody, n_neighbors=count, threads=threads)
    size = max(1, n_sampled // (2 * _FIRST_SHARE))
    for start in range(0, n_sampled, size):
        numbers = np.arange(start, min(start + size, n_sampled))
        search.add(sample[numbers], numbers)
    return np.minimum(bounds, search.nearest().distances[:, -1] ** 2)
