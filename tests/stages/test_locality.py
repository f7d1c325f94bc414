"""Locality of fits, of their tuning and of what becomes of them, against what is written out."""

from dataclasses import replace

import numpy as np
import pytest

from dask_nrbfn.commands.describe import describe_tuning
from dask_nrbfn.numeric.penalties import Ridge
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages import moments
from dask_nrbfn.stages.moments import LOCALITY
from dask_nrbfn.storage.model import Model
from tests.neighbors.naive import naive_distances
from tests.reference import reference_ridge
from tests.stages.fits import (
    as_columns,
    assert_refused,
    fit_table,
    held_out_scores,
    naive_error,
    overlapping,
)
from tests.tables import surfaces

PARAMS = FitParams(
    basis="random", basis_size=16, features="plain", width_factor=0.3, alpha=1e-4,
    locality=1e-2, n_neighbors=6, n_parts=2,
)  # fmt: skip


def table(n_rows=120, seed=0):
    return overlapping(n_rows, 0.3, seed)


def fit(X, targets, params=PARAMS, **options):
    return fit_table(X, targets, params, **options)


def R_of(run):
    return moments.ridge_terms(run).locality()


def naive_R(run, X, targets, rows=None):
    """Return R of some rows, or all, and their neighbours among all rows."""
    model, k = Model.load(run.location), run.chosen_params.n_neighbors
    scaled = X if model.scaling is None else model.scaling.apply(X)
    basis = model.scaling.apply(run.read("basis/values"))
    Phi = replace(model, basis=basis, weights=np.zeros((1, len(basis)))).features.activations(X)
    distances, scale = naive_distances(scaled), run.stages["width"]["mean_distance"]
    R = np.zeros((Phi.shape[1],) * 2)
    for b in range(len(X)) if rows is None else rows:
        near = np.argsort(distances[b], kind="stable")[:k]
        if np.asarray(targets).dtype.kind in "iu":
            others = distances[b, near[targets[near] != targets[b]]]
            near = near[distances[b, near] < others.min(initial=np.inf)]
        S = np.exp(-((distances[b, near] / scale) ** 2))
        for j, P in zip(near, S / S.sum(), strict=True):
            R += P * np.outer(Phi[j] - Phi[b], Phi[j] - Phi[b])
    return R


def assert_same(found, expected, rtol=1e-11):
    np.testing.assert_allclose(found, expected, atol=rtol * np.abs(expected).max())


def around(Phi, T, numbers, plain):
    """Return what the activations and targets of a ridge are centred about."""
    middle = {"middle": Phi.mean(axis=0)} if numbers and plain else {}
    return middle | ({"mean": T.mean(axis=0)} if numbers else {})


@pytest.mark.parametrize(
    "change",
    [
        {"features": "normalized", "scale": "standard"},
        {"basis": "sknn", "n_partitions": 3, "overlap": 2, "neighbors": "exact"},
    ],
)
def test_fit__sums_rows_and_neighbours(change, monkeypatch):
    """In several parts, each of several blocks."""
    monkeypatch.setattr(moments, "_PART_ROWS", 50)
    monkeypatch.setattr(moments, "_block_rows", lambda n_basis, k: 7)
    X, y = table()
    run = fit(X, y, replace(PARAMS, **change))
    assert_same(R_of(run), naive_R(run, X, y))
    record = LOCALITY.recorded(run)
    assert record.n_drawn == 120
    assert 0 < record.n_bound < 120
    assert record.n_bound <= record.n_pairs < 6 * 120
    assert run.group("locality").get("parts") is None
    assert not [name for name in run.group("/") if name.startswith("locality-")]


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("features", ["plain", "normalized"])
def test_fit__is_the_ridge_with_locality(features):
    for X, targets in (table(), surfaces(120)):
        run = fit(X, targets, replace(PARAMS, features=features))
        model, numbers = Model.load(run.location), np.ndim(targets) == 2
        Phi, T = model.features.activations(X), targets if numbers else np.eye(3)[targets]
        R = naive_R(run, X, targets)
        W, intercept = reference_ridge(
            Phi, T, 1e-4, locality=(1e-2, R), **around(Phi, T, numbers, features == "plain")
        )
        assert_same(model.scores(X), Phi @ W + intercept, rtol=1e-8)


def test_fit__pruned_is_the_ridge_of_the_chosen():
    X, y = table()
    run = fit(X, y, replace(PARAMS, prune=7))
    model, places = Model.load(run.location), np.sort(run.read("prune/places"))
    Phi, R = model.features.activations(X), naive_R(run, X, y)[np.ix_(places, places)]
    W, _ = reference_ridge(Phi, np.eye(3)[y], 1e-4, locality=(1e-2, R))
    assert_same(model.weights, W.T, rtol=1e-8)


def test_fit__refuses_too_few_rows():
    (X, y), message = table(20), "n_neighbors=20 needs at least 21 rows"
    without = replace(PARAMS, n_neighbors=20, locality=0.0)
    assert_refused(X, y, replace(PARAMS, n_neighbors=20), message)
    tuning = TuneParams(effort="quick", localities=(0.0, 1e-3), folds=2)
    assert_refused(X, y, without, message, tuning=tuning)
    fit(X, y, without)


LOCALITIES, ALPHAS = (0.0, 1e-3, 0.3), (1e-1, 1e-4)
TUNING = TuneParams(
    effort="quick",
    folds=3,
    alphas=ALPHAS,
    localities=LOCALITIES,
    width_factors=(0.3,),
    features=("plain",),
)


def tune(X, targets, params=PARAMS, tuning=TUNING):
    return fit_table(X, targets, params, tuning=tuning)


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("rows", [table, surfaces])
def test_tune__chooses_the_locality_of_the_least_error(rows):
    X, targets = rows(120)
    run = tune(X, targets)
    path, model = describe_tuning(run)["path"], Model.load(run.location)
    assert [Ridge.of(entry) for entry in path] == [
        Ridge("weights", alpha, value) for value in LOCALITIES for alpha in ALPHAS
    ]
    numbers = np.ndim(targets) == 2
    Phi, T = model.features.activations(X), as_columns(targets)
    R, errors = R_of(run), []
    for entry in path:

        def network(out, kept, alpha=entry["alpha"], strength=entry["locality"]):
            own = Phi[:, kept]
            locality = strength, R[np.ix_(kept, kept)]
            seen = own[~out], T[~out]
            W, intercept = reference_ridge(
                *seen, alpha, locality=locality, **around(*seen, numbers, plain=True)
            )
            return own[out] @ W + intercept

        scores = held_out_scores(targets, run.read("basis/rows"), network)
        if numbers:
            # As predictions are.
            scores = np.clip(scores, T.min(axis=0), T.max(axis=0))
        errors.append(naive_error(scores, targets))
        found = entry["relative_error" if numbers else "error_rate"]
        assert found == pytest.approx(errors[-1], rel=1e-7, abs=1e-12)
    best = min(range(len(path)), key=lambda place: (errors[place], -path[place]["alpha"]))
    assert run.stages["validation"]["chosen"] == Ridge.of(path[best])._asdict()
    assert model.params.locality == run.chosen_params.locality == path[best]["locality"]
    alone = fit(X, targets, run.chosen_params)
    assert_same(model.weights, Model.load(alone.location).weights, rtol=1e-8)
    for name in ("fitting_error", "spectral_risk", "objective"):
        assert path[best][name] == pytest.approx(alone.stages["weights"][name], rel=1e-8)
