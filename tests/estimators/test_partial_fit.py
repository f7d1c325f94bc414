"""Batches that join a network and leave it."""

import pickle

import dask.array as da
import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from dask_nrbfn import Dataset, NRBFNClassifier, NRBFNClassifierCV
from dask_nrbfn.errors import (
    AlreadyAddedError,
    DataError,
    ParameterError,
    RunMismatchError,
)
from tests.tables import spirals, write_table

X, Y = spirals(400)
OPTIONS = {"basis": "random", "basis_size": 30, "alpha": 1e-6, "width_factor": 0.4}


def batches(labels=Y, n_batches=4):
    return [(X[place::n_batches], labels[place::n_batches]) for place in range(n_batches)]


def network(**options):
    return NRBFNClassifier(**OPTIONS, **options)


def reference_weights(fitted, X, labels, weights=None):
    squared = ((X[:, None] - fitted.basis_) ** 2).sum(axis=2)
    Phi = np.exp(-squared / (2 * fitted.width_**2))
    Phi /= Phi.sum(axis=1, keepdims=True)
    F = (labels[:, None] == fitted.classes_).astype(float)
    weights = np.ones(len(X)) if weights is None else weights
    gram, cross = Phi.T @ (weights[:, None] * Phi), F.T @ (weights[:, None] * Phi)
    penalty = fitted.alpha * np.trace(gram) * np.eye(len(gram))
    return np.linalg.solve(gram + penalty, cross.T).T


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("labels", [Y, np.array(["x", "yy", "z"])[Y], Y + 0.0, Y - 5])
def test_partial_fit__batches_are_one_fit_on_the_first_basis(labels):
    fitted = network()
    for rows, own in batches(labels):
        assert fitted.partial_fit(rows, own, classes=np.unique(labels)) is fitted
    rows, own = (np.concatenate(parts) for parts in zip(*batches(labels), strict=True))
    np.testing.assert_allclose(
        fitted.weights_, reference_weights(fitted, rows, own), rtol=1e-6, atol=1e-8
    )
    assert fitted.classes_.dtype == labels.dtype
    assert fitted.score(rows, own) > 0.9


def test_forget__is_as_if_the_rows_had_never_been_there():
    fitted = network()
    (first, *others) = batches()
    fitted.partial_fit(*first)
    weights = fitted.weights_
    for batch in others:
        fitted.partial_fit(*batch)
    for batch in others:
        assert fitted.forget(*batch) is fitted
    np.testing.assert_allclose(fitted.weights_, weights, rtol=1e-5, atol=1e-7)


def test_partial_fit__weights():
    weights = np.random.default_rng(0).uniform(0, 2, len(X))
    weights[::7] = 0
    fitted = network(class_weight={0: 1.0, 1: 2.0, 2: 0.5})
    for place in range(2):
        fitted.partial_fit(X[place::2], Y[place::2], sample_weight=weights[place::2])
    total = weights * np.array([1.0, 2.0, 0.5])[Y]
    np.testing.assert_allclose(
        fitted.weights_, reference_weights(fitted, X, Y, total), rtol=1e-6, atol=1e-8
    )


def test_partial_fit__survives_pickling():
    first, second, *_ = batches()
    fitted = pickle.loads(pickle.dumps(network().partial_fit(*first))).partial_fit(*second)
    np.testing.assert_array_equal(
        fitted.weights_, network().partial_fit(*first).partial_fit(*second).weights_
    )


def test_partial_fit__in_memory_the_same_batch_counts_again():
    first, second, *_ = batches()
    fitted = network().fit(*first).partial_fit(*second).partial_fit(*second)
    rows, labels = (np.concatenate(parts) for parts in zip(first, second, strict=True))
    weights = np.repeat([1.0, 2.0], len(first[0]))
    np.testing.assert_allclose(
        fitted.weights_, reference_weights(fitted, rows, labels, weights), rtol=1e-6, atol=1e-8
    )
    fitted.forget(*second).forget(*second)
    with pytest.raises(DataError, match="has forgotten"):
        fitted.forget(*second)


def test_partial_fit__in_a_store_a_batch_is_added_once(tmp_path):
    first, second, *_ = batches()
    fitted = network(store=tmp_path).fit(*map(da.from_array, first))
    with pytest.raises(AlreadyAddedError):
        fitted.partial_fit(*first)
    fitted.partial_fit(*second)
    with pytest.raises(AlreadyAddedError):
        fitted.partial_fit(second[0][::-1], second[1][::-1])


@pytest.mark.slow
def test_partial_fit__networks_in_a_store_do_not_share_their_rows(tmp_path):
    first, second, third, _ = batches()
    fitted = network(store=tmp_path).fit(*map(da.from_array, first))
    early = pickle.loads(pickle.dumps(fitted))
    weights = fitted.weights_
    fitted.partial_fit(*second)
    again = network(store=tmp_path).fit(*map(da.from_array, first))
    np.testing.assert_array_equal(again.weights_, weights)
    for other in (again, early):
        other.partial_fit(*second)
        np.testing.assert_allclose(other.weights_, fitted.weights_, rtol=1e-8, atol=1e-10)
    copied = pickle.loads(pickle.dumps(fitted))
    fitted.partial_fit(*third)
    with pytest.raises(RunMismatchError, match="a copy of this network"):
        copied.partial_fit(*third)


def test_partial_fit__other_kinds_of_rows_do_not_follow_arrays(tmp_path):
    first, second, *_ = batches(Y + 1)
    fitted = network().partial_fit(*first)
    for batch in (tuple(map(da.from_array, second)), (write_table(tmp_path / "rows", *second),)):
        with pytest.raises(ParameterError, match="the first rows were in memory"):
            fitted.partial_fit(*batch)


def test_partial_fit__a_refused_fit_loses_nothing(tmp_path):
    first, second, *_ = batches()
    fitted = network().partial_fit(*first)
    with pytest.raises(ValueError, match="NaN"):
        fitted.fit(np.full((5, 4), np.nan), np.arange(5))
    fitted.partial_fit(*second)
    lazy = [da.from_array(part) for part in first]
    with pytest.raises(DataError, match="no row of the class 9"):
        network(store=tmp_path).partial_fit(*lazy, classes=[0, 1, 2, 9])
    refused = network()
    with pytest.raises(DataError):
        refused.partial_fit(*first, classes=[9])
    with pytest.raises(NotFittedError):
        refused.predict(X)


def test_partial_fit__what_it_refuses():
    first, second, *_ = batches()
    fitted = network().partial_fit(*first)
    with pytest.raises(DataError, match="label 3 is not a class"):
        fitted.partial_fit(second[0], second[1] + 1)
    with pytest.raises(ValueError, match="features"):
        fitted.partial_fit(second[0][:, :2], second[1])
    with pytest.raises(ParameterError, match="Pass a store"):
        network().partial_fit(da.from_array(X), da.from_array(Y))
    lazy = network().fit(*map(da.from_array, first))
    weights = lazy.weights_
    for update in (lazy.partial_fit, lazy.forget):
        with pytest.raises(ParameterError, match="sums over the rows were not kept"):
            update(*second)
    np.testing.assert_array_equal(lazy.weights_, weights)


def test_partial_fit__of_a_tuned_network():
    first, second, *_ = batches()
    fitted = NRBFNClassifierCV(
        effort="quick",
        basis="random",
        basis_size=20,
        folds=3,
        alphas=(1e-2, 1e-4),
        width_factors=(0.3,),
        features=("normalized",),
    )
    fitted.partial_fit(*first).partial_fit(*second)
    rows, labels = (np.concatenate(parts) for parts in zip(first, second, strict=True))
    fitted.alpha = fitted.alpha_
    np.testing.assert_allclose(
        fitted.weights_, reference_weights(fitted, rows, labels), rtol=1e-6, atol=1e-8
    )
    assert fitted.predict_proba(X).shape == (400, 3)


@pytest.mark.slow
def test_partial_fit__in_a_store(tmp_path):
    (first, second, third, fourth) = batches()
    fitted = network(store=tmp_path / "store").fit(*map(da.from_array, first))
    files = set((tmp_path / "store").iterdir())
    fitted.partial_fit(*second)
    fitted.partial_fit(*map(da.from_array, third))
    fitted.partial_fit(write_table(tmp_path / "fourth", *fourth))
    np.testing.assert_allclose(
        fitted.weights_,
        reference_weights(fitted, *(np.concatenate(p) for p in zip(*batches(), strict=True))),
        rtol=1e-6,
        atol=1e-8,
    )
    with pytest.raises(AlreadyAddedError):
        fitted.partial_fit(Dataset.open(tmp_path / "fourth"))
    fitted.forget(*fourth)
    (own,) = set((tmp_path / "store").iterdir()) - files
    assert own.name.startswith("updated-")


@pytest.mark.fast_cases(3)
@pytest.mark.parametrize("balanced", [None, "balanced"])
@pytest.mark.parametrize("names", [np.arange(3), np.array(["ant", "bee", "cow"])])
@pytest.mark.parametrize("basis", ["sknn", "random", "kmeans"])
def test_partial_fit__classes_that_the_first_batch_lacks(basis, names, balanced):
    labels, lacks = names[Y], Y != 1
    options = {"alpha": 1e-6, "basis": basis, "class_weight": balanced, "n_neighbors": 5}
    fitted = NRBFNClassifier(**options).partial_fit(X[lacks], labels[lacks], classes=names)
    assert fitted.classes_.tolist() == names.tolist()
    assert {*fitted.predict(X[lacks])} == {*labels[lacks]}
    shares = fitted.predict_proba(X)
    assert shares.shape == (len(X), 3)
    np.testing.assert_array_equal(shares[:, 1], 0)
    alone = NRBFNClassifier(**options).fit(X[lacks], labels[lacks])
    np.testing.assert_allclose(shares[:, [0, 2]], alone.predict_proba(X), atol=1e-9)
    fitted.partial_fit(X[~lacks], labels[~lacks])
    # A basis at the border of two classes says little of a third one.
    assert np.mean(fitted.predict(X) == labels) > (0.5 if basis == "sknn" else 0.7)
    if balanced is None:
        np.testing.assert_allclose(
            fitted.weights_, reference_weights(fitted, X, labels), rtol=1e-5, atol=1e-7
        )


def test_partial_fit__a_first_batch_of_one_class():
    one = Y == 2
    fitted = network().partial_fit(X[one], Y[one], classes=range(3))
    assert {*fitted.predict(X)} == {2}
    fitted.partial_fit(X[~one], Y[~one])
    assert fitted.predict_proba(X).shape == (len(X), 3)
    assert {*fitted.predict(X)} == {0, 1, 2}


def test_partial_fit__few_rows_and_many_classes():
    fitted = NRBFNClassifier(alpha=1e-3).partial_fit(X[:3], [0, 1, 0], classes=np.arange(10))
    assert fitted.predict_proba(X).shape == (len(X), 10)
