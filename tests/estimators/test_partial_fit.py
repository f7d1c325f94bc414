"""Batches that join a network and leave it."""

import pickle
from functools import cache

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

X, Y = spirals(300)
FIRST, SECOND, THIRD = [(X[place::3], Y[place::3]) for place in range(3)]
PLAIN = {"kernel": "gaussian", "scale": "none"}
OPTIONS = PLAIN | {"basis": "random", "basis_size": 30, "alpha": 1e-6, "width_factor": 0.4}


def network(**options):
    return NRBFNClassifier(**OPTIONS, **options)


@cache
def begun():
    return pickle.dumps(network().partial_fit(*FIRST))


def network_of_first():
    return pickle.loads(begun())


def assert_weights(fitted, X, labels, weights=1.0):
    """Compare with the weights of one fit of all rows on the basis."""
    squared = ((X[:, None] - fitted.basis_) ** 2).sum(axis=2)
    Phi = np.exp(-squared / (2 * fitted.width_**2))
    Phi /= Phi.sum(axis=1, keepdims=True)
    F = (labels[:, None] == fitted.classes_).astype(float)
    weighted = np.broadcast_to(weights, len(X))[:, None] * Phi
    gram, cross = Phi.T @ weighted, F.T @ weighted
    penalty = fitted.alpha * np.trace(gram) * np.eye(len(gram))
    expected = np.linalg.solve(gram + penalty, cross.T).T
    np.testing.assert_allclose(fitted.weights_, expected, rtol=1e-5, atol=1e-7)


def joined(*batches):
    return (np.concatenate(parts) for parts in zip(*batches, strict=True))


def test_partial_fit__batches_are_one_fit_on_the_first_basis_and_leave_it():
    fitted = network_of_first()
    weights = fitted.weights_
    for batch in (SECOND, THIRD):
        assert fitted.partial_fit(*batch, classes=[0, 1, 2]) is fitted
    assert_weights(fitted, X, Y)
    assert fitted.score(X, Y) > 0.9
    for batch in (SECOND, THIRD):
        assert fitted.forget(*batch) is fitted
    np.testing.assert_allclose(fitted.weights_, weights, rtol=1e-5, atol=1e-7)


def test_partial_fit__weights():
    weights = np.random.default_rng(0).uniform(0, 2, len(X))
    weights[::7] = 0
    fitted = network(class_weight={0: 1.0, 1: 2.0, 2: 0.5})
    for place in range(2):
        fitted.partial_fit(X[place::2], Y[place::2], sample_weight=weights[place::2])
    assert_weights(fitted, X, Y, weights * np.array([1.0, 2.0, 0.5])[Y])


def test_partial_fit__in_memory_the_same_batch_counts_again():
    fitted = network().fit(*FIRST).partial_fit(*SECOND).partial_fit(*SECOND)
    assert_weights(fitted, *joined(FIRST, SECOND), np.repeat([1.0, 2.0], len(FIRST[0])))
    fitted.forget(*SECOND).forget(*SECOND)
    with pytest.raises(DataError, match="has forgotten"):
        fitted.forget(*SECOND)


def test_partial_fit__in_a_store(tmp_path):
    fitted = network(store=tmp_path / "store").fit(*map(da.from_array, FIRST))
    files = set((tmp_path / "store").iterdir())
    fitted.partial_fit(*map(da.from_array, SECOND))
    fitted.partial_fit(write_table(tmp_path / "third", *THIRD))
    assert_weights(fitted, X, Y)
    for again in ((Dataset.open(tmp_path / "third"),), (SECOND[0][::-1], SECOND[1][::-1])):
        with pytest.raises(AlreadyAddedError):
            fitted.partial_fit(*again)
    fitted.forget(*THIRD)
    (own,) = set((tmp_path / "store").iterdir()) - files
    assert own.name.startswith("updated-")


@pytest.mark.slow
def test_partial_fit__networks_in_a_store_do_not_share_their_rows(tmp_path):
    fitted = network(store=tmp_path).fit(*map(da.from_array, FIRST))
    early = pickle.loads(pickle.dumps(fitted))
    weights = fitted.weights_
    fitted.partial_fit(*SECOND)
    again = network(store=tmp_path).fit(*map(da.from_array, FIRST))
    np.testing.assert_array_equal(again.weights_, weights)
    for other in (again, early):
        other.partial_fit(*SECOND)
        np.testing.assert_allclose(other.weights_, fitted.weights_, rtol=1e-8, atol=1e-10)
    copied = pickle.loads(pickle.dumps(fitted))
    fitted.partial_fit(*THIRD)
    with pytest.raises(RunMismatchError, match="a copy of this network"):
        copied.partial_fit(*THIRD)


def test_partial_fit__a_refused_fit_loses_nothing(tmp_path):
    fitted = network_of_first()
    with pytest.raises(ValueError, match="infinity"):
        fitted.fit(np.full((5, 4), np.inf), np.arange(5))
    fitted.partial_fit(*SECOND)
    assert_weights(fitted, *joined(FIRST, SECOND))
    lazy = [da.from_array(part) for part in FIRST]
    with pytest.raises(DataError, match="no row of the class 9"):
        network(store=tmp_path).partial_fit(*lazy, classes=[0, 1, 2, 9])
    refused = network()
    with pytest.raises(DataError):
        refused.partial_fit(*FIRST, classes=[9])
    with pytest.raises(NotFittedError):
        refused.predict(X)


def test_partial_fit__what_it_refuses(tmp_path):
    fitted, (rows, labels) = network_of_first(), SECOND
    with pytest.raises(DataError, match="label 3 is not a class"):
        fitted.partial_fit(rows, labels + 1)
    with pytest.raises(ValueError, match="features"):
        fitted.partial_fit(rows[:, :2], labels)
    for batch in (tuple(map(da.from_array, SECOND)), (write_table(tmp_path / "rows", *SECOND),)):
        with pytest.raises(ParameterError, match="the first rows were in memory"):
            fitted.partial_fit(*batch)
    with pytest.raises(ParameterError, match="Pass a store"):
        network().partial_fit(da.from_array(X), da.from_array(Y))
    lazy = network().fit(*map(da.from_array, FIRST))
    weights = lazy.weights_
    for update in (lazy.partial_fit, lazy.forget):
        with pytest.raises(ParameterError, match="sums over the rows were not kept"):
            update(*SECOND)
    np.testing.assert_array_equal(lazy.weights_, weights)


def test_partial_fit__of_a_tuned_network():
    tried = {"alphas": (1e-2, 1e-4), "width_factors": (0.3,), "features": ("normalized",)}
    drawn = {"basis": "random", "basis_size": 20}
    fitted = NRBFNClassifierCV(effort="quick", folds=2, **drawn, **tried)
    first = fitted.partial_fit(*FIRST).log_loss_
    fitted.partial_fit(*SECOND)
    assert fitted.n_judged_ == 200
    assert fitted.log_loss_ != first
    assert fitted.temperature_ == fitted._model.calibration.temperature
    fitted.alpha = fitted.alpha_
    assert_weights(fitted, *joined(FIRST, SECOND))
    assert fitted.predict_proba(X).shape == (len(X), 3)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize(
    ("basis", "balanced", "names"),
    [
        ("sknn", None, np.array(["ant", "bee", "cow"])),
        ("random", "balanced", np.arange(3)),
        ("kmeans", None, np.arange(3) - 5.0),
    ],
)
def test_partial_fit__classes_that_the_first_batch_lacks(basis, names, balanced):
    labels, lacks = names[Y], Y != 1
    options = {"alpha": 1e-6, "basis": basis, "class_weight": balanced, "n_neighbors": 5} | PLAIN
    fitted = NRBFNClassifier(**options).partial_fit(X[lacks], labels[lacks], classes=names)
    assert fitted.classes_.tolist() == names.tolist()
    assert fitted.classes_.dtype == names.dtype
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
        assert_weights(fitted, X, labels)


def test_partial_fit__a_first_batch_of_one_class():
    one = Y == 2
    fitted = network().partial_fit(X[one], Y[one], classes=range(3))
    assert {*fitted.predict(X)} == {2}
    fitted.partial_fit(X[~one], Y[~one])
    assert fitted.predict_proba(X).shape == (len(X), 3)
    assert {*fitted.predict(X)} == {0, 1, 2}
