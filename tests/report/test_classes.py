import numpy as np
import pytest

from dask_nrbfn.report.classes import confusion_tables


def test_confusion__counts_shares_and_heat():
    table = confusion_tables("t", ["a", "b", "c"], [[8, 2, 0], [1, 9, 0], [0, 0, 0]])
    assert table.matrix.header == ["class", "a", "b", "c"]
    assert table.matrix.rows == [["a", "8", "2", "0"], ["b", "1", "9", "0"], ["c", "0", "0", "0"]]
    # Right labels by their share of the class, wrong ones relative to the largest of their shares.
    assert table.matrix.heat == [[0.8, 1.0, 0.0], [0.5, 0.9, 0.0], [0.0, 0.0, 0.0]]
    assert table.pairs.rows == [["a", "b", "2", "20.0 %"], ["b", "a", "1", "10.0 %"]]
    assert table.classes.rows == [
        ["a", "88.9 %", "80.0 %", "84.2 %", "10"],
        ["b", "81.8 %", "90.0 %", "85.7 %", "10"],
        ["c", "-", "-", "-", "0"],
    ]


def test_confusion__of_labels_that_the_model_does_not_know():
    table = confusion_tables("t", ["a", "b"], [[8, 2], [0, 10], [0, 4]])
    assert table.matrix.header == ["class", "a", "b"]
    assert table.matrix.rows[-1] == ["(unknown)", "0", "4"]
    assert table.matrix.heat[-1] == [0.0, 1.0]
    # The unknown rows were taken for b.
    assert table.classes.rows[1:] == [
        ["b", "62.5 %", "100.0 %", "76.9 %", "10"],
        ["(unknown)", "-", "-", "-", "4"],
    ]
    assert table.pairs.rows == [["(unknown)", "b", "4", "100.0 %"], ["a", "b", "2", "20.0 %"]]


def test_confusion__of_weights():
    table = confusion_tables("t", ["a", "b"], [[1.25, 0.5], [0, 2.0]])
    assert table.matrix.rows[0] == ["a", "1.25", "0.5"]
    assert table.classes.rows[0][-1] == "1.75"


def test_confusion__without_errors():
    table = confusion_tables("t", ["a", "b"], np.diag([3, 4]))
    assert table.pairs.rows == []
    assert table.matrix.heat == [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize(("n_classes", "in_table"), [(30, True), (31, False)])
def test_confusion__of_many_classes_is_a_list(n_classes, in_table):
    confusion = 50 * np.eye(n_classes)
    confusion[3, 4], confusion[4, 3] = 2, 7
    table = confusion_tables("t", [f"class {code}" for code in range(n_classes)], confusion)
    assert (table.matrix is not None) == in_table
    assert len(table.classes.rows) == 30
    assert table.classes.rows[0][0] == ("class 0" if in_table else "class 3")
    assert [pair[:3] for pair in table.pairs.rows] == [
        ["class 4", "class 3", "7"],
        ["class 3", "class 4", "2"],
    ]
