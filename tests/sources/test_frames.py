"""Types and missing values mean the same, whatever rows and labels come from."""

import datetime
import re
from functools import partial

import dask.array as da
import dask.dataframe as dd
import narwhals as nw
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse
from pyarrow import feather
from zarr.storage import MemoryStore

from dask_nrbfn import NRBFNClassifier, NRBFNRegressor, ingest_arrays, ingest_file
from dask_nrbfn.errors import DataError

N = 12
TRUTH = np.arange(N) % 3 == 0
LABELS = {
    "truth": (TRUTH, [False, True]),
    "0 and 1": (TRUTH.astype(np.int8), [0, 1]),
    "1.0 and 0.0": (TRUTH.astype(np.float32), [0, 1]),
    "whole floats": (np.arange(N) % 3 * 2.0 - 2, [-2, 0, 2]),
    "text": (np.array(["no", "yes"])[TRUTH.astype(int)], ["no", "yes"]),
}


def in_csv(place, X, y):
    pd.DataFrame({"a": X, "y": y}).to_csv(place / "d.csv", index=False)
    return ingest_file(place / "d.csv", MemoryStore(), label="y")


def in_parquet(place, X, y):
    pd.DataFrame({"a": X, "y": y}).to_parquet(place / "d.parquet")
    return ingest_file(place / "d.parquet", MemoryStore(), label="y")


def in_npz(place, X, y):
    np.savez(place / "d.npz", X=X[:, None], y=y)
    return ingest_file(place / "d.npz", MemoryStore())


def in_lists(place, X, y):
    return ingest_arrays(X[:, None].tolist(), y.tolist(), MemoryStore())


def in_objects(place, X, y):
    return ingest_arrays(X[:, None], y.astype(object), MemoryStore())


def in_frame(place, X, y):
    return ingest_arrays(pd.DataFrame({"a": X}), pd.Series(y), MemoryStore())


def in_nullable_frame(place, X, y):
    # pandas 2 casts to integers to see whether they are some.
    with np.errstate(invalid="ignore"):
        frame = pd.DataFrame({"a": X, "y": y}).convert_dtypes()
    return ingest_arrays(frame[["a"]], frame["y"], MemoryStore())


def in_categories(place, X, y):
    return ingest_arrays(pd.DataFrame({"a": X}), pd.Series(pd.Categorical(y)), MemoryStore())


def in_dask_arrays(place, X, y):
    return ingest_arrays(da.from_array(X[:, None], 5), da.from_array(y, 4), MemoryStore())


def in_dask_frame(place, X, y):
    frame = dd.from_pandas(pd.DataFrame({"a": X, "y": y}), npartitions=3)
    return ingest_arrays(frame[["a"]], frame["y"], MemoryStore())


FORMS = [
    *[in_csv, in_parquet, in_npz, in_lists],
    *[in_objects, in_frame, in_nullable_frame, in_categories],
    *[in_dask_arrays, in_dask_frame],
]


@pytest.mark.fast_cases(24)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("labels", "classes"), LABELS.values(), ids=LABELS)
def test_types__every_source_gives_the_same_classes(tmp_path, form, labels, classes):
    features = {1: TRUTH, 4: np.arange(N)}.get(labels.itemsize, np.arange(N) / 2)
    dataset = form(tmp_path, features, labels)
    assert dataset.X[:, 0].tolist() == features.tolist()
    assert dataset.classes.tolist() == classes
    assert [type(label) for label in dataset.classes.tolist()] == [type(c) for c in classes]
    own = labels.astype(int) if classes[0] != "no" else labels
    assert dataset.classes[dataset.codes()].tolist() == own.tolist()


@pytest.mark.fast_cases(12)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("label", [0.5, 1e300])
def test_types__number_that_is_no_class_is_refused_by_every_source(tmp_path, form, label):
    labels = np.arange(N) * 1.0
    labels[7] = label
    with pytest.raises(DataError, match=r"has the label .* (row 7|line 9)\b.*names"):
        form(tmp_path, np.arange(N) / 2, labels)


def test_frame__column_that_makes_no_features_is_named():
    frame = pd.DataFrame({"a": np.arange(N) * 1.0, "lasts": pd.to_timedelta(np.arange(N), "h")})
    labels = np.arange(N) % 2
    lazy = dd.from_pandas(frame, npartitions=2), da.from_array(labels, 6)
    for X, y in ((frame, labels), lazy):
        with pytest.raises(DataError, match=r"Column 'lasts' of X has type INTERVAL.*Leave the co"):
            ingest_arrays(X, y, MemoryStore())


def test_frame__text_for_a_network_of_arrays_is_no_number():
    network = NRBFNClassifier(n_neighbors=2).fit(np.eye(8)[:, :2], [0, 1] * 4)
    with pytest.raises(DataError, match=r"Column 'b' of X has type (str|object).*not a number"):
        network.predict(pd.DataFrame({"a": [1.0], "b": ["u"]}))


def test_frame__missing_value_of_a_nullable_column_is_no_number():
    frame = pd.DataFrame({"a": pd.array([1, None], dtype="Int64")})
    with pytest.raises(DataError, match="X has nan in row 1, column 0"):
        ingest_arrays(frame, None, MemoryStore())


def test_frame__sparse_columns_of_pandas_are_numbers():
    frame = pd.DataFrame({"a": pd.arrays.SparseArray([0, 1.5]), "y": pd.arrays.SparseArray([0, 1])})
    dataset = ingest_arrays(frame[["a"]], frame["y"], MemoryStore())
    assert (dataset.X[:].tolist(), dataset.y[:].tolist()) == ([[0.0], [1.5]], [0, 1])


@pytest.mark.parametrize(
    "y",
    [
        pa.array([1.0, np.nan, 2.0]),
        np.ma.masked_array([1.0, 9.0, 2.0], [0, 1, 0]),
        np.ma.masked_array([1.0, np.nan, 2.0], [0, 0, 0]),
        np.ma.masked_array(np.array([1, 9, 2], ">i4"), [0, 1, 0]),
        pd.Series(pd.arrays.SparseArray([1.0, np.nan, 2.0])),
        [1, None, 2],
        pd.array([1, None, 2], dtype="Int64"),
        pl.Series([1, None, 2]),
    ],
)
def test_labels__gaps_of_any_array(y):
    X = np.eye(3)
    assert ingest_arrays(X, y, MemoryStore(), unlabelled="").codes().tolist() == [0, -1, 1]
    with pytest.raises(DataError, match="y has no label in row 1"):
        ingest_arrays(X, y, MemoryStore())


@pytest.mark.parametrize("of", [pa.string_view(), pa.large_binary(), pa.binary(1), pa.binary()])
def test_labels__text_and_bytes_of_arrow(of):
    texts = ["a", "b"] if of == pa.string_view() else [b"a", b"b"]
    dataset = ingest_arrays(np.eye(2), pa.array(texts, of), MemoryStore())
    assert dataset.classes.tolist() == ["a", "b"]


@pytest.mark.parametrize("take", [NRBFNClassifier().fit, partial(ingest_arrays, location="x")])
def test_frame__two_columns_of_one_name(take):
    with pytest.raises(DataError, match="X has several columns 'a'"):
        take(pd.DataFrame(np.eye(3), columns=["a", "b", "a"]), [0, 1, 0])


def test_frame__names_of_columns_are_kept():
    frame = pd.DataFrame({"width": [1.0, 2.0], 3: [True, False]})
    assert ingest_arrays(frame, None, MemoryStore()).feature_names == ("width", "3")


CODED = {
    "pandas": lambda codes: pd.DataFrame({"a": pd.Categorical(codes)}),
    "pandas text": lambda codes: pd.DataFrame({"a": pd.Categorical(codes.astype(str))}),
    "arrow": lambda codes: pa.table({"a": pa.array(codes).dictionary_encode()}),
    "polars": lambda codes: pl.DataFrame({"a": pl.Series(codes.astype(str), dtype=pl.Categorical)}),
    "polars enum": lambda codes: pl.DataFrame(
        {"a": pl.Series(codes.astype(str), dtype=pl.Enum(["10", "20", "30"]))}
    ),
}


@pytest.mark.parametrize("frame_of", CODED.values(), ids=CODED)
def test_frame__codes_of_a_type_of_categories_are_categories(tmp_path, frame_of, caplog):
    codes = np.arange(60) % 3 * 10 + 10
    frame = frame_of(codes)
    of_arrays = ingest_arrays(frame, codes, MemoryStore())
    table = nw.from_native(frame).to_arrow()
    pq.write_table(table, tmp_path / "a.parquet")
    feather.write_feather(table, tmp_path / "a.arrow", compression="uncompressed")
    sources = (frame, table.to_reader(), tmp_path / "a.parquet", tmp_path / "a.arrow")
    for dataset in (of_arrays, *(ingest_file(source, MemoryStore()) for source in sources)):
        (column,) = dataset.schema.columns
        assert (column.kind, column.categories) == ("category", ("10", "20", "30"))
    # Codes that are no categories are the same ones.
    numbers = pd.DataFrame({"a": [30, 10]})
    again = ingest_file(numbers, MemoryStore(), schema=of_arrays.schema)
    assert again.X[:].tolist() == [[2.0], [0.0]]
    assert "is read as text" not in caplog.text


TIMES = pd.DataFrame({"t": pd.date_range("2020-01-01", periods=N, freq="61h", tz="Europe/Berlin")})
ZONED = {
    "pandas": lambda frame, place: frame,
    "polars": lambda frame, place: pl.from_pandas(frame),
    "arrow": lambda frame, place: pa.Table.from_pandas(frame),
    "dask": lambda frame, place: dd.from_pandas(frame, npartitions=2),
    "parquet": lambda frame, place: frame.to_parquet(place / "t.parquet"),
    "arrow file": lambda frame, place: frame.to_feather(place / "t.arrow"),
    "sql": lambda frame, place: frame.to_parquet(place / "t.parquet"),
}


@pytest.mark.parametrize("origin", ZONED)
def test_frame__nanoseconds_with_a_time_zone_are_dates_from_every_origin(tmp_path, origin):
    frame = ZONED[origin](TIMES, tmp_path)
    if frame is None:
        (file,) = tmp_path.iterdir()
        dataset = ingest_file(f"FROM '{file}'" if origin == "sql" else file, MemoryStore())
    else:
        dataset = ingest_arrays(frame, None, MemoryStore())
    days = TIMES["t"].dt.tz_convert("UTC").dt.tz_localize(None).astype("M8[us]")
    assert dataset.schema.columns[0].kind == "date"
    np.testing.assert_array_equal(dataset.X[:, 0], days.astype(np.int64) / 86400e6)


def test_frame__times_of_day_in_nanoseconds_are_categories_as_in_microseconds():
    times = pl.DataFrame({"t": [datetime.time(8, 30), datetime.time(9)] * 3})
    dataset = ingest_arrays(times, None, MemoryStore())
    assert dataset.schema.columns[0].categories == ("08:30:00", "09:00:00")


def test_frame__categories_that_dask_does_not_know():
    frame = dd.from_pandas(pd.DataFrame({"a": [1, 2], "y": [0, 1]}), npartitions=1)
    unknown = frame.astype("category")
    dataset = ingest_arrays(unknown[["a"]], frame["y"], MemoryStore())
    assert dataset.schema.columns[0].categories == ("1", "2")
    network = NRBFNClassifier(n_neighbors=1).fit([[1], [2]], [0, 1])
    assert network.predict(unknown[["a"]]).compute().tolist() == [0, 1]
    with pytest.raises(DataError, match=r"y has the label 0 in row 0.*as an object.*astype"):
        ingest_arrays(frame[["a"]], unknown["y"], MemoryStore())


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array(["a", 1, "b"], dtype=object), "y has values of several types, or"),
        ([b"a", b"\xff"], "y has bytes other than UTF-8"),
        ([object(), 1], "y has values of several types, or of an unknown type"),
        ([{"a": 1}, {"a": 2}], "y holds Python objects"),
    ],
)
def test_labels__missing_or_mixed(labels, message):
    with pytest.raises(DataError, match=message):
        ingest_arrays(np.eye(len(labels)), labels, MemoryStore())


FRAMES = {
    "pandas": lambda frame: frame,
    "polars": pl.from_pandas,
    "arrow": pa.Table.from_pandas,
    "dask": lambda frame: dd.from_pandas(frame, npartitions=2),
}


@pytest.mark.parametrize("form", FRAMES)
def test_labels__frame_of_one_column_is_its_column(form):
    frame = FRAMES[form](pd.DataFrame({"a": np.arange(N) / 2, "y": LABELS["text"][0]}))
    X, y = frame.select(["a"]) if form in ("polars", "arrow") else frame[["a"]], frame
    y = y.select(["y"]) if form in ("polars", "arrow") else y[["y"]]
    network = NRBFNClassifier(n_neighbors=2, alpha=1e-6).fit(X, y)
    assert network.classes_.tolist() == ["no", "yes"]
    expected = np.mean(np.asarray(network.predict(X)) == LABELS["text"][0])
    assert network.score(X, y) == expected
    with pytest.raises(DataError, match=r"y has 2 columns. Pass the column .* y\['NAME'\]"):
        network.fit(X, frame)


def test_dates__numbers_of_unknown_unit_are_refused_as_targets_and_weights():
    y = pd.Series(pd.date_range("2020", periods=N, tz="UTC"), name="t")
    local, X = y.dt.tz_localize(None), np.eye(N)
    refused = r"type (date|time)|dates or durations|dtype (date|time)|not a number"
    for times in (y, y - y.min(), local, local.to_numpy()):
        with pytest.raises(DataError, match=refused):
            NRBFNClassifier().fit(X, np.arange(N) % 2, times)
        lazy = dd.from_pandas(times, 2) if isinstance(times, pd.Series) else times
        with pytest.raises(DataError, match=refused):
            NRBFNRegressor(alpha=1e-3).fit(da.from_array(X, 5), lazy)


def test_dates__remedy_for_targets_in_memory_works():
    y = pd.Series(pd.date_range("2020", periods=N))
    for times in (y, y.dt.tz_localize("UTC"), y - y.min(), y.to_numpy(), y.to_list()):
        with pytest.raises(DataError) as caught:
            NRBFNRegressor().fit(np.eye(N), times)
        remedies = re.findall(r"(?:as|by) (.*?)(?=, and|\.$)", caught.value.remedy)
        remedy = remedies[np.asarray(times).dtype.kind == "m"]
        seconds = np.asarray(eval(remedy, {"y": times, "numpy": np}))
        assert seconds[-1] - seconds[0] == (N - 1) * 86400


def test_dates__remedy_for_a_target_in_a_file_works(tmp_path):
    pd.DataFrame({"a": np.arange(N), "t": TIMES["t"]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"not a finite number. Convert dates") as caught:
        ingest_file(tmp_path / "t.parquet", MemoryStore(), target="t")
    sql = re.search(r"'(SELECT .*)'", caught.value.remedy)[1]
    dataset = ingest_file(tmp_path / "t.parquet", MemoryStore(), target="t", sql=sql)
    assert np.ptp(dataset.y) == (N - 1) * 61 * 3600


@pytest.mark.parametrize("labels", ["array", "objects", "dask"])
def test_labels__bytes_that_would_come_back_as_text_are_refused(labels):
    y = np.array([b"a", "é".encode()] * 6)
    X = np.arange(N * 1.0)[:, None]
    if labels == "dask":
        X, y = da.from_array(X, 4), da.from_array(y, 4)
    elif labels == "objects":
        y = y.astype(object)
    with pytest.raises(DataError, match="y has labels of bytes") as caught:
        NRBFNClassifier().fit(X, y)
    code = caught.value.remedy.removeprefix("Make them text, such as ").removesuffix(".")
    text = eval(code, {"y": y, "numpy": np})
    assert NRBFNClassifier(n_neighbors=1).fit(X, text).classes_.tolist() == ["a", "é"]


BIG = 2**60 + np.arange(N)
LARGE = {
    "unsigned": (np.stack([BIG, BIG], 1).astype("u8"), "'column 0', 'column 1'"),
    "negative": (-BIG[:, None], "'column 0'"),
    "sparse": (scipy.sparse.csr_array([[0, 2**60], [1, 0]] * 6), "'column 1'"),
    "dask": (da.from_array(BIG[:, None], 4), "'column 0'"),
    "table": (pd.DataFrame({"id": BIG, "b": ["u", "v"] * 6}), "'id'"),
}


@pytest.mark.parametrize(("X", "named"), LARGE.values(), ids=LARGE)
def test_ingest__columns_of_rounded_integers_are_named_once(caplog, X, named):
    ingest_arrays(X, np.arange(N) % 2, MemoryStore(), chunk_rows=5)
    assert caplog.text.count("are rounded to 16 digits") == 1
    assert f"are rounded to 16 digits in {named}. Subtract" in caplog.text


def test_ingest__rounded_integers_of_targets_and_files_are_named(tmp_path, caplog):
    pd.DataFrame({"id": BIG, "b": np.arange(N) / 2}).to_csv(tmp_path / "a.csv", index=False)
    ingest_file(tmp_path / "a.csv", MemoryStore(), target="b")
    ingest_arrays(np.eye(N), None, MemoryStore(), target=pd.Series(BIG, name="t"))
    ingest_arrays(np.eye(N) * 1e20 + 0.5, None, MemoryStore(), target=np.arange(N) / 3 + 2**53)
    ingest_arrays(np.eye(N) * (2**53 - 1), None, MemoryStore())
    told = [record.args[0] for record in caplog.records if "are rounded" in record.msg]
    assert told == ["'id'", "'t'", "'target'"]


@pytest.mark.parametrize(
    "columns",
    [
        {"y": pd.Series(["a", None, "b"] * 3)},
        {"y": np.ma.masked_equal([0, 1, 2] * 3, 2)},
        {"target": pd.DataFrame({"p": [0, 1, None] * 3}, dtype="Int64")},
        {"y": [True, False, True] * 3, "weights": pd.Series(range(1, 10))},
    ],
)
def test_ingest_arrays__columns_in_memory_next_to_dask_rows(columns):
    X, y = np.arange(18.0).reshape(9, 2), columns.pop("y", None)
    unlabelled = None if "weights" in columns else "nan"
    here, there = (
        ingest_arrays(rows, y, MemoryStore(), **columns, unlabelled=unlabelled, chunk_rows=2)
        for rows in (X, da.from_array(X, 4))
    )
    assert there.fingerprint == here.fingerprint
    assert there.classes.tolist() == here.classes.tolist()
    assert there.n_unlabelled == here.n_unlabelled == 3 * (unlabelled is not None)


def test_labels__numbers_that_are_not_int64_are_refused():
    limits = {
        (1 - 2**53, 2**53 - 1): np.array([1 - 2.0**53, 2.0**53 - 1]),
        (0, 2**63 - 1): np.array([0, 2**63 - 1], dtype=np.uint64),
    }
    for classes, labels in limits.items():
        assert ingest_arrays(np.eye(2), labels, MemoryStore()).classes.tolist() == [*classes]
    beyond = (np.inf, 2.0**53, -(2.0**53), -(2.0**64), np.uint64(2**63))
    for bad in beyond:
        with pytest.raises(DataError, match=r"label .* in row 1"):
            ingest_arrays(np.eye(2), np.array([1, bad], dtype=type(bad)), MemoryStore())


RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
Y = (X[:, 0] > 0).astype(int)
MASK = np.arange(60) == 47


def masked(values):
    """Return values of which row 47 is masked and has a fill value below."""
    below = np.where(MASK.reshape(-1, *[1] * (values.ndim - 1)), 9999, values)
    return np.ma.masked_equal(below.astype(values.dtype), 9999)


def chunked(values):
    return None if values is None else da.from_array(values, chunks=(25, *values.shape[1:]))


def in_dask(X, y, place, *, weights=None, target=None, **options):
    options |= {"weights": chunked(weights), "target": chunked(target)}
    return ingest_arrays(chunked(X), chunked(y), place, **options)


@pytest.mark.parametrize("ingest", [ingest_arrays, in_dask])
def test_ingest__masked_values_are_missing(ingest):
    for rows, labels, options in (
        (masked(X), Y, {}),
        (masked((9 * X).astype(int)), Y, {}),
        (X, masked(Y), {}),
        (X, Y, {"weights": masked(Y + 1.0)}),
        (X, None, {"target": masked(X[:, :2])}),
    ):
        with pytest.raises(DataError, match="row 47"):
            ingest(rows, labels, MemoryStore(), **options)
    imputed = ingest(masked(X), Y, MemoryStore(), missing="impute")
    np.testing.assert_allclose(
        imputed.take(np.array([47]))[0, ::2], np.median(X[~MASK], axis=0), atol=1e-12
    )
    unlabelled = ingest(X, masked(Y), MemoryStore(), unlabelled="nan")
    assert unlabelled.codes()[47] == -1
    whole = ingest(np.ma.array(X), np.ma.array(Y), MemoryStore())
    assert whole.fingerprint == ingest(X, Y, MemoryStore()).fingerprint


@pytest.mark.parametrize("form", [np.asanyarray, chunked])
def test_estimator__masked_values_are_missing(form):
    network, numbers = (
        kind(alpha=1e-6, missing="error") for kind in (NRBFNClassifier, NRBFNRegressor)
    )
    for estimator, rows, targets, weights in (
        (network, masked(X), Y, None),
        (network, X, masked(Y), None),
        (network, X, Y, masked(Y + 1.0)),
        (numbers, X, masked(X[:, 0]), None),
    ):
        weights = None if weights is None else form(weights)
        with pytest.raises(ValueError, match=r"NaN|row 47"):
            estimator.fit(form(rows), form(targets), sample_weight=weights)
    network.fit(form(X), form(Y))
    with pytest.raises(ValueError, match=r"NaN|row 22 of a block|row 47"):
        np.asarray(network.predict(form(masked(X))))
