"""Selection of the number of centres by the stochastic sensitivity of the network."""

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.cluster import KMeans

from dask_nrbfn.numeric.distances import distances_from
from dask_nrbfn.numeric.radial import RadialFeatures

Floats = NDArray[np.float64]


def distance_moments(X: Floats, centres: Floats) -> tuple[Floats, Floats]:
    """Return mean and variance, (r,) each, of ``|x - g|^2`` were the columns of X independent.

    From the moments of the columns: Ng et al., 2005, by Xue, Chen & Zeng, eqs. 3 and 4.
    """
    mean, variance = X.mean(axis=0), X.var(axis=0)
    third, fourth = (((X - mean) ** power).mean(axis=0) for power in (3, 4))
    gaps = mean - centres
    spread = fourth - variance**2 + 4.0 * variance * gaps**2 + 4.0 * third * gaps
    return (variance + gaps**2).sum(axis=1), spread.sum(axis=1)


def widest_union(
    X: Floats, centres: Floats, weights: Floats, *, width: float, empirical: float, rho: float
) -> float:
    """Return the Q up to which the error about all rows stays below `rho`, by eq. 5.

    Rows X (n, p), centres (r, p) and their weights (r,); `empirical` is the mean squared error of
    the rows themselves.
    """
    if empirical >= rho:
        return 0.0
    mean, variance = distance_moments(X, centres)
    with np.errstate(divide="ignore"):
        logarithms = 2.0 * np.log(np.abs(weights))
    logarithms += variance / (2.0 * width**4) - mean / width**2
    # Less the largest: the terms themselves overflow.
    largest = logarithms.max()
    terms = np.exp(logarithms - largest) / width**4
    linear, quadratic = float(terms @ mean), 0.2 / 3.0 * X.shape[1] * float(terms.sum())
    with np.errstate(over="ignore"):
        room = 3.0 * (np.sqrt(rho) - np.sqrt(empirical)) ** 2 * np.exp(-largest)
    # The positive root, so written that small ones do not cancel.
    return float(np.sqrt(2.0 * room / (linear + np.sqrt(linear**2 + 4.0 * quadratic * room))))


class SensitivityNetwork(ClassifierMixin, BaseEstimator):
    """R_SM of Xue, Chen & Zeng: of networks with 1, 2, ... centres the one of the widest Q.

    Targets are 0 and 1; `random_state` seeds k-means.
    """

    def __init__(self, most_centres: int = 30, rho: float = 0.25, random_state: int = 0) -> None:
        self.most_centres = most_centres
        self.rho = rho
        self.random_state = random_state

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> Self:
        """Fit rows (n, p) with labels (n,) of two classes."""
        self.classes_, codes = np.unique(y, return_inverse=True)
        rows, best = np.asarray(X, dtype=np.float64), -1.0
        n_distinct = len(np.unique(rows, axis=0))
        for count in range(1, min(self.most_centres, n_distinct) + 1):
            means = KMeans(count, n_init=1, random_state=self.random_state).fit(rows)
            centres = means.cluster_centers_
            # The paper does not say its widths; this is the rule of hu-nrbfn.
            width = distances_from(centres).total(rows) / (len(rows) * count)
            features = RadialFeatures.from_basis(centres, width, normalized=False)
            columns = np.column_stack([features.activations(rows), np.ones(len(rows))])
            weights = np.linalg.lstsq(columns, codes, rcond=None)[0]
            errors = float(((codes - columns @ weights) ** 2).mean())
            found = widest_union(
                rows, centres, weights[:-1], width=width, empirical=errors, rho=self.rho
            )
            if found > best:
                best = found
                self._features, self._weights = features, weights
        return self

    def predict(self, X: NDArray[Any]) -> NDArray[Any]:
        """Return the labels of rows (b, p)."""
        scores = self._features.activations(X) @ self._weights[:-1] + self._weights[-1]
        return self.classes_[(scores > 0.5).astype(int)]
