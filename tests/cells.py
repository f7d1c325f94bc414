"""Cells as AnnData writes them."""

import warnings
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
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
