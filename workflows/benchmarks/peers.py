"""Compare our networks with those of other libraries: same rows, same cores, one after the other.

    python workflows/benchmarks/peers.py digits diabetes mnist.npz adult.csv --label income
    python workflows/benchmarks/peers.py kin40k elevators --uci FOLDER --peers tuned,catboost

A set is digits, breast-cancer, iris, wine or diabetes, which scikit-learn brings, or a file: .npz
with X and y, or with X_train, y_train, X_test and y_test; .csv and what else `ingest` reads, with
--label or --target. With --uci it is a folder of the repository treforevans/uci_datasets: a
regression in ten fixed folds, of which the mean and its standard error are printed.

Some peers need a package: `pip install catboost lightgbm xrfm`. The column "rows" counts the rows
that a peer was fitted to, and those on which its settings or rounds were chosen. Markdown goes to
standard output, what is at work to standard error.
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
from contenders import CONTENDERS, Chosen, Contender, Task, drawn_rows, mean_loss
from numpy.typing import NDArray
from sklearn.metrics import r2_score
from splits import Split, read_folds, read_split

from dask_nrbfn.engine.threads import available_threads

# Of a fit that none of our networks has gone before.
_N_BASIS = 1000

# Predictions of small tables take less than the clock can tell apart from its noise.
_PREDICTIONS = 3

# How the measures are printed; numbers of small units have a small RMSE.
_OF_NUMBERS = {"RMSE": ".4g", "R2": ".4f"}
_OF_LABELS = {"error %": ".2f"}

# Their searches take hours on tables of more than a few thousand rows.
_ONLY_BY_NAME = ("xrfm-l2", "xrfm-tuned")


@dataclass(frozen=True)
class Figures:
    """What is measured of a contender in one split: error, or RMSE and R2, seconds and bytes."""

    qualities: list[float]
    fit_s: float
    predict_us: float
    model_bytes: int
    n_basis: int | None
    rows: str
    note: str


def main() -> int:
    """Print a table for every data set."""
    options = parse_options()
    failed = False
    for name in options.datasets:
        try:
            splits = read_splits(name, options)
        except Exception as error:
            # Of many sets one may have another label column.
            failed = True
            print(f"{name}: {described_error(error)}", file=sys.stderr)
            continue
        print_table(splits, options)
    return 2 if failed else 0


def read_splits(name: str, options: argparse.Namespace) -> list[Split]:
    """Return the folds of a set, or its only split, with at most `--limit-rows` to train on."""
    if options.uci:
        splits = read_folds(Path(options.uci, name))[: options.folds]
    else:
        named = {"label": options.label, "target": options.target}
        splits = [read_split(name, test_share=options.test_share, **named)]
    drawn = [drawn_rows(len(split.X_train), options.limit_rows) for split in splits]
    return [
        replace(split, X_train=split.X_train[rows], y_train=split.y_train[rows])
        for split, rows in zip(splits, drawn, strict=True)
    ]


def parse_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="+", metavar="DATASET")
    parser.add_argument("--test-share", type=float, default=0.3, help="where none is given")
    parser.add_argument("--limit-rows", type=int, help="draw so many rows to train on")
    parser.add_argument("--basis-size", type=int, help="of our networks and their like")
    parser.add_argument("--most-rows", type=int, default=10_000, help="of grids; default: 10000")
    parser.add_argument(
        "--xrfm-rows", type=int, help="draw so many rows for xRFM; default: all that memory permits"
    )
    parser.add_argument("--trials", type=int, default=30, help="of xRFM's search; default: 30")
    parser.add_argument("--uci", metavar="FOLDER", help="has a folder for every set")
    parser.add_argument("--folds", type=int, help="use the first folds of --uci; default: all")
    parser.add_argument(
        "--peers",
        help=f"with commas, of {', '.join(CONTENDERS)}; "
        f"default: all but {' and '.join(_ONLY_BY_NAME)}",
    )
    parser.add_argument("--label", help="column of the labels of a .csv")
    parser.add_argument("--target", help="column of the numbers of a .csv")
    options = parser.parse_args()
    usual = [name for name in CONTENDERS if name not in _ONLY_BY_NAME]
    options.peers = options.peers.split(",") if options.peers else usual
    if unknown := set(options.peers) - set(CONTENDERS):
        parser.error(f"no peer {', '.join(sorted(unknown))}; there are {', '.join(CONTENDERS)}.")
    for name in ("limit_rows", "most_rows", "xrfm_rows", "trials", "folds"):
        if (value := getattr(options, name)) is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, not {value}.")
    if options.folds and not options.uci:
        parser.error("--folds needs --uci.")
    if options.uci and (options.label or options.target):
        parser.error("Sets of --uci have their targets: leave out --label and --target.")
    if not 0 < options.test_share < 1:
        parser.error("--test-share must be between 0 and 1.")
    return options


def print_table(splits: list[Split], options: argparse.Namespace) -> None:
    """Print a line for every contender, as soon as it is measured."""
    first = splits[0]
    n_rows, n_features = first.X_train.shape
    of_numbers = first.of_numbers
    what = "numbers" if of_numbers else f"{len(np.unique(first.y_train))} classes"
    folds = f"{len(splits)} folds, " if len(splits) > 1 else ""
    print(
        f"\n### {first.name}: {n_rows:,} x {n_features}, {what}, {len(first.X_test):,} rows to "
        f"test, {folds}{available_threads()} cores\n"
    )
    measures = _OF_NUMBERS if of_numbers else _OF_LABELS
    print(f"| | {' | '.join(measures)} | fit s | us a row | bytes | rows | |")
    print("|---|" + "---|" * (len(measures) + 5), flush=True)
    task = Task(
        of_numbers=of_numbers,
        n_rows=n_rows,
        n_features=n_features,
        basis_size=options.basis_size,
        n_basis=options.basis_size or _N_BASIS,
        most_rows=options.most_rows,
        xrfm_rows=options.xrfm_rows,
        n_trials=options.trials,
    )
    blanks = "| " * (len(measures) + 4)
    for name in options.peers:
        contender = CONTENDERS[name]
        print(f"{first.name}: {contender.title} ...", file=sys.stderr, flush=True)
        try:
            figures = [measure(contender, task, split) for split in splits]
        except ImportError as error:
            print(f"| {contender.title} {blanks}| not installed: {error.name} |", flush=True)
        except Exception as error:
            print(f"| {contender.title} {blanks}| {described_error(error)} |", flush=True)
        else:
            print(line(contender, figures, measures), flush=True)
            task = replace(task, n_basis=figures[0].n_basis or task.n_basis)


def described_error(error: Exception) -> str:
    """Return an error in a line that a table can hold."""
    text = " ".join(str(error).split()).replace("|", "/")
    return f"failed: {type(error).__name__}: {text[:160]}"


def measure(contender: Contender, task: Task, split: Split) -> Figures:
    """Fit a contender and let it predict the test rows."""
    estimator = contender.make(task)
    fit_s, fitted = timed(lambda: estimator.fit(split.X_train, split.y_train))
    timings = [timed(lambda: fitted.predict(split.X_test)) for _ in range(_PREDICTIONS)]
    return Figures(
        qualities=qualities(timings[0][1], split),
        fit_s=fit_s,
        predict_us=1e6 * min(seconds for seconds, _ in timings) / len(split.X_test),
        model_bytes=model_bytes(fitted),
        n_basis=len(fitted.basis_) if hasattr(fitted, "basis_") else None,
        rows=rows_used(fitted, len(split.X_train)),
        note=chosen(fitted),
    )


def qualities(found: Any, split: Split) -> list[float]:
    """Return RMSE and R2, or the error in %."""
    loss = mean_loss(found, split.y_test, split.of_numbers)
    return [loss**0.5, r2_score(split.y_test, found)] if split.of_numbers else [100 * loss]


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
    return len(pickle.dumps(best.best_estimator_ if isinstance(best, Chosen) else best))


def rows_used(fitted: Any, n_rows: int) -> str:
    """Return how many rows were fitted, and on how many a choice was made."""
    best = best_of(fitted)
    if not isinstance(best, Chosen):
        return f"{n_rows:,}"
    share = f" of {n_rows:,}" if best.n_fitted_ < n_rows else ""
    return f"{best.n_fitted_:,}{share}, chosen on {best.n_judged_:,}"


def chosen(fitted: Any) -> str:
    """Return the size of our basis, or the best setting."""
    if hasattr(fitted, "basis_"):
        return f"{len(fitted.basis_):,} basis rows"
    values = getattr(best_of(fitted), "best_params_", {})
    return ", ".join(
        f"{name.split('__')[-1]} {value if isinstance(value, str) else format(value, '.3g')}"
        for name, value in values.items()
    )


def line(contender: Contender, figures: list[Figures], measures: dict[str, str]) -> str:
    """Return a line of the table: means of the folds, rows and setting of the first."""
    columns = np.transpose([one.qualities for one in figures])
    cells = (
        contender.title,
        *map(spread, columns, measures.values()),
        f"{np.mean([one.fit_s for one in figures]):.2f}",
        f"{np.mean([one.predict_us for one in figures]):.2f}",
        f"{np.mean([one.model_bytes for one in figures]):,.0f}",
        figures[0].rows,
        figures[0].note,
    )
    return f"| {' | '.join(cells)} |"


def spread(values: NDArray[np.float64], form: str) -> str:
    """Return the mean, and its standard error if there are several values."""
    mean = format(values.mean(), form)
    if len(values) == 1:
        return mean
    return f"{mean} ± {format(values.std(ddof=1) / len(values) ** 0.5, form)}"


if __name__ == "__main__":
    sys.exit(main())
