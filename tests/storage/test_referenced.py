"""Datasets whose rows stay in the store of another tool."""

import shutil

import numpy as np
import pytest
import zarr

from dask_nrbfn.commands.describe import describe_dataset, problems_of
from dask_nrbfn.commands.ingest import ingest_file
from dask_nrbfn.errors import DamagedDataError, MissingDataError
from dask_nrbfn.storage.array import StoredRows
from dask_nrbfn.storage.dataset import Dataset
from tests.cells import drawn_cells, write_cells

READ = {"x": "obsm/X_pca", "y": "obs/cell_type"}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    directory = tmp_path_factory.mktemp("elsewhere")
    for zarr_format in (2, 3):
        write_cells(drawn_cells(), directory / f"cells{zarr_format}.zarr", zarr_format)
    return directory


@pytest.fixture
def place(written, tmp_path):
    return shutil.copytree(written / "cells3.zarr", tmp_path / "cells.zarr")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_referenced__is_the_copy(written, tmp_path, zarr_format):
    place = written / f"cells{zarr_format}.zarr"
    options = {**READ, "weights": "obs/w", "chunk_rows": 7}
    there = ingest_file(place, tmp_path / "there", **options)
    copied = ingest_file(place, tmp_path / "copied", **options, copy=True)
    assert isinstance(there.X, StoredRows)
    assert not isinstance(copied.X, StoredRows)
    assert (there.fingerprint, there.content) == (copied.fingerprint, copied.content)
    assert describe_dataset(there) == describe_dataset(copied)
    assert there.with_n_rows(10_000).reading_bytes == copied.with_n_rows(10_000).reading_bytes
    rows = np.array([0, 6, 7, 31, 59])
    np.testing.assert_array_equal(there.take(rows), copied.take(rows))
    blocks = zip(there.blocks(3, 50, 11), copied.blocks(3, 50, 11), strict=True)
    for (X, y, weights), expected in blocks:
        np.testing.assert_array_equal(X, expected.X)
        np.testing.assert_array_equal(y, expected.targets)
        np.testing.assert_array_equal(weights, expected.weights)
    assert problems_of(there) == []


def test_referenced__changed_rows_are_named(place, tmp_path):
    dataset = ingest_file(place, tmp_path / "d", **READ, chunk_rows=20)
    zarr.open_group(place, mode="r+", use_consolidated=False)["obsm/X_pca"][25, 1] = 0
    dataset = Dataset.open(dataset.location)
    np.testing.assert_array_equal(dataset.take(np.array([3])).shape, (1, 5))
    with pytest.raises(DamagedDataError, match=r"rows 20 to 40 of obsm/X_pca of .*cells.zarr"):
        dataset.take(np.array([30]))
    (problem,) = problems_of(dataset)
    assert "rows 20 to 40" in problem


def test_referenced__damaged_and_missing_chunks(place, tmp_path):
    dataset = ingest_file(place, tmp_path / "d", **READ)
    chunk = place / "obsm/X_pca/c/0/0"
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DamagedDataError, match="rows 0 to 60 of obsm/X_pca"):
        dataset.take(np.arange(60))
    chunk.unlink()
    with pytest.raises(DamagedDataError, match="changed after they were ingested"):
        dataset.take(np.arange(60))


def test_referenced__moved(place, tmp_path):
    ingest_file(place, tmp_path / "d", **READ)
    place.rename(tmp_path / "moved.zarr")
    with pytest.raises(MissingDataError, match=r"X_pca is missing in .*cells.zarr.*Move the rows"):
        Dataset.open(tmp_path / "d")
