"""Weights of features that are learned, against what is written out, and what becomes of them."""

from dataclasses import replace

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn import DiffusionMap
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.gradients import LEAST_WEIGHT
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.spec import Spec
from dask_nrbfn.stages import columns
from dask_nrbfn.stages.columns import COLUMNS, METRIC, RANKS
from dask_nrbfn.stages.stage import StageJob
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import Run
from tests.stages.fits import fit_table
from tests.tables import spirals, surfaces, write_table

ENGINE = InlineEngine()
PARAMS = FitParams(
    kernel="gaussian", scale="learned", metric_rounds=2, basis="random", basis_size=20,
    features="plain", alpha=1e-6, n_parts=2,
)  # fmt: skip


@pytest.fixture(autouse=True)
def few_networks(monkeypatch):
    monkeypatch.setattr(columns, "_FACTORS", {"gaussian": (0.5, 1.0)})
    monkeypatch.setattr(columns, "_MOST_BASIS", 60)


def fit(X, targets, params=PARAMS, **options):
    return fit_table(X, targets, params, **options)


def weights_of(run):
    return Model.load(run.location).scaling.feature_weights


def with_noise(X, n_noise, seed=1):
    return np.hstack([X, np.random.default_rng(seed).normal(size=(len(X), n_noise))])


def test_metric__features_that_matter_lead():
    X, y = spirals(600, n_features=2)
    run = fit(with_noise(X, 6), y)
    weights, record = weights_of(run), METRIC.recorded(run)
    assert weights[:2].min() > 5 * weights[2:].max()
    assert weights.mean() == pytest.approx(1.0 + LEAST_WEIGHT)
    assert record.rounds[record.kept]["brier_score"] < record.rounds[0]["brier_score"]
    assert list(record.heaviest.values()) == sorted(weights, reverse=True)


def test_metric__of_numbers():
    X, Y = surfaces(500)
    run = fit(with_noise(X, 3), Y)
    assert weights_of(run)[:3].min() > 5 * weights_of(run)[3:].max()


def test_metric__equal_weights_where_no_others_do_better():
    # All columns matter alike. Weights that are judged by the targets that they have seen gain
    # something from the noise every time.
    rng = np.random.default_rng(103)
    X = rng.normal(size=(300, 50))
    run = fit(X, X.sum(axis=1) / np.sqrt(50) + rng.normal(size=300))
    assert METRIC.recorded(run).kept == 0
    np.testing.assert_array_equal(weights_of(run), 1.0)


@pytest.mark.parametrize("X", [np.ones((9, 2)), 1e-300 * np.eye(9, 2), np.eye(9, 2)[:3]])
def test_metric__equal_weights_where_nothing_can_be_learned(X):
    y = np.arange(len(X)) % 2
    table = write_table(MemoryStore(), X, y)
    run = Run.start(MemoryStore(), table, Spec.of(PARAMS), {})
    for stage in (COLUMNS, RANKS, METRIC):
        record = stage.compute(StageJob(run, table, ENGINE)).to_dict()
        run.record(stages=run.stages | {stage.name: record})
    np.testing.assert_array_equal(run.read("metric/root"), 1.0)


def test_metric__an_embedding_has_none():
    with pytest.raises(ParameterError, match="learned needs targets"):
        DiffusionMap(scale="learned").fit(spirals(100)[0])


def test_metric__rounds_end_after_two_without_a_gain():
    X, y = spirals(300, n_features=2)
    record = METRIC.recorded(fit(with_noise(X, 4), y, replace(PARAMS, metric_rounds=20)))
    losses = [each["brier_score"] for each in record.rounds]
    best = losses.index(min(losses))
    assert record.kept == best
    assert 0 < best < len(losses) - 1 == best + 2 < 20
    assert list(record.rounds[best]) == [
        *("kernel", "width_factor", "alpha", "brier_score", "error_rate")
    ]


@pytest.mark.parametrize(
    ("effort", "kinds"), [("quick", {"gaussian"}), ("normal", {"gaussian", "laplace-l1"})]
)
def test_metric__a_quick_tuning_learns_from_euclidean_distances(monkeypatch, effort, kinds):
    monkeypatch.setattr(columns, "_FACTORS", {"gaussian": (0.5,), "laplace-l1": (0.5,)})
    X, y = spirals(300)
    tuning = TuneParams(
        effort=effort, folds=2, alphas=(1e-4,), kernels=("gaussian", "laplace-l1"),
        scales=("none", "learned"), width_factors=(0.5,), penalties=("weights",),
    )  # fmt: skip
    run = fit(X, y, FitParams(basis="random", basis_size=20, metric_rounds=2), tuning=tuning)
    rounds = METRIC.recorded(run).rounds
    assert {each["kernel"] for each in rounds} == kinds
    assert len(rounds) == 3 * len(kinds)


def test_metric__a_quick_tuning_with_l1_kernels_alone_learns_from_them(monkeypatch):
    monkeypatch.setattr(columns, "_FACTORS", {"gaussian": (0.5,), "laplace-l1": (0.5,)})
    tuning = TuneParams(
        effort="quick", folds=2, alphas=(1e-4,), kernels=("laplace-l1",), scales=("learned",),
        width_factors=(0.5,),
    )  # fmt: skip
    run = fit(*spirals(200), FitParams(basis="random", basis_size=20), tuning=tuning)
    assert {each["kernel"] for each in METRIC.recorded(run).rounds} == {"laplace-l1"}


def test_metric__weights_of_two_kinds_are_compared_by_the_same_networks(monkeypatch):
    """Two columns of steps suit l1 distances, whose networks learn them among the noise."""
    monkeypatch.setattr(columns, "_FACTORS", {"gaussian": (0.5,), "laplace-l1": (0.4,)})
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 8))
    tuning = TuneParams(
        folds=2, alphas=(1e-4,), kernels=("gaussian", "laplace-l1"), scales=("learned",),
        width_factors=(0.5,), penalties=("weights",),
    )  # fmt: skip
    drawn = FitParams(basis="random", basis_size=20, metric_rounds=2, cells=1)
    run = fit(X, np.sign(X[:, 0]) + np.sign(X[:, 1]), drawn, tuning=tuning)
    record, root = METRIC.recorded(run), run.read("metric/root")
    # Round by round, those of Euclidean distances first.
    assert [each["kernel"] for each in record.rounds] == ["gaussian"] * 3 + ["laplace-l1"] * 3
    assert root[:2].min() > 2 * root[2:].max()
    assert record.kept in range(1, 6)
    # Whatever the place of weights that are no use.
    table, useless = write_table(MemoryStore(), X, target=np.sign(X[:, :2]).sum(axis=1)), root[::-1]
    for roots in ([root, useless], [useless, root]):
        assert roots[columns._best_root(run, table, roots, "standard")] is root
