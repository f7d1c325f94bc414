import pytest
from zarr.storage import MemoryStore

from dask_nrbfn import Dataset, FitParams, InlineEngine, fit_dataset, ingest_file
from tests.cli.program import succeed

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


def test_schema__of_a_dataset_a_run_and_its_model(table, tmp_path):
    first = ingested(table, tmp_path / "first")
    fitted = fit_dataset(first, tmp_path / "run", FitParams(n_neighbors=3), InlineEngine())
    for place in (first.location, fitted.location):
        again = ingest_file(table, MemoryStore(), schema=place)
        assert (again.fingerprint, again.schema) == (first.fingerprint, first.schema)
    assert again.ids[:].tolist() == [f"r{i}" for i in range(40)]


def test_program__lists_have_commas_between_and_quotes_around(tmp_path):
    (tmp_path / "rows.csv").write_text('"a,b",c,d\n1,2,-\n3,4,5\n')
    arguments = ("--categorical", '"a,b",c', "--missing-values", "-,x", "--missing", "impute")
    succeed("ingest", tmp_path / "rows.csv", tmp_path / "data", *arguments)
    schema = Dataset.open(tmp_path / "data").schema
    assert [column.kind for column in schema.columns] == ["category", "category", "number"]
    assert schema.written == {"missing_values": ["-", "x"]}
