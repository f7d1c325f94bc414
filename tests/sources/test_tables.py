"""Tables: what is stored of files and directories, whatever reads them."""

import gzip
import logging

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import feather, parquet
from zarr.storage import MemoryStore

from dask_nrbfn.commands.ingest import ingest_file
from dask_nrbfn.errors import DamagedDataError, DataError, NRBFNError, ParameterError

N = 37


def people():
    """Return rows of a fraction, a category, a date and a label."""
    rng = np.random.default_rng(0)
    columns = {
        "size": rng.normal(size=N),
        "town": rng.choice(["Bonn", "Köln"], N),
        "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(N), "D"),
        "y": [f"k{row % 3}" for row in range(N)],
    }
    return pd.DataFrame(columns)


def as_csv(table, path):
    separator = "\t" if ".tsv" in path.name else ","
    text = table.to_csv(index=False, sep=separator).encode()
    if path.suffix == ".gz":
        text = gzip.compress(text)
    elif path.suffix == ".zst":
        text = pa.compress(text, "zstd", asbytes=True)
    path.write_bytes(text)


def as_parquet(table, path):
    table.to_parquet(path, index=False, row_group_size=8)


def as_feather(table, path):
    feather.write_feather(table, path, chunksize=5)


def in_files(table, path):
    """Write files whose names are in the order of the rows, with columns in another order."""
    path.mkdir()
    for part, rows in enumerate(np.array_split(np.arange(N), 3)):
        columns = table.columns[:: -1 if part else 1]
        as_parquet(table.iloc[rows][columns], path / f"part-{part}.parquet")


def in_csv_files(table, path):
    path.mkdir()
    for part, rows in enumerate(np.array_split(np.arange(N), 3)):
        as_csv(table.iloc[rows], path / f"part-{part}.csv")


FORMS = {
    "d.tsv": as_csv,
    "d.csv.gz": as_csv,
    "d.csv.zst": as_csv,
    "d.parquet": as_parquet,
    "d.feather": as_feather,
    "parquet files": in_files,
    "csv files": in_csv_files,
}


def ingest(path, **options):
    return ingest_file(path, MemoryStore(), **options)


def ingest_text(tmp_path, text, *, name="d.csv", **options):
    path = tmp_path / name
    path.write_text(text)
    return ingest(path, **options)


def rows_of(dataset):
    return dataset.take(np.arange(dataset.n_rows))


def labels_of(dataset):
    return dataset.classes[dataset.codes()].tolist()


@pytest.mark.parametrize("chunk_rows", [5, None])
@pytest.mark.parametrize(("name", "write"), FORMS.items(), ids=FORMS)
def test_forms__store_the_same_rows(tmp_path, name, write, chunk_rows):
    as_csv(people(), tmp_path / "expected.csv")
    options = {"label": "y", "chunk_rows": chunk_rows}
    expected = ingest(tmp_path / "expected.csv", **options)
    write(people(), tmp_path / name)
    found = ingest(tmp_path / name, **options)
    assert (found.fingerprint, found.feature_names) == (
        expected.fingerprint,
        expected.feature_names,
    )
    assert labels_of(found) == people()["y"].tolist()


def test_forms__keys_of_directories_are_columns(tmp_path):
    table = people().assign(year=np.repeat([2023, 2024], [9, N - 9]))
    table.to_parquet(tmp_path / "rows", partition_cols=["year"])
    dataset = ingest(tmp_path / "rows", label="y", columns="size,year")
    np.testing.assert_array_equal(rows_of(dataset), table[["size", "year"]])


def test_kinds__numbers_categories_dates_and_booleans(tmp_path):
    dataset = ingest_text(
        tmp_path,
        "n,c,t,d,y\n1.5,b,true,1970-01-02,u\n-2,a,false,1970-01-03 12:00:00,v\n",
        label="y",
    )
    kinds = {column.name: column.kind for column in dataset.schema.columns}
    assert kinds == {"n": "number", "c": "category", "t": "boolean", "d": "date"}
    # Category c has a feature each for a and b, a date has days since 1970 before its seasons.
    expected = [[1.5, 0, 1, 1, 1], [-2, 1, 0, 0, 2.5]]
    np.testing.assert_array_equal(rows_of(dataset)[:, :5], expected)


GAPS = "a,b,c\n1,x,0.5\n,x,0.5\n4,,0.5\n9,y,0.5\n"


def test_gaps__of_all_columns_are_in_one_error(tmp_path):
    with pytest.raises(DataError, match=r"no value in some rows of 2 columns: 'a' 1, 'b' 1\."):
        ingest_text(tmp_path, GAPS)


def test_gaps__are_filled_with_the_median_and_have_an_indicator(tmp_path):
    dataset = ingest_text(tmp_path, GAPS, missing="impute", columns="a,c")
    np.testing.assert_array_equal(
        rows_of(dataset), [[1, 0, 0.5], [4, 1, 0.5], [4, 0, 0.5], [9, 0, 0.5]]
    )


def test_gaps__drop_rows(tmp_path):
    dataset = ingest_text(tmp_path, GAPS, missing="drop", columns="a,b")
    np.testing.assert_array_equal(rows_of(dataset), [[1, 1, 0], [9, 0, 1]])


def test_cell__that_is_no_number_is_named_by_line_and_column(tmp_path):
    text = "a,b\n" + "1.5,2\n" * 100_100 + "2.5,tall\n"
    with pytest.raises(DataError, match=r"'b'.*'tall'.* line 100102"):
        ingest_text(tmp_path, text, numeric="b")


@pytest.mark.parametrize(
    ("cells", "labels"),
    [
        (["3", "-1"], [3, -1]),
        (["1.0", "2.0"], [1, 2]),
        (["u", "v, w"], ["u", "v, w"]),
        (["true", "false"], [True, False]),
        (["yes", "no"], ["yes", "no"]),
    ],
)
def test_labels__of_csv(tmp_path, cells, labels):
    text = "a,y\n" + "".join(f'{row},"{cell}"\n' for row, cell in enumerate(cells))
    assert labels_of(ingest_text(tmp_path, text, label="y")) == labels


def test_labels__fraction_is_no_class(tmp_path):
    with pytest.raises(DataError, match=r"'y' of .* has the label 0\.5"):
        ingest_text(tmp_path, "a,y\n1,1\n2,0.5\n", label="y")


@pytest.mark.parametrize("ids", [["7", "-3"], ["u7", "u3"]])
def test_ids__are_kept_as_they_are(tmp_path, ids):
    text = f"i,a\n{ids[0]},1\n{ids[1]},2\n"
    dataset = ingest_text(tmp_path, text, id="i")
    assert list(map(str, dataset.ids[:])) == ids
    assert dataset.feature_names == ("a",)


ROLES = "a,b,w,t,y\n1,2,0.5,3,u\n4,5,1.5,6,v\n"


@pytest.mark.parametrize(
    ("options", "features"),
    [
        ({"label": "y", "drop": "w,t"}, ("a", "b")),
        ({"label": "y", "columns": "b,a"}, ("a", "b")),
        ({"target": "t", "weights": "w", "drop": "y"}, ("a", "b")),
    ],
)
def test_roles__columns_with_a_role_are_no_features(tmp_path, options, features):
    dataset = ingest_text(tmp_path, ROLES, **options)
    assert dataset.feature_names == features
    (block,) = dataset.blocks(0, 2, 2)
    if "target" in options:
        assert (block.targets.tolist(), block.weights.tolist()) == ([[3], [6]], [0.5, 1.5])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"label": "z"}, DataError, r"has no column 'z'; it has 'a', .* with label"),
        ({"drop": ("z",)}, DataError, r"has no column 'z'.* with drop"),
        ({"label": "y", "weights": "y"}, ParameterError, "weights=y also has another role"),
        ({"label": "y", "categorical": "y"}, ParameterError, "categorical=y also has another"),
        ({"label": "y", "target": "t"}, ParameterError, "label and target are both given"),
        ({"numeric": "a", "date": "a"}, ParameterError, "numeric and date both name 'a'"),
        ({"target": "t,t"}, ParameterError, "names 't' twice"),
        ({"weights": "y"}, DataError, "'y' of .* has 'u' in line 2"),
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


def test_categories__text_that_differs_in_every_row_is_left_out(tmp_path, caplog):
    text = "a,note\n" + "".join(f"{row / 8},n{row}\n" for row in range(120))
    with caplog.at_level(logging.INFO, "dask_nrbfn"):
        dataset = ingest_text(tmp_path, text)
    assert dataset.feature_names == ("a",)
    assert "note is left out" in caplog.text


def test_categories__the_most_frequent_have_a_feature_each(tmp_path):
    dataset = ingest_text(tmp_path, "c\nb\nb\na\na\nz\n", max_categories=2)
    column = dataset.schema.columns[0]
    assert (column.categories, column.others) == (("a", "b"), True)


def test_index__that_pandas_wrote_is_no_feature(tmp_path):
    table = people()[["size", "town", "y"]]
    table.to_csv(tmp_path / "d.csv")
    table.set_index(pd.Index(np.arange(N) + 7)).to_parquet(tmp_path / "d.parquet")
    for name in ("d.csv", "d.parquet"):
        columns = ingest(tmp_path / name, label="y").schema.columns
        assert [column.name for column in columns] == ["size", "town"]


def test_schema__of_a_dataset_reads_other_files_by_name(tmp_path, caplog):
    schema = ingest_text(tmp_path, "a,c,y\n1,p,u\n2,q,v\n", label="y").schema
    with caplog.at_level(logging.INFO, "dask_nrbfn"):
        dataset = ingest_text(tmp_path, "z,y,c,a\n0,v,q,5\n0,u,new,6\n", schema=schema)
    np.testing.assert_array_equal(rows_of(dataset), [[5, 0, 1], [6, 0, 0]])
    assert labels_of(dataset) == ["v", "u"]
    assert "column c: 1 row has a value that training did not have: 'new'" in caplog.text
    with pytest.raises(DataError, match="has no column 'a'; it has 'c', 'y'"):
        ingest_text(tmp_path, "c,y\np,u\n", schema=schema)


@pytest.mark.parametrize("value_type", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("length", [-1, 3], ids=["any length", "fixed length"])
def test_lists__elements_are_features(tmp_path, value_type, length):
    X = np.random.default_rng(0).integers(-99, 99, (N, 3))
    lists = pa.array(X.tolist(), pa.list_(value_type, length))
    parquet.write_table(pa.table({"e": lists, "y": np.arange(N) % 2}), tmp_path / "d.parquet")
    dataset = ingest(tmp_path / "d.parquet", x="e", label="y")
    assert dataset.feature_names == ("e_0", "e_1", "e_2")
    np.testing.assert_array_equal(rows_of(dataset), X)


@pytest.mark.parametrize("last", [[1.0], None, [1.0, None]])
def test_lists__of_another_length_or_without_values_are_refused(tmp_path, last):
    columns = {"e": [[0.0, 1.0]] * 9 + [last]}
    parquet.write_table(pa.table(columns), tmp_path / "d.parquet")
    with pytest.raises(DataError, match=r"Column 'e"):
        ingest(tmp_path / "d.parquet", x="e")


@pytest.mark.parametrize("text", ["", "a,b\n"])
def test_empty__files_are_refused(tmp_path, text):
    with pytest.raises(DataError, match=r"d\.csv is empty"):
        ingest_text(tmp_path, text)


def test_empty__label_alone_is_no_table(tmp_path):
    with pytest.raises(DataError, match="it has no feature columns"):
        ingest_text(tmp_path, "y\nu\nv\n", label="y")


def test_directory__of_two_suffixes_is_refused(tmp_path):
    for name in ("a.csv", "b.txt"):
        (tmp_path / name).write_text("a\n1\n")
    with pytest.raises(DataError, match=r"files of several suffixes: \.csv, \.txt"):
        ingest(tmp_path)


def test_directory__files_of_other_columns_are_refused(tmp_path):
    for name, columns in (("1.parquet", ["size", "y"]), ("2.parquet", ["y"])):
        as_parquet(people()[columns], tmp_path / name)
    with pytest.raises(DataError, match=r"2\.parquet has no column 'size'"):
        ingest(tmp_path, label="y")


@pytest.mark.parametrize("name", ["d.parquet", "d.csv.gz", "d.csv.zst", "d.feather"])
@pytest.mark.parametrize("damage", ["cut", "garbage"])
def test_damage__gives_an_error_and_no_dataset(tmp_path, name, damage):
    path, write = tmp_path / name, FORMS[name]
    write(pd.concat([people()] * 99), path)
    content = path.read_bytes()
    path.write_bytes(b"neither" * 99 if damage == "garbage" else content[: len(content) // 2])
    # A cut text may first show as a row of another length.
    with pytest.raises((DamagedDataError, DataError), match=rf"d\.{name[2:]}") as caught:
        ingest_file(path, tmp_path / "data", label="y")
    assert isinstance(caught.value, NRBFNError)
    assert not (tmp_path / "data").exists()
