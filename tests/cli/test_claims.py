"""Metadata that says, under a right checksum, that there is far more than what is stored."""

import json
import shutil
from functools import partial

import pytest
import zarr

from dask_nrbfn.storage.dense import _layout
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.strict import checksum
from tests.cli.program import refuse, run, succeed
from tests.storage.written import edit_attributes
from tests.tables import spirals, write_table

FIT = ("--basis-size", 6, "--alpha", 1e-6, "--workers", 0)
BILLION, TRILLION = 10**9, 10**12


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Give a directory with a dataset of three chunks, a run, its model and predictions."""
    place = tmp_path_factory.mktemp("claims")
    write_table(place / "data", *spirals(60), chunk_rows=20)
    succeed("fit", place / "data", place / "run", *FIT)
    Model.load(place / "run").save(place / "model")
    succeed("predict", place / "run", place / "data", place / "labels", "--workers", 0)
    return place


@pytest.fixture
def copy(written, tmp_path):
    shutil.copytree(written, tmp_path / "copy")
    return tmp_path / "copy"


def claim_array(path, *, shape, chunks=None):
    """Write another shape, and chunks, into the metadata of an array, with a right checksum."""
    text = json.loads((path / "zarr.json").read_text())
    text["shape"] = shape
    if chunks is not None:
        text["chunk_grid"]["configuration"]["chunk_shape"] = chunks
    (path / "zarr.json").write_text(json.dumps(text))
    array = zarr.open_array(str(path), mode="r+")
    array.update_attributes({"checksum": checksum(_layout(array))})


claim_attributes = partial(edit_attributes, checked=True)


def claim_rows(data, n_rows, chunk_rows=20):
    claim_array(data / "X", shape=[n_rows, 4], chunks=[chunk_rows, 4])
    claim_array(data / "y", shape=[n_rows], chunks=[chunk_rows])
    claim_attributes(data, class_counts=[n_rows - 40, 20, 20])


DATASETS = {
    "rows": lambda data: claim_rows(data, TRILLION),
    "rows in one chunk": lambda data: claim_rows(data, TRILLION, TRILLION),
    "columns": lambda data: claim_array(data / "X", shape=[60, BILLION], chunks=[20, BILLION]),
    "columns in chunks": lambda data: claim_array(data / "X", shape=[60, BILLION]),
    "names": lambda data: claim_attributes(data, feature_names=["a"]),
    "classes": lambda data: claim_attributes(data, classes=[[1], 2]),
    "no classes": lambda data: claim_attributes(data, classes=None),
    "too large a number": lambda data: claim_attributes(data, class_counts=[10**30, 1, 1]),
}


@pytest.mark.parametrize("claim", DATASETS)
def test_claims__of_a_dataset(copy, claim):
    data = copy / "data"
    DATASETS[claim](data)
    before = sorted(copy.rglob("*"))
    for command in (
        ("fit", data, copy / "new", *FIT),
        ("tune", data, copy / "new", "--workers", 0),
        ("plan", data, *FIT),
        ("predict", copy / "run", data, copy / "out", "--workers", 0),
        ("evaluate", copy / "run", data, "--workers", 0),
        ("update", copy / "run", data, "--workers", 0),
        ("inspect", data),
    ):
        problem, _ = refuse(*command)
        assert "allocate" not in problem, command
    code, out, err = run("inspect", "--verify", data)
    assert code == 2
    assert "problem  " in out or err.startswith("error: ")
    new = [path for path in sorted(copy.rglob("*")) if path not in before]
    assert all(path.name.endswith(".lock") or "lock" in str(path) for path in new), new


def test_claims__check_lists_what_is_there_and_counts_the_rest(copy):
    claim_rows(copy / "data", TRILLION)
    (copy / "data/X/c/1/0").unlink()
    (copy / "data/y/c/2").unlink()
    code, out, _ = run("inspect", "--verify", copy / "data", "--json")
    assert code == 2
    problems = json.loads(out)["problems"]
    assert "X/c/1/0" in problems[0]
    assert "y/c/2" in problems[1]
    assert "X/c/3/0" in problems[2]
    assert len(problems) < 200
    assert problems[-1] == f"{TRILLION // 20 - 103} more chunks are missing."


MODELS = {
    "basis": {"basis": {"shape": [TRILLION, 4]}},
    "basis in one chunk": {"basis": {"shape": [TRILLION, 4], "chunks": [TRILLION, 4]}},
    "columns": {"basis": {"shape": [6, BILLION], "chunks": [6, BILLION]}},
    "weights": {"weights": {"shape": [3, TRILLION]}},
    "classes": {"classes": {"shape": [TRILLION]}},
}


@pytest.mark.parametrize("claim", MODELS)
def test_claims__of_a_model(copy, claim):
    for name, changes in MODELS[claim].items():
        claim_array(copy / "model" / name, **changes)
    refuse("inspect", copy / "model")
    refuse("evaluate", copy / "model", copy / "data", "--workers", 0)
    refuse("predict", copy / "model", copy / "data", copy / "out", "--workers", 0)


RUNS = {
    "rows": {"n_rows": TRILLION},
    "rows of parts": {"n_rows": TRILLION, "part_rows": 1, "chunk_rows": 1},
    "no rows of a part": {"part_rows": 0},
    "text": {"part_rows": "many"},
    "nothing": {"members": None},
}


@pytest.mark.parametrize("claim", RUNS)
def test_claims__of_a_run(copy, claim):
    claim_attributes(copy / "run", **RUNS[claim])
    refuse("inspect", copy / "run")
    refuse("fit", copy / "data", copy / "run", *FIT)
    refuse("report", copy / "run", "--out", copy / "page.html")
    refuse("refresh", copy / "run", "--workers", 0)


def test_claims__of_a_run_and_its_dataset(copy):
    n_rows = TRILLION
    claim_rows(copy / "data", n_rows)
    (member,) = zarr.open_group(str(copy / "run"), mode="r").attrs["members"]
    claim_attributes(copy / "run", n_rows=n_rows, members=[{**member, "n_rows": n_rows}])
    assert json.loads(succeed("inspect", copy / "run", "--json"))["n_rows"] == n_rows
    refuse("fit", copy / "data", copy / "run", *FIT)


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("name", ["basis/rows", "confidence/values", "moments/packed_gram"])
@pytest.mark.parametrize("in_one_chunk", [True, False])
def test_claims__of_results_are_computed_again(written, copy, name, in_one_chunk):
    before = Model.load(written / "run").digest()
    chunks = [TRILLION] if in_one_chunk else None
    claim_array(copy / "run" / name, shape=[TRILLION], chunks=chunks)
    succeed("fit", copy / "data", copy / "run", *FIT)
    assert Model.load(copy / "run").digest() == before
    succeed("report", copy / "run", "--out", copy / "page.html")


def test_claims__of_predictions(copy):
    claim_array(copy / "labels" / "scores", shape=[TRILLION, 3])
    refuse("inspect", copy / "labels")
