"""Estimators that are given rows without labels."""

import copy

import numpy as np
import pytest
from sklearn.base import clone

from dask_nrbfn import NRBFNClassifier, NRBFNRegressor, NRBFNRegressorCV
from dask_nrbfn.errors import DataError
from tests.tables import spirals, surfaces

X, Y = spirals(120)
LABELLED = np.arange(120) % 2 == 0
NAMES = np.array(["ant", "bee", "cow"])


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(("labels", "mark"), [(NAMES[Y], "?"), (Y, -1), (Y.astype(float), -1)])
def test_classifier__label_that_means_none(labels, mark):
    y = np.where(LABELLED, labels, mark)
    network = NRBFNClassifier(basis="random", basis_size=20, alpha=1e-8, unlabelled=mark)
    network.fit(X, y)
    assert network.classes_.tolist() == np.unique(labels).tolist()
    assert not LABELLED[network.basis_indices_].all()
    assert np.mean(network.predict(X) == labels) > 0.7
    few = NRBFNClassifier(basis=network.basis_, alpha=1e-8).fit(X[LABELLED], labels[LABELLED])
    assert network.width_ != few.width_
    with pytest.raises(DataError, match="1 class only"):
        clone(network).fit(X, np.where(Y == 0, labels, mark))


def test_classifier__confidence_of_rows_with_labels():
    y, weights = np.where(LABELLED, Y, -1), np.ones(120)
    weights[4:10] = 0
    plain = {"kernel": "gaussian", "scale": "none", "n_neighbors": 5}
    network = NRBFNClassifier(**plain, unlabelled=-1).fit(X, y, sample_weight=weights)
    known = LABELLED & (weights > 0)
    np.testing.assert_array_equal(np.isnan(network.confidence_), ~known)
    few = NRBFNClassifier(**plain).fit(X[known], Y[known])
    np.testing.assert_array_equal(network.confidence_[known], few.confidence_)
    assert known[network.basis_indices_].all()
    np.testing.assert_array_equal(network.basis_, X[network.basis_indices_])


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("tuned", [False, True])
def test_regressor__nan_is_none(tuned):
    rows, numbers = surfaces(150)
    labelled = np.arange(150) % 3 > 0
    marked = np.where(labelled[:, None], numbers, np.nan)
    kind = NRBFNRegressorCV if tuned else NRBFNRegressor
    options = {"alphas": (1e-6, 1e-3), "folds": 3} if tuned else {"alpha": 1e-6}
    network = kind(basis_size=30, unlabelled=np.nan, **options).fit(rows, marked)
    few = kind(basis_size=30, **options).fit(rows[labelled], numbers[labelled])
    assert network.score(rows[~labelled], numbers[~labelled]) > 0.5
    assert network.score(rows, numbers) == pytest.approx(few.score(rows, numbers), abs=0.1)
    if not tuned:
        network.partial_fit(rows, np.where(labelled[:, None], numbers, np.nan))
    with pytest.raises(ValueError, match="NaN"):
        clone(network).set_params(unlabelled=None).fit(rows, marked)


def test_classifier__later_batches_count_with_their_labels():
    y = np.where(LABELLED, Y, -1)
    network = NRBFNClassifier(basis="random", basis_size=20, alpha=1e-6, unlabelled=-1)
    few = copy.deepcopy(network.partial_fit(X[:80], y[:80]))
    network.partial_fit(X[80:], y[80:])
    few.partial_fit(X[80:][LABELLED[80:]], Y[80:][LABELLED[80:]])
    np.testing.assert_array_equal(network.weights_, few.weights_)
    with pytest.raises(DataError, match="no row has a label"):
        network.partial_fit(X[1:3], [-1, -1])
