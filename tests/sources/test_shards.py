"""Directories of .npy files are one array, in the order of their names."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_nrbfn.errors import DamagedDataError, DataError, ParameterError
from dask_nrbfn.sources import open_source
from tests.numeric.chunkings import row_chunkings, split
from tests.sources.test_arrays import collect


def save(directory, pieces, order="C"):
    directory.mkdir()
    for place, piece in enumerate(pieces):
        np.save(directory / f"part-{place:03}.npy", np.asarray(piece, order=order))
    return directory


@settings(max_examples=15, deadline=None)
@given(lengths=row_chunkings(), labels=st.sampled_from([1, 2, 7]), step=st.integers(1, 50))
def test_shards__any_files_and_blocks(lengths, labels, step):
    n = sum(lengths)
    X, y = np.arange(3.0 * n).reshape(n, 3), np.array([f"{'x' * (i % 4)}{i}" for i in range(n)])
    with TemporaryDirectory() as scratch:
        place = Path(scratch)
        # Files may have no rows, and texts of other lengths.
        save(place / "X", [X[:0], *split(X, lengths)])
        save(place / "y", np.array_split(y, labels))
        np.save(place / "weights.npy", np.arange(1.0, n + 1))
        source = open_source(place / "X", y=str(place / "y"), weights=str(place / "weights.npy"))
        values, found = collect(source, step)
        weights = np.concatenate([block.weights for block in source.blocks(step)])
    np.testing.assert_array_equal(values, X)
    assert found.tolist() == y.tolist()
    np.testing.assert_array_equal(weights, np.arange(1.0, n + 1))


@pytest.mark.parametrize("order", "CF")
def test_shards__of_several_widths_and_orders(tmp_path, order):
    X = np.random.default_rng(0).normal(size=(10, 2, 3)).astype(np.float16)
    place = save(tmp_path / "X", [X[:4], X[4:].astype(np.float32)], order)
    target = save(tmp_path / "t", np.array_split(np.arange(20.0).reshape(10, 2), 3), order)
    source = open_source(place, target=str(target))
    assert (source.x_dtype, source.n_features) == (np.float32, 6)
    values, numbers = collect(source, 3)
    np.testing.assert_array_equal(values, X.reshape(10, 6))
    np.testing.assert_array_equal(numbers, np.arange(20.0).reshape(10, 2))


@pytest.mark.parametrize(
    "second", [np.zeros((2, 4)), np.zeros(2), np.zeros((2, 3), dtype=np.int64)]
)
def test_shards__that_are_not_alike(tmp_path, second):
    place = save(tmp_path / "X", [np.zeros((2, 3)), second])
    with pytest.raises(
        DataError, match=r"part-001\.npy has shape .*part-000\.npy has shape \(2, 3"
    ):
        open_source(place)


def test_shards__wrong_ones_are_named(tmp_path):
    place = save(tmp_path / "X", [np.zeros((2, 3)), np.zeros((3, 3))])
    labels = save(tmp_path / "y", [np.zeros(4, dtype=int)])
    with pytest.raises(DataError, match=r"y has 4 rows but .*X has 5"):
        open_source(place, y=str(labels))
    with pytest.raises(ParameterError, match="also has another role"):
        open_source(place, weights=str(place))
    (labels / "part-000.npy").rename(labels / "part.csv")
    with pytest.raises(DataError, match=r"y has no \.npy files"):
        open_source(place, y=str(labels))
    path = place / "part-001.npy"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(DamagedDataError, match=r"part-001\.npy is damaged"):
        open_source(place)
