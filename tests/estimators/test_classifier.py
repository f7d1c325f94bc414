import pickle

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import zarr
from distributed import Client
from sklearn.base import clone

from dask_nrbfn import Dataset, NRBFNClassifier, NRBFNClassifierCV, NRBFNError, Run
from dask_nrbfn.errors import ParameterError, RecallError
from tests.tables import spirals, write_table

# The least that leaves something to choose.
TUNED = NRBFNClassifierCV(
    effort="quick", n_neighbors=5, width_factors=(0.5, 1.0), alphas=(1e-6, 1e-3), folds=2
)


# Basis rows are then rows of X as they are.
PLAIN = {"kernel": "gaussian", "scale": "none"}


@pytest.fixture(scope="module")
def table():
    return spirals(300)


@pytest.fixture(scope="module")
def expected(table):
    X, y = table
    return NRBFNClassifier(alpha=1e-6, n_parts=3, **PLAIN).fit(X, y)


def test_classifier__attributes(table, expected):
    (X, _), network = table, expected
    np.testing.assert_array_equal(network.basis_, X[network.basis_indices_])
    assert network.weights_.shape == (3, len(network.basis_))
    assert network.confidence_.shape == (300,)
    assert 1 <= network.fitting_error_ < 1.5
    assert network.spectral_risk_ > 1
    scores = network.decision_function(X)
    np.testing.assert_allclose(scores.sum(axis=1), 1, atol=1e-3)
    np.testing.assert_array_equal(network.classes_[scores.argmax(axis=1)], network.predict(X))


NAMES = np.array(["a", "bb", "c"])


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize(
    "label",
    [NAMES, np.array([-5, 0, 7]), np.arange(3.0), np.array([True, False, False])],
    ids=lambda label: label.dtype.str,
)
def test_classifier__labels_come_back_in_their_type(tmp_path, table, label):
    X, y = table[0], label[table[1]]
    network = NRBFNClassifier(alpha=1e-9, basis=X[:60]).fit(X, y)
    assert network.classes_.tolist() == np.unique(y).tolist()
    assert network.predict(X).dtype == y.dtype
    assert network.score(X, y) > 0.9
    lazy = clone(network).fit(da.from_array(X), y)
    np.testing.assert_allclose(lazy.weights_, network.weights_, rtol=1e-9)
    assert lazy.classes_.tolist() == network.classes_.tolist()
    found = network.predict(da.from_array(X, chunks=(90, 4))).compute()
    np.testing.assert_array_equal(found, network.predict(X))
    network.save(tmp_path / "model")
    loaded = NRBFNClassifier.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X), network.predict(X))


def test_classifier__saved_and_loaded_and_pickled(tmp_path, table):
    X, y = table
    options = {"n_partitions": 4, "overlap": 3, "basis_rule": "uniform", "min_recall": 0.5}
    options |= {"n_neighbors": 8, "neighbors": "exact", "scale": "standard", "random_state": 3}
    network = NRBFNClassifier(**options, alpha=1e-4)
    assert network.get_params().items() >= options.items()
    network.fit(X, np.array(["ä", "b", "c"])[y])
    network.save(tmp_path / "model")
    loaded = NRBFNClassifier.load(tmp_path / "model")
    for again in (loaded, pickle.loads(pickle.dumps(network))):
        np.testing.assert_array_equal(again.decision_function(X), network.decision_function(X))
        np.testing.assert_array_equal(again.predict(X), network.predict(X))
    # The floor is no part of what is computed, and not stored.
    resolved = {"cells": 1, "min_recall": 0.95, "metric_rounds": 5, "kernel": "laplace-l1"}
    assert loaded.get_params() == network.get_params() | resolved
    with pytest.raises(RecallError, match="true neighbours, but min_recall is 1"):
        clone(loaded).set_params(overlap=1, min_recall=1).fit(*table)


def same_network(network, expected):
    np.testing.assert_array_equal(network.basis_indices_, expected.basis_indices_)
    np.testing.assert_allclose(network.weights_, expected.weights_, rtol=1e-9)
    assert network.classes_.tolist() == expected.classes_.tolist()


def test_classifier__fits_dask_arrays(table, expected):
    X, y = da.from_array(table[0], chunks=(70, 3)), da.from_array(table[1], chunks=41)
    same_network(clone(expected).fit(X, y), expected)


def test_classifier__fits_datasets(tmp_path, table, expected):
    same_network(clone(expected).fit(write_table(tmp_path / "data", *table)), expected)
    with pytest.raises(ParameterError, match="a Dataset has its own"):
        clone(expected).fit(Dataset.open(tmp_path / "data"), table[1])


@pytest.mark.slow
def test_classifier__fits_on_the_active_client(tmp_path, table, expected, two_workers):
    X, y = da.from_array(table[0], chunks=(70, 4)), da.from_array(table[1], chunks=70)
    network = clone(expected).set_params(store=tmp_path)
    with Client(two_workers.client.scheduler_info()["address"]):
        same_network(network.fit(X, y), expected)
        lazy = network.predict(X)
        assert sum(len(pickle.dumps(task)) for task in dict(lazy.dask).values()) < 100_000
        np.testing.assert_array_equal(lazy.compute(), expected.predict(table[0]))
    (location,) = tmp_path.glob("run-*")
    assert Run.open(location).attributes["environment"]["n_workers"] == 2


@pytest.mark.slow
def test_classifier__store_resumes_the_same_fit_and_no_other(tmp_path, table, expected):
    X, y = da.from_array(table[0]), da.from_array(table[1])
    network = clone(expected).set_params(store=tmp_path)
    same_network(network.fit(X, y), expected)
    (first,) = tmp_path.glob("run-*")
    started = Run.open(first).stages
    same_network(clone(network).fit(X, y), expected)
    assert Run.open(first).stages == started
    moved = clone(network).fit(X + 1, y)
    np.testing.assert_array_equal(moved.basis_, table[0][moved.basis_indices_] + 1)
    other = clone(network).set_params(alpha=1e-3).fit(X, y)
    assert other.fitting_error_ > network.fitting_error_
    assert len(list(tmp_path.glob("run-*"))) == 3


def test_classifier__predictions_on_dask_arrays_are_lazy(table, expected):
    X, y = table
    two = NRBFNClassifier(alpha=1e-6, basis=X[:20]).fit(X[y < 2], y[y < 2])
    reads = []

    def block(block_info=None):
        reads.append(1)
        return X[slice(*block_info[None]["array-location"][0])]

    lazy_X = da.map_blocks(block, chunks=((100, 150, 50), (4,)), dtype=float, meta=X[:0])
    for network in (two, expected):
        for method in ("predict", "predict_proba", "decision_function"):
            lazy = getattr(network, method)(lazy_X)
            assert isinstance(lazy, da.Array)
            assert not reads
            eager = getattr(network, method)(X)
            assert (lazy.shape, lazy.dtype) == (eager.shape, eager.dtype)
            np.testing.assert_allclose(lazy.compute(scheduler="threads"), eager, rtol=1e-12)
            reads.clear()


def test_classifier__wrong_columns_at_predict(table, expected):
    for X in (np.ones((3, 7)), da.ones((3, 7)), zarr.ones(shape=(3, 7))):
        with pytest.raises(ValueError, match="7"):
            expected.predict(X)


def test_classifier__bad_parameters_at_fit(table):
    bad = {"n_neighbors": 0, "alpha": -1.0, "neighbors": "fuzzy", "min_recall": 1.5}
    for name, value in bad.items():
        with pytest.raises(ParameterError, match=f"{name} is {value!r}"):
            NRBFNClassifier(**{name: value}).fit(*table)
    weights = np.minimum(np.arange(len(table[0])), 1.0)
    with pytest.raises(ValueError, match="weight"):
        NRBFNClassifier(class_weight={0: -1.0}).fit(*table, sample_weight=weights)


def test_classifier__columns_in_another_order(tmp_path, table):
    frame = pd.DataFrame(table[0], columns=list("abcd"))
    lazy = dd.from_pandas(frame, npartitions=2)
    network = NRBFNClassifier(alpha=1e-6, basis=table[0][:9]).fit(frame, table[1])
    with pytest.raises(ValueError, match="column 'd' is in the place of 'a'"):
        network.predict(lazy[list("dcba")])
    network.save(tmp_path / "model")
    with pytest.raises(ValueError, match="column 'd' is in the place of 'a'"):
        NRBFNClassifier.load(tmp_path / "model").predict(lazy[list("dcba")])


@pytest.fixture
def frame_with_nan(table):
    """Give a pandas frame whose row 217 has one, its row numbers beginning anew after 150."""
    frame = pd.DataFrame(table[0].copy(), columns=list("abcd"), index=np.arange(300) % 150)
    frame.iloc[217, 1] = np.nan
    return frame


def test_classifier__nan_in_a_later_lazy_block(expected, frame_with_nan):
    predict, X = expected.predict, da.from_array(frame_with_nan.to_numpy(), chunks=(70, 3))
    with pytest.raises(NRBFNError, match="nan in row 217, column 1"):
        predict(X).compute(scheduler="sync")
    with pytest.raises(NRBFNError, match="nan in row 17, column 1"):
        predict(X[200:])[2:50].compute(scheduler="sync")
    lazy = dd.from_pandas(frame_with_nan, npartitions=3, sort=False)
    with pytest.raises(NRBFNError, match="nan in row 17 of block 2, column 1"):
        predict(lazy).compute(scheduler="sync")
    with pytest.raises(NRBFNError, match="nan in row 217, column 1"):
        predict(lazy.to_dask_array(lengths=True)).compute(scheduler="sync")


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.zeros((6, 4), dtype=object), "X holds Python objects"),
        (np.full((6, 4), "1"), "X has dtype <U1"),
        (np.zeros(4), r"X has shape \(4,\)"),
        (np.zeros((6, 4, 1)), r"X has shape \(6, 4, 1\)"),
    ],
)
def test_classifier__lazy_rows_that_are_no_table_of_numbers(expected, X, message):
    with pytest.raises(NRBFNError, match=message):
        expected.predict(da.from_array(X, chunks=-1))


def test_classifier__nan_in_a_later_lazy_block_at_fit(table, frame_with_nan):
    one_thread = dask.config.set(scheduler="sync")
    y, network = da.from_array(table[1], chunks=41), NRBFNClassifier()
    frame = dd.from_pandas(frame_with_nan, npartitions=3, sort=False)
    unknown = frame.to_dask_array()
    assert np.isnan(unknown.shape[0])
    known = da.from_array(frame_with_nan.to_numpy(), chunks=(70, 3))
    for X in (frame, unknown, known):
        with pytest.raises(NRBFNError, match="nan in row 217, column 1"), one_thread:
            network.fit(X, y)


def test_classifier__empty_blocks(table, expected):
    X = da.from_array(table[0], chunks=(100, 4))
    nothing = expected.predict(X[X[:, 0] > 100])
    assert nothing.compute().shape == (0,)
    assert expected.predict_proba(zarr.zeros(shape=(0, 4))).shape == (0, 3)


def test_class_weight__keys_are_labels_also_texts_that_look_like_numbers(table):
    X, y = table
    weights = np.array([1.0, 5.0, 1.0])
    expected = NRBFNClassifier(alpha=1e-6, basis=X[:9]).fit(X, y, weights[y]).predict_proba(X)
    for names in (["0", "1", "2"], ["07", "1.0", "nan"], [0.0, 1.0, 2.0]):
        given = {label: weights[k] for k, label in enumerate(names) if weights[k] != 1}
        network = NRBFNClassifier(alpha=1e-6, basis=X[:9], class_weight=given)
        np.testing.assert_array_equal(network.fit(X, np.array(names)[y]).predict_proba(X), expected)
    with pytest.raises(
        ParameterError, match="class_weight has 1, but the labels of y are '0', '1'"
    ):
        network.set_params(class_weight={1: 5.0}).fit(X, y.astype(str))


def test_classifier__huge_values(table):
    with pytest.raises(NRBFNError, match="column 0 are too large"):
        NRBFNClassifier().fit(table[0] * 1e160, table[1])


def test_classifier__rows_of_weight_zero_keep_their_numbers(table):
    X, y = table
    weights = np.ones(len(X))
    weights[:50] = 0
    network = NRBFNClassifier(n_neighbors=5, **PLAIN).fit(X, y, sample_weight=weights)
    np.testing.assert_array_equal(X[network.basis_indices_], network.basis_)
    assert np.isnan(network.confidence_[:50]).all()
    assert np.isfinite(network.confidence_[50:]).all()


def test_classifier_cv__leaves_a_classifier_of_the_chosen_parameters(tmp_path, table):
    tuned = clone(TUNED).fit(*table)
    assert not isinstance(tuned, NRBFNClassifier)
    assert not hasattr(tuned, "load")
    tuned.save(tmp_path / "model")
    loaded = NRBFNClassifier.load(tmp_path / "model")
    for name in ("alpha", "width_factor", "features", "kernel", "basis_rule"):
        assert getattr(loaded, name) == getattr(tuned, f"{name}_")
    np.testing.assert_array_equal(loaded.predict_proba(table[0]), tuned.predict_proba(table[0]))
    tried, last = tuned.cv_results_, max(tuned.cv_results_["round"])
    assert sorted(tried["rank_test_score"]) == [*range(1, 1 + len(tried["params"]))]
    best = np.argmin(tried["rank_test_score"])
    assert tried["mean_test_score"][best] == max(tried["mean_test_score"][tried["round"] == last])
    assert tried["param_features"][best] == tried["params"][best]["features"]
