"""Tables that tests train on."""

import numpy as np
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from zarr.storage import MemoryStore

from dask_nrbfn.commands.ingest import ingest_arrays
from dask_nrbfn.storage.dataset import Dataset
from tests.reference import first_half

LOADERS = {"iris": load_iris, "wdbc": load_breast_cancer, "wine": load_wine}


def halves(name):
    """Return X_train, y_train, X_test, y_test: the first half of each class trains."""
    X, y = LOADERS[name](return_X_y=True)
    train, test = first_half(X, y)
    return X[train], y[train], X[test], y[test]


def spirals(n_rows, n_features=4, n_classes=3, seed=0):
    """Return noisy arms that interleave, X float64 (n, p) and y int64 (n,)."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n_rows)
    radius = rng.uniform(0.5, 3.0, n_rows)
    angle = 1.5 * radius + 2 * np.pi * y / n_classes
    X = rng.normal(scale=0.2, size=(n_rows, n_features))
    X[:, 0] += radius * np.cos(angle)
    X[:, 1] += radius * np.sin(angle)
    return X, y


def surfaces(n_rows, seed=0):
    """Return X float64 (n, 3) and Y float64 (n, 2), smooth in X but for noise, of other sizes."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n_rows, 3))
    Y = np.column_stack([np.sin(3 * X[:, 0]) * X[:, 1], 1e4 + 200 * np.cos(2 * X[:, 2])])
    return X, Y + rng.normal(scale=[0.1, 30.0], size=Y.shape)


def copy_of(store):
    """Return a store in memory with the same content, from now on on its own."""
    return MemoryStore(dict(store._store_dict))


def on_disk(store, place):
    """Write the content of a store in memory to a directory; return its path."""
    for name, content in store._store_dict.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.to_bytes())
    return place


def write_table(location, X, y=None, **options) -> Dataset:
    """Write a dataset from arrays."""
    return ingest_arrays(X, y, location, **options)
