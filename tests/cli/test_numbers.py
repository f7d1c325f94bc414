"""The program with numbers as targets, from a fit to a refresh."""

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import r2_score

from dask_nrbfn.storage.model import Model
from tests.cli.program import json_of, succeed
from tests.tables import surfaces, write_table

FIT = ("--basis", "kmeans", "--basis-size", 40, "--features", "plain", "--alpha", 1e-6)
NAMES = ["height", "size"]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate("ab"):
        X, Y = surfaces(200, seed=seed)
        write_table(name, X, target=pd.DataFrame(Y, columns=NAMES))
    succeed("fit", "a", "run", *FIT)


def test_update__numbers():
    expected = json_of("evaluate", "run", "b")["relative_error"]
    shown = succeed("update", "run", "b")
    assert f"new_error          {expected:.6g}\n" in shown
    first, second = json_of("inspect", "run")["versions"][0]["training_r2"]
    assert f"training_r2        {first:.6g}, {second:.6g}\n" in shown
    assert f"R2 {first:.4g}, {second:.4g}\n" in succeed("inspect", "run")
    refreshed = json_of("refresh", "run")
    assert (refreshed["n_rows"], refreshed["version"]) == (400, 0)


def test_predict__numbers_outside_the_training_targets_are_clipped():
    trained = surfaces(200)[1]
    low, high = trained.min(axis=0), trained.max(axis=0)
    new, targets = surfaces(200, seed=2)
    new = 3 * new
    write_table("far", new, target=pd.DataFrame(targets, columns=NAMES))
    free = Model.load("run").scores(new)
    assert ((free < low) | (free > high)).any()
    for options, expected in (((), np.clip(free, low, high)), (("--no-clip",), free)):
        json_of("predict", "run", "far", "far.csv", "--overwrite", *options)
        np.testing.assert_allclose(pd.read_csv("far.csv")[NAMES], expected, rtol=1e-6)
        found = json_of("evaluate", "run", "far", *options)
        r2 = r2_score(targets, expected, multioutput="raw_values")
        np.testing.assert_allclose(found["r2"], r2, rtol=1e-9)
