"""Partitions of the feature space that overlap and have about equally many rows."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from threadpoolctl import threadpool_limits

from dask_nrbfn.numeric.hashing import hash_rows
from dask_nrbfn.numeric.rows import Rows, dense, squared_norms
from dask_nrbfn.numeric.types import Floats

# Largest partition over the mean. A smaller ratio costs recall, 0.5 % at 1.1; a larger one memory.
MAX_IMBALANCE = 1.2

# Successful balancing took 4 to 95 rounds. In the first rounds centroids follow their rows. Later
# the centroids are fixed, because otherwise the offsets never converge.
_MAX_ROUNDS = 200
_MOVING_ROUNDS = 50
_KMEANS_ITERATIONS = 20
_POWER_ITERATIONS = 10

# Distances to all centroids that are held at a time: 32 MiB.
_STRIP_ELEMENTS = 2**22


@dataclass(frozen=True, eq=False)
class Partitions:
    """S centroids; a row belongs to the nearest, and to others if their border is near.

    offsets (S,): added to the squared distances, so that full partitions seem further away.
    reaches (S,): distance from the border of another partition up to which a row belongs to both.
    """

    centroids: Floats
    offsets: Floats
    reaches: Floats

    @classmethod
    def balanced(cls, sample: Rows, n_partitions: int, *, overlap: int, seed: int) -> Self:
        """Place at most `n_partitions` partitions with about equal numbers of rows of a sample.

        `overlap` is the mean number of partitions of a row; a row has at most one more. Rows in the
        middle of a partition have one, which leaves more for rows near a border.

        k-means on the distinct rows of the sample, then offsets that reduce the fullest partition
        to 1.2 times the mean; partitions stay convex (a power diagram). Each round sets every
        offset so that its partition would hold the geometric mean of its present and its desired
        number of rows. k-means gives wide clusters many centroids even if they have few rows. If
        offsets cannot balance that, the sample is halved repeatedly and the means of the pieces are
        balanced instead. Runs on one thread, because with more the last bits differ.
        """
        sample = sample.astype(np.float64, copy=False)
        _, first = np.unique(hash_rows(sample, seed=seed), return_index=True)
        n_partitions = min(n_partitions, len(first))
        with threadpool_limits(1):
            distinct = sample[np.sort(first)]
            means = cluster_means(distinct, n_partitions, seed=seed)
            if n_partitions <= overlap:
                return cls._plain(means)
            placed, imbalance = cls._plain(means)._balance(sample, overlap)
            if imbalance <= MAX_IMBALANCE:
                return placed
            pieces = _means_of_pieces(sample, n_partitions, np.random.default_rng(seed))
            halved, halved_imbalance = cls._plain(pieces)._balance(sample, overlap)
            return halved if halved_imbalance < imbalance else placed

    @classmethod
    def _plain(cls, centroids: Floats) -> Self:
        return cls(centroids, np.zeros(len(centroids)), np.full(len(centroids), np.inf))

    def _balance(self, sample: Rows, overlap: int) -> tuple[Self, float]:
        """Return balanced partitions, and the size of the fullest over the mean."""
        goal = sample.shape[0] * overlap / len(self.offsets)
        best, best_count = self, math.inf
        current = self
        for step in range(_MAX_ROUNDS):
            squared = current._squared_distances(sample)
            nearest = _smallest(squared, overlap + 1)
            margins = current._margins(squared, nearest)
            reaches = _reaches(nearest[:, 0], margins, overlap, len(self.offsets))
            current = replace(current, reaches=reaches)
            members = current._within_reach(nearest, margins)
            counts = np.bincount(members[members >= 0], minlength=len(self.offsets))
            if counts.max() < best_count:
                best, best_count = current, counts.max()
            if best_count <= MAX_IMBALANCE * goal:
                break
            growth = np.sqrt(goal / np.maximum(counts, 1))
            offsets = current.offsets + _offset_changes(squared, nearest[:, :overlap], growth)
            centroids = current.centroids
            if step < _MOVING_ROUNDS:
                centroids = _means_of_members(sample, nearest[:, 0], centroids)
            current = replace(current, centroids=centroids, offsets=offsets - np.median(offsets))
        return best, best_count / goal

    def route(self, rows: Rows, *, overlap: int) -> NDArray[np.int64]:
        """Return the partitions of rows (b, min(overlap + 1, S)), nearest first; -1 for none."""
        step = max(1, _STRIP_ELEMENTS // len(self.offsets))
        strips = []
        for start in range(0, rows.shape[0], step):
            squared = self._squared_distances(rows[start : start + step])
            nearest = _smallest(squared, overlap + 1)
            strips.append(self._within_reach(nearest, self._margins(squared, nearest)))
        return np.concatenate(strips)

    def _squared_distances(self, rows: Rows) -> Floats:
        """Return squared distances with offsets, up to a constant of each row."""
        squared: Floats = rows @ self._directions
        squared += squared_norms(self.centroids) + self.offsets
        return squared

    def _margins(self, squared: Floats, nearest: NDArray[np.int64]) -> Floats:
        """Return the distances of rows from the borders to their nearest partitions."""
        home = nearest[:, :1]
        differences = np.take_along_axis(squared, nearest, axis=1)
        differences -= differences[:, :1].copy()
        apart = self._centroid_distances[home, nearest]
        return differences / (2.0 * apart)

    @cached_property
    def _directions(self) -> Floats:
        # In the memory order of products of rows in CSR, which otherwise copy the array each time.
        return np.ascontiguousarray(-2.0 * self.centroids.T)

    @cached_property
    def _centroid_distances(self) -> Floats:
        import sklearn.metrics  # noqa: F401  first, as in `cluster_means`
        from sklearn.metrics.pairwise import euclidean_distances

        distances: Floats = euclidean_distances(self.centroids)
        # Every row is at the border between its partition and itself, or an equal partition.
        distances[distances == 0.0] = np.inf
        return distances

    def _within_reach(self, nearest: NDArray[np.int64], margins: Floats) -> NDArray[np.int64]:
        inside = margins < self.reaches[nearest[:, :1]]
        inside[:, 0] = True
        return np.where(inside, nearest, -1)


def cluster_means(rows: Rows, n_clusters: int, *, seed: int) -> NDArray[Any]:
    """Return the means of k-means clusters, (S, p), with the dtype of the rows.

    Runs on one thread, because with more threads the last bits differ from run to run.
    """
    # Two threads that begin to import different parts of scikit-learn at once can fail.
    import sklearn.metrics  # noqa: F401
    from sklearn.cluster import KMeans

    means = KMeans(n_clusters, n_init=1, max_iter=_KMEANS_ITERATIONS, random_state=seed)
    # A limit that began before the import does not hold for OpenMP, which the import loads.
    with threadpool_limits(1):
        return np.asarray(means.fit(rows).cluster_centers_)


def _reaches(home: NDArray[np.int64], margins: Floats, overlap: int, n_partitions: int) -> Floats:
    """Return the reaches with which rows belong to at most `overlap` partitions on average."""
    reaches = np.full(n_partitions, np.inf)
    order = np.argsort(home, kind="stable")
    counts = np.bincount(home, minlength=n_partitions)
    for partition, members in enumerate(np.split(order, np.cumsum(counts)[:-1])):
        wanted = (overlap - 1) * len(members)
        if len(members):
            others = np.append(margins[members, 1:], np.inf)
            reaches[partition] = np.partition(others, wanted)[wanted]
    return reaches


def _smallest(values: Floats, count: int) -> NDArray[np.int64]:
    """Return the columns of the `count` smallest values of every row, in ascending order."""
    if count >= values.shape[1]:
        return np.argsort(values, axis=1, kind="stable")
    columns = np.sort(np.argpartition(values, count, axis=1)[:, :count], axis=1)
    order = np.argsort(np.take_along_axis(values, columns, axis=1), axis=1, kind="stable")
    return np.take_along_axis(columns, order, axis=1)


def _offset_changes(squared: Floats, members: NDArray[np.int64], growth: Floats) -> Floats:
    """Return changes of the offsets that give each partition `growth` times its rows.

    The rows of a partition are those that have it among their `overlap` nearest partitions.
    """
    overlap = members.shape[1]
    ordered = np.partition(squared, (overlap - 1, overlap), axis=1)
    last, next_best = ordered[:, overlap - 1], ordered[:, overlap]
    inside = np.zeros(squared.shape, dtype=bool)
    np.put_along_axis(inside, members, True, axis=1)
    changes = np.zeros(squared.shape[1])
    for partition, factor in enumerate(growth):
        # A row belongs to the partition as long as its offset grows by less than this.
        room = np.where(inside[:, partition], next_best, last) - squared[:, partition]
        count = max(int(inside[:, partition].sum()), 1)
        rank = len(room) - int(np.clip(factor * count, 1, len(room) - 1))
        changes[partition] = np.partition(room, rank)[rank]
    return changes


def _means_of_pieces(rows: Rows, n_pieces: int, rng: np.random.Generator) -> Floats:
    """Return the means of pieces of equal size, split where rows spread most, (S, p)."""
    mean = rows.mean(axis=0)
    if n_pieces == 1:
        return mean[None]
    n_left = n_pieces // 2
    # A direction near the first principal component is enough.
    direction = rng.normal(size=rows.shape[1])
    for _ in range(_POWER_ITERATIONS):
        along = rows @ direction - mean @ direction
        direction = along @ rows - along.sum() * mean
        direction /= max(float(np.linalg.norm(direction)), np.finfo(np.float64).tiny)
    order = np.argsort(rows @ direction, kind="stable")
    cut = round(rows.shape[0] * n_left / n_pieces)
    left = _means_of_pieces(rows[order[:cut]], n_left, rng)
    right = _means_of_pieces(rows[order[cut:]], n_pieces - n_left, rng)
    return np.concatenate([left, right])


def _means_of_members(sample: Rows, nearest: NDArray[np.int64], centroids: Floats) -> Floats:
    """Return the means of the rows nearest to each centroid (S, p); unchanged if there are none."""
    shape = (len(centroids), len(nearest))
    members = csr_array((np.ones(len(nearest)), (nearest, np.arange(len(nearest)))), shape=shape)
    counts = np.bincount(nearest, minlength=len(centroids))
    filled = counts > 0
    means = centroids.copy()
    means[filled] = dense(members @ sample)[filled] / counts[filled, None]
    return means
