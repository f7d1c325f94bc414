"""A kernel, a loss, a penalty and a source of a basis: each is an object and a name."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dask_nrbfn
from dask_nrbfn.choices import BASES, KERNELS, LOSSES, PENALTIES
from dask_nrbfn.params import FitParams

# A parameter, the module and the table of its choices, a name, and the object of this name.
ADDED = [
    (
        "kernel",
        "numeric/kernels.py",
        "KERNELS",
        "inverse-multiquadric",
        """
INVERSE_MULTIQUADRIC = Kernel(
    rate=0.0,
    slope=lambda t: -0.5 * (1 + t**2) ** -1.5,
    log_factor=lambda t: -np.log(np.hypot(1, t)),
)
""",
    ),
    (
        "loss",
        "numeric/losses.py",
        "LOSSES",
        "cubed-hinge",
        """
CUBED_HINGE = Loss(
    value=lambda m: np.maximum(1 - m, 0) ** 3,
    slope=lambda m: -3 * np.maximum(1 - m, 0) ** 2,
    curvature=6.0,
    probability=LOGISTIC.probability,
)
""",
    ),
    (
        "penalty",
        "numeric/penalties.py",
        "PENALTIES",
        "first-weights",
        """
FIRST_WEIGHTS = Penalty(diagonal=lambda features, _: 1.0 / np.arange(1, len(features.basis) + 1))
""",
    ),
    (
        "basis",
        "stages/basis.py",
        "BASES",
        "first-rows",
        """
from dask_nrbfn.stages.bases import BasisSource, Chosen
FIRST_ROWS = BasisSource(
    choose=lambda run, dataset, size, rule: Chosen(dataset.take(np.arange(size)), np.arange(size)),
)
""",
    ),
]
CHOSEN = {parameter: name for parameter, _, _, name, _ in ADDED}
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
    choices = (package / "choices.py").read_text()
    for _, module, table, name, text in ADDED:
        with (package / module).open("a") as file:
            file.write(text)
        begin = rf'({table} = Choices\(\s*"[\w.]+")'
        choices, n_changed = re.subn(begin, rf'\1, "{name}"', choices)
        assert n_changed == 1
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
def test_choices__one_more_is_an_object_and_a_name(extended):
    shown = run_python(extended, "-m", "dask_nrbfn", "fit", "--help")
    assert all(value in shown for value in CHOSEN.values())
    (extended / "fits.py").write_text(SCRIPT)
    scores = [float(line) for line in run_python(extended, "fits.py", json.dumps(CHOSEN)).split()]
    assert len(scores) == len(CHOSEN)
    assert min(scores) > 0.6


@pytest.mark.parametrize(
    ("parameter", "table"),
    [("kernel", KERNELS), ("loss", LOSSES), ("penalty", PENALTIES), ("basis", BASES)],
)
def test_choices__every_line_names_an_object(parameter, table):
    names = [name for name in FitParams.options()[parameter].choices if name != "auto"]
    assert names == list(table) == sorted(table)
    kinds = {type(each).__mro__[-2] for each in table.values()}
    assert len(kinds) == 1
