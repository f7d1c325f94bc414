"""Options that name a file: a file that exists is an error before the work, unless --overwrite."""

import shutil

import pytest

from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.params import FitParams
from tests.cli.program import refuse, succeed
from tests.tables import spirals, write_table

NO_SCHEDULER = ("--scheduler", "tcp://127.0.0.1:1")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a dataset, a run and a dataset that cannot be read."""
    place = tmp_path_factory.mktemp("outputs")
    dataset = write_table(place / "data.zarr", *spirals(60))
    params = FitParams(basis="random", basis_size=10, alpha=1e-6)
    fit_dataset(dataset, place / "run.zarr", params, InlineEngine())
    shutil.copytree(place / "data.zarr", place / "damaged.zarr")
    (place / "damaged.zarr" / "X" / "c" / "0" / "0").write_bytes(b"")
    for name in ("old.html", "old.csv", "old"):
        (place / name).write_text("mine")
    return place


@pytest.fixture(autouse=True)
def nothing_is_changed(place, monkeypatch):
    """Run in that directory, and find it afterwards as it was."""
    monkeypatch.chdir(place)
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    yield
    after = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    assert {path for path in before if after.get(path) != before[path]} <= {place}


# Other places that are refused: see the tests of `check_output_file`.
@pytest.mark.parametrize(
    ("out", "problem"),
    [("old.html", "old.html already exists."), ("run.zarr/new.html", "is inside the Zarr group")],
)
def test_report__refused_before_the_evaluation(out, problem):
    # The evaluation would fail.
    report = ("report", "run.zarr", "--out", out, "--evaluate", "damaged.zarr")
    assert problem in refuse(*report)[0]


@pytest.mark.parametrize("out", ["old.csv", "old", "run.zarr/new.csv", "run.zarr/new"])
def test_predict__refused_before_the_cluster_starts(out):
    problem, _ = refuse("predict", "run.zarr", "data.zarr", out, *NO_SCHEDULER)
    assert ("is inside the Zarr group" if "run" in out else f"{out} ") in problem


def test_report__overwrites_a_file_with_the_option(tmp_path):
    page = tmp_path / "page.html"
    assert succeed("report", "run.zarr", "--out", page) == f"page               {page}\n"
    new = page.read_bytes()
    assert b"</html>" in new
    page.write_text("mine")
    refuse("report", "run.zarr", "--out", page)
    assert page.read_text() == "mine"
    succeed("report", "run.zarr", "--out", page, "--overwrite")
    assert page.read_bytes() == new
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ""])
def test_predict__overwrites_its_own_kind_with_the_option(tmp_path, suffix):
    out = tmp_path / f"out{suffix}"
    predict = ("predict", "run.zarr", "data.zarr", out)
    succeed(*predict)
    assert "out" in refuse(*predict)[0]
    succeed(*predict, "--overwrite")
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
