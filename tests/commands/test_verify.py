import numpy as np
import pytest
import zarr

from dask_nrbfn.commands.describe import describe, problems_of
from dask_nrbfn.commands.ingest import ingest_arrays
from tests.storage.written import swap

CHANGED = "rows, labels or weights differ from those that ingest wrote."


@pytest.fixture
def dataset(tmp_path):
    X, y, weights = np.eye(23), np.arange(23) % 3, np.arange(23) + 0.5
    return ingest_arrays(X, y, tmp_path / "data", weights=weights, chunk_rows=6)


def change(dataset, name, place):
    stored = zarr.open_array(f"{dataset.location}/{name}", mode="r+")
    stored[place] = np.nextafter(stored[place], np.inf)


def test_problems_of__missing_and_damaged_chunks_of_weights(tmp_path, dataset):
    figures = describe(dataset.location, verify=True)
    assert (figures["n_chunks"], figures["problems"]) == (4, [])
    (tmp_path / "data/weights/c/1").unlink()
    damaged = tmp_path / "data/weights/c/3"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    first, second = problems_of(dataset)
    assert "weights/c/1" in first
    assert "is missing" in first
    assert "rows 18 to 23 of" in second
    assert "data/weights cannot be read" in second


def test_problems_of__rows_and_weights_that_ingest_did_not_write(tmp_path, dataset):
    swap(tmp_path / "data/X/c/0/0", tmp_path / "data/X/c/1/0")
    assert problems_of(dataset) == [CHANGED]
    swap(tmp_path / "data/X/c/0/0", tmp_path / "data/X/c/1/0")
    assert problems_of(dataset) == []
    change(dataset, "weights", 7)
    assert problems_of(dataset) == [CHANGED]
