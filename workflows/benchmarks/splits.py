"""Rows to train on and to test, of a set that scikit-learn brings, of a file or in fixed folds."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.model_selection import train_test_split

from dask_nrbfn import ingest_file

BUNDLED: dict[str, Callable[..., Any]] = {
    "breast-cancer": load_breast_cancer,
    "diabetes": load_diabetes,
    "digits": load_digits,
    "iris": load_iris,
    "wine": load_wine,
}


@dataclass(frozen=True, eq=False)
class Split:
    """Rows to train on and to test; targets are codes of classes, or numbers (floats)."""

    name: str
    X_train: NDArray[Any]
    y_train: NDArray[Any]
    X_test: NDArray[Any]
    y_test: NDArray[Any]

    @property
    def of_numbers(self) -> bool:
        """Whether the targets are numbers."""
        return self.y_train.dtype.kind == "f"


def read_split(
    name: str, *, test_share: float, label: str | None = None, target: str | None = None
) -> Split:
    """Return the split of a file, or draw one: this share tests, of each class alike.

    Targets of .npz that are floats are numbers, others labels.
    """
    if name in BUNDLED:
        X, y = BUNDLED[name](return_X_y=True)
    elif name.endswith(".npz"):
        with np.load(name) as arrays:
            if "X_train" in arrays:
                given = [arrays[part] for part in ("X_train", "X_test", "y_train", "y_test")]
                return _split(Path(name).stem, *given)
            X, y = arrays["X"], arrays["y"]
    else:
        X, y = _ingested(name, label, target)
    strata = None if y.dtype.kind == "f" else y
    parts = train_test_split(X, y, test_size=test_share, random_state=0, stratify=strata)
    return _split(name if name in BUNDLED else Path(name).stem, *parts)


def read_folds(folder: Path) -> list[Split]:
    """Return the splits of a regression in the layout of the repository treforevans/uci_datasets.

    data.csv.gz has the targets in the last column, test_mask.csv.gz a column for each fold: 1 where
    a row tests. Neither has a header.
    """
    data = np.loadtxt(folder / "data.csv.gz", delimiter=",", ndmin=2)
    masks = np.loadtxt(folder / "test_mask.csv.gz", delimiter=",", ndmin=2).astype(bool)
    X, y = data[:, :-1], data[:, -1]
    return [Split(folder.name, X[~test], y[~test], X[test], y[test]) for test in masks.T]


def _split(name: str, X_train: Any, X_test: Any, y_train: Any, y_test: Any) -> Split:
    if y_train.dtype.kind != "f":
        classes, y_train = np.unique(y_train, return_inverse=True)
        y_test = np.searchsorted(classes, y_test)
    elif y_train.ndim == 2 and y_train.shape[1] == 1:
        y_train, y_test = y_train.ravel(), y_test.ravel()
    return Split(name, X_train, y_train, X_test, y_test)


def _ingested(file: str, label: str | None, target: str | None) -> tuple[Any, Any]:
    with tempfile.TemporaryDirectory(prefix="peers-") as scratch:
        dataset = ingest_file(file, f"{scratch}/rows.zarr", label=label, target=target)
        rows = np.arange(dataset.n_rows)
        return dataset.take(rows), dataset.take_targets(rows)
