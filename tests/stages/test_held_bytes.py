"""Measured memory of every stage, below what was predicted for it."""

from dataclasses import replace
from functools import partial

import pytest
from scipy.sparse import random_array

from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.commands.update import update_run
from dask_nrbfn.engine import EngineOptions, connect
from dask_nrbfn.params import FitParams, TuneParams
from tests.tables import spirals, write_table

DRAWN = FitParams(basis="random", basis_size=2500, alpha=1e-6)
COMPONENTS = replace(DRAWN, features="normalized", width_factor=0.3, components=2000)
KERNEL = replace(DRAWN, features="plain", penalty="kernel")
EXACT = FitParams(neighbors="exact", candidates="all", n_neighbors=300, basis_size=40, alpha=1e-6)
CANDIDATES = replace(EXACT, candidates=2000, n_neighbors=60)
QUICK = TuneParams(effort="quick", folds=3)
SIZES = replace(QUICK, alphas=(1e-6,), components=(100, 2000), width_factors=(0.3,))
PENALTIES = replace(
    QUICK,
    alphas=(0.1, 1e-2, 1e-4),
    penalties=("weights", "kernel"),
    width_factors=(0.4,),
    features=("plain",),
)


N_ROWS = 4000


def dense(n_features):
    return spirals(N_ROWS, n_features=n_features)[0]


def in_csr():
    return random_array((N_ROWS, 20_000), density=0.003, format="csr", rng=0)


# Parameters, the rows, and the stage that holds most of what is predicted for it.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("params", "tuning", "rows", "most"),
    [
        (DRAWN, None, partial(dense, 40), "weights"),
        (COMPONENTS, SIZES, partial(dense, 40), "components"),
        (KERNEL, None, partial(dense, 40), "weights"),
        (KERNEL, PENALTIES, partial(dense, 40), "path"),
        (EXACT, None, partial(dense, 400), "neighbors"),
        (CANDIDATES, None, in_csr, "neighbors"),
    ],
    ids=[
        "drawn",
        "components tuned",
        "kernel",
        "kernel tuned",
        "exact neighbours",
        "candidates in csr",
    ],
)
def test_stages__hold_less_than_predicted(tmp_path, params, tuning, rows, most):
    X, y = rows(), spirals(N_ROWS)[1]
    dataset = write_table(tmp_path / "data", X, y)
    with connect(EngineOptions(workers=1, threads=1, memory="4GiB")) as engine:
        if tuning is None:
            run = fit_dataset(dataset, tmp_path / "run", params, engine)
        else:
            run = fit_dataset(dataset, tmp_path / "run", params, engine, tuning=tuning)
        record = update_run(run.location, write_table(tmp_path / "more", X * 1.1, y), engine)
    # Half of what is predicted without the margin of a quarter.
    assert run.stages[most]["peak_bytes"] > 0.4 * run.stages[most]["predicted_bytes"]
    for each in (*run.stages.values(), record):
        assert each["peak_bytes"] <= each["predicted_bytes"]
