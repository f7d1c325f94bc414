"""What a stranger sends is data: reading it runs nothing and leaves no directory but its own."""

import ast
import json
import os
import pickle
import shutil

import numpy as np
import pytest

from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.errors import DamagedDataError, DamagedResultError
from dask_nrbfn.params import FitParams
from dask_nrbfn.storage.array import get_array
from dask_nrbfn.storage.group import checksum, open_group
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import Run
from tests.cli.program import refuse
from tests.tables import spirals, write_table
from tests.test_architecture import PACKAGE, imported_modules

OUTSIDE = ["../outside/rows", "a/../../outside/rows", "./../outside/rows"]


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    place = tmp_path_factory.mktemp("fitted")
    dataset = write_table(place / "data", *spirals(60))
    params = FitParams(basis="random", basis_size=9, alpha=1e-6, n_parts=2)
    fit_dataset(dataset, place / "run", params, InlineEngine())
    return place


@pytest.fixture
def run(tmp_path, fitted):
    return Run.open(shutil.copytree(fitted / "run", tmp_path / "run"))


def edit(file, change):
    """Change the attributes in a zarr.json and give them a valid checksum."""
    content = json.loads(file.read_text())
    attributes = content["attributes"]
    change(content)
    if "checksum" in attributes:
        del attributes["checksum"]
        attributes["checksum"] = checksum(attributes)
    file.write_text(json.dumps(content))


def test_package__reads_no_pickle():
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        imported = imported_modules(tree, path.relative_to(PACKAGE), PACKAGE)
        modules = {module.split(".")[0] for _, module in imported}
        assert not modules & {"pickle", "cloudpickle", "joblib", "dill", "marshal", "shelve"}, path
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert ast.unparse(node.value) == "False", path
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("eval", "exec"):
                raise AssertionError(path)


def test_fit__a_basis_file_of_pickled_objects_is_refused(tmp_path):
    write_table(tmp_path / "data", *spirals(60))
    np.save(tmp_path / "basis.npy", np.array([Payload(tmp_path / "run-it")], dtype=object))
    problem, _ = refuse(
        "fit", tmp_path / "data", tmp_path / "run", "--basis", tmp_path / "basis.npy"
    )
    assert "is not an .npy file of numbers" in problem
    assert not (tmp_path / "run-it").exists()


@pytest.mark.parametrize("codec", ["pickle", "numcodecs.pickle", "builtins.eval"])
def test_model__a_codec_that_runs_code_is_refused(tmp_path, run, codec):
    weights = tmp_path / "run" / "model" / "weights"
    payload = pickle.dumps(Payload(tmp_path / "run-it"))
    (weights / "c" / "0" / "0").write_bytes(payload)

    def name_codec(content):
        content["codecs"] = [{"name": codec, "configuration": {}}]

    edit(weights / "zarr.json", name_codec)
    with pytest.raises(DamagedDataError):
        Model.load(run.location)
    assert not (tmp_path / "run-it").exists()


def test_group__no_name_leads_outside(tmp_path, run):
    write_table(tmp_path / "outside", *spirals(60))
    writable = open_group(run.location, kind="run", writable=True)
    for name in OUTSIDE:
        with pytest.raises(DamagedDataError, match=r"'\.' or '\.\.'"):
            get_array(open_group(run.location, kind="run"), name)
        with pytest.raises(DamagedResultError):
            run.read(name)
        for use in (writable.require_group, writable.__delitem__):
            with pytest.raises(ValueError, match=r"'\.' or '\.\.'"):
                use(name)
    assert (tmp_path / "outside" / "X").is_dir()


def test_run__a_part_that_names_an_attempt_outside_is_damaged(tmp_path, run):
    run.write_part("moments", 0, {}, {"cross": np.ones((3, 9))})
    (tmp_path / "outside").mkdir()
    part = tmp_path / "run" / "moments" / "parts" / "0"

    def name_outside(content):
        content["attributes"]["attempt"] = "../../../../outside"

    edit(part / "zarr.json", name_outside)
    with pytest.raises(DamagedResultError, match=r"'\.' or '\.\.'"):
        Run.open(run.location).read_part("moments", 0, "cross")
