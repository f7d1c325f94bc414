"""Links inside a group that lead out of it: whoever made the data must not choose the files."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from zarr.storage import LocalStore

from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.errors import DamagedDataError
from dask_nrbfn.params import FitParams
from dask_nrbfn.storage.array import create_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import open_group, update_record
from dask_nrbfn.storage.model import Model
from tests.storage.written import make_model, table, write_dataset
from tests.tables import spirals, write_table

PARAMS = FitParams(basis="random", basis_size=10, alpha=1e-6)


def lead_out(path):
    """Move a file or directory out of its group, and leave a link that leads to it."""
    outside = path.parents[len(path.parts) - 1 - path.parts.index("group")] / "outside"
    shutil.move(path, outside)
    path.symlink_to(outside)
    return outside


def contents(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def place(tmp_path):
    return tmp_path / "group"


def read_dataset(place):
    return Dataset.open(place).take(np.arange(9))


@pytest.mark.parametrize("name", ["zarr.json", "X", "X/zarr.json", "X/c", "X/c/1", "X/c/1/0"])
def test_dataset__is_not_read_through_a_link_that_leads_out(place, name):
    write_dataset(place, table(9))
    outside = lead_out(place / name)
    with pytest.raises(DamagedDataError, match="is a link that leads out of") as caught:
        read_dataset(place)
    assert f"{place / name} is a link" in caught.value.problem
    assert str(outside) in caught.value.problem
    assert "remove the link" in caught.value.remedy


@pytest.mark.parametrize("name", ["zarr.json", "basis", "weights/c/0/0", "classes/zarr.json"])
def test_model__is_not_read_through_a_link_that_leads_out(place, name):
    make_model().save(place)
    lead_out(place / name)
    with pytest.raises(DamagedDataError, match="is a link that leads out of"):
        Model.load(place)


def test_run__is_not_written_through_a_link_that_leads_out(place):
    dataset = write_table(place.with_name("data"), *spirals(60))
    run = fit_dataset(dataset, place, PARAMS, InlineEngine())
    outside = shutil.copytree(place / "moments", place.with_name("outside"))
    run.forget("moments", ())
    (place / "moments").symlink_to(outside)
    before = contents(outside)
    with pytest.raises(DamagedDataError, match="moments is a link that leads out of"):
        fit_dataset(dataset, place, PARAMS, InlineEngine())
    assert contents(outside) == before


@pytest.mark.parametrize("name", ["X", "X/c", "X/c/1"])
def test_group__is_not_written_through_a_link_that_leads_out(place, name):
    write_dataset(place, table(9))
    group = open_group(place, kind="dataset", writable=True)
    array = group["X"]
    outside = lead_out(place / name)
    before = contents(outside)
    assert before
    with pytest.raises(DamagedDataError, match="is a link that leads out of"):
        array[4:8] = 0.0
    with pytest.raises(DamagedDataError, match="is a link that leads out of"):
        create_array(
            group, name, shape=(9, 3), dtype="f8", chunks=(4, 3), dimensions=("row", "feature")
        )
    assert contents(outside) == before


def test_group__record_is_not_written_through_a_link_that_leads_out(place):
    write_dataset(place, table(9))
    group = open_group(place, kind="dataset", writable=True)
    outside = lead_out(place / "zarr.json")
    before = outside.read_bytes()
    with pytest.raises(DamagedDataError, match="is a link that leads out of"):
        update_record(group, {"content": "mine"})
    assert outside.read_bytes() == before


def test_store__of_the_user_as_well(place):
    write_dataset(place, table(9))
    lead_out(place / "X")
    for read_only in (False, True):
        with pytest.raises(DamagedDataError, match="is a link that leads out of"):
            read_dataset(LocalStore(place, read_only=read_only))


def test_group__reached_through_links(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path / "disk" / "data", table(9))
    (tmp_path / "shelf").symlink_to(tmp_path / "disk")
    (tmp_path / "data").symlink_to(tmp_path / "shelf" / "data")
    for place in (tmp_path / "data", tmp_path / "shelf" / "data", Path("data")):
        np.testing.assert_array_equal(read_dataset(place), table(9))


@pytest.mark.parametrize("target", ["0", "../c/0"])
def test_group__links_that_stay_inside(place, target):
    write_dataset(place, np.ones((9, 3)))
    shutil.rmtree(place / "X" / "c" / "1")
    os.symlink(target, place / "X" / "c" / "1")
    np.testing.assert_array_equal(read_dataset(place), 1.0)
