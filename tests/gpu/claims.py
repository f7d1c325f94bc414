"""Claims about a GPU and about its stand-in: results are those of the CPU up to rounding."""

from dataclasses import replace
from functools import partial

import dask.array as da
import numpy as np
import pytest
import zarr
from scipy.sparse import csr_array
from zarr.storage import MemoryStore

from dask_nrbfn import NRBFNClassifier, NRBFNClassifierCV, NRBFNRegressor
from dask_nrbfn.commands.evaluate import evaluate_dataset
from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.commands.predict import predict_dataset
from dask_nrbfn.commands.update import update_run
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.errors import IllConditionedError, MemoryBudgetError
from dask_nrbfn.neighbors.exact import nearest_rows
from dask_nrbfn.numeric import device
from dask_nrbfn.numeric.cell_solution import fit_cell
from dask_nrbfn.numeric.moments import Moments
from dask_nrbfn.numeric.penalties import Ridge
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.ridge import RidgeSystem
from dask_nrbfn.numeric.scaling import ColumnStatistics, Scaling
from dask_nrbfn.numeric.small_fit import (
    SmallNetwork,
    SmallTable,
    fit_folds,
    learned_root,
    network_moments,
)
from dask_nrbfn.numeric.targets import ClassTargets, NumberTargets
from dask_nrbfn.numeric.trials import try_networks
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.scorer import Scorer
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import Run
from tests.stages.stopping import CountingEngine, StoppedError
from tests.tables import copy_of, spirals, surfaces, write_table

DEFAULTS = FitParams(alpha=1e-4, n_neighbors=6, random_state=1)
PARAMS = replace(DEFAULTS, kernel="gaussian", scale="none")
CPU, GPU = InlineEngine(), InlineEngine(device="gpu")

RIDGES = tuple(Ridge("weights", alpha) for alpha in (1e-3, 1e-5))

FITS = {
    "defaults": DEFAULTS,
    "neighbours of all rows": PARAMS,
    "neighbours of candidates": replace(PARAMS, candidates=150),
    "in partitions": replace(PARAMS, n_partitions=3, neighbors="exact"),
    "plain": replace(PARAMS, basis="random", basis_size=40, features="plain"),
    "l1": replace(PARAMS, kernel="laplace-l1", basis="random", basis_size=40),
    "laplacian": replace(PARAMS, kernel="laplacian"),
    "matern": replace(PARAMS, kernel="matern52", scale="standard", n_parts=2),
    "ranks": replace(PARAMS, scale="rank", kernel="laplace-l1", basis="random", basis_size=40),
    "alpha by held-out rows": replace(PARAMS, alpha="auto", basis="random", basis_size=40),
    "components": replace(PARAMS, basis="random", basis_size=40, components=9),
    "locality": replace(PARAMS, basis="random", basis_size=40, locality=0.1),
    "prune": replace(PARAMS, basis="random", basis_size=40, features="plain", prune=20),
    "clusters": replace(
        PARAMS, scale="unit", basis="kmeans", basis_size=30, penalty="clusters", features="plain"
    ),
}

OF_SIZE = replace(PARAMS, basis="random", basis_size=40)
QUICK = TuneParams(effort="quick", folds=2, alphas=(1e-4, 1e-3), width_factors=(0.5,))

TUNINGS = {
    "search": (PARAMS, replace(QUICK, scales=("standard", "unit"), kernels=("gaussian",))),
    "kernel": (replace(OF_SIZE, features="plain", penalty="kernel"), QUICK),
    "locality": (OF_SIZE, replace(QUICK, localities=(0.0, 0.1))),
    "components": (OF_SIZE, replace(QUICK, components=(5, 9))),
}


def agrees(found, wanted, tolerance=1e-9):
    found, wanted = np.asarray(found), np.asarray(wanted)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())


def scores_agree(X, run, other, least=1e-9):
    """At distances near 0, rounding moves the roots of the kernel laplacian most.

    The condition of the ridge system, up to 1 / alpha, multiplies rounding.
    """
    one, another = (Scorer(Model.load(each.location)).table(X) for each in (run, other))
    of_kernel = 1e-7 if run.chosen_params.kernel == "laplacian" else least
    agrees(one, another, max(of_kernel, np.finfo(np.float64).eps / run.chosen_params.alpha))


def fit_agrees(params, *, numbers=False):
    X, y = surfaces(300) if numbers else spirals(300)
    own = {"target": y.reshape(len(y), -1)} if numbers else {"y": y}
    dataset = write_table(MemoryStore(), X.astype(np.float32), **own)
    runs = [fit_dataset(dataset, MemoryStore(), params, engine) for engine in (GPU, CPU)]
    assert np.array_equal(*(run.read("basis/values") for run in runs))
    agrees(*(run.stages["width"]["width"] for run in runs))
    scores_agree(X, *runs)
    assert [run.stages["weights"]["device"] for run in runs] == ["gpu", "cpu"]


def tuning_agrees(params, tuning, *, numbers=False, least=1e-9):
    X, y = surfaces(300) if numbers else spirals(300)
    own = {"target": y.reshape(len(y), -1)} if numbers else {"y": y}
    dataset = write_table(MemoryStore(), X, **own)
    runs = [fit_dataset(dataset, MemoryStore(), params, each, tuning=tuning) for each in (GPU, CPU)]
    scores_agree(X, *runs, least)
    for stage in ("path", "validation"):
        for found, wanted in zip(*(run.stages[stage]["path"] for run in runs), strict=True):
            entries_agree(found, wanted, 1e3 * least)
    found, wanted = (run.stages["validation"] for run in runs)
    entries_agree(found["chosen"], wanted["chosen"], 0)


def learning_agrees():
    """The CPU learns column weights from networks whose products are float32."""
    tuning = replace(QUICK, scales=("learned",), kernels=("gaussian",))
    tuning_agrees(replace(OF_SIZE, features="plain"), tuning, least=1e-3)


NETWORKS = {
    "classes": SmallNetwork("gaussian", 0.4, True, RIDGES),
    "plain": SmallNetwork("matern32", 0.8, False, RIDGES),
    "l1": SmallNetwork("laplace-l1", 0.4, True, RIDGES),
    "kernel": SmallNetwork(
        "gaussian", 0.5, False, tuple(r._replace(penalty="kernel") for r in RIDGES)
    ),
    "clusters": SmallNetwork(
        "gaussian", 0.5, False, tuple(r._replace(penalty="clusters") for r in RIDGES)
    ),
    "components": SmallNetwork(
        "gaussian",
        0.5,
        True,
        tuple(r._replace(components=size) for r in RIDGES for size in (5, 20)),
    ),
    "float64": SmallNetwork("gaussian", 0.4, True, (Ridge("weights", 1e-8),)),
    # The basis rows lie more than 362 widths apart, so the features stay on the host.
    "far apart": SmallNetwork("gaussian", 1e-3, True, RIDGES),
}


def small_table(*, numbers=False, sparse=False):
    X, y = surfaces(200) if numbers else spirals(200)
    targets = NumberTargets(y.mean(axis=0)) if numbers else ClassTargets(3)
    rng, folds = np.random.default_rng(7), np.arange(200) % 5
    weights, rows = rng.random(200) + 0.5, csr_array(X) if sparse else X
    basis, of_basis = X[:40], folds[:40]
    return SmallTable(rows, y, targets, weights, folds, basis, of_basis, 64)


def entries_agree(found, wanted, tolerance):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        exact = value is None or isinstance(value, str)
        assert found[name] == (value if exact else pytest.approx(value, rel=tolerance)), name


def networks_agree(network, *, numbers=False, sparse=False, folds=(0, 2)):
    """The trials, weights and losses of held-out rows, and the next column weights."""
    table = small_table(numbers=numbers, sparse=sparse)
    statistics = ColumnStatistics.from_block(table.basis)
    scaling = Scaling.from_statistics("standard", statistics, centred=not sparse)

    def compute():
        (trial,) = try_networks(table, scaling, [network], folds=folds, n_components=20)
        root, held_out = np.ones(1), np.zeros(1)
        if network.ridges[0].components is None:
            held_out = fit_folds(table, scaling, network, n_folds=5).scores
        if not (network.normalized or sparse):
            root = learned_root(table, trial.features, trial.weights)
        sums = network_moments(table, scaling, network).moments.arrays()
        of_trial = {"weights": trial.weights, "losses": trial.losses}
        return trial, {"root": root, "held_out": held_out, **of_trial, **sums}

    (found, arrays), (wanted, expected) = device.on_gpu(compute), compute()
    # The CPU tries in float32 where it can.
    single = all(each.penalty == "weights" and not each.components for each in network.ridges)
    in_single = {"weights": 2e-2, "losses": 5e-3, "root": 2e-2} if single and not sparse else {}
    entries_agree(found.entry, wanted.entry, 1e-3 if in_single else 1e-7)
    for name, values in expected.items():
        agrees(arrays[name], values, in_single.get(name, 1e-8))


def cell_agrees(n_rounds):
    table, folds = small_table(), 5
    network = replace(NETWORKS["plain"], ridges=RIDGES)
    scaling = Scaling.from_statistics("standard", ColumnStatistics.from_block(table.X))

    def compute():
        return fit_cell(table, scaling, network, n_folds=folds, n_rounds=n_rounds)

    found, wanted = device.on_gpu(compute), compute()
    root, least = np.ones(4), 1e-8
    if n_rounds:
        # The CPU learns column weights from networks whose products are float32.
        root, least = wanted.root, 1e-3
        assert np.ptp(root) > 0
    agrees(found.root, root, least)
    agrees(found.held_out, wanted.held_out, least)
    agrees(found.solved.weights, wanted.solved.weights, 10 * least)


def update_agrees(params):
    X, y = spirals(300)
    parts = [write_table(MemoryStore(), X[rows], y[rows]) for rows in (slice(200), slice(200, 300))]
    place = MemoryStore()
    fit_dataset(parts[0], place, params, CPU)
    runs = [Run.open(copy_of(place)) for _ in range(2)]
    for run, engine in zip(runs, (GPU, CPU), strict=True):
        update_run(run.location, parts[1], engine)
    scores_agree(X, *runs)


def predictions_agree():
    X, y = spirals(300)
    dataset = write_table(MemoryStore(), X, y)
    run = fit_dataset(dataset, MemoryStore(), PARAMS, CPU)
    stores = [MemoryStore(), MemoryStore()]
    for store, engine in zip(stores, (GPU, CPU), strict=True):
        predict_dataset(run.location, dataset, store, engine)
    of_gpu, of_cpu = (zarr.open_group(store, mode="r") for store in stores)
    agrees(of_gpu["scores"][:], of_cpu["scores"][:])
    evaluations = [evaluate_dataset(run.location, dataset, engine) for engine in (GPU, CPU)]
    assert np.array_equal(*(each.confusion for each in evaluations))


def estimators_agree(kind, **params):
    X, y = surfaces(300) if kind is NRBFNRegressor else spirals(300)
    of_gpu, of_cpu = (kind(device=each, basis_size=40, **params) for each in ("gpu", "cpu"))
    for network in (of_gpu, of_cpu):
        network.fit(X[:200], y[:200])
        if "effort" not in params:
            network.partial_fit(X[200:], y[200:])
    output = "decision_function" if hasattr(of_cpu, "decision_function") else "predict"
    wanted = getattr(of_cpu, output)(X)
    agrees(getattr(of_gpu, output)(X), wanted, 1e-7)
    agrees(getattr(of_gpu, output)(da.from_array(X, chunks=(100, -1))).compute(), wanted, 1e-7)
    # A network that was fitted on the CPU predicts on the GPU.
    agrees(getattr(of_cpu.set_params(device="gpu"), output)(X), wanted)


def run_goes_on(caplog):
    """A run that was begun on the CPU is finished on the GPU."""
    X, y = spirals(300)
    dataset, place = write_table(MemoryStore(), X, y), MemoryStore()
    with pytest.raises(StoppedError):
        fit_dataset(dataset, place, PARAMS, CountingEngine(0, label="moments"))
    with caplog.at_level("INFO", logger="dask_nrbfn"):
        run = fit_dataset(dataset, place, PARAMS, GPU)
    assert "goes on with device=gpu" in caplog.text
    assert [run.stages[name]["device"] for name in ("width", "moments")] == ["cpu", "gpu"]
    scores_agree(X, run, fit_dataset(dataset, MemoryStore(), PARAMS, CPU))


def neighbours_agree(kind):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((500, 7)).astype(np.float32)
    if kind == "repeated":
        rows[:200] = rows[200]
    elif kind == "on a grid":
        rows = np.round(rows)
    elif kind == "far":
        rows = rows.astype(np.float64) + 1e7
    wanted = nearest_rows(rows, rows[:300], count=9)
    found = device.on_gpu(lambda: nearest_rows(rows, rows[:300], count=9))
    agrees(found.distances, wanted.distances, 1e-12)
    if kind == "drawn":
        assert np.array_equal(found.indices, wanted.indices)


def activations_agree(kernel, kind):
    """Also of rows that lie so far away that all exponentials underflow."""
    rng = np.random.default_rng(2)
    X = rng.standard_normal((70, 5)) * 10.0 ** rng.integers(-1, 8, (70, 1))
    basis, weights = rng.standard_normal((30, 5)), rng.standard_normal((30, 3)).T
    scaling = Scaling.from_statistics(kind, ColumnStatistics.from_block(basis))
    features = RadialFeatures.from_basis(scaling.apply(basis), 0.7, scaling, kernel=kernel)

    def compute():
        own = features.on_device()
        assert own.xp is not np
        results = own.activations(X), own.weighted_sums(X, weights)
        return [device.to_host(each) for each in results]

    for found, wanted in zip(
        device.on_gpu(compute),
        (features.activations(X), features.weighted_sums(X, weights)),
        strict=True,
    ):
        agrees(found, wanted)


def system_of(moments, n_classes):
    return RidgeSystem.of(moments, ClassTargets(n_classes), normalized=True)


def singular_is_refused():
    Phi = np.repeat(np.random.default_rng(6).random((50, 10)), 2, axis=1)
    moments = Moments.from_block(Phi, np.ones((50, 2)))
    with pytest.raises(IllConditionedError, match="singular"):
        device.on_gpu(lambda: system_of(moments.on_device(), 1).solve(1e-18))


def memory_is_a_budget(allocate):
    with pytest.raises(MemoryBudgetError, match="Lower basis_size"):
        device.on_gpu(allocate)
    with pytest.raises(MemoryBudgetError, match="sums of 400,000 basis rows take"):
        device.on_gpu(lambda: device.check_sums_fit(device.to_device(np.zeros((400_000, 1))), 1, 0))


CLAIMS = {
    **{f"fit, {name}": partial(fit_agrees, params) for name, params in FITS.items()},
    "fit of numbers": partial(fit_agrees, FITS["plain"], numbers=True),
    **{f"tuning, {name}": partial(tuning_agrees, *each) for name, each in TUNINGS.items()},
    "tuning, learned weights": learning_agrees,
    "tuning of numbers": partial(tuning_agrees, *TUNINGS["kernel"], numbers=True),
    **{f"networks, {name}": partial(networks_agree, each) for name, each in NETWORKS.items()},
    "networks, numbers": partial(networks_agree, NETWORKS["plain"], numbers=True),
    "networks, sparse": partial(networks_agree, NETWORKS["classes"], sparse=True),
    "networks, one fold": partial(networks_agree, NETWORKS["classes"], folds=(1,)),
    "networks, float64": partial(networks_agree, NETWORKS["float64"]),
    "cell": partial(cell_agrees, 0),
    "cell, learned weights": partial(cell_agrees, 1),
    "update": partial(update_agrees, PARAMS),
    "update of cells": partial(update_agrees, replace(OF_SIZE, features="plain", cells=2)),
    "predictions": predictions_agree,
    "classifier": partial(estimators_agree, NRBFNClassifier, alpha=1e-4),
    "regressor": partial(estimators_agree, NRBFNRegressor, alpha=1e-4),
    "tuned": partial(estimators_agree, NRBFNClassifierCV, effort="quick", width_factors=(0.5,)),
    **{
        f"neighbours, {kind}": partial(neighbours_agree, kind)
        for kind in ("drawn", "repeated", "on a grid", "far")
    },
    **{
        f"activations, {kernel}, {kind}": partial(activations_agree, kernel, kind)
        for kernel, kind in (
            *(("gaussian", "none"), ("laplacian", "standard")),
            *(("matern32", "unit"), ("laplace-l1", "standard")),
        )
    },
    "singular": singular_is_refused,
}
