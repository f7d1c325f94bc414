import sys
import warnings

import numpy as np
import pandas as pd
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from dask_nrbfn.commands.ingest import ingest_file
from dask_nrbfn.errors import DamagedDataError, DataError, MissingDataError, ParameterError
from dask_nrbfn.sources import open_source
from dask_nrbfn.sources.anndata import source_of
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.open import holds_rows
from dask_nrbfn.storage.dataset import Dataset
from tests.cells import drawn_cells, write_cells

CELLS = drawn_cells()
PLACES = ("cells2.zarr", "cells3.zarr", "cells.h5ad")


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Directory with the same cells in every format."""
    directory = tmp_path_factory.mktemp("cells")
    write_cells(CELLS, directory / "cells2.zarr", zarr_format=2)
    write_cells(CELLS, directory / "cells3.zarr", zarr_format=3)
    write_cells(CELLS, directory / "cells.h5ad")
    return directory


def all_of(source, block_rows=11):
    """Return X, labels, weights and ids of all rows."""
    columns = zip(*source.blocks(block_rows), strict=True)
    return [None if parts[0] is None else np.concatenate(parts) for parts in columns]


@pytest.mark.parametrize("place", PLACES)
def test_anndata__components_and_categories(stored, place):
    source = open_source(stored / place, x="obsm/X_pca", y="obs/cell_type", weights="obs/w")
    X, y, weights, ids = all_of(source)
    np.testing.assert_array_equal(X, CELLS.obsm["X_pca"])
    expected = CELLS.obs["cell_type"].astype(object).fillna("").tolist()
    assert y.tolist() == expected
    assert source.unlabelled == ""
    np.testing.assert_array_equal(weights, CELLS.obs["w"])
    assert ids.tolist() == CELLS.obs_names.tolist()
    assert source.feature_names == tuple(f"X_pca_{j}" for j in range(5))
    assert source.read_as == {"x": "obsm/X_pca", "y": "obs/cell_type", "weights": "obs/w"}


@pytest.mark.fast_cases(5)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("column", "none"),
    [("number_type", None), ("batch", None), ("count", None), ("maybe", -1), ("flag", -1)],
)
def test_anndata__columns_of_every_kind(stored, place, column, none):
    source = open_source(stored / place, x="layers/dense", y=f"obs/{column}")
    X, y, _, _ = all_of(source)
    np.testing.assert_array_equal(X, CELLS.layers["dense"])
    assert source.feature_names == tuple(CELLS.var_names)
    assert source.unlabelled == none
    values = CELLS.obs[column].tolist()
    assert y.tolist() == [none if value is pd.NA else value for value in values]


@pytest.mark.parametrize("place", PLACES)
def test_anndata__counts_stay_sparse(stored, place):
    source = open_source(stored / place, target="obs/age,obs/maybe")
    assert source.n_values == CELLS.X.nnz
    assert source.target_names == ("age", "maybe")
    blocks = list(source.blocks(7))
    assert [block.X.shape[0] for block in blocks] == [7] * 8 + [4]
    for start, block in zip(range(0, 60, 7), blocks, strict=True):
        np.testing.assert_array_equal(block.X.toarray(), CELLS.X[start : start + 7].toarray())
    expected = CELLS.obs[["age", "maybe"]].to_numpy(dtype=float, na_value=np.nan)
    np.testing.assert_array_equal(np.concatenate([block.y for block in blocks]), expected)


@settings(max_examples=8, deadline=None)
@given(chunk_rows=st.integers(1, 61), columns=st.integers(1, 5), block_rows=st.integers(1, 61))
def test_anndata__any_chunks(chunk_rows, columns, block_rows):
    root, values = zarr.create_group(MemoryStore()), CELLS.obsm["X_pca"]
    root.create_array("obsm/X_pca", data=values, chunks=(chunk_rows, columns))
    root.create_array("obs/index", data=np.arange(60), chunks=(7,))
    root["obs"].attrs.update({"_index": "index", "column-order": []})
    X, *_ = all_of(source_of(root, File("cells.zarr"), x="obsm/X_pca"), block_rows)
    np.testing.assert_array_equal(X, values)


def test_anndata__dataset_of_labelled_and_unlabelled_cells(stored, tmp_path):
    place = stored / "cells3.zarr"
    ingest_file(place, tmp_path / "d", x="obsm/X_pca", y="obs/cell_type", chunk_rows=8)
    dataset = Dataset.open(tmp_path / "d")
    assert dataset.classes.tolist() == ["alpha", "beta", "gamma"]
    assert dataset.n_unlabelled == CELLS.obs["cell_type"].isna().sum()
    assert dataset.ids[:2].tolist() == ["cell-0", "cell-1"]
    assert dataset.read_as == {"x": "obsm/X_pca", "y": "obs/cell_type"}
    np.testing.assert_array_equal(dataset.take(np.arange(60)), CELLS.obsm["X_pca"])


@pytest.mark.slow
def test_anndata__unlabelled_may_be_called_otherwise(stored, tmp_path):
    options = {"x": "obsm/X_pca", "y": "obs/cell_type", "unlabelled": "gamma"}
    dataset = ingest_file(stored / "cells3.zarr", tmp_path / "d", **options)
    assert dataset.classes.tolist() == ["alpha", "beta"]
    labels = CELLS.obs["cell_type"]
    assert dataset.n_unlabelled == (labels.isna() | (labels == "gamma")).sum()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"x": "obsm/X_umap"}, "no 'obsm/X_umap' .* it has X, layers/dense, obsm/X_pca"),
        ({"x": "obs/age"}, "no 'obs/age' with rows"),
        ({"x": "obsm/X_pca", "y": "obs/type"}, "no column 'obs/type'; it has obs/cell_type, obs/"),
        ({"x": "obsm/X_pca", "y": "cell_type"}, "no column 'cell_type'"),
        ({"x": "obsm/X_pca", "target": "obs/batch"}, "obs/batch has dtype"),
        ({"x": "obsm/X_pca", "y": "obs/w"}, "label .* in row 0"),
    ],
)
def test_anndata__refuses(stored, options, message):
    with pytest.raises(DataError, match=message):
        all_of(open_source(stored / "cells3.zarr", **options))


def test_anndata__refuses_csc(tmp_path):
    cells = drawn_cells()
    cells.X = cells.X.tocsc()
    place = write_cells(cells, tmp_path / "cells.zarr")
    with pytest.raises(DataError, match=r"csc_matrix.*tocsr"):
        open_source(place)


def test_anndata__obs_of_another_length(tmp_path):
    place = write_cells(drawn_cells(), tmp_path / "cells.zarr")
    zarr.open_group(place, use_consolidated=False)["obs/w"].resize((59,))
    with warnings.catch_warnings(action="ignore"):
        zarr.consolidate_metadata(place)
    with pytest.raises(DataError, match=r"obs/w of .* has 59 rows but obsm/X_pca has 60"):
        open_source(place, x="obsm/X_pca", weights="obs/w")


@pytest.mark.slow
def test_anndata__values_that_are_not_finite(tmp_path):
    cells = drawn_cells()
    cells.obsm["X_pca"][4, 2] = np.inf
    place = write_cells(cells, tmp_path / "cells.zarr")
    with pytest.raises(DataError, match="inf in row 4, column 2"):
        ingest_file(place, tmp_path / "d", x="obsm/X_pca")


def test_anndata__damaged(stored, tmp_path):
    (tmp_path / "cells.h5ad").write_bytes((stored / "cells.h5ad").read_bytes()[:500])
    with pytest.raises(DamagedDataError, match="cannot be read as AnnData"):
        open_source(tmp_path / "cells.h5ad", x="obsm/X_pca")
    with pytest.raises(MissingDataError):
        open_source(tmp_path / "none.h5ad")


def test_anndata__options_of_tables(stored):
    with pytest.raises(ParameterError, match=r"label.*format is anndata"):
        open_source(stored / "cells3.zarr", label="cell_type")
    with pytest.raises(ParameterError, match="weights"):
        open_source(stored / "cells3.zarr", y="obs/count", weights="obs/count")


def test_anndata__without_h5py(stored, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ParameterError, match=r"dask-nrbfn\[anndata\]"):
        open_source(stored / "cells.h5ad")


@pytest.mark.parametrize("place", PLACES)
def test_holds_rows__of_cells(stored, place):
    assert holds_rows(stored / place)


@pytest.mark.slow
def test_anndata__over_a_url(stored):
    import fsspec

    fs = fsspec.filesystem("memory")
    fs.put(str(stored / "cells3.zarr"), "/cells3.zarr", recursive=True)
    fs.put(str(stored / "cells.h5ad"), "/cells.h5ad")
    try:
        for name in ("cells3.zarr", "cells.h5ad"):
            assert holds_rows(f"memory://{name}")
            X, *_ = all_of(open_source(f"memory://{name}", x="obsm/X_pca"))
            np.testing.assert_array_equal(X, CELLS.obsm["X_pca"])
        assert File("memory://cells3.zarr").is_directory()
    finally:
        fs.rm("/cells3.zarr", recursive=True)
        fs.rm("/cells.h5ad")
