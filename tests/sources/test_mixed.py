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
from dask_nrbfn.sources import delimited, open_source, survey
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


@pytest.mark.parametrize("mark", survey.MISSING_VALUES)
def test_csv__markers_of_a_missing_value(tmp_path, mark):
    path = csv_of(tmp_path, f"a,y\n1,u\n{mark},v\n3,u\n")
    source = open_source(path, label="y", table=TableOptions(missing="impute"))
    assert source.schema.columns[0].kind == "number"
    np.testing.assert_array_equal(rows_of(source).X[:, 0], [1, np.nan, 3])


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
    assert "d.csv are ignored: 'z'" in caplog.text
    np.testing.assert_array_equal(rows_of(source).X, [[5, 1], [np.nan, 0], [6, UNSEEN]])
    assert (source.y_dtype, source.id_dtype, source.schema.label) == (None, None, None)
    assert "has no column 'y', which the schema names as label" in caplog.text


def test_schema__gap_where_none_was_expected(tmp_path):
    schema = open_source(csv_of(tmp_path, "a\n1\n2\n", "known.csv")).schema
    with pytest.raises(DataError, match=r"has no value in line 3\. .* as skip_bad does"):
        rows_of(open_source(csv_of(tmp_path, "a\n1\n?\n"), schema=schema))


def test_schema__decides_alone(tmp_path):
    with pytest.raises(ParameterError, match="drop and schema are both given"):
        open_source(
            csv_of(tmp_path, "a,c\n1,p\n"),
            schema=known(tmp_path),
            table=TableOptions(drop=("a",)),
        )


def test_schema__feature_that_is_asked_for_as_something_else(tmp_path):
    table = csv_of(tmp_path, "id,a,c,y\n1,2,p,u\n")
    for role in ({"label": "a"}, {"weights": "a"}):
        with pytest.raises(ParameterError, match=r"(label|weights)=a also has another role"):
            open_source(table, schema=known(tmp_path), **role)
    rows = rows_of(open_source(table, schema=known(tmp_path), table=TableOptions(id="a")))
    assert (rows.ids.tolist(), rows.X[:, 0].tolist()) == ([2], [2.0])


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
    assert "2 labels are read as known labels, except for a final full stop" in caplog.text


def test_classes__that_are_text_keep_numbers_text(tmp_path):
    path = csv_of(tmp_path, "a,y\n1,1\n2,2\n")
    assert rows_of(open_source(path, label="y", classes=["1", "x"])).y.tolist() == ["1", "2"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop": ("z",)}, r"has no column 'z'; it has .* Name an existing column with drop"),
        ({"categorical": ("y",)}, r"categorical=y also has another role, such as"),
        ({"id": "y"}, r"id=y also has another role, such as"),
        ({"columns": ("a",), "id": "a"}, r"columns=a also has another role, such as"),
    ],
)
def test_options__that_do_not_fit_the_table(tmp_path, options, message):
    path = csv_of(tmp_path, "a,c,y\n1,p,u\n")
    with pytest.raises((DataError, ParameterError), match=message):
        open_source(path, label="y", table=TableOptions(**options))


WRITTEN = {
    "price": ["$1,234.50", "$7", "-$12.25"],
    "mass": ["12 kg", "3.5 kg", "1 kg"],
    "day": ["31.12.2020", "1.1.1970", "2.1.1970"],
    "moment": ["12/31/1970 06:00 PM", "1/1/1970 12:00 AM", "1/2/1970 12:00 PM"],
}
STORED = [[1234.5, 12, 18627, 364.75], [7, 3.5, 0, 0], [-12.25, 1, 1, 1.5]]


def quoted(columns):
    rows = [columns, *zip(*columns.values(), strict=True)]
    return "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in rows)


def test_csv__numbers_and_dates_as_people_write_them(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "dask_nrbfn"):
        source = open_source(csv_of(tmp_path, quoted(WRITTEN)))
    written = {column.name: column.written for column in source.schema.columns}
    assert written == {
        **{"price": "$1,234.5", "mass": "1234.5 kg"},
        **{"day": "%d.%m.%Y", "moment": "%m/%d/%Y %I:%M %p"},
    }
    assert "ingest: price: numbers written as $1,234.5" in caplog.text
    assert rows_of(source).X.tolist() == STORED
    schema = Schema.from_dict(source.schema.to_dict())
    assert schema == source.schema
    again = {name: cells[::-1] for name, cells in reversed(WRITTEN.items())}
    path = csv_of(tmp_path, quoted(again), "again.csv")
    assert rows_of(open_source(path, schema=schema)).X.tolist() == STORED[::-1]
    path = csv_of(tmp_path, quoted({**WRITTEN, "mass": ["12 kg", "300 g", "?"]}), "other.csv")
    message = r"Column 'mass' of .* has '300 g' in line 3, which is not a number written as 1234.5"
    with pytest.raises(DataError, match=message):
        rows_of(open_source(path, schema=schema))
    spoiled = rows_of(open_source(path, schema=schema, spoiled=True))
    assert np.isnan(spoiled.X[:, 1]).tolist() == [False, True, True]


@pytest.mark.parametrize("missing", ["error", "drop", "impute"])
def test_csv__gaps_among_numbers_with_units(tmp_path, missing):
    cells = [f"{i} kg" if i else "?" for i in range(9)]
    path = csv_of(tmp_path, quoted({"a": range(9), "mass": cells}))
    options = TableOptions(missing=missing, numeric=("a",))
    if missing == "error":
        with pytest.raises(DataError, match=r"'mass' of .* has no value in line 2"):
            open_source(path, table=options)
        return
    source = open_source(path, table=options)
    kept = range(missing == "drop", 9)
    np.testing.assert_array_equal(rows_of(source).X[:, 1], [i or np.nan for i in kept])
    assert source.schema.columns[1].fill == (4.5 if missing == "impute" else 0)


def test_csv__a_few_cells_of_another_form_are_named(tmp_path):
    cells = [f"{i} kg" for i in range(1, 200)]
    path = csv_of(tmp_path, quoted({"mass": [*cells, "heavy"]}))
    with pytest.raises(
        DataError, match=r"has 'heavy' in line 201, .* written as 1234.5 kg\. Correct"
    ):
        open_source(path)
    assert open_source(path, table=TableOptions(missing_values=("heavy",), missing="drop")).n_rows
    assert not open_source(path, table=TableOptions(categorical=("mass",))).schema.is_plain
    few = csv_of(tmp_path, quoted({"a": [0.5] * 10, "mass": [*cells[:9], "heavy"]}))
    assert open_source(few).schema.columns[1].kind == "category"
    with pytest.raises(DataError, match="has 'heavy' in line 11"):
        open_source(few, table=TableOptions(numeric=("mass",)))


@pytest.mark.parametrize("text", ["a;b\n1.234,50;2\n234,5;3\n", "a;b\n1.234;2\n2.345,0;3\n"])
def test_csv__thousands_of_tables_with_decimal_commas(tmp_path, text):
    source = open_source(csv_of(tmp_path, text), decimal=",")
    assert source.schema.columns[0].written == "1.234,5"
    assert rows_of(source).X[0, 0] // 1 == 1234
    again = open_source(csv_of(tmp_path, text, "again.csv"), schema=source.schema)
    np.testing.assert_array_equal(rows_of(again).X, rows_of(source).X)


def test_csv__commas_that_may_be_decimal_are_no_thousands(tmp_path):
    with pytest.raises(DataError, match=r"which is not a number\. Pass decimal="):
        open_source(csv_of(tmp_path, "a;b\n1,234;2\n2,345;3\n"))
    source = open_source(csv_of(tmp_path, 'a,b\n"1,234",2\n"2,345",3\n'))
    assert rows_of(source).X.tolist() == [[1234, 2], [2345, 3]]


def test_csv__days_as_whole_numbers_are_dates_when_that_is_said(tmp_path, caplog):
    path = csv_of(tmp_path, "a,day\n1,19700102\n2,20201231\n")
    with caplog.at_level(logging.INFO, "dask_nrbfn"):
        assert rows_of(open_source(path)).X[0, 1] == 19700102
    assert "day looks like a date" in caplog.text
    for options in (TableOptions(date=("day",)), TableOptions(date_format=("day=%Y%m%d",))):
        assert rows_of(open_source(path, table=options)).X.tolist() == [[1, 1], [2, 18627]]


def test_csv__an_index_of_pandas_is_no_feature(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "dask_nrbfn"):
        source = open_source(csv_of(tmp_path, ",a\n0,2.5\n1,3.5\n2,1\n"))
    assert (source.feature_names, source.schema.ignored) == (("a",), ("",))
    assert "'' is left out: it counts the rows" in caplog.text
    for text in (",a\n7,1\n", "a\n1\n"):
        assert rows_of(open_source(csv_of(tmp_path, text), schema=source.schema)).X == [[1]]


def test_csv__gaps_of_all_columns_are_in_one_message(tmp_path):
    path = csv_of(tmp_path, "a,b,c,d\n1,,x,1\n,,y,1\n3,2,,1\n")
    with pytest.raises(DataError) as caught:
        open_source(path)
    assert caught.value.problem == (
        f"{path} has no value in some rows of 3 columns: 'a' 1, 'b' 2, 'c' 1."
    )
    assert caught.value.remedy.startswith("Pass missing='impute' to fill in missing values")


def test_schema__new_categories_are_counted(tmp_path, caplog):
    schema = open_source(
        csv_of(tmp_path, "c,v\nred,1.5\nblue,2\n"), table=TableOptions(categorical=("v",))
    ).schema
    path = csv_of(tmp_path, "c,v\nteal,1.50\nred,2.0\nteal,2.00\npink,3\n?,2\n", "new.csv")
    with caplog.at_level(logging.WARNING, "dask_nrbfn"):
        source = open_source(path, schema=schema, spoiled=True)
        for block_rows in (1, 5):
            caplog.clear()
            np.testing.assert_array_equal(
                rows_of(source, block_rows).X, [[-1, 0], [1, 1], [-1, 1], [-1, -1], [np.nan, 1]]
            )
            assert [record.getMessage() for record in caplog.records] == [
                "ingest: column c: 3 rows have a value that training did not have: "
                "'teal' and 1 other",
                "ingest: column v: 1 row has a value that training did not have: '3'",
            ]


@pytest.mark.parametrize("late", ["1,234", "1,000,000.5", "$5", "1.5 kg"])
def test_csv__numbers_whose_first_rows_are_bare(tmp_path, monkeypatch, late):
    monkeypatch.setattr(delimited, "TEXT_BYTES", 40)
    monkeypatch.setattr(delimited, "LINES_PER_BATCH", 2)
    cells = [*map(str, range(90)), *[late] * 9]
    path = csv_of(tmp_path, quoted({"a": cells, "y": range(99)}))
    if "," not in late:
        with pytest.raises(
            DataError, match=r"has '.*' in line 92, which is not a number\. Correct"
        ):
            open_source(path, label="y")
        return
    source = open_source(path, label="y")
    rows = rows_of(source)
    number = float(late.replace(",", ""))
    assert rows.X.ravel().tolist() == [*range(90), *[number] * 9]
    assert (rows.y.tolist(), source.schema.columns[0].written) == ([*range(99)], "1,234.5")


def test_file__without_a_header_and_the_label_before_the_features(tmp_path):
    lines = [f"{'uv'[i % 2]},{i % 7},{i % 5},{1000 + i}\n" for i in range(60)]
    table, names = TableOptions(drop=("column_3",)), {"label": "column_0", "no_header": True}
    train = open_source(csv_of(tmp_path, "".join(lines)), table=table, **names)
    given = {"schema": train.schema, "no_header": True}
    rows_of(open_source(csv_of(tmp_path, "".join(lines)), **given))
    unlabelled = csv_of(tmp_path, "".join(line[2:] for line in lines), "new.csv")
    message = r"no header and 3 columns, but training had 4: .*Give all columns"
    with pytest.raises(DataError, match=message):
        open_source(unlabelled, **given)


def test_file__without_a_header_and_the_label_after_the_features(tmp_path):
    lines = [f"{i % 7},{i % 5},{1000 + i},{'uv'[i % 2]}\n" for i in range(60)]
    table, names = TableOptions(drop=("column_2",)), {"label": "column_3", "no_header": True}
    train = open_source(csv_of(tmp_path, "".join(lines)), table=table, **names)
    unlabelled = csv_of(tmp_path, "".join(f"{line[:-3]}\n" for line in lines), "new.csv")
    assert open_source(unlabelled, schema=train.schema, no_header=True).y_dtype is None
