"""Tuning and its options on the command line."""

import time

import numpy as np
import pytest

from dask_nrbfn.storage.run import Run
from tests.cli.program import json_of, refuse, succeed
from tests.tables import spirals, write_table

FEW = ("--basis", "random", "--basis-size", 12, "--folds", 2, "--alphas", "0.01,1e-4")
QUICK = ("--effort", "quick", *FEW)
ONE = ("--width-factors", "0.3", "--features", "normalized")


@pytest.fixture
def dataset(tmp_path):
    write_table(tmp_path / "data", *spirals(120), chunk_rows=50)
    return tmp_path / "data"


def test_cli_tune__json(tmp_path, dataset):
    options = ("--width-factors", "1.0,0.3", "--features", "plain, normalized", *QUICK)
    tuned = json_of("tune", dataset, tmp_path / "run", *options)
    params = Run.open(tmp_path / "run").chosen_params
    for name in ("features", "kernel", "width_factor", "basis_rule", "penalty", "alpha"):
        assert tuned["chosen"][name] == getattr(params, name)
    assert [entry["alpha"] for entry in tuned["path"]] == [0.01, 1e-4]
    tried = {(entry["features"], entry["width_factor"]) for entry in tuned["tried"]}
    assert tried == {("plain", 1.0), ("plain", 0.3), ("normalized", 1.0), ("normalized", 0.3)}
    best = min(tuned["path"], key=lambda entry: (entry["error_rate"], -entry["alpha"]))
    assert tuned["chosen"]["alpha"] == tuned["alpha"] == best["alpha"]
    assert tuned["error_rate"] == best["error_rate"]
    for name in ("error_rate", "log_loss", "temperature", "log_slope", "biases"):
        assert tuned[name] == tuned["chosen"][name]
    assert tuned["log_loss"] < best["log_loss"]
    again = json_of("tune", dataset, tmp_path / "run", *options)
    assert again == tuned
    inspected = json_of("inspect", tmp_path / "run")
    assert inspected["biases"] == tuned["biases"]


def test_cli_tune__every_option_reaches_the_run(tmp_path, dataset):
    write_table(tmp_path / "judged", *spirals(60, seed=1))
    options = (
        "--kernels", "laplacian", "--basis-rules", "uniform", "--search-basis", "7",
        "--search-rows", "50", "--class-weight", "balanced", "--scales", "standard", "--bases",
        "random", "--random-state", "3", "--validation", tmp_path / "judged", *FEW,
        *ONE, "--effort", "thorough", "--losses", "squared",
    )  # fmt: skip
    tuned = json_of("tune", dataset, tmp_path / "run", *options)
    tuning = Run.open(tmp_path / "run").begun
    given = tuning.params
    assert (tuning.kernels, tuning.basis_rules) == (("laplacian",), ("uniform",))
    assert (tuning.search_basis, tuning.search_rows, tuning.folds) == (7, 50, 2)
    assert (tuning.effort, tuning.scales, tuning.bases) == ("thorough", ("standard",), ("random",))
    assert (given.class_weight, given.random_state) == ("balanced", 3)
    assert (given.basis, given.basis_size) == ("random", 12)
    assert tuned["stages"]["validation"]["n_rows"] == 60
    assert tuned["chosen"]["kernel"] == "laplacian"
    assert tuned["tried"] == []


@pytest.mark.fast_cases(1)
@pytest.mark.parametrize(
    "command", [("fit", "--alpha", 1e-3), ("tune", *QUICK[:2], *QUICK[6:], *ONE)]
)
def test_cli__basis_of_a_file(tmp_path, dataset, command):
    name, *options = command
    basis = spirals(9, seed=1)[0]
    np.save(tmp_path / "basis.npy", basis)
    options += ["--basis", tmp_path / "basis.npy"]
    succeed(name, dataset, tmp_path / "run", *options)
    np.testing.assert_array_equal(Run.open(tmp_path / "run").read("basis/values"), basis)
    succeed(name, dataset, tmp_path / "run", *options)
    np.save(tmp_path / "basis.npy", basis + 1)
    assert "was begun with --basis=given:" in refuse(name, dataset, tmp_path / "run", *options)[0]


def test_cli__files_that_are_no_basis(tmp_path, dataset):
    np.save(tmp_path / "good.npy", np.ones((3, 4)))
    np.savez(tmp_path / "archive.npy.npz", np.ones((3, 4)))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "good.npy").read_bytes()[:-9])
    (tmp_path / "empty.npy").touch()
    fit = ("fit", dataset, tmp_path / "run", "--basis")
    for name in ("cut.npy", "empty.npy", "archive.npy.npz", "nowhere"):
        problem, fix = refuse(*fit, tmp_path / name)
        assert f"{name} is not" in problem
        assert "kmeans, random, sknn" in fix
    wrong = refuse(*fit, tmp_path / "good.npy", "--basis-size", 4)
    assert wrong[0] == "--basis-size is 4, but 3 basis rows are given."
    assert not (tmp_path / "run").exists()


def test_cli_tune__text_that_is_no_number_is_named(tmp_path, dataset):
    problem, _ = refuse("tune", dataset, tmp_path / "run", "--alphas", "0.1,a")
    assert problem == "--alphas is 'a'."
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_time_limit__of_20_s_ends_within_30_though_a_tuning_needs_minutes(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((100_000, 20))
    score = X[:, 0] * X[:, 1] + np.sin(2 * X[:, 2]) + np.abs(X[:, 3]) - 0.8
    y = score + 0.4 * rng.standard_normal(len(X)) > 0
    write_table(tmp_path / "data", X, y.astype(np.int64), chunk_rows=20_000)
    starts = time.monotonic(), time.process_time()
    succeed("tune", tmp_path / "data", tmp_path / "run", "--time-limit", 20)
    wall, processor = time.monotonic() - starts[0], time.process_time() - starts[1]
    # On a busy machine this process waits, which no expected time includes.
    assert min(wall, processor) < 30
    assert Run.open(tmp_path / "run").stages["model"]
