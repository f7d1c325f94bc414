"""A command that is stopped says in one line what is kept, and leaves no process behind."""

import os
import re
import signal
import subprocess
import sys

import psutil
import pytest

from tests.cli.program import succeed
from tests.engine.processes import PATIENCE_S, wait_until
from tests.tables import spirals, write_table

# What starts the tests in the background may ignore Ctrl-C, and so would the program.
PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from dask_nrbfn.cli import main
main()
"""
FIT = ("--basis", "random", "--basis-size", "1200", "--n-parts", "8", "--alpha", "1e-6")
KEPT = "finished parts are kept, and the same command continues"
NOT_KEPT = "nothing is kept; the same command starts again"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    directory = tmp_path_factory.mktemp("stops")
    write_table(directory / "data", *spirals(30_000, n_features=8), chunk_rows=10_000)
    return directory


def started(place, *arguments, env=None):
    """Start the program in a process group of its own, as a terminal does."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, arguments)],
        cwd=place,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def stopped(job, send, number):
    """Send a signal; return the last lines of the program, whose children all end."""
    family = psutil.Process(job.pid).children(recursive=True)
    send(job.pid, number)
    _, errors = job.communicate(timeout=PATIENCE_S)
    ended = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    wait_until(lambda: not any(p.is_running() and p.status() not in ended for p in family))
    return errors.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("send", "number", "code"),
    [(os.killpg, signal.SIGINT, 130), (os.kill, signal.SIGTERM, 143)],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_fit__stopped_keeps_its_parts(place, tmp_path, send, number, code):
    fit = ("fit", "data", tmp_path / "run", *FIT, "--workers", 2, "--threads", 1)
    job = started(place, *fit)
    next(line for line in job.stderr if "width: " in line)
    *before, line = stopped(job, send, number)
    # The fit may tell more until the signal arrives.
    assert all(
        re.match(r"[\d:]+ (width|moments|up to|dashboard|expected)", each) for each in before
    ), before
    assert job.returncode == code
    assert f"fit {tmp_path / 'run'}: stopped after " in line
    assert line.endswith(KEPT)
    if send is os.killpg:
        again = started(place, *fit)
        _, errors = again.communicate(timeout=PATIENCE_S)
        assert again.returncode == 0, errors


@pytest.mark.slow
def test_predict__stopped_keeps_nothing(place, tmp_path):
    run = place / "run"
    succeed("fit", place / "data", run, "--basis", "random", "--basis-size", 5, "--workers", 0)
    job = started(place, "predict", run, "data", tmp_path / "out.csv", "--workers", 1)
    next(line for line in job.stderr if "dashboard" in line)
    (line,) = stopped(job, os.killpg, signal.SIGINT)
    assert (job.returncode, line.endswith(NOT_KEPT)) == (130, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ingest__stopped_while_a_query_runs(tmp_path, number, code):
    endless = "SELECT range AS a, range % 2 AS y FROM range(1_000_000_000_000)"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch)}
    job = started(tmp_path, "ingest", "--sql", endless, "rows", "--label", "y", env=environment)
    wait_until(lambda: psutil.Process(job.pid).cpu_times().user > 1.5)
    lines = stopped(job, os.kill, number)
    assert job.returncode == code
    assert NOT_KEPT in lines[-1]
    assert os.listdir(tmp_path) == ["scratch"]
    assert os.listdir(scratch) == []
