"""The table of our networks beside those of other libraries."""

import gzip
import re

import numpy as np
import pytest
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tests.workflows.script import run_here

PEERS = "workflows/benchmarks/peers.py"


def test_peers__classes_by_ours_and_another(tmp_path):
    arguments = ("wine", "--test-share", 0.4, "--peers", "default,linear")
    process = run_here(PEERS, *arguments, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "### wine: 106 x 13, 3 classes, 72 rows to test, " in process.stdout
    errors = re.findall(r"^\| [\w, ]+ \| ([\d.]+) \|", process.stdout, re.MULTILINE)
    assert len(errors) == 2
    assert max(map(float, errors)) < 10


def test_peers__mean_and_standard_error_of_the_folds(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    y = 5 + X @ [1.0, -2.0, 0.5, 0.0] + 0.3 * rng.normal(size=60)
    masks = np.arange(60)[:, None] % 3 == np.arange(3)
    (tmp_path / "kin40k").mkdir()
    for name, table in {"data": np.column_stack([X, y]), "test_mask": masks}.items():
        with gzip.open(tmp_path / "kin40k" / f"{name}.csv.gz", "wt") as file:
            np.savetxt(file, table, fmt="%.17g", delimiter=",")
    measured = []
    for test in masks.T[:2]:
        fitted = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 3, 7)))
        fitted.fit(X[~test], y[~test])
        measured.append(np.mean((fitted.predict(X[test]) - y[test]) ** 2) ** 0.5)
    arguments = ("kin40k", "--uci", ".", "--peers", "linear", "--folds", 2)
    process = run_here(PEERS, *arguments, cwd=tmp_path)
    assert "### kin40k: 40 x 4, numbers, 20 rows to test, 2 folds, " in process.stdout
    found = re.search(r"logistic or linear \| ([\d.]+) ± ([\d.]+) \|", process.stdout).groups()
    expected = [np.mean(measured), np.std(measured, ddof=1) / 2**0.5]
    np.testing.assert_allclose(list(map(float, found)), expected, atol=6e-5)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("iris", "mnist"), "mnist is no file"),
        (("iris", "--peers", "linear,forest"), "no peer forest"),
        (("pol", "--uci", "."), "pol/data.csv.gz is not in ."),
    ],
)
def test_peers__what_is_not_there_is_refused_first(tmp_path, arguments, problem):
    process = run_here(PEERS, *arguments, cwd=tmp_path)
    assert process.returncode == 2
    assert problem in process.stderr
    assert process.stdout == ""
