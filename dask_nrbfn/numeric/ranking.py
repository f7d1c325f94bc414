"""How well scores rank the rows of two classes."""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.bins import MOST_ENTRIES, Bins
from dask_nrbfn.numeric.types import Floats

# A key and two counts of each entry; two sums, joined, sorted and added up. More bins of spread
# scores do not show in six digits of the area.
RANKING_BYTES = 6 * 24 * MOST_ENTRIES


class RankedScores(Bins):
    """Rows of two classes by their score."""

    @classmethod
    def zeros(cls) -> Self:
        """Return the sum of no rows."""
        return cls.of_sorts(2)

    @classmethod
    def from_block(cls, scores: Floats, codes: NDArray[np.integer]) -> Self:
        """Return the sum of one block.

        Parameters
        ----------
        scores : float64 (b,)
            Finite; larger ones are for the second class.
        codes : integer (b,)
            Class of each row, 0 or 1.
        """
        return cls.of_values(scores, np.eye(2, dtype=np.int64)[codes])

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
