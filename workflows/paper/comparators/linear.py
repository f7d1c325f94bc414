"""Linear regression of the class indicators."""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin

from dask_nrbfn.numeric.ridge import RidgeSystem
from dask_nrbfn.numeric.risk import error_and_risk


class LinearRegressionClassifier(ClassifierMixin, BaseEstimator):
    """LRC of hu-nrbfn, eq. 14 with beta = 1: a constant and the centred columns.

    `alpha` is relative to the trace of the gram matrix.
    """

    def __init__(self, alpha: float = 1e-4) -> None:
        self.alpha = alpha

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> Self:
        """Fit rows (n, p) with labels (n,)."""
        self.classes_, codes = np.unique(y, return_inverse=True)
        self._mean = np.asarray(X, dtype=np.float64).mean(axis=0)
        Phi, F = self._features(X), np.eye(len(self.classes_))[codes]
        means = np.zeros(F.shape[1]), np.zeros(Phi.shape[1])
        system = RidgeSystem(Phi.T @ Phi, F.T @ Phi, F.sum(axis=0), *means)
        self.weights_ = system.solve(self.alpha).weights
        risk = error_and_risk(self.weights_, system, self.alpha)
        self.fitting_error_, self.spectral_risk_ = risk.fitting_error, risk.spectral_risk
        return self

    def predict(self, X: NDArray[Any]) -> NDArray[Any]:
        """Return the labels of rows (b, p)."""
        return self.classes_[(self._features(X) @ self.weights_.T).argmax(axis=1)]

    def _features(self, X: NDArray[Any]) -> NDArray[np.float64]:
        return np.column_stack([np.ones(len(X)), X - self._mean])
