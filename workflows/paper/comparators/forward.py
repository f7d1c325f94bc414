"""Regularized orthogonal least squares, which chooses its basis among all rows."""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from sklearn.base import BaseEstimator, ClassifierMixin

from dask_nrbfn.numeric.forward import forward_selection
from dask_nrbfn.numeric.moments import Moments
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.ridge import RidgeSystem
from dask_nrbfn.numeric.targets import ClassTargets

Floats = NDArray[np.float64]


class ForwardNetwork(ClassifierMixin, BaseEstimator):
    """ROLS of hu-nrbfn, Table 1: Chen, Chng & Alkadhimi, 1996.

    `width` is the sigma of the kernel, `alpha` relative to the trace of gram.
    """

    def __init__(self, width: float, n_basis: int, alpha: float) -> None:
        self.width = width
        self.n_basis = n_basis
        self.alpha = alpha

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> Self:
        """Choose among rows (n, p) with labels (n,); ``n^3`` flops."""
        self.classes_, codes = np.unique(y, return_inverse=True)
        targets = ClassTargets(len(self.classes_))
        candidates = RadialFeatures.from_basis(X, self.width, normalized=False)
        moments = Moments.from_block(candidates.activations(X), targets.bordered(codes))
        system = RidgeSystem.of(moments, targets, normalized=False)
        self.chosen_ = forward_selection(system, size=self.n_basis, alpha=self.alpha).chosen
        self._features = RadialFeatures.from_basis(
            candidates.basis[self.chosen_], self.width, normalized=False
        )
        self._weights = self._orthogonal_weights(system)
        return self

    def scores(self, X: NDArray[Any]) -> Floats:
        """Return the scores of rows (b, p), float64 (b, K)."""
        return self._features.weighted_sums(X, self._weights)

    def predict(self, X: NDArray[Any]) -> NDArray[Any]:
        """Return the labels of rows (b, p)."""
        return self.classes_[self.scores(X).argmax(axis=1)]

    def _orthogonal_weights(self, system: RidgeSystem) -> Floats:
        """Return the weights (K, m) of the chosen rows: the penalty is of the orthogonal ones.

        Those are ``C_j / (d_j + penalty)`` for columns orthogonal to the ones before, of squares d.
        """
        factor = np.linalg.cholesky(system.gram[np.ix_(self.chosen_, self.chosen_)])
        squares = factor.diagonal() ** 2
        kept = squares / (squares + self.alpha * np.trace(system.gram))
        products = solve_triangular(factor, system.cross[:, self.chosen_].T, lower=True)
        weights = solve_triangular(factor.T, products * kept[:, None])
        return np.ascontiguousarray(weights.T)
