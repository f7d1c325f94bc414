"""How rows that a model has not seen differ from those it was trained on."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.sums import RowSum

Floats = NDArray[np.float64]

# Beyond these a basis chosen from other rows is due. One training row in a hundred is far by
# definition.
_MOST_FAR = 0.05
_MOST_CONFIDENCE_LOST = 0.1


@dataclass(frozen=True, eq=False, kw_only=True)
class NewRowSums(RowSum):
    """Sums over rows of what a model makes of them. They add.

    Attributes
    ----------
    n_rows, n_far : int
        Rows, and those far from every basis row.
    n_basis_rows : int
        Those that are basis rows themselves.
    weight, wrong_weight : float
        Weights of the rows, and of those whose label the model gets wrong.
    own_score : float
        Weighted sum of the score of each row's own label.
    squared_residuals, squared_scores : float
        Weighted sums of the squared norms ``|f - s|^2`` and ``|s|^2``, for indicators f and
        scores s.
    """

    n_rows: int = 0
    n_far: int = 0
    n_basis_rows: int = 0
    weight: float = 0.0
    wrong_weight: float = 0.0
    own_score: float = 0.0
    squared_residuals: float = 0.0
    squared_scores: float = 0.0

    @property
    def fitting_error(self) -> float | None:
        """Eps of the rows, None if all their scores are 0."""
        if not self.squared_scores:
            return None
        return 1.0 + self.squared_residuals / self.squared_scores

    @classmethod
    def from_block(
        cls,
        scores: Floats,
        codes: NDArray[np.integer],
        weights: Floats | None,
        *,
        far: NDArray[np.bool_],
        in_basis: NDArray[np.bool_],
    ) -> Self:
        """Return the sums of a block of scores (b, K) and class codes (b,)."""
        weights = np.ones(len(codes)) if weights is None else weights
        own = scores[np.arange(len(codes)), codes]
        squared = np.einsum("ij,ij->i", scores, scores)
        return cls(
            n_rows=len(codes),
            n_far=int(far.sum()),
            n_basis_rows=int(in_basis.sum()),
            weight=float(weights.sum()),
            wrong_weight=float(weights[scores.argmax(axis=1) != codes].sum()),
            own_score=float(weights @ own),
            squared_residuals=float(weights @ (1.0 - 2.0 * own + squared)),
            squared_scores=float(weights @ squared),
        )


@dataclass(frozen=True, kw_only=True)
class Drift:
    """New rows beside those that a model was trained on.

    Attributes
    ----------
    error_rate : float
        Of the new rows, before the model has seen them.
    confidence, confidence_before : float
        Mean score of a row's own label: of the new rows, and of those before.
    fitting_error, fitting_error_before : float
        eps of the same (hu-nrbfn, Definition 7). None where all scores of the new rows are 0, as
        far rows have them without normalized features.
    far_share : float or None
        New rows that are farther from the basis than 99 % of the rows it was chosen from. None
        where that distance is not known.
    """

    error_rate: float
    confidence: float
    confidence_before: float
    fitting_error: float | None
    fitting_error_before: float
    far_share: float | None

    @classmethod
    def of(
        cls,
        sums: NewRowSums,
        *,
        confidence_before: float,
        fitting_error_before: float,
        far_is_known: bool,
    ) -> Self:
        """Return the drift of new rows."""
        return cls(
            error_rate=sums.wrong_weight / sums.weight,
            confidence=sums.own_score / sums.weight,
            confidence_before=confidence_before,
            fitting_error=sums.fitting_error,
            fitting_error_before=fitting_error_before,
            far_share=sums.n_far / sums.n_rows if far_is_known else None,
        )

    def reasons(self) -> list[str]:
        """Return why the basis should be chosen anew; nothing if it need not."""
        reasons = []
        if self.far_share is not None and self.far_share > _MOST_FAR:
            reasons.append(
                f"{100 * self.far_share:.1f} % of the new rows are far from the basis, "
                f"more than {100 * _MOST_FAR:g} %"
            )
        lost = self.confidence_before - self.confidence
        if lost > _MOST_CONFIDENCE_LOST:
            reasons.append(
                f"the mean score of the own label is {self.confidence:.3f} on the new rows, "
                f"{self.confidence_before:.3f} before: more than {_MOST_CONFIDENCE_LOST:g} less"
            )
        return reasons
