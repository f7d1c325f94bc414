import shutil

import numpy as np

from dask_nrbfn import FitParams, fit_dataset, ingest_file
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.report.finished import Confidences, FinishedRun
from tests.tables import spirals


def test_confidences__are_those_of_all_rows(fitted):
    assert len(fitted.spans) == 3
    values = fitted.read("confidence/values")
    found = Confidences.of(FinishedRun.of(fitted))
    assert found.counts.sum() == 300
    for place in (1, 500, 950, 999):
        assert found.counts[:place].sum() == np.count_nonzero(values < place / 1000)
    assert found.n_certain == np.count_nonzero(values == 1)
    np.testing.assert_array_equal(found.rows, np.lexsort([np.arange(300), values])[:10])
    np.testing.assert_array_equal(found.values, values[found.rows])


def test_confidences__rows_have_labels_and_ids(tmp_path):
    X, y = spirals(150)
    labels = np.array(["ant", "bee", "cat"])[y]
    # Rows without a label have no confidence.
    labels[::7] = ""
    lines = [
        f"{x[0]},{x[1]},{x[2]},{x[3]},{label},row-{row}"
        for row, (x, label) in enumerate(zip(X, labels, strict=True))
    ]
    (tmp_path / "rows.csv").write_text("\n".join(["a,b,c,d,kind,name", *lines]))
    options = {"label": "kind", "id": "name", "unlabelled": "", "chunk_rows": 40}
    dataset = ingest_file(tmp_path / "rows.csv", tmp_path / "data.zarr", **options)
    params = FitParams(basis="sknn", n_neighbors=8, basis_size=20, candidates=60)
    run = fit_dataset(dataset, tmp_path / "run.zarr", params, InlineEngine())
    found = Confidences.of(FinishedRun.of(run))
    assert found.labels == tuple(labels[found.rows])
    assert found.ids == tuple(f"row-{row}" for row in found.rows)
    shutil.rmtree(tmp_path / "data.zarr")
    again = Confidences.of(FinishedRun.of(run))
    assert (again.labels, again.ids) == (found.labels, None)
