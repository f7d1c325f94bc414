"""How well scores rank the rows of two classes."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.sums import RowSum

# Of each a key and two counts: 0.4 MiB travel from a task. Where scores are spread, more of them do
# not show in six digits of the area.
_MOST_BINS = 2**14

# So sorting, of some milliseconds, waits for as many new rows.
_MOST_ENTRIES = 2 * _MOST_BINS

# Two sums, joined, sorted and added up.
RANKING_BYTES = 6 * 24 * _MOST_ENTRIES


@dataclass(frozen=True, eq=False)
class RankedScores(RowSum):
    """Rows of two classes by their score, in bins that get wider as they get many.

    Attributes
    ----------
    keys : int64 (m,)
        Of bins, each once if `binned`. The scores in a bin differ in no more than the last `shift`
        of their bits, and keys are in the order of the scores.
    counts : int64 (m, 2)
        Rows of each class.
    shift : int
        If `binned`, the least with which there are no more than 16,384 bins.

    Notes
    -----
    Which bins there are depends on all rows together and not on how they were divided: some of
    them never need a larger `shift` than all.
    """

    keys: NDArray[np.int64]
    counts: NDArray[np.int64]
    shift: int

    @classmethod
    def zeros(cls) -> Self:
        """Return the sum of no rows."""
        return cls(np.zeros(0, dtype=np.int64), np.zeros((0, 2), dtype=np.int64), 0)

    @classmethod
    def from_block(cls, scores: NDArray[np.float64], codes: NDArray[np.integer]) -> Self:
        """Return the sum of one block.

        Parameters
        ----------
        scores : float64 (b,)
            Finite; larger ones are for the second class.
        codes : integer (b,)
            Class of each row, 0 or 1.
        """
        # The bits of negative numbers descend, and -0 has others than 0.
        bits = (scores + 0.0).view(np.int64)
        keys = np.where(bits < 0, bits ^ np.iinfo(np.int64).max, bits)
        return cls(keys, np.eye(2, dtype=np.int64)[codes], 0)

    def __add__(self, other: Self) -> Self:
        shift = max(self.shift, other.shift)
        keys = np.concatenate([each.keys >> (shift - each.shift) for each in (self, other)])
        both = type(self)(keys, np.concatenate([self.counts, other.counts]), shift)
        return both.binned() if len(keys) > _MOST_ENTRIES else both

    def binned(self) -> Self:
        """Return the same sum with every bin once, in ascending order."""
        order = np.argsort(self.keys)
        keys, shift = self.keys[order], self.shift
        while (starts := _first_of_equals(keys)).size > _MOST_BINS:
            keys, shift = keys >> 1, shift + 1
        return type(self)(keys[starts], np.add.reduceat(self.counts[order], starts), shift)

    def figures(self) -> dict[str, Any]:
        """Return the area under the ROC curve, and how far at most it is from that of the scores.

        None where one of the classes has no rows.

        Notes
        -----
        The area is the share of pairs, a row of each class, in which that of the second class has
        the larger score; equal scores count half (Hanley & McNeil 1982). With ``a_b`` and ``c_b``
        rows of the classes in bin b it is ``sum_b c_b (a_1 + ... + a_{b-1} + a_b / 2)`` of
        ``sum_b a_b sum_b c_b``. Where a bin has several scores its ``a_b c_b`` pairs may count
        anything between 0 and 1 each, so the bound is ``sum_b a_b c_b / 2`` of all pairs. It is 0
        for up to 16,384 different scores: each has its own bin.

        Examples
        --------
        >>> scores = np.array([0.1, 0.4, 0.4, 0.8])
        >>> RankedScores.from_block(scores, np.array([0, 0, 1, 1])).figures()
        {'roc_auc': 0.875, 'roc_auc_bound': 0.0}
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


def _first_of_equals(keys: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the places of keys, (m,) ascending, at which another one begins."""
    begins = np.ones(len(keys), dtype=bool)
    np.not_equal(keys[1:], keys[:-1], out=begins[1:])
    return np.flatnonzero(begins)
