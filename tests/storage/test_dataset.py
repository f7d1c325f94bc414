from itertools import cycle

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from dask_nrbfn.commands.ingest import ingest_arrays
from dask_nrbfn.errors import DamagedDataError, DataError
from dask_nrbfn.sources.arrays import ArraySource
from dask_nrbfn.storage.chunks import create_dataset_arrays, default_chunk_rows
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import open_group
from tests.numeric.chunkings import row_chunkings
from tests.storage.written import table, text, write_dataset

DTYPES = ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8"]


def joined(dataset, start, stop, block_rows):
    """Return X, codes and the block lengths of a span."""
    blocks = list(dataset.blocks(start, stop, block_rows))
    codes = None if blocks[0].targets is None else np.concatenate([b.targets for b in blocks])
    return np.concatenate([b.X for b in blocks]), codes, [len(b.X) for b in blocks]


def joined_weights(dataset, start, stop, block_rows):
    return np.concatenate([b.weights for b in dataset.blocks(start, stop, block_rows)])


@given(
    n_rows=st.integers(1, 40),
    chunk_rows=st.integers(1, 50),
    block_rows=st.integers(1, 50),
    kind=st.sampled_from(["none", "labels", "numbers"]),
    weighted=st.booleans(),
    data=st.data(),
)
@settings(max_examples=15)
def test_blocks__any_span_equals_slicing(n_rows, chunk_rows, block_rows, kind, weighted, data):
    start = data.draw(st.integers(0, n_rows - 1))
    stop = data.draw(st.integers(start + 1, n_rows))
    labels, T = np.arange(n_rows) * 7 % 5 - 2, table(n_rows, data.draw(st.integers(1, 3)), seed=1)
    X, y = table(n_rows), {"none": None, "labels": labels, "numbers": T}[kind]
    weights = np.arange(n_rows) + 0.5 if weighted else None
    names = tuple("abc"[: T.shape[1]]) if kind == "numbers" else None
    dataset = write_dataset(MemoryStore(), X, y, weights, chunk_rows=chunk_rows, target_names=names)
    rows, targets, lengths = joined(dataset, start, stop, block_rows)
    np.testing.assert_array_equal(rows, X[start:stop])
    assert all(length == block_rows for length in lengths[:-1])
    assert 1 <= lengths[-1] <= block_rows
    if kind == "none":
        assert targets is None
    elif kind == "labels":
        np.testing.assert_array_equal(dataset.classes[targets], y[start:stop])
    else:
        assert targets.dtype == np.float64
        np.testing.assert_array_equal(targets, T[start:stop])
        np.testing.assert_array_equal(dataset.read_chunk(0)[1], T[:chunk_rows])
        wanted = np.array(sorted(data.draw(st.sets(st.integers(0, n_rows - 1)))), dtype=np.int64)
        np.testing.assert_array_equal(dataset.take_targets(wanted), T[wanted])
    if weighted:
        got = joined_weights(dataset, start, stop, block_rows)
        assert got.dtype == np.float64
        np.testing.assert_array_equal(got, weights[start:stop])


def numbers_dataset(location, n_rows=11, n_targets=2, **options):
    T = table(n_rows, n_targets, seed=1)
    names = tuple(f"t{j}" for j in range(n_targets))
    return write_dataset(location, table(n_rows), T, target_names=names, **options), T


def test_dataset__numbers_are_no_labels(tmp_path):
    dataset, T = numbers_dataset(tmp_path / "data")
    assert dataset.target_names == ("t0", "t1")
    assert (dataset.y.shape, dataset.y.chunks, dataset.y.dtype) == ((11, 2), (4, 2), np.float64)
    assert (dataset.n_targets, dataset.n_classes) == (2, 0)
    assert dataset.class_counts.shape == dataset.classes.shape == (0,)
    assert open_group(tmp_path / "data", kind="dataset").attrs["has_labels"] is False
    planned = dataset.with_n_rows(10**6)
    assert (planned.n_rows, planned.n_targets, planned.n_classes) == (10**6, 2, 0)
    with xr.open_zarr(tmp_path / "data", consolidated=False, chunks=None) as opened:
        assert opened["y"].dims == ("row", "target")
        np.testing.assert_array_equal(opened["y"].values, T)


@pytest.mark.parametrize(
    ("dtype", "label"), [*zip(DTYPES, cycle(["integer", "text", "none"]), strict=False)]
)
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
        return
    classes, counts = np.unique(y, return_counts=True)
    assert dataset.classes.tolist() == classes.tolist()
    assert dataset.class_counts.tolist() == counts.tolist()
    assert dataset.classes[codes].tolist() == y.tolist()
    assert codes.dtype == np.int64
    np.testing.assert_array_equal(dataset.codes(), codes)


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


@pytest.mark.parametrize(("dtype", "value"), [("f4", np.nan), ("f8", -np.inf)])
def test_write_chunk__names_what_is_not_finite(dtype, value):
    X = table(9, dtype=dtype)
    X[7, 2] = value
    with pytest.raises(DataError, match=rf"X has {value} in row 7, column 2\."):
        write_dataset(MemoryStore(), X)


def fingerprint(X, y=None, **options):
    return write_dataset(MemoryStore(), X, y, **options).fingerprint


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
        (X.astype("i8"), y),
        (X.view("u4"), y),
        (X[:9], y[:9]),
        (X.reshape(15, 2), np.arange(15) % 3),
        (X, None),
        (X, text(y.astype(str))),
    ]
    assert len({fingerprint(*each) for each in tables}) == len(tables)


@given(lengths=row_chunkings(), data=st.data())
@settings(max_examples=4)
def test_content__of_numbers_in_any_order_chunks_and_type_of_rows(lengths, data):
    n_rows = sum(lengths)
    X, T = table(n_rows, dtype="i2"), table(n_rows, 2, seed=1)
    T[0] = 0.0
    one = write_dataset(MemoryStore(), X, T, chunk_rows=lengths[0], target_names=("a", "b"))
    order = data.draw(st.permutations(range(n_rows)))
    T[0] = -0.0
    other = write_dataset(
        MemoryStore(), X[order].astype("f8"), T[order], chunk_rows=7, target_names=("a", "b")
    )
    assert one.content == other.content


def test_default_chunk_rows__about_16_mib():
    for n_features, dtype in ((784, "u1"), (100, "f8"), (3, "i2"), (50_000_000, "f8")):
        rows = default_chunk_rows(n_features, dtype)
        row_bytes = n_features * np.dtype(dtype).itemsize
        assert 1 <= rows <= 65_536
        assert rows * row_bytes <= 16 * 2**20 or rows == 1
        assert (rows + 1) * row_bytes > 16 * 2**20 or rows == 65_536
    assert default_chunk_rows(24, "f8", n_numbers=1000) == 2**14 // 8


def test_open__unfinished(tmp_path):
    group = zarr.create_group(str(tmp_path / "data"))
    create_dataset_arrays(group, ArraySource(table(5)), np.float64, 2)
    with pytest.raises(DamagedDataError, match="unfinished"):
        Dataset.open(tmp_path / "data")


@pytest.mark.parametrize("weight", [0.0, -1.0, np.nan, np.inf])
def test_write__a_weight_that_is_no_weight_names_its_row(weight):
    weights = np.ones(7)
    weights[5:] = weight
    with pytest.raises(DataError, match=f"weights has {weight} in row 5 "):
        write_dataset(MemoryStore(), table(7), np.arange(7) % 2, weights)


@pytest.mark.parametrize("name", ["X", "y", "weights"])
def test_open__array_missing(tmp_path, name):
    write_dataset(tmp_path / "data", table(7), np.arange(7) % 2, np.arange(7) + 0.5)
    (tmp_path / "data" / name / "zarr.json").unlink()
    with pytest.raises(DamagedDataError, match=f"{name} is missing"):
        Dataset.open(tmp_path / "data")


def test_codes__a_label_that_changed_after_ingest_is_damage(tmp_path):
    X, y = table(20), np.arange(20) % 3
    ingest_arrays(X, y, tmp_path / "data")
    zarr.open_group(tmp_path / "data")["y"][7] = 99
    with pytest.raises(DamagedDataError, match="label 99 of"):
        Dataset.open(tmp_path / "data").codes()


def test_blocks__long_text_labels():
    labels = np.array(["a label of sixteen", "another that is longer", "short"])[np.arange(40) % 3]
    dataset = ingest_arrays(np.arange(40.0)[:, None], labels, MemoryStore(), chunk_rows=7)
    (block,) = dataset.blocks(0, 40, 40)
    assert dataset.classes[block.targets].tolist() == labels.tolist()
