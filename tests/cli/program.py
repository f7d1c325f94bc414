"""The program, called in this process."""

import json
import sys

from click.testing import CliRunner

from dask_nrbfn.cli import commands

PROGRAM = [sys.executable, "-m", "dask_nrbfn"]


def run(*arguments):
    """Run a command in this process; return its exit code, standard output and error."""
    result = CliRunner().invoke(commands, ["--quiet", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def succeed(*arguments):
    code, out, err = run(*arguments)
    assert code == 0, err
    return out


def json_of(*arguments):
    """Return what a command answers with --json."""
    return json.loads(succeed(*arguments, "--json"))


def refuse(*arguments):
    """Return the two lines of a command that the user can mend."""
    code, _, err = run(*arguments)
    assert code == 2, err
    problem, fix = err.strip().split("\n")
    assert problem.startswith("error: ")
    assert fix.startswith("  fix: ")
    return problem.removeprefix("error: "), fix.removeprefix("  fix: ")
