"""The network of the Netlab toolbox, whose basis are the centres of a Gaussian mixture."""

from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.cluster import KMeans

from dask_nrbfn.numeric.distances import distances_from
from dask_nrbfn.numeric.radial import RadialFeatures

Floats = NDArray[np.float64]

# As `rbfsetbf` of Netlab has them.
_KMEANS_STEPS = 5
_MIXTURE_STEPS = 100

# Of the variance of the rows: a component of a single row has none, and Netlab then divides by 0.
_LEAST_VARIANCE = 1e-6


class Mixture(NamedTuple):
    """Components with one variance each: (r,) shares, (r, p) centres, (r,) variances."""

    shares: Floats
    centres: Floats
    variances: Floats


def mixture_step(X: Floats, mixture: Mixture, *, least_variance: float) -> Mixture:
    """Return what one step of EM makes of a mixture for rows (n, p)."""
    n_features = X.shape[1]
    squared = distances_from(mixture.centres).clipped(X)
    logarithms = np.log(mixture.shares) - 0.5 * (
        squared / mixture.variances + n_features * np.log(mixture.variances)
    )
    parts = softmax(logarithms, axis=1)
    # A component that lost all rows stays where it is.
    totals = np.maximum(parts.sum(axis=0), np.finfo(np.float64).tiny)
    centres = parts.T @ X / totals[:, None]
    squared = distances_from(centres).clipped(X)
    variances = (parts * squared).sum(axis=0) / (n_features * totals)
    return Mixture(totals / len(X), centres, np.maximum(variances, least_variance))


class NetlabNetwork(ClassifierMixin, BaseEstimator):
    """RBFNnl of hu-nrbfn, Table 1: no penalty, a bias, sigma the largest distance of centres.

    `random_state` seeds k-means, which the mixture starts from.
    """

    def __init__(self, n_basis: int, random_state: int = 0) -> None:
        self.n_basis = n_basis
        self.random_state = random_state

    def fit(self, X: NDArray[Any], y: NDArray[Any]) -> Self:
        """Fit the mixture to rows (n, p), then the weights to labels (n,)."""
        self.classes_, codes = np.unique(y, return_inverse=True)
        rows = np.asarray(X, dtype=np.float64)
        least_variance = _LEAST_VARIANCE * rows.var(axis=0).mean()
        mixture = self._start(rows, least_variance)
        for _ in range(_MIXTURE_STEPS):
            mixture = mixture_step(rows, mixture, least_variance=least_variance)
        squared = distances_from(mixture.centres).clipped(mixture.centres)
        width = float(np.sqrt(squared.max()))
        self._features = RadialFeatures.from_basis(mixture.centres, width, normalized=False)
        self._weights = np.linalg.pinv(self._activations(rows)) @ np.eye(len(self.classes_))[codes]
        return self

    def predict(self, X: NDArray[Any]) -> NDArray[Any]:
        """Return the labels of rows (b, p)."""
        return self.classes_[(self._activations(X) @ self._weights).argmax(axis=1)]

    def _start(self, X: Floats, least_variance: float) -> Mixture:
        """Return k-means' clusters, each as wide as the way to the nearest other centre."""
        means = KMeans(
            self.n_basis,
            init="random",
            n_init=1,
            max_iter=_KMEANS_STEPS,
            random_state=self.random_state,
        ).fit(X)
        squared = distances_from(means.cluster_centers_).clipped(means.cluster_centers_)
        np.fill_diagonal(squared, np.inf)
        shares = np.bincount(means.labels_, minlength=self.n_basis) / len(X)
        variances = np.maximum(squared.min(axis=1), least_variance)
        return Mixture(shares, means.cluster_centers_, variances)

    def _activations(self, X: NDArray[Any]) -> Floats:
        return np.column_stack([self._features.activations(X), np.ones(len(X))])
