"""One run of each example, as its user starts it."""

import csv
import re

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dask_nrbfn import NRBFNClassifier
from tests.workflows.script import ROOT, run_here, run_script

NOTEBOOKS = sorted(path.name for path in (ROOT / "workflows/notebooks").glob("*.py"))


def printed_by(name, *arguments, cwd):
    process = run_script(name, *arguments, cwd=cwd)
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.slow
def test_quickstart__saved_model_makes_the_errors_it_prints(tmp_path):
    out = printed_by("workflows/quickstart.py", cwd=tmp_path)
    assert "1347 x 64 in 6 chunks, 450 more held back" in out
    X, y = load_digits(return_X_y=True)
    network = NRBFNClassifier.load(tmp_path / "quickstart-output/model.zarr")
    n_errors = np.sum(network.predict(X[::4]) != y[::4])
    assert f"({n_errors} of the 450 rows held back)" in out
    assert n_errors <= 9


def test_quickstart__leaves_a_directory_of_somebody_else(tmp_path):
    (tmp_path / "run.zarr").mkdir()
    (tmp_path / "run.zarr" / "mine").write_text("kept")
    process = run_here("workflows/quickstart.py", "--output", tmp_path, cwd=tmp_path)
    assert process.returncode == 2
    assert (tmp_path / "run.zarr" / "mine").read_text() == "kept"


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks__run_as_scripts(name, tmp_path):
    assert "errors" in printed_by(f"workflows/notebooks/{name}", cwd=tmp_path)
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_text__rows_never_become_dense(tmp_path):
    options = ("--rows", "1500", "--basis-size", "300")
    out = printed_by("workflows/arrays/text.py", *options, cwd=tmp_path)
    steps = re.findall(r"^(ingest|tune|evaluate|predict) +[\d.]+ +(\d+)$", out, re.MULTILINE)
    assert len(steps) == 4
    # The rows as an array, and the libraries.
    assert max(float(peak) for _, peak in steps) < 8 * 1500 * 30_000 / 2**20 + 200
    # Of 30 classes.
    assert max(map(float, re.findall(r"^error .* ([0-9.]+) %$", out, re.MULTILINE))) < 40


@pytest.mark.slow
def test_figures__points_of_the_paper(tmp_path):
    printed_by("workflows/paper/figures.py", "drawings", "--sets", "iris", cwd=tmp_path)
    places = {path.name for path in (tmp_path / "drawings").iterdir()}
    assert places == {"figure-1.png", "figure-2.png", "figure-3.png", "points.csv"}
    with (tmp_path / "drawings/points.csv").open() as file:
        rows = {(row["parameter"], float(row["value"])): row for row in csv.DictReader(file)}
    # Table 4, and Table 5 for another penalty.
    assert f"{float(rows['alpha', 1e-13]['error']):.1f}" == "8.0"
    assert f"{float(rows['alpha', 1e-9]['eps']):.3f}" == "1.044"
