import shutil

import numpy as np
import pyarrow as pa

from dask_nrbfn import FitParams, InlineEngine, Model, fit_dataset, ingest_file, update_run
from dask_nrbfn.report.facts import confidence_tables
from dask_nrbfn.report.finished import FinishedRun
from tests.tables import spirals, surfaces, write_table


def test_unlike__of_validation_rows_is_that_of_new_rows(regression):
    values, weights = FinishedRun.of(regression).unlike
    X, _ = surfaces(250, seed=1)
    model = Model.load(regression.location)
    expected = model.scores(X, extended=True)[:, -1] / model.intervals.far
    np.testing.assert_allclose(np.sort(values), np.sort(expected), rtol=1e-9, atol=1e-9)
    assert np.count_nonzero(values > 1) <= 1
    assert weights.sum() == 250


def test_unlike__of_a_fit_and_its_updates(fitted, tmp_path):
    # This fit has a given alpha, and holds no rows out.
    assert FinishedRun.of(fitted).unlike is None
    X, y = spirals(300)
    first = write_table(tmp_path / "first.zarr", X[:200], y[:200])
    further = write_table(tmp_path / "further.zarr", X[200:], y[200:])
    run = fit_dataset(first, tmp_path / "run.zarr", FitParams(), InlineEngine())
    assert len(FinishedRun.of(run).unlike[0]) == 200
    update_run(run.location, further, InlineEngine())
    values, _ = FinishedRun.of(run).unlike
    assert len(values) == 300
    assert np.count_nonzero(values > 1) <= 1


def test_confidences__are_those_of_all_rows(fitted):
    assert len(fitted.layout.spans) == 3
    values = fitted.read("confidence/values")
    found = FinishedRun.of(fitted)
    np.testing.assert_array_equal(found.confidences, values)
    (least,) = confidence_tables(found)
    assert [row["row"] for row in least.rows] == [*np.lexsort([np.arange(300), values])[:50]]
    assert [row["confidence"] for row in least.rows] == [*np.sort(values)[:50]]


def test_confidences__rows_have_their_labels_and_ids(tmp_path):
    X, y = spirals(150)
    labels = np.array(["ant", "bee", "cat"])[y]
    # Rows without a label have no confidence.
    labels[::7] = ""
    ids = [f"row {row}" for row in range(150)]
    table = pa.table({"a": X[:, 0], "b": X[:, 1], "kind": labels, "name": ids})
    dataset = ingest_file(table, tmp_path / "data.zarr", label="kind", id="name", unlabelled="")
    params = FitParams(basis="sknn", n_neighbors=8, basis_size=20, candidates=60)
    run = fit_dataset(dataset, tmp_path / "run.zarr", params, InlineEngine())
    (least,) = confidence_tables(FinishedRun.of(run))
    assert [row["label"] for row in least.rows] == [labels[row["row"]] for row in least.rows]
    assert [row["id"] for row in least.rows] == [ids[row["row"]] for row in least.rows]
    # The report of a run is complete without its dataset.
    shutil.rmtree(tmp_path / "data.zarr")
    (left,) = confidence_tables(FinishedRun.of(run))
    assert left.rows == [{k: v for k, v in row.items() if k != "id"} for row in least.rows]
