"""Lee & Izbicki: *A Spectral Series Approach to High-Dimensional Nonparametric Regression*.

The text at hand ends before its tables, so no figures stand beside ours. Half of the rows train, a
quarter chooses width, penalty and the like, a quarter is tested; of houses at most 4,000, 2,000 and
as many as are left. The basis is 500 rows, or all. Losses of numbers are mean squares in units of
their variance.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from comparators.smoothing import kernel_votes
from lines import Line, Spread, Table
from networks import Network, Recipe, given, loss, mean_distance, radial_system
from numpy.typing import NDArray
from sets import DataSet
from sklearn.neighbors import KNeighborsRegressor
from sklearn.preprocessing import StandardScaler

from dask_nrbfn.numeric.eigenfunctions import eigenfunctions
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.ridge import JITTER, solve_components

Floats = NDArray[np.float64]

# From training rows, what they are taught, basis and new rows: scores for every setting.
Method = Callable[[Floats, NDArray[Any], Floats, Floats], Iterable[Floats]]

FACTORS = (2.0, 1.0, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05)
ALPHAS = [10.0**power for power in range(-2, -16, -1)]
# Numbers of eigenfunctions.
COMPONENTS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500)
NEIGHBORS = (1, 2, 4, 8, 16, 32)

# Sets whose columns have units of their own.
SCALED = ("reg_houses",)
BASIS = 500
MOST_ROWS = 6000
LABELLED = (30, 100)
VALIDATED = 100


def ridge(
    X: Floats, taught: NDArray[Any], basis: Floats, new: Floats, **parts: Any
) -> Iterator[Floats]:
    """Yield the scores of networks of each width and penalty."""
    recipe = Recipe(basis=given(basis), **parts)
    for width in widths(basis, X):
        for network in recipe.path(X, taught, width=width, alphas=ALPHAS):
            if network is not None:
                yield network.scores(new)


def series(X: Floats, taught: NDArray[Any], basis: Floats, new: Floats) -> Iterator[Floats]:
    """Yield the scores of series of each width and length, their coefficients by least squares."""
    for width in widths(basis, X):
        features = RadialFeatures.from_basis(basis, width)
        system = radial_system(features, X, taught)
        B = eigenfunctions(features, COMPONENTS[-1]).coefficients
        path = solve_components(
            system.gram, system.cross, B, sizes=COMPONENTS, alphas=[JITTER] * len(COMPONENTS)
        )
        for solution in path:
            if solution is not None:
                weights = solution.weights
                yield Network(features, weights, system.intercept(weights)).scores(new)


def summed_series(X: Floats, taught: Floats, basis: Floats, new: Floats) -> Iterator[Floats]:
    """Yield the scores of series whose coefficients are the paper's sums, eq. 12."""
    for width in widths(basis, X):
        features = RadialFeatures.from_basis(basis, width)
        density = replace(features, normalized=False).activations(X).sum(axis=1)
        B = eigenfunctions(features, COMPONENTS[-1]).coefficients
        psi = features.activations(X) @ B
        beta = psi.T @ (taught * (density / density.sum())[:, None])
        for count in COMPONENTS:
            weights = np.ascontiguousarray((B[:, :count] @ beta[:count]).T)
            yield features.weighted_sums(new, weights)


def smoothing(X: Floats, taught: Floats, basis: Floats, new: Floats) -> Iterator[Floats]:
    """Yield the means of Nadaraya & Watson for each width."""
    for width in widths(basis, X):
        yield kernel_votes(X, taught, new, width=width, normalized=True)


def neighbours(X: Floats, taught: Floats, basis: Floats, new: Floats) -> Iterator[Floats]:
    """Yield the means of each number of neighbours."""
    for count in NEIGHBORS:
        yield KNeighborsRegressor(count).fit(X, taught).predict(new)


def widths(basis: Floats, X: Floats) -> Iterator[float]:
    """Yield the widths that are tried."""
    unit = mean_distance(basis, X)
    yield from (factor * unit for factor in FACTORS)


NETWORKS: dict[str, Method] = {
    "normalized ridge": partial(ridge, normalized=True),
    "plain ridge": ridge,
    "kernel ridge": partial(ridge, penalty="kernel"),
}
REGRESSIONS: dict[str, Method] = {
    "series, eq. 12": summed_series,
    "series": series,
    **NETWORKS,
    "kernel smoothing": smoothing,
    "nearest neighbours": neighbours,
}
FEW = {"series": series, "ridge": NETWORKS["normalized ridge"]}


def regression(data: DataSet) -> Iterator[Line]:
    """Yield the losses on numbers."""
    found: dict[str, list[float]] = {name: [] for name in REGRESSIONS}
    for split in data.drawn(min(3 * len(data.y) // 4, MOST_ROWS)):
        X, tested = (rows.astype(np.float64) for rows in (split.X_train, split.X_test))
        if data.name in SCALED:
            scaler = StandardScaler().fit(X)
            X, tested = scaler.transform(X), scaler.transform(tested)
        T, T_test = split.y_train / data.y.std(axis=0), split.y_test / data.y.std(axis=0)
        n_fitted = 2 * len(X) // 3
        new = np.concatenate([X[n_fitted:], tested])
        answers = np.concatenate([T[n_fitted:], T_test])
        for name, method in REGRESSIONS.items():
            candidates = method(X[:n_fitted], T[:n_fitted], X[:n_fitted][:BASIS], new)
            found[name].append(chosen_loss(candidates, answers, len(X) - n_fitted))
    yield from _lines(found, 4)


def few_labels(data: DataSet) -> Iterator[Line]:
    """Yield the errors of few labelled rows, with a basis of them alone or of all rows."""
    X = np.asarray(data.X, dtype=np.float64)
    found: dict[str, list[float]] = {}
    for n_labelled in LABELLED:
        for seed in range(data.n_draws):
            order = np.random.default_rng(seed).permutation(len(X))
            labelled, rest = np.split(order, [n_labelled])
            for name, basis in (("labelled", X[labelled]), ("all", X)):
                for method, candidates in FEW.items():
                    scores = candidates(X[labelled], data.y[labelled], basis, X[rest])
                    key = f"{n_labelled} labels, {method}, basis {name}"
                    error = chosen_loss(scores, data.y[rest], VALIDATED)
                    found.setdefault(key, []).append(error)
    yield from _lines(found, 1)


def chosen_loss(candidates: Iterable[Floats], answers: NDArray[Any], n_held: int) -> float:
    """Return the loss beyond the first rows, of the candidate that is best on these."""
    best = min(candidates, key=lambda scores: loss(scores[:n_held], answers[:n_held]))
    return loss(best[n_held:], answers[n_held:])


def _lines(found: Mapping[str, Sequence[float]], digits: int) -> Iterator[Line]:
    for name, losses in found.items():
        spread = Spread.of(losses)
        yield Line.ours(name, f"{spread.mean:.{digits}f}", spread.note)


TABLES = [
    Table("regression", "loss", ("isomap_faces_32x32", "reg_houses"), regression),
    Table("few-labels", "error (%)", ("digits",), few_labels),
]
