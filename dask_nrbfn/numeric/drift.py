"""Drift: differences between new rows and the training rows of a model."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.rows import squared_norms
from dask_nrbfn.numeric.sums import RowSum
from dask_nrbfn.numeric.types import Floats

# Beyond these limits the basis should be chosen again. By definition 1 % of the training rows are
# far from the basis.
_MOST_FAR = 0.05
_MOST_CONFIDENCE_LOST = 0.1
_MOST_ERROR_GROWN = 1.5


@dataclass(frozen=True, eq=False, kw_only=True)
class NewRowSums(RowSum, ABC):
    """Sums over new rows and the scores of a model for these rows.

    Attributes
    ----------
    n_rows, n_far, n_basis_rows : int
        Numbers of all rows, of rows far from every basis row, and of rows that are basis rows.
    weight : float
        Sum of the row weights.
    """

    n_rows: int
    n_far: int
    n_basis_rows: int
    weight: float

    @classmethod
    def from_block(
        cls,
        scores: Floats,
        targets: NDArray[Any],
        weights: Floats,
        *,
        n_far: int,
        n_basis_rows: int,
    ) -> Self:
        """Return the sums of a block.

        Parameters
        ----------
        scores : float64 (b, q)
        targets : integer (b,) or float64 (b, q)
            Class codes or numbers.
        weights : float64 (b,)
            Row weights.
        n_far, n_basis_rows : int
            The counts of the block.

        Returns
        -------
        NewRowSums
            Of the class on which the method is called.
        """
        return cls(
            n_rows=len(targets),
            n_far=n_far,
            n_basis_rows=n_basis_rows,
            weight=float(weights.sum()),
            **cls._errors(scores, targets, weights),
        )

    @staticmethod
    @abstractmethod
    def _errors(scores: Floats, targets: NDArray[Any], weights: Floats) -> dict[str, Any]:
        """Return the other fields of the sums of a block."""

    @property
    def far_share(self) -> float:
        """Share of the rows that are far from every basis row."""
        return self.n_far / self.n_rows


@dataclass(frozen=True, eq=False, kw_only=True)
class NewLabelSums(NewRowSums):
    """Sums over rows with labels.

    Attributes
    ----------
    wrong_weight : float
        Weight of the rows with a wrong predicted label.
    own_score : float
        Weighted sum of the score of each row's own label.
    squared_residuals, squared_scores : float
        Weighted sums of ``|f - s|^2`` and ``|s|^2``, for indicators f and scores s.
    """

    wrong_weight: float
    own_score: float
    squared_residuals: float
    squared_scores: float

    @property
    def fitting_error(self) -> float | None:
        """Fitting error eps of the rows; None if all scores are 0."""
        if not self.squared_scores:
            return None
        return 1.0 + self.squared_residuals / self.squared_scores

    @staticmethod
    def _errors(scores: Floats, targets: NDArray[Any], weights: Floats) -> dict[str, Any]:
        own, squared = scores[np.arange(len(targets)), targets], squared_norms(scores)
        return {
            "wrong_weight": float(weights[scores.argmax(axis=1) != targets].sum()),
            "own_score": float(weights @ own),
            "squared_residuals": float(weights @ (1.0 - 2.0 * own + squared)),
            "squared_scores": float(weights @ squared),
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class NewNumberSums(NewRowSums):
    """Sums over rows with numeric targets: the weighted squared residuals (q,)."""

    squared_residuals: Floats

    @staticmethod
    def _errors(scores: Floats, targets: NDArray[Any], weights: Floats) -> dict[str, Any]:
        return {"squared_residuals": weights @ (scores - targets) ** 2}


@dataclass(frozen=True, kw_only=True)
class Drift:
    """New rows compared with the training rows of a classifier.

    Attributes
    ----------
    error_rate : float
        Error rate on the new rows, before the model has learned from them.
    confidence, confidence_before : float
        Mean score of a row's own label, for new rows and for training rows.
    fitting_error, fitting_error_before : float
        eps of new rows and of training rows (hu-nrbfn, Definition 7). None if all scores of the new
        rows are 0, such as the scores of far rows with plain features.
    far_share : float or None
        Share of new rows that are farther from the basis than 99 % of the training rows. None if
        that distance is not known.
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
        """Return the drift of new rows.

        Parameters
        ----------
        sums : NewLabelSums
            Sums of the new rows.
        confidence_before, fitting_error_before : float
            Values of the training rows.
        far_is_known : bool
            Whether the model stores the distance beyond which rows are far.

        Returns
        -------
        Drift
        """
        return cls(
            error_rate=sums.wrong_weight / sums.weight,
            confidence=sums.own_score / sums.weight,
            confidence_before=confidence_before,
            fitting_error=sums.fitting_error,
            fitting_error_before=fitting_error_before,
            far_share=sums.far_share if far_is_known else None,
        )

    def reasons(self) -> list[str]:
        """Return the reasons to choose the basis again."""
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
    """New rows compared with the training rows of a regression.

    Attributes
    ----------
    relative_error, relative_error_before : float or None
        Mean squared error of new rows and of training rows, divided by the variance of the target
        in the training rows; the mean over the targets that vary.
    far_share : float or None
        See `Drift`.
    """

    relative_error: float | None
    relative_error_before: float | None
    far_share: float | None

    @classmethod
    def of(
        cls, sums: NewNumberSums, *, residuals: Floats, variances: Floats, far_is_known: bool
    ) -> Self:
        """Return the drift of new rows.

        Parameters
        ----------
        sums : NewNumberSums
            Sums of the new rows.
        residuals, variances : float64 (q,)
            Mean squared residuals and variances of the training rows.
        far_is_known : bool
            See `Drift`.

        Returns
        -------
        NumberDrift
        """
        return cls(
            relative_error=_relative(sums.squared_residuals / sums.weight, variances),
            relative_error_before=_relative(residuals, variances),
            far_share=sums.far_share if far_is_known else None,
        )

    def reasons(self) -> list[str]:
        """Return the reasons to choose the basis again."""
        reasons = _reasons_of_far(self.far_share)
        now, before = self.relative_error, self.relative_error_before
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
