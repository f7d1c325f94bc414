"""What the program tells while it works and when it ends: logs."""

import os
import re

import pytest
from click.testing import CliRunner

from dask_nrbfn.cli import commands
from dask_nrbfn.commands import describe
from tests.logs import fresh_logging
from tests.storage.written import flip_byte
from tests.tables import spirals, write_table

QUICK = ("--basis", "random", "--basis-size", 12, "--threads", 1)


def call(*arguments):
    """Run the program in this process; return its exit code and the lines of standard error."""
    with fresh_logging():
        result = CliRunner().invoke(commands, [*map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stderr.splitlines()


@pytest.fixture
def dataset(tmp_path):
    write_table(tmp_path / "data", *spirals(300), chunk_rows=80)
    return tmp_path / "data"


@pytest.fixture
def damaged(dataset):
    chunk = dataset / "X" / "c" / "1" / "0"
    flip_byte(chunk, 100)
    return dataset


def test_quiet__only_errors(tmp_path, dataset):
    fit = ("--quiet", "fit", dataset, tmp_path / "run", *QUICK)
    assert call(*fit) == (0, [])
    code, (error, fix) = call(*fit, "--alpha", 1e-3)
    assert code == 2
    assert error.startswith("error: ")
    assert fix.startswith("  fix: ")


def test_error__of_the_file_system_has_a_remedy(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(describe, "open_group", lambda location, kind: os.listdir(location))
    code, (error, fix, _) = call("inspect", "--verify", tmp_path / "file")
    assert code == 2
    assert error.startswith("error: [Errno 20] Not a directory")
    assert fix == "  fix: Check the path and its permissions."


def test_summary__is_the_last_line(tmp_path, dataset):
    figures = r"300 rows in \d+\.\d s, peak \d+\.\d\d [MG]iB, exit status 0"
    place = tmp_path / "run"
    for arguments, what in (
        (("inspect", "--verify", dataset), f"inspect {dataset}"),
        (("fit", dataset, place, *QUICK), f"fit {place}"),
        (("evaluate", place, dataset), f"evaluate {place}"),
    ):
        code, lines = call(*arguments)
        assert code == 0
        assert re.fullmatch(rf"\d\d:\d\d:\d\d {re.escape(what)}: {figures}", lines[-1])
        assert sum("exit status" in line for line in lines) == 1


def test_summary__after_an_error(damaged):
    code, lines = call("inspect", "--verify", damaged)
    assert code == 2
    assert lines[-1].endswith("exit status 2")
    code, (error, fix, summary) = call("fit", damaged, damaged)
    assert code == 2
    assert error.startswith("error: ")
    assert fix.startswith("  fix: ")
    assert summary.endswith("exit status 2")


def test_summary__not_of_what_takes_no_time(dataset):
    assert call("inspect", dataset) == (0, [])
