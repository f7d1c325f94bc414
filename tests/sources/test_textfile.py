"""CSV as it is found: real files in the ways that people write them."""

import gzip
import io
import logging

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_nrbfn.commands.ingest import ingest_file
from dask_nrbfn.errors import DamagedDataError, DataError, ParameterError
from dask_nrbfn.sources import delimited, open_source
from dask_nrbfn.sources.dialect import Dialect
from dask_nrbfn.sources.survey import TableOptions
from dask_nrbfn.sources.textfile import _Unpadding

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


def test_text__mark_of_utf_16_says_what_it_is(tmp_path):
    written(tmp_path / "1.csv", "a,b,y\n1.5,2,x\n", "utf-16")
    written(tmp_path / "2.csv", "a,b,y\n-3.25,4,ö\n")
    assert read(tmp_path, label="y") == (("a", "b"), X, ["x", "ö"])


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
        ("1,2,3", "of another length than its first row: line 3 has 3 cells"),
        ('1,"2', "ends inside a quote that opens in line 3"),
    ],
)
def test_text__without_header_has_lines_too(tmp_path, row, message):
    path = written(tmp_path / "d.csv", f"1,2\n\n{row}\n")
    with pytest.raises(DataError, match=message):
        read(path, no_header=True, table=TableOptions(numeric=("column_0",)))


def test_text__lines_are_those_of_the_file(tmp_path):
    text = "a; y\n1; 'x\ny'\n2; 'z'\nlots; 'z'\n"
    path = written(tmp_path / "d.csv", text, "utf-16")
    with pytest.raises(DataError, match=r"Column 'a' of .* has 'lots' in line 5"):
        read(path, label="y", quote="'", table=TableOptions(numeric=("a",)))


def test_text__other_quote_may_not_stay_open(tmp_path):
    path = written(tmp_path / "d.csv", "a;y\n1;'x'\n2;'z\n")
    with pytest.raises(DataError, match=r"opens in line 3\. Close it .* or write '' for a quote"):
        read(path, label="y", quote="'")


@pytest.mark.parametrize(
    ("labels", "read_as"),
    [(["3,0", "-1"], [3, -1]), (["3.0", "1"], ["3.0", "1"]), ([" true", "0 "], [1, 0])],
)
def test_text__labels_have_decimal_commas_too(tmp_path, labels, read_as):
    path = written(tmp_path / "d.csv", "a;y\n" + "".join(f"1;{label}\n" for label in labels))
    assert read(path, label="y", decimal=",")[2] == read_as


def test_text__decimal_comma_is_advised(tmp_path):
    path = written(tmp_path / "d.csv", "a;y\n1,5;x\n")
    with pytest.raises(DataError, match=r"has '1,5' in line 2, .*\. Say decimal=, if numbers"):
        read(path, label="y")


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


def test_text__first_file_of_a_directory_decides_in_doubt(tmp_path):
    written(tmp_path / "1.csv", "a;y\n1;x\n")
    written(tmp_path / "2.csv", "a;y\n2;x,y\n3;u,v\n")
    assert read(tmp_path, label="y") == (("a",), [[1], [2], [3]], ["x", "x,y", "u,v"])


def test_text__what_is_unusual_is_logged(tmp_path, caplog):
    caplog.set_level(logging.INFO, "dask_nrbfn")
    open_source(written(tmp_path / "usual.csv", "a,b\n1,2\n"))
    open_source(written(tmp_path / "usual.tsv", "a\tb\n1\t2\n"))
    assert not caplog.messages
    path = written(tmp_path / "d.csv", "a;b\n1;'2'\n", "utf-16")
    open_source(path)
    assert caplog.messages == [f"ingest: {path} has ';' between cells, ' around text, utf-16"]


@pytest.mark.parametrize("spoil", ["cut", "flip", "plain"])
def test_text__damaged_zst(tmp_path, spoil):
    text = "a,y\n" + "".join(f"{value},1\n" for value in np.random.default_rng(0).normal(size=9000))
    path = written(tmp_path / "d.csv.zst", text)
    packed = bytearray(path.read_bytes())
    packed[len(packed) // 2] ^= 255 * (spoil == "flip")
    content = {"cut": packed[:-300], "flip": packed, "plain": text.encode()}[spoil]
    path.write_bytes(content)
    # A flipped byte may also show first as a line of another length.
    with pytest.raises((DamagedDataError, DataError), match=r"d.csv.zst"):
        list(open_source(path, label="y").blocks(100))


def test_text__of_another_encoding_than_said(tmp_path):
    path = written(tmp_path / "d.csv", "a,y\n1,é\n", "latin-1")
    with pytest.raises(DamagedDataError, match=r"cannot be read as CSV: .*say its encoding, such"):
        open_source(path, label="y")
    with pytest.raises(DamagedDataError, match=r"cannot be read as CSV: 'ascii' codec"):
        open_source(path, label="y", encoding="ascii")


@pytest.mark.parametrize(
    "options", [{"delimiter": ";"}, {"no_header": True}, {"encoding": "latin-1"}]
)
def test_text__dialect_is_of_csv_alone(tmp_path, options):
    np.save(tmp_path / "d.npy", np.zeros((2, 2)))
    (name,) = options
    with pytest.raises(ParameterError, match=rf"{name}=.* does not go with .*npy"):
        open_source(tmp_path / "d.npy", **options)


def test_ingest__a_table_as_it_is_found(tmp_path):
    path = written(tmp_path / "d.csv.zst", "1,5; <=50K\n2,5; >50K\n", "latin-1")
    options = {"label": "column_1", "decimal": ",", "no_header": True, "encoding": "latin-1"}
    dataset = ingest_file(path, tmp_path / "d.zarr", **options)
    assert (dataset.n_rows, dataset.feature_names) == (2, ("column_0",))
    assert list(dataset.classes) == ["<=50K", ">50K"]


@given(
    rows=st.lists(
        st.lists(st.tuples(st.text('a, \n"', max_size=5), st.integers(0, 3)), min_size=1),
        min_size=1,
        max_size=4,
    ),
    sizes=st.lists(st.integers(1, 6)),
)
def test_unpadding__any_division_gives_the_text_without_the_spaces(rows, sizes):
    cells = [[('"' + text.replace('"', '""') + '"', n) for text, n in row] for row in rows]
    padded, bare = (
        "\n".join(
            ",".join(" " * (n * kept * (i + j > 0)) + cell for j, (cell, n) in enumerate(row))
            for i, row in enumerate(cells)
        )
        for kept in (1, 0)
    )
    stream, unpad, found = io.BytesIO(padded.encode()), _Unpadding(Dialect(padded=True)), b""
    for piece in (*(stream.read(size) for size in sizes), stream.read(), b""):
        found += unpad(pa.py_buffer(piece))
    assert found == bare.encode()
