"""Cells in memory: rows of obsm or X, and categories of obs, as AnnData gives them."""

import numpy as np
import pytest

from dask_nrbfn import NRBFNClassifier
from tests.cells import drawn_cells


@pytest.mark.parametrize("rows", ["obsm", pytest.param("X", marks=pytest.mark.slow)])
def test_cells__categories_are_labels(rows):
    cells = drawn_cells()
    known = cells[cells.obs["cell_type"].notna()]
    X = known.obsm["X_pca"] if rows == "obsm" else known.X
    network = NRBFNClassifier(n_neighbors=5).fit(X, known.obs["cell_type"])
    assert network.classes_.tolist() == ["alpha", "beta", "gamma"]
    dense = X if rows == "obsm" else X.toarray()
    named = NRBFNClassifier(n_neighbors=5).fit(dense, known.obs["cell_type"].tolist())
    assert network.predict(X).tolist() == named.predict(dense).tolist()
    assert np.isin(network.predict(X), network.classes_).all()
