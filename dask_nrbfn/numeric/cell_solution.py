"""The weights of the network of a cell, solved from its sums over rows."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.moments import Moments
from dask_nrbfn.numeric.ridge import RidgeSystem
from dask_nrbfn.numeric.targets import Targets
from dask_nrbfn.numeric.types import Floats


class SolvedCell(NamedTuple):
    """A solution, and its figures on the summed rows; alpha is NaN if the scores are constant.

    `fit` and `residuals` (q,) are squared norms of the scores, and of the residuals of each target.
    """

    weights: Floats
    intercept: Floats
    alpha: float
    fit: float
    residuals: Floats
    risk: float

    @classmethod
    def of(
        cls,
        moments: Moments,
        targets: Targets,
        *,
        alpha: float,
        normalized: bool,
        penalty: Floats | None,
    ) -> Self | None:
        """Return the solution of the sums of a cell, constant if alpha is NaN; None if singular."""
        if math.isnan(alpha):
            return cls.constant(moments)
        system = RidgeSystem.of(moments, targets, normalized=normalized)
        (solution,) = replace(system, penalty=penalty).path([alpha], in_place=True)
        if solution is None:
            return None
        weights = solution.weights
        fit = float(np.sum((weights @ system.gram) * weights))
        squares, trace = float(np.sum(weights**2)), float(np.trace(system.gram))
        return cls(
            weights,
            system.intercept(weights),
            alpha,
            fit,
            system.squared_residuals(weights),
            squares * trace / fit if fit > 0 else 1.0,
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the fields as arrays, by names that no array of `Moments` has."""
        return {f"solved_{name}": np.atleast_1d(each) for name, each in self._asdict().items()}

    @classmethod
    def constant(cls, moments: Moments) -> Self:
        """Return constant scores: the mean of the targets; 0 without rows."""
        weight = moments.total_weight
        mean = moments.target_sums / weight if weight > 0 else np.zeros(len(moments.cross))
        squares = moments.target_gram.diagonal()
        return cls(
            weights=np.zeros_like(moments.cross),
            intercept=mean,
            alpha=math.nan,
            fit=float(weight * (mean @ mean)),
            residuals=np.maximum(squares - weight * mean**2, 0.0),
            risk=1.0,
        )


class SolvedCells(NamedTuple):
    """The solutions of L cells, one after another; `weights` is (q, R) for all R basis rows."""

    weights: Floats
    intercepts: Floats
    alphas: Floats
    fits: Floats
    residuals: Floats
    risks: Floats

    @classmethod
    def joined(cls, cells: Iterable[Mapping[str, NDArray[Any]]]) -> Self:
        """Return the joined solutions of cells, each given by its `SolvedCell.arrays`."""
        columns = zip(
            *([each[f"solved_{name}"] for name in SolvedCell._fields] for each in cells),
            strict=True,
        )
        weights, intercepts, alphas, fits, residuals, risks = columns
        return cls(
            np.concatenate(weights, axis=1),
            np.stack(intercepts),
            np.concatenate(alphas),
            np.concatenate(fits),
            np.stack(residuals),
            np.concatenate(risks),
        )

    @property
    def fitting_error(self) -> float:
        """Eps of all rows, see `ErrorAndRisk`."""
        fit = float(self.fits.sum())
        return 1.0 + float(self.residuals.sum()) / fit if fit > 0 else 1.0

    @property
    def spectral_risk(self) -> float:
        """Largest spectral risk of a cell."""
        return float(self.risks.max())
