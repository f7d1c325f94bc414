"""Networks in memory, by the library's sums, with every width and penalty from one search.

The papers choose absolute widths, hold out a tenth of the rows, or train on all of them as centres,
where the estimators have width factors, folds and a basis that stays.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.distances import distances_from
from dask_nrbfn.numeric.moments import MomentSums
from dask_nrbfn.numeric.penalties import Ridge, RidgeTerms
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.ridge import RidgeSolution, RidgeSystem
from dask_nrbfn.numeric.targets import ClassTargets

Floats = NDArray[np.float64]
Folds = Iterable[tuple[NDArray[np.integer], NDArray[np.integer]]]

_BLOCK_ROWS = 1024


@dataclass(frozen=True, eq=False)
class Network:
    """Features, weights (q, r) and intercept (q,)."""

    features: RadialFeatures
    weights: Floats
    intercept: Floats

    def scores(self, X: NDArray[Any]) -> Floats:
        """Return the scores of rows (b, p), float64 (b, q)."""
        sums = [self.features.weighted_sums(X[block], self.weights) for block in blocks(len(X))]
        return np.concatenate(sums) + self.intercept


class Setting(NamedTuple):
    """A width and a penalty, relative to the trace of gram, and the loss on rows held out."""

    width: float
    alpha: float
    loss: float


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a network is made of rows (n, p) and class codes (n,), from 0."""

    # From rows (n, p) to the basis (r, p).
    basis: Callable[[NDArray[Any]], NDArray[Any]]
    penalty: str = "weights"
    normalized: bool = False

    def path(
        self, X: NDArray[Any], codes: NDArray[Any], *, width: float, alphas: Sequence[float]
    ) -> Iterator[Network | None]:
        """Yield the network of each penalty; None where its system is singular."""
        features = RadialFeatures.from_basis(self.basis(X), width, normalized=self.normalized)
        system = self.system(features, X, codes)
        for solution in self.solutions(system, alphas):
            yield solution and Network(
                features, solution.weights, system.intercept(solution.weights)
            )

    def system(self, features: RadialFeatures, X: NDArray[Any], codes: NDArray[Any]) -> RidgeSystem:
        """Return the ridge system of rows, with what it keeps small."""
        terms = RidgeTerms(features=lambda: features, shares=lambda: shares(features.basis, X))
        return radial_system(features, X, codes).with_ridge(Ridge(self.penalty, 0.0), terms)

    def solutions(
        self, system: RidgeSystem, alphas: Sequence[float]
    ) -> Iterable[RidgeSolution | None]:
        """Return the solution of each penalty; None where the system is singular."""
        return system.path(alphas)

    def fit(self, X: NDArray[Any], codes: NDArray[Any], setting: Setting) -> Network:
        """Return the network of a setting, with ten times its penalty while it is singular."""
        alphas = [setting.alpha * 10.0**power for power in range(16)]
        path = self.path(X, codes, width=setting.width, alphas=alphas)
        return next(network for network in path if network is not None)

    def search(
        self,
        X: NDArray[Any],
        codes: NDArray[Any],
        folds: Folds,
        *,
        widths: Sequence[float],
        alphas: Sequence[float],
    ) -> Setting:
        """Return the setting of the least loss on held-out rows, of equal ones the first.

        Each fold is row numbers to fit and to hold out.
        """
        losses = np.zeros((len(widths), len(alphas)))
        for fitted, held in folds:
            for row, width in zip(losses, widths, strict=True):
                path = self.path(X[fitted], codes[fitted], width=width, alphas=alphas)
                row += [
                    np.inf if network is None else loss(network.scores(X[held]), codes[held])
                    for network in path
                ]
        place, number = np.unravel_index(losses.argmin(), losses.shape)
        return Setting(widths[place], alphas[number], float(losses[place, number]))


def given(basis: NDArray[Any]) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Return what makes this basis of any rows."""
    return lambda X: basis


def loss(scores: Floats, codes: NDArray[Any]) -> float:
    """Return the error in percent."""
    return 100.0 * float((scores.argmax(axis=1) != codes).mean())


def radial_system(features: RadialFeatures, X: NDArray[Any], codes: NDArray[Any]) -> RidgeSystem:
    """Return the ridge system of rows (n, p)."""
    targets = ClassTargets(int(codes.max()) + 1)
    sums = MomentSums(len(features.basis), targets.n_targets)
    for block in blocks(len(X)):
        sums.add(features.activations(X[block]), targets.bordered(codes[block]))
    return RidgeSystem.of(sums.moments(), targets, normalized=features.normalized)


def shares(basis: NDArray[Any], X: NDArray[Any]) -> Floats:
    """Return the share of rows (n, p) that are nearest to each basis row, float64 (r,)."""
    distances, nearest = distances_from(basis), np.empty(len(X), dtype=np.intp)
    for block in blocks(len(X)):
        distances.total(X[block], nearest=nearest[block])
    return np.bincount(nearest, minlength=len(basis)) / len(X)


def mean_distance(basis: NDArray[Any], X: NDArray[Any]) -> float:
    """Return the mean distance between basis (r, p) and rows (n, p)."""
    distances = distances_from(basis)
    total = sum(distances.total(X[block]) for block in blocks(len(X)))
    return total / (len(basis) * len(X))


def blocks(n_rows: int) -> Iterator[slice]:
    """Yield the blocks that rows are read in."""
    for start in range(0, n_rows, _BLOCK_ROWS):
        yield slice(start, start + _BLOCK_ROWS)
