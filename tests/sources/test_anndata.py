import sys

import numpy as np
import pandas as pd
import pytest
import zarr

from dask_nrbfn.commands.ingest import ingest_file
from dask_nrbfn.errors import DamagedDataError, DataError, MissingDataError, ParameterError
from dask_nrbfn.numeric.rows import dense
from dask_nrbfn.numeric.schema import Column, Schema
from dask_nrbfn.sources.dtypes import NO_LABEL
from dask_nrbfn.sources.formats import holds_rows
from tests.cells import drawn_cells, read_cells, write_cells
from tests.opened import open_source

CELLS = drawn_cells()
GENES = tuple(CELLS.var_names)
BOTH = pytest.mark.parametrize("name", ["cells3.zarr", "cells.h5ad"])


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    directory = tmp_path_factory.mktemp("cells")
    cells = drawn_cells()
    cells.raw = cells
    cells.layers["csc"] = cells.X.tocsc()
    cells.layers["wide"] = cells.layers["dense"].astype(np.int64) + 2**53 + 1
    cells.obs["cluster"] = np.where(np.arange(60) % 4 == 1, np.nan, np.arange(60) % 3 - 1.0)
    shares = pd.DataFrame({"T": np.arange(60.0), "B": np.arange(60)}, index=cells.obs_names)
    cells.obsm["shares"] = shares
    write_cells(cells, directory / "cells2.zarr", zarr_format=2)
    write_cells(cells, directory / "cells3.zarr", zarr_format=3)
    write_cells(cells, directory / "cells.h5ad")
    return directory


def all_of(source, block_rows=11):
    blocks = (block._replace(X=dense(block.X)) for block in source.blocks(block_rows))
    columns = zip(*blocks, strict=True)
    return [None if parts[0] is None else np.concatenate(parts) for parts in columns]


@pytest.mark.parametrize("name", ["cells2.zarr", "cells3.zarr", "cells.h5ad"])
def test_anndata__components_and_categories(stored, name):
    read_as = {"x": "obsm/X_pca", "y": "obs/cell_type", "weights": "obs/w"}
    source = open_source(stored / name, **read_as)
    X, y, weights, ids = all_of(source)
    np.testing.assert_array_equal(X, CELLS.obsm["X_pca"], strict=True)
    assert y.tolist() == CELLS.obs["cell_type"].astype(object).fillna("").tolist()
    assert source.unlabelled == ""
    np.testing.assert_array_equal(weights, CELLS.obs["w"])
    assert ids.tolist() == CELLS.obs_names.tolist()
    assert source.feature_names == tuple(f"X_pca_{j}" for j in range(5))
    assert source.read_as == read_as


@BOTH
@pytest.mark.parametrize("column", ["number_type", "batch", "count", "maybe", "flag", "cluster"])
def test_anndata__labels_of_every_type(stored, name, column):
    source = open_source(stored / name, x="obsm/X_pca", y=f"obs/{column}")
    values = read_cells(stored / "cells3.zarr").obs[column]
    assert source.unlabelled == (NO_LABEL if values.isna().any() else None)
    assert all_of(source)[1].tolist() == [NO_LABEL if pd.isna(each) else each for each in values]
    assert source.boolean_labels == (column == "flag")


@BOTH
@pytest.mark.parametrize("chunk_rows", [7, 60])
def test_anndata__counts_stay_sparse(stored, name, chunk_rows):
    source = open_source(stored / name, target="obs/age,obs/maybe")
    assert source.n_values == CELLS.X.nnz
    assert source.target_names == ("age", "maybe")
    assert all(block.X.format == "csr" for block in source.blocks(chunk_rows))
    X, y, *_ = all_of(source, chunk_rows)
    np.testing.assert_array_equal(X, CELLS.X.toarray(), strict=True)
    expected = CELLS.obs[["age", "maybe"]].to_numpy(dtype=float, na_value=np.nan)
    np.testing.assert_array_equal(y, expected)


@BOTH
@pytest.mark.parametrize("x", ["layers/dense", "layers/wide", "raw/X"])
def test_anndata__any_matrix(stored, name, x):
    source = open_source(stored / name, x=x)
    counts = CELLS.layers["dense"]
    expected = counts.astype(np.int64) + 2**53 + 1 if x == "layers/wide" else counts
    np.testing.assert_array_equal(all_of(source)[0], expected, strict=True)
    assert source.feature_names == GENES


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"x": "obsm/X_umap"}, "no matrix 'obsm/X_umap'; it has 'X', 'raw/X', 'layers/csc', "),
        ({"x": "layers/csc"}, "layers/csc of .* is stored as csc_matrix.*csr_matrix"),
        ({"x": "obsm/shares"}, "obsm/shares of .* is stored as dataframe"),
        ({"x": "obsm/X_pca", "y": "obs/type"}, "no column 'obs/type'; it has 'obs/cell_type'"),
        ({"x": "obsm/X_pca", "target": "obs/batch"}, "Column 'obs/batch' of obs has type category"),
        ({"x": "obsm/X_pca", "y": "obs/w"}, "label .* in row 0"),
    ],
)
def test_anndata__refuses_before_rows_are_read(stored, options, message):
    with pytest.raises(DataError, match=message):
        open_source(stored / "cells3.zarr", **options)


def test_anndata__dataset_of_labelled_and_unlabelled_cells(stored, tmp_path, caplog):
    with caplog.at_level("INFO", logger="dask_nrbfn"):
        read_as = {"x": "X", "y": "obs/cluster"}
        dataset = ingest_file(stored / "cells.h5ad", tmp_path / "d", **read_as, sparse="yes")
    assert "15 of 60 rows have no label in obs/cluster" in caplog.text
    assert dataset.classes.tolist() == [-1, 0, 1]
    assert dataset.n_unlabelled == 15
    assert dataset.ids[:2].tolist() == ["cell-0", "cell-1"]
    assert dataset.read_as == read_as
    assert dataset.is_sparse
    np.testing.assert_array_equal(dense(dataset.take(np.arange(60))), CELLS.layers["dense"])


def test_anndata__of_another_layout_or_length(tmp_path):
    place = write_cells(CELLS, tmp_path / "cells.zarr")
    root = zarr.open_group(place, use_consolidated=False)
    root["obs/age"].resize((59,))
    with pytest.raises(DataError, match=r"obs/age has 59 rows but obsm/X_pca has 60"):
        open_source(place, x="obsm/X_pca", weights="obs/age")
    root["obs"].attrs["encoding-version"] = "0.1.0"
    with pytest.raises(DataError, match=r"layout of AnnData 0\.8.*write a new"):
        open_source(place, x="obsm/X_pca")


def test_anndata__damaged(stored, tmp_path):
    (tmp_path / "cells.h5ad").write_bytes((stored / "cells.h5ad").read_bytes()[:500])
    with pytest.raises(DamagedDataError, match="cannot be read as AnnData"):
        open_source(tmp_path / "cells.h5ad", x="obsm/X_pca")
    with pytest.raises(MissingDataError):
        open_source(tmp_path / "none.h5ad")


@pytest.mark.parametrize("package", ["anndata", "h5py"])
def test_anndata__without_a_package(stored, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ParameterError, match=rf"{package}.*dask-nrbfn\[anndata\]"):
        open_source(stored / "cells3.zarr")


@BOTH
@pytest.mark.parametrize("x", ["X", "layers/dense"])
def test_anndata__genes_are_found_by_name(stored, name, x):
    order = [3, 1, 19]
    schema = Schema(tuple(Column(GENES[j], "number") for j in order))
    source = open_source(stored / name, x=x, schema=schema)
    np.testing.assert_array_equal(all_of(source)[0], CELLS.layers["dense"][:, order])
    assert source.feature_names == tuple(GENES[j] for j in order)
    assert source.stored_at is None


def test_anndata__genes_that_are_missing_or_repeated(tmp_path):
    schema = Schema(tuple(Column(name, "number") for name in GENES))
    cells = CELLS[:, 2:].copy()
    cells.var_names = ["gene-3", *cells.var_names[1:]]
    place = write_cells(cells, tmp_path / "cells.zarr")
    message = "has no column 'gene-0', 'gene-1', 'gene-2'; it has .* with x, such as raw/X"
    with pytest.raises(DataError, match=message):
        open_source(place, schema=schema)
    with pytest.raises(DataError, match=r"several columns 'gene-3'; it has .*make_unique"):
        open_source(place, schema=Schema(schema.columns[3:]))


@pytest.mark.slow
@BOTH
def test_anndata__over_a_url(stored, name):
    import fsspec

    fs = fsspec.filesystem("memory")
    fs.put(str(stored / name), f"/{name}", recursive=name.endswith("zarr"))
    try:
        assert holds_rows(f"memory://{name}")
        X, *_ = all_of(open_source(f"memory://{name}", x="X", y="obs/cell_type"))
        np.testing.assert_array_equal(X, CELLS.layers["dense"])
    finally:
        fs.rm(f"/{name}", recursive=True)
