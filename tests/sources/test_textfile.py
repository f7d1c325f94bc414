"""CSV as it is found: real files in the ways that people write them."""

import gzip
import logging

import numpy as np
import pyarrow as pa
import pytest

from dask_nrbfn.commands.ingest import ingest_file
from dask_nrbfn.errors import DamagedDataError, DataError
from dask_nrbfn.sources import delimited, open_source
from dask_nrbfn.sources.survey import TableOptions

X = [[1.5, 2.0], [-3.25, 4.0]]


def written(path, text, encoding="utf-8"):
    content = text.encode(encoding)
    if path.suffix == ".gz":
        content = gzip.compress(content)
    elif path.suffix == ".zst":
        content = pa.compress(content, codec="zstd", asbytes=True)
    path.write_bytes(content)
    return path


def read(path, **options):
    source = open_source(path, **options)
    blocks = list(source.blocks(100))
    labels = None if source.y_dtype is None else np.concatenate([b.y for b in blocks]).tolist()
    return source.feature_names, np.concatenate([b.X for b in blocks]).tolist(), labels


@pytest.mark.fast_cases(8)
@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("a;b;y\n1.5;2;x\n-3.25;4;é\n", {}),
        ("a;b;y\n1,5;2;x\n-3,25;4;é\n", {"decimal": ","}),
        ("a|b|y\n1.5|2|x\n-3.25|4|é\n", {}),
        ("a:b:y\n1.5:2:x\n-3.25:4:é\n", {"delimiter": ":"}),
        ("a, b , y\n1.5, 2 , x\n-3.25, 4,\té \n", {}),
        ("'a','b','y'\n'1.5','2','x'\n'-3.25','4','é'\n", {}),
        ("a,b,y\n1.5,2,'x'\n-3.25,4,'é'\n", {}),
        ('a, "b", y\n1.5, "2", "x"\n-3.25, "4", "é"\n', {}),
        ('"a"; "b"; "y"\n"1,5"; "2"; "x"\n"-3,25"; "4"; "é"\n', {"decimal": ","}),
        ("a,b,y\n1.5,2,'x'\n-3.25,4,é\n", {"quote": "'"}),
    ],
)
@pytest.mark.parametrize("name", ["d.csv", "d.tsv.zst"])
def test_text__is_the_same_table_however_it_is_written(tmp_path, name, text, options):
    path = written(tmp_path / name, text)
    assert read(path, label="y", **options) == (("a", "b"), X, ["x", "é"])


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-16-le", "utf-8-sig"])
@pytest.mark.parametrize("name", ["d.csv", "d.csv.gz"])
def test_text__of_another_encoding(tmp_path, name, encoding):
    path = written(tmp_path / name, "a;b;é\n1.5;2;x\n-3.25;4;ö\n", encoding)
    assert read(path, label="é", encoding=encoding) == (("a", "b"), X, ["x", "ö"])


@pytest.mark.parametrize("batch_bytes", [24, 1000])
def test_text__without_header_has_numbered_columns(tmp_path, monkeypatch, batch_bytes):
    monkeypatch.setattr(delimited, "TEXT_BYTES", batch_bytes)
    path = written(tmp_path / "d.csv", "1.5, 2, <=50K\n\n-3.25, 4, >50K\n")
    names = ("column_0", "column_1")
    assert read(path, label="column_2", no_header=True) == (names, X, ["<=50K", ">50K"])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("x,1", r"Column 'column_0' of .* has 'x' in line 3, which is not a number"),
        ("1,", r"Column 'column_1' of .* has no value in line 3"),
        ("1,2,3", "line 3 of .* has 3 cells, but the first row has"),
        ('1,"2', "ends inside a quote that opens in line 3"),
    ],
)
def test_text__without_header_has_lines_too(tmp_path, row, message):
    path = written(tmp_path / "d.csv", f"1,2\n\n{row}\n")
    with pytest.raises(DataError, match=message):
        read(path, no_header=True, table=TableOptions(numeric=("column_0",)))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("a,y\n1,x\n", r"2\.csv has ',' between cells, \" around .*1\.csv has ';' between cells"),
        ("a;y\n'1';'x'\n", r"2\.csv has ';' between cells, ' around text"),
    ],
)
def test_text__files_of_a_directory_are_written_one_way(tmp_path, other, message):
    written(tmp_path / "1.csv", "a;y\n1;x\n")
    written(tmp_path / "2.csv", other)
    with pytest.raises(DataError, match=message):
        open_source(tmp_path, label="y")


def test_text__what_is_unusual_is_logged(tmp_path, caplog):
    caplog.set_level(logging.INFO, "dask_nrbfn")
    open_source(written(tmp_path / "usual.csv", "a,b\n1,2\n"))
    open_source(written(tmp_path / "usual.tsv", "a\tb\n1\t2\n"))
    assert not caplog.messages
    path = written(tmp_path / "d.csv", "a;b\n1;'2'\n", "utf-16")
    open_source(path)
    assert caplog.messages == [f"ingest: {path} has ';' between cells, ' around text, utf-16"]


def test_text__of_another_encoding_than_said(tmp_path):
    path = written(tmp_path / "d.csv", "a,y\n1,é\n", "latin-1")
    with pytest.raises(DamagedDataError, match=r"cannot be read as CSV: .*pass its encoding, suc"):
        open_source(path, label="y")
    with pytest.raises(DamagedDataError, match=r"cannot be read as CSV: 'ascii' codec"):
        open_source(path, label="y", encoding="ascii")


CARS = (
    '18.0   8   ?      3504.  1\t"chevrolet chevelle"\n'
    '9.5    4   307.0  34.    3\t"vw 1131, deluxe"\n'
    '24.0   4   113.0  95.0   3\t"toyota \t corona"\n'
)


@pytest.mark.parametrize(
    ("end", "options", "encoding"),
    [
        ("\n", {}, "utf-8"),
        ("\r\n", {"delimiter": " "}, "utf-8-sig"),
        ("\r", {"delimiter": " ", "no_header": True}, "utf-16"),
        ("\r\n", {}, "utf-16"),
    ],
)
def test_text__blanks_between_cells(tmp_path, caplog, end, options, encoding):
    caplog.set_level(logging.INFO, "dask_nrbfn")
    path = written(tmp_path / "cars.csv", f" {CARS} ".replace("\n", end), encoding)
    found = read(path, label="column_5", table=TableOptions(missing="impute"), **options)
    expected = [[18, 8, np.nan, 3504, 1], [9.5, 4, 307, 34, 3], [24, 4, 113, 95, 3]]
    names = tuple(f"column_{j}" for j in range(5))
    assert found[0] == names
    np.testing.assert_array_equal(found[1], expected)
    assert found[2] == ["chevrolet chevelle", "vw 1131, deluxe", "toyota \t corona"]
    header = "" if "no_header" in options and encoding != "utf-16" else ", no header"
    told = "utf-16" if encoding == "utf-16" else "utf-8"
    if not options:
        line = f'ingest: {path} has blanks between cells, " around text, {told}{header}'
        assert line in caplog.messages


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1 2 x", "line 5 of .* has 3 cells, but the first row has 2"),
        ("lots x", "Column 'a' of .* has 'lots' in line 5, which is not a number"),
        ('1 "x', "ends inside a quote that opens in line 5"),
        ("1", "line 5 of .* has 1 cells, but the first row has 2"),
    ],
)
@pytest.mark.parametrize("begin", ["# drawn\n#  by hand \na y\n1 x\n", " a  y \n1 'x'\n\n \n"])
def test_text__blanks_leave_lines_as_they_are(tmp_path, row, message, begin):
    path = written(tmp_path / "d.csv", f"{begin}{row}\n")
    with pytest.raises(DataError, match=message):
        read(path, label="y", delimiter=" ", table=TableOptions(numeric=("a",)))


@pytest.mark.parametrize("delimiter", ["\t", "tab", r"\t"])
def test_text__tab_as_it_is_typed(tmp_path, delimiter):
    path = written(tmp_path / "d.csv", "a\tb,y\tb\n1.5\tx,y\t2\n-3.25\té\t4\n")
    assert read(path, label="b,y", delimiter=delimiter) == (("a", "b"), X, ["x,y", "é"])
    dataset = ingest_file(path, tmp_path / "d.zarr", label="b,y", delimiter=delimiter)
    assert dataset.schema.written == {"delimiter": "\t"}


@pytest.mark.parametrize(
    ("begin", "skipped"),
    [
        ("# drawn by hand\n", "a line"),
        ('# drawn, by hand; with care\n#\n\n# 5" wide\n', "4 lines"),
        ("#a comment\r\n", "a line"),
        ("# a; title\n# b\n", "2 lines"),
        ("# 1; 2; 3\n", "a line"),  # as many cells as the table: the next line is its header
        ("sep=;\n", "a line"),
        ('"sep=;"\r\n# x\n', "2 lines"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_text__lines_before_the_table(tmp_path, caplog, begin, skipped, encoding):
    caplog.set_level(logging.INFO, "dask_nrbfn")
    path = written(tmp_path / "d.csv", f"{begin}a;b;y\n1.5;2;x\n-3.25;4;é\n", encoding)
    assert read(path, label="y") == (("a", "b"), X, ["x", "é"])
    (line,) = caplog.messages
    assert line.endswith(f", {skipped} before the table")
    written(path, f"{begin}a;b;y\n1.5;2;x\nlots;4;é\n", encoding)
    n_lines = begin.count("\n")
    with pytest.raises(DataError, match=f"has 'lots' in line {n_lines + 3}, which"):
        read(path, label="y", table=TableOptions(numeric=("a",)))


def test_text__without_header_as_the_first_row_shows(tmp_path, caplog):
    caplog.set_level(logging.INFO, "dask_nrbfn")
    rows = "5.1,3.5,1.4,0.2,Iris-setosa\n4.9,3.0,1.4,0.2,Iris-versicolor\n"
    path = written(tmp_path / "iris.csv", rows)
    dataset = ingest_file(path, tmp_path / "iris.zarr", label="column_4")
    assert (dataset.n_rows, dataset.n_features) == (2, 4)
    assert caplog.messages[0].endswith("utf-8, no header")
    # Nor have the files to predict from, whatever their first rows show.
    assert dataset.schema.written == {"no_header": True}
    other = written(tmp_path / "other.csv", "5,3,1,0,Iris-setosa\n")
    source = open_source(other, schema=dataset.schema)
    assert source.n_rows == 1


def test_ingest__a_table_as_it_is_found(tmp_path):
    path = written(tmp_path / "d.csv.zst", "1,5; <=50K\n2,5; >50K\n", "latin-1")
    options = {"label": "column_1", "decimal": ",", "no_header": True, "encoding": "latin-1"}
    dataset = ingest_file(path, tmp_path / "d.zarr", **options)
    assert (dataset.n_rows, dataset.feature_names) == (2, ("column_0",))
    assert list(dataset.classes) == ["<=50K", ">50K"]
