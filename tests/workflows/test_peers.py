"""The table of our networks beside those of other libraries."""

import gzip
import re

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tests.workflows.script import run_here

CELLS = (
    r"^\| {title} \| ([^|]+) (?:\| ([^|]+) )?\| [\d.]+ \| [\d.]+ "
    r"\| ([\d,]+) \| ([^|]+) \| ([^|]*) \|$"
)


def peers(*arguments, cwd):
    process = run_here("workflows/benchmarks/peers.py", *arguments, cwd=cwd)
    assert process.returncode == 0, process.stderr
    return process.stdout


def cells(out, title):
    """Return one or two measures (the second is empty), bytes, rows and note of a line."""
    (found,) = re.findall(CELLS.format(title=re.escape(title)), out, flags=re.MULTILINE)
    return found


def test_peers__the_error_of_the_rows_that_test(tmp_path):
    X, y = load_wine(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(
        X, y, test_size=0.4, random_state=0, stratify=y
    )
    machine = make_pipeline(StandardScaler(), LogisticRegression()).fit(X_train, y_train)
    out = peers("wine", "--test-share", 0.4, "--peers", "linear", cwd=tmp_path)
    assert "### wine: 106 x 13, 3 classes, 72 rows to test, " in out
    assert (
        cells(out, "logistic or linear")[0]
        == f"{100 * np.mean(machine.predict(X_test) != y_test):.2f}"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def regression(tmp_path):
    """A regression of 60 rows in three folds, and its rows, targets and masks."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4))
    y = 5 + X @ [1.0, -2.0, 0.5, 0.0] + 0.3 * rng.normal(size=60)
    masks = np.arange(60)[:, None] % 3 == np.arange(3)
    (tmp_path / "kin40k").mkdir()
    tables = {"data": (np.column_stack([X, y]), "%.17g"), "test_mask": (masks, "%d")}
    for name, (table, form) in tables.items():
        with gzip.open(tmp_path / "kin40k" / f"{name}.csv.gz", "wt") as file:
            np.savetxt(file, table, fmt=form, delimiter=",")
    return X, y, masks


def test_peers__mean_and_standard_error_of_the_folds(tmp_path, regression):
    X, y, masks = regression
    measured = []
    for test in masks.T:
        fitted = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 3, 7)))
        fitted.fit(X[~test], y[~test])
        squared = np.mean((fitted.predict(X[test]) - y[test]) ** 2)
        measured.append((squared**0.5, 1 - squared / np.var(y[test])))
    for arguments, n_folds in (((), 3), (("--folds", 2), 2)):
        out = peers("kin40k", "--uci", ".", "--peers", "linear", *arguments, cwd=tmp_path)
        assert f"### kin40k: 40 x 4, numbers, 20 rows to test, {n_folds} folds, " in out
        rmse, r2, _, rows, _ = cells(out, "logistic or linear")
        for printed, values in zip((rmse, r2), zip(*measured[:n_folds], strict=True), strict=True):
            found = [float(part) for part in printed.split(" ± ")]
            error = np.std(values, ddof=1) / n_folds**0.5
            np.testing.assert_allclose(found, [np.mean(values), error], atol=6e-5)
        assert rows == "40"


def test_peers__what_is_not_there_is_refused_first(tmp_path):
    for arguments, problem in (
        (("iris", "mnist"), "mnist is no file"),
        (("iris", "--peers", "linear,forest"), "no peer forest"),
        (("pol", "--uci", "."), "pol/data.csv.gz is not in ."),
        (("iris", "--folds", 2), "--folds needs --uci"),
        (("pol", "--uci", ".", "--target", "y"), "leave out --label and --target"),
        (("iris", "--trials", 0), "--trials must be at least 1, not 0"),
    ):
        process = run_here("workflows/benchmarks/peers.py", *arguments, cwd=tmp_path)
        assert process.returncode == 2
        assert problem in process.stderr
        assert process.stdout == ""
