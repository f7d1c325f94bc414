"""Rows of tables in any format: one pass surveys the cells, later passes read them."""

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa

from dask_nrbfn.errors import Advice, DataError
from dask_nrbfn.numeric.schema import UNSEEN, Column, Schema
from dask_nrbfn.sources.cells import CellError, filtered, stored_values
from dask_nrbfn.sources.decide import decide, gap_error
from dask_nrbfn.sources.dtypes import FLOAT64, INT64, NO_LABEL, STRING, means_empty
from dask_nrbfn.sources.source import Block, Source, check_size
from dask_nrbfn.sources.survey import CellKind, ColumnSurvey, GapSets
from dask_nrbfn.sources.tables import (
    Asked,
    MissingLabelError,
    TableColumns,
    check_column,
    lacks_label,
)

logger = logging.getLogger(__name__)

# Largest number of rows, and of cells, that are surveyed together.
SURVEY_ROWS, _SURVEY_CELLS = 1 << 16, 1 << 22


class Table(Protocol):
    """A file of named columns; ``str`` of a table is the path."""

    @property
    def decimal(self) -> str:
        """Decimal mark of the text, empty if unknown."""
        ...

    def batches(
        self, kinds: Mapping[str, CellKind | None], batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some columns in order.

        Its columns are in any order.

        kinds: kind that each column is read as; None: its own type.
        batch_rows: the largest number of rows of a batch.
        """
        ...

    def place(self, row: int) -> str:
        """Return the place of a row in the file, such as "line 3"."""
        ...


@dataclass(frozen=True, eq=False)
class Rows:
    """Consecutive rows of a table.

    first_row: index of the first of these rows in the table.
    cells: some columns, (b,) each, by name.
    """

    table: Any
    first_row: int
    cells: Mapping[str, pa.Array]

    def __len__(self) -> int:
        return len(next(iter(self.cells.values())))

    def column(self, name: str | None) -> str:
        """Return the name of a column for errors."""
        return f"Column {name!r} of {self.table}"

    def place(self, row: int) -> str:
        """Return the name of a row for errors, given its index among these rows."""
        return str(self.table.place(self.first_row + row))

    def lacks(self, name: str, row: int) -> str:
        """Return the sentence of an error about a cell without a value.

        name: the column.
        row: index among these rows.
        """
        return f"{self.column(name)} has no value in {self.place(row)}."

    def check_finite(self, name: str, infinite: np.ndarray) -> None:
        """Raise DataError naming the first infinite cell of a column.

        name: the column.
        infinite (b,): which cells are infinite.
        """
        if infinite.any():
            row = int(infinite.argmax())
            raise DataError(
                f"{self.column(name)} has {self.cells[name][row].as_py()} in {self.place(row)}.",
                "Remove the row, or write a finite value.",
            )


@dataclass(kw_only=True)
class TableSource(Source):
    """Rows of tables, in their order, and the stored values of their columns."""

    tables: tuple[Table, ...]
    columns: TableColumns
    schema: Schema

    @classmethod
    def of(
        cls,
        tables: tuple[Table, ...],
        columns: TableColumns,
        schema: Schema,
        n_rows: int,
        **attributes: Any,
    ) -> Self:
        """Return the rows of tables whose columns are decided.

        n_rows: number of rows n that are not left out.
        **attributes: the types of a `Source`, and attributes of the subclass.
        """
        check_size(columns.asked.origin, n_rows=n_rows, n_features=len(schema.columns))
        return cls(
            n_rows=n_rows,
            n_features=len(schema.columns),
            has_weights=columns.roles.weights is not None,
            feature_names=tuple(column.name for column in schema.columns),
            target_names=columns.roles.targets,
            schema=schema,
            tables=tables,
            columns=columns,
            **attributes,
        )

    @property
    def asked(self) -> Asked:
        """The options of the table."""
        return self.columns.asked

    def _stored(self, rows: Rows) -> np.ndarray:
        """Return the stored features of some rows, (b, c) of type `x_dtype`."""
        columns, spoiled = self.schema.columns, self.asked.spoiled
        X = np.empty((len(rows), len(columns)), self.x_dtype)
        for j, column in enumerate(columns):
            remedy = self.asked.cell_remedy(column.name)
            X[:, j] = _cell_values(rows, column, spoiled=spoiled, remedy=remedy)
            add_unseen(self.unseen, rows.cells[column.name], X[:, j], column)
        return X

    @property
    def empty_label(self) -> int | str:
        """What is stored for an empty label."""
        mark = self.asked.unlabelled
        return NO_LABEL if self.y_dtype == INT64 else str("" if mark is None else mark)

    @abstractmethod
    def _labels(self, rows: Rows, name: str) -> np.ndarray:
        """Return the labels (b,) in a column, of type `y_dtype`."""

    @abstractmethod
    def _ids(self, rows: Rows, name: str) -> np.ndarray:
        """Return the ids (b,) in a column, of type `id_dtype`."""

    def carried(self, names: Sequence[str]) -> pa.RecordBatchReader:
        """Return some columns of all rows unchanged; columns of CSV are text."""
        for name in names:
            check_column(self.asked.origin, name, self.columns.names, "keep")
        kinds: dict[str, CellKind | None] = dict.fromkeys(names)
        schema = pa.schema([(name, self._carried_type(name)) for name in names])
        batches = (
            batch.select(names).cast(schema)
            for table in self.tables
            for batch in table.batches(kinds, SURVEY_ROWS)
        )
        return pa.RecordBatchReader.from_batches(schema, batches)

    def _carried_type(self, name: str) -> pa.DataType:
        """Return the type that a column is carried as."""
        return pa.string()

    def _parts(self, block_rows: int) -> Iterator[Block]:
        features = _kinds_of(self.schema.columns)
        ids = _IdsAgain(self._ids_again()) if self.columns.id in features else None
        n_mended = n_rows = 0
        self.unseen.clear()
        for rows in read(self.tables, _of_others(self.columns) | features, block_rows):
            block = self._block(rows, ids)
            if self.asked.spoiled:
                bad = np.isinf(block.X)
                block.X[bad] = np.nan
                self.bad_rows += (n_rows + np.flatnonzero(bad.any(axis=1))).tolist()
            n_rows += len(block.X)
            if self.asked.classes is not None and self.y_dtype == STRING:
                n_mended += _without_stops(block.y, self.asked.classes)
            yield block
        for line in unseen_lines(self.unseen):
            logger.warning("ingest: %s", line)
        if n_mended:
            logger.info(
                "ingest: %d labels are read as known labels, except for a final full stop", n_mended
            )

    def _ids_again(self) -> Iterator[np.ndarray]:
        """Yield the ids of consecutive rows, read without other columns."""
        name = self.columns.id
        assert name is not None
        for rows in read(self.tables, {name: None}, SURVEY_ROWS):
            yield self._ids(rows, name)

    def _block(self, rows: Rows, ids_again: "_IdsAgain | None") -> Block:
        X = self._stored(rows)
        spoiled = self.asked.spoiled
        has_gap = np.isnan(X).any(axis=1)
        if self.schema.missing == "error" and not spoiled and has_gap.any():
            row = int(has_gap.argmax())
            name = self.schema.columns[int(np.isnan(X[row]).argmax())].name
            raise gap_error(rows.lacks(name, row), decided=self.asked.schema is not None)
        label, targets, weights = self.columns.roles
        y = row_weights = ids = None
        if targets is not None:
            y = np.stack([_numbers(rows, name, self.asked) for name in targets], axis=1)
        elif label is not None:
            y = self._labels(rows, label)
        if weights is not None:
            row_weights = _weights(rows, weights, self.asked)
        if ids_again is not None:
            ids = ids_again.take(len(X))
        elif self.columns.id is not None:
            ids = self._ids(rows, self.columns.id)
        block = Block(X, y, row_weights, ids)
        if not self.asked.drops:
            return block
        whole = ~has_gap
        for none in _lacking(rows, self.columns).values():
            whole &= ~none
        return Block(X[whole], *(None if part is None else part[whole] for part in block[1:]))


class _IdsAgain:
    """Ids from a column that is also a feature, so that it is read a second time."""

    def __init__(self, parts: Iterator[np.ndarray]) -> None:
        self._parts = parts
        self._held: list[np.ndarray] = []

    def take(self, n_rows: int) -> np.ndarray:
        """Return the ids of the next rows."""
        while sum(map(len, self._held)) < n_rows:
            self._held.append(next(self._parts))
        whole = np.concatenate(self._held)
        self._held = [whole[n_rows:]]
        return whole[:n_rows]


def read(
    tables: Iterable[Table], kinds: Mapping[str, CellKind | None], batch_rows: int
) -> Iterator[Rows]:
    """Yield the rows of tables in order, at most `batch_rows` at a time, with some columns.

    kinds, batch_rows: see `Table.batches`.
    """
    for table in tables:
        first_row = 0
        for batch in table.batches(kinds, batch_rows):
            cells = dict(zip(batch.schema.names, batch.columns, strict=True))
            yield Rows(table, first_row, cells)
            first_row += batch.num_rows


def _kinds_of(columns: Iterable[Column]) -> dict[str, CellKind | None]:
    """Return the kind that each column is read as: text for an unusual form of numbers or dates."""
    return {column.name: "text" if column.written else column.kind for column in columns}


def _of_others(columns: TableColumns) -> dict[str, CellKind | None]:
    """Return the kind that each column with another role than a feature is read as."""
    label, targets, weights = columns.roles
    numbers: dict[str, CellKind | None] = dict.fromkeys(targets or (), "number")
    if weights is not None:
        numbers[weights] = "number"
    return numbers | {name: None for name in (label, columns.id) if name is not None}


def survey_tables(
    tables: tuple[Table, ...],
    columns: TableColumns,
    kinds: Mapping[str, CellKind],
    see: Callable[[Rows], None],
) -> tuple[Schema, int]:
    """Return the schema of tables, and the number of rows that are kept.

    columns: if the options have a schema, these are its columns.
    kinds: kinds of the columns that may become features.
    see: called with each batch of rows; raises MissingLabelError where a label is missing.
    """
    asked, others = columns.asked, _of_others(columns)
    fills, decimal = asked.options.missing == "impute", tables[0].decimal
    surveys = {
        name: ColumnSurvey(kinds[name], fills=fills, decimal=decimal) for name in columns.features
    }
    decided = () if asked.schema is None else asked.schema.columns
    surveys = surveys if asked.schema is None else {}
    wanted: dict[str, CellKind | None] = {name: kinds[name] for name in surveys}
    if asked.drops and asked.schema is not None:
        wanted |= _kinds_of(asked.schema.columns)
    wanted |= others
    gap_sets = GapSets()
    if not wanted:
        wanted = {columns.features[0]: None}
    gaps: dict[str, tuple[Table, int]] = {}
    label_gaps, refused = Counter[str](), None
    n_rows = 0
    batch_rows = max(1, min(SURVEY_ROWS, _SURVEY_CELLS // len(wanted)))
    for rows in read(tables, wanted, batch_rows):
        n_rows += len(rows)
        lacking = {name: _add(survey, rows, name, gaps) for name, survey in surveys.items()}
        if asked.drops:
            lacking |= _gaps_of(rows, decided)
            gap_sets.add(lacking | _lacking(rows, columns))
        try:
            for name in columns.roles.targets or ():
                _numbers(rows, name, asked)
            see(rows)
        except MissingLabelError as error:
            # Other columns may have gaps too: one error names all of them.
            refused = refused or error
            without = _without_targets(rows, columns)
            label_gaps.update({name: int(none.sum()) for name, none in without.items()})

    check_size(asked.origin, n_rows=n_rows, n_features=len(columns.features))

    def gap(name: str) -> str:
        table, row = gaps[name]
        return f"of {table} has no value in {table.place(row)}"

    if asked.schema is not None:
        schema = columns.given_schema
    else:
        schema, lines, unread = decide(
            surveys,
            columns.roles,
            asked.options,
            ignored=columns.ignored,
            gap=gap,
            label_gaps={name: count for name, count in label_gaps.items() if count},
            origin=asked.origin,
        )
        _check_read(tables, unread)
        for line in lines:
            logger.info("ingest: %s", Advice(line))
    if refused is not None:
        raise refused
    if asked.drops:
        names = {column.name for column in schema.columns} | {*_of_others(columns)}
        among = gap_sets.among(names) if gap_sets.are_all else _read_gaps(tables, schema, columns)
        n_rows = _n_whole(n_rows, *among, asked.origin)
    return schema, n_rows


def _cell_values(
    rows: Rows, column: Column, *, spoiled: bool = False, remedy: str | None = None
) -> np.ndarray:
    """Return the stored values of a column, float64 (b,); infinite only if `spoiled`.

    `remedy` is for a cell that is not of the column's kind, by default the usual one.
    """
    try:
        values = stored_values(rows.cells[column.name], column, spoiled=spoiled)
    except CellError as error:
        raise error.within(rows.table, rows.place(error.row), remedy) from error
    if not spoiled:
        rows.check_finite(column.name, np.isinf(values))
    return values


def _add(
    survey: ColumnSurvey, rows: Rows, name: str, gaps: dict[str, tuple[Table, int]]
) -> np.ndarray:
    """Add cells to the survey of a column, note its first gap, and return which have no value."""
    n_missing = survey.n_missing
    if survey.kind in ("category", "text"):
        none = survey.add(rows.cells[name])
    else:
        values = _cell_values(rows, survey.column(name))
        survey.add_numbers(values)
        none = np.isnan(values)
    if survey.n_missing > n_missing and name not in gaps:
        # The line of a row of CSV text is slow to find, and wanted only for an error.
        gaps[name] = rows.table, rows.first_row + int(none.argmax())
    return none


def add_unseen(
    unseen: dict[str, ColumnSurvey], array: pa.Array, stored: np.ndarray, column: Column
) -> None:
    """Add the cells of a category column whose category is not in the schema.

    unseen: the surveys to add to, by column.
    array (b,): the cells.
    stored (b,): stored values of the cells.
    """
    if column.kind == "category" and (new := stored == UNSEEN).any():
        survey = unseen.setdefault(column.name, ColumnSurvey("category"))
        survey.add(filtered(array, new))


def unseen_lines(unseen: Mapping[str, ColumnSurvey]) -> Iterator[str]:
    """Yield a line for the log about the unseen categories of each column."""
    for name, survey in unseen.items():
        first = min(survey.texts, key=lambda text: (-survey.texts[text], text))
        n_others = survey.n_different - 1
        rows = "1 row has" if survey.n_values == 1 else f"{survey.n_values} rows have"
        more = f" and {n_others} other{'s' * (n_others > 1)}" if n_others else ""
        yield (f"column {name}: {rows} a value that training did not have: {first!r}{more}")


def _check_read(tables: tuple[Table, ...], columns: tuple[Column, ...]) -> None:
    """Raise DataError naming the first cell that cannot be read as its column is written."""
    for rows in read(tables, _kinds_of(columns), SURVEY_ROWS) if columns else ():
        _gaps_of(rows, columns)


def _gaps_of(rows: Rows, columns: Iterable[Column]) -> dict[str, np.ndarray]:
    """Return which rows lack a value in each column."""
    return {column.name: np.isnan(_cell_values(rows, column)) for column in columns}


def _read_gaps(
    tables: tuple[Table, ...], schema: Schema, columns: TableColumns
) -> tuple[int, Counter[str]]:
    """Return how many rows lack a value, and how many in each column, reading all rows."""
    n_gaps, counts = 0, Counter[str]()
    # An id may be a feature too.
    kinds = _of_others(columns) | _kinds_of(schema.columns)
    for rows in read(tables, kinds, SURVEY_ROWS):
        lacking = _gaps_of(rows, schema.columns) | _lacking(rows, columns)
        n_gaps += int(np.any([*lacking.values()], axis=0).sum())
        counts.update({name: int(none.sum()) for name, none in lacking.items()})
    return n_gaps, counts


def _n_whole(n_rows: int, n_gaps: int, lacking: Mapping[str, int], origin: str) -> int:
    """Return the number of complete rows; log how many are left out, and for which columns."""
    where = ", ".join(f"{name} {count}" for name, count in lacking.items() if count)
    if n_gaps == n_rows:
        raise DataError(
            f"every row of {origin} lacks a value: {where}.",
            "Pass `missing`='impute' for features, or leave columns out with `drop`. Set "
            "`unlabelled` to keep rows without a label.",
        )
    if n_gaps:
        logger.info("ingest: %d rows that lack values are left out: %s", n_gaps, where)
    return n_rows - n_gaps


def _lacking(rows: Rows, columns: TableColumns) -> dict[str, np.ndarray]:
    """Return which labels, targets and weights, by column, are missing and leave a row out."""
    asked, name, lacking = columns.asked, columns.roles.weights, {}
    if name is not None:
        values = _cell_values(rows, Column(name, "number"), remedy=asked.cell_remedy(name))
        lacking[name] = np.isnan(values)
    return lacking | ({} if means_empty(asked.unlabelled) else _without_targets(rows, columns))


def _without_targets(rows: Rows, columns: TableColumns) -> dict[str, np.ndarray]:
    """Return which cells of labels and targets, by column, have no value."""
    label, targets, _ = columns.roles
    lacking = {
        # Other passes report cells that are not numbers.
        name: np.isnan(stored_values(rows.cells[name], Column(name, "number"), spoiled=True))
        for name in targets or ()
    }
    if label is not None:
        lacking[label] = lacks_label(rows.cells[label])
    return lacking


def _numbers(rows: Rows, name: str, asked: Asked) -> np.ndarray:
    values = _cell_values(rows, Column(name, "number"), remedy=asked.cell_remedy(name))
    none = np.isnan(values)
    if none.any() and not asked.may_lack_labels:
        raise asked.no_label_error(rows.lacks(name, int(none.argmax())), is_target=True)
    return values


def no_value_error(rows: Rows, name: str, row: int) -> DataError:
    """Return the error about an empty cell that nothing can fill.

    rows, name, row: see `Rows.lacks`.
    """
    return DataError(rows.lacks(name, row), "Fill the cell or leave the row out.")


def _weights(rows: Rows, name: str, asked: Asked) -> np.ndarray:
    array = rows.cells[name]
    values = stored_values(array, Column(name, "number")).astype(FLOAT64, copy=False)
    if array.null_count and not asked.drops:
        raise no_value_error(rows, name, int(np.isnan(values).argmax()))
    return values


def _without_stops(y: np.ndarray | None, classes: tuple[int | str, ...]) -> int:
    """Add or remove a final full stop to get known labels; return how many labels changed."""
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
