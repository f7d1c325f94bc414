"""Cells as AnnData writes them."""

import json
import warnings
from pathlib import Path

import anndata
import h5py
import numpy as np
import pandas as pd
import zarr
from scipy.sparse import random_array


def drawn_cells(n_cells=60, n_genes=20, n_components=5, seed=0):
    """Return cells with sparse counts, components, and columns of every kind."""
    rng = np.random.default_rng(seed)
    types = np.array(["alpha", "beta", "gamma"], dtype=object)
    codes = np.arange(n_cells) % 3
    labels = np.where(np.arange(n_cells) % 7 == 3, None, types[codes])
    counts = random_array((n_cells, n_genes), density=0.2, format="csr", dtype=np.float32, rng=rng)
    components = rng.normal(size=(n_cells, n_components)) + 3 * codes[:, None]
    obs = {
        "cell_type": pd.Categorical(labels, categories=types),
        "number_type": pd.Categorical(codes * 2),
        "batch": types[codes],
        "age": rng.uniform(20, 80, n_cells),
        "count": np.arange(n_cells),
        "maybe": pd.array([None if i % 5 == 0 else i % 3 for i in range(n_cells)], dtype="Int64"),
        "flag": pd.array([None if i % 5 == 0 else i % 2 == 0 for i in range(n_cells)], "boolean"),
        "w": rng.uniform(0.5, 2, n_cells),
    }
    index = pd.Index([f"cell-{i}" for i in range(n_cells)], name="barcode")
    return anndata.AnnData(
        counts,
        obs=pd.DataFrame(obs, index=index),
        var=pd.DataFrame(index=[f"gene-{j}" for j in range(n_genes)]),
        obsm={"X_pca": components.astype(np.float32)},
        layers={"dense": counts.toarray()},
    )


def write_cells(cells, path, zarr_format=3, **options):
    """Write cells as Zarr, or by the suffix as .h5ad; return the path."""
    with warnings.catch_warnings():
        # Of AnnData about its own next version, and of zarr about consolidated metadata.
        warnings.simplefilter("ignore")
        if Path(path).suffix == ".h5ad":
            cells.write_h5ad(path)
        else:
            with anndata.settings.override(zarr_write_format=zarr_format):
                cells.write_zarr(path, **options)
    return path


def read_cells(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        in_file = Path(path).suffix == ".h5ad"
        return anndata.read_h5ad(path) if in_file else anndata.read_zarr(path)


def write_old_cells(cells, path):
    """Write cells as AnnData 0.7 did, in Zarr 2 or by the suffix as .h5ad; return the path."""
    in_file = Path(path).suffix == ".h5ad"
    root = h5py.File(path, "w") if in_file else zarr.create_group(path, zarr_format=2)
    text = h5py.string_dtype() if in_file else str
    create = root.create_dataset if in_file else root.create_array
    for name in ("obs", "var"):
        frame = getattr(cells, name)
        columns = [column for column in ("cell_type", "age", "batch") if column in frame]
        group = root.create_group(name)
        group.attrs.update({"encoding-type": "dataframe", "encoding-version": "0.1.0"})
        group.attrs.update({"_index": "names", "column-order": columns})
        _create(create, f"{name}/names", frame.index.to_numpy(), text)
        for column in columns:
            values = frame[column]
            if column == "cell_type":
                _create(create, f"{name}/{column}", values.cat.codes.to_numpy())
                where = f"__categories/{column}"
                _create(create, f"{name}/{where}", values.cat.categories.to_numpy(), text)
                reference = root[f"{name}/{where}"].ref if in_file else where
                root[f"{name}/{column}"].attrs["categories"] = reference
            else:
                _create(create, f"{name}/{column}", values.to_numpy(), text)
    _create(create, "X", cells.layers["dense"])
    _create(create, "obsm/X_pca", cells.obsm["X_pca"])
    if in_file:
        root.close()
    return path


def _create(create, name, values, text=None):
    if values.dtype.kind != "O":
        create(name, data=values)
    elif text is str:
        create(name, data=values.astype(np.dtypes.StringDType()))
    else:
        create(name, data=values, dtype=text)


def spoil_consolidated(place):
    """Add an array to uns of a type that zarr does not know, as scanpy's rank_genes_groups had."""
    array = {
        "chunks": [3], "compressor": None, "filters": None, "order": "C", "shape": [3],
        "zarr_format": 2, "fill_value": None, "dtype": [["a", "|O"], ["b", "<f4"]],
    }  # fmt: skip
    if not (place / ".zmetadata").exists():
        zarr.open_group(place, mode="r+").create_group("uns")
        zarr.consolidate_metadata(place)
    (place / "uns/ranks").mkdir()
    (place / "uns/ranks/.zarray").write_text(json.dumps(array))
    metadata = json.loads((place / ".zmetadata").read_text())
    metadata["metadata"]["uns/ranks/.zarray"] = array
    (place / ".zmetadata").write_text(json.dumps(metadata))
