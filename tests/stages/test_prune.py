"""Networks that keep some of their basis rows."""

from dataclasses import replace

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.commands.update import update_run
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.numeric.forward import forward_selection
from dask_nrbfn.params import FitParams
from dask_nrbfn.stages.moments import read_features, read_moments, read_system
from dask_nrbfn.stages.weights import PRUNE
from dask_nrbfn.storage.model import Model
from tests.numeric.test_forward import system_of
from tests.reference import reference_ridge
from tests.stages.fits import fit_table, same_scores
from tests.tables import spirals, surfaces, write_table

PARAMS = FitParams(
    scale="none", basis="random", basis_size=40, features="plain", width_factor=0.3, alpha=1e-4,
    prune=12,
)  # fmt: skip
ENGINE = InlineEngine()


def fit(X, y, params=PARAMS):
    return fit_table(X, y, params)


@pytest.mark.parametrize("penalty", ["weights", "kernel"])
def test_fit__is_the_ridge_of_the_chosen(penalty):
    X, y = spirals(300)
    run = fit(X, y, replace(PARAMS, penalty=penalty))
    model, features = Model.load(run.location), read_features(run)
    path = forward_selection(read_system(run, read_moments(run)), size=12, alpha=1e-4)
    places = np.sort(path.chosen)
    assert model.places.tolist() == places.tolist()
    np.testing.assert_array_equal(model.basis, run.read("basis/values")[places])
    Phi = features.activations(X)[:, places]
    P = np.eye(12) if penalty == "weights" else features.activations(model.basis)[:, places]
    expected, _ = reference_ridge(Phi, np.eye(3)[y], 1e-4, P=P)
    np.testing.assert_allclose(model.weights, expected.T, rtol=1e-6)
    record = PRUNE.recorded(run)
    assert (record.n_kept, record.unexplained) == (12, path.unexplained[-1])


def test_fit__of_as_many_as_there_are_is_the_whole_network():
    X, y = spirals(300)
    whole = Model.load(fit(X, y, replace(PARAMS, prune=None)).location)
    same_scores(Model.load(fit(X, y, replace(PARAMS, prune=40)).location), whole, X)


def test_fit__more_than_the_distinct_rows():
    X, y = spirals(30)
    X, y = np.repeat(X, 4, axis=0), np.repeat(y, 4)
    run = fit(X, y, replace(PARAMS, basis_size=None, prune=50))
    assert PRUNE.recorded(run).n_kept == 30


def test_fit__of_numbers_in_any_units():
    X, Y = surfaces(300)
    Y *= [1e6, 1.0]
    dataset = write_table(MemoryStore(), X, target=Y)
    run = fit_dataset(dataset, MemoryStore(), replace(PARAMS, width_factor=0.6), ENGINE)
    model = Model.load(run.location)
    Phi = read_features(run).activations(X)
    centred, standardized = Phi - Phi.mean(axis=0), (Y - Y.mean(axis=0)) / Y.std(axis=0)
    system = system_of(centred, standardized / np.sqrt(300))
    places = np.sort(forward_selection(system, size=12, alpha=1e-4).chosen)
    assert model.places.tolist() == places.tolist()
    centred, means = centred[:, places], Y.mean(axis=0)
    weights, _ = reference_ridge(centred, Y - means, 1e-4)
    np.testing.assert_allclose(model.scores(X), centred @ weights + means, rtol=1e-6)


def test_update_and_forget__choose_anew_among_all():
    X, y = spirals(400)
    slices = [slice(0, 200), slice(200, 300), slice(300, 400)]
    first, second, third = (write_table(MemoryStore(), X[rows], y[rows]) for rows in slices)
    run = fit_dataset(first, MemoryStore(), PARAMS, ENGINE)
    before = Model.load(run.location)
    update_run(run.location, second, ENGINE)
    update_run(run.location, third, ENGINE)
    update_run(run.location, third, ENGINE, forget=True)
    after = Model.load(run.location)
    assert before.places.tolist() != after.places.tolist()
    features = read_features(run)
    Phi, T = features.activations(X[:300]), np.eye(3)[y[:300]]
    places = np.sort(forward_selection(system_of(Phi, T), size=12, alpha=1e-4).chosen)
    assert after.places.tolist() == places.tolist()
    expected, _ = reference_ridge(Phi[:, places], T, 1e-4)
    np.testing.assert_allclose(after.weights, expected.T, rtol=1e-6)
