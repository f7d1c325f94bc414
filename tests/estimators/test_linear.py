import pickle
import tracemalloc
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import GridSearchCV
from zarr.storage import MemoryStore

from dask_nrbfn import NRBFNClassifier, NRBFNError
from dask_nrbfn.errors import IllConditionedError, ParameterError
from dask_nrbfn.estimators import LinearRegressionClassifier
from tests.schemas import OTHER_FILLS, X, Y, write_rows
from tests.tables import spirals, write_table


@pytest.fixture(scope="module")
def table():
    return spirals(300)


def test_linear_classifier__attributes(table):
    X, y = table
    line = LinearRegressionClassifier(alpha=1e-6).fit(X, y)
    np.testing.assert_allclose(line.mean_, X.mean(axis=0), atol=1e-14)
    assert line.weights_.shape == (3, 5)
    assert line.fitting_error_ > 1
    assert line.spectral_risk_ > 1
    assert line.n_features_in_ == 4
    np.testing.assert_allclose(line.decision_function(X).sum(axis=1), 1, atol=1e-3)
    probabilities = line.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert np.all(probabilities >= 0)
    np.testing.assert_array_equal(line.classes_[probabilities.argmax(axis=1)], line.predict(X))


def test_linear_classifier__the_largest_probability_is_that_of_the_label(table):
    X, y = table
    line = LinearRegressionClassifier().fit(X, y)
    far = 1e3 * X
    scores = line.decision_function(far)
    assert (np.clip(scores, 0, 1).argmax(axis=1) != scores.argmax(axis=1)).any()
    probabilities = line.predict_proba(far)
    np.testing.assert_array_equal(line.classes_[probabilities.argmax(axis=1)], line.predict(far))


def test_linear_classifier__least_squares_of_the_indicators(table):
    X, y = table
    line = LinearRegressionClassifier(alpha=0.0).fit(X, y)
    A = np.column_stack([np.ones(len(X)), X])
    expected = A @ np.linalg.lstsq(A, np.eye(3)[y], rcond=None)[0]
    np.testing.assert_allclose(line.decision_function(X), expected, atol=1e-12)
    residual = np.sum((np.eye(3)[y] - expected) ** 2)
    assert line.fitting_error_ == pytest.approx(1 + residual / np.sum(expected**2), rel=1e-10)


def test_linear_classifier__two_classes_as_ridge_classifier():
    X, y = spirals(300, n_classes=2)
    alpha = 1e-3
    centred = X - X.mean(axis=0)
    penalty = alpha * (len(X) + np.sum(centred**2))
    line = LinearRegressionClassifier(alpha=alpha).fit(X, y)
    other = RidgeClassifier(alpha=penalty, fit_intercept=False)
    other.fit(np.column_stack([np.ones(len(X)), centred]), y)
    np.testing.assert_allclose(
        line.weights_[1] - line.weights_[0], np.ravel(other.coef_), rtol=1e-9
    )
    assert line.decision_function(X).shape == (300,)


def test_linear_classifier__far_offset_changes_nothing(table):
    X, y = np.rint(table[0] * 64), table[1]
    near = LinearRegressionClassifier().fit(X, y)
    far = LinearRegressionClassifier().fit(X + 2.0**40, y)
    np.testing.assert_array_equal(far.weights_, near.weights_)
    np.testing.assert_array_equal(far.decision_function(X + 2.0**40), near.decision_function(X))


def test_linear_classifier__fits_datasets(tmp_path, table):
    X, y = table
    names = np.array(["b", "a", "c"])[y]
    expected = LinearRegressionClassifier().fit(X, names)
    for location, rows in ((tmp_path / "data", 70), (MemoryStore(), 300)):
        dataset = write_table(location, X, names, chunk_rows=rows)
        line = LinearRegressionClassifier().fit(dataset)
        np.testing.assert_array_equal(line.weights_, expected.weights_)
        assert line.predict(dataset).tolist() == expected.predict(X).tolist()
        np.testing.assert_array_equal(line.decision_function(dataset), line.decision_function(X))


def test_linear_classifier__datasets_that_do_not_fit(tmp_path, table):
    X, y = table
    dataset = write_table(tmp_path / "data", X, y)
    with pytest.raises(ParameterError, match="given together with a Dataset"):
        LinearRegressionClassifier().fit(dataset, y)
    with pytest.raises(NRBFNError, match="has no labels"):
        LinearRegressionClassifier().fit(write_table(tmp_path / "bare", X))
    line = LinearRegressionClassifier().fit(dataset)
    with pytest.raises(NRBFNError, match="2 columns, but the model was trained on 4"):
        line.predict(write_table(tmp_path / "narrow", X[:, :2]))


def test_linear_classifier__names_of_columns(tmp_path, table):
    X, y = table
    frame = pd.DataFrame(X, columns=list("abcd"))
    line = LinearRegressionClassifier().fit(frame, y)
    assert line.feature_names_in_.tolist() == list("abcd")
    bare = write_table(tmp_path / "data", X, y)
    assert line.predict(bare).tolist() == line.predict(frame).tolist()
    line.fit(bare)
    assert not hasattr(line, "feature_names_in_")


def test_linear_classifier__blocks_of_rows_and_no_more():
    X = np.random.default_rng(0).normal(size=(40_000, 20)).astype(np.float32)
    y = np.arange(40_000) % 3
    dataset = write_table(MemoryStore(), X, y, chunk_rows=2000)
    tracemalloc.start()
    line = LinearRegressionClassifier().fit(dataset)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # All features would be 6.7 MB; a block of them is 0.3 MB.
    assert peak < 3e6
    np.testing.assert_allclose(line.mean_, X.mean(axis=0, dtype=np.float64), atol=1e-12)


def test_linear_classifier__labels_come_back_in_their_type(table):
    X, y = table
    for labels in (y == 0, y - 5, y.astype(np.float64), np.array(["a", "bb", "c"])[y]):
        assert LinearRegressionClassifier().fit(X, labels).predict(X).dtype == labels.dtype


def test_linear_classifier__in_searches_and_pickles():
    X, y = load_wine(return_X_y=True)
    search = GridSearchCV(LinearRegressionClassifier(), {"alpha": [1e-2, 1e-8]}).fit(X, y)
    assert search.best_params_ == {"alpha": 1e-8}
    assert search.best_score_ > 0.95
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    np.testing.assert_array_equal(again.predict(X), search.predict(X))


def test_linear_classifier__bad_alpha(table):
    line = LinearRegressionClassifier(alpha=-1.0)
    with pytest.raises(ParameterError, match=r"alpha is -1\.0"):
        clone(line).fit(*table)


def test_linear_classifier__repeated_column_needs_a_penalty(table):
    X, y = np.column_stack([table[0], table[0][:, 0]]), table[1]
    with pytest.raises(IllConditionedError, match=r"alpha=0 is too small: .*\. Use alpha="):
        LinearRegressionClassifier(alpha=0.0).fit(np.rint(X), y)
    line = LinearRegressionClassifier(alpha=1e-9).fit(X, y)
    np.testing.assert_allclose(line.weights_[:, 1], line.weights_[:, 5], rtol=1e-6)


def test_linear_classifier__huge_values(table):
    X, y = table
    with pytest.raises(NRBFNError, match="column 2 are too large"):
        LinearRegressionClassifier().fit(X * [1, 1, 1e200, 1], y)


def test_linear_classifier__weighted_dataset(tmp_path, table):
    dataset = write_table(tmp_path / "data", *table)
    weighted = replace(dataset, sample_weights=dataset.y)
    with pytest.raises(NRBFNError, match="has weights"):
        LinearRegressionClassifier().fit(weighted)


@pytest.mark.parametrize(
    "estimator",
    [LinearRegressionClassifier(alpha=1e-3), NRBFNClassifier(basis="random", basis_size=10)],
    ids=lambda estimator: type(estimator).__name__,
)
def test_scores__of_a_dataset_have_the_filling_of_the_training_rows(estimator):
    estimator = clone(estimator).fit(write_rows(MemoryStore()))
    same, other = (
        estimator.decision_function(write_rows(MemoryStore(), X[:20], Y[:20], **schema))
        for schema in ({}, {"schema": OTHER_FILLS})
    )
    np.testing.assert_array_equal(same, other)
