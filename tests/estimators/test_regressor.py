"""The regressors: scikit-learn's contract, and rows in and out of memory."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from zarr.storage import MemoryStore

from dask_nrbfn import (
    NRBFNClassifier,
    NRBFNRegressor,
    NRBFNRegressorCV,
    ingest_arrays,
)
from dask_nrbfn.errors import DataError, ParameterError

X, y = load_diabetes(return_X_y=True)
T = np.column_stack([y, 10.0 - 2.0 * y + X[:, 2]])
NETWORK = NRBFNRegressor(alpha=1e-5, basis_size=20, scale="standard", n_parts=3)


@pytest.fixture(scope="module")
def one():
    return clone(NETWORK).fit(X, y)


@pytest.fixture(scope="module")
def several():
    return clone(NETWORK).fit(X, T)


def test_regressor__one_and_several_targets(one, several):
    assert one.predict(X).shape == (len(X),)
    assert several.predict(X).shape == T.shape
    np.testing.assert_allclose(several.predict(X)[:, 0], one.predict(X), rtol=1e-9)
    assert (several.weights_.shape, several.intercept_.shape) == ((2, 20), (2,))
    assert one.score(X, y) > 0.4
    assert not hasattr(one, "classes_")


def test_regressor__numbers_outside_the_training_targets_are_clipped():
    x = np.linspace(0, 1, 40)[:, None]
    # A Gaussian network goes on beyond its rows.
    network = NRBFNRegressor(basis_size=8, kernel="gaussian", scale="none").fit(x, x[:, 0] ** 2)
    new = np.array([[0.5], [1.1], [1.2]])
    free, clipped = network.predict(new, clip=False), network.predict(new)
    assert free[1] > 1.1
    np.testing.assert_array_equal(clipped, [free[0], 1.0, 1.0])
    lazy = network.predict(da.from_array(new, chunks=2))
    np.testing.assert_allclose(lazy.compute(), clipped, rtol=1e-12)
    network.partial_fit(new[2:], new[2:, 0] ** 2)
    assert network.predict(new).max() > 1.4


@pytest.mark.parametrize("lazy", [False, True])
def test_regressor__targets_whose_squares_underflow_are_refused_not_left_unlearned(lazy):
    small = 1e-200 * T
    # The first rows alone may be equal.
    small[:150] = small[0]
    rows, targets = (da.from_array(each, (100, 2)) if lazy else each for each in (X[:, :2], small))
    with pytest.raises(DataError, match=r"target_0 has .* at most 3.2.e-198, .*Multiply .* 1e200"):
        clone(NETWORK).fit(rows, targets)
    scaled = np.column_stack([1e200 * small, np.zeros(len(X))])
    assert np.ptp(clone(NETWORK).fit(X, scaled).predict(X), axis=0)[0] > 1


def test_regressor__batches_join_and_leave():
    network = clone(NETWORK).partial_fit(X[:200], T[:200])
    network.partial_fit(X[200:], T[200:])
    both = network.predict(X)
    Phi = network._model.features.activations(X)
    centred = Phi - Phi.mean(axis=0)
    gram = centred.T @ centred
    penalty = network.alpha * np.trace(gram) * np.eye(len(gram))
    fitted = centred @ np.linalg.solve(gram + penalty, centred.T @ (T - T.mean(axis=0)))
    np.testing.assert_allclose(both, T.mean(axis=0) + fitted, rtol=1e-6)
    network.partial_fit(X[:50], T[:50])
    network.forget(X[:50], T[:50])
    np.testing.assert_allclose(network.predict(X), both, rtol=1e-8)
    with pytest.raises(DataError, match="y has 1 target column, but the model was fitted with 2"):
        network.partial_fit(X, y)


@pytest.mark.slow
def test_regressor__batches_know_the_names_of_targets(tmp_path):
    names = ["progress", "other"]
    frame = pd.DataFrame(T, columns=names)
    network = clone(NETWORK).fit(X[:300], frame[:300])
    network.partial_fit(X[300:], T[300:])
    network.forget(X[:50], frame[:50])
    with pytest.raises(DataError, match="are other, progress, but the network predicts progress"):
        network.partial_fit(X, frame[names[::-1]])
    stored = clone(NETWORK).set_params(store=str(tmp_path))
    stored.fit(da.from_array(X, chunks=(200, -1)), dd.from_pandas(frame, npartitions=2))
    before = stored.predict(X)
    stored.partial_fit(X[:50], T[:50]).forget(X[:50], frame[:50])
    np.testing.assert_allclose(stored.predict(X), before, rtol=1e-8)


def test_regressor__saved_and_loaded(tmp_path, several):
    several.save(tmp_path / "model")
    loaded = NRBFNRegressor.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X), several.predict(X))
    resolved = {"n_parts": 3, "n_neighbors": 20, "cells": 1, "metric_rounds": 5}
    resolved |= {"kernel": "laplace-l1"}
    assert loaded.get_params() == several.get_params() | resolved
    with pytest.raises(DataError, match="the model predicts numbers"):
        NRBFNClassifier.load(tmp_path / "model")
    NRBFNClassifier(basis=X[:9]).fit(X[:60], np.arange(60) % 2).save(tmp_path / "classes")
    with pytest.raises(DataError, match="the model predicts classes"):
        NRBFNRegressor.load(tmp_path / "classes")


def test_regressor__what_belongs_to_classes_is_refused():
    labelled = ingest_arrays(X, np.arange(len(X)) % 2, MemoryStore())
    numbers = ingest_arrays(X, None, MemoryStore(), target=y)
    with pytest.raises(DataError, match="has no numeric targets"):
        NRBFNRegressor().fit(labelled)
    with pytest.raises(DataError, match="has numeric targets, not labels"):
        NRBFNClassifier().fit(numbers)
    with pytest.raises(ParameterError, match="basis=sknn needs class labels"):
        NRBFNRegressor(basis="sknn").fit(X, y)


@pytest.mark.slow
def test_tuned_regressor__attributes_and_searches():
    options = {"alphas": (1e-3, 1e-6), "width_factors": (0.5, 1.0), "features": ("plain",)}
    tuned = NRBFNRegressorCV(effort="quick", basis_size=20, scale="standard", **options).fit(X, T)
    assert (tuned.alpha_, tuned.width_factor_) in [(a, w) for a in (1e-3, 1e-6) for w in (0.5, 1.0)]
    assert len(tuned.r2_) == len(tuned.rmse_) == len(tuned.mae_) == 2
    assert tuned.relative_error_ == min(entry["relative_error"] for entry in tuned.path_)
    assert set(tuned.cv_results_["param_width_factor"]) >= {0.5, 1.0}
    tuned.set_params(width_factors=(1.0,), localities=(0.0, 0.1)).fit(X, T)
    assert sorted(tuned.cv_results_["param_locality"]) == [0.0, 0.0, 0.1, 0.1]
    pipeline = make_pipeline(StandardScaler(), NRBFNRegressor(basis_size=15))
    search = GridSearchCV(pipeline, {"nrbfnregressor__alpha": [1e-2, 1e-6]}, cv=2)
    assert search.fit(X, y).best_score_ > 0.3
