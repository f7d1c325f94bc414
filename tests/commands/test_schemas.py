import json

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn import FitParams, InlineEngine, fit_dataset, ingest_file
from dask_nrbfn.commands.schemas import load_schema
from dask_nrbfn.errors import DataError, ExistsError, MissingDataError, ParameterError
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.storage.dataset import Dataset
from tests.cli.program import refuse, succeed

TEXT = "who,a,c,y\n" + "".join(
    f"r{i},{'?' if i % 9 == 0 else i / 4},{'pqr'[i % 3]},{'uv'[i % 2]}\n" for i in range(40)
)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(TEXT)
    return path


def ingested(table, place, **options):
    return ingest_file(table, place, label="y", id="who", missing="impute", **options)


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_schema__of_a_file_is_that_which_was_written(table, tmp_path, suffix):
    path = tmp_path / f"schema.{suffix}"
    first = ingested(table, tmp_path / "first", write_schema=path)
    assert load_schema(path) == first.schema
    again = ingest_file(table, tmp_path / "again", schema=path)
    assert (again.fingerprint, again.schema) == (first.fingerprint, first.schema)
    assert again.ids[:].tolist() == [f"r{i}" for i in range(40)]


def test_schema__of_a_dataset_a_run_and_its_model(table, tmp_path):
    first = ingested(table, tmp_path / "first")
    fitted = fit_dataset(first, tmp_path / "run", FitParams(n_neighbors=3), InlineEngine())
    for place in (first.location, fitted.location):
        assert load_schema(place).digest == first.schema.digest


@pytest.mark.parametrize(
    ("name", "text", "error", "message"),
    [
        ("none.toml", None, MissingDataError, "none.toml is not a file"),
        ("bad.toml", "a b", DataError, "bad.toml cannot be read as TOML"),
        ("bad.json", '{"column": {}}', DataError, "the schema has 'column', which is not one"),
        ("bad.json", '{"columns": {"a": {"kind": "x"}}}', DataError, "has 'x' as kind"),
        ("bad.json", '{"label": "y", "label": "z"}', DataError, "JSON: 'label' occurs twice"),
    ],
)
def test_schema__that_is_none(table, tmp_path, name, text, error, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(error, match=message):
        ingest_file(table, tmp_path / "data", schema=tmp_path / name)


def test_schema__is_written_where_it_may(table, tmp_path):
    with pytest.raises(ParameterError, match=r"write_schema is s\.txt"):
        ingested(table, tmp_path / "data", write_schema="s.txt")
    (tmp_path / "there.json").touch()
    with pytest.raises(ExistsError, match=r"there\.json already exists"):
        ingested(table, tmp_path / "data", write_schema=tmp_path / "there.json")
    np.save(tmp_path / "rows.npy", np.ones((3, 2)))
    with pytest.raises(
        ParameterError, match=r"write_schema is given, but .*rows\.npy is not a table"
    ):
        ingest_file(tmp_path / "rows.npy", tmp_path / "data", write_schema=tmp_path / "s.json")
    assert not (tmp_path / "data").exists()


def test_program__says_what_the_columns_are(table, tmp_path):
    options = ("--label", "y", "--id", "who", "--missing", "impute")
    out = succeed("ingest", table, tmp_path / "data", *options)
    lines = [line.split() for line in out.splitlines()]
    assert ["a", "number", "-", "12.50", "%", "5"] in lines
    assert ["c", "category", "3", "-", "-"] in lines
    assert ["who", "id", "-", "-", "-"] in lines
    out = succeed("ingest", table, tmp_path / "data", *options, "--overwrite", "--json")
    schema = Dataset.open(tmp_path / "data").schema
    assert Schema.from_dict(json.loads(out)["schema"]) == schema


def test_program__gap_is_named_with_its_remedy(table, tmp_path):
    problem, fix = refuse("ingest", table, tmp_path / "data", "--label", "y", "--drop", "who")
    assert problem == f"{table} has no value in some rows of a column: 'a' 5."
    assert fix.startswith("Pass --missing impute to fill in missing features, or leave out")
    assert "texts such as NA and None mark a missing value; pass --missing-values '' if" in fix


def test_ingest__texts_that_mark_missing_values_may_be_categories(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("veneer,y\nNone,1\nNone,2\nstone,1\n")
    schema = ingest_file(file, MemoryStore(), label="y", missing="impute").schema
    assert schema.columns[0].categories == ("stone",)
    schema = ingest_file(file, MemoryStore(), label="y", missing_values="").schema
    assert schema.columns[0].categories == ("None", "stone")


def test_program__lists_have_commas_between_and_quotes_around(tmp_path):
    (tmp_path / "rows.csv").write_text('"a,b",c,d\n1,2,-\n3,4,5\n')
    arguments = ("--categorical", '"a,b",c', "--missing-values", "-,x", "--missing", "impute")
    succeed("ingest", tmp_path / "rows.csv", tmp_path / "data", *arguments)
    schema = Dataset.open(tmp_path / "data").schema
    assert [column.kind for column in schema.columns] == ["category", "category", "number"]
    assert schema.written == {"missing_values": ["-", "x"]}
