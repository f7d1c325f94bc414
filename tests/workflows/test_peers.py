"""The table of our networks beside those of other libraries."""

import re

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tests.workflows.script import run_here, run_script
from workflows.benchmarks.contenders import CONTENDERS, Task, drawn_rows
from workflows.benchmarks.splits import read_split

CELLS = r"^\| {title} \| (-?[\d.]+) \| [\d.]+ \| [\d.]+ \| ([\d,]+) \| (.*) \|$"


def peers(*arguments, cwd):
    process = run_here("workflows/benchmarks/peers.py", *arguments, cwd=cwd)
    assert process.returncode == 0, process.stderr
    return process.stdout


def cells(out, title):
    """Return figure, bytes and note of a line."""
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
    assert re.search(r"^\| HistGradientBoosting \|( \|){4} failed: ValueError: ", out, re.MULTILINE)
    assert float(cells(out, "logistic or linear")[0]) < 1


@pytest.mark.slow
def test_peers__ours_and_those_of_the_same_size(tmp_path):
    X, y = load_wine(return_X_y=True)
    lines = [",".join(map(str, [*row, f"class {label}"])) for row, label in zip(X, y, strict=True)]
    header = ",".join([*(f"column{number}" for number in range(13)), "kind"])
    (tmp_path / "wine.csv").write_text("\n".join([header, *lines]))
    names = "default,tuned,nystroem,svc,neighbours,lightgbm,xrfm,falkon"
    arguments = ("wine.csv", "--label", "kind", "--basis-size", 30, "--most-rows", 60)
    process = run_script(
        "workflows/benchmarks/peers.py", *arguments, "--peers", names, cwd=tmp_path
    )
    assert process.returncode == 0, process.stderr
    for title in ("ours, default", "ours, tuned"):
        error, stored, note = cells(process.stdout, title)
        assert float(error) < 20
        assert stored == f"{8 * 30 * (13 + 3):,}"
        assert note == "30 basis rows"
    assert cells(process.stdout, "SVC, 20 combinations")[2].endswith("60 of 124 rows")
    for title in ("Nystroem + ridge", "nearest neighbours"):
        assert float(cells(process.stdout, title)[0]) < 20
    for title in ("LightGBM", "xRFM", "Falkon"):
        assert f"| {title} |" in process.stdout


def test_peers__what_is_not_there_is_refused_first(tmp_path):
    for arguments, problem in (
        (("iris", "mnist"), "mnist is no file"),
        (("iris", "--peers", "linear,forest"), "no peer forest"),
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
