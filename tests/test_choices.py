"""A kernel, a loss, a penalty and a source of a basis: each is one file and one line."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dask_nrbfn
from dask_nrbfn.choices import BASES, KERNELS, LOSSES, PENALTIES
from dask_nrbfn.params import FitParams

FILES = {
    "numeric/inverse_multiquadric.py": """
import numpy as np
from dask_nrbfn.numeric.kernels import Kernel
KERNEL = Kernel(
    rate=0.0,
    slope=lambda t: -0.5 * (1 + t**2) ** -1.5,
    log_factor=lambda t: -np.log(np.hypot(1, t)),
)
""",
    "numeric/cubed_hinge.py": """
import numpy as np
from scipy.special import expit
from dask_nrbfn.numeric.losses import Loss
LOSS = Loss(
    value=lambda m: np.maximum(1 - m, 0) ** 3,
    slope=lambda m: -3 * np.maximum(1 - m, 0) ** 2,
    curvature=6.0,
    probability=expit,
)
""",
    "numeric/first_weights.py": """
import numpy as np
from dask_nrbfn.numeric.penalties import Penalty
PENALTY = Penalty(diagonal=lambda features, shares: 1.0 / np.arange(1, len(features.basis) + 1))
""",
    "stages/first_rows.py": """
import numpy as np
from dask_nrbfn.stages.bases import BasisSource, Chosen
def choose(run, dataset, size, rule):
    return Chosen(dataset.take(np.arange(size)), np.arange(size))
SOURCE = BasisSource(choose=choose, described=lambda params, capped, filled: "the first of all")
""",
}
# The table that a line is added to, and the line.
LINES = {
    "KERNELS": '"inverse_multiquadric": "numeric.inverse_multiquadric:KERNEL",',
    "LOSSES": '"cubed-hinge": "numeric.cubed_hinge:LOSS",',
    "PENALTIES": '"first_weights": "numeric.first_weights:PENALTY",',
    "BASES": '"first-rows": "stages.first_rows:SOURCE",',
}
CHOSEN = {
    "kernel": "inverse_multiquadric",
    "loss": "cubed-hinge",
    "penalty": "first_weights",
    "basis": "first-rows",
}
SCRIPT = """
import json, sys
from dask_nrbfn import NRBFNClassifier
from tests.tables import spirals

X, y = spirals(200)
for name, value in json.loads(sys.argv[1]).items():
    values = {"basis": "random", "basis_size": 30, "alpha": 1e-6} | {name: value}
    print(NRBFNClassifier(**values).fit(X, y).score(X, y))
"""


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """Return a directory with a copy of the package that has one more choice of each kind."""
    place = tmp_path_factory.mktemp("extended")
    own = Path(dask_nrbfn.__file__).parent
    package = place / own.name
    shutil.copytree(own, package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in FILES.items():
        assert not (package / name).exists()
        (package / name).write_text(text)
    choices = (package / "choices.py").read_text()
    for table, line in LINES.items():
        begin = f"{table} = Choices(\n    {{\n"
        assert begin in choices
        choices = choices.replace(begin, f"{begin}        {line}\n")
    (package / "choices.py").write_text(choices)
    return place


def run_python(place, *arguments):
    root = Path(dask_nrbfn.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=place,
        env={**os.environ, "PYTHONPATH": f"{place}{os.pathsep}{root}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_choices__one_more_is_one_file_and_one_line(extended):
    (extended / "fits.py").write_text(SCRIPT)
    scores = [float(line) for line in run_python(extended, "fits.py", json.dumps(CHOSEN)).split()]
    assert len(scores) == len(CHOSEN)
    assert min(scores) > 0.6


def test_choices__one_more_is_an_option_of_the_command(extended):
    shown = run_python(extended, "-m", "dask_nrbfn", "fit", "--help")
    assert all(value in shown for value in CHOSEN.values())


@pytest.mark.parametrize(
    ("parameter", "table"),
    [("kernel", KERNELS), ("loss", LOSSES), ("penalty", PENALTIES), ("basis", BASES)],
)
def test_choices__every_line_names_an_object(parameter, table):
    names = [name for name in FitParams.options()[parameter].choices if name != "auto"]
    assert names == list(table) == sorted(table)
    kinds = {type(each).__mro__[-2] for each in table.values()}
    assert len(kinds) == 1
