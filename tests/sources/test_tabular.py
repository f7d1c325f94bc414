import decimal
import gzip
import io
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import feather
from pyarrow import parquet as arrow_parquet

from dask_nrbfn.errors import DamagedDataError, DataError, ParameterError
from dask_nrbfn.sources import columnar, delimited, open_source
from dask_nrbfn.sources.dtypes import INT64, STRING, label_of_text
from dask_nrbfn.sources.survey import TableOptions
from tests.sources.collected import collect, weights_of

N = 37
BLOCK_ROWS = [1, 5, N, 100]


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {"a": rng.normal(size=N), "kind": [f"k{i % 3}" for i in range(N)], "b": np.arange(N) * 1.0}
    )


def write(table, path):
    if path.suffix == ".parquet":
        table.to_parquet(path, index=False, row_group_size=8)
    else:
        delimiter = "\t" if ".tsv" in path.name.lower() else ","
        table.to_csv(path, index=False, sep=delimiter)


def csv_of(tmp_path, text, name="d.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def small_batches(monkeypatch, n_bytes):
    monkeypatch.setattr(delimited, "TEXT_BYTES", n_bytes)
    monkeypatch.setattr(delimited, "LINES_PER_BATCH", 2)


@pytest.mark.fast_cases(12)
@pytest.mark.parametrize("block_rows", BLOCK_ROWS)
@pytest.mark.parametrize(
    "name", ["d.csv", "d.csv.gz", "D.CSV", "d.tsv", "d.tsv.gz", "D.TSV", "d.parquet"]
)
def test_table__rows_equal_the_frame(tmp_path, table, name, block_rows):
    write(table, tmp_path / name)
    source = open_source(tmp_path / name, label="kind")
    assert (source.n_rows, source.n_features, source.feature_names) == (N, 2, ("a", "b"))
    assert (source.x_dtype, source.y_dtype) == (np.float64, STRING)
    X, y = collect(source, block_rows)
    np.testing.assert_array_equal(X, table[["a", "b"]])
    assert y.tolist() == table["kind"].tolist()


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_table__without_label_all_columns_are_features(tmp_path, table, suffix):
    write(table[["a", "b"]], tmp_path / f"d{suffix}")
    source = open_source(tmp_path / f"d{suffix}")
    X, y = collect(source)
    assert (source.feature_names, y) == (("a", "b"), None)
    np.testing.assert_array_equal(X, table[["a", "b"]])


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_table__directory_is_read_by_name_whatever_the_order_of_columns(tmp_path, table, suffix):
    write(table[:10], tmp_path / f"part-1{suffix}")
    write(table[10:11][["b", "kind", "a"]], tmp_path / f"part-2{suffix}")
    write(table[11:], tmp_path / f"part-3{suffix}")
    (tmp_path / ".part-0.crc").write_text("x")
    (tmp_path / "_SUCCESS").touch()
    X, y = collect(open_source(tmp_path, label="kind"), 4)
    np.testing.assert_array_equal(X, table[["a", "b"]])
    assert y.tolist() == table["kind"].tolist()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4), block_rows=st.integers(1, 12))
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_table__any_division_into_files_gives_the_same_rows(
    tmp_path_factory, suffix, sizes, block_rows
):
    n = sum(sizes)
    table = pd.DataFrame({"a": np.arange(n) / 7, "y": np.arange(n)})
    directory = tmp_path_factory.mktemp("parts")
    stops = np.cumsum([0, *sizes])
    for i, (start, stop) in enumerate(pairwise(stops)):
        write(table[start:stop], directory / f"{i}{suffix}")
    X, y = collect(open_source(directory, label="y"), block_rows)
    np.testing.assert_array_equal(X[:, 0], table["a"])
    np.testing.assert_array_equal(y, table["y"])


@pytest.mark.parametrize("batch_bytes", [40, 64, 100])
def test_csv__many_small_batches(tmp_path, table, monkeypatch, batch_bytes):
    monkeypatch.setattr(columnar, "BATCH_BYTES", batch_bytes)
    small_batches(monkeypatch, batch_bytes)
    for suffix in (".csv", ".parquet"):
        write(table, tmp_path / f"d{suffix}")
        X, y = collect(open_source(tmp_path / f"d{suffix}", label="kind"))
        np.testing.assert_array_equal(X, table[["a", "b"]])
        assert y.tolist() == table["kind"].tolist()


@pytest.mark.parametrize(
    ("labels", "dtype"),
    [
        (["3", "-1", "0"], INT64),
        (["9223372036854775807", "-9223372036854775808"], INT64),
        (["-0", "1"], STRING),
        (["+1", "-1", " 1"], INT64),
        (["-0.0", "1e2", "9007199254740993"], INT64),
        (["true", "FALSE", "True", "1"], INT64),
        (["true", "maybe"], STRING),
        (["1.0", "x"], STRING),
        (["NA", "null"], STRING),
        (["é", '"with, comma"'], STRING),
    ],
)
def test_csv__label_type(tmp_path, labels, dtype):
    path = csv_of(tmp_path, "a,y\n" + "".join(f"1,{label}\n" for label in labels))
    source = open_source(path, label="y")
    assert source.y_dtype == dtype
    _, y = collect(source)
    bare = [label.strip('"') for label in labels]
    truth = {"true": 1, "True": 1, "FALSE": 0}
    numbers = [truth[label] if label in truth else label_of_text(label) for label in bare]
    assert y.tolist() == (numbers if dtype == INT64 else bare)


@pytest.mark.parametrize("label", ["0.5", "nan", "-inf", "9223372036854775808", "1e300"])
@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_csv__number_that_is_no_label_is_named_by_its_line(tmp_path, label, suffix):
    delimiter = "," if suffix == ".csv" else "\t"
    text = f"a,y\n1,1\n\n2,2\n3,{label}\n".replace(",", delimiter)
    path = csv_of(tmp_path, text, f"d{suffix}")
    with pytest.raises(DataError) as caught:
        open_source(path, label="y")
    assert caught.value.problem == f"Column 'y' of {path} has the label {label} in line 5."
    assert "give the classes names" in caught.value.remedy


def test_csv__empty_cells_and_blank_lines(tmp_path):
    path = csv_of(tmp_path, "\ufeffa,b,y\r\n1,3,0\r\n\r\n0, 2,1\r\n")
    X, y = collect(open_source(path, label="y"))
    np.testing.assert_array_equal(X, [[1, 3], [0, 2]])
    assert y.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("cell", "has"), [("", "no value"), ("NaN", "no value"), ("-inf", "-inf"), ("1e999", "inf")]
)
@pytest.mark.parametrize(("suffix", "batch_bytes"), [(".csv", 40), (".csv.gz", 1000), (".tsv", 40)])
def test_csv__value_that_is_not_finite_is_named(
    tmp_path, monkeypatch, suffix, cell, has, batch_bytes
):
    small_batches(monkeypatch, batch_bytes)
    lines = ["a,y,b", *[f'{i},"x, \n",{i}' for i in range(9)], "", f"9,x,{cell}", "10,x,10", ""]
    text = "\n".join(lines)
    if suffix == ".tsv":
        text = text.replace(",", "\t")
    content = gzip.compress(text.encode()) if suffix == ".csv.gz" else text
    path = csv_of(tmp_path, content, f"d{suffix}")
    with pytest.raises(DataError) as caught:
        list(open_source(path, label="y").blocks(100))
    # Nine rows of two lines each and an empty line follow the header.
    assert caught.value.problem == f"Column 'b' of {path} has {has} in line 21."
    remedy = "Pass missing='impute' to fill" if has == "no value" else "write a finite value"
    assert remedy in caught.value.remedy


def test_csv__empty_line_of_one_column_is_a_row(tmp_path):
    path = csv_of(tmp_path, "a\n1\n\n3\n")
    with pytest.raises(DataError, match=r"Column 'a' of .* has no value in line 3"):
        open_source(path)
    assert open_source(path, table=TableOptions(missing="impute")).n_rows == 3


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize(
    ("suffix", "label", "batch_bytes"),
    [(".csv", None, 60), (".csv", "y", 100_000), (".csv.gz", "y", 60), (".csv.gz", None, 100_000)],
)
def test_csv__quote_that_is_left_open_is_named_by_its_line(
    tmp_path, monkeypatch, suffix, label, batch_bytes, end
):
    small_batches(monkeypatch, batch_bytes)
    rows = [f'{i},"a ""quoted"" word"' for i in range(50)]
    rows += ['50,"open']
    rows += [f"{i},x" for i in range(51, 200)]
    text = ("a,y\n" + "\n".join(rows) + end).encode()
    path = csv_of(tmp_path, gzip.compress(text) if suffix == ".csv.gz" else text, f"d{suffix}")
    with pytest.raises(DataError) as caught:
        open_source(path, label=label)
    assert caught.value.problem == f"{path} ends inside a quote that opens in line 52."


@pytest.mark.parametrize("batch_bytes", [40, 1000])
def test_csv__cells_of_several_lines(tmp_path, monkeypatch, batch_bytes):
    small_batches(monkeypatch, batch_bytes)
    labels = [f'of {i}\nlines, "say"' for i in range(40)]
    table = pd.DataFrame({"a": np.arange(40.0), "y": labels})
    write(table, tmp_path / "d.csv")
    X, y = collect(open_source(tmp_path / "d.csv", label="y"))
    np.testing.assert_array_equal(X[:, 0], table["a"])
    assert y.tolist() == labels


@pytest.mark.parametrize("cell", ["x" * 2000, '"' + "x\n" * 1000 + '"'])
def test_csv__row_that_is_too_long_is_named_by_its_line(tmp_path, monkeypatch, cell):
    monkeypatch.setattr(delimited, "TEXT_BYTES", 200)
    path = csv_of(tmp_path, f"a,y\n1,u\n2,{cell}\n3,v\n")
    with pytest.raises(DataError, match=r"has a row of more than 200 bytes in line 3\. Shorten"):
        open_source(path, label="y")


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("a,b\n1,2\n1,2,3\n", {}, r"line 3 of .* has 3 cells, but the first row has 2\."),
        ("a,b\n1,2\n1\n", {}, r"line 3 of .* has 1 cells, but the first row has 2\."),
        ("a,b\n", {}, "is empty: it has no rows"),
        ("a,a\n1,2\n", {}, "several columns named 'a'"),
        (",a\n3,2\n", {}, r"Column 1 of .* has no name"),
        ('a,"b\n1,2\n3,4\n', {}, "ends inside a quote that opens in line 1"),
        ('a,y\n1,x\n2,"y', {}, "ends inside a quote that opens in line 3"),
        ("a,y\n1,x\n2,\n", {"label": "y"}, r"Column 'y' of .* has no value in line 3\."),
        ("a,t\n1,2\n\n1,two\n", {"target": "t"}, r"'t' of .* has 'two' in line 4, which is not a"),
        ("w,a\n1,1\nabc,0\n", {"weights": "w"}, r"'w' of .* has 'abc' in line 3, which is not a"),
    ],
)
def test_csv__refused(tmp_path, text, options, message):
    with pytest.raises(DataError, match=message):
        open_source(csv_of(tmp_path, text), **options)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_table__label_alone_is_no_table(tmp_path, table, suffix):
    write(table[["kind"]], tmp_path / f"d{suffix}")
    with pytest.raises(DataError, match=r"is empty: it has no feature columns"):
        open_source(tmp_path / f"d{suffix}", label="kind")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_table__unknown_label_lists_columns(tmp_path, suffix):
    path = tmp_path / f"d{suffix}"
    write(pd.DataFrame({f"c{j}": [1.0] for j in range(12)}), path)
    with pytest.raises(DataError, match=r"no column 'y'; it has 'c0', .*'c9' and 2 more.*label"):
        open_source(path, label="y")


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_table__files_of_different_columns(tmp_path, table, suffix):
    write(table[["a", "b"]], tmp_path / f"1{suffix}")
    write(table[["a"]], tmp_path / f"2{suffix}")
    with pytest.raises(DataError, match=rf"2\{suffix} has no column 'b', which .*1\{suffix} has"):
        open_source(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        np.random.default_rng(0).bytes(3000),
        "a,y\n1,2\n".encode("utf-16-le"),
        "ä,y\n1,2\n".encode("latin-1"),
        b"a,y\n1,\xff\n",
    ],
)
def test_csv__garbage(tmp_path, content):
    with pytest.raises(DamagedDataError, match=r"d.csv cannot be read as CSV.*UTF-8"):
        open_source(csv_of(tmp_path, content), label="y")


@pytest.mark.parametrize("spoil", ["cut", "flip", "plain"])
def test_csv__damaged_gzip(tmp_path, spoil):
    rng = np.random.default_rng(0)
    text = "a,y\n" + "".join(f"{value},1\n" for value in rng.normal(size=20_000))
    packed = bytearray(gzip.compress(text.encode()))
    if spoil == "flip":
        packed[len(packed) // 2] ^= 255
    content = {"cut": packed[:-300], "flip": packed, "plain": text.encode()}[spoil]
    path = csv_of(tmp_path, bytes(content), "d.csv.gz")
    # A flipped byte may also show first as a line of another length.
    with pytest.raises((DamagedDataError, DataError), match=r"d.csv.gz"):
        list(open_source(path, label="y").blocks(100))


def parquet_of(tmp_path, columns, name="d.parquet", **options):
    arrow_parquet.write_table(pa.table(columns), tmp_path / name, **options)
    return tmp_path / name


@pytest.mark.parametrize(
    ("types", "stored"),
    [
        (["i1", "u4"], "i8"),
        (["u8", "i8"], "i8"),
        (["f2", "f4"], "f4"),
        (["f4", "i4"], "f8"),
        (["f4", "f8"], "f8"),
    ],
)
def test_parquet__common_type(tmp_path, types, stored):
    columns = {f"c{j}": np.array([0, 1, 1]).astype(dtype) for j, dtype in enumerate(types)}
    source = open_source(parquet_of(tmp_path, columns))
    assert source.x_dtype == stored
    np.testing.assert_array_equal(collect(source)[0], [[0, 0], [1, 1], [1, 1]])


def test_parquet__common_type_is_over_all_files(tmp_path):
    parquet_of(tmp_path, {"a": np.array([1, 2])}, "1.parquet")
    parquet_of(tmp_path, {"a": np.array([0.5])}, "2.parquet")
    np.testing.assert_array_equal(collect(open_source(tmp_path))[0], [[1], [2], [0.5]])


@pytest.mark.parametrize("dtype", [pa.float32(), pa.float64(), pa.decimal128(5, 2)])
@pytest.mark.parametrize(
    ("value", "has"), [(None, "no value"), (np.nan, "no value"), (np.inf, "inf")]
)
def test_parquet__value_that_is_not_finite_is_named(tmp_path, dtype, value, has):
    if pa.types.is_decimal(dtype) and value is not None:
        dtype = pa.float64()
    values = pa.array([1.0] * 8 + [value], pa.float64()).cast(dtype)
    path = parquet_of(tmp_path, {"y": [1] * 9, "a": [1.0] * 9, "f": values}, row_group_size=4)
    with pytest.raises(DataError) as caught:
        list(open_source(path, label="y").blocks(3))
    assert caught.value.problem == f"Column 'f' of {path} has {has} in row 8 (the first is 0)."


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (pa.array([*range(8), None]), {}, r"Column 'v' of .* has no value in row 8"),
        (pa.array([2**63], pa.uint64()), {}, r"Column 'v' of .* exceeds int64"),
        (pa.array([[1.0]]), {}, r"Column 'v' of .* type .*, which cannot be a feature"),
        (
            pa.array([{"inner": 1.0}]),
            {},
            r"Column 'v' of .* type .*, which cannot be a feature",
        ),
        (
            pa.array([0], pa.time32("s")),
            {},
            r"Column 'v' of .* type .*, which cannot be a feature",
        ),
        (pa.array([], pa.float64()), {}, "is empty: it has no rows"),
        (pa.array([0], pa.timestamp("s")), {"label": "v"}, "Label column 'v' of .* type timestamp"),
        (pa.array(["x"]), {"weights": "v"}, "'v' of .* has type string, which is not a number"),
        (pa.array([True]), {"weights": "v"}, r"dtype bool\. Write weights as integers"),
        (pa.array([1, 2, None]), {"weights": "v"}, r"Column 'v' of .* has no value in row 2"),
    ],
)
def test_parquet__refused(tmp_path, values, options, message):
    path = parquet_of(tmp_path, {"a": np.ones(len(values), dtype=int), "v": values})
    with pytest.raises(DataError, match=message):
        list(open_source(path, **options).blocks(2))


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        (pa.array([1, 0, 1], pa.uint8()), [1, 0, 1]),
        (pa.array([True, False, True]), [1, 0, 1]),
        (pa.array([1.0, -2.0, 3.0], pa.float32()), [1, -2, 3]),
        (pa.array([decimal.Decimal(i) for i in (1, -2, 3)]), [1, -2, 3]),
        (pa.array([1, 2, 1]).dictionary_encode(), [1, 2, 1]),
        (pa.array(["a", "é", ""]), ["a", "é", ""]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
    ],
)
def test_parquet__labels(tmp_path, values, labels):
    source = open_source(parquet_of(tmp_path, {"a": [1.0] * 3, "y": values}), label="y")
    assert source.y_dtype == (STRING if isinstance(labels[0], str) else INT64)
    assert collect(source, 2)[1].tolist() == labels


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pa.array([1.0, 2.5]), r"Column 'y' of .* has the label 2\.5 in row 1"),
        (pa.array([1.0, None]), "Column 'y' of .* has no value in row 1"),
        (pa.array(["a", None]), "Column 'y' of .* has no value in row 1"),
        (pa.array(["a", None]).dictionary_encode(), "Column 'y' of .* has no value in row 1"),
        (pa.array([1, 2**63], pa.uint64()), "has the label 9223372036854775808 in row 1"),
    ],
)
def test_parquet__bad_label_is_found_in_its_block(tmp_path, values, message):
    blocks = open_source(parquet_of(tmp_path, {"a": [1.0] * 2, "y": values}), label="y").blocks(1)
    assert len(next(blocks).y) == 1
    with pytest.raises(DataError, match=message):
        next(blocks)


def test_parquet__labels_of_two_types(tmp_path):
    parquet_of(tmp_path, {"a": [1.0], "y": [1]}, "1.parquet")
    parquet_of(tmp_path, {"a": [1.0], "y": ["x"]}, "2.parquet")
    with pytest.raises(DataError, match=r"Column 'y' has numbers in some .* text in others"):
        open_source(tmp_path, label="y")


@pytest.mark.parametrize("labels", [["u", "v"], [3, 5], [True, False]])
@pytest.mark.parametrize(
    "options", [{"table": TableOptions(missing="drop")}, {"unlabelled": ""}], ids=["drop", "kept"]
)
def test_parquet__file_of_a_directory_without_any_label(tmp_path, labels, options):
    for name, values in (("a", [None, None]), ("b", labels), ("c", [None])):
        table = pa.table({"x": np.arange(float(len(values))), "y": pa.array(values)})
        arrow_parquet.write_table(table, tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match=r"Label column 'y' of .* has type null"):
        open_source(tmp_path, label="y")
    source = open_source(tmp_path, label="y", **options)
    _, y = collect(source)
    assert source.boolean_labels == (labels == [True, False])
    none = [source.empty_label]
    assert y.tolist() == (labels if "table" in options else none * 2 + labels + none)


@pytest.mark.parametrize("index", [None, "id"])
def test_parquet__pandas_index_is_no_feature_but_may_be_the_label(tmp_path, index):
    frame = pd.DataFrame({"a": [1.0, 2.0]}, index=pd.Index([7, 9], name=index))
    frame.to_parquet(tmp_path / "d.parquet")
    assert open_source(tmp_path / "d.parquet").feature_names == ("a",)
    if index:
        source = open_source(tmp_path / "d.parquet", label=index)
        assert source.feature_names == ("a",)
        assert collect(source)[1].tolist() == [7, 9]


def test_parquet__garbage(tmp_path, table):
    path = tmp_path / "d.parquet"
    path.write_bytes(b"neither of these" * 50)
    with pytest.raises(DamagedDataError, match=r"d.parquet cannot be read as Parquet"):
        open_source(path)
    write(table, path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DamagedDataError, match=r"d.parquet cannot be read as Parquet"):
        open_source(path)


def test_parquet__damaged_page(tmp_path):
    values = np.random.default_rng(0).normal(size=5000)
    path = parquet_of(tmp_path, {"a": values}, compression="zstd", use_dictionary=False)
    stored = bytearray(path.read_bytes())
    stored[4:2000] = bytes(1996)
    path.write_bytes(stored)
    with pytest.raises(DamagedDataError, match=r"d.parquet cannot be read as Parquet"):
        list(open_source(path).blocks(1000))


def weighted(table):
    return table.assign(w=np.arange(N) + 0.5)[["w", "a", "kind", "b"]]


@pytest.mark.fast_cases(12)
@pytest.mark.parametrize("block_rows", BLOCK_ROWS)
@pytest.mark.parametrize("name", ["d.csv", "d.parquet"])
@pytest.mark.parametrize("labelled", [True, False])
def test_table__weights_are_no_feature(tmp_path, table, name, block_rows, labelled):
    frame = weighted(table) if labelled else weighted(table).drop(columns="kind")
    write(frame, tmp_path / name)
    source = open_source(tmp_path / name, label="kind" if labelled else None, weights="w")
    assert source.feature_names == ("a", "b")
    np.testing.assert_array_equal(weights_of(source, block_rows), frame["w"])
    X, y = collect(source, block_rows)
    np.testing.assert_array_equal(X, table[["a", "b"]])
    assert (None if y is None else y.tolist()) == (table["kind"].tolist() if labelled else None)


def numbered(table):
    return table.drop(columns="kind").assign(t=np.arange(N) / 8, u=np.arange(N))[["t", *"aub"]]


@pytest.mark.fast_cases(12)
@pytest.mark.parametrize("block_rows", BLOCK_ROWS)
@pytest.mark.parametrize("name", ["d.csv", "d.parquet"])
@pytest.mark.parametrize("targets", ["t", "u,t"])
def test_table__targets_are_no_features(tmp_path, table, name, block_rows, targets):
    frame = numbered(table)
    write(frame, tmp_path / name)
    source = open_source(tmp_path / name, target=targets)
    names = targets.split(",")
    assert (source.target_names, source.y_dtype) == (tuple(names), np.float64)
    features = [column for column in frame if column not in names]
    assert source.feature_names == tuple(features)
    X, y = collect(source, block_rows)
    np.testing.assert_array_equal(X, frame[features])
    np.testing.assert_array_equal(y, frame[names])


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("target", "names"), [('"t, in m",u', ["t, in m", "u"]), ('u, "t, in m"', ["u", "t, in m"])]
)
def test_table__target_whose_name_has_a_comma(tmp_path, table, suffix, target, names):
    frame = numbered(table).rename(columns={"t": "t, in m"})
    write(frame, tmp_path / f"d{suffix}")
    source = open_source(tmp_path / f"d{suffix}", target=target)
    assert source.target_names == tuple(names)
    np.testing.assert_array_equal(collect(source)[1], frame[names])


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "t,t"}, r"target=t,t names 't' twice"),
        ({"target": "a\nb"}, r"target='a\\nb' cannot be read as"),
        ({"target": "t,u", "weights": "u"}, r"weights=u also has another role"),
        ({"target": "t", "label": "u"}, r"label and target are both given"),
        ({"target": "t", "y": "u"}, r"y=u does not go with"),
    ],
)
def test_table__targets_that_are_not_named_well(tmp_path, table, suffix, options, message):
    write(numbered(table), tmp_path / f"d{suffix}")
    with pytest.raises(ParameterError, match=message):
        open_source(tmp_path / f"d{suffix}", **options)


@pytest.mark.parametrize(
    ("cell", "message"),
    [("nan", "has no value"), ("", "has no value"), ("-inf", "has -inf")],
)
def test_csv__target_that_is_not_finite_is_named_by_its_line(tmp_path, cell, message):
    csv_of(tmp_path, "a,s,t\n1,1,2\n", "1.csv")
    csv_of(tmp_path, f"a,s,t\n1,1,2\n\n1,1,{cell}\n", "2.csv")
    with pytest.raises(DataError, match=rf"Column 't' of .*2\.csv {message} in line 4\."):
        open_source(tmp_path, target="t,s")


STREAM = """
import sys
from dask_nrbfn.engine.measure import peak_resident_bytes
from dask_nrbfn.sources import open_source
list(open_source(sys.argv[1]).blocks(1000))
before = peak_resident_bytes()
rows = sum(len(block.X) for block in open_source(sys.argv[2]).blocks(10_000))
print(rows, (peak_resident_bytes() - before) // 1024)
"""


def packed(path):
    """Open a file to write text that is packed as its name says."""
    if path.suffix == ".gz":
        return gzip.open(path, "wt", 1)
    if path.suffix == ".zst":
        return io.TextIOWrapper(pa.CompressedOutputStream(str(path), "zstd"))
    return open(path, "w")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".csv.zst", ".parquet", ".feather"])
def test_table__memory_stays_far_below_the_file(tmp_path, suffix):
    n, p = 400_000, 50
    small, large = tmp_path / f"small{suffix}", tmp_path / f"large{suffix}"
    if suffix == ".parquet":
        columns = {f"c{j}": np.arange(n) + 0.5 for j in range(p)}
        arrow_parquet.write_table(pa.table(columns), large, row_group_size=n, use_dictionary=False)
        arrow_parquet.write_table(pa.table(columns)[:1000], small)
    elif suffix == ".feather":
        columns = {f"c{j}": np.arange(n) + 0.5 for j in range(p)}
        feather.write_feather(pa.table(columns), large, chunksize=10_000)
        feather.write_feather(pa.table(columns)[:1000], small)
    else:
        header, line = ",".join(f"c{j}" for j in range(p)), ",".join(["0.125"] * p)
        for path, n_lines in ((small, 1000), (large, n)):
            with packed(path) as file:
                file.write(f"{header}\n")
                for _ in range(n_lines // 1000):
                    file.write(f"{line}\n" * 1000)
    result = subprocess.run(
        [sys.executable, "-c", STREAM, str(small), str(large)],
        capture_output=True,
        text=True,
        check=True,
    )
    rows, grown_kib = map(int, result.stdout.split())
    assert rows == n
    # The features are 160 MB and the text 120 MB; a block is 4 MB, pyarrow holds 8 MiB of text.
    assert grown_kib * 1024 < 80e6
