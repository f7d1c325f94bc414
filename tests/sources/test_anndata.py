import sys
import warnings
from functools import partial

import anndata
import numpy as np
import pandas as pd
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from dask_nrbfn.commands.ingest import ingest_file
from dask_nrbfn.errors import DamagedDataError, DataError, MissingDataError, ParameterError
from dask_nrbfn.numeric.rows import dense
from dask_nrbfn.numeric.schema import Column, Schema
from dask_nrbfn.sources import elements, open_source
from dask_nrbfn.sources.anndata import source_of
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.formats import holds_rows
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.referenced import ReferencedRows
from tests.cells import (
    drawn_cells,
    spoil_consolidated,
    write_cells,
    write_compound_cells,
    write_old_cells,
)

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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"x": "obsm/X_umap"}, "no matrix 'obsm/X_umap'; it has X, layers/dense, obsm/X_pca"),
        ({"x": "obs/age"}, "no matrix 'obs/age'"),
        ({"x": "obsm/X_pca", "y": "obs/type"}, "no column 'obs/type'; it has obs/cell_type, obs/"),
        ({"x": "obsm/X_pca", "y": "cell_type"}, "no column 'cell_type'"),
        ({"x": "obsm/X_pca", "target": "obs/batch"}, "obs/batch has dtype"),
        ({"x": "obsm/X_pca", "y": "obs/w"}, "label .* in row 0"),
    ],
)
def test_anndata__refuses(stored, options, message):
    with pytest.raises(DataError, match=message):
        all_of(open_source(stored / "cells3.zarr", **options))


@pytest.mark.parametrize("place", ["cells.zarr", "cells.h5ad"])
def test_anndata__csc_in_several_readings(tmp_path, monkeypatch, place):
    cells = drawn_cells()
    cells.X = cells.X.tocsc()
    place = write_cells(cells, tmp_path / place)
    monkeypatch.setattr(elements, "_CSC_BYTES", 700)
    source = open_source(place)
    assert source.x.readings == 5
    assert source.stored_at is None
    blocks = [block.X for block in source.blocks(7)]
    assert [X.shape[0] for X in blocks] == [7] * 8 + [4]
    np.testing.assert_array_equal(np.concatenate([X.toarray() for X in blocks]), cells.X.toarray())


def check_old(place, x="obsm/X_pca"):
    source = open_source(place, x=x, y="obs/cell_type", weights="obs/age")
    X, y, weights, ids = all_of(source)
    np.testing.assert_array_equal(X, CELLS.obsm["X_pca"])
    assert y.tolist() == CELLS.obs["cell_type"].astype(object).fillna("").tolist()
    assert ids.tolist() == CELLS.obs_names.tolist()
    np.testing.assert_array_equal(weights, CELLS.obs["age"])
    genes = open_source(place)
    assert genes.feature_names == tuple(CELLS.var_names)
    X, *_ = dense_of(genes)
    np.testing.assert_array_equal(X, CELLS.layers["dense"])


def dense_of(source):
    blocks = [block._replace(X=dense(block.X)) for block in source.blocks(11)]
    return [
        None if parts[0] is None else np.concatenate(parts) for parts in zip(*blocks, strict=True)
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_anndata__tables_as_structured_arrays(tmp_path, encoding):
    place = write_compound_cells(CELLS, tmp_path / "cells.h5ad", encoding)
    check_old(place)
    X, *_ = all_of(open_source(place, x="obsm/X_two"))
    np.testing.assert_array_equal(X, CELLS.obsm["X_pca"][:, :2])
    raw = open_source(place, x="raw/X")
    assert raw.feature_names == ("r0", "r1", "r2")
    np.testing.assert_array_equal(all_of(raw)[0], CELLS.layers["dense"][:, :3])
    with pytest.raises(DataError, match="it has X, raw/X, obsm/X_pca, obsm/X_two"):
        open_source(place, x="obsm/X_umap")


@pytest.mark.parametrize("place", ["cells.zarr", "cells.h5ad"])
def test_anndata__layout_of_0_7(tmp_path, place):
    check_old(write_old_cells(CELLS, tmp_path / place))
    assert holds_rows(tmp_path / place)


def test_anndata__group_that_does_not_say_what_it_is(tmp_path):
    place = tmp_path / "cells.zarr"
    root = zarr.create_group(place)
    root.create_array("X", data=CELLS.layers["dense"])
    root.create_array("obs/kind", data=np.arange(60) % 3)
    root.create_array("var/index", data=np.array(CELLS.var_names, dtype=np.dtypes.StringDType()))
    source = open_source(place, y="obs/kind")
    X, y, _, ids = all_of(source)
    np.testing.assert_array_equal(X, CELLS.layers["dense"])
    assert y.tolist() == [0, 1, 2] * 20
    assert ids is None
    assert source.feature_names == tuple(CELLS.var_names)
    root.create_array("raw.X", data=CELLS.obsm["X_pca"])
    root.create_array("raw.var/index", data=np.arange(5))
    for x, values in {"X": CELLS.layers["dense"], "raw/X": CELLS.obsm["X_pca"]}.items():
        dataset = ingest_file(place, tmp_path / "d", x=x, y="obs/kind", overwrite=True)
        assert isinstance(dataset.X, ReferencedRows)
        np.testing.assert_array_equal(dataset.take(np.arange(60)), values)


@pytest.mark.parametrize("write", [partial(write_cells, zarr_format=2), write_old_cells])
def test_anndata__consolidated_metadata_that_zarr_cannot_read(tmp_path, caplog, write):
    place = write(CELLS, tmp_path / "cells.zarr")
    spoil_consolidated(place)
    with caplog.at_level("INFO", logger="dask_nrbfn"):
        check_old(place)
    assert "without its consolidated metadata" in caplog.text


@pytest.mark.parametrize("place", ["cells.zarr", "cells.h5ad"])
def test_anndata__raw(tmp_path, place):
    cells = drawn_cells()
    cells.raw = cells
    source = open_source(write_cells(cells[:, :4].copy(), tmp_path / place), x="raw/X")
    assert source.feature_names == tuple(cells.var_names)
    np.testing.assert_array_equal(dense_of(source)[0], cells.X.toarray())


@pytest.mark.parametrize("place", ["cells.zarr", "cells.h5ad"])
def test_anndata__frame_in_obsm(tmp_path, place):
    cells = drawn_cells()
    shares = pd.DataFrame({"T": np.arange(60.0), "B": np.arange(60)}, index=cells.obs_names)
    cells.obsm["shares"] = shares
    cells.obsm["mixed"] = shares.assign(T=cells.obs["cell_type"])
    place = write_cells(cells, tmp_path / place)
    source = open_source(place, x="obsm/shares")
    assert source.feature_names == ("T", "B")
    np.testing.assert_array_equal(all_of(source, 7)[0], shares)
    assert (
        Dataset.open(ingest_file(place, tmp_path / "d", x="obsm/shares").location).n_features == 2
    )
    with pytest.raises(DataError, match=r"obsm/mixed/T of .* is not a column of numbers"):
        open_source(place, x="obsm/mixed")


@pytest.mark.parametrize("place", ["cells.zarr", "cells.h5ad"])
def test_anndata__label_that_is_nan_is_none(tmp_path, place, caplog):
    cells = drawn_cells()
    cells.obs["cluster"] = np.where(np.arange(60) % 4 == 1, np.nan, np.arange(60) % 3 - 1.0)
    place = write_cells(cells, tmp_path / place)
    with caplog.at_level("INFO", logger="dask_nrbfn"):
        dataset = ingest_file(place, tmp_path / "d", x="obsm/X_pca", y="obs/cluster")
    assert dataset.classes.tolist() == [-1, 0, 1]
    assert dataset.n_unlabelled == 15
    assert "15 of 60 rows have no label in obs/cluster" in caplog.text


def test_anndata__obs_of_another_length(tmp_path):
    place = write_cells(drawn_cells(), tmp_path / "cells.zarr")
    zarr.open_group(place, use_consolidated=False)["obs/w"].resize((59,))
    with warnings.catch_warnings(action="ignore"):
        zarr.consolidate_metadata(place)
    with pytest.raises(DataError, match=r"obs/w of .* has 59 rows but obsm/X_pca has 60"):
        open_source(place, x="obsm/X_pca", weights="obs/w")


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


@pytest.mark.parametrize(
    ("place", "options", "package"),
    [
        ("cells3.zarr", {"x": "X"}, "anndata"),
        ("cells3.zarr", {"x": "obsm/X_pca", "y": "obs/maybe"}, "anndata"),
        ("cells.h5ad", {"x": "obsm/X_pca"}, "h5py"),
    ],
)
def test_anndata__without_a_package(stored, monkeypatch, place, options, package):
    for name in sys.modules.keys() & {package, f"{package}.io"}:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ParameterError, match=rf"{package}.*dask-nrbfn\[anndata\]"):
        open_source(stored / place, **options)


def named_otherwise(names, tmp_path, place="cells.zarr"):
    """Write the same cells with genes of other names, or in another order."""
    cells = drawn_cells()
    more = np.concatenate([cells.layers["dense"], np.full((60, 2), 7.0)], axis=1)
    known = [*cells.var_names, "extra-0", "extra-1"]
    values = more[:, [known.index(name) for name in names]]
    with warnings.catch_warnings(action="ignore"):
        # Of names that are not unique.
        cells = anndata.AnnData(values, cells.obs, pd.DataFrame(index=names))
    return write_cells(cells, tmp_path / place)


ORDERS = {
    "reversed": [*reversed(CELLS.var_names)],
    "more": ["extra-1", *CELLS.var_names, "extra-0"],
    "same": [*CELLS.var_names],
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("place", ["cells.zarr", "cells.h5ad"])
def test_anndata__genes_are_found_by_name(tmp_path, order, place):
    schema = Schema(tuple(Column(name, "number") for name in CELLS.var_names))
    source = open_source(named_otherwise(ORDERS[order], tmp_path, place), schema=schema)
    np.testing.assert_array_equal(all_of(source)[0], CELLS.layers["dense"])
    assert source.feature_names == tuple(CELLS.var_names)
    assert (source.stored_at is None) == (order != "same" or place.endswith("h5ad"))


def test_anndata__genes_of_sparse_counts_are_found_by_name(stored):
    wanted = ("gene-3", "gene-1", "gene-19")
    schema = Schema(tuple(Column(name, "number") for name in wanted))
    X, *_ = dense_of(open_source(stored / "cells3.zarr", schema=schema))
    np.testing.assert_array_equal(X, CELLS.layers["dense"][:, [3, 1, 19]])


def test_anndata__genes_that_are_not_there(tmp_path):
    schema = Schema(tuple(Column(name, "number") for name in CELLS.var_names))
    place = named_otherwise([*CELLS.var_names[5:], "extra-0"], tmp_path)
    with pytest.raises(DataError, match="lacks gene-0, gene-1, gene-2 and 2 more, of the 20"):
        open_source(place, schema=schema)
    twice = named_otherwise(["gene-0", *CELLS.var_names], tmp_path, "twice.zarr")
    with pytest.raises(DataError, match="has the feature gene-0 2 times"):
        open_source(twice, schema=schema)


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
