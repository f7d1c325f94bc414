"""Rows in CSR: what is written block by block is read as it was, by other tools too."""

import anndata
import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from dask_nrbfn.commands.describe import problems_of
from dask_nrbfn.commands.ingest import ingest_arrays
from dask_nrbfn.errors import DataError, MissingDataError
from dask_nrbfn.numeric.rows import is_csr
from dask_nrbfn.private import run_in_zarr
from dask_nrbfn.storage.array import get_stored, read_rows, write_values
from dask_nrbfn.storage.chunks import check_finite
from dask_nrbfn.storage.dataset import Dataset
from tests.storage.written import chunk_files


def drawn(n_rows, n_features=300, density=0.05, seed=0, dtype=np.float64):
    """Return rows in CSR, the first of which has no value, and labels."""
    rng = np.random.default_rng(seed)
    X = sp.random(n_rows, n_features, density, format="lil", rng=rng, dtype=dtype)
    X[0] = 0
    return sp.csr_array(X), rng.integers(0, 3, n_rows)


def assert_same(found, expected):
    assert is_csr(found)
    assert found.has_canonical_format
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found.toarray(), expected.toarray())


@settings(max_examples=5)
@given(chunk_rows=st.integers(1, 12), block_rows=st.integers(1, 12), data=st.data())
def test_dataset__blocks_and_rows(chunk_rows, block_rows, data):
    X, y = drawn(11)
    dataset = ingest_arrays(X, y, MemoryStore(), chunk_rows=chunk_rows)
    start = data.draw(st.integers(0, 10))
    for block in dataset.blocks(start, 11, block_rows):
        stop = min(11, start + block_rows)
        assert_same(block.X, X[start:stop])
        assert block.targets.tolist() == y[start:stop].tolist()
        start = stop
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, 10)))), dtype=np.int64)
    assert_same(dataset.take(rows), X[rows])
    assert dataset.is_sparse
    assert dataset.row_values == X.nnz / 11


def test_dataset__is_what_anndata_reads(tmp_path):
    X, y = drawn(40, dtype=np.float32)
    dataset = ingest_arrays(X, y, tmp_path / "data", chunk_rows=7)
    read = anndata.io.read_elem(zarr.open_group(tmp_path / "data", mode="r")["X"])
    assert_same(sp.csr_array(read), X)
    assert dataset.dtype == np.float32
    # So few values are in one chunk of each array.
    for name in ("data", "indices", "indptr"):
        assert len(chunk_files(tmp_path / "data" / "X" / name)) == 1


def test_dataset__rows_of_a_mixed_table_have_all_its_features():
    table = {"town": ["a", "b", "c"] * 20, "size": np.arange(60.0)}
    dataset = ingest_arrays(pa.table(table), np.arange(60) % 2, MemoryStore())
    assert dataset.n_features == 4
    # Else a search for neighbours would count them as rows in CSR.
    assert (dataset.row_values, dataset.row_bytes) == (4, 32)


def test_dataset__content_is_that_of_dense_rows():
    X, y = drawn(40)
    sparse = ingest_arrays(X, y, MemoryStore(), chunk_rows=7)
    dense = ingest_arrays(X.toarray(), y, MemoryStore())
    assert not dense.is_sparse
    assert (dense.row_values, dense.row_bytes) == (300, 2400)
    assert sparse.row_bytes == 12 * X.nnz / 40
    assert sparse.content == dense.content
    assert sparse.fingerprint != dense.fingerprint


def test_dataset__chunks_of_values_are_many(monkeypatch, tmp_path):
    monkeypatch.setattr("dask_nrbfn.storage.array._CHUNK_VALUES", 50)
    monkeypatch.setattr("dask_nrbfn.storage.array._CHUNK_ROWS", 7)
    X, y = drawn(40)
    dataset = ingest_arrays(X, y, tmp_path / "data", chunk_rows=3)
    assert len(chunk_files(tmp_path / "data/X/data")) > 10
    assert_same(dataset.take(np.arange(40)), X)
    assert not problems_of(dataset)
    empty = ingest_arrays(sp.csr_array((5, 4)), None, tmp_path / "empty", chunk_rows=2)
    assert empty.take(np.arange(5)).nnz == 0


def test_dataset__labelled_rows():
    X, y = drawn(20)
    y[::3] = -1
    dataset = ingest_arrays(X, y, MemoryStore(), unlabelled=-1, chunk_rows=6)
    labelled = dataset.of_labelled()
    assert_same(labelled.take(np.arange(labelled.n_rows)), X[y >= 0])


def test_dataset__planned_for_more_rows():
    X, y = drawn(40)
    dataset = ingest_arrays(X, y, MemoryStore(), chunk_rows=10)
    planned = dataset.with_n_rows(4_000)
    assert planned.n_rows == 4_000
    assert planned.is_sparse
    assert planned.row_values == pytest.approx(dataset.row_values)
    assert planned.reading_bytes == dataset.reading_bytes
    chunk = max(X[start : start + 10].nnz for start in range(0, 40, 10))
    assert dataset.reading_bytes == 4 * (chunk * 12 + 80)


@pytest.mark.parametrize("array", ["data", "indices", "indptr"])
def test_dataset__missing_chunk(tmp_path, array):
    X, y = drawn(40)
    ingest_arrays(X, y, tmp_path / "data")
    (tmp_path / "data" / "X" / array / "c" / "0").unlink()
    dataset = Dataset.open(tmp_path / "data")
    with pytest.raises(MissingDataError, match=f"X/{array}/c/0"):
        dataset.take(np.arange(40))
    assert problems_of(dataset)


def test_check_finite__names_the_row_and_column_of_a_value():
    X, _ = drawn(40)
    X.data = X.data.astype(np.float64)
    for place in (0, X.nnz // 2, X.nnz - 1):
        wrong = X.copy()
        wrong.data[place] = np.nan
        row = np.repeat(np.arange(40), np.diff(X.indptr))[place]
        message = f"X has nan in row {100 + row}, column {X.indices[place]}"
        with pytest.raises(DataError, match=message):
            check_finite(wrong, first_row=100)


@settings(max_examples=5)
@given(slice_rows=st.none() | st.integers(1, 12), start=st.integers(0, 11), stop=st.integers(0, 11))
def test_array__slices(slice_rows, start, stop):
    X, _ = drawn(11)
    group = zarr.create_group(MemoryStore())
    run_in_zarr(write_values(group.store_path / "rows", X, (), slice_rows))
    stored = get_stored(group, "rows")
    assert_same(read_rows(stored), X)
    assert_same(read_rows(stored, start, stop), X[start:stop])
    size = slice_rows or 11
    most = max(X[first : first + size].nnz for first in range(0, 11, size))
    assert (stored.chunk_rows, stored.most_values) == (size, most)
