"""Measure what a tuning costs: its seconds over those of one fit with the options that it chose.

    python workflows/benchmarks/tune.py
    python workflows/benchmarks/tune.py digits few-curved adult.npz --busy 2 --grid

A table is a set of scikit-learn, a drawn one or an .npz file, see `splits.read_split`. Every
measurement runs in its own process after a small fit of the same kind, so seconds leave out imports
and compilation. "cpu" are the seconds of all threads, "wall" those of the clock, "expected" the
seconds that the tuning announces before it begins, "tune / fit" a ratio of processor seconds. With
--busy, so many other processes compute at the same time.
"""

import argparse
import logging
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Process, get_context
from typing import Any

import numpy as np
from contenders import CONTENDERS, Task
from joblib import parallel_config
from numpy.typing import NDArray
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split
from splits import Split, read_split

from dask_nrbfn import NRBFNClassifier, NRBFNClassifierCV, NRBFNRegressor, NRBFNRegressorCV

# Grids of support vector machines take hours on larger tables.
_MOST_GRID_ROWS = 10_000

# Options that a tuning chooses, and that the fit beside it is given.
_CHOSEN = ("scale", "basis_rule", "features", "kernel", "width_factor", "penalty")


def few_curved(rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return 5,734 x 32 rows whose numbers depend on four columns, not linearly."""
    X = rng.standard_normal((5734, 32))
    curved = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + np.abs(X[:, 3])
    return X, curved + 0.2 * rng.standard_normal(len(X))


def few_classes(rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return 3,586 x 20 rows of two classes on either side of a wave in two columns."""
    X = rng.uniform(-2, 2, (3586, 20))
    y = X[:, 1] > np.sin(3 * X[:, 0])
    return X, (y ^ (rng.random(len(y)) < 0.03)).astype(np.int64)


def heavy_tails(rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return 9,441 x 16 rows of two classes in columns with heavy tails of unlike scales."""
    Z = rng.standard_normal((9441, 16))
    signal = Z[:, 0] * Z[:, 1] + np.sin(2 * Z[:, 2]) + Z[:, 3] - 0.5 * Z[:, 4] ** 2
    y = (signal + 0.5 * rng.standard_normal(len(Z)) > 0).astype(np.int64)
    return np.exp(1.2 * Z) * 10.0 ** rng.integers(-1, 3, 16), y


def rings(rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return 13,314 x 10 rows of two classes: shells around three centres, with noise."""
    centres = rng.standard_normal((3, 10))
    members = rng.integers(3, size=13_314)
    Z = rng.standard_normal((len(members), 10))
    y = rng.integers(2, size=len(members))
    Z *= (np.where(y, 2.2, 1.4) / np.linalg.norm(Z, axis=1))[:, None]
    return centres[members] + Z + 0.25 * rng.standard_normal(Z.shape), y


DRAWN: dict[str, Callable[..., Any]] = {
    "few-curved": few_curved,
    "few-classes": few_classes,
    "heavy-tails": heavy_tails,
    "rings": rings,
}


@dataclass(frozen=True)
class Measured:
    """The error on test rows, or R2 of numbers, seconds, and what else the step tells."""

    quality: float
    cpu_s: float
    wall_s: float
    expected_s: float | None = None
    options: dict[str, Any] | None = None


class _Expected(logging.Handler):
    """Keeps the seconds that a tuning announces."""

    seconds: float | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if found := re.match(r"tune: about (\S+) s expected", record.getMessage()):
            self.seconds = float(found[1])


def tuned(split: Split, effort: str) -> Any:
    """Return a tuning with default options."""
    kind = NRBFNRegressorCV if split.of_numbers else NRBFNClassifierCV
    return kind(effort=effort)


def fit_with(split: Split, options: dict[str, Any]) -> Any:
    """Return a fit with the options that a tuning chose."""
    kind = NRBFNRegressor if split.of_numbers else NRBFNClassifier
    known = kind().get_params()
    return kind(**{name: value for name, value in options.items() if name in known})


def measure(split: Split, make: Callable[..., Any], *arguments: Any) -> Measured:
    """Return what the fit of an estimator takes, after one to 200 of the rows."""
    few = np.random.default_rng(0).permutation(len(split.X_train))[:200]
    small = make(split, *arguments)
    if "basis_size" in small.get_params():
        small.set_params(basis_size=None, basis="auto")
    # Other processes would not be counted, and live on for minutes.
    with parallel_config(backend="threading"):
        small.fit(split.X_train[few], split.y_train[few])
    expected, logger = _Expected(), logging.getLogger("dask_nrbfn")
    logger.addHandler(expected)
    logger.setLevel(logging.INFO)
    estimator, cpu, wall = make(split, *arguments), time.process_time(), time.perf_counter()
    with parallel_config(backend="threading"):
        estimator.fit(split.X_train, split.y_train)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    found = estimator.predict(split.X_test)
    quality = np.mean(found != split.y_test)
    if split.of_numbers:
        quality = r2_score(split.y_test, found)
    return Measured(float(quality), cpu, wall, expected.seconds, _options_of(estimator))


def _options_of(estimator: Any) -> dict[str, Any] | None:
    if not hasattr(estimator, "cv_results_"):
        return None
    chosen = {name: getattr(estimator, f"{name}_", None) for name in _CHOSEN}
    # A tuning has no other attribute that says how many cells it chose.
    cells = estimator._model.cells
    size = len(estimator.basis_) if cells is None else cells.most_basis_rows
    sized = {"basis": estimator.source_, "basis_size": size}
    sized["cells"] = 1 if cells is None else cells.n_cells
    return {name: one for name, one in chosen.items() if one is not None} | sized


def contender(split: Split, name: str) -> Any:
    """Return an estimator of another library."""
    n_rows, p = split.X_train.shape
    return CONTENDERS[name].make(
        Task(split.of_numbers, n_rows, p, None, n_basis=1000, most_rows=_MOST_GRID_ROWS)
    )


def alone(*arguments: Any) -> Measured:
    """Return what `measure` returns in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(measure, *arguments).result()


@contextmanager
def others_computing(n_processes: int) -> Iterator[None]:
    """Let other processes multiply matrices, each with all its threads."""
    processes = [Process(target=_multiply, daemon=True) for _ in range(n_processes)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def _multiply() -> None:
    A = np.random.default_rng(0).standard_normal((1000, 1000))
    while True:
        A = np.clip(A @ A.T, -1.0, 1.0)


def read(name: str, test_share: float) -> Split:
    """Return the rows of a drawn table, of a set or of a file."""
    if name not in DRAWN:
        return read_split(name, test_share=test_share)
    X, y = DRAWN[name](np.random.default_rng(58))
    strata = None if y.dtype.kind == "f" else y
    parts = train_test_split(X, y, test_size=test_share, random_state=0, stratify=strata)
    X_train, X_test, y_train, y_test = parts
    return Split(name, X_train, y_train, X_test, y_test)


def print_row(split: Split, title: str, found: Measured, fit_s: float | None = None) -> None:
    """Print a line of the table."""
    quality = f"R2 {found.quality:.4f}" if split.of_numbers else f"{100 * found.quality:.2f} %"
    ratio = "" if fit_s is None else f"{found.cpu_s / fit_s:.1f}"
    expected = "" if found.expected_s is None else f"{found.expected_s:.0f}"
    seconds = f"{found.cpu_s:.2f} | {found.wall_s:.2f} | {expected} | {ratio}"
    print(f"| {split.name} | {title} | {quality} | {seconds} |", flush=True)


def compare(split: Split, options: argparse.Namespace) -> None:
    """Print what the tunings of a table, and others, take."""
    for effort in options.efforts.split(","):
        tune = alone(split, tuned, effort)
        fit = None if options.no_fit else alone(split, fit_with, tune.options)
        print_row(split, effort, tune, None if fit is None else fit.cpu_s)
        if fit is not None:
            print_row(split, f"fit as {effort}", fit)
        if options.chosen:
            print(f"  {tune.options}", flush=True)
    others = [] if options.only_ours else ["lightgbm-stopped"]
    if options.grid and len(split.X_train) <= _MOST_GRID_ROWS:
        others.append("svc")
    for name in others:
        print_row(split, CONTENDERS[name].title, alone(split, contender, name))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tables", nargs="*", default=["digits", *DRAWN], metavar="TABLE")
    parser.add_argument("--efforts", default="quick,normal")
    parser.add_argument("--busy", type=int, default=0, help="processes that compute meanwhile")
    parser.add_argument("--grid", action="store_true", help="also search 20 machines")
    parser.add_argument("--only-ours", action="store_true", help="leave the others out")
    parser.add_argument("--no-fit", action="store_true", help="leave the fit out")
    parser.add_argument("--chosen", action="store_true", help="also print the chosen options")
    parser.add_argument("--test-share", type=float, default=0.3, help="where none is given")
    options = parser.parse_args()
    print("| table | step | test | cpu s | wall s | expected s | tune / fit |")
    print("|---|---|---|---|---|---|---|")
    for name in options.tables:
        split = read(name, options.test_share)
        with others_computing(options.busy):
            compare(split, options)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
