"""Tables: what is stored of files, directories, queries, databases and frames."""

import gzip
import json
import logging
import re
import sqlite3
import subprocess
import sys
import unicodedata
from functools import partial

import duckdb
import fsspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import csv, feather, parquet
from zarr.storage import MemoryStore

from dask_nrbfn import FitParams, InlineEngine, NRBFNClassifier, fit_dataset, opened_rows
from dask_nrbfn.commands.ingest import ingest_arrays, ingest_file
from dask_nrbfn.errors import DamagedDataError, DataError, ParameterError
from tests.opened import open_source
from tests.sources.tables import (
    N,
    as_csv,
    as_feather,
    as_parquet,
    features,
    ingest,
    ingest_text,
    labels_of,
    people,
    query_of,
    rows_of,
)


def in_files(table, path):
    """Write files whose names are in the order of the rows, with columns in another order."""
    path.mkdir()
    write, suffix = (as_csv, "csv") if path.name.startswith("csv") else (as_parquet, "parquet")
    for part, rows in enumerate(np.array_split(np.arange(N), 3)):
        columns = table.columns[:: -1 if part else 1]
        write(table.iloc[rows][columns], path / f"part-{part}.{suffix}")


def as_json(table, path):
    rows = table.assign(day=table["day"].astype(str)).to_dict("records")
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def as_duckdb(table, path):
    with duckdb.connect(path) as database:
        database.from_arrow(pa.Table.from_pandas(table)).create("people")


def as_sqlite(table, path):
    with sqlite3.connect(path) as database:
        table.assign(day=table["day"].astype(str)).to_sql("people", database, index=False)
    database.close()


FORMS = {
    "d.tsv": as_csv,
    "d.csv.gz": as_csv,
    "d.csv.zst": as_csv,
    "d.parquet": as_parquet,
    "d.feather": as_feather,
    "d.jsonl": as_json,
    "d.jsonl.gz": as_json,
    "d.duckdb": as_duckdb,
    "d.sqlite": as_sqlite,
    "parquet files": in_files,
    "csv files": in_files,
}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    path = tmp_path_factory.mktemp("expected") / "d.csv"
    as_csv(people(), path)
    return ingest(path, label="y", chunk_rows=5)


@pytest.mark.parametrize(("name", "write"), FORMS.items(), ids=FORMS)
def test_forms__store_the_same_rows(tmp_path, expected, name, write):
    options = {"label": "y", "chunk_rows": 5}
    write(people(), tmp_path / name)
    if name in ("d.duckdb", "d.sqlite"):
        # SQLite has no type of dates.
        options |= {"sql": "SELECT * FROM people", "date": "day"}
    found = ingest(tmp_path / name, **options)
    assert found.fingerprint == expected.fingerprint
    assert found.feature_names == expected.feature_names
    assert labels_of(found) == people()["y"].tolist()


def test_forms__in_memory_store_the_same_rows(expected):
    table = pa.Table.from_pandas(people())
    reader, relation = table.to_reader(max_chunksize=5), duckdb.from_arrow(table)
    for source in (people(), pl.from_pandas(people()), table, reader, relation):
        found = ingest(source, label="y", chunk_rows=5)
        assert (found.fingerprint, labels_of(found)) == (expected.fingerprint, labels_of(expected))


def test_forms__column_name_that_is_repeated_is_no_feature(tmp_path):
    table = pa.Table.from_arrays([pa.array([1, 2])] * 4, names=["a", "y", "b", "y"])
    (tmp_path / "d.csv").write_text("a,y,b,y\n1,1,1,1\n2,2,2,2\n")
    parquet.write_table(table, tmp_path / "d.parquet")
    for source in (tmp_path / "d.csv", tmp_path / "d.parquet", table.to_reader()):
        with pytest.raises(DataError, match="'y' in places 2 and 4"):
            ingest(source, label="y")
    as_parquet(people(), tmp_path / "t.parquet")
    as_sqlite(people(), tmp_path / "t.sqlite")
    joined = "SELECT p.*, q.* FROM {0} p JOIN {0} q USING (y)"
    for source, rows in (
        (None, f"'{tmp_path}/t.parquet'"),
        (tmp_path / "t.parquet", "source"),
        (tmp_path / "t.sqlite", "people"),
    ):
        with pytest.raises(DataError, match=r"'\w+' in places \d+ and \d+"):
            ingest(source, sql=joined.format(rows), label="y")


def test_forms__order_of_rows_is_kept_by_several_threads(tmp_path, monkeypatch):
    # Each thread takes row groups of its own.
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    table = pa.table({"a": np.arange(300_000.0)})
    parquet.write_table(table, tmp_path / "d.parquet", row_group_size=10_000)
    feather.write_feather(table, tmp_path / "d.feather", chunksize=10_000)
    for rows in (tmp_path / "d.parquet", tmp_path / "d.feather", table):
        np.testing.assert_array_equal(ingest(rows).X[:, 0], table["a"])


@pytest.mark.parametrize("name", ["d.csv", "d.parquet", "d.duckdb", "d.sqlite"])
def test_sql__of_a_file(tmp_path, name):
    FORMS.get(name, as_csv)(people(), tmp_path / name)
    rows = "source"
    if name in ("d.duckdb", "d.sqlite"):
        rows = "people"
        with pytest.raises(ParameterError, match=r"is a database\. Choose rows with sql"):
            ingest(tmp_path / name)
    sql = f"SELECT size * 2 AS twice, y FROM {rows} WHERE size > 0"
    dataset = ingest(tmp_path / name, sql=sql, label="y")
    sizes = people()["size"]
    np.testing.assert_allclose(rows_of(dataset)[:, 0], 2 * sizes[sizes > 0], rtol=1e-15)
    with fsspec.open(f"memory://sql/{name}", "wb") as file:
        file.write((tmp_path / name).read_bytes())
    remote = ingest(f"memory://sql/{name}", sql=sql, label="y")
    assert remote.fingerprint == dataset.fingerprint


def test_sql__a_database_that_is_only_read_sorts_and_groups(tmp_path):
    as_duckdb(people(), tmp_path / "d.duckdb")
    sizes = np.sort(people()["size"])
    dataset = ingest(tmp_path / "d.duckdb", sql="SELECT size FROM people ORDER BY size LIMIT 9")
    np.testing.assert_array_equal(rows_of(dataset)[:, 0], sizes[:9])


def test_sql__text_of_booleans_stays_text_as_without_a_query(tmp_path):
    path, found = tmp_path / "d.csv", []
    path.write_text("n,paid,seen,how\n" + "1,No,True,no\n2,Yes,false,often\n" * 30)
    for sql in (None, "FROM source WHERE seen OR NOT paid OR n >= 0"):
        source = open_source(path, sql=sql)
        kinds = {column.name: column.kind for column in source.schema.columns}
        kept = source.carried(["paid", "seen", "how"]).read_all().to_pylist()
        found.append((kinds, kept, next(source.blocks(60)).X.tolist()))
    assert found[0] == found[1]
    kinds, (first, *_), _ = found[0]
    assert kinds == {"n": "number", "paid": "boolean", "seen": "boolean", "how": "category"}
    assert first == {"paid": "No", "seen": "True", "how": "no"}
    # A query may write other text in place of booleans.
    sql = "SELECT * REPLACE (CASE WHEN paid THEN 'fully' ELSE 'no' END AS paid) FROM source"
    assert open_source(path, sql=sql).schema.columns[1].categories == ("fully", "no")


def test_sql__that_is_no_query(tmp_path):
    as_csv(people(), tmp_path / "d.csv")
    for sql, error, message in (
        ("SELECT wide FROM source", DataError, "the query cannot be read .*wide"),
        ("FROM source; FROM source", ParameterError, "sql is not one query"),
        (f"COPY source TO '{tmp_path}/out.csv'", ParameterError, "sql is not one query"),
        ("SELEC 1", DataError, "the query cannot be read"),
    ):
        with pytest.raises(error, match=message):
            ingest(tmp_path / "d.csv", sql=sql, label="y")
    assert not (tmp_path / "out.csv").exists()


def test_sql__of_another_file_is_not_read_in_place_of_the_given_one(tmp_path):
    for name in ("d.csv", "other.csv"):
        as_csv(people(), tmp_path / name)
    query = f"FROM '{tmp_path / 'other.csv'}'"
    with pytest.raises(ParameterError, match=r"sql does not name source.* in place of the file"):
        ingest(tmp_path / "d.csv", sql=query, label="y")
    assert ingest(None, sql=query, label="y").n_rows == N


def test_sql__a_failed_conversion_advises_how_to_convert(tmp_path):
    (tmp_path / "d.csv").write_text("a,y\n" + "1,u\n" * 60 + "1x,v\n")
    with pytest.raises(DataError, match=r"Could not convert .*'1x'.*TRY_CAST"):
        ingest(tmp_path / "d.csv", sql="SELECT a::INT AS a, y FROM source", label="y")
    query = "SELECT TRY_CAST(a AS INT) AS a, y FROM source"
    assert ingest(tmp_path / "d.csv", sql=query, label="y", missing="impute").n_rows == 61


@pytest.mark.parametrize("role", ["label", "target"])
def test_gaps__of_a_target_are_not_said_to_be_imputed(tmp_path, role):
    text = "a,t\n" + "".join(f"{row},{row % 2 if row % 20 else 'NA'}\n" for row in range(60))
    options = {role: "t", "missing": "impute"}
    with pytest.raises(DataError, match="'t' 3") as refused:
        ingest_text(tmp_path, text, **options)
    assert "impute" not in refused.value.remedy
    query = query_of(refused.value.remedy)
    assert ingest_text(tmp_path, text, sql=query, **options).n_rows == 57


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_forms__keys_of_directories_are_columns(tmp_path, caplog, suffix):
    table = people().assign(year=np.repeat([2023, 2024], [9, N - 9]))
    write = {"parquet": as_parquet, "csv": as_csv, "jsonl": as_json}[suffix]
    for year, rows in table.groupby("year"):
        (tmp_path / f"year={year}").mkdir()
        write(rows.drop(columns="year"), tmp_path / f"year={year}" / f"d.{suffix}")
    caplog.set_level("INFO", "dask_nrbfn")
    dataset = ingest(tmp_path, label="y", columns="size,year")
    assert "keys of directories are columns: year" in caplog.text
    np.testing.assert_allclose(rows_of(dataset), table[["size", "year"]], rtol=1e-15)


@pytest.mark.parametrize(
    ("first", "step", "has_weekdays"),
    [("2020-02-01", "3 D", True), ("1960-02-01", "300 D", False), ("2020-02-01", "1 MS", False)],
)
def test_dates__have_a_day_of_the_week_unless_they_are_months_or_span_decades(
    tmp_path, first, step, has_weekdays
):
    days = pd.date_range(first, periods=60, freq=step.replace(" ", ""))
    table = pd.DataFrame({"day": days, "y": np.arange(60) % 2})
    as_parquet(table, tmp_path / "a.parquet")
    as_parquet(table[:30], tmp_path / "b.parquet")
    for place in (tmp_path / "a.parquet", tmp_path):
        dataset = ingest(place, label="y")
        assert ("day_week_cos" in dataset.feature_names) is has_weekdays


def test_kinds__numbers_categories_dates_and_booleans(tmp_path):
    rows = "1.5,b,true,1970-01-02 00:00:00,u\n-2,a,false,1970-01-03 12:00:00,v\n"
    dataset = ingest_text(tmp_path, "n,c,t,d,y\n" + rows, label="y")
    kinds = {column.name: column.kind for column in dataset.schema.columns}
    assert kinds == {"n": "number", "c": "category", "t": "boolean", "d": "date"}
    # Category c has a feature each for a and b, a date has days since 1970 before its seasons.
    expected = [[1.5, 0, 1, 1, 1], [-2, 1, 0, 0, 2.5]]
    np.testing.assert_array_equal(rows_of(dataset)[:, :5], expected)


def test_labels__of_nan_are_missing(tmp_path):
    table = pa.table({"a": [1.0, 2, 3], "y": [0, 1, np.nan]})
    (tmp_path / "d.csv").write_text("a,y\n1,0\n2,1\n3,NAN\n")
    for rows in (table, tmp_path / "d.csv"):
        assert ingest(rows, label="y", unlabelled="").n_unlabelled == 1
        assert ingest(rows, label="y", missing="drop").n_rows == 2


ROLES = "a,b,w,t,y\n1,2,0.5,3,u\n4,5,1.5,6,v\n"


def test_roles__columns_with_a_role_are_no_features(tmp_path):
    for options in (
        {"label": "y", "drop": "w,t"},
        {"label": "y", "columns": "b,a"},
        {"target": "t", "weights": "w", "drop": "y"},
    ):
        dataset = ingest_text(tmp_path, ROLES, **options)
        assert dataset.feature_names == ("a", "b")
    (block,) = dataset.blocks(0, 2, 2)
    assert (block.targets.tolist(), block.weights.tolist()) == ([[3], [6]], [0.5, 1.5])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"label": "z"}, DataError, r"has no column 'z'; it has 'a', .* with label"),
        ({"label": "y", "weights": "y"}, ParameterError, "weights=y also has another role"),
        ({"label": "y", "categorical": "y"}, ParameterError, "categorical=y also has another"),
        ({"label": "y", "target": "t"}, ParameterError, "label and target are both given"),
        ({"weights": "y"}, DataError, "'y' of .* has 'u' in row 0"),
    ],
)
def test_roles__that_do_not_fit_the_table(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        ingest_text(tmp_path, ROLES, **options)


def test_names__with_commas_quotes_and_keywords(tmp_path):
    names = ["select", "t, in m", 'say "a"', "group by", "y"]
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(N, 5)), columns=names).assign(y=np.arange(N) % 2)
    for name, write in (("d.csv", as_csv), ("d.parquet", as_parquet)):
        write(table, tmp_path / name)
        dataset = ingest(tmp_path / name, label="y", drop='"t, in m"')
        kept = ["select", 'say "a"', "group by"]
        assert dataset.feature_names == tuple(kept)
        np.testing.assert_array_equal(rows_of(dataset), table[kept])


def test_categories__the_most_frequent_have_a_feature_each(tmp_path):
    dataset = ingest_text(tmp_path, "c\nb\nb\na\na\nz\n", max_categories=2)
    column = dataset.schema.columns[0]
    assert (column.categories, column.others) == (("a", "b"), True)


def test_names__in_another_unicode_form_or_with_blanks_are_explained(tmp_path, caplog):
    composed = unicodedata.normalize("NFC", "Größe")
    apart = unicodedata.normalize("NFD", composed)
    schema = ingest_text(tmp_path, f"{composed},y\n1,u\n2,v\n", label="y").schema
    with pytest.raises(DataError, match="differs only in blanks or its Unicode form") as refused:
        ingest_text(tmp_path, f"{apart},y\n1,u\n2,v\n", schema=schema)
    form = re.search(r"unicodedata\S+ \S+\)\)", refused.value.remedy)[0]
    assert eval(form, {"unicodedata": unicodedata, "text": apart}) == composed
    ingest_arrays(np.eye(2), [composed, apart], MemoryStore())
    assert "is a class of its own" in caplog.text


def test_index__that_pandas_wrote_is_no_feature(tmp_path):
    table = people()[["size", "y"]].rename(columns={"size": "column1"})
    table.to_csv(tmp_path / "d.csv")
    table.set_index(pd.Index(np.arange(N) + 7)).to_parquet(tmp_path / "d.parquet")
    for name in ("d.csv", "d.parquet"):
        assert ingest(tmp_path / name, label="y").feature_names == ("column1",)
    query = f"FROM read_csv('{tmp_path / 'd.csv'}', header = false, skip = 1)"
    assert ingest(query, label="column2").feature_names == ("column0", "column1")


def test_schema__without_a_header_needs_all_columns_before_the_features(tmp_path):
    rows = [f"{'uv'[row % 2]},{row % 7},{row % 5},0\n" for row in range(60)]
    options = {"label": "column0", "drop": "column3", "no_header": True}
    schema = ingest_text(tmp_path, "".join(rows), **options).schema
    with pytest.raises(DataError, match="no header and 3 columns, but training had 4: "):
        ingest_text(tmp_path, "".join(row[2:] for row in rows), schema=schema)
    rows = [f"{row % 7},{row % 5},{'uv'[row % 2]}\n" for row in range(60)]
    schema = ingest_text(tmp_path, "".join(rows), label="column2", no_header=True).schema
    assert ingest_text(tmp_path, "".join(row[:-3] + "\n" for row in rows), schema=schema).y is None


def test_schema__of_a_dataset_reads_other_files_by_name(tmp_path, caplog):
    schema = ingest_text(tmp_path, "a,c,y\n1,p,u\n2,q,v\n", label="y").schema
    with caplog.at_level(logging.INFO, "dask_nrbfn"):
        dataset = ingest_text(tmp_path, "z,y,c,a\n0,v,q,5\n0,u,new,6\n", schema=schema)
    np.testing.assert_array_equal(rows_of(dataset), [[5, 0, 1], [6, 0, 0]])
    assert labels_of(dataset) == ["v", "u"]
    assert "column c has a category that training did not have in 1 row" in caplog.text
    with pytest.raises(DataError, match="has no column 'a'; it has 'c', 'y'"):
        ingest_text(tmp_path, "c,y\np,u\n", schema=schema)


def test_schema__may_be_that_of_the_dataset_that_is_replaced(tmp_path):
    path, out = tmp_path / "d.csv", tmp_path / "out"
    path.write_text("a,y\n1,u\n2,v\n")
    ingest_file(path, out, label="y")
    again = ingest_file(path, out, schema=out, overwrite=True)
    assert labels_of(again) == ["u", "v"]


def test_parquet__categories_are_those_of_all_files(tmp_path):
    codes = pa.table({"k": [1, 2], "c": [1, 2]})
    coded = codes.set_column(1, "c", codes["c"].dictionary_encode())
    parquet.write_table(coded, tmp_path / "1.parquet")
    for written, is_stored in ((coded, True), (codes, True), (codes, False)):
        parquet.write_table(written, tmp_path / "2.parquet", store_schema=is_stored)
        kind = "category" if written is coded else "number"
        kinds = [column.kind for column in ingest(tmp_path).schema.columns]
        assert kinds == ["number", kind]


def test_lists__of_one_length_are_features(tmp_path):
    X = np.random.default_rng(0).integers(-99, 99, (N, 3)).astype(float)
    lists, of_one_length = pa.list_(pa.float64()), pa.list_(pa.float64(), 3)
    table = pa.table({"e": pa.array(X.tolist(), lists), "y": np.arange(N) % 2})
    parquet.write_table(table, tmp_path / "d.parquet")
    with pytest.raises(DataError, match=r"'e' of .* has type DOUBLE\[\].*e::FLOAT\[LENGTH\]"):
        ingest(tmp_path / "d.parquet", label="y")
    sql = "SELECT * REPLACE (e::DOUBLE[3] AS e) FROM source"
    datasets = [
        ingest(tmp_path / "d.parquet", sql=sql, label="y"),
        ingest(pa.table({"e": pa.array(X.tolist(), of_one_length)})),
    ]
    for dataset in datasets:
        assert dataset.feature_names == ("e_0", "e_1", "e_2")
        np.testing.assert_array_equal(rows_of(dataset), X)
    with pytest.raises(DataError, match="cannot be read"):
        ingest(tmp_path / "d.parquet", sql=sql.replace("3", "4"), label="y")


def test_empty__tables_are_refused(tmp_path):
    for text in ("", "a,b\n"):
        with pytest.raises(DataError, match=r"d\.csv is empty"):
            ingest_text(tmp_path, text)
    with pytest.raises(DataError, match="it has no feature columns"):
        ingest_text(tmp_path, "y\nu\nv\n", label="y")


def test_directory__of_other_files_is_refused(tmp_path):
    for name, columns in (("1.parquet", ["size", "y"]), ("2.parquet", ["y"])):
        as_parquet(people()[columns], tmp_path / name)
    with pytest.raises(DataError, match=r"no value in some rows of a column: 'size' 37"):
        ingest(tmp_path, label="y")
    (tmp_path / "b.txt").write_text("a\n1\n")
    with pytest.raises(DataError, match=r"files of several suffixes: \.parquet, \.txt"):
        ingest(tmp_path)


def test_types__fractions_after_whole_numbers(tmp_path):
    for name, values in (("1", [1, 2]), ("2", [1.4, 2.6])):
        as_parquet(pd.DataFrame({"a": values}), tmp_path / f"{name}.parquet")
    assert features(tmp_path).ravel().tolist() == [1.0, 2.0, 1.4, 2.6]
    lines = [*(f'{{"a": {n}}}' for n in range(30_000)), '{"a": 1.5}']
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    assert features(tmp_path / "d.jsonl")[-1] == 1.5


@pytest.mark.parametrize("name", ["d[1].csv", "q?q.csv", "a, b.csv"])
def test_path__marks_stand_for_themselves(tmp_path, name):
    (tmp_path / "d1.csv").write_text("a\n7\n")
    (tmp_path / name).write_text("a\n1\n")
    assert features(tmp_path / name).tolist() == [[1.0]]


def test_path__glob_gives_the_files_in_order_without_keys_above(tmp_path):
    (tmp_path / "run=4").mkdir()
    for n in (2, 1):
        (tmp_path / f"run=4/d{n}.csv").write_text(f"a\n{n}\n")
    assert features(tmp_path / "run=4/d*.csv").tolist() == [[1.0], [2.0]]
    assert features(tmp_path / "run=4/d1.csv").tolist() == [[1.0]]


def test_query__kept_columns_lie_beside_their_rows():
    pairs = "SELECT range % 100000 AS k, range AS v FROM range(300000)"
    query = f"SELECT k, sum(v) AS s FROM ({pairs}) GROUP BY k"
    source = open_source(query, id="k")
    ids = np.concatenate([block.ids for block in source.blocks(5000)])
    assert source.carried(["k"]).read_all()["k"].to_pylist() == ids.tolist()


def test_query__types_of_a_file_are_those_of_the_fit(tmp_path):
    (tmp_path / "d.csv").write_text("a,b,c,y\n9,10,1,u\n10,9,2,v\n11,2,3,u\n")
    query = "SELECT greatest(a, b) AS g, c, y FROM source WHERE a + b > 13"
    source = open_source(tmp_path / "d.csv", sql=query, label="y")
    again = features(tmp_path / "d.csv", sql=query, schema=source.schema)
    assert again.tolist() == features(tmp_path / "d.csv", sql=query, label="y").tolist()
    assert again[:, 0].tolist() == [10.0, 10.0]


def test_dates__are_in_utc_on_every_machine(tmp_path):
    (tmp_path / "d.csv").write_text("t,x\n2026-01-01T10:00:00+02:00,1\n2026-01-02T08:00:00Z,2\n")
    assert features(tmp_path / "d.csv")[:, 0].tolist() == [20454 + 8 / 24, 20455 + 8 / 24]
    zone = open_source("SELECT current_setting('TimeZone') AS zone").schema.columns[0]
    assert zone.categories == ("UTC",)


@pytest.mark.parametrize("name", ["d.parquet", "d.csv.gz", "d.csv.zst", "d.feather"])
@pytest.mark.parametrize("damage", ["cut", "garbage"])
def test_damage__gives_an_error_and_no_dataset(tmp_path, name, damage):
    path, write = tmp_path / name, FORMS[name]
    write(pd.concat([people()] * 99), path)
    content = path.read_bytes()
    path.write_bytes(b"neither" * 99 if damage == "garbage" else content[: len(content) // 2])
    # A cut text may first show as a row of another length.
    with pytest.raises((DamagedDataError, DataError), match=rf"d\.{name[2:]}"):
        ingest_file(path, tmp_path / "data", label="y")
    assert not (tmp_path / "data").exists()


@pytest.fixture
def model(tmp_path):
    text = "a,c,y\n" + "".join(f"{row / 4},{'pq'[row % 2]},{'uv'[row % 2]}\n" for row in range(40))
    dataset = ingest_text(tmp_path, text, label="y")
    fit_dataset(dataset, tmp_path / "run", FitParams(n_neighbors=3), InlineEngine())
    return tmp_path / "run"


@pytest.mark.parametrize("labelled", [True, False], ids=["evaluate and update", "predict"])
def test_model__reads_no_part_of_joined_files(tmp_path, model, labelled):
    text = "a,c,y\n" + "1,p,u\n" * 30 + "a,b,c,y\n" + "1,2,q,v\n" * 20
    (tmp_path / "new.csv").write_text(text)
    read = partial(opened_rows, tmp_path / "new.csv", model, beside=tmp_path / "out")
    with pytest.raises(DataError, match="line 32 has 4 cells"), read(labelled=labelled):
        pass


def test_spoiled__cells_are_missing(tmp_path, model):
    path = tmp_path / "new.csv"
    path.write_text("a,c\n1.5,p\nold,q\ninf,p\n,new\n")
    with opened_rows(path, model, beside=tmp_path / "out", labelled=False, spoiled=True) as rows:
        expected = [[1.5, 0], [np.nan, 1], [np.nan, 0], [np.nan, -1]]
        np.testing.assert_array_equal(rows.dataset.X[:], expected)
        assert rows.unseen == {"c": 1}
    with (
        pytest.raises(DataError, match=r"'a' of .*new\.csv has 'old' in row 1"),
        opened_rows(path, model, beside=tmp_path / "out", labelled=False),
    ):
        pass
    path.write_text("c,b\np,6\n")
    query = f"SELECT c, b / 4 AS a FROM '{path}'"
    with opened_rows(query, model, beside=tmp_path / "out", labelled=False) as rows:
        np.testing.assert_array_equal(rows.dataset.X[:], [[1.5, 0]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lable": "y"}, "lable is not an option. label has a similar name."),
        ({"schema": "other"}, "schema is given, but the columns are those of the model"),
    ],
)
def test_model__options_that_its_rows_cannot_have(tmp_path, model, options, message):
    (tmp_path / "new.csv").write_text("a,c\n1.5,p\n")
    read = partial(opened_rows, tmp_path / "new.csv", model, beside=tmp_path / "out")
    with pytest.raises(ParameterError, match=message), read(**options):
        pass


def test_schema__reads_dates_as_in_training(tmp_path):
    rows = [f"{day}.01.1970,{'uv'[day % 2]}\n" for day in range(10, 31)]
    path = tmp_path / "d.csv"
    dataset = ingest_text(tmp_path, "d,y\n" + "".join(rows), label="y")
    np.testing.assert_array_equal(rows_of(dataset)[:, 0], np.arange(9, 30))
    path.write_text("d\n02.01.1970\n05.01.1970\n")
    assert features(path, schema=dataset.schema).tolist() == [[1], [4]]


def test_model__of_a_query_names_it_where_rows_do_not_fit(tmp_path, caplog):
    text = "a;y\n" + "".join(f"{row},5 m;{'uv'[row % 2]}\n" for row in range(40))
    query = "SELECT * REPLACE (replace(replace(a, ' m', ''), ',', '.')::DOUBLE AS a) FROM source"
    dataset = ingest_text(tmp_path, text, label="y", sql=query)
    fit_dataset(dataset, tmp_path / "run", FitParams(n_neighbors=3), InlineEngine())
    (tmp_path / "new.csv").write_text("a;y\n1,5 m;u\n")
    read = partial(opened_rows, tmp_path / "new.csv", tmp_path / "run", beside=tmp_path / "out")
    caplog.set_level("INFO", logger="dask_nrbfn")
    with pytest.raises(DataError, match=r"'1,5 m' in row 0 "), read():
        pass
    assert f"the training rows were read with the query {query}" in caplog.text
    with read(sql=query) as rows:
        np.testing.assert_array_equal(rows.dataset.X[:], [[1.5]])


def test_frames__names_that_differ_only_in_case():
    frame = pd.DataFrame({"a": [1.5, 2], "A": [3, 4.5], "y": ["u", "v"]})
    np.testing.assert_array_equal(rows_of(ingest(frame, label="y")), frame[["a", "A"]])


def test_types__columns_of_float32_only_are_stored_as_float32():
    columns = {"a": np.arange(3, dtype=np.float32), "b": np.arange(3, dtype=np.float32)}
    assert ingest(pd.DataFrame(columns)).X.dtype == np.float32
    assert ingest(pd.DataFrame({**columns, "c": [1, 2, 3]})).X.dtype == np.float64


def test_arrays__a_column_without_values_is_left_out():
    X = np.column_stack([np.arange(6.0), np.full(6, np.nan), np.arange(6.0) ** 2])
    network = NRBFNClassifier(n_neighbors=2, missing="impute").fit(X, np.arange(6) % 2)
    assert network.feature_names_.tolist() == ["x0", "x2"]
    # Its rows, and those of its columns that are used.
    for rows in (X[:, [0, 2]], X.tolist()):
        np.testing.assert_array_equal(network.predict_proba(rows), network.predict_proba(X))


REFUSED = {
    "names alike as text": (pd.DataFrame([["a", 1.0]], columns=[1, "1"]), "several columns '1'"),
    "array of objects": (np.array([[1, "a"], [2, 5]], dtype=object), "'x1' of X has values of sev"),
    "no value anywhere": (pd.DataFrame({"a": [None, ""]}), "X has no feature: a is left out"),
    "no column that is taken": (
        pd.DataFrame({"a": [f"n{row}" for row in range(120)]}),
        "X has no feature: a is left out: 120 different texts in 120 rows",
    ),
}


@pytest.mark.parametrize(("X", "message"), REFUSED.values(), ids=REFUSED)
def test_frames__without_features_are_refused(X, message):
    with pytest.raises(DataError, match=message):
        ingest_arrays(X, None, MemoryStore(), missing="impute")


@pytest.mark.parametrize("name", ["d.csv", "d.parquet"])
def test_wide__tables_are_read_like_narrow_ones(tmp_path, name):
    narrow = people().assign(w=1.5, c7=["c7", "c8' c1"] * 18 + [None], id=np.arange(N))
    narrow["size"] = narrow["size"].where(narrow["size"] < 1)
    wide = narrow.join(pd.DataFrame({f"f{j}": np.arange(N) for j in range(550)}))
    options = {"label": "y", "weights": "w", "id": "id", "missing": "impute", "chunk_rows": 5}
    rows = []
    for table in (narrow, wide):
        FORMS.get(name, as_csv)(table, tmp_path / name)
        dataset = ingest(tmp_path / name, **options)
        again = ingest(tmp_path / name, schema=dataset.schema, chunk_rows=5)
        assert again.content == dataset.content
        rows.append(rows_of(dataset))
    np.testing.assert_array_equal(rows[1][:, : rows[0].shape[1]], rows[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["d.csv", "d.parquet"])
def test_wide__tables_of_20000_columns_fit_into_memory(tmp_path, name):
    X = np.random.default_rng(0).normal(size=(60, 20_000))
    table = pa.table({f"f{j}": column for j, column in enumerate(X.T)})
    table = table.append_column("y", pa.array(["u", "v"] * 30))
    write = csv.write_csv if name == "d.csv" else parquet.write_table
    write(table, tmp_path / name)
    np.testing.assert_array_equal(ingest(tmp_path / name, label="y").X[:], X)


MEASURE = """
import sys
from dask_nrbfn.engine.measure import peak_resident_bytes
from dask_nrbfn.sources.formats import open_source
from dask_nrbfn.sources.options import ReadOptions
source = open_source(sys.argv[1], ReadOptions())
print(sum(len(block.X) for block in source.blocks(10_000)))
print(peak_resident_bytes())
"""


@pytest.mark.slow
def test_memory__stays_below_a_bound_for_a_large_text(tmp_path):
    path, line = tmp_path / "d.csv", ",".join(["0.125"] * 50) + "\n"
    with path.open("w") as file:
        file.write(",".join(f"c{j}" for j in range(50)) + "\n")
        for _ in range(1400):
            file.write(line * 1000)
    assert path.stat().st_size > 400e6
    program = [sys.executable, "-c", MEASURE, str(path)]
    result = subprocess.run(program, capture_output=True, text=True, check=True)
    n_rows, peak = map(int, result.stdout.split())
    assert n_rows == 1_400_000
    assert peak < 600 << 20
