from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from dask_nrbfn.errors import DamagedDataError, DataError, MissingDataError
from dask_nrbfn.storage.dataset import (
    Dataset,
    create_dataset_arrays,
    default_chunk_rows,
    write_chunk,
)
from tests.numeric.chunkings import row_chunkings
from tests.storage.written import edit_attributes, table, text, write_dataset

DTYPES = ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8"]


def joined(dataset, start, stop, block_rows):
    """Return X, codes and the block lengths of a span."""
    blocks = list(dataset.blocks(start, stop, block_rows))
    codes = None if blocks[0].codes is None else np.concatenate([b.codes for b in blocks])
    return np.concatenate([b.X for b in blocks]), codes, [len(b.X) for b in blocks]


@given(
    n_rows=st.integers(1, 40),
    chunk_rows=st.integers(1, 50),
    block_rows=st.integers(1, 50),
    data=st.data(),
)
@settings(max_examples=50, deadline=None)
def test_blocks__any_span_equals_slicing(n_rows, chunk_rows, block_rows, data):
    start = data.draw(st.integers(0, n_rows - 1))
    stop = data.draw(st.integers(start + 1, n_rows))
    X, y = table(n_rows), np.arange(n_rows) * 7 % 5 - 2
    dataset = write_dataset(MemoryStore(), X, y, chunk_rows=chunk_rows)
    rows, codes, lengths = joined(dataset, start, stop, block_rows)
    np.testing.assert_array_equal(rows, X[start:stop])
    np.testing.assert_array_equal(dataset.classes[codes], y[start:stop])
    assert all(length == block_rows for length in lengths[:-1])
    assert 1 <= lengths[-1] <= block_rows


@given(lengths=row_chunkings(), chunk_rows=st.integers(1, 41))
@settings(max_examples=20, deadline=None)
def test_blocks__any_cut_into_spans_gives_all_rows_once(lengths, chunk_rows):
    X = table(sum(lengths))
    dataset = write_dataset(MemoryStore(), X, chunk_rows=chunk_rows)
    edges = np.cumsum([0, *lengths]).tolist()
    rows = [joined(dataset, a, b, 3)[0] for a, b in pairwise(edges)]
    np.testing.assert_array_equal(np.concatenate(rows), X)


@pytest.mark.parametrize("start", [0, 3, 10])
def test_blocks__empty_span_gives_none(start):
    dataset = write_dataset(MemoryStore(), table(10))
    assert list(dataset.blocks(start, start, 4)) == []


def test_blocks__left_early_ends_its_thread():
    dataset = write_dataset(MemoryStore(), table(10))
    blocks = dataset.blocks(0, 10, 2)
    np.testing.assert_array_equal(next(blocks).X, table(10)[:2])
    blocks.close()
    assert list(blocks) == []


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("label", ["integer", "text", "none"])
def test_dataset__every_type_comes_back(tmp_path, dtype, label):
    X = table(11, dtype=dtype)
    numbers = np.array([5, -1, 2**40, 5, 5, -1, 5, 2**40, 0, 0, -(2**62)])
    names = text(["ß", "", "日本", "ß", "a b", "", "🙂", "\n", "日本", "a", "A"])
    y = {"integer": numbers, "text": names, "none": None}[label]
    dataset = write_dataset(tmp_path / "data", X, y)
    rows, codes, _ = joined(dataset, 0, 11, 3)
    assert rows.dtype == X.dtype == dataset.X.dtype
    assert rows.tobytes() == X.tobytes()
    assert (dataset.n_rows, dataset.n_features, dataset.chunk_rows) == (11, 3, 4)
    if y is None:
        assert codes is None
        assert dataset.n_classes == 0
        with pytest.raises(DataError, match="has no labels"):
            dataset.codes()
        return
    classes, counts = np.unique(y, return_counts=True)
    assert dataset.classes.tolist() == classes.tolist()
    assert dataset.class_counts.tolist() == counts.tolist()
    assert dataset.classes[codes].tolist() == y.tolist()
    assert codes.dtype == np.int64
    np.testing.assert_array_equal(dataset.codes(), codes)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dataset__extremes_come_back(dtype):
    info = np.finfo(dtype) if dtype[0] == "f" else np.iinfo(dtype)
    X = np.array([[info.min, info.max]], dtype=dtype)
    if dtype[0] == "f":
        X = np.concatenate([X, np.array([[-0.0, info.smallest_subnormal]], dtype=dtype)])
    dataset = write_dataset(MemoryStore(), X, chunk_rows=1)
    assert dataset.take(np.arange(len(X))).tobytes() == X.tobytes()


@pytest.mark.parametrize("dtype", ["u1", "i8", "f8"])
def test_dataset__chunk_of_zeros_is_not_missing(tmp_path, dtype):
    # Zero, and the empty string, are what zarr fills absent chunks with.
    X = table(12, dtype=dtype)
    X[4:8] = 0
    for name, y in (("int", np.repeat([1, 0, 2], 4)), ("str", text(np.repeat(["b", "", "c"], 4)))):
        dataset = write_dataset(tmp_path / name, X, y)
        assert dataset.X.nchunks_initialized == dataset.X.nchunks == 3
        assert dataset.y.nchunks_initialized == 3
        np.testing.assert_array_equal(dataset.take(np.arange(12)), X)
        assert dataset.classes[dataset.codes()].tolist() == y.tolist()


@given(
    n_rows=st.integers(1, 30),
    chunk_rows=st.integers(1, 31),
    rows=st.lists(st.integers(0, 29), max_size=40),
)
@settings(max_examples=30, deadline=None)
def test_take__any_ascending_rows(n_rows, chunk_rows, rows):
    X = table(n_rows)
    dataset = write_dataset(MemoryStore(), X, chunk_rows=chunk_rows)
    wanted = np.array(sorted(row % n_rows for row in rows), dtype=np.int64)
    np.testing.assert_array_equal(dataset.take(wanted), X[wanted])


def test_codes__label_outside_the_classes(tmp_path):
    dataset = write_dataset(tmp_path / "data", table(6), np.array([1, 3, 1, 3, 1, 3]))
    zarr.open_array(str(tmp_path / "data/y"), mode="r+")[5] = 2
    with pytest.raises(DamagedDataError, match=r"label 2 of .*data is none of its classes"):
        dataset.codes()


def test_dataset__opens_in_xarray(tmp_path):
    X, y = table(11), text(["ä", "b"] * 5 + [""])
    write_dataset(tmp_path / "data", X, y)
    with xr.open_zarr(tmp_path / "data", consolidated=False, chunks=None) as opened:
        assert opened.sizes == {"row": 11, "feature": 3}
        np.testing.assert_array_equal(opened["X"].values, X)
        assert opened["y"].values.tolist() == y.tolist()
        assert opened["X"].dims == ("row", "feature")
        assert opened["y"].dims == ("row",)


def test_dataset__feature_names(tmp_path):
    names = ("Größe", "b", "")
    assert write_dataset(tmp_path / "a", table(5), feature_names=names).feature_names == names
    assert write_dataset(tmp_path / "b", table(5)).feature_names is None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_write_chunk__names_what_is_not_finite(dtype, value):
    X = table(9, dtype=dtype)
    X[7, 2] = value
    with pytest.raises(DataError, match=rf"X has {value} in row 7, column 2\."):
        write_dataset(MemoryStore(), X)


def test_write_chunk__any_order(tmp_path):
    X, y = table(10), np.arange(10) % 3
    expected = write_dataset(tmp_path / "a", X, y)
    group = zarr.create_group(str(tmp_path / "b"))
    create_dataset_arrays(group, shape=X.shape, x_dtype=X.dtype, y_dtype=y.dtype, chunk_rows=4)
    for index in (2, 0, 1, 0):
        rows = slice(4 * index, 4 * index + 4)
        write_chunk(group, index, X[rows], y[rows])
    for name in ("X/c/0/0", "X/c/2/0", "y/c/1"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert expected.n_rows == 10


def fingerprint(X, y=None, **options):
    return write_dataset(MemoryStore(), X, y, **options).fingerprint


def test_fingerprint__same_for_the_same_table(tmp_path):
    X, y = table(10), np.arange(10) % 3
    assert write_dataset(tmp_path / "a", X, y).fingerprint == fingerprint(X.copy(), y.copy())


def test_fingerprint__changes_with_everything():
    X, y = table(10, dtype="i4"), np.arange(10) % 3
    moved = X.copy()
    moved[9, 2] += 1
    relabelled = y.copy()
    relabelled[9] = 1
    tables = [
        (X, y),
        (moved, y),
        (X, relabelled),
        (X[::-1], y[::-1]),
        (X[[1, 0, *range(2, 10)]], y),
        (X.astype("i8"), y),
        (X.view("f4").astype("f8"), y),
        (X.view("u4"), y),
        (X[:9], y[:9]),
        (X.reshape(15, 2), np.arange(15) % 3),
        (X, None),
        (X, text(y.astype(str))),
    ]
    assert len({fingerprint(*each) for each in tables}) == len(tables)


@pytest.mark.parametrize(
    ("one", "other"),
    [(["ab", "c"], ["a", "bc"]), (["", "a"], ["a", ""]), (["a\0b", "c"], ["a", "b\0c"])],
)
def test_fingerprint__tells_texts_apart(one, other):
    X = table(2)
    assert fingerprint(X, text(one)) != fingerprint(X, text(other))


def test_default_chunk_rows__about_16_mib():
    for n_features, dtype in ((784, "u1"), (100, "f8"), (3, "i2"), (50_000_000, "f8")):
        rows = default_chunk_rows(n_features, dtype)
        row_bytes = n_features * np.dtype(dtype).itemsize
        assert 1 <= rows <= 65_536
        assert rows * row_bytes <= 16 * 2**20 or rows == 1
        assert (rows + 1) * row_bytes > 16 * 2**20 or rows == 65_536


def test_open__nothing_there(tmp_path):
    with pytest.raises(MissingDataError, match=r"there is no dataset at .*nowhere"):
        Dataset.open(tmp_path / "nowhere")


def test_open__a_plain_file(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text("a,b\n")
    with pytest.raises(DamagedDataError, match=r"data\.csv is no dataset"):
        Dataset.open(path)


def test_open__unfinished(tmp_path):
    group = zarr.create_group(str(tmp_path / "data"))
    create_dataset_arrays(group, shape=(5, 3), x_dtype="f8", y_dtype=None, chunk_rows=2)
    write_chunk(group, 0, table(2), None)
    with pytest.raises(DamagedDataError, match=r"is no dask_nrbfn\.dataset") as caught:
        Dataset.open(tmp_path / "data")
    assert "unfinished" in caught.value.remedy


def test_open__another_kind(tmp_path):
    write_dataset(tmp_path / "data", table(5))
    edit_attributes(tmp_path / "data", kind="dask_nrbfn.run")
    with pytest.raises(DamagedDataError, match=r"is a dask_nrbfn\.run, not a dask_nrbfn\.dataset"):
        Dataset.open(tmp_path / "data")


@pytest.mark.parametrize("version", [0, 2, "1"])
def test_open__another_format_version(tmp_path, version):
    write_dataset(tmp_path / "data", table(5))
    edit_attributes(tmp_path / "data", format_version=version)
    with pytest.raises(DamagedDataError, match=rf"format version {version}, this package reads 1"):
        Dataset.open(tmp_path / "data")


@pytest.mark.parametrize(
    "name",
    ["format_version", "has_labels", "classes", "class_counts", "fingerprint", "feature_names"],
)
def test_open__attribute_missing(tmp_path, name):
    write_dataset(tmp_path / "data", table(5), np.arange(5))
    edit_attributes(tmp_path / "data", drop=name)
    with pytest.raises(DamagedDataError, match="data"):
        Dataset.open(tmp_path / "data")


@pytest.mark.parametrize("name", ["X", "y"])
def test_open__array_missing(tmp_path, name):
    write_dataset(tmp_path / "data", table(5), np.arange(5))
    (tmp_path / "data" / name / "zarr.json").unlink()
    with pytest.raises(DamagedDataError, match=f"{name} is not there"):
        Dataset.open(tmp_path / "data")


def test_open__relative_path_is_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X = table(5)
    dataset = write_dataset("data", X)
    monkeypatch.chdir("/")
    np.testing.assert_array_equal(Dataset.open(dataset.location).take(np.arange(5)), X)
    assert Path(dataset.location).is_absolute()


def test_open__fsspec_url():
    X, y = table(11), text(["ä", "b"] * 5 + [""])
    url = "memory://test-open-fsspec-url/data"
    dataset = write_dataset(url, X, y)
    assert dataset.location == url
    again = Dataset.open(url)
    np.testing.assert_array_equal(joined(again, 2, 9, 3)[0], X[2:9])
    assert again.classes[again.codes()].tolist() == y.tolist()
    with pytest.raises(MissingDataError, match="there is no dataset"):
        Dataset.open("memory://test-open-fsspec-url/nowhere")


def read_span(location, start, stop):
    return joined(Dataset.open(location), start, stop, 7)[0]


@pytest.mark.parametrize("pool", ["threads", "processes"])
def test_blocks__concurrent_readers(tmp_path, pool):
    X = table(500)
    dataset = write_dataset(tmp_path / "data", X, chunk_rows=9)
    starts = list(range(0, 500, 41)) * 3
    stops = [min(a + 60, 500) for a in starts]
    executor = (
        ThreadPoolExecutor(8)
        if pool == "threads"
        else ProcessPoolExecutor(2, mp_context=get_context("spawn"))
    )
    with executor:
        spans = executor.map(read_span, [dataset.location] * len(starts), starts, stops)
        for rows, a, b in zip(spans, starts, stops, strict=True):
            np.testing.assert_array_equal(rows, X[a:b])
