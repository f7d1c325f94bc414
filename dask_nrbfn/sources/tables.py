"""Rows of tables with named columns: files, queries, relations, frames and readers."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.schema import UNSEEN, Kind, Schema
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.sources.decide import GAP, decide
from dask_nrbfn.sources.dtypes import FLOAT64, INT64, NO_LABEL, STRING, means_empty, to_labels
from dask_nrbfn.sources.frames import as_frame
from dask_nrbfn.sources.memory import table_in_memory
from dask_nrbfn.sources.relation import Table, kind_of, table_of
from dask_nrbfn.sources.source import Block, Reading, Source, check_apart, check_size
from dask_nrbfn.sources.survey import stored_of, survey, text_of, value_of

logger = logging.getLogger(__name__)

_NAMES_SHOWN = 10
_CARRIED_ROWS = 1 << 16
# Bytes of ``X`` in one batch, and the smallest batch, a vector of DuckDB.
_BATCH_BYTES, _VECTOR = 4 << 20, 2048
# Texts of labels and ids that are numbers or truth; numbers with leading zeros are text.
_PLAIN = {"number": r"[+-]?(0|[1-9][0-9]*)(\.[0-9]*)?(e[+-]?[0-9]+)?", "boolean": "true|false"}


@dataclass(kw_only=True)
class TableSource(Source):
    """Rows of a table, in their order, and the stored values of their columns.

    schema: its label, targets, weights and id are columns of the table.
    may_lack_labels: whether labels and targets may be missing.
    empty_label: the label that is stored for a missing one.
    spoiled: whether cells may be missing, or not of their column's kind; both are read as missing.
    """

    table: Table
    schema: Schema
    may_lack_labels: bool
    empty_label: int | str
    spoiled: bool
    unseen: Counter[str] = field(default_factory=Counter)

    def carried(self, names: Sequence[str]) -> pa.RecordBatchReader:
        """Return some columns of all rows, as they were read."""
        for name in names:
            check_column(self.table, name, "keep")
        columns = list(map(self.table.column, names))
        types = self.table.relation.project(", ".join(columns)).limit(0).to_arrow_table().schema
        types = pa.schema([each.with_name(name) for each, name in zip(types, names, strict=True)])
        batches = self.table.batches(columns, _CARRIED_ROWS)
        return pa.RecordBatchReader.from_batches(types, (b.rename_columns(names) for b in batches))

    def _parts(self, block_rows: int) -> Iterator[Block]:
        self.unseen.clear()
        self.bad_rows.clear()
        row_bytes = FLOAT64.itemsize * (self.n_features + len(self.target_names or ()))
        rows = max(_VECTOR, min(block_rows, _BATCH_BYTES // row_bytes))
        others, first_row = self._others(), 0
        for X, numbers, columns in stored_batches(
            self.table, self.schema, rows, self._numbers(), [*others.values()], spoiled=self.spoiled
        ):
            if self.spoiled:
                bad = np.isinf(X)
                X[bad] = np.nan
                self.bad_rows += (first_row + np.flatnonzero(bad.any(axis=1))).tolist()
            elif self.schema.missing == "error":
                check_gaps(X, self.schema, first_row=first_row, origin=self.table.origin)
            self.unseen += unseen_in(X, self.schema)
            named = dict(zip(others, columns, strict=True))
            X = X.astype(self.x_dtype, copy=False)
            yield Block(X, *self._columns(numbers, named, first_row))
            first_row += len(X)
        tell_unseen(self.unseen, "ingest")

    def _numbers(self) -> list[str]:
        """Return the names of the columns with targets and weights."""
        return [*(self.schema.targets or ()), *filter(None, [self.schema.weights])]

    def _others(self) -> dict[str, str]:
        """Return the SQL of labels and ids by their roles; a column of ids may be a feature too."""
        roles = {"label": (self.schema.label, self.y_dtype), "id": (self.schema.id, self.id_dtype)}
        return {
            role: _names_sql(self.table, name, dtype)
            for role, (name, dtype) in roles.items()
            if name is not None
        }

    def _columns(
        self, numbers: Floats, others: Mapping[str, pa.Array], first_row: int
    ) -> tuple[np.ndarray | None, ...]:
        """Return labels or targets, weights, and ids."""
        own, y, weights, ids = self.schema, None, None, None
        for name, values in zip(self._numbers(), numbers.T, strict=True):
            if not self.may_lack_labels or name == own.weights:
                self._check_given(np.isnan(values), name, first_row)
        if own.targets is not None:
            y = numbers[:, : len(own.targets)]
        elif own.label is not None:
            y = self._labels(others["label"], own.label, first_row)
        if own.weights is not None:
            weights = numbers[:, -1]
        if own.id is not None:
            ids = self._names(others["id"], self.id_dtype, own.id, first_row)
        return y, weights, ids

    def _labels(self, column: pa.Array, name: str, first_row: int) -> np.ndarray:
        if not self.may_lack_labels:
            return self._names(column, self.y_dtype, name, first_row)
        labels = np.full(len(column), self.empty_label, dtype=self.y_dtype)
        given = column.is_valid().to_numpy(zero_copy_only=False)
        labels[given] = self._names(column.drop_null(), self.y_dtype, name, first_row)
        return labels

    def _names(
        self, column: pa.Array, dtype: np.dtype[Any] | None, name: str, first_row: int
    ) -> np.ndarray:
        """Return labels or ids (b,), text or whole numbers."""
        self._check_given(column.is_null().to_numpy(zero_copy_only=False), name, first_row)
        values = column.to_numpy(zero_copy_only=False)
        values = values.astype(STRING) if dtype == STRING else values
        return to_labels(values, f"Column {name!r} of {self.table.origin}", first_row=first_row)

    def _check_given(self, missing: NDArray[np.bool_], name: str, first_row: int) -> None:
        if missing.any():
            raise DataError(
                f"Column {name!r} of {self.table.origin} has no value in row "
                f"{first_row + int(missing.argmax())} (the first is 0), or none of its kind.",
                "Fill in the cell, or leave the row out. Pass `unlabelled`='' ('nan' for numeric "
                "targets) to keep rows without a label.",
            )


def stored_batches(
    table: Table,
    schema: Schema,
    batch_rows: int,
    numbers: Sequence[str] = (),
    others: Sequence[str] = (),
    *,
    spoiled: bool = False,
) -> Iterator[tuple[Floats, Floats, list[pa.Array]]]:
    """Yield stored values (b, c), numbers (b, q) of other columns, and values of other SQL.

    NaN is a missing value. A cell that cannot be read is an error, or infinite if `spoiled`.
    """
    names = [*(column.name for column in schema.columns), *numbers]
    wanted = [stored_of(table, column) for column in schema.columns]
    wanted += [value_of(table, name, "number") for name in numbers]
    n_columns, first_row = len(schema.columns), 0
    batches = table.batches([*wanted, *others], batch_rows)
    for batch in batches:
        values = np.empty((batch.num_rows, len(names)))
        for j, column in enumerate(batch.columns[: len(names)]):
            # NULL becomes NaN.
            values[:, j] = column.to_numpy(zero_copy_only=False)
        must_be_read = values[:, n_columns if spoiled else 0 :]
        if (bad := np.isinf(must_be_read)).any():
            row, j = np.argwhere(bad)[0] + (0, n_columns if spoiled else 0)
            # A connection has one open result.
            batches.close()
            raise _bad_cell(table, names[j], first_row + int(row))
        yield values[:, :n_columns], values[:, n_columns:], batch.columns[len(names) :]
        first_row += len(values)


def _bad_cell(table: Table, name: str, row: int) -> DataError:
    return DataError(
        f"Column {name!r} of {table.origin} has {table.cell(name, row)!r} in row {row} (the first "
        "is 0), which is infinite or not of the column's kind.",
        "Correct the cell, or pass its text in `missing_values`; name a column of texts in "
        "`categorical`. `skip_bad` leaves out such rows of a prediction.",
    )


def check_gaps(
    stored: Floats, schema: Schema, *, first_row: int = 0, within: str = "", origin: str = "X"
) -> None:
    """Raise DataError naming the first value that is missing and is not filled in.

    `first_row` is the index of the first row, in the part of the table that `within` names.
    """
    gaps = np.isnan(stored)
    if gaps.any() and not schema.fills:
        row, place = np.argwhere(gaps)[0]
        raise DataError(
            f"Column {schema.columns[place].name!r} of {origin} has no value in row "
            f"{first_row + row}{within} (the first is 0).",
            GAP,
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


def _names_sql(table: Table, name: str, dtype: np.dtype[Any] | None) -> str:
    """Return the SQL of labels or ids: text, or numbers that must be whole."""
    if dtype == STRING:
        return text_of(table, name)
    of = table.found.get(name, table.types[name])
    cell = f"TRY_CAST({table.column(name)} AS {of})"
    return f"TRY_CAST({cell} AS {'DOUBLE' if _is_float(of) else 'BIGINT'})"


def _is_float(type_name: str) -> bool:
    return type_name.startswith(("FLOAT", "DOUBLE", "DECIMAL"))


def _names_dtype(table: Table, name: str, classes: Sequence[int | str] = ()) -> np.dtype[Any]:
    """Return the type of labels or ids: that of the classes of a model, or the column's."""
    kind, is_text = table.kind(name), kind_of(table.types[name]) == "category"
    if is_text and any(isinstance(known, str) for known in classes):
        return STRING
    if kind not in ("number", "boolean") and not is_text:
        raise DataError(
            f"Column {name!r} of {table.origin} has type {table.types[name]}.",
            "Give labels and ids as whole numbers, true and false, or text.",
        )
    if is_text and kind in _PLAIN:
        is_plain = f"regexp_full_match({text_of(table, name)}, '{_PLAIN[kind]}', 'i')"
        (n_others,) = table.aggregate([f"count_if(NOT {is_plain})"])
        kind = "category" if n_others else kind
    return STRING if kind not in ("number", "boolean") else INT64


def open_rows(reading: Reading) -> TableSource:
    """Return the rows of files, of a query, or of a relation, frame or reader."""
    rows, known = reading.rows, reading.schema
    if rows is None:
        table = table_of(reading)
    elif isinstance(rows, duckdb.DuckDBPyRelation):
        table = Table.of("the relation", rows, marks=reading.marks())
    elif isinstance(rows, pa.RecordBatchReader) or as_frame(rows, "the frame") is not None:
        table = table_in_memory(rows, "the frame", marks=reading.marks())
    else:
        raise ParameterError(
            f"source is of type {type(rows).__name__}.",
            "Give a path, a query, a DuckDB relation, a frame, an Arrow reader or a Zarr group. "
            "`ingest_arrays` takes arrays.",
        )
    roles, n_rows = _roles(table, reading), None
    drops = (known or reading).missing == "drop" and not reading.spoiled
    may_lack = drops or means_empty(reading.unlabelled)
    if known is None:
        schema, n_rows = _decided(table, reading, roles, may_lack=may_lack)
    else:
        schema = roles
    marks = {"missing_values": list(reading.missing_values)} if reading.missing_values else {}
    schema = replace(schema, written={**table.written, **marks, **schema.written})
    if drops:
        table, n_rows = _whole_rows(table, schema, reading.unlabelled)
    if n_rows is None:
        (n_rows,) = table.aggregate(["count(*)"])
    check_size(table.origin, n_rows=n_rows, n_features=len(schema.columns))
    return _source(table, schema, reading, n_rows, may_lack_labels=may_lack)


def _source(
    table: Table, schema: Schema, reading: Reading, n_rows: int, *, may_lack_labels: bool
) -> TableSource:
    types = {table.types[column.name] for column in schema.columns}
    y_dtype = FLOAT64 if schema.targets is not None else None
    if schema.label is not None:
        y_dtype = _names_dtype(table, schema.label, reading.classes or ())
    id_dtype = None
    if schema.id is not None:
        of = table.found.get(schema.id, table.types[schema.id])
        id_dtype = STRING if _is_float(of) else _names_dtype(table, schema.id)
    is_boolean = schema.label is not None and table.kind(schema.label) == "boolean"
    return TableSource(
        n_rows=n_rows,
        n_features=len(schema.columns),
        x_dtype=np.dtype(np.float32) if types == {"FLOAT"} else FLOAT64,
        y_dtype=y_dtype,
        has_weights=schema.weights is not None,
        feature_names=tuple(column.name for column in schema.columns),
        target_names=schema.targets,
        schema=schema,
        id_dtype=id_dtype,
        boolean_labels=is_boolean and y_dtype == INT64,
        table=table,
        may_lack_labels=may_lack_labels,
        empty_label=str(reading.unlabelled) if y_dtype == STRING else NO_LABEL,
        spoiled=reading.spoiled,
    )


def _decided(
    table: Table, reading: Reading, roles: Schema, *, may_lack: bool
) -> tuple[Schema, int]:
    """Return the schema and the number of rows; `roles` has no columns yet."""
    taken = {roles.label, *(roles.targets or ()), roles.weights, roles.id}
    rest = [name for name in table.names if name not in taken]
    wanted = reading.columns or rest
    features = [name for name in rest if name in wanted and name not in reading.drop]
    check_size(table.origin, n_rows=1, n_features=len(features))
    kinds: dict[str, Kind] = {}
    if not may_lack:
        # A message about gaps names all columns.
        kinds |= dict.fromkeys(filter(None, [roles.label]), "category")
        kinds |= dict.fromkeys(roles.targets or (), "number")
    kinds |= kinds_of(table, features, reading.kinds)
    cells = survey(table, kinds, fills=reading.missing == "impute")
    n_rows = next(iter(cells.values())).n_rows
    check_size(table.origin, n_rows=n_rows, n_features=len(features))
    ignored = tuple(name for name in rest if name not in features)
    roles = replace(roles, ignored=ignored)
    return decide(cells, reading, roles, table.origin, "ingest: "), n_rows


def kinds_of(
    table: Table, names: Sequence[str], given: Mapping[str, Kind] | None = None
) -> dict[str, Kind]:
    """Return the kinds of columns: those that are given, or those of their types."""
    kinds = {name: (given or {}).get(name) or table.kind(name) for name in names}
    for name, kind in kinds.items():
        if kind is None or kind_of(table.types[name]) is None:
            raise DataError(
                f"Column {name!r} of {table.origin} has type {table.types[name]}, which is not a "
                "number, boolean, text, category or date.",
                "Leave the column out (`drop`), or convert it; in SQL, lists of one length with "
                f"{name}::FLOAT[LENGTH].",
            )
    return kinds  # type: ignore[return-value]


def _whole_rows(
    table: Table, schema: Schema, unlabelled: int | str | float | None
) -> tuple[Table, int]:
    """Return the rows that lack no value, and their number."""
    wanted = {column.name: stored_of(table, column) for column in schema.columns}
    if schema.label is not None and not means_empty(unlabelled):
        wanted[schema.label] = text_of(table, schema.label)
    numbers = () if means_empty(unlabelled) else schema.targets or ()
    for name in (*numbers, *filter(None, [schema.weights])):
        wanted[name] = value_of(table, name, "number")
    n_rows, *given = table.aggregate(["count(*)", *(f"count({sql})" for sql in wanted.values())])
    whole = table.filtered(" AND ".join(f"({sql}) IS NOT NULL" for sql in wanted.values()))
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


def _roles(table: Table, reading: Reading) -> Schema:
    """Return the given schema, or one without columns, with the roles of the table's columns."""
    names, known = table.names, reading.schema or Schema(())
    used: dict[str, Any] = {
        option: getattr(reading, option) for option in ("label", "weights", "id")
    }
    used["targets"] = reading.names("target")
    for option, name in _named(used):
        check_column(table, name, option)
    is_other = bool(used["label"] or used["targets"])
    before = {option: getattr(known, option) for option in used}
    before |= {"label": None, "targets": None} if is_other else {}
    for option, given in before.items():
        absent = [name for _, name in _named({option: given}) if name not in names]
        if not absent:
            used[option] = used[option] or given
        elif option != "id":
            logger.info(
                "%s has no column %s, which the schema names as label, target or weights",
                *(table.origin, shown_names(absent)),
            )
    schema = replace(known, **used)
    targets, columns = schema.targets or (), [column.name for column in schema.columns]
    check_apart("weights", schema.weights, schema.label, *targets, *columns)
    check_apart("id", schema.id, schema.label, *targets, schema.weights)
    taken = [name for _, name in _named(used)]
    for option in ("columns", "drop", "categorical", "numeric", "date"):
        for name in getattr(reading, option):
            check_column(table, name, option)
            check_apart(option, name, *taken)
    if reading.schema is None:
        return schema
    for own in (schema.label, *targets):
        check_apart("label", own, *columns)
    _check_places(table, reading.schema)
    check_columns(schema, names, table.origin)
    rest = tuple(name for name in names if name not in {*taken, *columns})
    return replace(schema, ignored=rest)


def _named(roles: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the option and the name of each column that has a role."""
    single = [(option, name) for option, name in roles.items() if isinstance(name, str)]
    return single + [("target", name) for name in roles.get("targets") or ()]


def _check_places(table: Table, trained: Schema) -> None:
    """Raise DataError if columns that have numbers as names may be others than in training."""
    if not trained.written.get("no_header"):
        return
    roles = (trained.label, *(trained.targets or ()), trained.weights, trained.id)
    features = {column.name for column in trained.columns}
    n_trained = len(features | {*trained.ignored, *filter(None, roles)})
    last = max(int(name.removeprefix("column")) for name in features)
    # The last columns may be missing, where no feature comes after them.
    if len(table.names) < n_trained and last >= len(features):
        raise DataError(
            f"{table.origin} has no header and {len(table.names)} columns, but training had "
            f"{n_trained}: it is unknown which are missing.",
            "Give all columns of training, or a header with their names.",
        )


def check_columns(schema: Schema, names: Sequence[str], origin: str) -> None:
    """Raise DataError unless a table has the columns of a schema; log further columns."""
    columns = [column.name for column in schema.columns]
    if absent := [name for name in columns if name not in names]:
        raise DataError(
            f"{origin} has no column {shown_names(absent)}; it has {shown_names(names)}.",
            "Give a table with all columns of the schema, in any order.",
        )
    roles = (schema.label, schema.weights, schema.id)
    expected = {*columns, *schema.ignored, *(schema.targets or ()), *roles}
    if further := [name for name in names if name not in expected]:
        logger.info("extra columns of %s are ignored: %s", origin, shown_names(further))


def check_column(table: Table, name: str, option: str) -> None:
    """Raise DataError if a table does not have a column that an option names."""
    if name not in table.names:
        raise DataError(
            f"{table.origin} has no column {name!r}; it has {shown_names(table.names)}.",
            f"Name an existing column with `{option}`.",
        )


def shown_names(names: Sequence[str]) -> str:
    """Return the first names of columns, between quotes.

    >>> shown_names([f"c{j}" for j in range(12)]).split(", ")[-2:]
    ["'c8'", "'c9' and 2 more"]
    """
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(map(repr, names[:_NAMES_SHOWN])) + more
