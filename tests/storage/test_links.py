"""Links inside a run: whoever made the run must not choose the files that a job replaces."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.errors import DamagedDataError
from dask_nrbfn.params import FitParams
from dask_nrbfn.storage.dataset import Dataset
from tests.storage.written import table, write_dataset
from tests.tables import spirals, write_table

PARAMS = FitParams(basis="random", basis_size=10, alpha=1e-6)


def contents(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["moments", "model/weights", "zarr.json"])
def test_run__is_not_written_through_a_link(tmp_path, name):
    dataset = write_table(tmp_path / "data", *spirals(60))
    run = fit_dataset(dataset, tmp_path / "run", PARAMS, InlineEngine())
    shutil.move(tmp_path / "run" / name, tmp_path / "outside")
    (tmp_path / "run" / name).symlink_to(tmp_path / "outside")
    before = contents(tmp_path)
    with pytest.raises(DamagedDataError, match=f"{name} is a link"):
        fit_dataset(dataset, run.location, PARAMS, InlineEngine())
    assert contents(tmp_path) == before


def test_group__reached_through_links(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_dataset(tmp_path / "disk" / "data", table(9))
    (tmp_path / "shelf").symlink_to(tmp_path / "disk")
    (tmp_path / "data").symlink_to(tmp_path / "shelf" / "data")
    for place in (tmp_path / "data", tmp_path / "shelf" / "data", Path("data")):
        rows = Dataset.open(place).take(np.arange(9))
        np.testing.assert_array_equal(rows, table(9))
