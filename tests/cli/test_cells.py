"""Networks of cells from the command line."""

import numpy as np
import pytest

from tests.cli.program import json_of, refuse, succeed
from tests.tables import spirals, write_table


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("cells")
    write_table(place / "rows.zarr", *spirals(300))
    X, y = spirals(90, seed=1)
    np.savez(place / "more.npz", X=X, y=y)
    options = ("--cells", 3, "--basis", "random", "--basis-size", 20, "--features", "plain")
    succeed("fit", place / "rows.zarr", place / "run", *options)
    return place


def test_cli__cells_are_inspected_and_used(place, tmp_path):
    lines = succeed("inspect", place / "run").splitlines()
    cells = [line for line in lines if line.startswith("cell ")]
    assert len(cells) == 3
    assert all("column " in line and "basis 20" in line for line in cells)
    figures = json_of("inspect", place / "run")
    assert [cell["n_rows"] for cell in figures["cells"]] == [75, 75, 150]
    evaluated = json_of("evaluate", place / "run", place / "more.npz")
    assert evaluated["error_rate"] < 0.5
    succeed("predict", place / "run", place / "more.npz", tmp_path / "out.csv", "--probabilities")
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 91
    succeed("report", place / "run", "--out", tmp_path / "page.html")
    plan = succeed("plan", place / "rows.zarr", "--cells", 3, "--basis-size", 20)
    assert "60 basis rows in 3 cells" in plan
    assert "3 cells" in refuse("export", place / "run", tmp_path / "model.onnx")[0]
