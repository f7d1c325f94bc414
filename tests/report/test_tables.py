"""Tables of classes, and of what columns are."""

import numpy as np
import pytest

from dask_nrbfn.report.facts import confusion_tables
from dask_nrbfn.report.formats import Table, schema_table
from tests.schemas import FILLED


def pairs(table):
    return [tuple(row.values()) for row in table.rows]


def tables_of(labels, confusion, n_rows=10_000):
    return confusion_tables("t", labels, {"confusion": confusion, "n_rows": n_rows})


def test_confusion__counts_and_shares():
    confused, classes = tables_of(["a", "b", "c"], [[8, 2, 0], [1, 9, 0], [0, 0, 0]])
    assert pairs(confused) == [("a", "b", 2.0, 0.2), ("b", "a", 1.0, 0.1)]
    assert classes.cells == [
        ["a", "88.89 %", "80.00 %", "84.21 %", "10"],
        ["b", "81.82 %", "90.00 %", "85.71 %", "10"],
        ["c", "-", "-", "-", "0"],
    ]


def test_confusion__of_labels_that_the_model_does_not_know():
    confused, classes = tables_of(["a", "b"], [[8, 2], [0, 10], [0, 4]])
    # The unknown rows were taken for b.
    assert classes.cells[1:] == [
        ["b", "62.50 %", "100.00 %", "76.92 %", "10"],
        ["(unknown)", "-", "-", "-", "4"],
    ]
    assert pairs(confused) == [("(unknown)", "b", 4.0, 1.0), ("a", "b", 2.0, 0.2)]


def test_confusion__of_weights_and_without_errors():
    confused, classes = tables_of(["a", "b"], [[1.25, 0], [0, 2.0]])
    assert confused.rows == []
    assert classes.cells[0][-1] == "1.25"


@pytest.mark.parametrize(
    ("confusion", "n_rows", "heading"),
    [
        ([[8, 2], [1, 9]], 20, "rows"),
        ([[8, 2], [1, 9]], 30, "rows"),
        ([[8.5, 2], [1, 9]], 30, "weight"),
        ([[16, 4], [2, 18]], 20, "weight"),
    ],
)
def test_confusion__heading_says_whether_rows_are_counted(confusion, n_rows, heading):
    confused, _ = tables_of(["a", "b"], confusion, n_rows)
    assert confused.header == ["class", "predicted", heading, "of class"]


@pytest.mark.parametrize(("n_classes", "first"), [(30, "class 0"), (31, "class 3")])
def test_confusion__of_many_classes_has_the_worst(n_classes, first):
    confusion = 50 * np.eye(n_classes)
    confusion[3, 4], confusion[4, 3] = 2, 7
    labels = [f"class {code}" for code in range(n_classes)]
    confused, classes = tables_of(labels, confusion)
    assert len(classes.rows) == 30
    assert classes.rows[0]["class"] == first
    assert [pair[:3] for pair in pairs(confused)] == [
        ("class 4", "class 3", 7.0),
        ("class 3", "class 4", 2.0),
    ]


def test_table__long_names_are_cut():
    name = "a class whose name is far longer than a column of a table"
    lines = Table("", [{"class": name, "rows": 3}], [True]).text.splitlines()
    assert lines[1] == f"* {name[:33]}...     3"


def test_schema__every_kind():
    assert schema_table(FILLED.to_dict()).text.splitlines() == [
        "  column  kind            values  missing  filled with",
        "  age     number               -  20.00 %         38.5",
        "  pay     number               -   0.50 %            7",
        "  sex     category             2  10.00 %            -",
        "  town    category  3 and others        -            -",
        "  paid    boolean              -        -            0",
        "  day     date                 -  30.00 %   2000-02-13",
        "  y       label                -        -            -",
    ]


def test_schema__of_many_columns_has_the_first_and_the_label():
    many = {"columns": {f"x{place}": {"kind": "number"} for place in range(100)}, "label": "y"}
    table = schema_table(many)
    assert len(table.rows) == 40 + 1
    assert table.cells[-1] == ["y", "label", "-", "-", "-"]
    assert table.title == "and 60 columns more"
