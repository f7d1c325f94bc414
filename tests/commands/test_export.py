"""What predictions are joined by, and the rows that have none."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn.commands.fit import fit_dataset
from dask_nrbfn.commands.ingest import ingest_source
from dask_nrbfn.commands.predict import predict_dataset
from dask_nrbfn.engine import InlineEngine
from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.schema import Column, Schema
from dask_nrbfn.params import FitParams
from dask_nrbfn.sources.arrays import ArrayRows
from dask_nrbfn.sources.options import WriteOptions
from dask_nrbfn.storage.model import Model
from tests.tables import spirals

READERS = {".csv": pd.read_csv, ".parquet": pd.read_parquet}
SCHEMA = Schema(tuple(Column(name, "number") for name in "abcd"), id="row")


def write(X, ids, y=None, chunk_rows=None, **options):
    source = ArrayRows({"x": X, "y": y, "id": ids})
    source.schema = SCHEMA
    return ingest_source(source, MemoryStore(), WriteOptions(chunk_rows=chunk_rows), **options)


@pytest.fixture(scope="module")
def model():
    X, y = spirals(200)
    dataset = write(X, np.arange(200), y)
    return fit_dataset(dataset, MemoryStore(), FitParams(alpha=1e-6), InlineEngine()).location


NUMBERS = np.arange(7, 157)
TEXTS = np.array([f"row, {row}" for row in NUMBERS], dtype=np.dtypes.StringDType())


@pytest.mark.fast_cases(2)
@pytest.mark.parametrize("suffix", READERS)
@pytest.mark.parametrize("ids", [NUMBERS, TEXTS], ids=["numbers", "texts"])
def test_predict__joined_by_ids_and_kept_columns(monkeypatch, tmp_path, model, suffix, ids):
    monkeypatch.setattr("dask_nrbfn.commands.predict._MIN_CHUNK_ROWS", 40)
    X, _ = spirals(150, seed=1)
    own = pd.DataFrame({"row": ids.tolist(), "note": [f"n{j % 7}" for j in range(150)]})
    reader = pa.table({"note": own["note"]}).to_reader(max_chunksize=17)
    out = tmp_path / f"out{suffix}"
    predict_dataset(model, write(X, ids, chunk_rows=70), out, InlineEngine(), kept=reader)
    found = READERS[suffix](out)
    assert found.columns.tolist() == ["row", "note", "prediction"]
    pd.testing.assert_frame_equal(found.drop(columns="prediction"), own, check_dtype=False)
    assert found["prediction"].tolist() == Model.load(model).scores(X).argmax(axis=1).tolist()


@pytest.mark.parametrize("suffix", READERS)
def test_predict__rows_without_a_value_are_nulls(tmp_path, model, suffix):
    X, _ = spirals(150, seed=1)
    bad = [0, 71, 149]
    with_gaps = X.copy()
    with_gaps[bad, [0, 1, 2]] = np.nan
    out, whole = tmp_path / f"out{suffix}", tmp_path / f"whole{suffix}"
    dataset = write(with_gaps, NUMBERS, gaps=True, chunk_rows=70)
    wanted = {"scores": True, "skip_bad": True}
    assert predict_dataset(model, dataset, out, InlineEngine(), **wanted) == len(bad)
    assert predict_dataset(model, write(X, NUMBERS), whole, InlineEngine(), **wanted) == 0
    found, expected = READERS[suffix](out), READERS[suffix](whole)
    assert found["row"].tolist() == NUMBERS.tolist()
    assert found.drop(columns="row").isna().all(axis=1).to_numpy().nonzero()[0].tolist() == bad
    pd.testing.assert_frame_equal(
        found.drop(index=bad), expected.drop(index=bad), check_dtype=False, rtol=1e-12
    )


@pytest.mark.parametrize("name", ["row", "prediction"])
def test_predict__kept_columns_have_names_of_their_own(tmp_path, model, name):
    kept = pa.table({name: np.arange(150)}).to_reader()
    dataset, out = write(spirals(150)[0], NUMBERS), tmp_path / "out.csv"
    with pytest.raises(ParameterError, match=f"two columns .* would be called '{name}'"):
        predict_dataset(model, dataset, out, InlineEngine(), kept=kept)


def test_predict__lists_are_not_kept_in_csv(tmp_path, model):
    kept = pa.table({"a": [[1, 2]] * 150}).to_reader()
    dataset = write(spirals(150)[0], NUMBERS)
    with pytest.raises(ParameterError, match=r"'a' of type list<.*>, which CSV does not support"):
        predict_dataset(model, dataset, tmp_path / "out.csv", InlineEngine(), kept=kept)
    predict_dataset(model, dataset, tmp_path / "out.parquet", InlineEngine(), kept=kept)


@pytest.mark.parametrize("n_rows", [149, 151])
def test_predict__kept_columns_of_other_rows(tmp_path, model, n_rows):
    kept = pa.table({"a": np.arange(n_rows)}).to_reader()
    dataset, out = write(spirals(150)[0], NUMBERS), tmp_path / "out.csv"
    with pytest.raises(DataError, match="rows of the file changed"):
        predict_dataset(model, dataset, out, InlineEngine(), kept=kept)
    assert not list(tmp_path.iterdir())
