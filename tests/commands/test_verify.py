import numpy as np
import zarr
from zarr.storage import MemoryStore

from dask_nrbfn.commands.describe import describe, problems_of
from dask_nrbfn.commands.ingest import ingest_arrays
from tests.storage.written import flip_byte, swap

X, Y, WEIGHTS = np.eye(23), np.arange(23) % 3, np.arange(23) + 0.5
NUMBERS = np.arange(46.0).reshape(23, 2)
CHANGED = "rows, labels or weights differ from those that ingest wrote."


def test_problems_of__missing_and_damaged_chunks(tmp_path):
    dataset = ingest_arrays(X, Y, tmp_path / "data", weights=WEIGHTS, chunk_rows=6)
    figures = describe(dataset.location, verify=True)
    assert (figures["n_chunks"], figures["problems"]) == (4, [])
    (tmp_path / "data/weights/c/1").unlink()
    damaged = tmp_path / "data/weights/c/3"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    first, second = problems_of(dataset)
    assert "weights/c/1" in first
    assert "is missing" in first
    assert "rows 18 to 24 of" in second
    assert "data/weights cannot be read" in second
    numbers = ingest_arrays(X, None, tmp_path / "numbers", target=NUMBERS, chunk_rows=6)
    flip_byte(tmp_path / "numbers/y/c/2/0")
    (problem,) = problems_of(numbers)
    assert "numbers/y cannot be read" in problem


def test_problems_of__values_that_ingest_did_not_write(tmp_path):
    dataset = ingest_arrays(X, Y, tmp_path / "data", weights=WEIGHTS, chunk_rows=6)
    swap(tmp_path / "data/X/c/0/0", tmp_path / "data/X/c/1/0")
    assert problems_of(dataset) == [CHANGED]
    dataset = ingest_arrays(X, Y, MemoryStore(), weights=WEIGHTS, chunk_rows=6)
    weights = zarr.open_group(dataset.location, mode="r+")["weights"]
    weights[7] = np.nextafter(weights[7], np.inf)
    assert problems_of(dataset) == [CHANGED]
    numbers = ingest_arrays(X, None, MemoryStore(), target=NUMBERS, chunk_rows=6)
    zarr.open_group(numbers.location, mode="r+")["y"][20, 0] = 0.5
    assert problems_of(numbers) == ["rows or targets differ from those that ingest wrote."]
