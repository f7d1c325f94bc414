"""Rows of tables, looked at once and then read, whatever their format."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.schema import Column, Kind, Schema
from dask_nrbfn.sources.cells import CellError, stored_values
from dask_nrbfn.sources.dtypes import FLOAT64, STRING
from dask_nrbfn.sources.layout import Layout, check_size
from dask_nrbfn.sources.recut import recut
from dask_nrbfn.sources.source import Block
from dask_nrbfn.sources.survey import ColumnSurvey, decide, gap_error
from dask_nrbfn.sources.tables import (
    Asked,
    TableColumns,
    check_column,
    no_value_error,
    not_finite_error,
)

logger = logging.getLogger(__name__)

# Rows and cells that are looked at together, at most.
SURVEY_ROWS, SURVEY_CELLS = 1 << 16, 1 << 22


class Table(Protocol):
    """A file of named columns; its text is the path."""

    def batches(
        self, kinds: Mapping[str, Kind | None], batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some columns in order, at most `batch_rows` at a time.

        The columns, in any order, are of types that can be read as their kinds, or None: of their
        own.
        """
        ...

    def place(self, row: int) -> str:
        """Return how a person finds a row, such as "line 3"."""
        ...


@dataclass(kw_only=True)
class TableSource(Layout, ABC):
    """Rows of tables, in their order, with what is stored of their columns.

    Attributes
    ----------
    tables : tuple of Table
    columns : TableColumns
    asked : Asked
    bad_rows : list of int
        Where rows may be spoiled, those read so far that have a cell which is no value of its
        column; they count as none.
    """

    tables: tuple[Table, ...]
    columns: TableColumns
    asked: Asked
    schema: Schema
    bad_rows: list[int] = field(default_factory=list)

    def blocks(self, block_rows: int) -> Iterator[Block]:
        """Yield all rows in order, `block_rows` at a time.

        Raises
        ------
        DataError
            If a cell is not of its column's kind, infinite, or empty where it must not be.
        DamagedDataError
            If a file is cut short or not of its format.
        """
        return recut(self._batches(block_rows), block_rows)

    def stored(self, cells: Mapping[str, pa.Array], table: Table, first_row: int) -> np.ndarray:
        """Return what is stored of the features of some rows, (b, c) of type `x_dtype`."""
        columns, spoiled = self.schema.columns, self.asked.spoiled
        X = np.empty((len(cells[columns[0].name]), len(columns)), self.x_dtype)
        for j, column in enumerate(columns):
            X[:, j] = cell_values(cells[column.name], column, table, first_row, spoiled=spoiled)
        return X

    @abstractmethod
    def labels(self, column: pa.Array, table: Any, first_row: int) -> np.ndarray:
        """Return labels (b,) of type `y_dtype`."""

    @abstractmethod
    def ids(self, column: pa.Array, table: Any, first_row: int) -> np.ndarray:
        """Return ids (b,) of type `id_dtype`."""

    def carried(self, names: Sequence[str]) -> pa.RecordBatchReader:
        """Return some columns of all rows as they are, those of CSV as text.

        Raises
        ------
        DataError
            If there is no such column, or one has types that have none in common.
        """
        for name in names:
            check_column(self.asked.origin, name, self.columns.names, "keep")
        kinds = dict.fromkeys(names)
        schema = pa.schema([(name, self.carried_type(name)) for name in names])
        batches = (
            batch.select(names).cast(schema)
            for table in self.tables
            for batch in table.batches(kinds, SURVEY_ROWS)
        )
        return pa.RecordBatchReader.from_batches(schema, batches)

    def carried_type(self, name: str) -> pa.DataType:
        """Return the type that a column is carried as."""
        return pa.string()

    def _batches(self, block_rows: int) -> Iterator[Block]:
        kinds: dict[str, Kind | None] = {each.name: each.kind for each in self.schema.columns}
        kinds |= of_others(self.columns)
        n_mended = n_rows = 0
        for table, first_row, cells in read(self.tables, kinds, block_rows):
            block = self._block(cells, table, first_row)
            if self.asked.spoiled:
                bad = np.isinf(block.X)
                block.X[bad] = np.nan
                self.bad_rows += (n_rows + np.flatnonzero(bad.any(axis=1))).tolist()
            n_rows += len(block.X)
            if self.asked.classes is not None and self.y_dtype == STRING:
                n_mended += _without_stops(block.y, self.asked.classes)
            yield block
        if n_mended:
            logger.info(
                "ingest: %d labels are taken without the full stop that they end in", n_mended
            )

    def _block(self, cells: Mapping[str, pa.Array], table: Table, first_row: int) -> Block:
        X = self.stored(cells, table, first_row)
        spoiled = self.asked.spoiled
        has_gap = np.isnan(X).any(axis=1)
        if self.schema.missing == "error" and not spoiled and has_gap.any():
            row = int(has_gap.argmax())
            name = self.schema.columns[int(np.isnan(X[row]).argmax())].name
            raise gap_error(
                f"Column {name!r} of {table} has no value in {table.place(first_row + row)}.",
                decided=self.asked.schema is not None,
            )
        label, targets, weights = self.columns.roles
        y = row_weights = ids = None
        if targets is not None:
            numbers = [_numbers(cells[name], name, table, first_row) for name in targets]
            y = np.stack(numbers, axis=1)
        elif label is not None:
            y = self.labels(cells[label], table, first_row)
        if weights is not None:
            row_weights = _weights(cells[weights], weights, table, first_row)
        if self.columns.id is not None:
            ids = self.ids(cells[self.columns.id], table, first_row)
        block = Block(X, y, row_weights, ids)
        if self.schema.missing != "drop" or spoiled:
            return block
        whole = ~has_gap
        return Block(X[whole], *(None if part is None else part[whole] for part in block[1:]))


def read(
    tables: Iterable[Table], kinds: Mapping[str, Kind | None], batch_rows: int
) -> Iterator[tuple[Table, int, dict[str, pa.Array]]]:
    """Yield batches of columns by name, each with its table and the number of its first row."""
    for table in tables:
        first_row = 0
        for batch in table.batches(kinds, batch_rows):
            yield table, first_row, dict(zip(batch.schema.names, batch.columns, strict=True))
            first_row += batch.num_rows


def of_others(columns: TableColumns) -> dict[str, Kind | None]:
    """Return as what the columns are read that are no features."""
    label, targets, weights = columns.roles
    numbers: dict[str, Kind | None] = dict.fromkeys(targets or (), "number")
    if weights is not None:
        numbers[weights] = "number"
    return numbers | {name: None for name in (label, columns.id) if name is not None}


def survey_tables(
    tables: tuple[Table, ...],
    columns: TableColumns,
    kinds: Mapping[str, Kind],
    asked: Asked,
    see: Callable[[Mapping[str, pa.Array], Any, int], None],
) -> tuple[Schema, int]:
    """Return what the columns of tables are and how many rows they have, reading them once.

    Parameters
    ----------
    tables : tuple of Table
    columns : TableColumns
    kinds : mapping
        Of the columns that may become features.
    asked : Asked
        With a schema, this is what the columns are.
    see : callable
        Is given the other columns of each batch, its table, and the number of its first row.
    """
    others = of_others(columns)
    surveys = {
        name: ColumnSurvey(kinds[name], fills=asked.options.missing == "impute")
        for name in columns.features
    }
    if asked.schema is not None:
        surveys = {}
    wanted = {name: kinds[name] for name in surveys} | others
    if not wanted:
        wanted = {columns.features[0]: None}
    gaps: dict[str, tuple[Table, int]] = {}
    n_rows = 0
    batch_rows = max(1, min(SURVEY_ROWS, SURVEY_CELLS // len(wanted)))
    for table, first_row, cells in read(tables, wanted, batch_rows):
        n_rows += len(next(iter(cells.values())))
        for name, survey in surveys.items():
            column = Column(name, survey.kind)
            _add(survey, cells[name], column, table, first_row, gaps)
        for name in columns.roles.targets or ():
            _numbers(cells[name], name, table, first_row)
        see(cells, table, first_row)

    check_size(asked.origin, n_rows=n_rows, n_features=len(columns.features))

    def gap(name: str) -> str:
        table, row = gaps[name]
        return f"of {table} has no value in {table.place(row)}"

    if asked.schema is not None:
        schema = asked.schema_of(columns)
    else:
        decision = decide(surveys, columns.roles, asked.options, ignored=columns.ignored, gap=gap)
        schema = decision.schema
        for line in decision.lines:
            logger.info("ingest: %s", line)
    if schema.missing == "drop" and not asked.spoiled:
        n_rows = _n_whole(tables, schema, asked.origin)
    return schema, n_rows


def cell_values(
    array: pa.Array, column: Column, table: Table, first_row: int, *, spoiled: bool = False
) -> np.ndarray:
    """Return what is stored of cells, float64 (b,); infinite only if `spoiled`.

    Raises
    ------
    DataError
        Naming the first cell that cannot be stored.
    """
    try:
        values = stored_values(array, column, spoiled=spoiled)
    except CellError as error:
        raise error.within(table, table.place(first_row + error.row)) from error
    infinite = np.isinf(values)
    if infinite.any() and not spoiled:
        row = int(infinite.argmax())
        raise _not_finite(array[row], column.name, table, first_row + row)
    return values


def _add(
    survey: ColumnSurvey,
    array: pa.Array,
    column: Column,
    table: Table,
    first_row: int,
    gaps: dict[str, tuple[Table, int]],
) -> None:
    """Add cells to the survey of a column, and note its first gap."""
    n_missing = survey.n_missing
    if column.kind == "category":
        survey.add(array)
    else:
        survey.add_numbers(cell_values(array, column, table, first_row))
    if survey.n_missing > n_missing and column.name not in gaps:
        row = int(np.isnan(stored_values(array, column)).argmax())
        gaps[column.name] = table, first_row + row


def _n_whole(tables: tuple[Table, ...], schema: Schema, origin: str) -> int:
    """Return how many rows lack no value; say how many are left out, and for which columns."""
    kinds = {column.name: column.kind for column in schema.columns}
    lacking = dict.fromkeys(kinds, 0)
    n_rows = n_whole = 0
    for table, first_row, cells in read(tables, kinds, SURVEY_ROWS):
        has_gap = np.zeros(len(next(iter(cells.values()))), dtype=bool)
        for column in schema.columns:
            none = np.isnan(cell_values(cells[column.name], column, table, first_row))
            lacking[column.name] += int(none.sum())
            has_gap |= none
        n_rows += len(has_gap)
        n_whole += int((~has_gap).sum())
    if n_whole == 0:
        raise DataError(
            f"every row of {origin} lacks a value.",
            "Say `missing` as impute, or leave columns out with `drop`.",
        )
    if n_whole < n_rows:
        where = ", ".join(f"{name} {count}" for name, count in lacking.items() if count)
        logger.info("ingest: %d rows that lack values are left out: %s", n_rows - n_whole, where)
    return n_whole


def _numbers(array: pa.Array, name: str, table: Table, first_row: int) -> np.ndarray:
    values = cell_values(array, Column(name, "number"), table, first_row)
    none = np.isnan(values)
    if none.any():
        row = int(none.argmax())
        raise _not_finite(array[row], name, table, first_row + row)
    return values


def _weights(array: pa.Array, name: str, table: Table, first_row: int) -> np.ndarray:
    values = stored_values(array, Column(name, "number")).astype(FLOAT64, copy=False)
    if array.null_count:
        row = first_row + int(np.isnan(values).argmax())
        raise no_value_error(f"Column {name!r} of {table}", table.place(row))
    return values


def _not_finite(cell: pa.Scalar, name: str, table: Table, row: int) -> DataError:
    return not_finite_error(cell, f"Column {name!r} of {table}", table.place(row))


def _without_stops(y: np.ndarray | None, classes: tuple[int | str, ...]) -> int:
    """Take the full stop from labels that are known without it, or add it; return how many."""
    n_mended = 0
    if y is None:
        return 0
    for label in {*y.tolist()}.difference(classes):
        alike = [known for known in (f"{label}.", label.removesuffix(".")) if known in classes]
        if len(alike) == 1:
            changed = y == label
            y[changed] = alike[0]
            n_mended += int(changed.sum())
    return n_mended
