"""The table of our networks beside those of other libraries."""

import gzip
import re
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression, Ridge, RidgeCV
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tests.workflows.script import run_here, run_script
from workflows.benchmarks.contenders import (
    CONTENDERS,
    HeldOut,
    Task,
    drawn_rows,
    drawn_settings,
)
from workflows.benchmarks.splits import read_folds, read_split

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


def test_peers__one_that_fails_does_not_stop_the_others(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.random((60, 3)), rng.random((60, 2))
    parts = {"X_train": X[:40], "y_train": y[:40], "X_test": X[40:], "y_test": y[40:]}
    np.savez(tmp_path / "two.npz", **parts)
    arguments = ("two.npz", "--limit-rows", 30, "--peers", "boosting,linear")
    out = peers(*arguments, cwd=tmp_path)
    assert "### two: 30 x 3, numbers, 20 rows to test, " in out
    assert re.search(r"^\| HistGradientBoosting \|( \|){6} failed: ValueError: ", out, re.MULTILINE)
    assert float(cells(out, "logistic or linear")[1]) < 1


@pytest.mark.slow
def test_peers__ours_and_those_of_the_same_size(tmp_path):
    X, y = load_wine(return_X_y=True)
    lines = [",".join(map(str, [*row, f"class {label}"])) for row, label in zip(X, y, strict=True)]
    header = ",".join([*(f"column{number}" for number in range(13)), "kind"])
    (tmp_path / "wine.csv").write_text("\n".join([header, *lines]))
    names = "default,tuned,nystroem,svc,neighbours,falkon"
    arguments = ("wine.csv", "--label", "kind", "--basis-size", 30, "--most-rows", 60)
    process = run_script(
        "workflows/benchmarks/peers.py", *arguments, "--peers", names, cwd=tmp_path
    )
    assert process.returncode == 0, process.stderr
    for title in ("ours, default", "ours, tuned"):
        error, _, stored, rows, note = cells(process.stdout, title)
        assert float(error) < 20
        assert stored == f"{8 * 30 * (13 + 3):,}"
        assert (rows, note) == ("124", "30 basis rows")
    assert cells(process.stdout, "SVC, 20 combinations")[3] == "60 of 124, chosen on 60"
    for title in ("Nystroem + ridge", "nearest neighbours"):
        error, _, _, rows, _ = cells(process.stdout, title)
        assert float(error) < 20
        assert rows == "124, chosen on 60"
    assert "| Falkon |" in process.stdout


@pytest.mark.parametrize(
    ("package", "name", "title", "rows"),
    [
        ("lightgbm", "lightgbm", "LightGBM", "124"),
        ("lightgbm", "lightgbm-stopped", "LightGBM, 500 rounds", "99 of 124, chosen on 25"),
        ("catboost", "catboost", "CatBoost", "124"),
        ("catboost", "catboost-stopped", "CatBoost, 500 rounds", "99 of 124, chosen on 25"),
        ("xrfm", "xrfm", "xRFM", "64 of 124, chosen on 16"),
        ("xrfm", "xrfm-l2", "xRFM, best of trials, l2", "64 of 124, chosen on 16"),
        ("xrfm", "xrfm-tuned", "xRFM, best of trials", "64 of 124, chosen on 16"),
    ],
)
@pytest.mark.slow
def test_peers__those_of_other_packages(tmp_path, package, name, title, rows):
    pytest.importorskip(package)
    drawn = ("--xrfm-rows", 80, "--trials", 3)
    process = run_script(
        "workflows/benchmarks/peers.py", "wine", "diabetes", "--peers", name, *drawn, cwd=tmp_path
    )
    labels, numbers = process.stdout.split("### diabetes")
    error, _, _, used, _ = cells(labels, title)
    assert float(error) < 10
    assert used == rows
    # The mean has an R2 of 0, a linear model one of 0.39.
    assert float(cells(numbers, title)[1]) > 0.2
    assert list(tmp_path.iterdir()) == []


def test_peers__a_missing_package_is_named(tmp_path, monkeypatch):
    for package in ("catboost", "lightgbm", "xrfm"):
        monkeypatch.setitem(sys.modules, package, None)
    names = "lightgbm,lightgbm-stopped,catboost,catboost-stopped,xrfm,xrfm-l2,xrfm-tuned"
    out = peers("wine", "--peers", names, cwd=tmp_path)
    found = re.findall(r"^\| [^|]+ \|(?: \|){5} not installed: (\w+) \|$", out, re.MULTILINE)
    assert found == ["lightgbm"] * 2 + ["catboost"] * 2 + ["xrfm"] * 3


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


def test_splits__folds_of_a_folder(tmp_path, regression):
    X, y, masks = regression
    splits = read_folds(tmp_path / "kin40k")
    assert [split.name for split in splits] == ["kin40k"] * 3
    for split, test in zip(splits, masks.T, strict=True):
        np.testing.assert_array_equal(split.X_train, X[~test])
        np.testing.assert_array_equal(split.y_train, y[~test])
        np.testing.assert_array_equal(split.X_test, X[test])
        np.testing.assert_array_equal(split.y_test, y[test])
        assert split.of_numbers


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


def test_splits__each_class_alike_and_whole_floats_are_numbers(tmp_path):
    y = np.repeat([0, 1], [70, 30])
    np.savez(tmp_path / "labels.npz", X=np.arange(100.0)[:, None], y=np.array(["a", "b"])[y])
    split = read_split(str(tmp_path / "labels.npz"), test_share=0.2)
    assert np.bincount(split.y_test).tolist() == [14, 6]
    assert not split.of_numbers
    np.testing.assert_array_equal(split.y_test, split.X_test[:, 0] >= 70)
    np.savez(tmp_path / "numbers.npz", X=np.arange(100.0)[:, None], y=y.astype(float)[:, None])
    split = read_split(str(tmp_path / "numbers.npz"), test_share=0.2)
    assert split.of_numbers
    assert split.y_train.shape == (80,)


def test_contenders__of_the_size_of_our_basis():
    task = Task(
        of_numbers=False, n_rows=500, n_features=4, basis_size=None, n_basis=300, most_rows=200
    )
    # Four of five folds of the 200 rows of the grid.
    assert CONTENDERS["nystroem"].make(task).estimator["rows"].n_components == 160
    assert CONTENDERS["default"].make(task).basis_size is None
    many = Task(
        of_numbers=False, n_rows=50_000, n_features=4, basis_size=None, n_basis=9, most_rows=9000
    )
    assert CONTENDERS["tuned"].make(many).basis_size == 2000
    assert drawn_rows(5, None).tolist() == drawn_rows(5, 9).tolist() == [0, 1, 2, 3, 4]
    assert len(set(drawn_rows(50, 20))) == 20


class Noted(Ridge):
    """Ridge regression that takes held-out rows, and fails on others."""

    def fit(self, X, y, eval_set):
        ((X_judged, y_judged),) = eval_set
        assert len(X_judged) == len(y_judged) == len(X) // 4
        assert not set(X_judged[:, 0]) & set(X[:, 0])
        return super().fit(X, y)


@pytest.mark.parametrize(
    ("asked", "free_bytes", "most_rows"),
    [
        (None, 12 * 1000**2, 1000),
        (500, 12 * 1000**2, 500),
        (2000, 12 * 1000**2, 1000),
        # Leaves of 60,000 rows fit, and with them any number of rows.
        (None, 12 * 60_000**2, None),
        (2000, 12 * 60_000**2, 2000),
    ],
)
def test_contenders__rows_of_xrfm_fit_into_memory(monkeypatch, asked, free_bytes, most_rows):
    monkeypatch.setitem(sys.modules, "xrfm", ModuleType("xrfm"))
    memory = SimpleNamespace(available=free_bytes)
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
    task = Task(
        of_numbers=False,
        n_rows=9000,
        n_features=4,
        basis_size=None,
        n_basis=9,
        most_rows=10,
        xrfm_rows=asked,
        n_trials=7,
    )
    assert CONTENDERS["xrfm"].make(task).most_rows == most_rows
    searched = CONTENDERS["xrfm-tuned"].make(task)
    assert searched.most_rows == most_rows
    assert [machine.setting for machine in searched.estimators] == drawn_settings(7, 0.8)


@pytest.mark.parametrize("alphas", [(1e6, 1e-3, 1e4), (1e-3, 1e6, 1e4)])
def test_contenders__best_on_held_out_rows(alphas):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y = X @ [1.0, 2.0, 3.0]
    best = HeldOut([Noted(alpha) for alpha in alphas], of_numbers=True, most_rows=100).fit(X, y)
    assert (best.n_fitted_, best.n_judged_) == (80, 20)
    assert best.best_estimator_.alpha == 1e-3
    np.testing.assert_allclose(best.predict(X), y, atol=1e-3)


def test_contenders__settings_of_pytabkit():
    settings = drawn_settings(2000, 0.8)
    lowest = {"bandwidth": 0.5, "reg": 1e-6, "exponent": 0.7}
    highest = {"bandwidth": 200.0, "reg": 10.0, "exponent": 1.4}
    for name, low in lowest.items():
        values = np.array([setting[name] for setting in settings])
        spread = values if name == "exponent" else np.log(values)
        ends = np.array([low, highest[name]])
        ends = ends if name == "exponent" else np.log(ends)
        # Uniform between the ends.
        np.testing.assert_allclose(
            np.quantile(spread, [0, 0.5, 1]),
            [ends[0], ends.mean(), ends[1]],
            atol=0.05 * np.ptp(ends),
        )
        assert ends[0] <= spread.min() <= spread.max() <= ends[1]
    shares = [(s["norm_p"] - s["exponent"]) / (2 - s["exponent"]) for s in settings]
    assert 0 <= min(shares) < 0.01
    assert 0.79 < max(shares) <= 0.8 + 1e-12
    assert 0.77 < np.mean([s["kernel"] == "lpq" for s in settings]) < 0.83
    assert 0.46 < np.mean([s["diag"] for s in settings]) < 0.54
    assert {s["kernel"] for s in drawn_settings(50, 0.0)} == {"l2"}
    assert drawn_settings(30, 0.8) == settings[:30]
