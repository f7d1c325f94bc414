"""Tables whose columns have types: Arrow files, directories that are keys, columns of lists."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, ipc
from pyarrow import parquet as arrow_parquet

from dask_nrbfn.errors import DamagedDataError, DataError, ParameterError
from dask_nrbfn.sources import open_source
from dask_nrbfn.sources.dtypes import INT64, STRING
from dask_nrbfn.sources.survey import TableOptions
from tests.sources.collected import collect

N = 37


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    columns = {"a": rng.normal(size=N), "kind": [f"k{i % 3}" for i in range(N)], "b": np.arange(N)}
    return pa.table(columns)


def write(table, path, rows=8):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        arrow_parquet.write_table(table, path, row_group_size=rows)
    elif path.suffix == ".feather":
        feather.write_feather(table, path, chunksize=rows)
    else:
        new = ipc.new_stream if path.suffix == ".arrows" else ipc.new_file
        with new(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=rows)
    return path


def rows_of(table, names):
    return np.column_stack([table[name].to_numpy() for name in names])


@pytest.mark.parametrize("block_rows", [1, 5, 100])
@pytest.mark.parametrize("suffix", ["arrow", "arrows", "feather", "ARROW"])
def test_arrow__rows_are_those_of_the_table(tmp_path, table, suffix, block_rows):
    source = open_source(write(table, tmp_path / f"d.{suffix}"), label="kind")
    assert (source.n_rows, source.feature_names) == (N, ("a", "b"))
    assert (source.x_dtype, source.y_dtype) == (np.float64, STRING)
    X, y = collect(source, block_rows)
    np.testing.assert_array_equal(X, rows_of(table, ["a", "b"]))
    assert y.tolist() == table["kind"].to_pylist()


@pytest.mark.parametrize("suffix", ["arrow", "feather"])
def test_arrow__files_side_by_side_are_one_table(tmp_path, table, suffix):
    write(table[:10], tmp_path / "rows" / f"1.{suffix}")
    write(table[10:].select(["b", "kind", "a"]), tmp_path / "rows" / f"2.{suffix}")
    X, y = collect(open_source(tmp_path / "rows", label="kind"), 4)
    np.testing.assert_array_equal(X, rows_of(table, ["a", "b"]))
    assert y.tolist() == table["kind"].to_pylist()


@pytest.mark.parametrize("suffix", ["arrow", "arrows"])
def test_arrow__damage_is_found(tmp_path, table, suffix):
    path = tmp_path / f"d.{suffix}"
    path.write_bytes(b"neither of these" * 50)
    with pytest.raises(DamagedDataError, match=rf"d.{suffix} cannot be read as Arrow"):
        open_source(path)
    content = write(table, path).read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])
    with pytest.raises(DamagedDataError, match=rf"d.{suffix} cannot be read as Arrow"):
        open_source(path)


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_keys__of_directories_are_columns(tmp_path, table, suffix, caplog):
    caplog.set_level("INFO", "dask_nrbfn")
    for year, month, rows in (
        (2023, "11", table[:9]),
        (2023, "2", table[9:20]),
        (2024, "1", table[20:]),
    ):
        write(rows, tmp_path / f"year={year}" / f"month={month}" / f"part.{suffix}")
    (tmp_path / "_delta_log").mkdir()
    source = open_source(tmp_path, label="kind")
    assert source.feature_names == ("a", "b", "year", "month")
    X, y = collect(source)
    np.testing.assert_array_equal(X[:, :2], rows_of(table, ["a", "b"]))
    years_months = np.repeat([[2023, 11], [2023, 2], [2024, 1]], [9, 11, 17], axis=0)
    np.testing.assert_array_equal(X[:, 2:], years_months)
    assert y.tolist() == table["kind"].to_pylist()
    assert "columns year, month are from the names of directories" in caplog.text


def test_keys__column_of_the_file_is_the_better_one(tmp_path):
    write(pa.table({"a": [1.0], "zip": ["01"]}), tmp_path / "zip=01" / "d.parquet")
    source = open_source(tmp_path, label="zip")
    assert collect(source)[1].tolist() == ["01"]


def test_keys__are_the_same_of_all_files(tmp_path, table):
    for place in ("month=1", "year=1"):
        write(table, tmp_path / place / "d.parquet")
    with pytest.raises(DataError, match=r"year=1.* has no column 'month', which .*month=1.* has"):
        open_source(tmp_path)


def test_keys__of_text_files_are_refused(tmp_path):
    (tmp_path / "year=2024").mkdir()
    (tmp_path / "year=2024" / "d.csv").write_text("a\n1\n")
    with pytest.raises(DataError, match=r"has a subdirectory, year=2024\. .*Parquet and Arrow f"):
        open_source(tmp_path)


LISTS = [
    pa.list_(pa.float32()),
    pa.list_(pa.float16(), 3),
    pa.large_list(pa.float64()),
    pa.list_(pa.int8()),
]


@pytest.mark.parametrize("dtype", LISTS, ids=str)
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_lists__elements_are_features(tmp_path, dtype, suffix):
    X = np.random.default_rng(0).integers(-99, 99, (N, 3))
    columns = {"e": pa.array(X.tolist(), dtype), "y": np.arange(N), "id": ["x"] * N}
    path = write(pa.table(columns), tmp_path / f"d.{suffix}")
    source = open_source(path, x="e", label="y")
    stored = {"int8": INT64, "halffloat": "f2", "float": "f4", "double": "f8"}
    assert source.feature_names == ("e_0", "e_1", "e_2")
    assert source.x_dtype == stored[str(dtype.value_type)]
    values, y = collect(source, 7)
    np.testing.assert_array_equal(values, X)
    np.testing.assert_array_equal(y, np.arange(N))


def test_lists__other_columns_that_are_named_are_features_too(tmp_path):
    columns = {"a": [1.0], "e": [[2.0, 3.0]], "b": [4], "f": [[5.0]]}
    path = write(pa.table(columns), tmp_path / "d.parquet")
    source = open_source(path, x="f,e,b")
    assert source.feature_names == ("e_0", "e_1", "b", "f_0")
    assert collect(source)[0].tolist() == [[2, 3, 4, 5]]


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ([1.0], r"Column 'e' of .* has a list of length 1 in row 9 \(the first is 0\), but"),
        (None, r"Column 'e_0' of .* has no value in row 9"),
        ([1.0, None], r"Column 'e_1' of .* has no value in row 9"),
        ([1.0, np.inf], r"Column 'e_1' of .* has inf in row 9"),
    ],
)
def test_lists__wrong_row_is_named(tmp_path, last, message):
    path = write(pa.table({"a": range(10), "e": [[0.0, 1.0]] * 9 + [last]}), tmp_path / "d.parquet")
    with pytest.raises(DataError, match=message):
        list(open_source(path, x="e,a").blocks(4))


@pytest.mark.parametrize("first", [None, []])
def test_lists__first_tells_the_length(tmp_path, first):
    path = write(pa.table({"e": [first, [1.0]]}), tmp_path / "d.parquet")
    with pytest.raises(DataError, match=r"Column 'e' of .* has no value in its first row"):
        open_source(path, x="e")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, DataError, r"has type list<.* which cannot be a feature.*with x\."),
        (
            {"x": "s"},
            DataError,
            r"Column 's' of .* has type list<.*, which is not a list",
        ),
        ({"x": "u"}, DataError, r"has no column 'u'"),
        ({"x": "e", "label": "e"}, DataError, r"has no column 'e'; it has 'e_0'"),
        ({"x": "e,e"}, ParameterError, r"x=e,e names 'e' twice"),
    ],
)
def test_lists__what_cannot_be_features(tmp_path, options, error, message):
    path = write(pa.table({"e": [[1.0]], "s": [["x"]]}), tmp_path / "d.parquet")
    with pytest.raises(error, match=message):
        open_source(path, **options)


@pytest.mark.parametrize(
    ("types", "carried"),
    [((pa.int32(), pa.float64()), pa.float64()), ((pa.null(), pa.string()), pa.string())],
)
def test_carried__files_of_several_types(tmp_path, types, carried):
    for place, arrow in enumerate(types):
        rows = pa.table({"a": [1.0, 2.0], "b": pa.nulls(2, arrow)})
        write(rows, tmp_path / "d" / f"{place}.parquet")
    kept = open_source(tmp_path / "d", table=TableOptions(drop=("b",)))
    assert kept.carried(["b"]).read_all().schema.field("b").type == carried


def test_carried__types_that_do_not_go_together(tmp_path):
    for place, cells in enumerate((["x"], [1])):
        write(pa.table({"a": [1], "b": cells}), tmp_path / "d" / f"{place}.parquet")
    source = open_source(tmp_path / "d")
    with pytest.raises(DataError, match=r"'b' of .* incompatible types: string, int64"):
        source.carried(["b"])
