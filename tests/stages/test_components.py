"""Networks in the span of the first eigenfunctions of their basis."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn.commands.describe import describe_tuning
from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.storage.model import Model
from tests.reference import reference_activations, reference_distances
from tests.stages.fits import (
    ENGINE,
    as_columns,
    fit_table,
    held_out_scores,
    naive_error,
    same_scores,
    write,
)
from tests.tables import spirals, surfaces

PARAMS = FitParams(
    kernel="gaussian",
    scale="none",
    basis="random",
    basis_size=40,
    features="normalized",
    width_factor=0.3,
    alpha=1e-3,
    components=9,
)
ALPHAS, SIZES = (1e-2, 1e-6), (3, 12, 30)
TUNING = TuneParams(effort="quick", folds=3, alphas=ALPHAS, components=SIZES, width_factors=(0.3,))


def naive_series(basis, width, size):
    """Return orthonormal columns with the span of the first eigenvectors of D^-1 K, (r, J)."""
    K = np.exp(-(reference_distances(basis, basis) ** 2) / (2 * width**2))
    values, vectors = np.linalg.eig(K / K.sum(axis=1, keepdims=True))
    return np.linalg.qr(vectors[:, np.argsort(-values.real)[:size]].real)[0]


def naive_weights(Phi, T, basis, width, size, alpha):
    Q = naive_series(basis, width, size)
    mu, below = alpha * np.sum(Phi**2), np.zeros((Q.shape[1], T.shape[1]))
    rows = np.vstack([Phi @ Q, np.sqrt(mu) * np.eye(Q.shape[1])])
    return (Q @ np.linalg.lstsq(rows, np.vstack([T, below]), rcond=None)[0]).T


def fit(X, targets, params=PARAMS, **options):
    return fit_table(X, targets, params, **options)


def tune(X, targets, params=PARAMS, tuning=TUNING):
    return fit_table(X, targets, params, tuning=tuning)


@pytest.mark.parametrize("table", [spirals, surfaces])
def test_fit__is_the_ridge_in_the_span_of_the_eigenfunctions(table):
    X, targets = table(200)
    run = fit(X, targets)
    model, basis, T = Model.load(run.location), run.read("basis/values"), as_columns(targets)
    T = T - (table is surfaces) * T.mean(axis=0)
    Phi = reference_activations(X, basis, model.width)
    weights = naive_weights(Phi, T, basis, model.width, 9, 1e-3)
    means = np.asarray(model.scores(X) - Phi @ weights.T).mean(axis=0)
    expected = Phi @ weights.T + means
    np.testing.assert_allclose(model.scores(X), expected, rtol=1e-6, atol=1e-7)
    residual, fitted = np.sum((T - Phi @ weights.T) ** 2), np.sum((Phi @ weights.T) ** 2)
    assert model.fitting_error == pytest.approx(residual / fitted + 1, rel=1e-7)
    risk = np.sum(weights**2) * np.sum(Phi**2) / fitted
    assert model.spectral_risk == pytest.approx(risk, rel=1e-5)


def test_fit__of_all_eigenfunctions_is_the_network():
    X, y = spirals(200)
    params = replace(PARAMS, alpha=0.0, width_factor=0.2)
    whole = Model.load(fit(X, y, replace(params, components=None)).location)
    same_scores(Model.load(fit(X, y, replace(params, components=40)).location), whole, X, 1e-8)


def test_fit__more_than_float64_knows_are_those_that_there_are(caplog):
    X, y = spirals(200)
    run = fit(X, y, replace(PARAMS, width_factor=9.0, components=40))
    record = run.stages["components"]
    assert 1 < record["n_components"] < 40
    assert record["least_eigenvalue"] > 1e-12
    assert "components: 40 are requested, but only" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "figure"), [(spirals, "error_rate"), (surfaces, "relative_error")]
)
def test_tune__chooses_the_number_of_the_least_error(table, figure):
    X, targets = table(150)
    run = tune(X, targets, replace(PARAMS, n_parts=2))
    path = describe_tuning(run)["path"]
    assert [(entry["alpha"], entry["components"]) for entry in path] == [
        (alpha, size) for alpha in ALPHAS for size in SIZES
    ]
    basis, width = run.read("basis/values"), run.stages["width"]["width"]
    Phi, T = reference_activations(X, basis, width), as_columns(targets)
    for entry in path:

        def network(out, kept, size=entry["components"], alpha=entry["alpha"]):
            mean = T[~out].mean(axis=0) * (table is surfaces)
            one = np.ones((np.sum(~out), 1))
            # What the trace of gram is, is that of the kept alone.
            weights = naive_weights(
                Phi[~out][:, kept], T[~out] - mean, basis[kept], width, size, alpha
            )
            own = Phi[out][:, kept]
            ones = {
                each: naive_weights(Phi[~out][:, kept], one, basis[kept], width, *each)[0]
                for each in product(SIZES, ALPHAS)
            }
            means = {each: np.mean(Phi[~out][:, kept] @ v) for each, v in ones.items()}
            share = own @ ones[size, alpha] * max(means.values()) / means[size, alpha]
            return own / share[:, None] @ weights.T + mean

        scores = held_out_scores(targets, run.read("basis/rows"), network)
        assert entry[figure] == pytest.approx(naive_error(scores, targets), rel=1e-5)
    best = min(path, key=lambda entry: (entry[figure], -entry["alpha"]))
    chosen = run.chosen_params
    assert (chosen.alpha, chosen.components) == (best["alpha"], best["components"])
    same_scores(Model.load(run.location), Model.load(fit(X, targets, chosen).location), X)
    assert best["attainable"]["least"] <= best["spectral_risk"]


def test_fit__of_numbers_has_normalized_features():
    X, Y = surfaces(60)
    run = fit_dataset(write(X, Y), MemoryStore(), FitParams(components=5), ENGINE)
    assert run.chosen_params.normalized
