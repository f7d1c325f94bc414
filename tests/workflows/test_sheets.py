import numpy as np
import pytest

from dask_nrbfn import NRBFNClassifier
from tests.workflows.script import ROOT


@pytest.fixture
def sheet_source(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "workflows" / "benchmarks")
    from sheets import SheetSource

    return SheetSource


@pytest.mark.parametrize("block_rows", [1000, 8192, 20_000])
def test_sheets__rows_do_not_depend_on_the_blocks(sheet_source, block_rows):
    source = sheet_source(9000, 6)
    (whole,) = source.blocks(9000)
    blocks = list(source.blocks(block_rows))
    assert all(len(block.X) <= block_rows for block in blocks)
    np.testing.assert_array_equal(np.concatenate([block.X for block in blocks]), whole.X)
    np.testing.assert_array_equal(np.concatenate([block.y for block in blocks]), whole.y)


def test_sheets__a_longer_table_begins_alike(sheet_source):
    (short,) = sheet_source(8192, 4).blocks(8192)
    longer = next(iter(sheet_source(8193, 4).blocks(8192)))
    np.testing.assert_array_equal(short.X, longer.X)


def test_sheets__classes_overlap_but_can_be_told_apart(sheet_source):
    (rows,) = sheet_source(3000).blocks(3000)
    assert np.bincount(rows.y).min() > 200
    network = NRBFNClassifier().fit(rows.X[:2000], rows.y[:2000])
    error = 1 - network.score(rows.X[2000:], rows.y[2000:])
    assert 0.01 < error < 0.2
    assert len(network.basis_) > 400
