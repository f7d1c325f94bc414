"""Sparse rows from files of every kind to predictions, through what changes datasets and runs."""

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from zarr.storage import MemoryStore

from dask_nrbfn.commands.describe import describe, problems_of
from dask_nrbfn.commands.fit import fit_dataset, refresh_run
from dask_nrbfn.commands.ingest import ingest_arrays, ingest_file
from dask_nrbfn.commands.update import merge_runs, update_run
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.rows import dense, is_csr
from dask_nrbfn.params import FitParams
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.model import Model
from tests.sites import write_site

PARAMS = FitParams(basis="random", basis_size=12, alpha=1e-4)


def texts(n_rows, n_features=400, seed=0):
    """Return counts of few words, CSR (n, p), and which of 3 kinds of words are many."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n_rows)
    X = sp.lil_array((n_rows, n_features))
    for row, kind in enumerate(y):
        words = rng.integers(0, n_features // 3, 8) * 3 + np.where(rng.random(8) < 0.8, kind, 0)
        X[row, words] = rng.integers(1, 5, 8)
    return sp.csr_array(X), y


def rows_of(dataset):
    X = dataset.take(np.arange(dataset.n_rows))
    return is_csr(X), dense(X)


def test_ingest__matrix_is_sparse_where_that_is_smaller(tmp_path):
    X = texts(50)[0]
    sp.save_npz(tmp_path / "wide.npz", X)
    sp.save_npz(tmp_path / "narrow.npz", X[:, :20])
    wide = ingest_file(tmp_path / "wide.npz", tmp_path / "wide")
    assert rows_of(wide)[0]
    np.testing.assert_array_equal(rows_of(wide)[1], X.toarray())
    assert describe(tmp_path / "wide")["values_per_row"] == X.nnz / 50
    narrow = ingest_file(tmp_path / "narrow.npz", MemoryStore())
    assert not narrow.is_sparse
    np.testing.assert_array_equal(rows_of(narrow)[1], X[:, :20].toarray())
    for sparse, store in (("no", "wide.npz"), ("yes", "narrow.npz")):
        written = ingest_file(tmp_path / store, MemoryStore(), sparse=sparse)
        assert written.is_sparse == (sparse == "yes")
    with pytest.raises(ParameterError, match="sparse is 'maybe'"):
        ingest_file(tmp_path / "wide.npz", MemoryStore(), sparse="maybe")


def test_ingest__table_of_indicators_is_sparse_if_wanted(tmp_path):
    rng = np.random.default_rng(0)
    X = (rng.random((40, 100)) < 0.02).astype(np.int64)
    frame = pd.DataFrame(X, columns=[f"w{j}" for j in range(100)]).assign(y=X[:, 0])
    frame.to_parquet(tmp_path / "rows.parquet")
    frame.to_csv(tmp_path / "rows.csv", index=False)
    for name in ("rows.parquet", "rows.csv"):
        found = ingest_file(tmp_path / name, MemoryStore(), label="y", sparse="yes")
        assert rows_of(found)[0]
        np.testing.assert_array_equal(rows_of(found)[1], X)
        assert not ingest_file(tmp_path / name, MemoryStore(), label="y").is_sparse


def test_ingest__table_of_many_categories(tmp_path, monkeypatch, caplog):
    # 900 rows of 273 features have fewer bytes, and 1000 rows have more.
    monkeypatch.setattr("dask_nrbfn.sources.source._DENSE_BYTES", 2**21)
    rng, n = np.random.default_rng(0), 1000
    columns = {
        "city": rng.integers(0, 280, n).astype(str) + "x",
        "age": np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n)),
        "day": pd.date_range("2020-01-01", periods=n),
    }
    options = {"missing": "impute", "max_categories": 300}
    caplog.set_level("INFO", logger="dask_nrbfn")
    frame = pd.DataFrame(columns)
    assert not ingest_file(frame[:900], MemoryStore(), **options).is_sparse
    found = ingest_file(frame, tmp_path / "found", chunk_rows=70, **options)
    assert "for which a fit learns no column weights" in caplog.text
    plain = ingest_file(frame, MemoryStore(), sparse="no", **options)
    assert (found.is_sparse, plain.is_sparse) == (True, False)
    assert found.content == plain.content
    np.testing.assert_array_equal(rows_of(found)[1], rows_of(plain)[1])
    assert found.row_values >= np.count_nonzero(rows_of(plain)[1], axis=1).max()
    assert found.reading_bytes < plain.reading_bytes
    assert not problems_of(found)


@pytest.mark.parametrize("matrix", [sp.csr_matrix, sp.csr_array])
def test_ingest__dask_array_of_sparse_blocks(matrix):
    X, y = texts(50)
    blocks = [
        da.from_delayed(dask.delayed(matrix)(rows), rows.shape, meta=matrix((0, 400)))
        for rows in (X[:20], X[20:40], X[40:])
    ]
    weights = np.arange(1.0, 51.0)
    lazy = da.concatenate(blocks), da.from_array(y, chunks=9)
    options = {"weights": da.from_array(weights), "chunk_rows": 7}
    found = ingest_arrays(*lazy, MemoryStore(), **options)
    assert found.content == ingest_arrays(X, y, MemoryStore(), weights=weights).content


def fitted(rows, place, name):
    dataset = ingest_arrays(*rows, place / name)
    return fit_dataset(dataset, place / f"{name}-run", PARAMS, InlineEngine())


@pytest.mark.slow
def test_run__updated_merged_and_refreshed_as_with_dense_rows(tmp_path):
    models = {}
    for form in ("csr", "dense"):
        place = tmp_path / form
        tables = [texts(n_rows, seed=seed) for seed, n_rows in enumerate((60, 30, 20))]
        if form == "dense":
            tables = [(X.toarray(), y) for X, y in tables]
        first, second, third = (
            ingest_arrays(*table, place / f"rows{i}", chunk_rows=7)
            for i, table in enumerate(tables)
        )
        run = fit_dataset(first, place / "run", PARAMS, InlineEngine())
        update_run(run.location, second, InlineEngine())
        site = write_site(run, place / "site", first, third)
        merge_runs(run.location, site.location, InlineEngine())
        update_run(run.location, second, InlineEngine(), forget=True)
        models[form, "merged"] = Model.load(run.location)
        refresh_run(run.location, [first, third], InlineEngine())
        models[form, "refreshed"] = Model.load(run.location)
    X = texts(40, seed=9)[0]
    for step in ("merged", "refreshed"):
        sparse, dense = models["csr", step], models["dense", step]
        assert is_csr(sparse.basis)
        np.testing.assert_allclose(sparse.scores(X), dense.scores(X.toarray()), atol=1e-9)


@pytest.mark.slow
def test_refresh__of_a_sparse_and_a_dense_dataset(tmp_path):
    (X, y), (more, labels) = texts(60), texts(30, seed=1)
    run = fitted((X, y), tmp_path, "rows")
    dense_rows = ingest_arrays(more.toarray().astype(np.int32), labels, tmp_path / "dense")
    both = [Dataset.open(tmp_path / "rows"), dense_rows]
    refreshed = refresh_run(run.location, both, InlineEngine())
    assert refreshed.n_rows == 90
    all_rows = ingest_arrays(sp.vstack([X, more]), np.append(y, labels), MemoryStore())
    expected = fit_dataset(all_rows, MemoryStore(), PARAMS, InlineEngine())
    scores = [Model.load(run.location).scores(X) for run in (refreshed, expected)]
    np.testing.assert_allclose(*scores, atol=1e-9)
