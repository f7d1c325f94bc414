"""A kernel, a loss, a penalty and a source of a basis: each is one file that no other names."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dask_nrbfn
from tests.tables import spirals, write_table

NEW_FILES = {
    "numeric/kernels/inverse_multiquadric.py": """
import numpy as np
from dask_nrbfn.numeric.kernels import DistanceKernel
KERNEL = DistanceKernel(
    rate=0.0,
    slope_of=lambda t: -0.5 * (1 + t**2) ** -1.5,
    log_factor=lambda t: -np.log(np.hypot(1, t)),
)
""",
    "numeric/losses/cubed_hinge.py": """
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
    "numeric/penalties/first_weights.py": """
import numpy as np
from dask_nrbfn.numeric.penalties import Penalty
PENALTY = Penalty(diagonal=lambda features, shares: 1.0 / np.arange(1, len(features.basis) + 1))
""",
    "stages/bases/first_rows.py": """
import numpy as np
from dask_nrbfn.stages.bases import BasisSource, Chosen
def choose(run, dataset, size, rule):
    return Chosen(dataset.take(np.arange(size)), np.arange(size))
SOURCE = BasisSource(choose=choose, described=lambda params, capped: "the first of all")
""",
}


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """Give a directory with a copy of the package that has one more file of each kind."""
    place = tmp_path_factory.mktemp("extended")
    own = Path(dask_nrbfn.__file__).parent
    shutil.copytree(own, place / own.name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in NEW_FILES.items():
        (place / own.name / name).write_text(text)
    write_table(place / "data", *spirals(200))
    return place


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("kernel", "inverse-multiquadric"),
        ("loss", "cubed-hinge"),
        ("penalty", "first-weights"),
        ("basis", "first-rows"),
    ],
)
def test_choices__one_more_is_one_file(extended, option, name):
    run = extended / f"run-{option}"
    fit = ["fit", extended / "data", run, f"--{option}", name, "--basis-size", 30, "--alpha", 1e-6]
    for command in (fit, ["evaluate", run, extended / "data", "--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "dask_nrbfn", *map(str, command), "--workers", "0"],
            cwd=extended,
            env={**os.environ, "PYTHONPATH": str(extended)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["error_rate"] < 0.4
