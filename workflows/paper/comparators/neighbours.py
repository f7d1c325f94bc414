"""The majority of the nearest rows."""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin

from dask_nrbfn.neighbors.exact import nearest_rows


class MajorityOfNeighbors(ClassifierMixin, BaseEstimator):
    """KNN of hu-nrbfn, Table 1: of equal votes the smallest label wins."""

    def __init__(self, n_neighbors: int = 20) -> None:
        self.n_neighbors = n_neighbors

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> Self:
        """Keep rows (n, p) and labels (n,)."""
        self.classes_, self._codes = np.unique(y, return_inverse=True)
        self._rows = np.asarray(X, dtype=np.float64)
        return self

    def predict(self, X: NDArray[Any]) -> NDArray[Any]:
        """Return the labels of rows (b, p)."""
        rows = np.asarray(X, dtype=np.float64)
        voters = self._codes[nearest_rows(self._rows, rows, count=self.n_neighbors).indices]
        votes = (voters[:, :, None] == np.arange(len(self.classes_))).sum(axis=1)
        return self.classes_[votes.argmax(axis=1)]
