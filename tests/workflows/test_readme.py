"""The README's example, run as it is printed there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dask_nrbfn.params import FitLimits, FitParams, TuneParams

README = (Path(__file__).parents[2] / "README.md").read_text()


def block(marker, language):
    """Return the code block that follows a marker, or the first one of a language after it."""
    return re.search(rf"{re.escape(marker)}.*?```{language}\n(.*?)```", README, re.DOTALL)[1]


def run_in(directory, *command):
    """Run a command with the programs of this environment; return what it prints."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.run(
        command, cwd=directory, env=os.environ | {"PATH": programs}, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.slow
def test_readme__example_on_the_command_line(tmp_path):
    printed = run_in(tmp_path, "bash", "-euo", "pipefail", "-c", block("<!-- example -->", "bash"))
    lines = {tuple(line.split()) for line in printed.splitlines()}
    for line in block("<!-- output -->", "text").splitlines():
        # Errors may move by a row with the kernels of BLAS.
        if not line.startswith(("n_errors", "error_rate")):
            assert tuple(line.split()) in lines
    assert len((tmp_path / "labels.csv").read_text().splitlines()) == 598
    (errors,) = (int(line[1]) for line in lines if line[:1] == ("n_errors",))
    assert abs(errors - 25) <= 2


def test_readme__example_in_python(tmp_path):
    score = float(run_in(tmp_path, sys.executable, "-c", block("In Python:", "python")))
    assert score == pytest.approx(0.958, abs=0.004)


def table_of(*kinds):
    """Return the table of all options of these kinds of parameters."""
    lines = ["| option | default | values | what it does |", "|---|---|---|---|"]
    for kind in kinds:
        for name, option in kind.options().items():
            default = option.default_text if option.default is None else f"`{option.default_text}`"
            cells = f"`--{name.replace('_', '-')}`", default, option.allowed, option.help
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("heading", "kinds"),
    [("Options of a fit", (FitParams, FitLimits)), ("Hyperparameter tuning", (TuneParams,))],
)
def test_readme__tables_are_those_of_the_options(heading, kinds):
    _, _, section = README.partition(f"\n## {heading}\n")
    table = table_of(*kinds)
    assert f"\n{table}\n\n" in section.partition("\n## ")[0], f"The table is to be:\n{table}"
