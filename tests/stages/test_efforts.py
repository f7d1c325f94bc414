"""What the efforts of a tuning find, compared on the same held-out rows."""

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages import search
from dask_nrbfn.storage.model import Model
from tests.stages.fits import are_labels, fit_table
from tests.tables import spirals, surfaces, write_table

DRAWN = FitParams(basis="random")

# What a search has found, without times and memory.
FOUND = ("tried", "rounds", "curve", "finals", "linear", "chosen", "narrowed", "stopped")


def of_effort(X, targets, effort, params=DRAWN, **tuning):
    """Return what the search of a tuning records."""
    tuning = TuneParams(effort=effort, **tuning)
    return fit_table(X, targets, params, tuning=tuning).stages["search"]


def loss_of(record, name):
    """Return the loss of the chosen network on the rows that judge networks."""
    chosen = record["chosen"]
    kind = ("scale", "features", "kernel", "width_factor")
    losses = [
        each[name]
        for each in (*record["curve"], *record["finals"])
        if all(each[own] == chosen[own] for own in kind)
        and each["n_basis"] == chosen.get("basis_size", each["n_basis"])
    ]
    return min(losses)


def drawn_table(seed):
    """Return a few hundred rows, some of whose columns decide classes, or make numbers."""
    rng = np.random.default_rng(seed)
    n_rows, p = int(rng.integers(250, 500)), int(rng.integers(2, 9))
    X = rng.normal(size=(n_rows, p)) * 10.0 ** rng.uniform(-1, 1, p)
    Z = X / X.std(axis=0)
    smooth = np.sin(2 * Z[:, 0]) + Z[:, 1] * np.sign(Z[:, p // 2]) + 0.5 * Z @ rng.normal(size=p)
    smooth = smooth + rng.normal(scale=rng.uniform(0.1, 1.0), size=n_rows)
    if seed % 2:
        return X, smooth
    return X, np.digitize(smooth, np.quantile(smooth, [0.3, 0.7]))


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize("seed", range(10))
def test_normal__never_ends_with_a_worse_loss_than_quick(seed):
    X, targets = drawn_table(seed)
    name = "brier_score" if are_labels(targets) else "relative_error"
    quick, normal = (of_effort(X, targets, effort) for effort in ("quick", "normal"))
    assert loss_of(normal, name) <= loss_of(quick, name)


def test_quick__is_no_trap_where_few_columns_matter_in_a_curved_way():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1200, 12))
    y = np.sin(2 * X[:, 0]) * X[:, 1] + np.cos(2 * X[:, 2]) + rng.normal(scale=0.1, size=1200)
    X_new, y_new, scores = X[600:], y[600:], {}
    for effort in ("quick", "normal"):
        run = fit_table(X[:600], y[:600], DRAWN, tuning=TuneParams(effort=effort))
        residuals = Model.load(run.location).scores(X_new)[:, 0] - y_new
        scores[effort] = 1 - residuals.var() / y_new.var()
    assert scores["normal"] > 0.8
    assert scores["quick"] > scores["normal"] - 0.02


ONE_NETWORK = {"width_factors": (0.1,), "features": ("plain",), "alphas": (1e-4, 1e-6)}


def test_quick__doubles_beyond_1024_rows_where_the_loss_still_falls(monkeypatch):
    """All sizes divided by 64: 16 stands for 1,024 and 32 for the largest."""
    assert search._MOST_QUICK == 2 * search._FIRST_SIZES[-1] == 2048
    monkeypatch.setattr(search, "_FIRST_SIZES", (8, 16))
    monkeypatch.setattr(search, "_MOST_QUICK", 32)
    monkeypatch.setattr(search, "_CHEAP", 4)
    X, y = spirals(500, n_features=2, n_classes=5)
    falling = of_effort(X, y, "quick", **ONE_NETWORK)
    assert [each["n_basis"] for each in falling["curve"]] == [8, 16, 32]
    assert falling["chosen"]["basis_size"] == 32
    # Numbers that rows say nothing about.
    flat = of_effort(
        X, np.random.default_rng(0).normal(size=500), "quick", **ONE_NETWORK | {"alphas": (1.0,)}
    )
    assert [each["n_basis"] for each in flat["curve"]] == [8, 16]
    normal = {"kernels": ("gaussian",), "scales": ("none",), "penalties": ("weights",)}
    longer = of_effort(X, y, "normal", **ONE_NETWORK, **normal)
    assert [each["n_basis"] for each in longer["curve"]][:4] == [8, 16, 32, 64]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [spirals, surfaces])
def test_search__any_threads_and_workers(rows, tmp_path, two_workers):
    tuning = TuneParams(
        effort="quick", folds=2, kernels=("gaussian", "laplace-l1"),
        alphas=(1e-2, 1e-4, 1e-9), features=("plain",), scales=("none", "learned"),
    )  # fmt: skip
    X, targets = rows(300)
    found = []

    def search_by(engine):
        place = tmp_path / str(len(found))
        kind = "y" if are_labels(targets) else "target"
        dataset = write_table(place / "rows", X, **{kind: targets})
        run = fit_dataset(dataset, place / "run", DRAWN, engine, tuning=tuning)
        own = {name: each for name, each in run.stages["search"].items() if name in FOUND}
        found.append((own, run.stages["metric"]["rounds"], run.read("metric/root").tolist()))

    with threadpool_limits(1):
        for threads in (1, 2, 3):
            search_by(InlineEngine(threads=threads))
        search_by(two_workers)
    first, *others = found
    assert len(first[0]["tried"]) > 10
    assert all(each == first for each in others)
