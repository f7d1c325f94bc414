"""Time `tune` against scikit-learn's grid search of a support vector machine.

Both learn the same rows and are judged on the same held-out rows. Each runs in a process of its
own, as its users start it, so imports and the start of the cluster count. The grid has 20
combinations of C and gamma on standardized columns, 5 folds, on all cores:

    python workflows/benchmarks/grid_search.py --repeats 3
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from dask_nrbfn import Run, ingest_arrays

# Rows to train on, columns, classes, and the deviation of a cluster from its centre.
DRAWN = {
    "drawn 1,600 x 18": (1_600, 18, 7, 1.0),
    "drawn 4,435 x 36": (4_435, 36, 6, 1.5),
    "drawn 14,000 x 16": (14_000, 16, 26, 0.8),
}
CLUSTERS_PER_CLASS = 4
GRID_SEARCH = """
import sys, numpy as np
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
rows = np.load(sys.argv[1])
gammas = np.geomspace(0.05, 4, 5) / rows["X"].shape[1]
grid = {"svc__C": [0.1, 1, 10, 100], "svc__gamma": gammas}
search = GridSearchCV(make_pipeline(StandardScaler(), SVC()), grid, cv=5, n_jobs=-1)
search.fit(rows["X"], rows["y"])
print(np.mean(search.predict(rows["X_test"]) != rows["y_test"]))
"""


def main() -> None:
    """Print a table: seconds and errors of both, their ratio, and the stages of the tuning."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--effort", default="normal")
    parser.add_argument("--rows", type=int, default=14_000, help="of the largest table")
    options = parser.parse_args()
    print("table              tune s  grid s  ratio  tune error %  grid error %  stages of tune, s")
    for name, rows in tables():
        if len(rows["X"]) > options.rows:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            place = Path(scratch)
            np.savez(place / "rows.npz", **rows)
            ingest_arrays(rows["X"], rows["y"], place / "train")
            ingest_arrays(rows["X_test"], rows["y_test"], place / "test")
            turns = [one_turn(place, turn, options.effort) for turn in range(options.repeats)]
        tune_s, grid_s = (median(each) for each in zip(*(turn[:2] for turn in turns), strict=True))
        ratio = median(turn[0] / turn[1] for turn in turns)
        _, _, tune_error, grid_error, stages = turns[-1]
        shares = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in stages.items())
        print(
            f"{name:18} {tune_s:6.1f}  {grid_s:6.1f}  {ratio:5.2f}  {100 * tune_error:12.2f}  "
            f"{100 * grid_error:12.2f}  {shares}",
            flush=True,
        )


def tables() -> list[tuple[str, dict[str, NDArray[Any]]]]:
    """Return the tables by name, each with rows to train on and to test."""
    digits = dict(zip(("X", "X_test", "y", "y_test"), split_digits(), strict=True))
    drawn = [(name, draw(*sizes)) for name, sizes in DRAWN.items()]
    return [drawn[0], ("digits 1,257 x 64", digits), *drawn[1:]]


def split_digits() -> list[NDArray[Any]]:
    """Return scikit-learn's digits, 70 % of each class to train on."""
    X, y = load_digits(return_X_y=True)
    split: list[NDArray[Any]] = train_test_split(X, y, test_size=0.3, stratify=y, random_state=0)
    return split


def draw(n_train: int, p: int, n_classes: int, deviation: float) -> dict[str, NDArray[Any]]:
    """Draw classes of several normal clusters each, and as many rows to test on."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(n_classes * CLUSTERS_PER_CLASS, p))
    clusters = rng.integers(len(centres), size=2 * n_train)
    X = centres[clusters] + deviation * rng.normal(size=(2 * n_train, p))
    y = clusters % n_classes
    return {"X": X[:n_train], "y": y[:n_train], "X_test": X[n_train:], "y_test": y[n_train:]}


def one_turn(
    place: Path, turn: int, effort: str
) -> tuple[float, float, float, float, dict[str, float]]:
    """Run both; return their seconds and error rates, and the seconds of the stages."""
    run = place / f"run{turn}"
    command = [sys.executable, "-m", "dask_nrbfn"]
    tune_s, _ = timed([*command, "tune", place / "train", run, f"--effort={effort}"])
    grid_s, printed = timed([sys.executable, "-c", GRID_SEARCH, place / "rows.npz"])
    _, evaluation = timed([*command, "evaluate", run, place / "test", "--workers=0", "--json"])
    stages = {name: stage["seconds"] for name, stage in Run.open(run).stages.items()}
    longest = dict(sorted(stages.items(), key=lambda item: -item[1])[:4])
    return tune_s, grid_s, json.loads(evaluation)["error_rate"], float(printed), longest


def timed(command: list[Any]) -> tuple[float, str]:
    """Run a command; return its seconds and what it printed."""
    start = time.perf_counter()
    done = subprocess.run([*map(str, command)], check=True, capture_output=True, text=True)
    return time.perf_counter() - start, done.stdout


if __name__ == "__main__":
    main()
