"""Text as tables: what is stored of CSV files as people write them, and what is refused."""

import logging
import os
import re
import resource
import subprocess

import numpy as np
import pytest
from zarr.storage import MemoryStore

from dask_nrbfn.commands.ingest import ingest_file
from dask_nrbfn.errors import DataError
from tests.opened import open_source
from tests.sources.tables import (
    features,
    ingest,
    ingest_text,
    labels_of,
    query_of,
    rows_of,
    typed,
)


def test_gaps__are_errors_filled_with_the_median_or_dropped(tmp_path):
    text = "a,b,c\n1,x,0.5\n NA ,x,0.5\n4, ? ,0.5\n9,y,0.5\n"
    with pytest.raises(DataError, match=r"no value in some rows of 2 columns: 'a' 1, 'b' 1\."):
        ingest_text(tmp_path, text)
    filled = ingest_text(tmp_path, text, missing="impute", columns="a,c")
    # The second feature marks the gap.
    expected = [[1, 0, 0.5], [4, 1, 0.5], [4, 0, 0.5], [9, 0, 0.5]]
    np.testing.assert_array_equal(rows_of(filled), expected)
    dropped = ingest_text(tmp_path, text, missing="drop", columns="a,b")
    np.testing.assert_array_equal(rows_of(dropped), [[1, 1, 0], [9, 0, 1]])


@pytest.mark.parametrize(
    "options", [{}, {"numeric": "b", "missing": "drop"}, {"missing": "impute"}]
)
def test_cell__that_is_no_number_is_named_by_row_and_column(tmp_path, options):
    text = "a,b\n" + "1.5,2\n" * 120_000 + "2.5,tall\n"
    said = r"'b' of .* has 'tall' in row 120000 \(the first is 0\), which is not a finite number"
    with pytest.raises(DataError, match=said):
        ingest_text(tmp_path, text, **options)


@pytest.mark.parametrize(
    ("cells", "labels"),
    [
        (["3", "-1"], [3, -1]),
        (["1.0", "2.0"], [1, 2]),
        (["u", "v, w"], ["u", "v, w"]),
        (["true", "false"], [True, False]),
        (["yes", "no"], ["yes", "no"]),
        (["01", "10"], ["01", "10"]),
        (["true", "yes"], ["true", "yes"]),
    ],
)
def test_labels__of_csv(tmp_path, cells, labels):
    text = "a,y\n" + "".join(f'{row},"{cell}"\n' for row, cell in enumerate(cells))
    dataset = ingest_text(tmp_path, text, label="y")
    assert labels_of(dataset) == labels
    again = {"schema": dataset.schema}, {"sql": "FROM source WHERE a < 9", "label": "y"}
    for options in again:
        assert labels_of(ingest(tmp_path / "d.csv", **options)) == labels


def test_labels__that_are_missing(tmp_path):
    rows = "a,y\n1,u\n2,v\n3,None\n4,\n"
    with pytest.raises(DataError, match=r"no value in some rows of a column: 'y' 2"):
        ingest_text(tmp_path, rows, label="y")
    assert ingest_text(tmp_path, rows, label="y", missing="drop").n_rows == 2
    assert ingest_text(tmp_path, rows, label="y", unlabelled="").n_unlabelled == 2


@pytest.mark.parametrize("ids", [["7", "-3"], ["u7", "u3"], ["07", "10"], ["1.5", "2.25"]])
def test_ids__are_kept_as_they_are(tmp_path, ids):
    text = f"i,a,y\n{ids[0]},1,u\n{ids[1]},2,v\n"
    dataset = ingest_text(tmp_path, text, id="i", label="y")
    assert list(map(str, dataset.ids[:])) == ids
    assert (dataset.feature_names, labels_of(dataset)) == (("a",), ["u", "v"])
    assert (dataset.ids[:].dtype == np.int64) == (ids == ["7", "-3"])


def test_labels__of_later_files_decide_too(tmp_path):
    (tmp_path / "1.csv").write_text("x,y\n1,1\n2,2\n")
    (tmp_path / "2.csv").write_text("x,y\n3,1.5\n")
    with pytest.raises(DataError, match=r"has the label 1\.5 in row 2"):
        ingest(tmp_path, label="y")
    assert ingest(tmp_path, id="y").ids[:].tolist() == ["1", "2", "1.5"]


def test_unlabelled__mark_is_a_gap_among_features(tmp_path):
    for rows, options, n_unlabelled in (
        ("1,a\n?,b\n3,?\n4,b\n", {"label": "y", "unlabelled": "?"}, 1),
        ("1,2\nnan,\n3,nan\n4,1\n", {"target": "y", "unlabelled": "nan"}, 2),
    ):
        dataset = ingest_text(tmp_path, "x,y\n" + rows, missing="impute", **options)
        np.testing.assert_array_equal(rows_of(dataset)[:, 0], [1, 3, 3, 4])
        assert dataset.n_unlabelled == n_unlabelled


def test_text__row_that_begins_with_a_hash_is_a_row(tmp_path):
    rows = "".join(f"{'#DIV/0!' if row == 90 else row % 5},{row % 7}\n" for row in range(200))
    assert ingest_text(tmp_path, "k,x\n" + rows, drop="k").n_rows == 200


def test_text__row_of_another_length(tmp_path):
    rows = "".join(f"{row},2{',3' * (row != 90)}\n" for row in range(200))
    with pytest.raises(DataError, match="line 92 has 2 cells, and the first row has 3"):
        ingest_text(tmp_path, "a,b,c\n" + rows)
    with pytest.raises(DataError, match="line 94 has 2 cells, and the first row has 3"):
        ingest_text(tmp_path, "# by x\n\na,b,c\n" + rows)


NARROW = "a,b,y\n" + "".join(f"{row},{row % 5},{'uv'[row % 2]}\n" for row in range(60))


WIDER = "a,b,c,y\n" + "".join(f"{row},{row % 5},0,{'uv'[row % 2]}\n" for row in range(40))


@pytest.mark.parametrize("n_lines", [0, 1], ids=["with headers", "without"])
def test_text__joined_files_whose_rows_become_wider_lose_no_rows(tmp_path, n_lines):
    narrow, wider = ("".join(text.splitlines(True)[n_lines:]) for text in (NARROW, WIDER))
    message = f"line {62 - n_lines} has 4 cells, and the first row has 3"
    for sql in (None, "FROM source"):
        with pytest.raises(DataError, match=message):
            ingest_text(tmp_path, narrow + wider, sql=sql)
    with pytest.raises(DataError, match=message):
        open_source(tmp_path / "d.csv", spoiled=True)
    # The remedy.
    (tmp_path / "parts").mkdir()
    for name, text in (("1", narrow), ("2", wider)):
        (tmp_path / f"parts/{name}.csv").write_text(text)
    assert ingest(tmp_path / "parts", missing="impute").n_rows == 100


def test_text__joined_headers_are_no_rows(tmp_path):
    texts = "city,y\n" + "p,u\nq,v\n" * 9
    for text in (NARROW + NARROW, texts + texts):
        with pytest.raises(
            DataError, match=r"repeats its header in row (60|18) \(the first is 0\)"
        ):
            ingest_text(tmp_path, text, label="y")
        with pytest.raises(DataError, match="repeats its header") as refused:
            ingest(tmp_path / "d.csv", sql="FROM source", label="y")
        assert typed(refused, tmp_path).n_rows == text.count("\n") - 1
    assert ingest_text(tmp_path, "a,b\n" + "a,b\nz,c\n" * 9).n_rows == 18


BEFORE = [
    "\n\nReport\n",
    "Report, of 2024\nin km\n",
    '"Report, of 2024"\n\n',
    "#by x, y\n# on z, z\n#\n",
    "% x, y\n% z, z\nReport\n",
    "Station: X\nLat: 3.5\nLon: 4.5\n\n",
]


def test_text__titles_and_comments_before_the_header_are_left_out(tmp_path, caplog):
    caplog.set_level(logging.INFO, "dask_nrbfn")
    for lines in BEFORE:
        assert ingest_text(tmp_path, lines + NARROW).n_rows == 60
        assert f"{lines.count(chr(10))} lines before the first row are left out" in caplog.text
        caplog.clear()
    assert ingest_text(tmp_path, ("sep=,\n" + NARROW).replace(",", ";")).n_rows == 60
    assert not ingest_text(
        tmp_path, "".join(f"# {row},\n" for row in range(40)) + NARROW
    ).schema.label
    for lines in ("Station,X\nLat,3.5\n", "1\n" * 11):
        with pytest.raises(DataError, match=r"has 3 cells, and the first row has [12]") as refused:
            ingest_text(tmp_path, lines + NARROW)
        assert typed(refused, tmp_path).n_rows == 60


ROWS = "a,b,y\n1,2,u\n3,4,v\n"


WRITTEN = {
    "delimiter": ROWS.replace(",", ";"),
    "quotes": re.sub(r"(\w)", r'"\1"', ROWS),
    "single quotes": re.sub(r"(\w)", r"'\1'", ROWS),
    "comments": "# x\n# z, z\n" + ROWS,
    "title": "Report\n" + ROWS,
    "blank line": "\n" + ROWS,
    "order": "y,b,a\nu,2,1\nv,4,3\n",
    "columns": "a,b,c,y\n1,2,0,u\n3,4,0,v\n",
}


@pytest.mark.parametrize("name", WRITTEN)
def test_text__files_of_a_directory_may_be_written_differently(tmp_path, name):
    for texts in ((ROWS, WRITTEN[name]), (WRITTEN[name], "# x\n" + ROWS)):
        for part, text in enumerate(texts):
            (tmp_path / f"{part}.csv").write_text(text)
        dataset = ingest(tmp_path, columns="a,b", label="y")
        found = dict(zip(dataset.feature_names, rows_of(dataset).T.tolist(), strict=True))
        assert found == {"a": [1, 3] * 2, "b": [2, 4] * 2}
        assert labels_of(dataset) == ["u", "v"] * 2
        assert ("c" in dataset.schema.ignored) == (name == "columns")


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("1,u\n2,v\n", "a,y\n3,u\n", "'column0' .* has 'a' in row 2"),
        ("d,y\n2020-01-02,u\n", "d,y\n25/01/2020,u\n", "'25/01/2020' in row 1 .* not a date"),
        ("a,y\n1,u\n", "# c, x\n# f\na,y\n1,u\n2,v\n", "1.csv: line 1 is not split into columns"),
    ],
)
def test_text__files_of_a_directory_that_differ_are_no_categories(tmp_path, first, second, message):
    (tmp_path / "0.csv").write_text(first)
    (tmp_path / "1.csv").write_text(second)
    with pytest.raises(DataError, match=message):
        ingest(tmp_path)


def test_text__one_column(tmp_path):
    for cells in ('"a b" \n"c"\n', "A" * 200_000 + "\nB\n", "Main St, 3\nb\n"):
        assert ingest_text(tmp_path, "x\n" + cells * 9, max_categories=2).n_rows == 18
    assert ingest_text(tmp_path, ("A" * 200_000 + "\nB\n") * 9, no_header=True).n_rows == 18
    with pytest.raises(DataError, match="line 1 is not split into columns: x,y"):
        ingest_text(tmp_path, "x,y\n" + "A" * 200_000 + ",u\n1,2,3\n" * 9)
    with pytest.raises(DataError, match=r"line 1 is not split .*: # by a; b") as refused:
        ingest_text(tmp_path, "# by a; b\nx\n1.5\n2.5\n")
    assert typed(refused, tmp_path).feature_names == ("x",)
    with pytest.raises(DataError, match="line 1 is not split into columns: a;b;y") as refused:
        ingest_text(tmp_path, NARROW.replace(",", ";"), delimiter=",")
    assert refused.value.remedy == "Leave out delimiter, or pass delimiter=';'."


@pytest.mark.parametrize("place", [60, 110_000], ids=["first rows", "later"])
@pytest.mark.parametrize("cell", ['"p', '"p"q'])
def test_text__quotes_that_do_not_match_are_no_class(tmp_path, place, cell):
    rows = ["1,2,u\n"] * place + [f"1,2,{cell}\n"] + ["1,2,v\n"] * 60
    with pytest.raises(DataError, match=f"line {place + 2} has a cell in column 3 ") as refused:
        ingest_text(tmp_path, "a,b,y\n" + "".join(rows), label="y")
    if place == 60:
        assert typed(refused, tmp_path).n_rows == 121
    assert ingest_text(tmp_path, NARROW + '1,2,5" pipe\n1,2,"x ""y"""\n', label="y").n_rows == 62


@pytest.mark.parametrize(
    ("encoding", "mark", "advice"),
    [
        ("cp1252", "€", "iconv -f CP1252 -t UTF-8 FILE > NEW.csv"),
        ("latin-1", "é", "Pass encoding='latin-1'."),
        ("utf-16", "€", "Pass encoding='utf-16'."),
        ("utf-16-le", "e", "Pass encoding='utf-16'."),
    ],
)
def test_text__advice_about_an_encoding_works(tmp_path, encoding, mark, advice):
    path, text = tmp_path / "d.csv", NARROW.replace("u", mark)
    path.write_bytes(text.encode(encoding))
    with pytest.raises(DataError, match=r"line \d is not UTF-8") as refused:
        ingest(path, label="y")
    assert advice in refused.value.remedy
    if encoding != "cp1252":
        known = re.search("='(.*)'", refused.value.remedy)[1]
        dataset = ingest(path, label="y", encoding=known)
        assert dataset.n_rows == 60
        assert mark in labels_of(dataset)
        assert features(path, schema=dataset.schema).shape == (60, 2)
        selected = ingest(path, label="y", encoding=known, sql=f"FROM source WHERE y = '{mark}'")
        assert mark in labels_of(selected)
        assert features(path, schema=selected.schema, sql="FROM source").shape == (60, 2)
        assert features(path, schema=selected.schema).shape == (60, 2)
        path.write_bytes((text + "1,2\n").encode(encoding))
        with pytest.raises(DataError, match="line 62 has 2 cells"):
            ingest(path, label="y", encoding=known)
        return
    command = advice.replace("FILE", str(path)).replace("NEW", str(tmp_path / "new"))
    subprocess.run(command, shell=True, check=True)
    assert labels_of(ingest(tmp_path / "new.csv", label="y"))[0] == "€"


def test_text__new_rows_in_another_encoding_than_the_training_rows_are_read_with_the_option(
    tmp_path,
):
    path, text = tmp_path / "d.csv", NARROW.replace("u", "é")
    path.write_bytes(text.encode("latin-1"))
    schema = ingest(path, label="y", encoding="latin-1").schema
    # Latin-1 does not have one of these bytes.
    path.write_text(text.replace("é", "à\x80"))
    with pytest.raises(DataError, match="not latin-1 encoded") as refused:
        ingest(path, schema=schema)
    assert refused.value.remedy.startswith("Pass the encoding of the file, ")
    assert ingest(path, schema=schema, encoding="utf-8").n_rows == 60


def test_text__advice_about_ends_of_lines_works(tmp_path):
    lines = NARROW.splitlines()
    text = "".join(line + ["\n", "\r\n"][row % 3 == 2] for row, line in enumerate(lines))
    (tmp_path / "d.csv").write_bytes(text.encode())
    with pytest.raises(DataError, match="line 3 ends in ") as refused:
        ingest(tmp_path / "d.csv")
    assert typed(refused, tmp_path).n_rows == 60


def test_text__short_rows_are_read_as_advised(tmp_path):
    with pytest.raises(DataError, match="line 62 has 2 cells") as refused:
        ingest_text(tmp_path, NARROW + "7,8\n")
    assert "pass missing='impute'" in refused.value.remedy
    query = re.search('sql="(.*)"', refused.value.remedy)[1].replace("FILE", f"{tmp_path}/d.csv")
    assert ingest(query, missing="impute").n_rows == 61
    with pytest.raises(DataError, match="line 62 has only blanks"):
        ingest_text(tmp_path, NARROW + "  \n")


def test_text__byte_order_mark_before_a_quoted_name(tmp_path):
    text = '\ufeff"a, b",y\n1,u\n2,v\n'
    assert ingest_text(tmp_path, text.replace(", ", " ")).feature_names[0] == "a b"
    with pytest.raises(DataError, match="several columns 'a'"):
        ingest_text(tmp_path, "\ufeffa,a\n1,2\n")
    with pytest.raises(DataError, match="byte order mark before a quote") as refused:
        ingest_text(tmp_path, text)
    command = re.search("sed .*FILE", refused.value.remedy)[0]
    subprocess.run(command.replace("FILE", str(tmp_path / "d.csv")), shell=True, check=True)
    assert ingest(tmp_path / "d.csv").feature_names[0] == "a, b"


def test_text__more_files_than_may_be_open(tmp_path):
    for part in range(300):
        (tmp_path / f"{part:03}.csv").write_text(f"a,y\n{part},u\n{part / 2},v\n")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 290, limit[1]))
    try:
        dataset = ingest(tmp_path, label="y")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert rows_of(dataset)[-2:, 0].tolist() == [299, 149.5]


def rows_ending_with_blanks(tmp_path, n_columns, ends):
    """Write rows of numbers and yes and no without a header; blanks end the rows in `ends`."""
    path = tmp_path / "d.data"
    rows = [
        [*map(str, range(row, row + n_columns - 1)), ["no", "yes"][row % 2]] for row in range(60)
    ]
    path.write_text("".join(f"{' '.join(row)}{' ' * (j in ends)}\n" for j, row in enumerate(rows)))
    return path


@pytest.mark.parametrize("sql", [None, "FROM source WHERE true"])
@pytest.mark.parametrize("n_columns", [3, 10])
def test_text__blank_at_the_end_of_a_row_is_no_cell(tmp_path, n_columns, sql):
    options = {"delimiter": " ", "no_header": True, "label": f"column{n_columns - 1}", "sql": sql}
    contents = set()
    for ends in [(), (7,), (0,), range(60), range(1, 60)]:
        path = rows_ending_with_blanks(tmp_path, n_columns, ends)
        dataset = ingest(path, **options)
        assert (dataset.n_features, labels_of(dataset)[:2]) == (n_columns - 1, ["no", "yes"])
        contents.add(dataset.content)
    assert len(contents) == 1


def test_text__short_row_is_an_error_that_names_the_line(tmp_path):
    path = rows_ending_with_blanks(tmp_path, 3, [7])
    path.write_text(path.read_text().replace("20 21 no\n", "20 no\n"))
    for sql in (None, "FROM source WHERE true"):
        with pytest.raises(DataError, match=r"Error on Line: 21 .*Found: 2"):
            ingest(path, delimiter=" ", no_header=True, sql=sql)


@pytest.mark.parametrize(("n", "state"), [(30, "read"), (300, "left out")])
def test_text__of_other_forms_is_a_warning(tmp_path, caplog, n, state):
    rows = "".join(f"{row},{row % 10};{'uv'[row % 2]};{row % 3}\n" for row in range(10, n))
    (tmp_path / "d.csv").write_text(f"a price;y;b\n{rows}")
    features(tmp_path / "d.csv", label="y")
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warned[0] == f"a price is {state} as text: it has '10,0', which may be the number 10."
    dataset = ingest_file(tmp_path / "d.csv", MemoryStore(), label="y", sql=query_of(warned[1]))
    np.testing.assert_allclose(rows_of(dataset)[:2, 0], [10.0, 11.1])


@pytest.mark.parametrize(
    ("form", "first"),
    [
        ("{0}kg", 50),
        ("{0},000+", 50_000),
        ("${0},{0}0.5", 50_500.5),
        ("1.{0}0,5 €", 1500.5),
        ("0,{0}7", 0.507),
        ("{0}.000 km", 50_000),
        ("0.{0}0 km", 0.5),
    ],
)
def test_text__with_units_and_thousands_is_converted_by_the_query_of_a_warning(
    tmp_path, caplog, form, first
):
    cell = form.format
    rows = "".join(f"{cell(row % 40 + 50)};{'uv'[row % 2]};{row % 3}\n" for row in range(100))
    with caplog.at_level("INFO", logger="dask_nrbfn.sources"):
        ingest_text(tmp_path, "size;y;b\n" + rows, label="y")
    (told,) = [each for each in caplog.messages if each.startswith("Convert size ")]
    dataset = ingest(tmp_path / "d.csv", label="y", sql=query_of(told))
    assert rows_of(dataset)[0, 0] == first


def test_text__columns_that_some_files_lack_are_named_with_the_query_that_joins_them(
    tmp_path, caplog
):
    rows = "".join(f"{row},{row % 3},{row % 2}\n" for row in range(60))
    (tmp_path / "a.csv").write_text("temp,Rain,y\n" + rows)
    (tmp_path / "b.csv").write_text("temperature,rain,y\n" + rows)
    options = {"label": "y", "missing": "impute"}
    dataset = ingest(tmp_path, **options)
    assert {"temp", "Rain", "temperature"} <= {*dataset.feature_names}
    (told,) = [each for each in caplog.messages if "missing values" in each]
    assert f": 'temp' in {tmp_path / 'b.csv'}; 'temperature' in {tmp_path / 'a.csv'}. " in told
    query = query_of(told).replace("OLD", "temp").replace("NEW", "temperature")
    caplog.clear()
    assert {*ingest(tmp_path, **options, sql=query).feature_names} == {"Rain", "temperature"}
    ingest(tmp_path, **options, columns="Rain")
    ingest(tmp_path, **options, drop="temp,temperature")
    assert not caplog.messages
    # New files, too: else the half of a column that training had would be filled without a word.
    ingest(tmp_path, schema=dataset.schema)
    assert "'temp' in " in caplog.text


def test_text__whose_units_differ_is_not_converted_as_one(tmp_path, caplog):
    rows = "".join(f"{row % 40}{'Mk'[row % 2]};{row % 3}\n" for row in range(100))
    ingest_text(tmp_path, "size;b\n" + rows)
    assert "Its units (M, k) differ: scale the numbers of each." in caplog.text


def test_text__codes_are_no_numbers_with_units(tmp_path, caplog):
    rows = "".join(
        f"{'42A'[row % 3]}WD;{row % 9}{'ABCDEF'[row % 6]};{['1st', '2nd', '3rd'][row % 3]}\n"
        for row in range(100)
    )
    ingest_text(tmp_path, "drive;seat;class\n" + rows)
    assert "may be a number" not in caplog.text


def test_numbers__that_number_the_rows_are_named_once(tmp_path, caplog):
    # More rows than a batch; the second column begins again.
    n_rows = 70_000
    rows = "".join(f"{row + 3},{row % 60_000},{row % 2}\n" for row in range(n_rows))
    ingest_text(tmp_path, "no,again,y\n" + rows, label="y")
    (told,) = caplog.messages
    assert told.startswith("no is a feature, but it numbers the rows from 3 on. Pass id='no'")
    caplog.clear()
    for options in ({"id": "no"}, {"numeric": "no"}, {"drop": "no"}):
        ingest(tmp_path / "d.csv", label="y", **options)
    assert not caplog.messages


def test_numeric__marks_between_many_blanks_are_missing(tmp_path):
    (tmp_path / "rows.csv").write_text("a,b\n    1.5,0\n     NA,1\n       ,2\n    3.5,3\n")
    X = features(tmp_path / "rows.csv", numeric="a", missing="impute")
    np.testing.assert_array_equal(X[:, 0], [1.5, np.nan, np.nan, 3.5])


@pytest.mark.parametrize("missing_values", [None, ["-999", "NA"]])
def test_marks__between_blanks_are_missing(tmp_path, missing_values):
    mark = " -999 " if missing_values else "  ?  "
    (tmp_path / "rows.csv").write_text(f"a,b\n 1.5,0\n{mark},1\n NA,2\n  ,3\n3.5 ,4\n")
    X = features(tmp_path / "rows.csv", missing="impute", missing_values=missing_values)
    np.testing.assert_array_equal(X[:, 0], [1.5, np.nan, np.nan, np.nan, 3.5])


def test_text__a_target_with_a_unit_names_the_query_that_converts_it(tmp_path):
    (tmp_path / "rows.csv").write_text('area,price\n1,"€17,690"\n2,"€9,500"\n3,"€800"\n')
    target = {"target": "price"}
    with pytest.raises(DataError, match="'€17,690'") as caught:
        ingest_file(tmp_path / "rows.csv", MemoryStore(), **target)
    query = query_of(caught.value.remedy)
    dataset = ingest_file(tmp_path / "rows.csv", MemoryStore(), sql=query, **target)
    assert dataset.y[:].ravel().tolist() == [17690, 9500, 800]


def test_text__a_target_that_is_a_date_is_not_made_a_number_of_its_digits(tmp_path):
    (tmp_path / "rows.csv").write_text("area,day\n1,2020-01-01x\n2,2020-01-02x\n")
    with pytest.raises(DataError) as caught:
        ingest_file(tmp_path / "rows.csv", MemoryStore(), target="day")
    assert "regexp_replace" not in caught.value.remedy


def test_text__a_query_that_replaces_a_column_which_new_rows_lack(tmp_path):
    (tmp_path / "rows.csv").write_text("area\n1\n2\n")
    query = "SELECT * REPLACE (price::DOUBLE AS price) FROM source"
    with pytest.raises(DataError, match="REPLACE list not found") as caught:
        ingest_file(tmp_path / "rows.csv", MemoryStore(), sql=query)
    assert "new rows may lack" in caught.value.remedy
