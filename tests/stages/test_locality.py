"""Locality of fits, of their tuning and of what becomes of them, against what is written out."""

import logging
from dataclasses import replace

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn.commands.describe import describe_tuning
from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.commands.update import merge_runs, update_run
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.ridge_path import Ridge
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages import locality
from dask_nrbfn.stages.locality import LOCALITY
from dask_nrbfn.storage.model import Model
from tests.neighbors.naive import naive_distances
from tests.sites import write_site
from tests.stages.fits import (
    ENGINE,
    as_columns,
    assert_refused,
    fit_table,
    held_out_scores,
    naive_error,
    overlapping,
    write,
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
    return locality.read_locality(run, 1.0).matrix


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


def naive_weights(Phi, T, alpha, strength, R, *, numbers=False, plain=True):
    """Return weights (r, q) and an intercept."""
    middle, mean = Phi.mean(axis=0) * (numbers and plain), T.mean(axis=0) * numbers
    gram, trace = (Phi - middle).T @ (Phi - middle), np.sum((Phi - middle) ** 2)
    ridge = alpha * trace * np.eye(len(R)) + strength * trace * len(R) / np.trace(R) * R
    W = np.linalg.solve(gram + ridge, (Phi - middle).T @ (T - mean))
    return W, mean - middle @ W


@pytest.mark.parametrize(
    "change",
    [
        {"features": "normalized", "scale": "standard"},
        {"basis": "sknn", "n_partitions": 3, "overlap": 2, "neighbors": "exact"},
    ],
)
def test_fit__sums_rows_and_neighbours(change, monkeypatch):
    """In several parts, each of several blocks."""
    monkeypatch.setattr(locality, "_PART_ROWS", 50)
    monkeypatch.setattr(locality, "_block_rows", lambda n_basis, k: 7)
    X, y = table()
    run = fit(X, y, replace(PARAMS, **change))
    assert_same(R_of(run), naive_R(run, X, y))
    record = LOCALITY.recorded(run)
    assert record.n_drawn == 120
    assert 0 < record.n_bound < 120
    assert record.n_bound <= record.n_pairs < 6 * 120
    assert run.group("locality").get("parts") is None
    assert not [name for name in run.group("/") if name.startswith("locality-")]


def test_fit__of_numbers_takes_the_nearest_rows():
    X, Y = surfaces(90)
    run = fit(X, Y, replace(PARAMS, width_factor=1.0))
    assert_same(R_of(run), naive_R(run, X, Y))
    assert LOCALITY.recorded(run).n_pairs == 6 * 90


@pytest.mark.slow
def test_fit__draws_rows_by_seed(monkeypatch):
    monkeypatch.setattr(locality, "_ROWS_OF_BASIS_ROW", 2)
    X, y = table()
    run, other = (fit(X, y, replace(PARAMS, random_state=seed)) for seed in (0, 1))
    rows = run.read("locality/rows")
    assert len(np.unique(rows)) == LOCALITY.recorded(run).n_drawn == 32
    assert not np.array_equal(rows, other.read("locality/rows"))
    assert_same(R_of(run), naive_R(run, X, y, rows))
    monkeypatch.setattr(locality, "MAX_TARGETS", 20)
    assert LOCALITY.recorded(fit(X, y)).n_drawn == 20


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("features", ["plain", "normalized"])
def test_fit__is_the_ridge_with_locality(features):
    for X, targets in (table(), surfaces(120)):
        run = fit(X, targets, replace(PARAMS, features=features))
        model, numbers = Model.load(run.location), np.ndim(targets) == 2
        Phi, T = model.features.activations(X), targets if numbers else np.eye(3)[targets]
        R = naive_R(run, X, targets)
        kind = {"numbers": numbers, "plain": features == "plain"}
        W, intercept = naive_weights(Phi, T, 1e-4, 1e-2, R, **kind)
        assert_same(model.scores(X), Phi @ W + intercept, rtol=1e-8)


def test_fit__pruned_is_the_ridge_of_the_chosen():
    X, y = table()
    run = fit(X, y, replace(PARAMS, prune=7))
    model, places = Model.load(run.location), np.sort(run.read("prune/places"))
    Phi, R = model.features.activations(X), naive_R(run, X, y)[np.ix_(places, places)]
    W, _ = naive_weights(Phi, np.eye(3)[y], 1e-4, 1e-2, R)
    assert_same(model.weights, W.T, rtol=1e-8)


def test_fit__unbound_rows_change_nothing(caplog):
    """Every row repeats, once of each class."""
    X, y = np.repeat(table(60)[0], 3, axis=0), np.tile(np.arange(3), 60)
    with caplog.at_level(logging.WARNING, logger="dask_nrbfn"):
        run = fit(X, y)
    assert "0 of 160 drawn rows have neighbours of their own kind" in caplog.text
    expected = Model.load(fit(X, y, replace(PARAMS, locality=0.0)).location)
    np.testing.assert_array_equal(Model.load(run.location).weights, expected.weights)


def test_fit__refuses_too_few_rows():
    (X, y), message = table(20), "n_neighbors=20 needs at least 21 rows"
    without = replace(PARAMS, n_neighbors=20, locality=0.0)
    assert_refused(X, y, replace(PARAMS, n_neighbors=20), message)
    tuning = TuneParams(effort="quick", localities=(0.0, 1e-3), folds=2)
    assert_refused(X, y, without, message, tuning=tuning)
    fit(X, y, without)


@pytest.mark.parametrize("value", [-1e-3, 1.5, float("nan"), "much"])
def test_fit__refuses_what_is_no_locality(value):
    with pytest.raises(ParameterError, match="locality is "):
        FitParams(locality=value)
    with pytest.raises(ParameterError, match="localities is "):
        TuneParams(effort="quick", localities=(0.0, value))


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
            kept_R = R[np.ix_(kept, kept)]
            W, intercept = naive_weights(
                own[~out], T[~out], alpha, strength, kept_R, numbers=numbers
            )
            return own[out] @ W + intercept

        scores = held_out_scores(targets, run.read("basis/rows"), network)
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


def versions_of(X, y, run):
    """Return the latest model, and what it must be with the neighbours of the first 120 rows."""
    model = Model.load(run.location)
    Phi = model.features.activations(X)
    W, _ = naive_weights(Phi, np.eye(3)[y], 1e-4, 1e-2, R_of(run))
    return model.weights, W.T


def test_update__keeps_the_neighbours_of_the_fit(caplog):
    X, y = table(200)
    parts = [write(X[rows], y[rows]) for rows in (slice(120), slice(120, 200))]
    run = fit_dataset(parts[0], MemoryStore(), PARAMS, ENGINE)
    before, R = Model.load(run.location).weights, R_of(run)
    site = write_site(run, MemoryStore(), *parts)
    with caplog.at_level(logging.INFO, logger="dask_nrbfn"):
        update_run(run.location, parts[1], ENGINE)
    assert "add: locality uses the neighbours of the fit" in caplog.text
    np.testing.assert_array_equal(R_of(run), R)
    assert_same(*versions_of(X, y, run), rtol=1e-8)
    update_run(run.location, parts[1], ENGINE, forget=True)
    assert_same(Model.load(run.location).weights, before, rtol=1e-6)
    merge_runs(run.location, site.location, ENGINE)
    assert_same(*versions_of(X, y, run), rtol=1e-6)
