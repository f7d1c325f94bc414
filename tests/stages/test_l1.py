"""Fits with the kernel of l1 distances, against what is written out."""

from dataclasses import replace

import numpy as np
import pytest

from dask_nrbfn.numeric.gradients import LEAST_WEIGHT
from dask_nrbfn.params import FitParams
from dask_nrbfn.stages import columns
from dask_nrbfn.stages.columns import METRIC
from dask_nrbfn.storage.model import Model
from tests.reference import reference_l1_distances, reference_ridge
from tests.stages.fits import fit_table
from tests.tables import spirals

PARAMS = FitParams(
    kernel="laplace-l1", scale="none", basis="random", basis_size=30, features="plain",
    alpha=1e-6, n_parts=2,
)  # fmt: skip


def fit(X, y, params=PARAMS, **options):
    return fit_table(X, y, params, **options)


def kernel_of(X, model):
    return np.exp(-reference_l1_distances(X, model.basis) / model.width)


@pytest.mark.parametrize("penalty", ["weights", "kernel"])
def test_fit__is_the_ridge_that_is_written_out(penalty):
    X, y = spirals(150)
    weights = np.random.default_rng(0).uniform(0.5, 2, 150)
    params = replace(PARAMS, penalty=penalty, width_factor=0.5)
    model = Model.load(fit(X, y, params, weights=weights).location)
    distances = reference_l1_distances(X, model.basis)
    width = 0.5 * weights @ distances.sum(axis=1) / (weights.sum() * 30)
    assert model.width == pytest.approx(width, rel=1e-12)
    Phi, T = kernel_of(X, model), np.eye(3)[y]
    P = None if penalty == "weights" else kernel_of(model.basis, model)
    expected, _ = reference_ridge(Phi, T, 1e-6, P=P, weights=weights)
    np.testing.assert_allclose(model.weights, expected.T, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(model.scores(X), Phi @ model.weights.T, rtol=1e-9, atol=1e-11)
    assert (model.scores(X).argmax(axis=1) == y).mean() > 0.9


def steps(n_rows, p, seed=0):
    """Return rows and classes that thresholds of three columns decide; the others are noise."""
    X = np.random.default_rng(seed).normal(size=(n_rows, p))
    return X, (np.sign(X[:, :3]).sum(axis=1) > 0).astype(int)


def test_metric__learns_columns_with_it(monkeypatch):
    monkeypatch.setattr(columns, "_FACTORS", {"laplace-l1": (0.4, 0.8)})
    X, y = steps(500, 9)
    params = replace(PARAMS, scale="learned", metric_rounds=2)
    run = fit(X, y, params)
    weights = Model.load(run.location).scaling.feature_weights
    assert {each["kernel"] for each in METRIC.recorded(run).rounds} == {"laplace-l1"}
    assert weights[:3].min() > 3 * weights[3:].max()
    assert weights.mean() == pytest.approx(1.0 + LEAST_WEIGHT)
