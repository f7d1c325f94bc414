"""Datasets and models with a schema: what is stored is not what is read."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from dask_nrbfn.commands.describe import problems_of
from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.schema import Column, Schema
from dask_nrbfn.storage.chunks import default_chunk_rows
from dask_nrbfn.storage.model import Model
from tests.schemas import COLUMNS, FILLED, OTHER_FILLS, N, X, Y, write_rows
from tests.storage.written import make_model, table, write_dataset


@settings(max_examples=8)
@given(
    chunk_rows=st.integers(1, N),
    block_rows=st.integers(1, N),
    span=st.tuples(*[st.integers(0, N)] * 2),
)
def test_blocks__any_chunks_have_the_features_of_the_stored_values(chunk_rows, block_rows, span):
    start, stop = sorted(span)
    features = FILLED.expand(X)
    y = np.where(Y == 2, -1, Y)
    dataset = write_rows(MemoryStore(), y=y, unlabelled=-1, chunk_rows=chunk_rows)
    assert (dataset.n_features, dataset.dtype) == (FILLED.n_features, np.float64)
    assert dataset.feature_names == FILLED.feature_names
    blocks = [block.X for block in dataset.blocks(start, stop, block_rows)]
    np.testing.assert_array_equal(np.concatenate([features[:0], *blocks]), features[start:stop])
    rows = np.arange(start, stop, 3)
    np.testing.assert_array_equal(dataset.take(rows), features[rows])
    labelled = dataset.of_labelled()
    (block,) = labelled.blocks(0, labelled.n_rows, N)
    np.testing.assert_array_equal(block.X, features[Y != 2])
    np.testing.assert_array_equal(block.targets, Y[Y != 2])


def test_dataset__chunks_are_of_16_mib_of_features(tmp_path):
    wide = Schema((Column("k", "category", tuple(f"{i:03}" for i in range(250))),))
    codes = np.arange(9000.0)[:, None] % 250
    dataset = write_rows(tmp_path / "data", codes, None, schema=wide, chunk_rows=None)
    assert dataset.chunk_rows == default_chunk_rows(250, np.float64) < 9000
    # The chunk in use, the next one and a block of both, beside four of the stored values.
    assert dataset.reading_bytes == dataset.chunk_rows * 8 * (3 * 250 + 4)
    planned = dataset.with_n_rows(10**6)
    assert (planned.n_features, planned.chunk_rows) == (250, dataset.chunk_rows)
    assert planned.reading_bytes == dataset.reading_bytes


@pytest.mark.parametrize(
    "ids", [np.arange(N) * 7, np.array([f"k{i}" for i in range(N)], dtype=np.dtypes.StringDType())]
)
def test_ids__come_back_beside_the_rows(tmp_path, ids):
    dataset = write_rows(tmp_path / "data", ids=ids)
    assert dataset.ids[:].tolist() == ids.tolist()
    assert dataset.read_chunk(2)[3].tolist() == ids[14:21].tolist()
    without = write_rows(MemoryStore())
    assert without.ids is None
    assert (dataset.content, dataset.fingerprint) == (without.content, without.fingerprint)
    assert problems_of(dataset) == []


def test_gaps__are_stored_where_the_schema_fills_them(tmp_path):
    dataset = write_rows(tmp_path / "data")
    np.testing.assert_array_equal(dataset.X[:], X)
    assert problems_of(dataset) == []
    strict = replace(FILLED, missing="error")
    with pytest.raises(DataError, match="X has nan in row"):
        write_rows(MemoryStore(), schema=strict)
    endless = np.where(np.isnan(X), np.inf, X)
    with pytest.raises(DataError, match="X has inf in row"):
        write_rows(MemoryStore(), endless)
    scratch = write_rows(MemoryStore(), schema=strict, gaps=True)
    (block,) = scratch.blocks(0, N, N)
    np.testing.assert_array_equal(block.X, strict.expand(X))
    assert np.isnan(block.X).any()


def test_content__is_of_the_rows_and_what_their_codes_mean():
    one = write_rows(MemoryStore())
    turned = write_rows(MemoryStore(), X[::-1], Y[::-1].copy(), chunk_rows=9)
    refilled = write_rows(MemoryStore(), schema=OTHER_FILLS)
    assert one.content == turned.content == refilled.content
    assert len({each.fingerprint for each in (one, turned, refilled)}) == 3
    columns = (*COLUMNS[:2], replace(COLUMNS[2], categories=("f", "n")), *COLUMNS[3:])
    assert write_rows(MemoryStore(), schema=replace(FILLED, columns=columns)).content != one.content
    halves = [write_rows(MemoryStore(), X[half], Y[half]) for half in (slice(15), slice(15, N))]
    together = sum(int(each.content, 16) for each in halves) % 2**64
    assert f"{together:016x}" == one.content


def test_encoded_by__another_filling_of_the_same_rows(tmp_path):
    dataset = write_rows(tmp_path / "data")
    other = dataset.encoded_by(OTHER_FILLS)
    for opened in (other, pickle.loads(pickle.dumps(other))):
        np.testing.assert_array_equal(opened.take(np.arange(N)), OTHER_FILLS.expand(X))
        assert opened.fingerprint == other.fingerprint != dataset.fingerprint
        assert opened.content == dataset.content
    assert str(other.location) == str(tmp_path / "data")
    labelled = other.of_labelled()
    np.testing.assert_array_equal(labelled.take(np.arange(N)), OTHER_FILLS.expand(X))


def test_encoded_by__what_cannot_be_is_named():
    dataset = write_rows(MemoryStore())
    columns = (*COLUMNS[:2], replace(COLUMNS[2], categories=("m", "w")), *COLUMNS[3:])
    with pytest.raises(DataError, match="has a column 'sex' of other categories, such as 'f'"):
        dataset.encoded_by(replace(FILLED, columns=columns))
    with pytest.raises(DataError, match="has missing values in the column 'age'"):
        dataset.encoded_by(replace(FILLED, missing="error"))


def test_encoded_by__gaps_that_are_no_longer_filled():
    # As a schema that was given says, there were none.
    whole = replace(FILLED, columns=tuple(replace(each, missing=0.0) for each in COLUMNS))
    dataset, strict = write_rows(MemoryStore(), schema=whole), replace(whole, missing="error")
    with pytest.raises(DataError, match="has missing values, which are not filled"):
        dataset.encoded_by(strict)
    without = write_rows(MemoryStore(), np.nan_to_num(X), schema=whole)
    np.testing.assert_array_equal(
        without.encoded_by(strict).take(np.arange(N)), without.take(np.arange(N))
    )


def test_model__schema_comes_back_and_encodes(tmp_path):
    model = make_model(schema=OTHER_FILLS, n_features=FILLED.n_features)
    model = replace(model, feature_names=FILLED.feature_names)
    model.save(tmp_path / "model")
    loaded = Model.load(tmp_path / "model")
    assert loaded.schema == OTHER_FILLS
    assert loaded.digest() == model.digest()
    assert loaded.digest() != replace(model, schema=FILLED).digest()
    encoded = write_rows(MemoryStore()).encoded_like(loaded)
    np.testing.assert_array_equal(encoded.take(np.arange(N)), OTHER_FILLS.expand(X))
    with pytest.raises(DataError, match="has no column 'day'"):
        write_rows(
            MemoryStore(), X[:, :5], schema=replace(FILLED, columns=COLUMNS[:5])
        ).encoded_like(loaded)
    with pytest.raises(DataError, match="X has 3 columns, but the model was trained on 15"):
        write_dataset(MemoryStore(), table(5)).encoded_like(loaded)
