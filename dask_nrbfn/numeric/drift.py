"""How rows that a model has not seen differ from those it was trained on."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.sums import RowSum
from dask_nrbfn.numeric.types import Floats

# Beyond these a basis chosen from other rows is due. One training row in a hundred is far by
# definition.
_MOST_FAR = 0.05
_MOST_CONFIDENCE_LOST = 0.1
_MOST_ERROR_GROWN = 1.5


@dataclass(frozen=True, eq=False, kw_only=True)
class NewRowSums(RowSum, ABC):
    """Sums over rows of what a model makes of them. They add.

    Attributes
    ----------
    n_rows, n_far : int
        Rows, and those far from every basis row.
    n_basis_rows : int
        Those that are basis rows themselves.
    weight : float
        Of the rows.
    """

    n_rows: int
    n_far: int
    n_basis_rows: int
    weight: float

    @classmethod
    @abstractmethod
    def from_block(
        cls, scores: Floats, targets: Any, weights: Floats, *, n_far: int, n_basis_rows: int
    ) -> Self:
        """Return the sums of a block.

        Parameters
        ----------
        scores : float64 (b, q)
        targets : integer (b,) or float64 (b, q)
            Class codes, or numbers.
        weights : float64 (b,)
        n_far, n_basis_rows : int
        """


@dataclass(frozen=True, eq=False, kw_only=True)
class NewLabelSums(NewRowSums):
    """Sums over rows with labels.

    Attributes
    ----------
    wrong_weight : float
        Of the rows whose label the model gets wrong.
    own_score : float
        Weighted sum of the score of each row's own label.
    squared_residuals, squared_scores : float
        Weighted sums of the squared norms ``|f - s|^2`` and ``|s|^2``, for indicators f and
        scores s.
    """

    wrong_weight: float
    own_score: float
    squared_residuals: float
    squared_scores: float

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
        targets: NDArray[np.integer],
        weights: Floats,
        *,
        n_far: int,
        n_basis_rows: int,
    ) -> Self:
        """Return the sums of a block of scores (b, K) and class codes (b,)."""
        own = scores[np.arange(len(targets)), targets]
        squared = np.einsum("ij,ij->i", scores, scores)
        return cls(
            n_rows=len(targets),
            n_far=n_far,
            n_basis_rows=n_basis_rows,
            weight=float(weights.sum()),
            wrong_weight=float(weights[scores.argmax(axis=1) != targets].sum()),
            own_score=float(weights @ own),
            squared_residuals=float(weights @ (1.0 - 2.0 * own + squared)),
            squared_scores=float(weights @ squared),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class NewNumberSums(NewRowSums):
    """Sums over rows with numbers as targets.

    Attributes
    ----------
    squared_residuals : float64 (q,)
        Weighted.
    """

    squared_residuals: Floats

    @classmethod
    def from_block(
        cls, scores: Floats, targets: Floats, weights: Floats, *, n_far: int, n_basis_rows: int
    ) -> Self:
        """Return the sums of a block of predicted and true numbers (b, q)."""
        return cls(
            n_rows=len(targets),
            n_far=n_far,
            n_basis_rows=n_basis_rows,
            weight=float(weights.sum()),
            squared_residuals=weights @ (scores - targets) ** 2,
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
        sums: NewLabelSums,
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
        reasons = _reasons_of_far(self.far_share)
        lost = self.confidence_before - self.confidence
        if lost > _MOST_CONFIDENCE_LOST:
            reasons.append(
                f"the mean score of the own label is {self.confidence:.3f} on the new rows, "
                f"{self.confidence_before:.3f} before: more than {_MOST_CONFIDENCE_LOST:g} less"
            )
        return reasons


@dataclass(frozen=True, kw_only=True)
class NumberDrift:
    """New rows with numbers as targets beside those that a model was trained on.

    Attributes
    ----------
    relative_error, relative_error_before : float or None
        Mean squared error of the new rows, before the model has seen them, and of those before;
        over the variance of each target before, on average over the targets that vary.
    far_share : float or None
        As for `Drift`.
    """

    relative_error: float | None
    relative_error_before: float | None
    far_share: float | None

    @classmethod
    def of(
        cls, sums: NewNumberSums, *, residuals: Floats, variances: Floats, far_is_known: bool
    ) -> Self:
        """Return the drift, given the mean squared residuals and variances (q,) before."""
        return cls(
            relative_error=_relative(sums.squared_residuals / sums.weight, variances),
            relative_error_before=_relative(residuals, variances),
            far_share=sums.n_far / sums.n_rows if far_is_known else None,
        )

    def reasons(self) -> list[str]:
        """Return why the basis should be chosen anew; nothing if it need not."""
        reasons, now, before = (
            _reasons_of_far(self.far_share),
            self.relative_error,
            self.relative_error_before,
        )
        if now is not None and before is not None and now > _MOST_ERROR_GROWN * before:
            reasons.append(
                f"the squared error is {now:.3f} of the variance on the new rows, {before:.3f} "
                f"before: more than {_MOST_ERROR_GROWN:g} times as much"
            )
        return reasons


def _relative(squared: Floats, variances: Floats) -> float | None:
    varies = variances > 0
    return float(np.mean(squared[varies] / variances[varies])) if varies.any() else None


def _reasons_of_far(far_share: float | None) -> list[str]:
    if far_share is None or far_share <= _MOST_FAR:
        return []
    return [
        f"{100 * far_share:.1f} % of the new rows are far from the basis, "
        f"more than {100 * _MOST_FAR:g} %"
    ]
