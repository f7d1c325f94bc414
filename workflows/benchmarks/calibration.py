"""Compare calibrated probabilities with scikit-learn's, on rows that neither has seen.

The digits are halved at random a few times. The tuned network calibrates on its own held-out
scores; `CalibratedClassifierCV` fits the network of the same parameters five times, calibrates the
scores of each and averages:

    python workflows/benchmarks/calibration.py
"""

import argparse
import sys

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from dask_nrbfn import NRBFNClassifier, NRBFNClassifierCV

METHODS = ("sigmoid", "isotonic", "temperature")


def main() -> int:
    """Run the comparison and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    X, y = load_digits(return_X_y=True)
    losses: dict[str, list[float]] = {}
    for seed in range(options.repeats):
        split = train_test_split(X, y, test_size=0.5, random_state=seed, stratify=y)
        for name, loss in losses_of(*split).items():
            losses.setdefault(name, []).append(loss)
    print(f"{'log loss on new digits':<34}{'mean':>8}{'worst':>8}")
    for name, values in losses.items():
        print(f"{name:<34}{np.mean(values):>8.4f}{max(values):>8.4f}")
    return 0


def losses_of(
    X: np.ndarray, X_new: np.ndarray, y: np.ndarray, y_new: np.ndarray
) -> dict[str, float]:
    """Return the log loss of each way to make probabilities of the scores."""
    tuned = NRBFNClassifierCV().fit(X, y)
    same = NRBFNClassifier(
        alpha=tuned.alpha_,
        features=tuned.features_,
        width_factor=tuned.width_factor_,
    )
    losses = {
        "clipped scores": log_loss(y_new, same.fit(X, y).predict_proba(X_new)),
        "NRBFNClassifierCV": log_loss(y_new, tuned.predict_proba(X_new)),
    }
    for method in METHODS:
        calibrated = CalibratedClassifierCV(same, method=method, cv=5).fit(X, y)
        loss = log_loss(y_new, calibrated.predict_proba(X_new))
        losses[f"CalibratedClassifierCV, {method}"] = loss
    return losses


if __name__ == "__main__":
    sys.exit(main())
