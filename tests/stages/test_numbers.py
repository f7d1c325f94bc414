"""Networks whose targets are numbers."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_diabetes
from zarr.storage import MemoryStore

from dask_nrbfn.commands.evaluate import evaluate_dataset
from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.commands.ingest import ingest_arrays
from dask_nrbfn.commands.update import update_run
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.errors import DataError
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.storage.model import Model
from tests.reference import reference_ridge
from tests.tables import spirals

PARAMS = FitParams(basis="kmeans", basis_size=30, features="plain", scale="standard", alpha=1e-6)


def diabetes(n_targets=2):
    X, y = load_diabetes(return_X_y=True)
    return X, np.column_stack([y, 500.0 + 3.0 * X[:, 2] - y / 7.0])[:, :n_targets]


def table_of(X, T, place=None, **options):
    return ingest_arrays(X, None, MemoryStore() if place is None else place, target=T, **options)


def fit(X, T, params=PARAMS, *, chunk_rows=61, weights=None, **options):
    dataset = table_of(X, T, chunk_rows=chunk_rows, weights=weights)
    run = fit_dataset(dataset, MemoryStore(), params, InlineEngine(), **options)
    return Model.load(run.location)


@pytest.mark.parametrize(("features", "weighted"), [("plain", True), ("normalized", False)])
def test_fit__is_the_least_squares_written_out(features, weighted):
    X, T = diabetes()
    weights = np.random.default_rng(0).uniform(0.5, 3.0, len(X)) if weighted else None
    model = fit(X, T, replace(PARAMS, features=features), weights=weights)
    Phi, rows = model.features.activations(X), np.ones(len(X)) if weights is None else weights
    middle = np.average(Phi, axis=0, weights=rows) if features == "plain" else 0.0
    mean = np.average(T, axis=0, weights=rows)
    W, intercept = reference_ridge(Phi, T, 1e-6, weights=rows, middle=middle, mean=mean)
    np.testing.assert_allclose(model.scores(X), Phi @ W + intercept, rtol=1e-6)
    assert (model.target_names, len(model.classes)) == (("target_0", "target_1"), 0)


def test_targets__of_another_kind_are_refused():
    X, T = diabetes()
    engine, numbers = InlineEngine(), table_of(X, T)
    labelled = ingest_arrays(X, np.arange(len(X)) % 2, MemoryStore())
    run = fit_dataset(numbers, MemoryStore(), PARAMS, engine)
    classifier = fit_dataset(
        labelled, MemoryStore(), FitParams(basis="random", basis_size=5), engine
    )
    for location, dataset in ((run.location, labelled), (classifier.location, numbers)):
        with pytest.raises(DataError, match=r"targets of .* are labels|has numeric targets"):
            evaluate_dataset(location, dataset, engine)
    with pytest.raises(DataError, match="are target, but the network predicts target_0"):
        update_run(run.location, table_of(X, T[:, 0]), engine)
    options = {"tuning": TuneParams(), "validation": labelled}
    with pytest.raises(DataError, match="are labels"):
        fit_dataset(numbers, MemoryStore(), PARAMS, engine, **options)


def test_fit__of_a_constant_target():
    X, _ = spirals(80)
    model = fit(X, np.full(80, 3.5), replace(PARAMS, basis_size=10))
    np.testing.assert_array_equal(model.scores(X), 3.5)
    assert (model.fitting_error, model.spectral_risk) == (1.0, 1.0)
