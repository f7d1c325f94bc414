"""Arrays of a Zarr group as rows: named, referred to or copied, and predicted in place."""

import fsspec
import numpy as np
import pandas as pd
import pytest
import zarr
from zarr.storage import MemoryStore

from dask_nrbfn import Dataset, FitParams, InlineEngine, fit_dataset, ingest_file
from dask_nrbfn.errors import DamagedDataError, DataError, ParameterError
from dask_nrbfn.sources import zarr_arrays
from dask_nrbfn.storage.array import StoredRows
from tests.cli.program import refuse, succeed

TEXT = np.dtypes.StringDType()
RNG = np.random.default_rng(0)
KIND = RNG.integers(2, size=300)
X = (4 * RNG.normal(size=(2, 6))[KIND] + RNG.normal(size=(300, 6))).astype(np.float32)
NAMES = np.array(["fir", "oak"], TEXT)[KIND]
ROLES = {"y": "y", "weights": "w", "id": "key"}
ARRAYS = {
    "X": (X, (40, 3)),
    "columns": (X, (300, 1)),
    "images": (X.reshape(300, 2, 3), (40, 2, 3)),
    "y": (NAMES, (70,)),
    "flag": (KIND == 1, (70,)),
    "w": (KIND + 1.0, (70,)),
    "numbers": (X[:, :2], (70, 2)),
    "key": (np.arange(300) * 3, (70,)),
}


@pytest.fixture
def group(request, tmp_path):
    zarr_format = getattr(request, "param", 3)
    root = zarr.create_group(tmp_path / "big.zarr", zarr_format=zarr_format)
    for name, (values, chunks) in ARRAYS.items():
        root.create_array(name, data=values, chunks=chunks)
    return root


@pytest.mark.parametrize("group", [2, 3], indirect=True)
def test_zarr__rows_stay_where_they_are(group, tmp_path, caplog):
    place = tmp_path / "big.zarr"
    with caplog.at_level("INFO", logger="dask_nrbfn"):
        dataset = ingest_file(place, MemoryStore(), x="X", **ROLES)
    assert f"the rows stay in {place}/X and are not copied" in caplog.text
    fs = fsspec.filesystem("memory")
    fs.put(str(place), "/plain/big.zarr", recursive=True)
    try:
        for source in (group, "memory://plain/big.zarr", place):
            each = ingest_file(source, MemoryStore(), **ROLES, copy=source == place)
            assert isinstance(each.X, StoredRows) == (source != place)
            np.testing.assert_array_equal(each.take(np.arange(300)), X)
            assert each.fingerprint == dataset.fingerprint
    finally:
        fs.rm("/plain", recursive=True)
    assert dataset.classes.tolist() == ["fir", "oak"]
    np.testing.assert_array_equal(dataset.codes(), KIND)
    np.testing.assert_array_equal(dataset.sample_weights[:], KIND + 1.0)
    np.testing.assert_array_equal(dataset.ids[:], np.arange(300) * 3)
    assert ingest_file(group, MemoryStore(), y="flag").classes.tolist() == [False, True]
    assert ingest_file(group, MemoryStore(), target="numbers").target_names[1] == "target_1"


def test_zarr__one_array(group, tmp_path):
    for source in (group["X"], tmp_path / "big.zarr" / "X"):
        dataset = ingest_file(source, MemoryStore())
        np.testing.assert_array_equal(dataset.take(np.arange(300)), X)
    with pytest.raises(ParameterError, match=r"`?y`?=y is given, but .* is one array"):
        ingest_file(group["X"], MemoryStore(), y="y")


@pytest.mark.parametrize("x", ["columns", "images"])
def test_zarr__other_chunks_and_dimensions_are_copied(group, monkeypatch, x):
    # Rows of 24 bytes: a chunk of whole columns is larger than 50 rows.
    monkeypatch.setattr(zarr_arrays, "MAX_CHUNK_BYTES", 50 * 24)
    dataset = ingest_file(group, MemoryStore(), x=x, chunk_rows=20)
    assert not isinstance(dataset.X, StoredRows)
    np.testing.assert_array_equal(dataset.take(np.arange(300)), X)


def test_zarr__that_cannot_be_read(group, tmp_path):
    with pytest.raises(DataError, match=r"no array 'rows'; it has 'X', 'columns'"):
        ingest_file(group, MemoryStore(), x="rows")
    with pytest.raises(ParameterError, match=r"the open Zarr group memory://.*ingest_arrays"):
        ingest_file(zarr.create_group(MemoryStore()), MemoryStore())
    chunk = next(path for path in (tmp_path / "big.zarr" / "X").rglob("*0") if path.is_file())
    chunk.write_bytes(chunk.read_bytes()[:9])
    with pytest.raises(DamagedDataError, match=r"rows 0 to 280 of .*big.zarr cannot be read as"):
        ingest_file(group, MemoryStore())


def test_fit__names_the_command_that_ingests(group, tmp_path):
    place, out = tmp_path / "big.zarr", tmp_path / "run"
    for command in (("fit", place, out), ("tune", place, out), ("plan", place)):
        assert refuse(*command)[1].endswith(f"{place} data.zarr --label COLUMN, or --y for arrays.")


def test_predict__names_the_rows_of_the_group(group, tmp_path):
    place, run = tmp_path / "big.zarr", tmp_path / "run"
    succeed("ingest", place, tmp_path / "data", "--x", "X", "--y", "y", "--id", "key")
    fit_dataset(Dataset.open(tmp_path / "data"), run, FitParams(alpha=1e-6), InlineEngine())
    # Other programs write lists as attributes.
    zarr.open_group(place, mode="r+")["X"].attrs["_ARRAY_DIMENSIONS"] = ["row", "feature"]
    succeed("predict", run, place, tmp_path / "out.csv", "--id", "key")
    found = pd.read_csv(tmp_path / "out.csv")
    assert found.columns.tolist() == ["id", "prediction"]
    assert np.mean(found["prediction"] == NAMES) > 0.98
