"""The default fit of tables whose classes do not overlap, next to the default SVC."""

import numpy as np
import pytest
from sklearn.datasets import make_moons
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC

from dask_nrbfn import NRBFNClassifier
from tests.cli.program import json_of, succeed
from tests.tables import write_table


def moons(rng):
    return make_moons(900, noise=0.05, random_state=0)


def two_spirals(rng):
    y = rng.integers(2, size=900)
    angle = np.sqrt(rng.uniform(0.05, 1, 900)) * 2.5 * np.pi
    X = angle[:, None] * np.column_stack([np.cos(angle + np.pi * y), np.sin(angle + np.pi * y)])
    return X + rng.normal(0, 0.15, X.shape), y


def board(rng):
    """Return rows in the fields of a board, away from its lines."""
    X = rng.uniform(0, 4, (4000, 2))
    X = X[np.all(np.abs(X % 1 - 0.5) < 0.4, axis=1)][:1600]
    return X, np.floor(X).astype(np.int64).sum(axis=1) % 2


def exclusive_or(rng):
    X = rng.uniform(-1, 1, (2700, 2))
    X = X[np.all(np.abs(X) > 0.15, axis=1)][:1800]
    return X, (X[:, 0] > 0) ^ (X[:, 1] > 0)


def groups(rng, n_groups, n_features, spread=0.4, n_rows=900):
    """Return rows in separate groups, with the number of the group."""
    centres = np.empty((0, n_features))
    while len(centres) < n_groups:
        centre = rng.uniform(-10, 10, (1, n_features))
        apart = np.linalg.norm(centres - centre, axis=1) > 8 * spread * n_features**0.25
        centres = np.concatenate([centres, centre]) if apart.all() else centres
    own = rng.integers(n_groups, size=n_rows)
    return centres[own] + rng.normal(0, spread, (n_rows, n_features)), own


def of_classes(table, n_classes):
    X, own = table
    return X, own % n_classes


def categories(rng):
    levels = rng.integers(5, size=(900, 4))
    X = np.eye(5)[levels].reshape(900, 20)
    return X, (levels[:, 0] % 2 == 1) ^ (levels[:, 1] > 2)


def units(rng):
    X, y = of_classes(groups(rng, 9, 3), 3)
    return X * [1, 100, 1e4], y


def rare(rng):
    X, own = groups(rng, 30, 4)
    return X, own == 0


TABLES = {
    "moons": moons,
    "twenty groups": lambda rng: of_classes(groups(rng, 20, 5, 0.5), 4),
    "spirals": two_spirals,
    "board": board,
    "exclusive or": exclusive_or,
    "fifty columns": lambda rng: of_classes(groups(rng, 40, 50, 1.0, 1500), 2),
    "twenty classes": lambda rng: groups(rng, 20, 10, 0.8, 1500),
    "categories": categories,
    "units": units,
    "rare": rare,
}


def drawn(name):
    X, y = TABLES[name](np.random.default_rng(5))
    return train_test_split(X, y, test_size=1 / 3, random_state=0, stratify=y)


@pytest.mark.fast_cases(4)
@pytest.mark.parametrize("name", TABLES)
def test_default_fit__is_as_good_as_a_default_svc_where_classes_do_not_overlap(name):
    X_train, X_test, y_train, y_test = drawn(name)
    accuracy = NRBFNClassifier().fit(X_train, y_train).score(X_test, y_test)
    assert accuracy >= SVC().fit(X_train, y_train).score(X_test, y_test) - 0.01


def test_default_fit__of_moons_that_rows_are_added_to():
    X_train, X_test, y_train, y_test = drawn("moons")
    network = NRBFNClassifier().partial_fit(X_train[:200], y_train[:200], classes=[0, 1])
    network.partial_fit(X_train[200:], y_train[200:])
    assert network.score(X_test, y_test) >= 0.99


@pytest.mark.parametrize("options", [(), ("--cells", 4)])
def test_default_fit__of_moons_on_the_command_line(tmp_path, options):
    X_train, X_test, y_train, y_test = drawn("moons")
    write_table(tmp_path / "train", X_train, y_train, chunk_rows=70)
    write_table(tmp_path / "test", X_test, y_test)
    succeed("fit", tmp_path / "train", tmp_path / "run", *options)
    figures = json_of("evaluate", tmp_path / "run", tmp_path / "test")
    assert figures["error_rate"] <= 0.01
