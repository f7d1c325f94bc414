"""What the program tells while it works and when it ends: logs, metrics, reports."""

import json
import os
import re
import socket
import subprocess
import time
from contextlib import contextmanager
from urllib.request import urlopen

import numpy as np
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from dask_nrbfn.cli import commands
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run
from tests.cli.program import PROGRAM, refuse, run, succeed
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


def call_process_json(*arguments, **environment):
    """Run the program in a process of its own with JSON logs, which its workers write too."""
    done = subprocess.run(
        [*PROGRAM, "--log-format", "json", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )
    return done.returncode, [json.loads(line) for line in done.stderr.splitlines()]


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


def stage_metrics(url):
    """Return the metrics that a job serves, by name and stage."""
    return {
        (sample.name, sample.labels.get("stage")): sample.value
        for family in text_string_to_metric_families(urlopen(url).read().decode())
        for sample in family.samples
    }


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
def test_metrics__scraped_while_the_job_runs(tmp_path, large):
    options = ("--workers", 0, "--metrics", "127.0.0.1:0")
    with started("fit", large, tmp_path / "run", *slow(1200), *options) as job:
        url = entry_with(job, "metrics")["metrics"]
        moments, found = "moments", {}
        while not found.get(("nrbfn_stage_tasks_done", moments), 0) >= 1:
            assert job.poll() is None, "the job ended early"
            time.sleep(0.02)
            found = stage_metrics(url)
        rest = [json.loads(line) for line in job.stderr]
        assert job.wait() == 0
    assert found["nrbfn_stage_in_progress", moments] == 1
    assert found["nrbfn_stage_in_progress", "width"] == 0
    assert found["nrbfn_stage_tasks_done", moments] < found["nrbfn_stage_tasks", moments] == 8
    assert found["nrbfn_stage_rows", moments] == N_LARGE
    assert found["nrbfn_stage_duration_seconds", moments] > 0
    assert found["nrbfn_stage_peak_memory_bytes", moments] > 0
    predicted = Run.open(tmp_path / "run").stages[moments]["predicted_bytes"]
    assert found["nrbfn_stage_predicted_memory_bytes", moments] == predicted
    assert rest[-1]["exit_status"] == 0
    with pytest.raises(OSError, match="refused"):
        urlopen(url)


@pytest.mark.slow
def test_json_logs__of_a_job_on_a_cluster(tmp_path, large):
    page, place = tmp_path / "report.html", tmp_path / "run"
    # Longer than it takes to ask its dashboard.
    options = (*slow(400), "--performance-report", page)
    with started("fit", large, place, *options) as job:
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
    assert page.read_text().lstrip().startswith("<!DOCTYPE html>")


@pytest.mark.slow
def test_json_logs__of_a_job_that_fails_on_a_cluster(tmp_path, damaged):
    page, textfile = tmp_path / "report.html", tmp_path / "job.prom"
    options = ("--performance-report", page, "--metrics-file", textfile)
    code, entries = call_process_json("fit", damaged, tmp_path / "run", *QUICK, *options)
    assert code == 2
    error, summary = entries[-2:]
    assert error["level"] == "ERROR"
    assert "rows 80 to 160" in error["message"]
    assert "Restore the damaged chunk" in error["fix"]
    assert (summary["command"], summary["exit_status"]) == ("fit", 2)
    of_the_worker = [entry for entry in entries if entry["logger"] == "distributed.worker"]
    assert any("Compute Failed" in entry["message"] for entry in of_the_worker)
    assert page.read_text().lstrip().startswith("<!DOCTYPE html>")
    assert f'nrbfn_job_errors_total{{command="fit",run="{tmp_path}/run"}} 1.0' in (
        textfile.read_text()
    )


def test_json_logs__errors_of_all_kinds(dataset):
    code, (error,) = call_json("fit", dataset, "--alpah", 1)
    assert code == 2
    assert "--alpah" in error["message"]
    assert error["fix"].endswith("fit --help.")
    assert error["error"] == "UsageError"
    code, (error, summary) = call_json("check", "nowhere")
    assert (code, summary["exit_status"], summary["rows"]) == (2, 2, None)
    assert error["message"].startswith("there is no")
    assert error["error"] == "MissingDataError"


def test_json_logs__class_of_an_error(tmp_path, dataset, monkeypatch):
    code, (error, _) = call_json("fit", dataset, tmp_path / "run", "--alpha", 2, "--workers", 0)
    assert (code, error["error"]) == (2, "ParameterError")
    (tmp_path / "file").touch()
    monkeypatch.setattr(Dataset, "open", os.listdir)
    code, (error, _) = call_json("check", tmp_path / "file")
    assert (code, error["error"]) == (2, "NotADirectoryError")
    monkeypatch.setattr(Dataset, "open", lambda place: 1 / 0)
    code, (error, _) = call_json("check", tmp_path / "file")
    assert (code, error["error"]) == (1, "ZeroDivisionError")


@pytest.mark.slow
def test_json_logs__an_error_that_nobody_foresaw(tmp_path, dataset):
    bad = {"DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE": "nonsense"}
    code, entries = call_process_json("fit", dataset, tmp_path / "run", *QUICK, **bad)
    assert code == 1
    error, summary = entries[-2:]
    assert "Traceback" in error["exception"]
    assert summary["exit_status"] == 1


def test_log__names_no_hidden_place(tmp_path, dataset):
    succeed("fit", dataset, tmp_path / "run", *QUICK, "--workers", 0)
    np.savez(tmp_path / "rows.npz", X=spirals(20)[0])
    arguments = ("predict", tmp_path / "run", tmp_path / "rows.npz", tmp_path / "out.csv")
    code, lines = call(*arguments, "--workers", 0)
    assert code == 0
    assert any(line.endswith(f"into a temporary copy beside {arguments[-1]}") for line in lines)
    assert not any("unfinished" in line for line in lines)


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
        (("check", dataset), f"check {dataset}"),
        (("fit", dataset, place, *QUICK, "--workers", 0), f"fit {place}"),
        (("evaluate", place, dataset, "--workers", 0), f"evaluate {place}"),
    ):
        code, lines = call(*arguments)
        assert code == 0
        assert re.fullmatch(rf"\d\d:\d\d:\d\d {re.escape(what)}: {figures}", lines[-1])
        assert sum("exit status" in line for line in lines) == 1


def test_summary__after_an_error(damaged):
    code, lines = call("check", damaged)
    assert code == 2
    assert lines[-1].endswith("exit status 2")
    code, (error, fix, summary) = call("fit", damaged, damaged, "--workers", 0)
    assert code == 2
    assert error.startswith("error: ")
    assert fix.startswith("  fix: ")
    assert summary.endswith("exit status 2")


def test_summary__not_of_what_takes_no_time(dataset):
    assert call("inspect", dataset) == (0, [])


@pytest.mark.slow
def test_metrics_file__of_every_command_with_an_engine(tmp_path, dataset):
    place, textfile = tmp_path / "run", tmp_path / "job.prom"
    options = ("--workers", 0, "--metrics-file", textfile)
    for arguments, stage in (
        (("tune", dataset, place, *QUICK, "--folds", 2, "--alphas", "1e-3,1e-4"), "moments"),
        (("evaluate", place, dataset), "evaluate"),
        (("predict", place, dataset, tmp_path / "out"), "predict"),
    ):
        succeed(*arguments, *options)
        (rows,) = re.findall(
            rf'nrbfn_stage_rows{{command="{arguments[0]}",run=".*",stage="{stage}"}} (.*)',
            textfile.read_text(),
        )
        assert float(rows) == 300


def test_options__that_cannot_be_used(tmp_path, dataset):
    fit = ("fit", dataset, tmp_path / "run")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        problem, fix = refuse(*fit, "--workers", 0, "--metrics", f"127.0.0.1:{port}")
    assert problem == f"metrics cannot be served at 127.0.0.1:{port} (Address already in use)."
    assert "free" in fix
    (tmp_path / "file").write_text("mine")
    nowhere = tmp_path / "file" / "page.html"
    assert "cannot be written" in refuse(*fit, "--performance-report", nowhere)[0]
    assert "is a directory" in refuse(*fit, "--performance-report", tmp_path)[0]
    assert "cannot be written" in refuse(*fit, "--metrics-file", nowhere)[0]
    problem, fix = refuse(*fit, "--performance-report", tmp_path / "page.html", "--workers", 0)
    assert problem == "--performance-report is given, but --workers is 0."
    assert "give --workers" in fix
    for port in ("http", "65536", "-1", ""):
        code, _, err = run(*fit, "--metrics", port)
        assert code == 2
        assert "Invalid value for '--metrics'" in err
    assert not (tmp_path / "run").exists()
