"""Weights of rows and classes: as if the rows were there so many times."""

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages.basis import given_basis
from dask_nrbfn.storage.model import Model
from tests.reference import reference_activations, reference_distances, reference_ridge
from tests.tables import spirals, write_table

# A penalty at which the weights do not amplify rounding.
GAUSSIAN = {"kernel": "gaussian", "scale": "none"}
RANDOM = FitParams(basis="random", basis_size=25, alpha=1e-3, **GAUSSIAN)


def fit(X, y, params, *, basis=None, **options):
    """Return the model of a fit in memory."""
    dataset = write_table(MemoryStore(), X, y, **options)
    run = fit_dataset(dataset, MemoryStore(), params, InlineEngine(), basis=basis)
    return Model.load(run.location)


def given_rows(X, **values):
    """Return parameters for a basis beside every ninth row, and that basis.

    Not the rows themselves: a distance of 0 is the root of what rounding left.
    """
    basis = X[::9] + 0.05
    return given_basis(FitParams(alpha=1e-3, **GAUSSIAN, **values), basis), basis


def counts_of(n_rows, seed=0):
    return np.random.default_rng(seed).integers(1, 5, n_rows)


def test_weights__equal_repeated_rows():
    X, y = spirals(200)
    repeats = counts_of(200)
    weighted = fit(X, y, RANDOM, weights=repeats.astype(float), chunk_rows=33)
    repeated = fit(np.repeat(X, repeats, axis=0), np.repeat(y, repeats), RANDOM)
    order = [np.lexsort(model.basis.T) for model in (weighted, repeated)]
    np.testing.assert_array_equal(weighted.basis[order[0]], repeated.basis[order[1]])
    assert weighted.width == pytest.approx(repeated.width, rel=1e-10)
    np.testing.assert_allclose(
        weighted.weights[:, order[0]], repeated.weights[:, order[1]], rtol=1e-10, atol=1e-10
    )
    assert weighted.fitting_error == pytest.approx(repeated.fitting_error, rel=1e-9)
    alike = fit(X, y, RANDOM)
    assert not np.allclose(alike.weights, weighted.weights, rtol=1e-3)


def test_weights__naive():
    X, y = spirals(80)
    weights = np.random.default_rng(1).uniform(0.1, 5.0, 80)
    params, basis = given_rows(X, class_weight="balanced", width_factor=0.4)
    model = fit(X, y, params, basis=basis, weights=weights, chunk_rows=19)
    own = weights * len(y) / (3 * np.bincount(y)[y])
    width = 0.4 * (own @ reference_distances(X, basis).mean(axis=1)) / own.sum()
    Phi, F = reference_activations(X, basis, width), np.eye(3)[y]
    expected, _ = reference_ridge(Phi, F, 1e-3, weights=own)
    assert model.width == pytest.approx(width, rel=1e-11)
    np.testing.assert_allclose(model.weights, expected.T, rtol=1e-8)


@pytest.mark.slow
def test_weights__held_out_errors_count_them():
    """Rows of hardly any weight, of which every label is wrong, make hardly any error."""
    X, y = spirals(200)
    weights, wrong = np.ones(200), np.arange(200) % 10 == 0
    weights[wrong] = 1e-6
    y = np.where(wrong, (y + 1) % 3, y)
    tuning = TuneParams(
        effort="quick", folds=2, alphas=(1e-3,), width_factors=(0.3,), features=("normalized",)
    )
    params = FitParams(basis="random", basis_size=60)

    def error_rate(**options):
        dataset = write_table(MemoryStore(), X, y, **options)
        run = fit_dataset(dataset, MemoryStore(), params, InlineEngine(), tuning=tuning)
        return run.stages["validation"]["error_rate"]

    light = error_rate(weights=weights)
    alike = error_rate()
    assert light < alike - 0.05
