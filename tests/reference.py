"""A naive normalized RBF network, written apart from the package and small enough to check by eye.

Everything is held in memory and every distance is the norm of an explicit difference. The numbered
comments are the steps of hu-nrbfn, Algorithms 1 to 3.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class ReferenceFit:
    classes: np.ndarray  # (K,)
    basis_rows: np.ndarray  # (r,) positions in the training rows
    basis: np.ndarray  # (r, p)
    confidence: np.ndarray  # (n,)
    width: float
    gram: np.ndarray  # (r, r)
    cross: np.ndarray  # (K, r)
    weights: np.ndarray  # (K, r)
    fitting_error: float
    spectral_risk: float

    def scores(self, X):
        return reference_activations(X, self.basis, self.width) @ self.weights.T  # 10

    def predict(self, X):
        return self.classes[np.argmax(self.scores(X), axis=1)]


def reference_fit(X, y, *, alpha, n_neighbors=20, confidence_threshold=0.9, basis_rows=None):
    """Fit all rows; `basis_rows` puts a choice of one's own in the place of step 5."""
    X, y = np.asarray(X, dtype=np.float64), np.asarray(y)
    classes = np.unique(y)
    confidence = reference_confidence(X, y, n_neighbors=n_neighbors)
    if basis_rows is None:
        basis_rows = reference_basis_rows(confidence, y, threshold=confidence_threshold)  # 5
    basis = X[basis_rows]
    width = reference_distances(X, basis).mean()  # 6
    Phi = reference_activations(X, basis, width)  # 7
    F = (y[:, None] == classes[None, :]).astype(np.float64)
    gram, cross = Phi.T @ Phi, F.T @ Phi  # 8
    penalty = alpha * np.trace(gram) * np.eye(len(gram))
    weights = np.linalg.solve(gram + penalty, cross.T).T  # 9
    fit = Phi @ weights.T
    return ReferenceFit(
        classes=classes,
        basis_rows=basis_rows,
        basis=basis,
        confidence=confidence,
        width=width,
        gram=gram,
        cross=cross,
        weights=weights,
        fitting_error=np.sum((F - fit) ** 2) / np.sum(fit**2) + 1,
        spectral_risk=np.sum(weights**2) * np.trace(gram) / np.sum(fit**2),
    )


def reference_l1_distances(X, basis):
    """Return ``sum_l |x_l - g_l|``, (n, r)."""
    X, basis = np.asarray(X, dtype=np.float64), np.asarray(basis, dtype=np.float64)
    return np.array([[np.sum(np.abs(x - g)) for g in basis] for x in X])


def reference_distances(X, Y):
    X, Y = np.asarray(X, dtype=np.float64), np.asarray(Y, dtype=np.float64)
    return np.array([[np.sqrt(np.sum((x - y) ** 2)) for y in Y] for x in X])


def reference_confidence(X, y, *, n_neighbors):
    all_distances = reference_distances(X, X)
    np.fill_diagonal(all_distances, np.inf)
    neighbors = np.argsort(all_distances, axis=1, kind="stable")[:, :n_neighbors]  # 1
    distances = np.take_along_axis(all_distances, neighbors, axis=1)
    width = distances.mean()  # 2
    similarity = np.exp(-(distances**2) / (2 * width**2))  # 3
    similarity /= similarity.sum(axis=1, keepdims=True)
    return np.sum(similarity * (y[neighbors] == y[:, None]), axis=1)  # 4


def reference_basis_rows(confidence, y, *, threshold):
    chosen = set(np.flatnonzero(confidence < threshold))
    for label in np.unique(y):
        members = np.flatnonzero(y == label)
        if not chosen.intersection(members):
            # Rounded, because every row of a class that stands apart has confidence 1 and the last
            # bit must not choose among them. The first in row order stands for the class.
            chosen.add(members[np.argmin(confidence[members].round(12))])
    return np.array(sorted(chosen))


def reference_activations(X, basis, width):
    exponents = -(reference_distances(X, basis) ** 2) / (2 * width**2)
    exponents -= exponents.max(axis=1, keepdims=True)
    Phi = np.exp(exponents)
    return Phi / Phi.sum(axis=1, keepdims=True)


def reference_ridge(Phi, T, alpha, *, P=None, weights=1.0, locality=None, middle=0.0, mean=0.0):
    """Return ridge weights (r, q) and an intercept (q,) of activations (n, r) and targets (n, q).

    P is a penalty, I without one, and `locality` the factor of another and this one. What the
    activations and targets are centred about, `middle` and `mean`, has no penalty.
    """
    A, own = Phi - middle, np.broadcast_to(weights, len(Phi))[:, None]
    gram, jitter = A.T @ (own * A), 0.0
    if P is None:
        P = np.eye(len(gram))
    elif np.any(np.diag(P.diagonal()) != P):
        jitter = 1e-13 * np.trace(gram)
    added = [(alpha, P)] if locality is None else [(alpha, P), locality]
    unit = np.trace(gram) * len(gram)
    ridge = sum(factor * unit / np.trace(matrix) * matrix for factor, matrix in added)
    penalized = gram + ridge + jitter * np.eye(len(gram))
    W = np.linalg.solve(penalized, A.T @ (own * (T - mean)))
    return W, mean - middle * np.ones(len(W)) @ W


def reference_penalized(Phi, T, alpha, P):
    """Return ridge weights (q, r) with the penalty P, from rows with roots of it below them."""
    mu = alpha * np.sum(Phi**2) * len(P) / np.trace(P)
    root = np.sqrt(mu) * np.linalg.cholesky(P).T
    below = np.zeros((len(P), T.shape[1]))
    return np.linalg.lstsq(np.vstack([Phi, root]), np.vstack([T, below]), rcond=None)[0].T


def first_half(X, y):
    """Return train and test row numbers: in each class the first ceil(n_c / 2) rows train."""
    trains = np.zeros(len(X), dtype=bool)
    for label in np.unique(y):
        members = np.flatnonzero(y == label)
        trains[members[: (len(members) + 1) // 2]] = True
    return np.flatnonzero(trains), np.flatnonzero(~trains)


def fitted_ones(Phi, judged, alpha, weights=None, least=1e-6):
    """Return what weights that fit activations (n, r') to 1 make of others, float64 (m, 1)."""
    weighted = Phi if weights is None else Phi * weights[:, None]
    gram, sums = weighted.T @ Phi, weighted.sum(axis=0)
    own, full = (
        np.linalg.solve(gram + each * np.trace(gram) * np.eye(len(gram)), sums)
        for each in (alpha, min(alpha, least))
    )
    own *= (sums @ full) / (sums @ own)
    return np.maximum(judged @ own, 0.5 * judged.sum(axis=1))[:, None]
