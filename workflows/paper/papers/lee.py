"""Lee & Izbicki: *A Spectral Series Approach to High-Dimensional Nonparametric Regression*.

The text at hand ends before its tables, so no figures stand beside ours. Few rows have labels; the
basis is these rows or all rows. Width, and penalty or number of eigenfunctions, are chosen on 100
other rows.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from lines import Line, Spread, Table
from networks import Network, Recipe, given, loss, mean_distance, radial_system
from numpy.typing import NDArray
from sets import DataSet

from dask_nrbfn.numeric.eigenfunctions import eigenfunctions
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.ridge import JITTER, solve_components

Floats = NDArray[np.float64]

# From labelled rows, their classes, basis and new rows: scores for every setting.
Method = Callable[[Floats, NDArray[Any], Floats, Floats], Iterable[Floats]]

FACTORS = (2.0, 1.0, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05)
ALPHAS = [10.0**power for power in range(-2, -16, -1)]
# Numbers of eigenfunctions.
COMPONENTS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500)
LABELLED = (30, 100)
VALIDATED = 100


def ridge(X: Floats, codes: NDArray[Any], basis: Floats, new: Floats) -> Iterator[Floats]:
    """Yield the scores of normalized networks of each width and penalty."""
    recipe = Recipe(basis=given(basis), normalized=True)
    for width in widths(basis, X):
        for network in recipe.path(X, codes, width=width, alphas=ALPHAS):
            if network is not None:
                yield network.scores(new)


def series(X: Floats, codes: NDArray[Any], basis: Floats, new: Floats) -> Iterator[Floats]:
    """Yield the scores of series of each width and length, their coefficients by least squares."""
    for width in widths(basis, X):
        features = RadialFeatures.from_basis(basis, width)
        system = radial_system(features, X, codes)
        B = eigenfunctions(features, COMPONENTS[-1]).coefficients
        path = solve_components(
            system.gram, system.cross, B, sizes=COMPONENTS, alphas=[JITTER] * len(COMPONENTS)
        )
        for solution in path:
            if solution is not None:
                weights = solution.weights
                yield Network(features, weights, system.intercept(weights)).scores(new)


def widths(basis: Floats, X: Floats) -> Iterator[float]:
    """Yield the widths that are tried."""
    unit = mean_distance(basis, X)
    yield from (factor * unit for factor in FACTORS)


METHODS: dict[str, Method] = {"series": series, "ridge": ridge}


def few_labels(data: DataSet) -> Iterator[Line]:
    """Yield the errors of few labelled rows, with a basis of them alone or of all rows."""
    X = np.asarray(data.X, dtype=np.float64)
    found: dict[str, list[float]] = {}
    for n_labelled in LABELLED:
        for seed in range(data.n_draws):
            order = np.random.default_rng(seed).permutation(len(X))
            labelled, rest = np.split(order, [n_labelled])
            for name, basis in (("labelled", X[labelled]), ("all", X)):
                for method, candidates in METHODS.items():
                    scores = candidates(X[labelled], data.y[labelled], basis, X[rest])
                    key = f"{n_labelled} labels, {method}, basis {name}"
                    found.setdefault(key, []).append(chosen_error(scores, data.y[rest]))
    for key, errors in found.items():
        spread = Spread.of(errors)
        yield Line.ours(key, f"{spread.mean:.1f}", spread.note)


def chosen_error(candidates: Iterable[Floats], codes: NDArray[Any]) -> float:
    """Return the error beyond the first rows, of the candidate that is best on these."""
    best = min(candidates, key=lambda scores: loss(scores[:VALIDATED], codes[:VALIDATED]))
    return loss(best[VALIDATED:], codes[VALIDATED:])


TABLES = [Table("few-labels", "error (%)", ("digits",), few_labels)]
