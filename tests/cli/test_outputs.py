"""Options that name a file: a file that exists is an error before the work, unless --overwrite."""

import re
import shutil

import pytest

from dask_nrbfn import FitParams, InlineEngine, fit_dataset
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
    (place / "days").mkdir()
    for name in ("old.html", "old.csv", "old", "days/1.csv"):
        (place / name).write_text("mine")
    (place / "link.csv").symlink_to("old.csv")
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
    [("old.html", "old.html already exists."), ("run.zarr/new.html", "is inside the input")],
)
def test_report__refused_before_the_evaluation(out, problem):
    # The evaluation would fail.
    report = ("report", "run.zarr", "--out", out, "--evaluate", "damaged.zarr")
    assert problem in refuse(*report)[0]


@pytest.mark.parametrize("out", ["old.csv", "old", "run.zarr/new.csv", "run.zarr/new"])
def test_predict__refused_before_the_cluster_starts(out):
    problem, _ = refuse("predict", "run.zarr", "data.zarr", out, *NO_SCHEDULER)
    assert ("is inside the input" if "run" in out else f"{out} ") in problem


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "run.zarr", "o*.csv", "old.csv"),
        ("predict", "run.zarr", "days", "days/1.csv"),
        ("predict", "run.zarr", "FROM read_csv(['x.csv', 'o*.csv'], nullstr = '')", "old.csv"),
        ("predict", "run.zarr", "x.csv", "old.csv", "--sql", 'FROM source JOIN "old.csv" ON (a)'),
        ("predict", "run.zarr", "data.zarr", "run.zarr"),
        ("predict", "run.zarr", "scene.zarr", "scene.zarr", "--variable", "red"),
        ("ingest", "data.zarr/X", "data.zarr"),
        ("embed", "data.zarr", "new.zarr", "--output", "new.zarr/coordinates"),
        ("embed", "data.zarr", "new/run.zarr", "--output", "new"),
        ("report", "run.zarr", "--evaluate", "old.csv", "--out", "link.csv"),
        ("export", "run.zarr", "run.zarr"),
    ],
)
def test_commands__an_output_that_is_an_input_is_refused_before_the_work(arguments):
    problem, fix = refuse(*arguments, "--overwrite")
    assert re.fullmatch(r"the output .* (is|contains|is inside) the input .*\.", problem)
    assert fix == "Give another path for the output."


@pytest.mark.parametrize(
    "arguments",
    [
        ("fit", "data.zarr", "data.zarr"),
        ("tune", "data.zarr", "damaged.zarr", "--validation", "damaged.zarr"),
        ("merge", "run.zarr", "run.zarr"),
    ],
)
def test_commands__a_run_that_is_an_input_is_refused(arguments):
    assert "the input" in refuse(*arguments)[0]


def test_predict__rows_that_a_dataset_refers_to_are_no_output(place, tmp_path):
    out, dataset = tmp_path / "out.zarr", tmp_path / "refers.zarr"
    succeed("predict", "run.zarr", "data.zarr", out)
    succeed("ingest", out / "scores", dataset)
    problem, _ = refuse("predict", "run.zarr", dataset, out, "--overwrite")
    assert problem == f"the output {out} contains the input {out}/scores."


def test_predict__outputs_beside_the_inputs_are_not_refused(tmp_path):
    shutil.copytree("data.zarr", tmp_path / "data.zarr")
    succeed("predict", "run.zarr", tmp_path / "data.zarr", tmp_path / "data.csv")
    succeed("predict", "run.zarr", tmp_path / "data.zarr", tmp_path / "data.csv", "--overwrite")


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "run.zarr", "data.zarr", "out.csv"),
        ("predict", "run.zarr", "data.zarr", "out.parquet"),
        ("predict", "run.zarr", "data.zarr", "out"),
        ("report", "run.zarr", "--out", "out.html"),
        ("export", "run.zarr", "out.onnx"),
    ],
)
def test_commands__replace_what_they_wrote_with_the_option(tmp_path, arguments):
    *command, name = arguments
    succeed(*command, tmp_path / name)
    assert "exists" in refuse(*command, tmp_path / name)[0]
    succeed(*command, tmp_path / name, "--overwrite")
    assert [path.name for path in tmp_path.iterdir()] == [name]
