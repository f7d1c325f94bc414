"""The command line as a user meets it: real processes, exit codes and messages."""

import json
import os
import subprocess
import sys

import pandas as pd
import pytest

from tests.cli.program import PROGRAM, json_of, refuse, succeed
from tests.tables import spirals, write_table


@pytest.fixture
def csv(tmp_path):
    X, y = spirals(300)
    frame = pd.DataFrame(X, columns=list("abcd")).assign(kind=y)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    return tmp_path / "rows.csv"


@pytest.fixture
def dataset(tmp_path):
    write_table(tmp_path / "data", *spirals(300), chunk_rows=80)
    return tmp_path / "data"


def test_cli__a_reader_that_goes_is_no_error(dataset):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*PROGRAM, "inspect", dataset], **pipes) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_cli__json(tmp_path, dataset):
    fitted = json_of("fit", dataset, tmp_path / "run")
    keys = "n_rows n_features n_classes n_basis width alpha fitting_error spectral_risk error_rate"
    assert set(keys.split()) | {"stages"} <= fitted.keys()
    assert (fitted["n_rows"], fitted["n_features"], fitted["n_classes"]) == (300, 4, 3)
    assert all(record["seconds"] >= 0 for record in fitted["stages"].values())
    tested = json_of("evaluate", tmp_path / "run", dataset)
    assert set(keys.split()) <= tested.keys()
    assert tested["error_rate"] == tested["n_errors"] / 300
    inspected = json_of("inspect", tmp_path / "run")
    assert inspected == {"kind": "run", **fitted}
    assert json_of("inspect", "--verify", dataset)["problems"] == []
    out = succeed("predict", tmp_path / "run", dataset, tmp_path / "out", "--json")
    assert json.loads(out)["n_rows"] == 300
    assert json_of("inspect", tmp_path / "out")["kind"] == "predictions"


@pytest.mark.slow
def test_cli__as_a_program_and_as_a_dask_command(tmp_path, dataset):
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    options = {"capture_output": True, "text": True, "env": {**os.environ, "PATH": path}}
    for program in (["dask-nrbfn"], ["dask", "nrbfn"]):
        sound = subprocess.run([*program, "inspect", dataset], **options)
        assert sound.returncode == 0, sound.stderr
        assert "n_rows             300" in sound.stdout
    # One of them, as the others come to the same function.
    missing = subprocess.run([*program, "inspect", tmp_path / "nothing"], **options)
    assert missing.returncode == 2
    assert "Traceback" not in missing.stderr
    # Other packages with dask commands may warn before.
    assert missing.stderr.splitlines()[-2].startswith("error: there is no")


def test_cli__places(tmp_path, csv, dataset):
    assert "rows.csv is not a dataset" in refuse("fit", csv, tmp_path / "run")[0]
    assert "is the input" in refuse("fit", dataset, dataset)[0]
    (tmp_path / "empty").mkdir()
    succeed("fit", dataset, tmp_path / "empty")
    succeed("ingest", csv, f"file://{tmp_path}/by url", "--label", "kind")
    assert "n_rows             300" in succeed("inspect", tmp_path / "by url")
    below_a_file = refuse("ingest", csv, csv / "data", "--label", "kind")[0]
    assert str(csv) in below_a_file
    problem, _ = refuse("ingest", csv, "gs://nowhere/data", "--label", "kind")
    assert "not installed" in problem
