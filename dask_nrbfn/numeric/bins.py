"""Counts of rows in bins, which widen as the number of bins grows; the median and the ROC area."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.sums import RowSum
from dask_nrbfn.numeric.types import Floats

# Maximum number of bins. A task returns a key and two counts of each bin: 0.4 MiB.
_MOST_BINS = 2**14

# Entries are sorted into bins when there are more than this; sorting takes milliseconds.
MOST_ENTRIES = 2 * _MOST_BINS

_ALL_BUT_SIGN = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class Bins(RowSum):
    """Counts, or weights, of rows by a number.

    keys (m,): keys of bins, in the order of the numbers; after `binned` without repeats. Numbers in
        a bin differ in at most the last `shift` bits.
    counts (m, c): number or weight of the rows of each of c kinds in each bin.
    shift: after `binned`, the smallest shift with at most 16,384 bins.

    The bins do not depend on the division of the rows into blocks: part of the rows never needs a
    larger `shift` than all rows.
    """

    keys: NDArray[np.int64]
    counts: NDArray[Any]
    shift: int

    @classmethod
    def zeros(cls, n_kinds: int = 2) -> Self:
        """Return the sum of no rows."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros((0, n_kinds), dtype=np.int64), 0)

    @classmethod
    def of_values(cls, values: Floats, counts: NDArray[Any]) -> Self:
        """Return the sum of some rows: finite values (b,) and counts (b, c)."""
        # The bits of negative numbers descend, and those of -0 and 0 differ.
        bits = (values + 0.0).view(np.int64)
        return cls(np.where(bits < 0, bits ^ _ALL_BUT_SIGN, bits), counts, 0)

    def __add__(self, other: Self) -> Self:
        shift = max(self.shift, other.shift)
        keys = np.concatenate([each.keys >> (shift - each.shift) for each in (self, other)])
        both = type(self)(keys, np.concatenate([self.counts, other.counts]), shift)
        return both.binned() if len(keys) > MOST_ENTRIES else both

    def binned(self) -> Self:
        """Return the same sum with every bin once, in ascending order."""
        order = np.argsort(self.keys)
        keys, shift = self.keys[order], self.shift
        starts = _first_of_equals(keys)
        while len(starts) > _MOST_BINS:
            keys = keys >> 1
            shift += 1
            starts = _first_of_equals(keys)
        return type(self)(keys[starts], np.add.reduceat(self.counts[order], starts), shift)

    def middles(self) -> Floats:
        """Return the middle of each bin, float64 (m,)."""
        first = self.keys << self.shift
        ends = np.stack([first, first | ((1 << self.shift) - 1)])
        bits = np.where(ends < 0, ends ^ _ALL_BUT_SIGN, ends)
        low, high = bits.view(np.float64) / 2
        return np.asarray(low + high)


def median(bins: Bins) -> float:
    """Return the median of binned rows; exact for up to 16,384 different numbers."""
    bins = bins.binned()
    rows = np.cumsum(bins.counts.sum(axis=1))
    n_rows = rows[-1]
    places = np.searchsorted(rows, [(n_rows - 1) // 2, n_rows // 2], side="right")
    return float((bins.middles()[places] / 2).sum())


def _first_of_equals(keys: NDArray[Any]) -> NDArray[np.intp]:
    """Return the first place of each distinct key among ascending keys (m,)."""
    begins = np.ones(len(keys), dtype=bool)
    np.not_equal(keys[1:], keys[:-1], out=begins[1:])
    return np.flatnonzero(begins)


# An entry is a key and two counts. Six arrays of entries are held while two sums are joined, sorted
# and added.
RANKING_BYTES = 6 * (3 * 8) * MOST_ENTRIES


class RankedScores(Bins):
    """Counts of rows of two classes by their score."""

    @classmethod
    def from_block(
        cls, scores: Floats, codes: NDArray[np.integer], weights: Floats | None = None
    ) -> Self:
        """Return the counts of a block: finite scores (b,) of the second class, and codes (b,)."""
        counts: NDArray[Any] = np.eye(2, dtype=np.int64)[codes]
        if weights is not None:
            counts = counts * weights[:, None]
        return cls.of_values(scores, counts)

    def figures(self) -> dict[str, Any]:
        """Return the area under the ROC curve and a bound of its error; None for a single class.

        The area is the share of pairs, one row of each class, in which the row of the second class
        has the larger score; equal scores count half (Hanley & McNeil 1982). The weight of a pair
        is the product of both weights. With ``a_b`` and ``c_b`` rows of the classes in bin b it is
        ``sum_b c_b (a_1 + ... + a_{b-1} + a_b / 2)`` over ``sum_b a_b sum_b c_b``. A pair in one
        bin of several scores may count from 0 to 1: the error is at most ``sum_b a_b c_b / 2`` over
        all pairs. It is 0 for up to 16,384 different scores, each of which has its own bin.
        """
        bins = self.binned()
        first, second = bins.counts.T.astype(np.float64)
        n_pairs = float(first.sum() * second.sum())
        if not n_pairs:
            return dict.fromkeys(("roc_auc", "roc_auc_bound"))
        half = float(second @ first) / 2
        below = float(second @ (np.cumsum(first) - first))
        return {
            "roc_auc": (below + half) / n_pairs,
            "roc_auc_bound": half / n_pairs if bins.shift else 0.0,
        }
