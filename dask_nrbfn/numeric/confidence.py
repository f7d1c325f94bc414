"""Soft-kNN confidence and the choice of basis rows (hu-nrbfn, Algorithm 1)."""

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.types import Floats

# Number of rows that are drawn of every class; all rows of a smaller class.
LEAST_OF_CLASS = 10


def soft_confidence(distances: Floats, agrees: NDArray[np.bool_], *, width: float) -> Floats:
    """Return each row's confidence in its own label, from 0 to 1, float64 (b,).

    Steps 5 to 7: weights ``exp(-D^2 / (2 width^2))``, normalized per row, summed over the
    neighbours that agree. The smallest exponent of a row is subtracted first, so the confidence of
    a row far from all its neighbours is defined.
    """
    squared = distances**2
    squared -= squared.min(axis=1, keepdims=True)
    scale = 2.0 * width**2
    similarity = np.exp(-squared / scale) if scale > 0 else np.ones_like(squared)
    own = np.where(agrees, similarity, 0.0).sum(axis=1)
    return np.asarray(own / similarity.sum(axis=1))


@dataclass(frozen=True, eq=False)
class RowPool:
    """Rows from which a basis is chosen: the smallest priority first, then the smallest hash.

    priority (m,): confidence, or the result of `even_below`.
    tiebreak (m,): hashes; rows that share one are duplicates and enter once, see `hash_rows`.
    codes (m,): classes; -1 for rows without a class.
    """

    priority: Floats
    tiebreak: NDArray[np.uint64]
    codes: NDArray[np.integer]
    rows: NDArray[np.int64]

    @classmethod
    def none(cls) -> Self:
        """Return an empty pool, with which a pass over blocks of rows begins."""
        return cls(
            priority=np.empty(0),
            tiebreak=np.empty(0, np.uint64),
            codes=np.empty(0, np.uint8),
            rows=np.empty(0, np.int64),
        )

    def take(self, places: NDArray[np.int64]) -> Self:
        """Return the rows at these places."""
        return type(self)(*(getattr(self, each.name)[places] for each in fields(self)))

    def joined(self, other: Self) -> Self:
        """Return the rows of both pools."""
        names = [each.name for each in fields(self)]
        joined = [np.concatenate([getattr(self, name), getattr(other, name)]) for name in names]
        return type(self)(*joined)

    def joined_once(self, other: Self) -> Self:
        """Return both pools by their row indices, without points of the other that both have."""
        new = other.take(np.flatnonzero(~np.isin(other.tiebreak, self.tiebreak)))
        joined = self.joined(new)
        return joined.take(np.argsort(joined.rows))

    def __len__(self) -> int:
        return len(self.rows)


def even_below(confidence: Floats, *, threshold: float) -> Floats:
    """Return priorities (b,) that draw evenly among rows below the threshold.

    Rows below the threshold have equal priority, so their hashes decide. The other rows keep the
    order of their confidence and fill up the basis.
    """
    return np.where(confidence < threshold, 0.0, confidence)


def keep_best(pool: RowPool, block: RowPool, *, size: int, n_classes: int) -> RowPool:
    """Return the rows of two disjoint pools that can still enter a basis, in order.

    The first r distinct rows, and the first K distinct rows of every class: at most ``r + K**2``.

    Associative and commutative: `choose_basis` returns the same basis for the kept rows as for all.
    K distinct rows of a class are enough because each other class takes at most one of these rows.
    Time O(m log m) and about 100 m bytes.
    """
    ordered = _in_order(pool.joined(block))
    by_point = np.lexsort((ordered.codes, ordered.tiebreak))
    tiebreak, codes = ordered.tiebreak[by_point], ordered.codes[by_point]
    new_point = _differs(tiebreak)
    new_member = new_point | _differs(codes)

    kept = np.zeros(len(ordered), dtype=np.bool_)
    starts = np.flatnonzero(new_point)
    firsts = np.minimum.reduceat(by_point, starts) if len(starts) else starts
    kept[np.sort(firsts)[:size]] = True
    members = np.sort(by_point[new_member])
    kept[members[_rank_in_class(ordered.codes[members]) < n_classes]] = True
    return ordered.take(np.flatnonzero(kept))


def choose_candidates(pool: RowPool, *, size: int) -> NDArray[np.int64]:
    """Return the row indices of drawn candidates in ascending order, int64 (N,).

    The first ten rows of every class, then the first of the other rows. The draw is even except for
    rare classes, which would otherwise have a single row in the basis.
    """
    return np.sort(_by_rank(pool).rows[:size])


def draw(pool: RowPool, *, size: int) -> RowPool:
    """Return rows that are drawn as `choose_candidates` draws, without repeated points."""
    ordered = _by_rank(pool)
    _, firsts = np.unique(ordered.tiebreak, return_index=True)
    return ordered.take(np.sort(firsts)[:size])


def choose_basis(
    pool: RowPool, *, size: int, n_classes: int, threshold: float | None = None
) -> RowPool:
    """Return the rows that become the basis, in the order of their indices.

    threshold: only rows with a lower priority fill the basis, Algorithm 1, steps 8 and 9. None: the
        basis has exactly `size` rows if as many are distinct (paper, 7.1.3).

    Every class gives its first row, whatever the threshold, or the next row if another class has
    given a duplicate. The first of the other rows complete the basis. Equal rows enter once; in the
    paper a repeated row makes the gram matrix singular.
    """
    ordered = _in_order(pool)
    firsts = _firsts_of_classes(ordered, n_classes)
    _, points = np.unique(ordered.tiebreak, return_index=True)
    others = np.sort(points[~np.isin(ordered.tiebreak[points], ordered.tiebreak[firsts])])
    if threshold is not None:
        others = others[ordered.priority[others] < threshold]
    chosen = np.concatenate([firsts, others[: size - len(firsts)]])
    return ordered.take(chosen[np.argsort(ordered.rows[chosen])])


def _by_rank(pool: RowPool) -> RowPool:
    """Return the first rows of every class, up to `LEAST_OF_CLASS`, before the other rows."""
    ordered = _in_order(pool)
    ranks = np.minimum(_rank_in_class(ordered.codes), LEAST_OF_CLASS)
    return ordered.take(np.argsort(ranks, kind="stable"))


def _firsts_of_classes(ordered: RowPool, n_classes: int) -> NDArray[np.int64]:
    """Return the place of each class's first row, skipping duplicates of other classes' rows."""
    firsts: list[int] = []
    points: set[int] = set()
    classes: set[int] = set()
    pairs = zip(ordered.tiebreak.tolist(), ordered.codes.tolist(), strict=True)
    for place, (point, code) in enumerate(pairs):
        if code >= 0 and code not in classes and point not in points:
            firsts.append(place)
            points.add(point)
            classes.add(code)
            if len(classes) == n_classes:
                break
    return np.array(firsts, dtype=np.int64)


def _in_order(pool: RowPool) -> RowPool:
    """Return the rows in the order in which they enter the basis."""
    # Classes come before indices, so that the class of a duplicate does not depend on the order of
    # the rows.
    return pool.take(np.lexsort((pool.rows, pool.codes, pool.tiebreak, pool.priority)))


def _differs(values: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Return where a value differs from the value before, bool (m,); True for the first value."""
    differs = np.ones(len(values), dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=differs[1:])
    return differs


def _rank_in_class(codes: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the number of earlier rows of the same class, int64 (m,)."""
    by_class = np.argsort(codes, kind="stable")
    ascending = codes[by_class]
    ranks = np.empty(len(codes), dtype=np.int64)
    ranks[by_class] = np.arange(len(codes)) - np.searchsorted(ascending, ascending)
    return ranks
