import numpy as np
import pytest

from dask_nrbfn.report.confusion import ConfusionTable


def test_confusion__counts_shares_and_heat():
    table = ConfusionTable.of("t", ["a", "b", "c"], [[8, 2, 0], [1, 9, 0], [0, 0, 0]])
    a, b, c = table.lines
    assert [cell.text for cell in a.cells] == ["8", "2", ""]
    assert [cell.text for cell in c.cells] == ["", "", ""]
    # Right labels by their share of the class, wrong ones beside the gravest.
    assert [cell.heat for cell in a.cells] == [0.8, 1.0, 0.0]
    assert [cell.heat for cell in b.cells] == [0.5, 0.9, 0.0]
    assert table.pairs.rows == [["a", "b", "2", "20.0 %"], ["b", "a", "1", "10.0 %"]]
    assert table.classes.rows == [
        ["a", "88.9 %", "80.0 %", "84.2 %", "10"],
        ["b", "81.8 %", "90.0 %", "85.7 %", "10"],
        ["c", "-", "-", "-", "0"],
    ]


def test_confusion__of_labels_that_the_model_does_not_know():
    table = ConfusionTable.of("t", ["a", "b"], [[8, 2], [0, 10], [0, 4]])
    assert table.labels == ["a", "b"]
    unknown = table.lines[-1]
    assert unknown.label == "(unknown)"
    assert table.classes.rows[-1] == ["(unknown)", "-", "-", "-", "4"]
    # They were taken for b.
    assert table.classes.rows[1] == ["b", "62.5 %", "100.0 %", "76.9 %", "10"]
    assert [cell.text for cell in unknown.cells] == ["", "4"]
    assert unknown.cells[1].heat == 1.0
    assert table.pairs.rows == [["(unknown)", "b", "4", "100.0 %"], ["a", "b", "2", "20.0 %"]]


def test_confusion__of_weights():
    table = ConfusionTable.of("t", ["a", "b"], [[1.25, 0.5], [0, 2.0]])
    assert [cell.text for cell in table.lines[0].cells] == ["1.25", "0.5"]
    assert table.classes.rows[0][-1] == "1.75"


def test_confusion__without_errors():
    table = ConfusionTable.of("t", ["a", "b"], np.diag([3, 4]))
    assert table.pairs.rows == []
    assert {cell.heat for line in table.lines for cell in line.cells} == {0.0, 1.0}


@pytest.mark.parametrize(("n_classes", "in_table"), [(30, True), (31, False)])
def test_confusion__of_many_classes_is_a_list(n_classes, in_table):
    confusion = 50 * np.eye(n_classes)
    confusion[3, 4], confusion[4, 3] = 2, 7
    table = ConfusionTable.of("t", [f"class {code}" for code in range(n_classes)], confusion)
    assert bool(table.lines) == in_table
    assert len(table.classes.rows) == 30
    assert table.classes.rows[0][0] == ("class 0" if in_table else "class 3")
    assert [pair[:3] for pair in table.pairs.rows] == [
        ["class 4", "class 3", "7"],
        ["class 3", "class 4", "2"],
    ]


def test_confusion__as_text():
    labels = ["a", "a label that is long"]
    table = ConfusionTable.of("t", labels, [[8, 2], [0, 10]]).table
    assert table.header == ["class", "a", "a label .."]
    assert table.rows == [["a", "8", "2"], ["a label that is long", "0", "10"]]
    many = ConfusionTable.of("t", labels, [[8, 2], [0, 10]], most=1)
    assert many.table == many.pairs
    assert many.classes.title == "t: the 1 of 2 classes with the lowest F1"
