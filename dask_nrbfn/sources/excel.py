"""The first sheet of Excel files."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from dask_nrbfn.errors import DamagedDataError, DataError, NRBFNError, ParameterError
from dask_nrbfn.sources.columnar import ColumnarSource, open_typed
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.source import Reading
from dask_nrbfn.sources.tablefile import Footer, Kinds, TypedFile


def open_rows(reading: Reading) -> ColumnarSource:
    """Return the rows of Excel files."""
    return open_typed(reading, ExcelFile)


class ExcelFile(TypedFile):
    """The first sheet of an Excel file, whose first row names the columns.

    The whole sheet is in memory; a sheet has at most a million rows.

    Parameters
    ----------
    file : File
    marks : sequence of str
        Markers of a missing value in text.
    """

    def __init__(self, file: File, marks: Sequence[str]) -> None:
        super().__init__(file)
        self._none = {"", *marks}

    @property
    def footer(self) -> Footer:
        """The schema and the number of rows."""
        table, _ = self._sheet
        return Footer(table.schema, table.num_rows)

    def _read(self, kinds: Kinds, batch_rows: int) -> Iterator[pa.RecordBatch]:
        table, _ = self._sheet
        yield from table.select(list(kinds)).combine_chunks().to_batches(batch_rows)

    def place(self, row: int) -> str:
        """Return the row number that the sheet shows."""
        return f"row {self._sheet[1][row]} of the sheet"

    @cached_property
    def _sheet(self) -> tuple[pa.Table, list[int]]:
        """The table without empty rows, and the row numbers that the sheet shows."""
        try:
            import openpyxl
        except ImportError as error:
            raise ParameterError(
                f"{self} needs a package that is not installed ({error}).",
                "Install dask-nrbfn[excel], or save the sheet as CSV.",
            ) from error
        try:
            with self.file.open(jumps=True) as stream:
                book = openpyxl.load_workbook(stream, read_only=True, data_only=True)
                rows = [
                    (number, row)
                    for number, row in enumerate(book.worksheets[0].values, 1)
                    if any(cell is not None for cell in row)
                ]
        except (NRBFNError, PermissionError):
            raise
        except Exception as error:  # openpyxl also raises errors of zip and XML.
            raise DamagedDataError(
                f"{self} cannot be read as an Excel file ({type(error).__name__}: {error}).",
                "Save the file again in Excel, or save the sheet as CSV.",
            ) from error
        if not rows:
            raise DataError(f"{self} is empty: its first sheet has no rows.", "Give another file.")
        (_, header), *others = rows
        names = ["" if cell is None else str(cell).strip() for cell in header]
        columns = [
            self._column([row[place] if place < len(row) else None for _, row in others])
            for place in range(len(names))
        ]
        # Cells with a format but no value make empty columns.
        shown = [
            place
            for place, name in enumerate(names)
            if name or columns[place].null_count < len(others)
        ]
        arrays = [columns[place] for place in shown]
        table = pa.table(arrays, names=[names[place] for place in shown])
        return table, [number for number, _ in others]

    def _column(self, cells: list[Any]) -> pa.Array:
        values = [
            None if isinstance(cell, str) and cell.strip() in self._none else cell for cell in cells
        ]
        try:
            return pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            return pa.array([None if value is None else str(value) for value in values])
