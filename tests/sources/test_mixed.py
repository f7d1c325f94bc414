"""CSV tables with columns of all kinds."""

import datetime
import logging
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.schema import UNSEEN, Schema
from dask_nrbfn.sources import delimited, open_source
from dask_nrbfn.sources.survey import TableOptions

N = 60
MIXED = """
name, n, t, c, d, y
r1, 1.5, true, b, 2026-01-02, u
r2, 2, false, a, 1970-01-01, v
r3, ?, TRUE, NA, 2026-01-02 12:00:00, u
r4, 4, false, b, N/A, v
""".strip()


def csv_of(tmp_path, text, name="d.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def rows_of(source, block_rows=7):
    """Return all rows of a source as one block."""
    blocks = list(source.blocks(block_rows))
    parts = zip(*blocks, strict=True)
    return type(blocks[0])(*(None if each[0] is None else np.concatenate(each) for each in parts))


def days(year, month, day):
    return (datetime.date(year, month, day) - datetime.date(1970, 1, 1)).days


def test_csv__columns_of_all_kinds(tmp_path):
    options = TableOptions(id="name", missing="impute")
    source = open_source(csv_of(tmp_path, MIXED), label="y", table=options)
    kinds = {column.name: column.kind for column in source.schema.columns}
    assert kinds == {"n": "number", "t": "boolean", "c": "category", "d": "date"}
    assert (source.schema.label, source.schema.id) == ("y", "name")
    rows = rows_of(source)
    day = days(2026, 1, 2)
    expected = [[1.5, 1, 1, day], [2, 0, 0, 0], [np.nan, 1, np.nan, day + 0.5], [4, 0, 1, np.nan]]
    np.testing.assert_array_equal(rows.X, expected)
    assert rows.y.tolist() == ["u", "v", "u", "v"]
    assert rows.ids.tolist() == ["r1", "r2", "r3", "r4"]
    assert source.schema.columns[0].fill == 2.0


@pytest.mark.parametrize(
    ("cell", "kind", "stored"),
    [
        ("0.5", "number", 0.5),
        (" 7 ", "number", 7.0),
        ("TRUE", "boolean", 1.0),
        ("1970-01-03", "date", 2.0),
        ("1970-01-03,5", "category", 0.0),
        ('"1,5"', "number", 1.5),
    ],
)
def test_csv__column_without_values_in_the_first_rows(tmp_path, monkeypatch, cell, kind, stored):
    monkeypatch.setattr(delimited, "TEXT_BYTES", 1)
    decimal = "," if cell[0] == '"' else "."
    path = csv_of(tmp_path, "a;b\n" + 2 * N * "1;\n" + N * f"1;{cell}\n")
    options = TableOptions(missing="impute")
    source = open_source(path, delimiter=";", decimal=decimal, table=options)
    assert source.schema.columns[1].kind == kind
    assert set(rows_of(source).X[2 * N :, 1]) == {stored}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(
    cuts=st.sets(st.integers(1, N - 1), max_size=3),
    text_bytes=st.integers(40, 400),
    block_rows=st.integers(1, N),
)
def test_csv__any_division_gives_the_same_schema_and_rows(
    tmp_path_factory, cuts, text_bytes, block_rows
):
    rng = np.random.default_rng(0)
    gap = rng.random((N, 3)) < 0.1
    table = [rng.integers(0, 9, N) / 4, np.array(["p", "q", "r"])[rng.integers(0, 3, N)]]
    table.append(np.array(["true", "false"])[rng.integers(0, 2, N)])
    # The first row of every file shows what its columns are.
    gap[[0, *cuts]] = False
    cells = [["?" if gap[i, j] else str(table[j][i]) for j in range(3)] for i in range(N)]
    directory = tmp_path_factory.mktemp("parts")
    edges = [0, *sorted(cuts), N]
    for place, (start, stop) in enumerate(pairwise(edges)):
        lines = [",".join(row) for row in cells[start:stop]]
        csv_of(directory, "\n".join(["a,b,c", *lines]) + "\n", f"{place}.csv")
    whole = tmp_path_factory.mktemp("whole")
    csv_of(whole, "\n".join(["a,b,c", *map(",".join, cells)]) + "\n")
    options = TableOptions(missing="impute")
    expected = open_source(whole, table=options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delimited, "TEXT_BYTES", text_bytes)
        patch.setattr(delimited, "LINES_PER_BATCH", 2)
        patch.setattr(delimited, "TOGETHER_BYTES", 200)
        found = open_source(directory, table=options)
        np.testing.assert_array_equal(rows_of(found, block_rows).X, rows_of(expected).X)
    assert found.schema == expected.schema


def test_csv__rows_that_lack_values_are_left_out_and_counted(tmp_path, caplog):
    options = TableOptions(drop=("name",), missing="drop")
    with caplog.at_level(logging.INFO, "dask_nrbfn"):
        source = open_source(csv_of(tmp_path, MIXED), label="y", table=options)
    assert "2 rows that lack values are left out: n 1, c 1, d 1" in caplog.text
    rows = rows_of(source)
    assert (source.n_rows, rows.X[:, 0].tolist(), rows.y.tolist()) == (2, [1.5, 2], ["u", "v"])


def test_csv__gaps_of_columns_that_are_left_out_do_not_count(tmp_path):
    lines = "".join(f"{i / 8},{'' if i % 2 else f'x{i}'},\n" for i in range(240))
    path = csv_of(tmp_path, "a,free,empty\n" + lines)
    for missing in ("error", "drop"):
        source = open_source(path, table=TableOptions(missing=missing))
        assert (source.n_rows, source.feature_names) == (240, ("a",))
        assert source.schema.ignored == ("free", "empty")
        assert source.schema.is_plain


def test_csv__blanks_on_both_sides_are_no_part_of_cells(tmp_path):
    path = csv_of(tmp_path, "n,t,c\n  1   ,  true ,  p   \n ? ,   NA ,  ? \n  2 ,  false  , q\n")
    source = open_source(path, table=TableOptions(missing="impute"))
    expected = [[1, 1, 0], [np.nan, np.nan, np.nan], [2, 0, 1]]
    np.testing.assert_array_equal(rows_of(source).X, expected)


def test_csv__marks_that_mean_no_value_may_be_others(tmp_path):
    path = csv_of(tmp_path, "a,b\n1,NA\n-9,x\n 3 , - \n")
    options = TableOptions(missing="impute", missing_values=("-9", "-"))
    source = open_source(path, table=options)
    assert source.schema.columns[1].categories == ("NA", "x")
    np.testing.assert_array_equal(rows_of(source).X, [[1, 0], [np.nan, 1], [3, np.nan]])


def test_csv__numbers_as_categories_have_the_text_of_any_format(tmp_path):
    path = csv_of(tmp_path, "a\n1\n2.0\n02\n1.0\n")
    source = open_source(path, table=TableOptions(categorical=("a",)))
    assert source.schema.columns[0].categories == ("02", "1", "2")
    assert rows_of(source).X.ravel().tolist() == [1, 2, 0, 1]


def test_csv__categories_with_decimal_commas_have_the_text_of_any_format(tmp_path):
    path = csv_of(tmp_path, "a;b\n0,5;x, y\n2,0;1,5\n0,5;1,x\n")
    table = TableOptions(categorical=("a", "b"))
    source = open_source(path, decimal=",", table=table)
    assert source.schema.columns[0].categories == ("0.5", "2")
    assert source.schema.columns[1].categories == ("1,x", "1.5", "x, y")
    assert rows_of(source).X.tolist() == [[0, 2], [1, 1], [0, 0]]


@pytest.mark.parametrize(
    ("cells", "ids"), [(["3", " -1"], [3, -1]), (["03", "1"], ["03", "1"]), (["1.5", "x"], None)]
)
def test_csv__ids_are_carried_as_they_are(tmp_path, cells, ids):
    text = "i,a\n" + "".join(f"{cell},{j}\n" for j, cell in enumerate(cells))
    source = open_source(csv_of(tmp_path, text), table=TableOptions(id="i"))
    assert source.feature_names == ("a",)
    assert rows_of(source).ids.tolist() == (ids or cells)


def known(tmp_path):
    """Return the schema of a table of two columns."""
    path = csv_of(tmp_path, "id,a,c,y\n1,1,p,u\n2,2,q,v\n", "known.csv")
    return open_source(path, label="y", table=TableOptions(id="id", missing="impute")).schema


def test_schema__columns_are_found_by_name(tmp_path, caplog):
    path = csv_of(tmp_path, "z,c,a\n0,q,5\n1, p,?\n2,new,6\n")
    with caplog.at_level(logging.INFO, "dask_nrbfn"):
        source = open_source(path, schema=known(tmp_path))
    assert "has further columns, which are left out: 'z'" in caplog.text
    np.testing.assert_array_equal(rows_of(source).X, [[5, 1], [np.nan, 0], [6, UNSEEN]])
    assert (source.y_dtype, source.id_dtype, source.schema.label) == (None, None, None)
    assert "has no 'y', which its schema names as label" in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,y\n1,u\n", r"has no column 'c'; it has 'a', 'y'\. Give a table with all columns"),
        ("a,c\nx,p\n", r"Column 'a' of .* has 'x' in line 2, which is not a number"),
        ("a,c\n1,p\ninf,p\n", r"Column 'a' of .* has inf in line 3"),
    ],
)
def test_schema__that_a_table_does_not_fit(tmp_path, text, message):
    path = csv_of(tmp_path, text)
    with pytest.raises(DataError, match=message):
        rows_of(open_source(path, schema=known(tmp_path)))


def test_schema__gap_where_none_was_expected(tmp_path):
    schema = open_source(csv_of(tmp_path, "a\n1\n2\n", "known.csv")).schema
    with pytest.raises(DataError, match=r"has no value in line 3\. .* as skip_bad does"):
        rows_of(open_source(csv_of(tmp_path, "a\n1\n?\n"), schema=schema))


def test_schema__categories_that_became_numbers(tmp_path):
    table = csv_of(tmp_path, "c\n1\n2\nx\n")
    schema = open_source(table).schema
    found = open_source(csv_of(tmp_path, "c\n2.0\n1\n7\n", "numbers.csv"), schema=schema)
    assert rows_of(found).X.ravel().tolist() == [1, 0, UNSEEN]


def test_schema__decides_alone(tmp_path):
    with pytest.raises(ParameterError, match="drop and schema are both given"):
        open_source(
            csv_of(tmp_path, "a,c\n1,p\n"),
            schema=known(tmp_path),
            table=TableOptions(drop=("a",)),
        )


def test_schema__feature_that_is_asked_for_as_something_else(tmp_path):
    table = csv_of(tmp_path, "id,a,c,y\n1,2,p,u\n")
    for role in ({"label": "a"}, {"weights": "a"}, {"table": TableOptions(id="a")}):
        with pytest.raises(ParameterError, match=r"(label|weights|id)=a names the features"):
            open_source(table, schema=known(tmp_path), **role)


def test_schema__without_categories_has_them_looked_for(tmp_path):
    given = {"a": {"kind": "category"}, "c": {"kind": "category"}}
    schema = Schema.from_dict({"columns": given, "label": "y"})
    path = csv_of(tmp_path, "a,c,z,y\n2,q,0,u\n1,p,0,v\n")
    source = open_source(path, schema=schema)
    assert [column.categories for column in source.schema.columns] == [("1", "2"), ("p", "q")]
    assert (source.schema.ignored, source.y_dtype.kind) == (("z",), "T")


def test_schema__without_categories_has_booleans(tmp_path):
    given = {"a": {"kind": "boolean"}, "c": {"kind": "category"}}
    schema = Schema.from_dict({"columns": given})
    source = open_source(csv_of(tmp_path, "a,c\n1,p\n0,q\n"), schema=schema)
    assert [column.kind for column in source.schema.columns] == ["boolean", "category"]
    with pytest.raises(DataError, match="'2' in line 2, which is neither true nor false"):
        open_source(csv_of(tmp_path, "a,c\n2,p\n"), schema=schema)


def test_schema__remembers_how_the_table_was_written(tmp_path):
    path = csv_of(tmp_path, "1,5;a\n-;b\n")
    options = TableOptions(missing="impute", missing_values=("-",))
    schema = open_source(path, decimal=",", no_header=True, table=options).schema
    again = open_source(csv_of(tmp_path, "2,5;b\n-;a\n", "again.csv"), schema=schema)
    np.testing.assert_array_equal(rows_of(again).X, [[2.5, 1], [np.nan, 0]])


def test_spoiled__cells_of_another_kind_are_none(tmp_path):
    path = csv_of(tmp_path, "a;c\n1,5;p\nx;q\n inf;p\n?;new\n")
    source = open_source(path, schema=known(tmp_path), spoiled=True, decimal=",")
    np.testing.assert_array_equal(
        rows_of(source).X, [[1.5, 0], [np.nan, 1], [np.nan, 0], [np.nan, -1]]
    )


def test_classes__full_stop_at_the_end_of_labels(tmp_path, caplog):
    path = csv_of(tmp_path, "a,y\n1,<=50K.\n2,>50K\n3,>50K.\n4,other.\n")
    with caplog.at_level(logging.INFO, "dask_nrbfn"):
        source = open_source(path, label="y", classes=["<=50K", ">50K"])
        assert rows_of(source).y.tolist() == ["<=50K", ">50K", ">50K", "other."]
    assert "2 labels are taken without the full stop" in caplog.text


def test_classes__that_are_text_keep_numbers_text(tmp_path):
    path = csv_of(tmp_path, "a,y\n1,1\n2,2\n")
    assert rows_of(open_source(path, label="y", classes=["1", "x"])).y.tolist() == ["1", "2"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop": ("z",)}, r"has no column 'z'; it has .* Name one of its columns with drop"),
        ({"categorical": ("y",)}, r"categorical=y names the features, labels or targets"),
        ({"id": "y"}, r"id=y names the features, labels or targets"),
        ({"columns": ("a",), "id": "a"}, r"columns=a names the features, labels or targets"),
    ],
)
def test_options__that_do_not_fit_the_table(tmp_path, options, message):
    path = csv_of(tmp_path, "a,c,y\n1,p,u\n")
    with pytest.raises((DataError, ParameterError), match=message):
        open_source(path, label="y", table=TableOptions(**options))


def test_options__of_tables_are_none_of_arrays(tmp_path):
    np.save(tmp_path / "d.npy", np.ones((3, 2)))
    with pytest.raises(ParameterError, match=r"drop=\('a',\) does not go with .*d\.npy"):
        open_source(tmp_path / "d.npy", table=TableOptions(drop=("a",)))
