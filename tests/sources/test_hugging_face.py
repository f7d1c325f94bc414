"""Directories that Hugging Face's datasets write, read with pyarrow alone."""

import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from dask_nrbfn.commands.ingest import ingest_file
from dask_nrbfn.errors import DamagedDataError, DataError, MissingDataError
from dask_nrbfn.sources import open_source

NAMES = ["neg", "pos"]
X = np.arange(15, dtype=np.float16).reshape(5, 3)
CODES = [0, 1, 1, 0, 1]
FEATURES = {
    "e": {"feature": {"dtype": "float16", "_type": "Value"}, "length": 3, "_type": "List"},
    "y": {"names": NAMES, "_type": "ClassLabel"},
    "tags": [{"dtype": "string", "_type": "Value"}],
}


def table_of(codes=CODES):
    columns = {"e": pa.array(X.tolist(), pa.list_(pa.float16(), 3)), "y": pa.array(codes)}
    return pa.table(columns).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": FEATURES}})}
    )


def save_to_disk(place, table, n_files=2):
    """Write what `datasets.Dataset.save_to_disk` writes."""
    place.mkdir(parents=True)
    names = []
    for number, rows in enumerate(np.array_split(np.arange(len(table)), n_files)):
        names.append(f"data-{number:05}-of-{n_files:05}.arrow")
        with pa.ipc.new_stream(place / names[-1], table.schema) as stream:
            stream.write_table(table.take(rows))
    state = {"_data_files": [{"filename": name} for name in names]}
    (place / "state.json").write_text(json.dumps(state))
    (place / "dataset_info.json").write_text("{}")
    return place


def check(source, names=("neg", "pos", "pos", "neg", "pos")):
    assert source.x_dtype == np.float16
    (block,) = source.blocks(10)
    np.testing.assert_array_equal(block.X, X)
    assert block.y.tolist() == list(names)


def test_hugging_face__a_directory_and_a_parquet_file(tmp_path):
    check(open_source(save_to_disk(tmp_path / "d", table_of()), x="e", label="y"))
    parquet.write_table(table_of(), tmp_path / "d.parquet")
    check(open_source(tmp_path / "d.parquet", x="e", label="y"))


def test_hugging_face__files_that_are_missing_or_of_others(tmp_path):
    place = save_to_disk(tmp_path / "d", table_of())
    *_, last = sorted(place.glob("*.arrow"))
    (place / "cache-1.arrow").write_bytes(last.read_bytes())
    check(open_source(place, x="e", label="y"))
    last.unlink()
    with pytest.raises(MissingDataError, match=f"lacks {last.name}"):
        open_source(place, x="e", label="y")
    (place / "state.json").write_text("{")
    with pytest.raises(DamagedDataError, match="does not list the data files"):
        open_source(place, x="e", label="y")


def test_hugging_face__rows_without_a_class(tmp_path):
    place = save_to_disk(tmp_path / "d", table_of([0, -1, 1, -1, 1]))
    check(open_source(place, x="e", label="y"), ("neg", "-1", "pos", "-1", "pos"))
    dataset = ingest_file(place, tmp_path / "rows", x="e", label="y", unlabelled=-1)
    assert (dataset.classes.tolist(), dataset.n_unlabelled) == (NAMES, 2)


def test_hugging_face__a_number_that_is_no_class(tmp_path):
    for code in (-2, 2):
        place = save_to_disk(tmp_path / str(code), table_of([0, 1, code, 0, 1]))
        with pytest.raises(
            DataError, match=r"'y' of .*arrow has a number without a class name, but only 2"
        ):
            list(open_source(place, x="e", label="y").blocks(10))


def test_hugging_face__several_datasets(tmp_path):
    for split in ("train", "test"):
        save_to_disk(tmp_path / "d" / split, table_of())
    (tmp_path / "d" / "dataset_dict.json").write_text("{}")
    with pytest.raises(DataError, match=r"datasets of Hugging Face: test, train\. Give"):
        open_source(tmp_path / "d")


@pytest.mark.ci
@pytest.mark.slow
def test_hugging_face__as_their_package_writes_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    import datasets

    datasets.disable_progress_bars()
    features = datasets.Features(
        e=datasets.List(datasets.Value("float16"), length=3), y=datasets.ClassLabel(names=NAMES)
    )
    rows = datasets.Dataset.from_dict({"e": X.tolist(), "y": CODES}, features=features)
    rows.save_to_disk(tmp_path / "d", num_shards=2)
    check(open_source(tmp_path / "d", x="e", label="y"))
    # What is chosen of a dataset is written as it is.
    rows.select([4, 0]).save_to_disk(tmp_path / "chosen")
    (block,) = open_source(tmp_path / "chosen", x="e", label="y").blocks(10)
    np.testing.assert_array_equal(block.X, X[[4, 0]])
