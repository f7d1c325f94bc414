"""What the stage "columns" tells of the columns of a table."""

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn import FitParams, fit_dataset, ingest_file
from dask_nrbfn.engine import InlineEngine
from tests.tables import spirals

PARAMS = {"basis": "random", "basis_size": 10, "alpha": 1e-6}


def told_of(tmp_path, caplog, factors, **params):
    """Return the warnings of a fit to a table whose columns are multiplied by `factors`."""
    X, y = spirals(60, n_features=len(factors))
    lines = [",".join(map(str, [*row, label])) for row, label in zip(X * factors, y, strict=True)]
    names = ",".join(f"x{place}" for place in range(len(factors)))
    (tmp_path / "rows.csv").write_text("\n".join([f"{names},label", *lines]))
    dataset = ingest_file(tmp_path / "rows.csv", MemoryStore(), label="label")
    caplog.clear()
    fit_dataset(dataset, MemoryStore(), FitParams(**PARAMS, **params), InlineEngine())
    return [each for each in caplog.messages if "decide the distances" in each]


@pytest.mark.parametrize("factors", [(1, 1, 1000, 1), (1, 1000, 1000, 1000), (300, 1)])
def test_columns__of_unlike_sizes(tmp_path, caplog, factors):
    (told,) = told_of(tmp_path, caplog, factors)
    largest, least = np.argmax(factors), np.argmin(factors)
    assert told.startswith("the deviation of column 'x")
    assert f"'x{largest}' is " in told or factors.count(1000) > 1
    assert f"and of column 'x{least}' " in told or factors.count(1) > 1
    assert "Use scale='standard'" in told


@pytest.mark.parametrize(
    ("factors", "params"),
    [
        ((1, 10, 1, 1), {}),
        ((1, 1000, 1, 1), {"scale": "standard"}),
        ((1, 1000, 1, 1), {"scale": "unit"}),
        # One of five is less than a quarter; a column that is always 0 does not count.
        ((1, 1000, 1000, 1000, 1000), {}),
        ((0, 1, 1, 1), {}),
    ],
)
def test_columns__without_a_warning(tmp_path, caplog, factors, params):
    assert told_of(tmp_path, caplog, factors, **params) == []
