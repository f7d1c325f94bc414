"""The same fit as a plain numpy script: one process, all rows in memory, nothing written.

Prints one line of JSON with the seconds of each step. `fit.py` runs it beside dask:

    python workflows/benchmarks/plain.py mnist.zarr
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import zarr
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from sklearn.neighbors import NearestNeighbors

Floats = NDArray[np.float64]

BLOCK_ROWS = 4096


@dataclass
class Clock:
    """Seconds since the step before."""

    steps: dict[str, float] = field(default_factory=dict)
    last: float = field(default_factory=time.perf_counter)

    def stop(self, step: str) -> None:
        """End a step."""
        now = time.perf_counter()
        self.steps[step], self.last = now - self.last, now


def main() -> None:
    """Fit the dataset and print seconds and figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset")
    parser.add_argument("--n-neighbors", type=int, default=20)
    parser.add_argument("--confidence-threshold", type=float, default=0.9)
    parser.add_argument("--alpha", type=float, default=1e-13)
    options = parser.parse_args()
    clock = Clock()
    group = zarr.open_group(options.dataset, mode="r")
    X, classes, codes = group["X"][:], *np.unique(group["y"][:], return_inverse=True)
    clock.stop("columns")
    distances, indices = nearest_neighbors(X, options.n_neighbors)
    clock.stop("neighbors")
    confidence = soft_confidence(distances, codes[indices] == codes[:, None])
    clock.stop("confidence")
    basis = choose_basis(confidence, codes, options.confidence_threshold)
    G = X[basis].astype(np.float64)
    clock.stop("basis")
    width = mean_distance(X, G)
    clock.stop("width")
    gram, cross = sum_moments(X, codes, G, width, len(classes))
    clock.stop("moments")
    weights = solve(gram, cross, options.alpha)
    eps, gamma = error_and_risk(weights, gram, cross, len(X))
    clock.stop("weights")
    print(json.dumps({"steps": clock.steps, "n_basis": len(basis), "eps": eps, "gamma": gamma}))


def nearest_neighbors(X: NDArray, n_neighbors: int) -> tuple[NDArray, NDArray]:
    """Return distances and numbers (n, k) of the nearest other rows."""
    # Whole numbers of 16 bits and less are exact in float32.
    rows = X.astype(np.float32) if np.can_cast(X.dtype, np.float32) else X
    search = NearestNeighbors(n_neighbors=n_neighbors, algorithm="brute").fit(rows)
    return search.kneighbors()


def soft_confidence(distances: NDArray, agrees: NDArray[np.bool_]) -> Floats:
    """Return the confidence (n,) from distances and label agreement (n, k)."""
    squared = distances.astype(np.float64) ** 2
    exponents = -squared / (2 * distances.mean(dtype=np.float64) ** 2)
    similarity = np.exp(exponents - exponents.max(axis=1, keepdims=True))
    return (similarity * agrees).sum(axis=1) / similarity.sum(axis=1)


def choose_basis(confidence: Floats, codes: NDArray, threshold: float) -> NDArray[np.int64]:
    """Return the rows below the threshold, and for a class without any its least confident."""
    chosen = confidence < threshold
    for code in np.setdiff1d(codes, codes[chosen]):
        members = np.flatnonzero(codes == code)
        chosen[members[confidence[members].argmin()]] = True
    return np.flatnonzero(chosen)


def blocks(X: NDArray) -> Iterator[tuple[slice, Floats]]:
    """Yield the rows as float64, with where they are."""
    for start in range(0, len(X), BLOCK_ROWS):
        span = slice(start, start + BLOCK_ROWS)
        yield span, X[span].astype(np.float64)


def mean_distance(X: NDArray, G: Floats) -> float:
    """Return the mean distance between all rows and all basis rows."""
    centre = G.mean(axis=0)
    G = G - centre
    G_norms = (G * G).sum(axis=1)
    total = 0.0
    for _, rows in blocks(X):
        rows -= centre
        squared = rows @ (-2.0 * G.T)
        squared += G_norms
        squared += (rows * rows).sum(axis=1)[:, None]
        np.maximum(squared, 0.0, out=squared)
        total += np.sqrt(squared, out=squared).sum()
    return total / (len(X) * len(G))


def sum_moments(
    X: NDArray, codes: NDArray, G: Floats, width: float, n_classes: int
) -> tuple[Floats, Floats]:
    """Return gram (r, r) and cross (K, r)."""
    centre = G.mean(axis=0)
    slopes = (G - centre) / width**2
    offsets = 0.5 * (slopes * (G - centre)).sum(axis=1)
    gram, cross = np.zeros((len(G), len(G))), np.zeros((n_classes, len(G)))
    for span, rows in blocks(X):
        rows -= centre
        Phi = rows @ slopes.T
        Phi -= offsets
        Phi -= Phi.max(axis=1, keepdims=True)
        np.exp(Phi, out=Phi)
        Phi /= Phi.sum(axis=1, keepdims=True)
        gram += Phi.T @ Phi
        cross += np.eye(n_classes)[:, codes[span]] @ Phi
    return gram, cross


def solve(gram: Floats, cross: Floats, alpha: float) -> Floats:
    """Return the weights (K, r)."""
    penalized = gram.copy()
    penalized.flat[:: len(gram) + 1] += alpha * np.trace(gram)
    # The matrix is symmetric: its transpose is in the order that LAPACK overwrites without a copy.
    factor = cho_factor(penalized.T, lower=True, overwrite_a=True, check_finite=False)
    return cho_solve(factor, cross.T, check_finite=False).T


def error_and_risk(weights: Floats, gram: Floats, cross: Floats, n: int) -> tuple[float, float]:
    """Return eps and gamma."""
    fitted = (weights @ gram * weights).sum()
    eps = (n - 2 * (weights * cross).sum() + fitted) / fitted + 1
    return eps, (weights**2).sum() * np.trace(gram) / fitted


if __name__ == "__main__":
    main()
