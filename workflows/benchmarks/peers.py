"""Compare our networks with those of other libraries: same rows, same cores, one after the other.

    python workflows/benchmarks/peers.py digits diabetes mnist.npz adult.csv --label income

A set is digits, breast-cancer, iris, wine or diabetes, which scikit-learn brings, or a file: .npz
with X and y, or with X_train, y_train, X_test and y_test; .csv and what else `ingest` reads, with
--label or --target. Markdown goes to standard output, what is at work to standard error.
"""

import argparse
import pickle
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from contenders import CONTENDERS, Contender, DrawnSearch, Task, drawn_rows
from sklearn.metrics import r2_score
from splits import BUNDLED, Split, read_split

from dask_nrbfn.engine.threads import available_threads

# Of a fit that none of our networks has gone before.
_N_BASIS = 1000

# Predictions of small tables take less than the clock can tell apart from its noise.
_PREDICTIONS = 3


@dataclass(frozen=True)
class Figures:
    """What is measured of a contender: its predictions of the test rows, seconds and bytes."""

    found: Any
    fit_s: float
    predict_s: float
    model_bytes: int
    n_basis: int | None
    note: str


def main() -> int:
    """Print a table for every data set."""
    options = parse_options()
    failed = False
    for name in options.datasets:
        try:
            split = read_split(
                name,
                test_share=options.test_share,
                label=options.label,
                target=options.target,
            )
        except Exception as error:
            # Of many sets one may have another label column.
            failed = True
            print(f"{name}: {described_error(error)}", file=sys.stderr)
            continue
        print_table(split, options)
    return 2 if failed else 0


def parse_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="+", metavar="DATASET")
    parser.add_argument("--test-share", type=float, default=0.3, help="where none is given")
    parser.add_argument("--limit-rows", type=int, help="draw so many rows to train on")
    parser.add_argument("--basis-size", type=int, help="of our networks and their like")
    parser.add_argument(
        "--most-rows", type=int, default=10_000, help="of grids, SVC and xRFM; default: 10000"
    )
    parser.add_argument("--peers", help=f"with commas; default: {','.join(CONTENDERS)}")
    parser.add_argument("--label", help="column of the labels of a .csv")
    parser.add_argument("--target", help="column of the numbers of a .csv")
    options = parser.parse_args()
    options.peers = options.peers.split(",") if options.peers else list(CONTENDERS)
    if unknown := set(options.peers) - set(CONTENDERS):
        parser.error(f"no peer {', '.join(sorted(unknown))}; there are {', '.join(CONTENDERS)}.")
    for name in options.datasets:
        if name not in BUNDLED and not Path(name).exists():
            parser.error(f"{name} is no file; sets without one are {', '.join(BUNDLED)}.")
    if not 0 < options.test_share < 1:
        parser.error("--test-share must be between 0 and 1.")
    return options


def print_table(split: Split, options: argparse.Namespace) -> None:
    """Print a line for every contender, as soon as it is measured."""
    rows = drawn_rows(len(split.X_train), options.limit_rows)
    split = replace(split, X_train=split.X_train[rows], y_train=split.y_train[rows])
    n_rows, n_features = split.X_train.shape
    of_numbers = split.of_numbers
    what = "numbers" if of_numbers else f"{len(np.unique(split.y_train))} classes"
    print(
        f"\n### {split.name}: {n_rows:,} x {n_features}, {what}, {len(split.X_test):,} rows to "
        f"test, {available_threads()} cores\n"
    )
    print(f"| | {'R2' if of_numbers else 'error %'} | fit s | us a row | bytes | |")
    print("|---|---|---|---|---|---|", flush=True)
    task = Task(
        of_numbers=of_numbers,
        n_rows=n_rows,
        n_features=n_features,
        basis_size=options.basis_size,
        n_basis=options.basis_size or _N_BASIS,
        most_rows=options.most_rows,
    )
    for name in options.peers:
        contender = CONTENDERS[name]
        print(f"{split.name}: {contender.title} ...", file=sys.stderr, flush=True)
        try:
            figures = measure(contender, task, split)
        except ImportError as error:
            print(f"| {contender.title} | | | | | not installed: {error.name} |", flush=True)
        except Exception as error:
            print(f"| {contender.title} | | | | | {described_error(error)} |", flush=True)
        else:
            print(line(contender, figures, split), flush=True)
            task = replace(task, n_basis=figures.n_basis or task.n_basis)


def described_error(error: Exception) -> str:
    """Return an error in a line that a table can hold."""
    text = " ".join(str(error).split()).replace("|", "/")
    return f"failed: {type(error).__name__}: {text[:160]}"


def measure(contender: Contender, task: Task, split: Split) -> Figures:
    """Fit a contender and let it predict the test rows."""
    rows = drawn_rows(task.n_rows, task.most_rows if contender.quadratic else None)
    X, y = split.X_train[rows], split.y_train[rows]
    task = replace(task, n_rows=len(rows))
    estimator = contender.make(task)
    fit_s, fitted = timed(lambda: estimator.fit(X, y))
    timings = [timed(lambda: fitted.predict(split.X_test)) for _ in range(_PREDICTIONS)]
    drawn = (
        f"{len(rows):,} of {len(split.X_train):,} rows" if len(rows) < len(split.X_train) else ""
    )
    return Figures(
        found=timings[0][1],
        fit_s=fit_s,
        predict_s=min(seconds for seconds, _ in timings),
        model_bytes=model_bytes(fitted),
        n_basis=len(fitted.basis_) if hasattr(fitted, "basis_") else None,
        note=", ".join(filter(None, [chosen(fitted), drawn])),
    )


def timed(step: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of a step, and what it returns."""
    start = time.perf_counter()
    result = step()
    return time.perf_counter() - start, result


def best_of(fitted: Any) -> Any:
    """Return what was fitted to numbers as they are, or to standardized ones."""
    return getattr(fitted, "regressor_", fitted)


def model_bytes(fitted: Any) -> int:
    """Return what would be stored: the arrays of our networks, of others the pickle."""
    if hasattr(fitted, "basis_"):
        return int(fitted.basis_.nbytes + fitted.weights_.nbytes)
    best = best_of(fitted)
    return len(pickle.dumps(best.best_estimator_ if isinstance(best, DrawnSearch) else best))


def chosen(fitted: Any) -> str:
    """Return the size of our basis, or what a grid has chosen."""
    if hasattr(fitted, "basis_"):
        return f"{len(fitted.basis_):,} basis rows"
    values = getattr(best_of(fitted), "best_params_", {})
    return ", ".join(f"{name.split('__')[-1]} {value:.3g}" for name, value in values.items())


def line(contender: Contender, figures: Figures, split: Split) -> str:
    """Return a line of the table."""
    if split.of_numbers:
        quality = f"{r2_score(split.y_test, figures.found):.4f}"
    else:
        quality = f"{100 * np.mean(figures.found != split.y_test):.2f}"
    cells = (
        contender.title,
        quality,
        f"{figures.fit_s:.2f}",
        f"{1e6 * figures.predict_s / len(split.X_test):.2f}",
        f"{figures.model_bytes:,}",
        figures.note,
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
