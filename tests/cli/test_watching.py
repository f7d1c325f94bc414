"""What the program tells while it works and when it ends: logs."""

import json
import os
import re
import subprocess
from contextlib import contextmanager
from urllib.request import urlopen

import pytest
from click.testing import CliRunner

from dask_nrbfn.cli import commands
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run
from tests.cli.program import PROGRAM
from tests.logs import fresh_logging
from tests.storage.written import flip_byte
from tests.tables import spirals, write_table

N_LARGE = 30_000
QUICK = ("--basis", "random", "--basis-size", 12, "--threads", 1)


def slow(basis_size):
    """Return options of a fit that takes seconds."""
    options = ("--basis", "random", "--n-parts", 8, "--alpha", 1e-6, "--threads", 1)
    return (*options, "--basis-size", basis_size)


def call(*arguments):
    """Run the program in this process; return its exit code and the lines of standard error."""
    with fresh_logging():
        result = CliRunner().invoke(commands, [*map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stderr.splitlines()


def call_json(*arguments):
    """Do so with JSON logs; return the exit code and the log's entries."""
    code, lines = call("--log-format", "json", *arguments)
    return code, [json.loads(line) for line in lines]


@contextmanager
def started(*arguments):
    """Give the running program, which logs JSON."""
    command = [*PROGRAM, "--log-format", "json", *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as job:
        try:
            yield job
        finally:
            job.kill()


def entry_with(job, name):
    """Return the next entry of the log that has `name`."""
    return next(entry for entry in map(json.loads, job.stderr) if name in entry)


@pytest.fixture
def dataset(tmp_path):
    write_table(tmp_path / "data", *spirals(300), chunk_rows=80)
    return tmp_path / "data"


@pytest.fixture
def large(tmp_path):
    """Rows whose moments take seconds."""
    write_table(tmp_path / "large", *spirals(N_LARGE, n_features=8), chunk_rows=10_000)
    return tmp_path / "large"


@pytest.fixture
def damaged(dataset):
    chunk = dataset / "X" / "c" / "1" / "0"
    flip_byte(chunk, 100)
    return dataset


@pytest.mark.slow
def test_json_logs__of_a_job_on_a_cluster(tmp_path, large):
    place = tmp_path / "run"
    # Longer than it takes to ask its dashboard.
    with started("fit", large, place, *slow(400), "--workers", 1) as job:
        entry = entry_with(job, "dashboard")
        assert entry["message"] == f"dashboard: {entry['dashboard']}"
        assert urlopen(entry["dashboard"]).status == 200
        metrics = urlopen(entry["dashboard"].replace("/status", "/metrics")).read().decode()
        assert "dask_scheduler_workers" in metrics
        entries = [json.loads(line) for line in job.stderr]
        assert job.wait() == 0
    stages = Run.open(place).stages
    told = {entry["stage"]: entry for entry in entries if "stage" in entry}
    assert list(told) == list(stages)
    for stage, record in stages.items():
        assert told[stage]["run"] == str(place)
        assert told[stage]["rows"] == N_LARGE
        for name in ("seconds", "peak_bytes", "predicted_bytes"):
            assert told[stage][name] == record[name]
    for entry in entries:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", entry["time"])
        assert {"level", "logger", "message"} <= entry.keys()
    summary = entries[-1]
    assert summary["command"] == "fit"
    assert summary["what"] == str(place)
    assert (summary["rows"], summary["exit_status"]) == (N_LARGE, 0)
    assert summary["seconds"] >= sum(record["seconds"] for record in stages.values())
    assert summary["peak_bytes"] >= max(record["peak_bytes"] for record in stages.values())


def test_json_logs__errors_of_all_kinds(dataset):
    code, (error,) = call_json("fit", dataset, "--alpah", 1)
    assert code == 2
    assert "--alpah" in error["message"]
    assert error["fix"].endswith("fit --help.")
    assert error["error"] == "UsageError"
    code, (error, summary) = call_json("inspect", "--verify", "nowhere")
    assert (code, summary["exit_status"], summary["rows"]) == (2, 2, None)
    assert error["message"].startswith("there is no")
    assert error["error"] == "MissingDataError"


def test_json_logs__class_of_an_error(tmp_path, dataset, monkeypatch):
    code, (error, _) = call_json("fit", dataset, tmp_path / "run", "--alpha", 2, "--workers", 0)
    assert (code, error["error"]) == (2, "ParameterError")
    (tmp_path / "file").touch()
    monkeypatch.setattr(Dataset, "open", os.listdir)
    code, (error, _) = call_json("inspect", "--verify", tmp_path / "file")
    assert (code, error["error"]) == (2, "NotADirectoryError")
    monkeypatch.setattr(Dataset, "open", lambda place: 1 / 0)
    code, (error, _) = call_json("inspect", "--verify", tmp_path / "file")
    assert (code, error["error"]) == (1, "ZeroDivisionError")


def test_json_logs__quiet(tmp_path, dataset):
    fit = ("fit", dataset, tmp_path / "run", "--workers", 0, *QUICK)
    assert call_json("--quiet", *fit) == (0, [])
    code, (error,) = call_json("--quiet", *fit, "--alpha", 1e-3)
    assert code == 2
    assert error["level"] == "ERROR"


def test_summary__is_the_last_line(tmp_path, dataset):
    figures = r"300 rows in \d+\.\d s, peak \d+\.\d\d [MG]iB, exit status 0"
    place = tmp_path / "run"
    for arguments, what in (
        (("inspect", "--verify", dataset), f"inspect {dataset}"),
        (("fit", dataset, place, *QUICK, "--workers", 0), f"fit {place}"),
        (("evaluate", place, dataset, "--workers", 0), f"evaluate {place}"),
    ):
        code, lines = call(*arguments)
        assert code == 0
        assert re.fullmatch(rf"\d\d:\d\d:\d\d {re.escape(what)}: {figures}", lines[-1])
        assert sum("exit status" in line for line in lines) == 1


def test_summary__after_an_error(damaged):
    code, lines = call("inspect", "--verify", damaged)
    assert code == 2
    assert lines[-1].endswith("exit status 2")
    code, (error, fix, summary) = call("fit", damaged, damaged, "--workers", 0)
    assert code == 2
    assert error.startswith("error: ")
    assert fix.startswith("  fix: ")
    assert summary.endswith("exit status 2")


def test_summary__not_of_what_takes_no_time(dataset):
    assert call("inspect", dataset) == (0, [])
