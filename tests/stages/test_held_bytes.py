"""Measured memory of every stage, below what was predicted for it."""

from dataclasses import replace

import pytest
from scipy.sparse import random_array

from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.commands.update import update_run
from dask_nrbfn.engine import EngineOptions, connect
from dask_nrbfn.params import FitParams, TuneParams
from tests.tables import spirals, write_table

PAPER = FitParams(kernel="gaussian", scale="none", alpha=1e-6)
DRAWN = replace(PAPER, basis="random", basis_size=2500)
PLAIN = replace(DRAWN, features="plain")
COMPONENTS = replace(DRAWN, features="normalized", width_factor=0.3, components=2000)
KERNEL = replace(PLAIN, penalty="kernel")
EXACT = replace(PAPER, neighbors="exact", candidates="all", n_neighbors=300, basis_size=40)
SKNN = replace(PAPER, basis_size=1200)
CENTRES = replace(PAPER, basis="kmeans", basis_size=400)
L1 = replace(PLAIN, kernel="laplace-l1", scale="standard")
QUICK = TuneParams(effort="quick", folds=3)
SIZES = replace(QUICK, alphas=(1e-6,), components=(100, 2000), width_factors=(0.3,))
ALPHAS = replace(QUICK, alphas=(0.1, 1e-2, 1e-4), width_factors=(0.4,), features=("plain",))
WIDTHS = replace(QUICK, alphas=(1e-4, 1e-6), width_factors=(0.5, 1.0), search_basis=800)

# Parameters, a tuning, numbers of rows and columns, and the stage that holds at least half of what
# is predicted for it without the margin of a quarter. A cell may have twice the rows of the mean.
CASES = {
    "drawn": (DRAWN, None, (4000, 40), "weights"),
    "ranks": (replace(DRAWN, basis_size=40, scale="rank"), None, (60_000, 200), "ranks"),
    "components tuned": (COMPONENTS, SIZES, (4000, 40), "components"),
    "kernel": (KERNEL, None, (4000, 40), "weights"),
    "kernel tuned": (KERNEL, replace(ALPHAS, penalties=("weights", "kernel")), (4000, 40), "path"),
    "locality": (replace(PLAIN, locality=1e-3), None, (4000, 40), "locality"),
    "another loss": (replace(PLAIN, loss="logistic"), None, (40_000, 40), "refine"),
    "cells": (replace(PLAIN, basis_size=1500, cells=4), None, (30_000, 40), None),
    "l1 distances": (replace(L1, features="normalized"), None, (4000, 40), "weights"),
    "l1 kernel": (replace(L1, penalty="kernel"), None, (4000, 40), "weights"),
    "cells of l1 distances": (replace(L1, basis_size=1500, cells=4), None, (30_000, 40), None),
    "exact neighbours": (EXACT, None, (4000, 400), "neighbors"),
    "candidates in csr": (replace(EXACT, candidates=2000, n_neighbors=60), None, None, "neighbors"),
    "two trials at a time": (SKNN, WIDTHS, (20_000, 96), None),
    "centres tuned": (CENTRES, WIDTHS, (20_000, 96), "search"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_stages__hold_less_than_predicted(tmp_path, case):
    params, tuning, shape, most = CASES[case]
    if shape is None:
        X = random_array((4000, 20_000), density=0.003, format="csr", rng=0)
    else:
        X = spirals(shape[0], n_features=shape[1])[0]
    y = spirals(X.shape[0])[1]
    dataset, run = write_table(tmp_path / "data", X, y), tmp_path / "run"
    threads = 2 if case == "two trials at a time" else 1
    with connect(EngineOptions(workers=1, threads=threads, memory="4GiB")) as engine:
        run = fit_dataset(dataset, run, params, engine, tuning=tuning)
        records = dict(run.stages)
        if params.loss == "squared":
            more = write_table(tmp_path / "more", X[:4000] * 1.1, y[:4000])
            records["update"] = update_run(run.location, more, engine)
    if most is not None:
        assert records[most]["peak_bytes"] > 0.4 * records[most]["predicted_bytes"]
    for each in records.values():
        assert each["peak_bytes"] <= each["predicted_bytes"]
