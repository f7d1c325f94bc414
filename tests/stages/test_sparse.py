"""Rows in CSR: a fit gives the numbers that it gives of the same rows in an array."""

from functools import cache

import numpy as np
import pytest
from scipy import sparse
from zarr.storage import MemoryStore

from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.commands.ingest import ingest_arrays
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.numeric.rows import is_csr
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages.resolve import resolve_tuning
from dask_nrbfn.storage.model import Model

N, P, CHUNK_ROWS = 240, 150, 50


@cache
def texts(n_rows=N, per_row=5, seed=0):
    """Return rows of few values, like those of words, whose classes like other columns."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n_rows)
    X = np.zeros((n_rows, P))
    for row, label in enumerate(y):
        own = rng.choice(P // 3, per_row, replace=False) + label * P // 3
        places = np.where(rng.random(per_row) < 0.4, rng.choice(P, per_row, replace=False), own)
        X[row, places] = rng.uniform(0.5, 2.0, per_row)
    # Of a column without values nothing is known, and one that never changes tells nothing.
    X[:, 7], X[:, 8] = 0.0, 0.7
    return X, y


def datasets(X, y=None, **options):
    """Return the same rows as a sparse and as a dense dataset."""
    return [
        ingest_arrays(rows, y, MemoryStore(), chunk_rows=CHUNK_ROWS, **options)
        for rows in (sparse.csr_array(X), X)
    ]


def fitted(params):
    """Return the runs of rows in CSR and in an array."""
    X, y = texts()
    targets = {"y": y}
    if params.pop("numbers", False):
        targets = {"target": np.column_stack([X.sum(axis=1), X[:, 0] - X[:, 60]])}
    # By default these are not the same of both.
    chosen = {"kernel": "gaussian", "scale": "none"}
    chosen |= {"basis": "random", "basis_size": 30, "alpha": 1e-6} | params
    params = FitParams(**chosen)
    return [
        fit_dataset(dataset, MemoryStore(), params, InlineEngine())
        for dataset in datasets(X, **targets)
    ]


def scores(run):
    """Return the scores of rows, in CSR and in an array alike."""
    X, model = texts(seed=1)[0], Model.load(run.location)
    found = model.scores(sparse.csr_array(X))
    np.testing.assert_allclose(model.scores(X), found, rtol=1e-9, atol=1e-11)
    return found


def is_like(found, expected, size=1e-10):
    np.testing.assert_allclose(found, expected, rtol=0, atol=size * np.abs(expected).max())


OPTIONS = [
    {"scale": "standard"},
    {"kernel": "laplacian", "features": "plain"},
    {"kernel": "laplace-l1", "features": "plain"},
    {"scale": "unit", "basis": "kmeans"},
    {"scale": "standard", "basis": "sknn"},
    {"loss": "logistic"},
    {"penalty": "clusters", "features": "plain", "basis": "kmeans"},
    {"locality": 0.5},
    {"prune": 12, "features": "plain"},
    {"components": 6},
    {"numbers": True, "basis": "kmeans", "scale": "standard"},
]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda options: "-".join(map(str, options.values()))
)
def test_fit__scores_are_those_of_the_same_rows_in_an_array(options):
    of_csr, of_arrays = fitted(dict(options))
    np.testing.assert_array_equal(of_csr.read("basis/rows"), of_arrays.read("basis/rows"))
    # Where a row is its own basis row, the root of a distance of 0 is rounding, 1e-8 of its length.
    size = 1e-7 if options.get("kernel") == "laplacian" else 1e-10
    is_like(scores(of_csr), scores(of_arrays), size)
    drawn = options.get("basis") != "kmeans"
    assert is_csr(Model.load(of_csr.location).basis) == drawn


def test_tune__tries_no_learned_weights():
    params = FitParams(basis_size=20).resolve_auto(numbers=False)
    for sparse_rows in (False, True):
        scales = resolve_tuning(params, TuneParams(), sparse=sparse_rows).scales
        assert ("learned" in scales) != sparse_rows
