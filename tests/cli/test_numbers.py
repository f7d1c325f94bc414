"""The program with numbers as targets, from a fit to a refresh."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import r2_score

from dask_nrbfn.storage.model import Model
from tests.cli.program import succeed
from tests.tables import spirals, surfaces, write_table

HERE = ("--workers", 0)
FIT = ("--basis", "kmeans", "--basis-size", 40, "--features", "plain", "--alpha", 1e-6, *HERE)
NAMES = ["height", "size"]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Give a directory with three datasets of numbers, one with labels, and a run of either."""
    place = tmp_path_factory.mktemp("numbers")
    for seed, name in enumerate("abc"):
        X, Y = surfaces(200, seed=seed)
        write_table(place / name, X, target=pd.DataFrame(Y, columns=NAMES))
    X, y = spirals(200, n_features=3)
    write_table(place / "labels", X, y)
    succeed("fit", place / "a", place / "run", *FIT)
    succeed("fit", place / "labels", place / "classes", *FIT)
    return place


@pytest.fixture
def place(fitted, tmp_path, monkeypatch):
    """Work in a copy of that directory."""
    shutil.copytree(fitted, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")


def figures(*arguments, here=HERE):
    return json.loads(succeed(*arguments, *here, "--json"))


def listed(values):
    return ", ".join(f"{value:.6g}" for value in values)


@pytest.mark.usefixtures("place")
def test_update__numbers():
    expected = figures("evaluate", "run", "b")["relative_error"]
    shown = succeed("update", "run", "b", *HERE)
    assert f"new_error          {expected:.6g}\n" in shown
    record = figures("inspect", "run", here=())["versions"][0]
    assert f"training_r2        {listed(record['training_r2'])}\n" in shown
    first, second = record["training_r2"]
    line = f"fitting error {record['fitting_error']:.4g}, R2 {first:.4g}, {second:.4g}\n"
    assert line in succeed("inspect", "run")
    refreshed = figures("refresh", "run")
    assert (refreshed["n_rows"], refreshed["version"]) == (400, 0)
    assert len(refreshed["training_r2"]) == 2


@pytest.mark.usefixtures("place")
def test_predict__numbers_outside_the_training_targets_are_clipped():
    _, Y = surfaces(200)
    new, low, high = 3 * surfaces(200, seed=2)[0], Y.min(axis=0), Y.max(axis=0)
    write_table("far", new, target=pd.DataFrame(surfaces(200, seed=2)[1], columns=NAMES))
    free = Model.load("run").scores(new)
    assert ((free < low) | (free > high)).any()
    for options, expected in (((), np.clip(free, low, high)), (("--no-clip",), free)):
        figures("predict", "run", "far", "far.csv", "--overwrite", *options)
        np.testing.assert_allclose(pd.read_csv("far.csv")[NAMES], expected, rtol=1e-6)
        found = figures("evaluate", "run", "far", *options)
        targets = surfaces(200, seed=2)[1]
        np.testing.assert_allclose(
            found["r2"], r2_score(targets, expected, multioutput="raw_values"), rtol=1e-9
        )
