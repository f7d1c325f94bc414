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

# A parameter and a new name of it; the module, and what defines the object of this name there.
ADDED = {
    ("kernel", "inverse-multiquadric"): (
        "numeric/kernels.py",
        "INVERSE_MULTIQUADRIC = Kernel(rate=0.0, slope=lambda t: -0.5 * (1 + t**2) ** -1.5,"
        " log_factor=lambda t: -np.log(np.hypot(1, t)))",
    ),
    ("loss", "cubed-hinge"): (
        "numeric/losses.py",
        "CUBED_HINGE = Loss(value=lambda m: np.maximum(1 - m, 0) ** 3, curvature=6.0,"
        " slope=lambda m: -3 * np.maximum(1 - m, 0) ** 2, probability=LOGISTIC.probability)",
    ),
    ("penalty", "first-weights"): (
        "numeric/penalties.py",
        "FIRST_WEIGHTS_PENALTY = Penalty("
        "diagonal=lambda terms: 1.0 / np.arange(1, len(terms.features().basis) + 1))",
    ),
    ("basis", "first-rows"): (
        "stages/basis.py",
        "from dask_nrbfn.stages.bases import BasisSource, Chosen\n"
        "FIRST_ROWS = BasisSource(choose=lambda run, dataset, size, rule:"
        " Chosen(dataset.take(np.arange(size)), np.arange(size)))",
    ),
}
TABLES = {"kernel": "KERNELS", "loss": "LOSSES", "penalty": "PENALTIES", "basis": "BASES"}
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
    for (parameter, name), (module, text) in ADDED.items():
        with (package / module).open("a") as file:
            file.write(f"\n{text}\n")
        begin = rf'({TABLES[parameter]} = Choices\(\s*"[\w.]+")'
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
    assert all(name in shown for _, name in ADDED)
    (extended / "fits.py").write_text(SCRIPT)
    scores = [
        float(line)
        for line in run_python(extended, "fits.py", json.dumps(dict(ADDED.keys()))).split()
    ]
    assert len(scores) == len(ADDED)
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
