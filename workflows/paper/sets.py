"""The papers' data sets, from a folder of .npz files or from scikit-learn.

NAME.npz holds X (n, p) and labels y (n,); X_train, y_train, X_test and y_test in their place where
the split is official; beside X and y train_splits and test_splits, row numbers (s, n_train) and
(s, n_test), where there are several. The names are those in the first column of the tables. iris,
wdbc, wine and digits come with scikit-learn, twonorm and ringnorm are drawn, mnist-rand is made of
mnist. A set that is not there is a line "not here".
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.model_selection import KFold, ShuffleSplit, StratifiedShuffleSplit

Ints = NDArray[np.integer]

BUNDLED: dict[str, Callable[..., Any]] = {
    "iris": load_iris,
    "wdbc": load_breast_cancer,
    "wine": load_wine,
    "digits": load_digits,
}

# What parameters are chosen by, where a paper says five folds.
FOLDS = KFold(5, shuffle=True, random_state=0)


@dataclass(frozen=True, eq=False)
class Split:
    """Rows to train on and to test, and their classes; `n_all` could have trained."""

    X_train: NDArray[Any]
    y_train: NDArray[Any]
    X_test: NDArray[Any]
    y_test: NDArray[Any]
    n_all: int

    @property
    def note(self) -> str:
        """How many of the rows train, if not all."""
        n_train = len(self.y_train)
        return f"{n_train:,} of {self.n_all:,} rows" if n_train < self.n_all else ""


@dataclass(frozen=True, eq=False)
class DataSet:
    """Rows X (n, p) and classes y (n,), from 0 in the order of labels, and how they are split.

    `given` are row numbers of the splits that come with the set. Of more than `most_rows` rows that
    train so many are drawn; without one official split `n_draws` are.
    """

    name: str
    X: NDArray[Any]
    y: NDArray[Any]
    given: tuple[tuple[Ints, Ints], ...]
    most_rows: int | None
    n_draws: int

    def split(self, train: Ints, test: Ints) -> Split:
        """Return the rows of these numbers."""
        n_all = len(train)
        if self.most_rows is not None and n_all > self.most_rows:
            train = np.sort(np.random.default_rng(0).choice(train, self.most_rows, replace=False))
        return Split(self.X[train], self.y[train], self.X[test], self.y[test], n_all)

    def official(self) -> Iterator[Split]:
        """Yield the splits that come with the set."""
        for train, test in self.given[: self.n_draws]:
            yield self.split(train, test)

    def splits(self, n_train: float) -> Iterator[Split]:
        """Yield the splits that come with the set, or draw them if it has none."""
        return self.official() if self.given else self.drawn(n_train)

    def first_half(self) -> Split:
        """Return the split in which the first half of each class trains, the larger one."""
        trains = np.zeros(len(self.y), dtype=bool)
        for label in np.unique(self.y):
            members = np.flatnonzero(self.y == label)
            trains[members[: -(-len(members) // 2)]] = True
        return self.split(np.flatnonzero(trains), np.flatnonzero(~trains))

    def drawn(self, n_train: float, *, by_class: bool = False) -> Iterator[Split]:
        """Yield splits in which this number or share of the rows trains, of each class alike."""
        kind = StratifiedShuffleSplit if by_class else ShuffleSplit
        splitter = kind(self.n_draws, train_size=n_train, random_state=0)
        for train, test in splitter.split(self.X, self.y):
            yield self.split(train, test)

    def of_classes(self, *classes: int) -> "DataSet":
        """Return the rows of some classes; they have no splits."""
        kept = np.isin(self.y, classes)
        y = np.searchsorted(classes, self.y[kept])
        return DataSet(self.name, self.X[kept], y, (), self.most_rows, self.n_draws)


@dataclass(frozen=True)
class Folder:
    """Where data sets are looked for, and how much of them is used; see `DataSet`."""

    path: Path | None
    most_rows: int | None
    n_draws: int

    def find(self, name: str) -> DataSet | None:
        """Return the data set of this name, or None if it is not here."""
        return _find(self, name)


# Tables share their sets, and the fits of a set are found by it.
@cache
def _find(folder: Folder, name: str) -> DataSet | None:
    file = None if folder.path is None else folder.path / f"{name}.npz"
    if file is not None and file.is_file():
        with np.load(file) as arrays:
            X, y, given = _read(arrays)
    elif name in BUNDLED:
        (X, y), given = BUNDLED[name](return_X_y=True), ()
    elif name in _DRAWN:
        X, y, given = _draw(name, folder.n_draws)
    elif name == "mnist-rand" and (digits := folder.find("mnist")) and digits.given:
        X, y, given = _with_noise(digits)
    else:
        return None
    return DataSet(
        name, X, np.unique(y, return_inverse=True)[1], given, folder.most_rows, folder.n_draws
    )


Read = tuple[NDArray[Any], NDArray[Any], tuple[tuple[Ints, Ints], ...]]


def _read(arrays: Any) -> Read:
    if "X_train" in arrays:
        X, y = (np.concatenate([arrays[f"{x}_train"], arrays[f"{x}_test"]]) for x in "Xy")
        numbers = np.arange(len(y))
        n_train = len(arrays["y_train"])
        return X, y, ((numbers[:n_train], numbers[n_train:]),)
    splits = ()
    if "train_splits" in arrays:
        splits = tuple(zip(arrays["train_splits"], arrays["test_splits"], strict=True))
    return arrays["X"], arrays["y"], splits


# Breiman's, 1996: standard deviation of the first of the two classes, and where each has its mean,
# in units of 2 / sqrt(20) along every column.
_DRAWN = {"twonorm": (1.0, (1.0, -1.0)), "ringnorm": (2.0, (0.0, 1.0))}
_N_COLUMNS, _N_TRAIN, _N_TEST = 20, 400, 7000


def _draw(name: str, n_draws: int) -> Read:
    first_deviation, places = _DRAWN[name]
    rng = np.random.default_rng(0)
    n_rows = _N_TRAIN + _N_TEST
    y = rng.integers(2, size=n_draws * n_rows)
    X = rng.standard_normal((len(y), _N_COLUMNS))
    X[y == 0] *= first_deviation
    X += 2.0 / np.sqrt(_N_COLUMNS) * np.array(places)[y, None]
    rows = np.arange(len(y)).reshape(n_draws, n_rows)
    return X, y, tuple((numbers[:_N_TRAIN], numbers[_N_TRAIN:]) for numbers in rows)


# As many digits as the set of Larochelle et al., 2007, has to train on and to test.
_N_NOISY = 12_000, 50_000


def _with_noise(digits: DataSet) -> Read:
    """Return the first digits with uniform noise behind them; of those that train, some test."""
    ((train, _),) = digits.given
    rows = slice(sum(_N_NOISY))
    noise = np.random.default_rng(0).random(digits.X[rows].shape, dtype=np.float32)
    X = np.maximum(digits.X[rows].astype(np.float32) / 255, noise)
    numbers = np.arange(len(X))
    n_train = min(_N_NOISY[0], len(train))
    return X, digits.y[rows], ((numbers[:n_train], numbers[n_train:]),)
