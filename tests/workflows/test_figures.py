import csv

import pytest

from tests.workflows.script import run_here, run_script


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """The directory with the figures of iris."""
    place = tmp_path_factory.mktemp("figures")
    arguments = ["drawings", "--sets", "iris", "--formats", "png", "svg"]
    process = run_script("workflows/paper/figures.py", *arguments, cwd=place)
    assert process.returncode == 0, process.stderr
    return place / "drawings"


@pytest.fixture
def points(drawn):
    """Eps and gamma, error and rank by parameter and value."""
    with (drawn / "points.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["data"] for row in rows} == {"iris"}
    table = {}
    for row in rows:
        figures = {key: float(row[key]) for key in ("error", "rank", "eps", "gamma")}
        table.setdefault(row["parameter"], {})[float(row["value"])] = figures
    return table


@pytest.mark.slow
def test_figures__files(drawn):
    names = {f"figure-{n}.{suffix}" for n in (1, 2, 3) for suffix in ("png", "svg")}
    assert {path.name for path in drawn.iterdir()} == names | {"points.csv"}
    for path in drawn.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_figures__points_of_the_paper(points):
    assert set(points) == {"alpha", "confidence_threshold", "n_neighbors"}
    default = points["alpha"][1e-13]
    assert default == points["confidence_threshold"][0.9] == points["n_neighbors"][20]
    # Table 4, and Table 5 for another penalty.
    assert f"{default['error']:.1f}" == "8.0"
    assert f"{points['alpha'][1e-9]['eps']:.3f}" == "1.044"
    path = [points["alpha"][alpha] for alpha in sorted(points["alpha"], reverse=True)]
    assert [p["eps"] for p in path] == sorted((p["eps"] for p in path), reverse=True)
    assert [p["gamma"] for p in path] == sorted(p["gamma"] for p in path)


def test_figures__unknown_set(tmp_path):
    process = run_here("workflows/paper/figures.py", "here", "--sets", "glass", cwd=tmp_path)
    assert process.returncode == 2
    assert "invalid choice: 'glass'" in process.stderr
    assert not (tmp_path / "here").exists()
