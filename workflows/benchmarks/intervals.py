"""Measure the coverage and the width of prediction intervals, and how unlike rows stand out.

    python workflows/benchmarks/intervals.py
    python workflows/benchmarks/intervals.py grows steps houses.npz --draws 5 --tuned
    python workflows/benchmarks/intervals.py --unlike
    python workflows/benchmarks/intervals.py --cost

A table is a drawn one or an .npz file with numeric targets, see `splits.read_split`. Every draw
has new rows to train on and to test. Figures are means over the draws with their standard errors.
"width" is the mean width at 90 %, "fit s" the median seconds of a fit. For tables with uneven noise
and for files, a second table shows the coverage at 90 % in fifths of the test rows: by the width of
their intervals, and by the standard deviation of their noise if it is known.

With --unlike, the area under the ROC curve of `unlike` for rows that are shifted, and for a digit
that is not in the training rows. With --cost, the seconds of `predict_interval` over those of
`predict`.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingRegressor, IsolationForest
from sklearn.metrics import roc_auc_score
from splits import read_split

from dask_nrbfn import NRBFNClassifier, NRBFNRegressor, NRBFNRegressorCV

Floats = NDArray[np.float64]

LEVELS = (0.5, 0.8, 0.9, 0.95)

# Widths and fifths are those at this level.
_SHOWN = LEVELS.index(0.9)

# The share of rows that split conformal prediction keeps for its residuals.
_CALIBRATION_SHARE = 0.25

# The standard deviations of noise in three regions.
_STEPS = (0.1, 0.3, 0.9)

# Distances of shifted rows, in standard deviations of the rows.
_SHIFTS = (1.0, 2.0, 3.0, 5.0, 10.0)


@dataclass(frozen=True, eq=False)
class Table:
    """Rows with numbers; noise are the standard deviations of the numbers, where known."""

    X: Floats
    y: Floats
    noise: Floats | None = None
    weights: Floats | None = None

    def rows(self, kept: Any) -> "Table":
        """Return some of the rows."""
        noise = None if self.noise is None else self.noise[kept]
        weights = None if self.weights is None else self.weights[kept]
        return Table(self.X[kept], self.y[kept], noise, weights)


def _curved(X: Floats) -> Floats:
    return np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2] + np.abs(X[:, 3])


def _with_noise(rng: np.random.Generator, X: Floats, noise: Floats) -> Table:
    return Table(X, _curved(X) + noise * rng.standard_normal(len(X)), noise)


def even(rng: np.random.Generator, n_rows: int) -> Table:
    """Return rows with equal Gaussian noise."""
    return _with_noise(rng, rng.uniform(-1, 1, (n_rows, 5)), np.full(n_rows, 0.3))


def grows(rng: np.random.Generator, n_rows: int) -> Table:
    """Return rows whose noise grows with one column."""
    X = rng.uniform(-1, 1, (n_rows, 5))
    return _with_noise(rng, X, 0.05 + 0.4 * (1 + X[:, 4]))


def skewed(rng: np.random.Generator, n_rows: int) -> Table:
    """Return rows with exponential noise."""
    X = rng.uniform(-1, 1, (n_rows, 5))
    return Table(X, _curved(X) + rng.exponential(0.3, n_rows))


def heavy(rng: np.random.Generator, n_rows: int) -> Table:
    """Return rows with noise of Student's t distribution with 3 degrees of freedom."""
    X = rng.uniform(-1, 1, (n_rows, 5))
    return Table(X, _curved(X) + 0.2 * rng.standard_t(3, n_rows))


def few_columns(rng: np.random.Generator, n_rows: int) -> Table:
    """Return rows of 20 columns, of which two matter."""
    X = rng.uniform(-1, 1, (n_rows, 20))
    return Table(X, np.sin(3 * X[:, 0]) + X[:, 1] ** 2 + 0.3 * rng.standard_normal(n_rows))


def steps(rng: np.random.Generator, n_rows: int) -> Table:
    """Return rows with three levels of noise, in thirds of the range of one column."""
    X = rng.uniform(-1, 1, (n_rows, 5))
    return _with_noise(rng, X, np.take(_STEPS, np.digitize(X[:, 4], [-1 / 3, 1 / 3])))


def weighted(rng: np.random.Generator, n_rows: int) -> Table:
    """Return rows with weights from 0.5 to 2, and noise whose variance is their inverse."""
    X, weights = rng.uniform(-1, 1, (n_rows, 5)), rng.uniform(0.5, 2, n_rows)
    noisy = _with_noise(rng, X, 0.3 / np.sqrt(weights))
    # The columns do not tell the noise of a row.
    return Table(noisy.X, noisy.y, weights=weights)


def clusters(rng: np.random.Generator, n_rows: int) -> Table:
    """Return rows in three clusters, each with its own noise."""
    members = rng.integers(3, size=n_rows)
    Z = rng.uniform(-1, 1, (n_rows, 5))
    noisy = _with_noise(rng, Z, np.take(_STEPS, members))
    return Table(Z + 4 * np.eye(3, 5)[members], noisy.y + members, noisy.noise)


DRAWN: dict[str, Callable[[np.random.Generator, int], Table]] = {
    "even": even,
    "grows": grows,
    "skewed": skewed,
    "heavy": heavy,
    "few-columns": few_columns,
    "steps": steps,
    "weighted": weighted,
    "clusters": clusters,
}

# Drawn tables whose columns tell the noise of a row.
_UNEVEN = ("grows", "steps", "clusters")


class File:
    """The rows of an .npz file, of which each draw is a random part."""

    def __init__(self, name: str) -> None:
        split = read_split(name, test_share=0.5)
        if not split.of_numbers or split.y_train.ndim > 1:
            raise ValueError(f"{name} has no single numeric target. Give targets as floats (n,).")
        X = np.concatenate([split.X_train, split.X_test]).astype(np.float64)
        y = np.concatenate([split.y_train, split.y_test]).astype(np.float64)
        self.table = Table(X, y)

    def __call__(self, rng: np.random.Generator, n_rows: int) -> Table:
        """Return so many of the rows, or all of them, in random order."""
        return self.table.rows(rng.permutation(len(self.table.y))[:n_rows])


@dataclass(frozen=True, eq=False)
class Intervals:
    """The ends (n, q, 2) of the intervals of test rows at all levels, and the seconds of a fit."""

    ends: Floats
    fit_s: float


def of_network(make: Callable[[], Any], train: Table, X: Floats) -> Intervals:
    """Return the intervals of a network."""
    network, start = make(), time.perf_counter()
    network.fit(train.X, train.y, sample_weight=train.weights)
    fit_s = time.perf_counter() - start
    ends = [network.predict_interval(X, coverage=level) for level in LEVELS]
    return Intervals(np.stack(ends, axis=1), fit_s)


def split_conformal(train: Table, X: Floats) -> Intervals:
    """Return intervals from the absolute residuals of rows that boosted trees do not learn."""
    start, n_fitted = time.perf_counter(), round((1 - _CALIBRATION_SHARE) * len(train.y))
    fitted, held_out = train.rows(slice(n_fitted)), train.rows(slice(n_fitted, None))
    trees = HistGradientBoostingRegressor(random_state=0)
    trees.fit(fitted.X, fitted.y, sample_weight=fitted.weights)
    sizes = np.abs(held_out.y - trees.predict(held_out.X))
    weights = np.ones(len(sizes)) if held_out.weights is None else held_out.weights
    order = np.argsort(sizes)
    # A new row of mean weight counts too.
    shares = np.cumsum(weights[order]) / (weights.sum() + weights.mean())
    places = np.minimum(np.searchsorted(shares, LEVELS), len(sizes) - 1)
    fit_s = time.perf_counter() - start
    half = sizes[order][places][:, None]
    return Intervals(trees.predict(X)[:, None, None] + half * np.array([-1.0, 1.0]), fit_s)


def quantile_trees(train: Table, X: Floats) -> Intervals:
    """Return intervals between boosted trees for two quantiles; seconds are those of one level."""
    start, found = time.perf_counter(), []
    for level in LEVELS:
        for quantile in ((1 - level) / 2, (1 + level) / 2):
            trees = HistGradientBoostingRegressor(
                loss="quantile", quantile=quantile, random_state=0
            )
            trees.fit(train.X, train.y, sample_weight=train.weights)
            found.append(trees.predict(X))
    fit_s = (time.perf_counter() - start) / len(LEVELS)
    # The trees of two quantiles may cross.
    return Intervals(np.sort(np.stack(found, axis=1).reshape(len(X), -1, 2)), fit_s)


Method = Callable[[Table, Floats], Intervals]


def methods_for(name: str, options: argparse.Namespace) -> dict[str, Method]:
    """Return the methods for a table by title."""
    methods: dict[str, Method] = {"network": partial(of_network, NRBFNRegressor)}
    if name == "clusters":
        methods["network, 3 cells"] = partial(of_network, partial(NRBFNRegressor, cells=3))
    if options.tuned:
        tuning = partial(NRBFNRegressorCV, effort="quick")
        methods["tuned network"] = partial(of_network, tuning)
    if not options.only_ours:
        methods |= {"split conformal, trees": split_conformal, "quantile trees": quantile_trees}
    return methods


@dataclass(frozen=True, eq=False)
class Judged:
    """Intervals of the test rows of a draw."""

    test: Table
    intervals: Intervals

    @property
    def covered(self) -> NDArray[np.bool_]:
        """Whether the numbers are in the intervals, (n, q)."""
        lower, upper = np.moveaxis(self.intervals.ends, 2, 0)
        y = self.test.y[:, None]
        return np.asarray((lower <= y) & (y <= upper))

    @property
    def widths(self) -> Floats:
        """The widths (n,) at the shown level."""
        ends = self.intervals.ends[:, _SHOWN]
        return np.asarray(ends[:, 1] - ends[:, 0])

    def mean(self, values: NDArray[Any]) -> Any:
        """Return the weighted mean of values over the rows."""
        return np.average(values, axis=0, weights=self.test.weights)


def judged_draws(
    draw: Callable[[np.random.Generator, int], Table],
    methods: dict[str, Method],
    options: argparse.Namespace,
) -> dict[str, list[Judged]]:
    """Return the judged draws of each method; all methods get the same rows."""
    judged: dict[str, list[Judged]] = {title: [] for title in methods}
    for seed in range(options.draws):
        table = draw(np.random.default_rng([58, seed]), 2 * options.rows)
        n_train = len(table.y) // 2
        train, test = table.rows(slice(n_train)), table.rows(slice(n_train, None))
        for title, method in methods.items():
            judged[title].append(Judged(test, method(train, test.X)))
    return judged


def with_error(values: Sequence[float], digits: int) -> str:
    """Return the mean of draws and its standard error."""
    mean = f"{np.mean(values):.{digits}f}"
    if len(values) < 2:
        return mean
    return f"{mean} ± {np.std(values, ddof=1) / np.sqrt(len(values)):.{digits}f}"


def print_coverage(name: str, title: str, draws: Sequence[Judged]) -> None:
    """Print the coverages, the width and the seconds of a method."""
    coverages = 100 * np.array([own.mean(own.covered) for own in draws])
    shown = [with_error(of_level, 1) for of_level in coverages.T]
    widths = [own.mean(own.widths) for own in draws]
    width = with_error(widths, 3 if np.mean(widths) < 100 else 0)
    seconds = f"{np.median([own.intervals.fit_s for own in draws]):.2f}"
    print(f"| {name} | {title} | {' | '.join([*shown, width, seconds])} |", flush=True)


def fifths(draws: Sequence[Judged], order_of: Callable[[Judged], Floats]) -> Floats:
    """Return the coverages (5,) in fifths of the rows of each draw, which are in an order."""
    found = np.zeros((5, 2))
    for own in draws:
        covered = own.covered[:, _SHOWN]
        for place, rows in enumerate(np.array_split(np.argsort(order_of(own), kind="stable"), 5)):
            weights = np.ones(len(rows)) if own.test.weights is None else own.test.weights[rows]
            found[place] += weights @ covered[rows], weights.sum()
    return np.asarray(100 * found[:, 0] / found[:, 1])


def _noise(own: Judged) -> Floats:
    assert own.test.noise is not None
    return own.test.noise


def print_fifths(name: str, title: str, draws: Sequence[Judged]) -> None:
    """Print the least and the largest coverage in fifths of the rows."""
    found = [fifths(draws, lambda own: own.widths)]
    if draws[0].test.noise is not None:
        found.append(fifths(draws, _noise))
    shown = [f"{end:.1f}" for own in found for end in (own.min(), own.max())]
    print(f"| {name} | {title} | {' | '.join([*shown, '', ''][:4])} |", flush=True)


def compare_intervals(options: argparse.Namespace) -> None:
    """Print the coverages of all tables, and those in fifths where noise is uneven."""
    print(f"| table | intervals | {' | '.join(f'{level:.0%}' for level in LEVELS)}", end="")
    print(f" | width | fit s |\n|{'---|' * (len(LEVELS) + 4)}")
    uneven = []
    for name in options.tables:
        is_file = name not in DRAWN
        draw, short = File(name) if is_file else DRAWN[name], Path(name).stem
        judged = judged_draws(draw, methods_for(name, options), options)
        for title, draws in judged.items():
            print_coverage(short, title, draws)
        if is_file or name in _UNEVEN:
            uneven += [(short, title, draws) for title, draws in judged.items()]
    if uneven:
        print("\n| table | intervals | least by width | largest | least by noise | largest |")
        print("|---|---|---|---|---|---|")
    for row in uneven:
        print_fifths(*row)


def shifted(rng: np.random.Generator, n_rows: int) -> Iterator[tuple[str, Any, Floats, Floats]]:
    """Yield names, a network fitted to correlated rows, such rows, and shifted ones."""
    mixing = np.eye(10) + 0.5 * rng.standard_normal((10, 10))
    X, like = rng.standard_normal((2, n_rows, 10)) @ mixing
    y = _curved(X / X.std(axis=0)) + 0.3 * rng.standard_normal(n_rows)
    network, direction = NRBFNRegressor().fit(X, y), rng.standard_normal(10)
    # The length of a standard deviation of the rows in this direction.
    direction *= (like @ direction).std() / (direction @ direction)
    for shift in _SHIFTS:
        yield f"shifted by {shift:g}", (network, X), like, like + shift * direction


def left_out(rng: np.random.Generator, left: int) -> Iterator[tuple[str, Any, Floats, Floats]]:
    """Yield a name, a network fitted to nine digits, new rows of them, and those of the tenth."""
    X, y = load_digits(return_X_y=True)
    known = rng.permutation(np.flatnonzero(y != left))
    train, like = np.split(known, [2 * len(known) // 3])
    network = NRBFNClassifier().fit(X[train], y[train])
    yield "a new digit", (network, X[train]), X[like], X[y == left]


def compare_unlike(options: argparse.Namespace) -> None:
    """Print how well distances, and trees, tell unlike rows from others."""
    found: dict[str, list[list[float]]] = {}
    for seed in range(options.draws):
        rng = np.random.default_rng([58, seed])
        for kind in (shifted(rng, options.rows), left_out(rng, seed % 10)):
            for name, (network, X), like, unlike in kind:
                forest = IsolationForest(random_state=0).fit(X)
                is_unlike = np.repeat([0, 1], [len(like), len(unlike)])
                both = np.concatenate([like, unlike])
                distances = network.unlike(both)
                above = [100 * np.mean(distances[is_unlike == kind] > 1) for kind in (0, 1)]
                areas = [
                    float(roc_auc_score(is_unlike, each))
                    for each in (distances, -forest.score_samples(both))
                ]
                found.setdefault(name, []).append([*areas, *map(float, above)])
    print("| rows | area, unlike | area, forest | like above 1, % | unlike above 1, % |")
    print("|---|---|---|---|---|")
    for name, draws in found.items():
        columns = zip(np.transpose(draws), (3, 3, 2, 1), strict=True)
        shown = [with_error(values, digits) for values, digits in columns]
        print(f"| {name} | {' | '.join(shown)} |", flush=True)


def compare_cost(n_rows: int = 20_000, n_basis: int = 2_000) -> None:
    """Print the seconds of intervals and of predictions."""
    rng = np.random.default_rng(58)
    table = few_columns(rng, n_rows)
    network = NRBFNRegressor(basis="random", basis_size=n_basis, alpha="auto")
    network.fit(table.X, table.y)
    X = rng.uniform(-1, 1, (n_rows, 20))
    seconds: dict[str, list[float]] = {"predict": [], "predict_interval": []}
    for _ in range(5):
        for name, own in seconds.items():
            start = time.perf_counter()
            getattr(network, name)(X)
            own.append(time.perf_counter() - start)
    plain, both = (min(own) for own in seconds.values())
    print("| rows | basis rows | predict s | predict_interval s | ratio |\n|---|---|---|---|---|")
    print(f"| {n_rows} | {len(network.basis_)} | {plain:.3f} | {both:.3f} | {both / plain:.2f} |")


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", default=[*DRAWN], metavar="TABLE")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--rows", type=int, default=2000, help="to train on, and to test")
    parser.add_argument("--tuned", action="store_true", help="also tune with effort quick")
    parser.add_argument("--only-ours", action="store_true", help="leave the others out")
    parser.add_argument("--unlike", action="store_true", help="compare distances of unlike rows")
    parser.add_argument("--cost", action="store_true", help="compare seconds of predictions")
    options = parser.parse_args()
    if options.unlike:
        compare_unlike(options)
    if options.cost:
        compare_cost()
    if not (options.unlike or options.cost):
        compare_intervals(options)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
