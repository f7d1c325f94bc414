import datetime

import numpy as np
import openpyxl
import pytest

from dask_nrbfn.commands.ingest import ingest_file
from dask_nrbfn.errors import DamagedDataError, DataError
from dask_nrbfn.sources import open_source
from dask_nrbfn.sources.survey import TableOptions

ROWS = [
    ["size", "kind", "day", "is_new", "price"],
    [1.5, "a", datetime.datetime(2020, 1, 1), True, 10],
    [2, " b", datetime.datetime(2020, 1, 2, 12), False, 20.5],
    [None, "NA", None, None, None],
    ["?", "a", datetime.datetime(2020, 1, 3), True, 30],
]


def workbook(path, rows=ROWS):
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.create_sheet("notes").append(["of no interest"])
    book.save(path)
    return path


def test_excel__first_sheet_is_a_table(tmp_path):
    rows = [*ROWS[:3], [None] * 5, *ROWS[4:]]
    path = workbook(tmp_path / "d.xlsx", rows)
    source = open_source(path, target="price", table=TableOptions(missing="impute"))
    kinds = {column.name: column.kind for column in source.schema.columns}
    assert kinds == {"size": "number", "kind": "category", "day": "date", "is_new": "boolean"}
    (block,) = source.blocks(10)
    expected = [[1.5, 0, 18262, 1], [2, 1, 18263.5, 0], [np.nan, 0, 18264, 1]]
    np.testing.assert_array_equal(block.X, expected)
    assert block.y.tolist() == [[10], [20.5], [30]]


def test_excel__is_the_table_that_csv_has(tmp_path):
    table = [["a", "b", "y"], *([row / 2, f"k{row % 3}", row % 2] for row in range(20))]
    (tmp_path / "d.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in table))
    path = workbook(tmp_path / "d.xlsx", table)
    prints = {
        ingest_file(each, tmp_path / f"{each.suffix}.zarr", label="y").fingerprint
        for each in (path, tmp_path / "d.csv")
    }
    assert len(prints) == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], r"is empty: its first sheet has no rows"),
        ([["a", "b"]], r"is empty: it has no rows"),
        ([["a"], [1], [None], [float("nan")], ["x"]], r"a is left out|no feature"),
        ([["a", "b"], [1, 2], [None, None], [3, "#N/A"]], r"'b' .*no value in row 4 of the sheet"),
        ([["a", "a"], [1, 2]], r"several columns named 'a'"),
        ([["a", None], [1, 2]], r"Column 2 of .* has no name"),
    ],
)
def test_excel__what_cannot_be_used(tmp_path, rows, message):
    path = workbook(tmp_path / "d.xlsx", rows)
    if message.startswith("a is"):
        assert open_source(path).schema.columns[0].kind == "category"
        return
    with pytest.raises(DataError, match=message):
        list(open_source(path).blocks(5))


def test_excel__cells_without_anything_are_no_columns(tmp_path):
    path = workbook(tmp_path / "d.xlsx", [["a", "b", None, None], [1, 2, None], [3, 4]])
    assert open_source(path).feature_names == ("a", "b")


def test_excel__damaged(tmp_path):
    path = tmp_path / "d.xlsx"
    path.write_bytes(b"PK no zip")
    with pytest.raises(DamagedDataError, match=r"cannot be read as an Excel file \(.*Save the fi"):
        open_source(path)
