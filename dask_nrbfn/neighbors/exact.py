"""Exact neighbours: by brute force, or without a search where a row has k copies."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.neighbors.lists import MISSING, Neighbors, measure_neighbors, squared_distances
from dask_nrbfn.numeric.device import Gpu, active_gpu
from dask_nrbfn.numeric.hashing import hash_rows
from dask_nrbfn.numeric.rows import Rows, dense, is_csr, squared_norms
from dask_nrbfn.numeric.threads import side_by_side
from dask_nrbfn.numeric.types import Floats

Blocks = Iterator[tuple[int, NDArray[Any]]]
Precision = type[np.float32] | type[np.float64]

# Rows and targets in CSR whose products are held at a time: 2 MiB, and twice as much before the
# products become an array. With fewer rows, finding the columns takes as long as the products.
_TILE_ROWS = 2048
_TILE_TARGETS = 128

# Rows in arrays, of at most so many elements, that a thread compares with a strip of targets at a
# time: the products, at most 2 MiB in single precision, stay in its cache.
_BLOCK_ROWS = 512
_BLOCK_ELEMENTS = 2**19
_STRIP_TARGETS = 1024
_STRIP_ELEMENTS = 2**19
_STRIP_CANDIDATES = 2**15

# The number of strips of at least 64 targets is a multiple of 16, which keeps 16 threads busy.
_LEAST_TARGETS = 64
_STRIPS = 16

# Rows among which the nearest are found at a time, and elements of a block of their products: 1 GiB
# in single precision.
_SEARCHED_ROWS = 2**16
_SEARCH_ELEMENTS = 2**28

# Elements of rows that are gathered for their distances: 512 MiB of float64.
_GATHERED_ELEMENTS = 2**26

# Places of a list of candidates, times its length: so many candidates are sorted at a time.
_ROOM = 4

# Candidates beyond the wanted neighbours, so that rounding nearly never hides a neighbour.
SPARE = 8

# A row that is nearer by a smaller share of the squared distance counts as equally far.
_TIE = 1e-8

# More than the squares of a distance and of its measured value can differ: differences of rows in
# single precision are rounded.
_MEASURED = 1 + 4 * float(np.finfo(np.float32).eps)

# Precisions of the products, tried one after another. Products in CSR start with the last.
_PRECISIONS: tuple[Precision, ...] = (np.float32, np.float64)


def exact_neighbors(rows: Rows, queries: NDArray[np.int64], *, n_neighbors: int) -> Neighbors:
    """Return the k nearest other rows (b, k) of some of the rows, with their distances.

    k + 1 rows are searched, and the row itself is dropped by its number, because it need not come
    first among exact duplicates. Arrays should be centred: large norms make the search slower.
    """
    indices, distances = nearest_rows(rows, rows[queries], count=n_neighbors + 1)
    others = other_rows(indices, queries)
    shape = (len(queries), n_neighbors)
    return Neighbors(indices[others].reshape(shape), distances[others].reshape(shape))


def other_rows(found: NDArray[np.int64], queries: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask of k rows in each list (b, k + 1): all but the row itself, or the last row."""
    own = found == queries[:, None]
    own[~own.any(axis=1), -1] = True
    return ~own


def nearest_rows(
    rows: Rows, targets: Rows, *, count: int, within: Floats | None = None
) -> Neighbors:
    """Return the rows that are nearest to each target (b, count), for any number of threads.

    within (b,): rows that are further away may be missing: -1 and inf. Small distances save time.

    ``2 b n p`` flops; for rows in CSR ``2 b n`` times the number of columns that two rows share.
    Products give ``|x - y|^2 / 2 = |x|^2 / 2 + (|y|^2 / 2 - x y)``, and with it ``count + 8``
    candidates of each target. Their distances are then computed from differences.

    Products of arrays are computed in single precision first. Each has an error of at most about
    ``p u |x| |y|`` (Higham 2002, *Accuracy and Stability of Numerical Algorithms*, eq. 3.5). If by
    this bound another row could be as near, the target is searched again in double precision, and
    then by the differences to all rows, which is slow.
    """
    assert count <= rows.shape[0]
    halves = 0.5 * _checked_norms(rows)
    n_targets = len(_checked_norms(targets))
    if within is None:
        within = np.full(n_targets, np.inf)
    sought = _Targets(targets, within)
    if (gpu := active_gpu()) is not None and not is_csr(rows):
        return _nearest_of_strip(rows, halves, sought, count, _GpuRows(gpu, rows, halves))
    most = _TILE_TARGETS if is_csr(rows) else _STRIP_ELEMENTS // rows.shape[1]
    most = max(1, min(_STRIP_TARGETS, most, _STRIP_CANDIDATES // (count + SPARE)))
    n_strips = _STRIPS * max(1, math.ceil(n_targets / (_STRIPS * most)))
    size = min(most, max(_LEAST_TARGETS, math.ceil(n_targets / n_strips)))
    strips = side_by_side(
        lambda start: _nearest_of_strip(rows, halves, sought[start : start + size], count),
        range(0, n_targets, size),
    )
    none = Neighbors(np.empty((0, count), np.int64), np.empty((0, count)))
    return Neighbors(*map(np.concatenate, zip(none, *strips, strict=True)))


def buffer_bytes(width: int, n_neighbors: int, *, threads: int) -> int:
    """Return the bytes of the buffers of a search on all threads; `width` numbers store a row."""
    strip = min(_STRIP_TARGETS, 1 + _STRIP_ELEMENTS // width)
    # Products and the places of all of them, while nothing limits the lists; the strip in both
    # precisions, and the differences of the rows listed for a target.
    return threads * (2**24 + (20 * strip + 16 * (n_neighbors + 1 + SPARE)) * width)


def _checked_norms(rows: Rows) -> Floats:
    """Return squared norms whose sums are finite, or raise ValueError."""
    norms = squared_norms(rows)
    if not (norms < np.finfo(np.float64).max / 4).all():
        raise ValueError("rows have NaN, or values whose squares are not finite.")
    return norms


@dataclass(frozen=True, eq=False)
class _Targets:
    """Rows (b, p), and the distances (b,) within which their neighbours are wanted."""

    rows: Any
    within: Floats

    def __getitem__(self, part: Any) -> "_Targets":
        return _Targets(self.rows[part], self.within[part])

    def errors(self, distances: Floats, n_terms: int, precision: Precision) -> Floats:
        """Return a bound (b,) of the errors of the values of all rows within a distance (b,)."""
        norms = np.sqrt(squared_norms(self.rows))
        limits = np.finfo(precision)
        # Rows with a larger norm are further away. The terms of all others are at most this large.
        reach = norms + distances
        largest = (norms + reach) * reach
        largest[largest >= limits.max] = np.inf
        return (n_terms + 8) * (limits.eps * largest + limits.tiny)

    def limits(self, n_terms: int, precision: Precision) -> NDArray[Any]:
        """Return limits (b,) that are above the values of all rows that are wanted."""
        limits = (_MEASURED * self.within**2 - squared_norms(self.rows)) / 2
        # Twice: `_are_certain` subtracts the error from the limit if no row has a lower value.
        limits += 2 * self.errors(self.within, n_terms, precision)
        with np.errstate(over="ignore"):
            return limits.astype(precision)


class _Least:
    """The places and values (b, c) of the rows with the least values of each target so far."""

    def __init__(self, limits: NDArray[Any], count: int) -> None:
        self.values = np.repeat(limits[:, None], count, axis=1)
        self.places = np.full(self.values.shape, MISSING)
        self._count = count
        self._filled = np.full(len(limits), count)

    def see(self, values: NDArray[Any], first: int) -> None:
        """Consider the values (b, t) of the rows from `first` on."""
        n_targets, n_rows = values.shape
        count = self._count
        # Most rows are far from all targets.
        near = np.flatnonzero(values < self.values[:, count - 1 : count])
        starts = np.searchsorted(near, n_rows * np.arange(n_targets + 1))
        n_near = starts[1:] - starts[:-1]
        if (self._filled + n_near).max(initial=0) > _ROOM * count:
            head = 0
            if self._filled.max() == count:
                # Rows that fit in any case lower the limits for the others.
                head = (_ROOM - 1) * count
                self.see(values[:, :head], first)
            self.merge()
            self.see(values[:, head:], first + head)
            return
        if self.values.shape[1] == count:
            room = ((0, 0), (0, (_ROOM - 1) * count))
            self.values = np.pad(self.values, room, constant_values=np.inf)
            self.places = np.pad(self.places, room)
        of_targets = np.repeat(np.arange(n_targets), n_near)
        columns = near - n_rows * of_targets
        free = np.arange(len(near)) + np.repeat(self._filled - starts[:-1], n_near)
        self.values[of_targets, free] = values[of_targets, columns]
        self.places[of_targets, free] = first + columns
        self._filled += n_near

    def merge(self) -> None:
        """Keep the least values, ordered by value and place."""
        filled = self.values[:, : self._filled.max(initial=0)]
        least = np.argsort(filled, axis=1, kind="stable")[:, : self._count]
        self.values = np.take_along_axis(self.values, least, axis=1)
        self.places = np.take_along_axis(self.places, least, axis=1)
        self._filled[:] = self._count


def _nearest_of_strip(
    rows: Rows, halves: Floats, targets: _Targets, count: int, on_gpu: "_GpuRows | None" = None
) -> Neighbors:
    """Return the result of `nearest_rows` for a few targets, or on a GPU for many."""
    n_targets = len(targets.within)
    found = Neighbors(np.empty((n_targets, count), np.int64), np.empty((n_targets, count)))
    unsure = np.arange(n_targets)
    for precision in _PRECISIONS[-1:] if is_csr(rows) else _PRECISIONS:
        some = targets if len(unsure) == n_targets else targets[unsure]
        if on_gpu is None:
            listed, certain = _nearest_by_products(rows, halves, some, precision, count)
        else:
            length = min(count + SPARE, rows.shape[0])
            candidates = on_gpu.candidates(some.rows, length, precision)
            listed = _nearest_candidates(candidates, count)
            certain = _are_certain(listed, candidates, some, rows.shape[1])
        found.indices[unsure], found.distances[unsure] = listed
        unsure = unsure[~certain]
        if not len(unsure):
            return found
    _search_by_differences(rows, targets, found, unsure)
    return found


class _Candidates(NamedTuple):
    """``values``, ``places`` and ``squared`` distances of the rows with the least values, (b, c).

    By value; -1: none.
    """

    values: NDArray[Any]
    places: NDArray[np.int64]
    squared: Floats


class _GpuRows:
    """Rows (n, p) and ``|y|^2 / 2`` on the GPU, among which neighbours are searched."""

    def __init__(self, gpu: Gpu, rows: NDArray[Any], halves: Floats) -> None:
        self._gpu = gpu
        self._rows, self._halves = gpu.upload(rows), gpu.upload(halves)
        self._searched_rows = max(1024, min(_SEARCHED_ROWS, _SEARCH_ELEMENTS // rows.shape[1]))

    def candidates(self, targets: NDArray[Any], count: int, precision: Precision) -> _Candidates:
        """Return the rows with the least ``|y|^2 / 2 - x y`` of each target (b, p)."""
        strips = []
        size = max(1, min(4096, _SEARCH_ELEMENTS // min(len(self._rows), self._searched_rows)))
        for start in range(0, len(targets), size):
            X = self._gpu.upload(targets[start : start + size])
            values, places = self._least(X.astype(precision), count)
            found = (values, places, self._squared(X, places))
            strips.append([self._gpu.download(each) for each in found])
        return _Candidates(*map(np.concatenate, zip(*strips, strict=True)))

    def _least(self, X: Any, count: int) -> tuple[Any, Any]:
        """Return values and places of the rows with the least values, (b, count)."""
        xp = self._gpu.xp
        found = []
        for first in range(0, len(self._rows), self._searched_rows):
            part = slice(first, first + self._searched_rows)
            values = X @ self._rows[part].astype(X.dtype, copy=False).T
            np.subtract(self._halves[part].astype(X.dtype), values, out=values)
            places = self._gpu.least(values, count)
            listed = xp.take_along_axis(values, xp.maximum(places, 0), axis=1)
            listed[places < 0] = np.inf
            places[places >= 0] += first
            found.append((listed, places))
        if len(found) == 1:
            return found[0]
        values, places = (xp.concatenate(each, axis=1) for each in zip(*found, strict=True))
        best = self._gpu.least(values, count)
        known = best >= 0
        best = xp.maximum(best, 0)
        values = xp.where(known, xp.take_along_axis(values, best, axis=1), np.inf)
        places = xp.where(known, xp.take_along_axis(places, best, axis=1), -1)
        return values, places

    def _squared(self, X: Any, places: Any) -> Any:
        """Return squared distances (b, count), from differences and summed in float64."""
        xp = self._gpu.xp
        n_targets, p = X.shape
        squared = xp.empty(places.shape)
        size = max(1, _GATHERED_ELEMENTS // (n_targets * p))
        for start in range(0, places.shape[1], size):
            some = slice(start, start + size)
            differences = self._rows[xp.maximum(places[:, some], 0)] - X[:, None, :]
            squared[:, some] = (differences.astype(np.float64) ** 2).sum(axis=2)
        squared[places < 0] = np.inf
        return squared


def _nearest_candidates(found: _Candidates, count: int) -> Neighbors:
    order = np.lexsort((found.places, found.squared))[:, :count]
    squared = np.take_along_axis(found.squared, order, axis=1)
    return Neighbors(np.take_along_axis(found.places, order, axis=1), np.sqrt(squared))


def _search_by_differences(
    rows: Rows, targets: _Targets, found: Neighbors, unsure: NDArray[np.int64]
) -> None:
    """Replace the lists of unsure targets in `found` by those of the differences to all rows."""
    n_rows, p = rows.shape
    count = found.indices.shape[1]
    size = _TILE_ROWS if is_csr(rows) else max(1, _BLOCK_ELEMENTS // p)
    blocks = [np.arange(n_rows)[None, first : first + size] for first in range(0, n_rows, size)]
    for place in unsure:
        target = targets.rows[place : place + 1]
        squared = np.hstack([squared_distances(rows, target, block) for block in blocks])
        near = np.flatnonzero(squared <= np.partition(squared, count - 1)[:, count - 1])
        nearest = measure_neighbors(rows, target, near[None])
        found.indices[place] = nearest.indices[0, :count]
        found.distances[place] = nearest.distances[0, :count]


def _terms(rows: Rows, targets: Rows) -> int:
    """Return the most values of a difference of two rows."""
    if is_csr(rows) and is_csr(targets):
        of_rows = np.diff(rows.indptr).max(initial=0)
        of_targets = np.diff(targets.indptr).max(initial=0)
        return int(of_rows) + int(of_targets)
    return rows.shape[1]


def _nearest_by_products(
    rows: Rows, halves: Floats, targets: _Targets, precision: Precision, count: int
) -> tuple[Neighbors, NDArray[np.bool_]]:
    """Return the nearest rows by products, and which targets are certain."""
    n_terms = _terms(rows, targets.rows)
    least = _Least(targets.limits(n_terms, precision), min(count + SPARE, rows.shape[0]))
    # Single precision cannot hold every square; `_are_certain` allows for that.
    with np.errstate(over="ignore", invalid="ignore"):
        for first, values in _products(rows, halves, targets.rows, precision):
            least.see(values, first)
    least.merge()
    indices, distances = measure_neighbors(rows, targets.rows, least.places)
    found = Neighbors(indices[:, :count], distances[:, :count])
    return found, _are_certain(found, least, targets, n_terms)


def _products(rows: Rows, halves: Floats, targets: Rows, precision: Precision) -> Blocks:
    """Yield the first row of a block, and ``|y|^2 / 2 - x y`` of its rows."""
    if is_csr(rows):
        X = targets.astype(precision)
        for first in range(0, rows.shape[0], _TILE_ROWS):
            part = slice(first, first + _TILE_ROWS)
            yield first, halves[part] - dense(X @ rows[part].T)
        return
    join = partial(np.hstack, dtype=precision, casting="same_kind")
    # The products of ``(-x, 1)`` and ``(y, |y|^2 / 2)`` need no further pass.
    X = -join([targets, np.full((len(targets), 1), -1.0)])
    size = max(1, min(_BLOCK_ROWS, _BLOCK_ELEMENTS // rows.shape[1]))
    for first in range(0, len(rows), size):
        part = slice(first, first + size)
        yield first, X @ join([rows[part], halves[part, None]]).T


def _are_certain(
    found: Neighbors, least: _Least | _Candidates, targets: _Targets, n_terms: int
) -> NDArray[np.bool_]:
    """Return the targets for which no row that is not listed is nearer than those found."""
    furthest = np.minimum(found.distances[:, -1], targets.within)
    errors = targets.errors(furthest, n_terms, least.values.dtype.type)
    beyond = least.values[:, -1].astype(np.float64)
    beyond[~np.isfinite(beyond)] = -np.inf
    nearer = (1 - _TIE) * furthest**2
    farther = squared_norms(targets.rows) + 2 * (beyond - errors)
    full = np.isfinite(beyond - errors) & (found.distances[:, -1] == 0)
    return full | (nearer < farther)


class Repeats(NamedTuple):
    """Places of rows of a block that have at least k copies in it, and of k equal rows (m, k).

    A search still needs `searched` (b,): all except copies beyond the first k + 1 of a row.
    """

    rows: NDArray[np.int64]
    indices: NDArray[np.int64]
    searched: NDArray[np.bool_]


def find_repeats(rows: Rows, *, n_neighbors: int, seed: int) -> Repeats:
    """Return the rows of a block whose k nearest neighbours are copies of themselves.

    The seed orders the copies, so that neither their neighbours nor the searched copies depend on
    the order of the block. k + 1 copies of a row are enough for the neighbours of every other row,
    so a search does not grow with the number of copies.
    """
    drawn = np.random.default_rng(seed).permutation(rows.shape[0])
    hashes = hash_rows(rows[drawn], seed=seed)
    _, point, counts = np.unique(hashes, return_inverse=True, return_counts=True)
    # All copies of a point, one after another.
    by_point = np.argsort(point, kind="stable")
    by_point = by_point[counts[point[by_point]] > n_neighbors]
    members, point = drawn[by_point], point[by_point]
    starts = np.searchsorted(point, point)
    places = np.arange(len(members)) - starts
    # The copies form a circle: the neighbours of a copy are the next k.
    following = (places[:, None] + np.arange(1, n_neighbors + 1)) % counts[point][:, None]
    searched = np.ones(rows.shape[0], dtype=bool)
    searched[members[places > n_neighbors]] = False
    return Repeats(members, members[starts[:, None] + following], searched)
