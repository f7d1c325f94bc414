"""Compare models as ONNX files with the networks that they are of: numbers, labels and time.

Half of scikit-learn's digits, or for numbers of its diabetes, train networks of every kind; the
other half is predicted by them and by onnxruntime, on one thread each. Differences are those of
scores, in float64, over the largest score; labels are those that differ in float32, and of these
the ones that the two best scores leave open, nearer to each other than a thousandth:

    python workflows/benchmarks/onnx_models.py
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from sklearn.datasets import load_diabetes, load_digits
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

from dask_nrbfn import DiffusionMap, NRBFNClassifier, NRBFNClassifierCV, NRBFNRegressor
from dask_nrbfn.choices import KERNELS

LOSSES = ("squared-hinge", "logistic", "hinge")
# Two best scores nearer than this are a tie in float32.
TIE = 1e-3


class Compared(NamedTuple):
    """What a model gives elsewhere, beside what it gives here."""

    difference: float
    other_labels: int
    ties: int
    us_here: float
    us_float64: float
    us_float32: float


def networks(basis_size: int) -> dict[str, Any]:
    """Return networks of every kind, by what they are."""
    of_all = {"basis_size": basis_size, "alpha": 1e-8}
    kinds: dict[str, Any] = {
        f"{kernel} {features}": NRBFNClassifier(kernel=kernel, features=features, **of_all)
        for kernel in KERNELS
        for features in ("normalized", "plain")
    }
    kinds |= {loss: NRBFNClassifier(loss=loss, **of_all) for loss in LOSSES}
    kinds |= {
        scale: NRBFNClassifier(scale=scale, **of_all) for scale in ("standard", "unit", "learned")
    }
    return kinds | {
        "pruned": NRBFNClassifier(prune=basis_size // 4, features="plain", **of_all),
        "paper's penalty": NRBFNClassifier(basis_size=basis_size),
        "tuned, calibrated": NRBFNClassifierCV(basis_size=basis_size, effort="quick"),
        "numbers": NRBFNRegressor(basis_size=min(basis_size, 200), scale="standard"),
        "coordinates": DiffusionMap(basis_size=basis_size),
    }


def compared(network: Any, X: np.ndarray, path: str, repeats: int) -> Compared:
    """Return how a fitted network compares with its file on some rows."""
    model = network._model
    given, seconds = {}, {}
    for dtype in ("float64", "float32"):
        network.to_onnx(path, dtype=dtype, overwrite=True)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        rows = {"X": X.astype(dtype)}
        given[dtype] = session.run(None, rows)
        seconds[dtype] = least_seconds(lambda run=session.run, rows=rows: run(None, rows), repeats)
    scores = model.scores(X)
    if model.target_range is not None:
        scores = np.clip(scores, *model.target_range)
    here = least_seconds(lambda: model.probabilities(model.scores(X)), repeats)
    of_classes = model.target_names is None
    found = given["float64"][1 if of_classes else 0]
    others = ties = 0
    if of_classes:
        best = np.sort(scores, axis=1)[:, -2:]
        other = model.classes[scores.argmax(axis=1)] != given["float32"][0]
        others, ties = int(other.sum()), int((other & (best[:, 1] - best[:, 0] < TIE)).sum())
    return Compared(
        float(np.abs(found - scores).max() / np.abs(scores).max()),
        others,
        ties,
        *(1e6 * each / len(X) for each in (here, seconds["float64"], seconds["float32"])),
    )


def least_seconds(act: Callable[[], object], repeats: int) -> float:
    """Return the least time that something takes."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        act()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> int:
    """Run the comparison and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--basis-size", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="kinds; default: all")
    options = parser.parse_args()
    digits, diabetes = load_digits(return_X_y=True), load_diabetes(return_X_y=True)
    print(
        f"{'':<22}{'largest':>12}{'other':>9}{'of them':>9}{'us a row':>10}{'onnx':>9}{'onnx':>9}"
    )
    print(f"{'':<22}{'difference':>12}{'labels':>9}{'ties':>9}{'here':>10}{'f64':>9}{'f32':>9}")
    kinds = networks(options.basis_size)
    with tempfile.TemporaryDirectory(prefix="onnx-") as scratch, threadpool_limits(1):
        for kind in options.only or kinds:
            X, y = diabetes if kind == "numbers" else digits
            train, test, labels, _ = train_test_split(X, y, test_size=0.5, random_state=0)
            network = kinds[kind].fit(train, labels)
            figures = compared(network, test, f"{scratch}/model.onnx", options.repeats)
            print(
                f"{kind:<22}{figures.difference:>12.1e}{figures.other_labels:>9}{figures.ties:>9}"
                f"{figures.us_here:>10.1f}{figures.us_float64:>9.1f}{figures.us_float32:>8.1f}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
