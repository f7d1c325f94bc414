"""Neighbours and confidence of rows in CSR: those of the same rows as arrays, whatever stops."""

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.numeric.rows import dense
from dask_nrbfn.params import FitParams
from tests.neighbors.sparse import texts
from tests.tables import write_table

NAMES = ("neighbors/distances", "confidence/values", "confidence/tiebreak")


def params(**changes):
    chosen = {
        "n_neighbors": 6,
        "neighbors": "exact",
        "scale": "none",
        "overlap": 2,
        "basis_size": 20,
        "alpha": 1e-4,
        "n_parts": 3,
    }
    return FitParams(**(chosen | changes))


def table(n_rows, n_columns=300):
    """Return rows in CSR, one of them empty and three alike, and labels. No others tie."""
    X = texts(n_rows, n_columns).astype(np.float64)
    rng = np.random.default_rng(0)
    X.data += rng.uniform(0.0, 0.5, X.nnz)
    X.data[X.indptr[4] : X.indptr[5]] = 0.0
    X.eliminate_zeros()
    rows = np.where(np.isin(np.arange(n_rows), [9, 10]), 8, np.arange(n_rows))
    return X[rows], rng.integers(0, 3, n_rows)[rows]


def fit(X, y, wanted, *, engine=None, location=None, **options):
    dataset = write_table(MemoryStore(), X, y, **options)
    place = MemoryStore() if location is None else location
    return fit_dataset(dataset, place, wanted, engine or InlineEngine(), min_recall=0.0)


SEARCHES = {
    "at once": {},
    "of unit length": {"scale": "unit"},
    "of candidates": {"candidates": 60},
}


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("name", SEARCHES)
def test_exact__those_of_arrays(name):
    X, y = table(150)
    if name == "of unit length":
        # From the empty row, all others are equally far.
        X, y = X[5:], y[5:]
    sparse, whole = (fit(each, y, params(**SEARCHES[name])) for each in (X, dense(X)))
    for each in NAMES:
        np.testing.assert_allclose(sparse.read(each), whole.read(each), rtol=1e-10, atol=1e-12)
    assert set(sparse.read("basis/rows")) == set(whole.read("basis/rows"))


@pytest.mark.slow
def test_partitions__find_most():
    X, y = table(600)
    run = fit(X, y, params(n_partitions=4), chunk_rows=170)
    assert run.stages["neighbors"]["n_partitions"] > 1
    assert run.stages["recall"]["recall"] > 0.9
