"""Which texts may be numbers or dates, and whether the queries that are printed convert them."""

import datetime
from dataclasses import replace

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from dask_nrbfn.errors import DataError
from dask_nrbfn.sources.conversions import doubt_about
from tests.opened import open_source
from tests.sources.tables import ingest, ingest_text, query_of

NUMBERS = [
    (["1 km", "20 km", "unknown"], "1 km", 1),
    (["-5kg", "12kg", "13kg"], "-5kg", -5),
    (["1,250 €", "900 €"], "1,250 €", 1250),
    (["1.250 €", "900 €"], "1.250 €", 1250),
    (["1.250 €", "1.5 €"], "1.250 €", 1.25),
    (["1,5", "2,25"], "1,5", 1.5),
    (["0.500 kg", "1.250 kg"], "0.500 kg", 0.5),
    (["1.000.000", "2.000.000,5"], "1.000.000", 1e6),
    (["5 %", "10 %"], "10 %", 10),
    ([f"{n} km" for n in range(150)] + ["10-12 km"], "0 km", 0),
    ([f"{n / 1000:.3f} kg" for n in range(1000, 3000)] + ["2.5 kg"], "1.007 kg", 1.007),
    (["0.125", "0.977", "1.250", "1,5"], "1.250", 1.25),
    (["12,500", "45,000", "1,23,456"], "1,23,456", 123456),
    (["-$1,000", "$-5", "€ 7"], "-$1,000", -1000),
    (["1\u00a0000,50", "2,5"], "1\u00a0000,50", 1000.5),
    (["1 km", "2 km", "3 km", "1e+20"], "1e+20", 1e20),
]
DATES = [
    (["05/2024", "11/2023"], "05/2024", "2024-05-01"),
    (["2024-05", "2023-11"], "2023-11", "2023-11-01"),
    (["05.2024", "11.2023", "unknown"], "05.2024", "2024-05-01"),
    (["31.01.2020", "01.02.2020", "unknown"], "01.02.2020", "2020-02-01"),
    (["31/01/2020", "01/02/2020", "?!"], "01/02/2020", "2020-02-01"),
    (["01/31/2020", "01/02/2020", "?!"], "01/02/2020", "2020-01-02"),
    (["2024-01-02 00:10:00", "2024-01-03 12:00:00", "?!"], "2024-01-02 00:10:00", "2024-01-02"),
]
CATEGORIES = [
    ["18-25", "26-40"],
    ["1 - 3", "4 - 6"],
    ["2/3", "4/5", "6/7"],
    ["1.0.3", "10.0.0.1"],
    ["12A", "13B", "14C", "15D"],
    ["1 A", "2 B", "3 C", "4 D", "5 E"],
    ["1 km"],
    ["1 km", "2 km", "a", "b"],
]


@pytest.mark.parametrize(("texts", "shown", "value"), NUMBERS)
def test_doubt__numbers_are_shown_with_their_value(texts, shown, value):
    doubt = doubt_about("v", texts)
    assert doubt.reason.startswith(f"it has {sorted(texts)[0]!r}, which may be the number ")
    assert converted(texts, doubt.sql)[shown] == value


@pytest.mark.parametrize(("texts", "shown", "value"), DATES)
def test_doubt__dates_are_not_called_numbers(texts, shown, value):
    doubt = doubt_about("v", texts)
    assert doubt.reason.startswith(f"it has {shown!r}, which may be the date {value}")
    found = converted(texts, doubt.sql)
    assert found[shown].date().isoformat() == value
    words = {text for text in texts if not text[0].isdigit()}
    assert {text for text, each in found.items() if each is None} == words


def test_doubt__dates_of_all_years_show_what_is_the_day():
    days = np.arange("1925-01-01", "2015-01-01", dtype="datetime64[D]").astype(datetime.date)
    assert "%m/%d/%Y" in doubt_about("v", [f"{day:%m/%d/%Y}" for day in days]).sql


@pytest.mark.parametrize("texts", CATEGORIES)
def test_doubt__ranges_codes_and_versions_are_categories(texts):
    assert doubt_about("v", texts) is None


def test_doubt__many_times_have_no_query():
    doubt = doubt_about("v", [f"{n // 60}:{n % 60:02}" for n in range(150)])
    assert doubt == ("it has '0:00', which may be a date, a time or a range.", "")


def converted(texts, sql):
    """Return the values of texts by an SQL expression of the column v."""
    return dict(duckdb.from_arrow(pa.table({"v": texts})).project(f"v, {sql}").fetchall())


def test_query__converts_all_columns_and_the_target_and_leaves_out_gaps(tmp_path):
    rows = "".join(
        f"{row % 12 + 1:02}/{2000 + row % 20};{row},5 km;{'?' * (row == 7) or f'{row}.000 €'}\n"
        for row in range(1, 101)
    )
    text, options = "first;driven;price\n" + rows, {"target": "price"}
    with pytest.raises(DataError, match=r"'1\.000 €' in row 0") as refused:
        ingest_text(tmp_path, text, **options)
    query = query_of(refused.value.remedy)
    with pytest.raises(DataError, match="'price' 1") as refused:
        ingest_text(tmp_path, text, sql=query, **options)
    opened = open_source(tmp_path / "d.csv", sql=query_of(refused.value.remedy), **options)
    assert [(each.name, each.kind) for each in opened.schema.columns] == [
        ("first", "date"),
        ("driven", "number"),
    ]
    (block,) = opened.blocks(5000)
    days = (datetime.date(2001, 2, 1) - datetime.date(1970, 1, 1)).days
    assert block.X[0].tolist() == [days, 1.5]
    assert len(block.X) == 99
    assert block.y[:2].ravel().tolist() == [1000, 2000]


@pytest.mark.parametrize("role", ["target", "weights", "numeric"])
@pytest.mark.parametrize(
    "cells", [["€1.250", "€1.5"], ["900 kg", "1.001 kg"], ["2,001 USD", "7 USD"]]
)
def test_query__of_a_role_is_made_of_many_cells(tmp_path, role, cells):
    text = "a;y;v\n" + "".join(f"{row};{row % 2};{cells[row % 2]}\n" for row in range(60))
    options = {role: "v", **({} if role == "target" else {"label": "y"})}
    with pytest.raises(DataError, match="in row 0") as refused:
        ingest_text(tmp_path, text, **options)
    opened = open_source(tmp_path / "d.csv", sql=query_of(refused.value.remedy), **options)
    (block,) = opened.blocks(5000)
    values = {"target": block.y, "weights": block.weights, "numeric": block.X[:, -1]}[role]
    expected = {"€": [1.25, 1.5], "9": [900, 1001], "2": [2001, 7]}[cells[0][0]]
    assert np.ravel(values)[:2].tolist() == expected


def test_query__is_not_advised_for_typos_among_numbers(tmp_path):
    text = "a,t\n" + "".join(f"{row},{'1O5' if row == 9 else row + 0.5}\n" for row in range(60))
    with pytest.raises(DataError, match="'1O5' in row 9") as refused:
        ingest_text(tmp_path, text, target="t")
    assert refused.value.remedy.startswith("Correct the cell")


def test_query__of_the_only_column_is_named_before_the_error(tmp_path, caplog):
    text = "p,y\n" + "".join(f"{row} km,{row % 2}\n" for row in range(60))
    with pytest.raises(DataError, match="no feature"):
        ingest_text(tmp_path, text, label="y")
    assert ingest(tmp_path / "d.csv", label="y", sql=query_of(caplog.text)).n_rows == 60


def test_query__of_a_file_without_a_header_reads_new_files_with_and_without_one(tmp_path):
    rows = "".join(f"{row},{row % 7},{'uv'[row % 2]}\n" for row in range(60))
    sql = "SELECT column0 AS a, column1 AS b, column2 AS y FROM source"
    for options in ({"no_header": True}, {}):
        schema = ingest_text(tmp_path, rows, sql=sql, label="y", **options).schema
        assert ingest_text(tmp_path, rows, sql=sql, schema=schema).n_rows == 60
        assert ingest_text(tmp_path, "a,b,y\n" + rows, schema=schema).n_rows == 60


def test_query__of_new_rows_is_that_of_the_training_rows_or_adds_columns(tmp_path):
    rows = "".join(f"{row % 9} km,{row % 7 or ''},{'uv'[row % 2]}\n" for row in range(60))
    options = {"label": "y", "missing": "impute"}
    sql = "SELECT * REPLACE (replace(a, ' km', '')::DOUBLE AS a) FROM source"
    known = ingest_text(tmp_path, "a,b,y\n" + rows, sql=sql, **options)
    with pytest.raises(DataError, match="'0 km' in row 0") as refused:
        open_source(tmp_path / "d.csv", schema=known.schema, read_as=known.read_as)
    assert query_of(refused.value.remedy) == sql
    (tmp_path / "d.csv").write_text("a\n1\n2\n")
    with pytest.raises(DataError, match="no column 'b'") as refused:
        open_source(tmp_path / "d.csv", schema=replace(known.schema, label=None))
    query = query_of(refused.value.remedy)
    opened = open_source(tmp_path / "d.csv", schema=replace(known.schema, label=None), sql=query)
    assert opened.n_rows == 2


@pytest.mark.parametrize("end", [";", " -- all rows", ""])
def test_query__that_is_given_stays_inside(tmp_path, end):
    text = "a,y\n" + "".join(f"{row},{row % 3 or ''}\n" for row in range(60))
    with pytest.raises(DataError, match="'y' 20") as refused:
        ingest_text(tmp_path, text, label="y", sql=f"FROM source{end}")
    query = query_of(refused.value.remedy)
    assert ingest_text(tmp_path, text, label="y", sql=query).n_rows == 40


def test_query__leaves_out_targets_of_parquet_that_are_nan(tmp_path):
    values = np.where(np.arange(60) % 3, np.arange(60.0), np.nan)
    parquet.write_table(pa.table({"a": np.arange(60.0), "t": values}), tmp_path / "d.parquet")
    with pytest.raises(DataError, match="'t' 20") as refused:
        ingest(tmp_path / "d.parquet", target="t")
    query = query_of(refused.value.remedy)
    assert ingest(tmp_path / "d.parquet", target="t", sql=query).n_rows == 40


def test_query__is_not_advised_for_rows_that_take_none(caplog):
    frame = pd.DataFrame({"b": [f"{row % 40} km" for row in range(60)], "y": np.arange(60) % 2})
    ingest(frame, label="y")
    assert "b is read as text: it has '0 km', which may be the number 0." in caplog.text
    assert "sql" not in caplog.text
