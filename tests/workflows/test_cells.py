import re

import pytest

from tests.cells import read_cells
from tests.workflows.script import run_here, run_script

CELLS = "workflows/arrays/cells.py"


@pytest.mark.slow
def test_cells__every_cell_gets_a_type(tmp_path):
    process = run_script(CELLS, "--cells", 800, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    share = re.search(r"held out +([\d.]+) % right", process.stdout)
    assert float(share[1]) > 85
    obs = read_cells(tmp_path / "cells-output/cells.zarr").obs
    known = obs["cell_type"].notna()
    assert f"{len(obs)}, {(~known).sum()} of them without a type" in process.stdout
    assert (obs["predicted"].astype(str) == obs["cell_type"].astype(str))[known].mean() > 0.85
    assert obs["predicted_confidence"].between(0.2, 1).all()


def test_cells__leaves_what_is_there(tmp_path):
    (tmp_path / "mine").mkdir()
    process = run_here(CELLS, "--output", "mine", cwd=tmp_path)
    assert process.returncode == 2
    assert "exists" in process.stderr
