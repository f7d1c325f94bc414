import numpy as np
import pytest
import zarr

from dask_nrbfn.commands.describe import describe, problems_of
from dask_nrbfn.commands.ingest import ingest_arrays
from tests.storage.written import flip_byte, swap

CHANGED = "rows, labels or weights differ from those that ingest wrote."


@pytest.fixture
def dataset(tmp_path):
    X, y, weights = np.eye(23), np.arange(23) % 3, np.arange(23) + 0.5
    return ingest_arrays(X, y, tmp_path / "data", weights=weights, chunk_rows=6)


def stored_weights(dataset):
    return zarr.open_array(f"{dataset.location}/weights", mode="r+")


def test_problems_of__sound_with_weights(dataset):
    figures = describe(dataset.location, verify=True)
    assert (figures["n_chunks"], figures["problems"]) == (4, [])


def test_problems_of__missing_and_damaged_chunks_of_weights(tmp_path, dataset):
    (tmp_path / "data/weights/c/1").unlink()
    damaged = tmp_path / "data/weights/c/3"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    first, second = problems_of(dataset)
    assert "weights/c/1" in first
    assert "is missing" in first
    assert "rows 18 to 23 of" in second
    assert "data/weights cannot be read" in second


def test_problems_of__chunks_that_changed_places(tmp_path, dataset):
    swap(tmp_path / "data/X/c/0/0", tmp_path / "data/X/c/1/0")
    assert problems_of(dataset) == [CHANGED]


def test_problems_of__weights_that_ingest_did_not_write(dataset):
    weights = stored_weights(dataset)
    weights[7] = np.nextafter(weights[7], np.inf)
    assert problems_of(dataset) == [CHANGED]


@pytest.fixture
def numbers(tmp_path):
    return ingest_arrays(
        np.eye(23), None, tmp_path / "data", target=np.arange(46.0).reshape(23, 2), chunk_rows=6
    )


def test_problems_of__flipped_byte_of_the_numbers(tmp_path, numbers):
    path = tmp_path / "data/y/c/2/0"
    flip_byte(path)
    (problem,) = problems_of(numbers)
    assert "data/y cannot be read" in problem


def test_problems_of__numbers_that_ingest_did_not_write(numbers):
    stored = zarr.open_array(f"{numbers.location}/y", mode="r+")
    stored[20, 0] = 0.5
    assert problems_of(numbers) == ["rows, targets or weights differ from those that ingest wrote."]
