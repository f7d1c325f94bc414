"""Rows of tables with named columns: the role of each column, checks of names, stored values."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from dask_nrbfn.errors import Advice, DataError, ParameterError
from dask_nrbfn.numeric.schema import UNSEEN, Kind, Schema
from dask_nrbfn.sources.decide import FOR_FILES, decide
from dask_nrbfn.sources.dtypes import FLOAT64, INT64, NO_LABEL, STRING, means_empty, to_labels
from dask_nrbfn.sources.options import Roles, TableOptions
from dask_nrbfn.sources.relation import Table, kind_of, table_of, table_of_object
from dask_nrbfn.sources.source import Block, Reading, Source, check_apart, check_size
from dask_nrbfn.sources.survey import (
    CellKind,
    cell_kind,
    stored_of,
    survey,
    text_of,
    unread_of,
    value_of,
)

logger = logging.getLogger(__name__)

_NAMES_SHOWN = 10
_CARRIED_ROWS = 1 << 16
# Bytes of ``X`` in one batch, and the smallest batch, a vector of DuckDB.
_BATCH_BYTES, _VECTOR = 4 << 20, 2048


class Purposes(NamedTuple):
    """The purpose of each column of a table: features, roles, ids, or none."""

    features: tuple[str, ...]
    ignored: tuple[str, ...]
    roles: Roles
    id: str | None


@dataclass(kw_only=True)
class TableSource(Source):
    """Rows of a table, in their order, and the stored values of their columns.

    may_lack_labels: whether labels and targets may be missing.
    empty_label: the label that is stored for a missing one.
    spoiled: whether cells may be missing, or not of their column's kind; both are read as missing.
    """

    table: Table
    purposes: Purposes
    schema: Schema
    may_lack_labels: bool
    empty_label: int | str
    spoiled: bool
    unseen: Counter[str] = field(default_factory=Counter)

    def carried(self, names: Sequence[str]) -> pa.RecordBatchReader:
        """Return some columns of all rows, as they were read."""
        for name in names:
            check_column(self.table.origin, name, self.table.names, "keep")
        own = self.table.relation.project(", ".join(map(self.table.identifier, names)))
        types = own.limit(0).to_arrow_table().schema

        def batches() -> Iterator[pa.RecordBatch]:
            # A connection has one open result: the rows may be read meanwhile.
            with own.to_arrow_reader(_CARRIED_ROWS) as rows:
                yield from rows

        return pa.RecordBatchReader.from_batches(types, batches())

    def _parts(self, block_rows: int) -> Iterator[Block]:
        self.unseen.clear()
        self.bad_rows.clear()
        first_row = 0
        row_bytes = FLOAT64.itemsize * (self.n_features + len(self.target_names or ()))
        rows = max(_VECTOR, min(block_rows, _BATCH_BYTES // row_bytes))
        of_features, of_others = self._expressions()
        for batch in self.table.batches([*of_features, *of_others.values()], rows):
            columns = batch.columns
            X = np.empty((batch.num_rows, self.n_features), dtype=self.x_dtype)
            for j, values in enumerate(columns[: self.n_features]):
                X[:, j] = _numbers(values)
            others = dict(zip(of_others, columns[len(of_features) :], strict=True))
            self._check_cells(X, columns[self.n_features : len(of_features)], first_row)
            yield self._block(X, others, first_row)
            first_row += batch.num_rows
        tell_unseen(self.unseen, "ingest")

    def _expressions(self) -> tuple[list[str], dict[str, str]]:
        """Return the SQL of features, then of whether they are unread; and of the other columns."""
        table, (label, targets, weights) = self.table, self.purposes.roles
        columns = self.schema.columns
        features = [stored_of(table, column) for column in columns]
        flags = [unread_of(table, column) for column in columns]
        others = {name: value_of(table, name, "number") for name in targets or ()}
        if weights is not None:
            others[weights] = value_of(table, weights, "number")
        if label is not None:
            others[label] = _name_sql(table, label, self.y_dtype)
        if self.purposes.id is not None:
            # A column of ids may be a feature too.
            others[f"{self.purposes.id} as id"] = _name_sql(table, self.purposes.id, self.id_dtype)
        return features + flags, others

    def _check_cells(self, X: np.ndarray, unread: Sequence[pa.Array], first_row: int) -> None:
        """Count unseen categories; note or refuse cells that are unreadable, infinite or empty."""
        self.unseen += unseen_in(X, self.schema)
        bad = bad_cells(X, unread)
        if self.spoiled:
            X[bad] = np.nan
            self.bad_rows += (first_row + np.flatnonzero(bad.any(axis=1))).tolist()
        elif bad.any():
            row, j = np.argwhere(bad)[0]
            cell = unread[j][int(row)].as_py() or X[row, j]
            raise self._bad_cell(self.schema.columns[j].name, cell, first_row + int(row))
        elif self.schema.missing == "error" and np.isnan(X).any():
            row, j = np.argwhere(np.isnan(X))[0]
            raise DataError(
                f"Column {self.schema.columns[j].name!r} of {self.table.origin} has no value in "
                f"row {first_row + row} (the first is 0).",
                "Fill in the cell, or leave the row out, as `skip_bad` does.",
            )

    def _bad_cell(self, name: str, cell: object, row: int) -> DataError:
        return DataError(
            f"Column {name!r} of {self.table.origin} has {cell!r} in row {row} (the first is 0).",
            "Correct the cell, pass its text in `missing_values`, or leave the row out, as "
            "`skip_bad` does.",
        )

    def _block(self, X: np.ndarray, others: Mapping[str, pa.Array], first_row: int) -> Block:
        (label, targets, weights), id = self.purposes.roles, self.purposes.id
        y = row_weights = ids = None
        if targets is not None:
            y = np.stack([self._given(others, name, first_row) for name in targets], axis=1)
        elif label is not None:
            y = self._labels(others[label], label, first_row)
        if weights is not None:
            row_weights = self._given(others, weights, first_row, may_lack=False)
        if id is not None:
            column = others[f"{id} as id"]
            self._check_given(column, id, first_row)
            ids = self._names(column, self.id_dtype, id, first_row)
        return Block(X, y, row_weights, ids)

    def _given(
        self,
        others: Mapping[str, pa.Array],
        name: str,
        first_row: int,
        may_lack: bool | None = None,
    ) -> np.ndarray:
        """Return target numbers or weights (b,), NaN where a target may be missing."""
        column = others[name]
        if not (self.may_lack_labels if may_lack is None else may_lack):
            self._check_given(column, name, first_row)
        values = _numbers(column)
        if np.isinf(values).any():
            row = int(np.isinf(values).argmax())
            raise self._bad_cell(name, float(values[row]), first_row + row)
        return values

    def _labels(self, column: pa.Array, name: str, first_row: int) -> np.ndarray:
        if not self.may_lack_labels:
            self._check_given(column, name, first_row)
            return self._names(column, self.y_dtype, name, first_row)
        labels = np.full(len(column), self.empty_label, dtype=self.y_dtype)
        given = column.is_valid().to_numpy(zero_copy_only=False)
        labels[given] = self._names(column.drop_null(), self.y_dtype, name, first_row)
        return labels

    def _names(
        self, column: pa.Array, dtype: np.dtype[Any] | None, name: str, first_row: int
    ) -> np.ndarray:
        """Return labels or ids (b,), text or whole numbers."""
        values = column.to_numpy(zero_copy_only=False)
        values = values.astype(STRING) if dtype == STRING else values
        return to_labels(values, f"Column {name!r} of {self.table.origin}", first_row=first_row)

    def _check_given(self, column: pa.Array, name: str, first_row: int) -> None:
        if column.null_count:
            row = int(column.is_null().to_numpy(zero_copy_only=False).argmax())
            label, targets, _ = self.purposes.roles
            may_lack = name == label or name in (targets or ())
            raise DataError(
                f"Column {name!r} of {self.table.origin} has no value in row {first_row + row} "
                "(the first is 0), or none of its kind.",
                "Fill in the cell, or leave the row out."
                + " Pass `unlabelled`='' ('nan' for numeric targets) to keep such rows." * may_lack,
            )


def unseen_in(stored: np.ndarray, schema: Schema) -> Counter[str]:
    """Return the number of cells (b, c) whose category training did not have, by column."""
    categories = {each.name: j for j, each in enumerate(schema.columns) if each.kind == "category"}
    counts = {name: int((stored[:, j] == UNSEEN).sum()) for name, j in categories.items()}
    # A counter also keeps what occurs 0 times.
    return Counter({name: count for name, count in counts.items() if count})


def tell_unseen(unseen: Mapping[str, int], place: str) -> None:
    """Warn of categories that training did not have."""
    for name, count in unseen.items():
        rows_have = "1 row has" if count == 1 else f"{count} rows have"
        logger.warning(
            "%s: column %s: %s a category that training did not have", place, name, rows_have
        )


def bad_cells(X: np.ndarray, unread: Sequence[pa.Array]) -> np.ndarray:
    """Return which cells are infinite or, by the texts of `unread_of`, unread, bool (b, c)."""
    texts = [column.is_valid().to_numpy(zero_copy_only=False) for column in unread]
    return np.isinf(X) | np.stack(texts, axis=1)


def _numbers(column: pa.Array) -> np.ndarray:
    """Return numbers (b,) as float64, NaN for NULL."""
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)


def _name_sql(table: Table, name: str, dtype: np.dtype[Any] | None) -> str:
    """Return the SQL of labels or ids: text, or numbers that must be whole."""
    own = table.identifier(name)
    if dtype == STRING:
        return text_of(table, name, ())
    return f"{own}::{'DOUBLE' if _is_float(table.types[name]) else 'BIGINT'}"


def _is_float(type_name: str) -> bool:
    return type_name.startswith(("FLOAT", "DOUBLE", "DECIMAL"))


def _name_dtype(table: Table, name: str, classes: Sequence[int | str] | None) -> np.dtype[Any]:
    """Return the type of labels or ids: that of the classes of a model, or the column's."""
    kind = kind_of(table.types[name])
    if classes and any(isinstance(known, str) for known in classes):
        return STRING
    if kind in ("number", "boolean"):
        return INT64
    if kind != "category":
        raise DataError(
            f"Column {name!r} of {table.origin} has type {table.types[name]}.",
            "Give labels and ids as whole numbers, true and false, or text.",
        )
    return STRING


def _id_dtype(table: Table, name: str) -> np.dtype[Any]:
    """Return the type of ids, which may be fractions, as text."""
    return STRING if _is_float(table.types[name]) else _name_dtype(table, name, None)


def open_rows(reading: Reading) -> TableSource:
    """Return the rows of files, of a query, or of a relation, frame or reader."""
    options, schema = reading.table or TableOptions(), reading.schema
    roles = Roles(reading.label, reading.names("target"), reading.weights)
    if schema is not None:
        options = options.beside(schema)
        if not schema.is_complete:
            options = options.like(schema)
            roles = roles if any(roles) else Roles(schema.label, schema.targets, schema.weights)
            schema = None
    reading = replace(reading, table=options, schema=schema)
    kinds = {each.name: each.kind for each in schema.columns} if schema else dict(options.kinds)
    if reading.spoiled:
        # Unreadable cells then do not stop DuckDB.
        kinds = dict.fromkeys(kinds, "category")
    kinds |= dict.fromkeys(roles.targets or (), "number")
    kinds |= _label_kind(reading, roles.label or (schema.label if schema else None))
    table = table_of_object(reading.rows, options.given_marks) if reading.rows is not None else None
    if reading.rows is not None and table is None:
        raise ParameterError(
            f"source is of type {type(reading.rows).__name__}.",
            "Give a path, a query, a DuckDB relation, a frame, an Arrow reader or a Zarr group. "
            "`ingest_arrays` takes arrays.",
        )
    table = table or table_of(reading, tuple(reading.files), kinds)
    known = () if schema is None else [each.name for each in schema.columns]
    elements = table.with_elements(options.columns, known)
    options = replace(options, columns=_with_elements(options.columns, table, elements))
    reading, table = replace(reading, table=options), elements
    purposes = _purposes(table, roles, options, schema)
    return _opened(table, purposes, reading)


def _with_elements(names: Sequence[str], table: Table, elements: Table) -> tuple[str, ...]:
    """Return names of columns, with those of the elements in place of lists."""
    new = [name for name in elements.names if name not in table.names]
    return tuple(
        own
        for name in names
        for own in (
            [each for each in new if each.rpartition("_")[0] == name]
            if name in table.names and name not in elements.names
            else [name]
        )
    )


def _label_kind(reading: Reading, label: str | None) -> dict[str, Kind]:
    of_text = any(isinstance(known, str) for known in reading.classes or ())
    return {label: "category"} if label is not None and of_text else {}


def _opened(table: Table, purposes: Purposes, reading: Reading) -> TableSource:
    options, known = reading.table, reading.schema
    assert options is not None
    label, targets, weights = purposes.roles
    missing = (known or options).missing
    drops = missing == "drop" and not reading.spoiled
    may_lack = drops or means_empty(reading.unlabelled)
    if known is None:
        schema, n_rows = _decided(table, purposes, options, may_lack=may_lack)
    else:
        used = {**purposes.roles._asdict(), "id": purposes.id, "ignored": purposes.ignored}
        schema, n_rows = replace(known, **used), None
    said = "missing_values" in options.said
    marks = {"missing_values": list(options.missing_values)} if said else {}
    schema = replace(schema, written={**table.written, **marks, **(known.written if known else {})})
    if drops:
        table, n_rows = _whole_rows(table, schema, purposes, reading.unlabelled)
    if n_rows is None:
        (n_rows,) = table.aggregate(["count(*)"])
    check_size(table.origin, n_rows=n_rows, n_features=len(schema.columns))
    types = {table.types[column.name] for column in schema.columns}
    y_dtype = FLOAT64 if targets is not None else None
    if label is not None:
        y_dtype = _name_dtype(table, label, reading.classes)
    return TableSource(
        n_rows=n_rows,
        n_features=len(schema.columns),
        x_dtype=np.dtype(np.float32) if types == {"FLOAT"} else FLOAT64,
        y_dtype=y_dtype,
        has_weights=weights is not None,
        feature_names=tuple(column.name for column in schema.columns),
        target_names=targets,
        schema=schema,
        id_dtype=None if purposes.id is None else _id_dtype(table, purposes.id),
        boolean_labels=label is not None and table.types[label] == "BOOLEAN",
        table=table,
        purposes=purposes,
        may_lack_labels=may_lack,
        empty_label=str(reading.unlabelled) if y_dtype == STRING else NO_LABEL,
        spoiled=reading.spoiled,
    )


def _decided(
    table: Table, purposes: Purposes, options: TableOptions, *, may_lack: bool
) -> tuple[Schema, int]:
    """Return the schema and the number of rows; choices that no option made are logged."""
    kinds = {name: _kind(table, name, options) for name in purposes.features}
    label, targets, _ = purposes.roles
    # A message about gaps names all columns.
    must = [] if may_lack else [name for name in (label, *(targets or ())) if name is not None]
    counted = {name: _given_sql(table, name, purposes.roles) for name in must}
    cells = survey(table, kinds, fills=options.missing == "impute", counted=counted)
    n_rows = next(iter(cells.values())).n_rows
    check_size(table.origin, n_rows=n_rows, n_features=len(kinds))
    gaps = {name: cells.pop(name).n_missing for name in counted}
    schema, lines, warnings = decide(
        cells,
        purposes.roles,
        replace(options, id=purposes.id),
        ignored=purposes.ignored,
        label_gaps=gaps,
        remedies=FOR_FILES,
        origin=table.origin,
    )
    for line in lines:
        logger.info("ingest: %s", Advice(line))
    for warning in warnings:
        logger.warning("ingest: %s", Advice(warning))
    return schema, n_rows


def _kind(table: Table, name: str, options: TableOptions) -> CellKind:
    kind = cell_kind(options.kinds.get(name), [table.types[name]])
    if kind is None:
        raise DataError(
            f"Column {name!r} of {table.origin} has type {table.types[name]}, which cannot be a "
            "feature.",
            "Leave the column out with `drop`, or name a column of lists of numbers in `columns`.",
        )
    return kind


def _given_sql(table: Table, name: str, roles: Roles) -> str:
    return text_of(table, name, ()) if name == roles.label else value_of(table, name, "number")


def _whole_rows(
    table: Table, schema: Schema, purposes: Purposes, unlabelled: object
) -> tuple[Table, int]:
    """Return the table without rows that lack a value, and its rows; say how many are left out."""
    wanted = {column.name: stored_of(table, column) for column in schema.columns}
    label, targets, weights = purposes.roles
    named = (weights,) if means_empty(unlabelled) else (label, *(targets or ()), weights)  # type: ignore[arg-type]
    wanted |= {name: _given_sql(table, name, purposes.roles) for name in named if name is not None}
    n_rows, *given = table.aggregate(["count(*)", *(f"count({sql})" for sql in wanted.values())])
    # Cells that cannot be read are errors, not gaps.
    kept = {name: f"({sql}) IS NOT NULL" for name, sql in wanted.items()}
    for column in schema.columns:
        kept[column.name] += f" OR ({unread_of(table, column)}) IS NOT NULL"
    whole = table.filtered(" AND ".join(f"({sql})" for sql in kept.values()))
    (n_whole,) = whole.aggregate(["count(*)"])
    counts = zip(wanted, given, strict=True)
    where = ", ".join(f"{name} {n_rows - count}" for name, count in counts if count < n_rows)
    if n_rows and not n_whole:
        raise DataError(
            f"every row of {table.origin} lacks a value: {where}.",
            "Pass `missing`='impute' for features, or leave columns out with `drop`. Set "
            "`unlabelled` to keep rows without a label.",
        )
    if n_whole < n_rows:
        logger.info("ingest: %d rows that lack values are left out: %s", n_rows - n_whole, where)
    return whole, n_whole


def _purposes(table: Table, roles: Roles, options: TableOptions, schema: Schema | None) -> Purposes:
    """Return the purpose of each column; raise DataError for names that are not columns."""
    names = table.names
    roles = _known_roles(table, roles, schema)
    id = options.id
    if id is None and schema is not None and schema.id in names:
        id = schema.id
    used = [("label", roles.label), *(("target", name) for name in roles.targets or ())]
    used += [("weights", roles.weights), ("id", id)]
    check_apart("weights", roles.weights, roles.label, *(roles.targets or ()))
    check_apart("id", id, *roles.names)
    groups = {"columns": options.columns, "drop": options.drop, **options.groups}
    named = [(option, name) for option, group in groups.items() for name in group]
    for option, own in (*used, *named):
        if own is not None:
            check_column(table.origin, own, names, option)
    taken = {own for _, own in used}
    for option, own in named:
        check_apart(option, own, *taken)
    if schema is not None:
        known = {column.name for column in schema.columns}
        for option, own in used[:-1]:
            check_apart(option, own, *known)
        # The column of ids may have been a feature when the schema was decided.
        taken -= known
    rest = tuple(name for name in names if name not in taken)
    if schema is not None:
        _check_places(table, schema)
        features = schema_columns(schema, rest, table.origin, names)
    else:
        wanted = options.columns or rest
        features = tuple(name for name in rest if name in wanted and name not in options.drop)
        check_size(table.origin, n_rows=1, n_features=len(features))
    ignored = tuple(name for name in rest if name not in features)
    return Purposes(features, ignored, roles, id)


def _check_places(table: Table, schema: Schema) -> None:
    """Raise DataError if columns that have numbers as names may be others than in training."""
    roles = (schema.label, *(schema.targets or ()), schema.weights, schema.id)
    features = [column.name for column in schema.columns]
    trained = {*features, *schema.ignored, *(name for name in roles if name is not None)}
    if not schema.written.get("no_header") or len(table.names) >= len(trained):
        return
    # The last columns may be missing, where no feature comes after them.
    lacking = [*schema.ignored, *(name for name in roles if name is not None)]
    if any(_place(name) < max(map(_place, features)) for name in lacking):
        raise DataError(
            f"{table.origin} has no header and {len(table.names)} columns, but training had "
            f"{len(trained)}: it is unknown which are missing.",
            "Give all columns of training, or a header with their names.",
        )


def _place(name: str) -> int:
    """Return the number in the name of a column without a header."""
    return int(name.removeprefix("column"))


def _known_roles(table: Table, roles: Roles, schema: Schema | None) -> Roles:
    """Return the requested roles, or the roles of the schema whose columns exist."""
    if schema is None:
        return roles
    names = table.names
    known = Roles(schema.label, schema.targets, schema.weights)
    if absent := [name for name in known.names if name not in names]:
        logger.info(
            "%s has no column %s, which the schema names as label, target or weights",
            table.origin,
            shown_names(absent),
        )
    label, targets, weights = roles
    if label is None and targets is None:
        label = schema.label if schema.label in names else None
        targets = schema.targets if {*(schema.targets or ("",))} <= {*names} else None
    return Roles(label, targets, weights or (schema.weights if schema.weights in names else None))


def schema_columns(
    schema: Schema, names: tuple[str, ...], origin: str, all_names: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the names of a schema's columns; further columns of the table are logged.

    names: columns of the table without another role.
    origin: the table, for the error and the log.
    all_names: all columns of the table.
    """
    columns = tuple(column.name for column in schema.columns)
    if absent := [name for name in columns if name not in names]:
        raise DataError(
            f"{origin} has no column {shown_names(absent)}; it has {shown_names(all_names)}.",
            "Give a table with all columns of the schema, in any order.",
        )
    roles = (schema.label, schema.weights, schema.id)
    expected = {*columns, *schema.ignored, *(schema.targets or ()), *roles}
    if further := [name for name in names if name not in expected]:
        logger.info("extra columns of %s are ignored: %s", origin, shown_names(further))
    return columns


def check_column(origin: str, name: str, names: tuple[str, ...], option: str) -> None:
    """Raise DataError if a table does not have a column that an option names."""
    if name not in names:
        raise DataError(
            f"{origin} has no column {name!r}; it has {shown_names(names)}.",
            f"Name an existing column with `{option}`.",
        )


def shown_names(names: Sequence[str]) -> str:
    """Return the first names of columns, between quotes.

    >>> shown_names([f"c{j}" for j in range(12)]).split(", ")[-2:]
    ["'c8'", "'c9' and 2 more"]
    """
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(map(repr, names[:_NAMES_SHOWN])) + more
