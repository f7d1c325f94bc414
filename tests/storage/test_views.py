"""The rows with labels of a dataset, as a dataset of its own."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from dask_nrbfn.commands.describe import problems_of
from dask_nrbfn.errors import DataError, ParameterError
from tests.tables import spirals, write_table

N_ROWS = 23
X, Y = spirals(N_ROWS)


def same_rows(dataset, X, codes, weights=None, *, block_rows=5):
    """Check everything that reads rows."""
    blocks = list(dataset.blocks(0, dataset.n_rows, block_rows))
    np.testing.assert_array_equal(np.concatenate([block.X for block in blocks]), X)
    np.testing.assert_array_equal(np.concatenate([block.targets for block in blocks]), codes)
    np.testing.assert_array_equal(dataset.codes(), codes)
    rows = np.arange(0, len(X), 2)
    np.testing.assert_array_equal(dataset.take(rows), X[rows])
    if weights is not None:
        np.testing.assert_array_equal(dataset.take_weights(rows), weights[rows])
        read = np.concatenate([block.weights for block in blocks])
        np.testing.assert_array_equal(read, weights)
    assert dataset.n_rows == len(X)
    assert dataset.n_unlabelled == np.count_nonzero(np.asarray(codes) < 0)


@settings(max_examples=6)
@given(
    labelled=st.lists(st.booleans(), min_size=N_ROWS, max_size=N_ROWS),
    chunk_rows=st.integers(1, N_ROWS),
    block_rows=st.integers(1, N_ROWS),
    text=st.booleans(),
)
def test_of_labelled__any_chunks(labelled, chunk_rows, block_rows, text):
    labelled, names = np.array(labelled), np.array(["ant", "bee", "cow"])
    labels, mark = (names[Y], "?") if text else (Y, 7)
    y = np.where(labelled, labels, mark)
    dataset = write_table(MemoryStore(), X, y, unlabelled=mark, chunk_rows=chunk_rows)
    classes, own = np.unique(y[labelled], return_inverse=True)
    np.testing.assert_array_equal(dataset.classes, classes)
    codes = np.full(N_ROWS, -1)
    codes[labelled] = own
    same_rows(dataset, X, codes, block_rows=block_rows)
    np.testing.assert_array_equal(dataset.labelled_rows(), np.flatnonzero(labelled))
    if labelled.any():
        view = dataset.of_labelled()
        same_rows(view, X[labelled], own, block_rows=block_rows)
        assert view.of_labelled() is view
    assert problems_of(dataset) == []


def test_unlabelled__numbers_are_none_of_a_row_or_all():
    numbers = np.column_stack([Y, -Y]).astype(float)
    numbers[4:9] = -999
    dataset = write_table(MemoryStore(), X, target=numbers, unlabelled=-999, chunk_rows=3)
    rows = np.arange(N_ROWS)
    expected = np.where(numbers == -999, np.nan, numbers)
    np.testing.assert_array_equal(dataset.take_targets(rows), expected)
    assert dataset.n_unlabelled == 5
    labelled = dataset.of_labelled()
    assert not np.isnan(labelled.take_targets(rows[: labelled.n_rows])).any()
    assert problems_of(dataset) == []
    numbers[2, 1] = -999
    with pytest.raises(DataError, match="in only some columns of row 2"):
        write_table(MemoryStore(), X, target=numbers, unlabelled=-999)
    numbers[2, 1] = np.nan
    with pytest.raises(DataError, match="target has nan in row 2"):
        write_table(MemoryStore(), X, target=numbers, unlabelled=-999)


@pytest.mark.parametrize(
    ("targets", "mark"),
    [({}, -1), ({"y": Y}, "none"), ({"y": Y}, 0.5), ({"target": Y}, "none")],
)
def test_unlabelled__must_be_of_the_kind_of_the_targets(targets, mark):
    with pytest.raises(ParameterError, match="unlabelled is"):
        write_table(MemoryStore(), X, **targets, unlabelled=mark)
