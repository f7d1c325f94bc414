import numpy as np
import pytest

from dask_nrbfn.numeric.cell_tree import CellTree


def rows_of(n_rows=1000, n_columns=4, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n_rows, n_columns)) * [3.0, 1.0, 2.0, 0.5][:n_columns]


def test_grown__halves_down_to_the_most_rows():
    rows = rows_of()
    tree = CellTree.grown(rows, most_rows=100)
    sizes = np.bincount(tree.route(rows).cells)
    assert tree.n_cells == len(sizes) == 16
    assert sizes.min() >= 50
    assert sizes.max() <= 100
    assert tree.columns[0] == 0
    assert tree.thresholds[0] == np.median(rows[:, 0])


@pytest.mark.parametrize("n_cells", [1, 2, 3, 7, 100])
def test_grown__a_number_of_cells(n_cells):
    rows = rows_of()
    tree = CellTree.grown(rows, most_rows=1, most_cells=n_cells)
    sizes = np.bincount(tree.route(rows).cells)
    assert tree.n_cells == len(sizes) == n_cells
    assert sizes.max() <= 4 * sizes.min()


def test_grown__of_columns_that_no_median_splits_is_one_cell():
    rng = np.random.default_rng(0)
    binary = (rng.random((200, 50)) < 0.1).astype(float)
    assert CellTree.grown(binary, most_rows=10).n_cells == 1
    assert CellTree.grown(np.ones((200, 3)), most_rows=10).n_cells == 1
    # A column with two values of equal frequency is split once.
    both = np.column_stack([binary, np.arange(200) % 2])
    assert CellTree.grown(both, most_rows=10).n_cells == 2
