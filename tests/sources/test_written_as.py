"""One table in every format: the same schema, the same content, the same rows."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import csv, dataset, feather, ipc
from pyarrow import parquet as arrow_parquet

from dask_nrbfn.commands.ingest import ingest_source
from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.schema import UNSEEN, Column, Schema
from dask_nrbfn.sources import open_source
from dask_nrbfn.sources.survey import TableOptions

N = 120


def table(gaps=True):
    """Return rows of all kinds, with an id, a label, weights and gaps."""
    rng = np.random.default_rng(0)
    days = np.datetime64("2024-01-01") + rng.integers(0, 900, N)
    columns = {
        "id": [f"u{i:04}" for i in range(N)],
        "age": rng.integers(18, 90, N),
        "income": rng.normal(size=N).round(3),
        "member": rng.random(N) < 0.5,
        "city": rng.choice([f"city {i}" for i in range(30)], N),
        "joined": days,
        "weight": rng.integers(1, 9, N) / 8,
        "label": rng.choice(["yes", "no"], N),
        "sex": rng.choice(["f", "m"], N),
    }
    filled = ("id", "weight", "label")
    return pa.table(
        {
            name: pa.array(
                values, mask=(rng.random(N) < 0.1) & gaps if name not in filled else None
            )
            for name, values in columns.items()
        }
    )


def with_text(rows, change):
    """Return the table with its columns of text changed."""
    columns = [change(column) if column.type == pa.string() else column for column in rows.columns]
    return pa.table(columns, names=rows.column_names)


def write_stream(rows, path):
    with ipc.new_stream(path, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=50)


def write_hive(rows, path):
    keys = dataset.partitioning(pa.schema([("sex", pa.string())]), flavor="hive")
    dataset.write_dataset(rows, path, format="parquet", partitioning=keys)


def write_csv(rows, path):
    csv.write_csv(rows, path, csv.WriteOptions(quoting_style="needed"))


WRITERS = {
    "d.csv": write_csv,
    "d.parquet": lambda rows, path: arrow_parquet.write_table(rows, path, row_group_size=50),
    "encoded.parquet": lambda rows, path: arrow_parquet.write_table(
        with_text(rows, pa.ChunkedArray.dictionary_encode), path
    ),
    "views.arrow": lambda rows, path: feather.write_feather(
        with_text(rows, lambda column: column.cast(pa.string_view())), str(path)
    ),
    "large.arrows": lambda rows, path: write_stream(
        with_text(rows, lambda column: column.cast(pa.large_string())), path
    ),
    "hive": write_hive,
}
ROLES = {"label": "label", "weights": "weight"}


@pytest.fixture(params=WRITERS)
def name(request):
    return request.param


def written(rows, tmp_path, name="d.parquet"):
    WRITERS[name](rows, tmp_path / name)
    return tmp_path / name


@pytest.mark.fast_cases(6)
@pytest.mark.parametrize("missing", ["impute", "drop"])
def test_formats__have_one_schema_and_one_content(tmp_path, name, missing):
    options = TableOptions(id="id", missing=missing, max_categories=5)
    opened = {
        each: open_source(written(table(), tmp_path, each), table=options, **ROLES)
        for each in dict.fromkeys(["d.csv", name])
    }
    datasets = {
        each: ingest_source(source, tmp_path / f"{each}.zarr", chunk_rows=17)
        for each, source in opened.items()
    }
    first = datasets["d.csv"]
    assert datasets[name].schema == first.schema
    assert datasets[name].content == first.content
    kinds = {column.name: column.kind for column in first.schema.columns}
    assert list(kinds) == ["age", "income", "member", "city", "joined", "sex"]
    assert list(kinds.values()) == ["number"] * 2 + ["boolean", "category", "date", "category"]
    pair = first, datasets[name]
    by_id = [np.argsort(dataset.ids[:]) for dataset in pair]
    X, same = (dataset.X[:][order] for dataset, order in zip(pair, by_id, strict=True))
    np.testing.assert_array_equal(same, X)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=4)
@given(group_rows=st.integers(1, N), block_rows=st.integers(1, N))
def test_parquet__any_row_groups_give_the_same_schema_and_rows(tmp_path, group_rows, block_rows):
    options = TableOptions(id="id", missing="impute", max_categories=5)
    sources = []
    for name, rows in (("whole.parquet", N), ("cut.parquet", group_rows)):
        arrow_parquet.write_table(table(), tmp_path / name, row_group_size=rows)
        sources.append(open_source(tmp_path / name, table=options, **ROLES))
    whole, cut = sources
    assert cut.schema == whole.schema
    X = np.concatenate([block.X for block in cut.blocks(block_rows)])
    np.testing.assert_array_equal(X, next(whole.blocks(N)).X)


def test_formats__first_gap_is_named(tmp_path, name):
    with pytest.raises(DataError, match=r"rows of 6 columns: 'age' 10, .*'sex' \d+\. .*missing"):
        list(open_source(written(table(), tmp_path, name), **ROLES).blocks(50))
    rows = table().select(["age", "label"])
    (tmp_path / "one").mkdir()
    with pytest.raises(
        DataError, match=r"'age' of .* has no value in (row|line) .* 9 further rows"
    ):
        open_source(written(rows, tmp_path / "one", name), label="label")


def test_formats__a_given_schema_is_taken(tmp_path, name):
    rows = table(gaps=False)
    trained = open_source(
        written(rows, tmp_path), table=TableOptions(id="id", missing="impute"), **ROLES
    )
    later = rows.set_column(4, "city", pa.array(["Atlantis"] * N)).append_column("new", [[1] * N])
    later = later.select([*later.column_names[4:], *later.column_names[:4]])
    source = open_source(written(later, tmp_path, name), schema=trained.schema)
    assert source.schema == replace(trained.schema, ignored=("new",))
    blocks = list(source.blocks(50))
    columns = trained.schema.columns
    stored = {each.name: place for place, each in enumerate(columns)}
    X = np.concatenate([block.X for block in blocks])
    assert (X[:, stored["city"]] == UNSEEN).all()
    assert sorted(X[:, stored["age"]]) == sorted(rows["age"].to_pylist())
    assert sorted(np.concatenate([block.y for block in blocks])) == sorted(
        rows["label"].to_pylist()
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.drop_columns("age"), r"has no column 'age'; it has"),
        (
            lambda rows: rows.set_column(1, "age", pa.array(["old"] * N)),
            r"Column 'age' of .* has 'old' in (row 0|line 2).*, which is not a number",
        ),
        (
            lambda rows: rows.set_column(3, "member", pa.array([2] * N)),
            r"Column 'member' of .* has '2' in (row 0|line 2).*, which is neither true nor false",
        ),
    ],
)
@pytest.mark.parametrize("name", ["d.csv", "d.parquet"], indirect=True)
def test_formats__what_is_no_table_of_a_schema(tmp_path, name, change, message):
    rows = table(gaps=False)
    schema = open_source(written(rows, tmp_path), table=TableOptions(id="id"), **ROLES).schema
    with pytest.raises(DataError, match=message):
        list(open_source(written(change(rows), tmp_path, name), schema=schema).blocks(50))


@pytest.mark.parametrize(
    "cast", [pa.int8(), pa.float64(), pa.decimal128(21, 1), pa.string()], ids=str
)
def test_formats__categories_that_became_numbers_are_their_texts(tmp_path, cast):
    schema = Schema((Column("code", "category", ("1", "2")), Column("a", "number")))
    rows = pa.table({"a": [0.5, 1.5, 2.5], "code": pa.array([2, 1, 3]).cast(cast)})
    source = open_source(written(rows, tmp_path), schema=schema)
    assert next(source.blocks(9)).X.tolist() == [[1, 0.5], [0, 1.5], [UNSEEN, 2.5]]


def test_formats__lists_are_known_by_the_names_of_their_elements(tmp_path):
    X = np.random.default_rng(0).normal(size=(N, 3))
    trained = open_source(
        written(pa.table({"e": X.tolist(), "kind": ["u", "v"] * (N // 2)}), tmp_path), x="e,kind"
    )
    assert trained.feature_names == ("e_0", "e_1", "e_2", "kind")
    later = pa.table({"more": [1] * N, "kind": ["v"] * N, "e": X.tolist()})
    source = open_source(written(later, tmp_path, "views.arrow"), schema=trained.schema)
    np.testing.assert_array_equal(next(source.blocks(N)).X, np.c_[X, np.ones(N)])


@pytest.mark.parametrize("size", [-1, 2])
def test_formats__gaps_of_lists_are_filled(tmp_path, size):
    lists = pa.array([[1, 2], None, [3, None], [5, 4]], pa.list_(pa.int16(), size))
    path = written(pa.table({"e": lists}), tmp_path)
    source = open_source(path, x="e", table=TableOptions(missing="impute"))
    assert [column.fill for column in source.schema.columns] == [3, 3]
    expected = [[1, 2], [np.nan, np.nan], [3, np.nan], [5, 4]]
    np.testing.assert_array_equal(next(source.blocks(9)).X, expected)


def test_formats__columns_of_no_value_are_left_out(tmp_path, name):
    rows = table(gaps=False).drop_columns("sex").append_column("sex", [["f"] * N])
    rows = rows.set_column(2, "income", pa.nulls(N, pa.float64()))
    source = open_source(written(rows, tmp_path, name), table=TableOptions(id="id"), **ROLES)
    assert "income" not in source.feature_names
    assert source.schema.ignored == ("income",)


@pytest.mark.parametrize("name", ["d.parquet", "encoded.parquet", "views.arrow"], indirect=True)
def test_formats__marks_that_are_said_stand_for_no_value(tmp_path, name):
    rows = pa.table({"a": ["1", "?", " - "], "b": ["u", "-", "u"], "y": ["?", "no", "no"]})
    options = TableOptions(missing="impute", missing_values=("?", "-"), numeric=("a",))
    path = written(rows, tmp_path, name)
    source = open_source(path, label="y", table=options)
    X, y = next(source.blocks(9))[:2]
    np.testing.assert_array_equal(X, [[1, 0], [np.nan, np.nan], [np.nan, 0]])
    assert y.tolist() == ["?", "no", "no"]
    assert source.schema.written == {"missing_values": ["?", "-"]}
    later = open_source(path, schema=source.schema)
    np.testing.assert_array_equal(next(later.blocks(9)).X, X)
    assert later.schema.written == source.schema.written


def test_parquet__rows_with_nan_or_without_a_list_are_left_out(tmp_path):
    table = {"a": [1.5, np.nan, 3, 4], "v": pa.array([[1, 2], [3, 4], None, [5, 6]]), "y": [1] * 4}
    path = written(pa.table(table), tmp_path)
    source = open_source(path, label="y", table=TableOptions(missing="drop", drop=("v",)))
    assert (source.n_rows, [len(block.X) for block in source.blocks(9)]) == (3, [3])
    source = open_source(path, x="a,v", label="y", table=TableOptions(missing="drop"))
    assert [block.X.tolist() for block in source.blocks(9)] == [[[1.5, 1, 2], [4, 5, 6]]]
    assert source.n_rows == 2
