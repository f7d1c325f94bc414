import numpy as np
import pytest
from sklearn.datasets import load_digits

from dask_nrbfn import NRBFNClassifier
from tests.workflows.script import run_here, run_script

QUICKSTART = "workflows/quickstart.py"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Directory and process of a run."""
    directory = tmp_path_factory.mktemp("quickstart")
    return directory, run_script(QUICKSTART, cwd=directory)


@pytest.mark.slow
def test_quickstart__prints_what_it_promises(finished):
    _, process = finished
    assert process.returncode == 0, process.stderr
    lines = {line[:12].strip(): line[12:] for line in process.stdout.splitlines()}
    assert list(lines) == [
        "rows", "basis size", "width", "eps", "gamma", "error rate", "seconds", "model"
    ]  # fmt: skip
    assert lines["rows"] == "1347 x 64 in 6 chunks, 450 more held back"
    assert lines["basis size"].startswith("299 ")
    assert lines["model"] == "quickstart-output/model.zarr"
    assert all(stage in lines["seconds"] for stage in ("neighbors", "moments", "weights"))


@pytest.mark.slow
def test_quickstart__saved_model_makes_the_errors_it_prints(finished):
    directory, process = finished
    X, y = load_digits(return_X_y=True)
    network = NRBFNClassifier.load(directory / "quickstart-output/model.zarr")
    n_errors = np.sum(network.predict(X[::4]) != y[::4])
    assert f"({n_errors} of the 450 rows held back)" in process.stdout
    assert n_errors <= 9


def test_quickstart__leaves_a_directory_of_somebody_else(tmp_path):
    (tmp_path / "run.zarr").mkdir()
    (tmp_path / "run.zarr" / "mine").write_text("kept")
    process = run_here(QUICKSTART, "--output", tmp_path, cwd=tmp_path)
    assert process.returncode == 2
    assert process.stderr.splitlines() == [
        f"{tmp_path} was not written by the quickstart.",
        "Give another --output.",
    ]
    assert (tmp_path / "run.zarr" / "mine").read_text() == "kept"
