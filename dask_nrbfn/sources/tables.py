"""Rows of tables with named columns: files, queries, relations, frames and readers."""

import logging
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.schema import UNSEEN, Kind, Schema
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.sources.decide import check_gaps, decide
from dask_nrbfn.sources.dtypes import FLOAT64, INT64, NO_LABEL, STRING, means_empty, to_labels
from dask_nrbfn.sources.frames import as_frame
from dask_nrbfn.sources.memory import table_in_memory
from dask_nrbfn.sources.relation import Table, kind_of, table_of
from dask_nrbfn.sources.source import Block, Reading, Source, check_apart, check_size
from dask_nrbfn.sources.survey import Cells, Values, stored_of, survey, text_of, value_of, values_of

logger = logging.getLogger(__name__)

_NAMES_SHOWN = 10


@dataclass(kw_only=True)
class TableSource(Source):
    """Rows of a table, in their order, and the stored values of their columns.

    schema: its label, targets, weights and id are columns of the table.
    label_type, id_type: SQL types of labels and ids; empty without them.
    empty_label: the label that is stored for a missing one.
    """

    table: Table
    schema: Schema
    label_type: str
    id_type: str
    empty_label: int | str
    unseen: Counter[str] = field(default_factory=Counter)

    def carried(self, names: Sequence[str]) -> pa.RecordBatchReader:
        """Return some columns of all rows, as they were read."""
        for name in names:
            check_column(self.table, name, "keep")
        columns = list(map(self.table.column, names))
        types = self.table.relation.project(", ".join(columns)).limit(0).to_arrow_table().schema
        types = pa.schema([each.with_name(name) for each, name in zip(types, names, strict=True)])
        batches = self.table.batches(columns)
        return pa.RecordBatchReader.from_batches(types, (b.rename_columns(names) for b in batches))

    def _parts(self, block_rows: int) -> Iterator[Block]:
        self.unseen.clear()
        self.bad_rows.clear()
        table, own, first_row = self.table, self.schema, 0
        numbers = numbers_of(own)
        named = ((own.label, self.label_type), (own.id, self.id_type))
        names = [(name, of) for name, of in named if name is not None]
        wanted = [value_of(table, name, "number") for name in numbers]
        wanted += [_names_sql(table, name, of) for name, of in names]
        for X, others in stored_batches(table, own, wanted):
            bad = np.isinf(X)
            X[bad] = np.nan
            self.bad_rows += (first_row + np.flatnonzero(bad.any(axis=1))).tolist()
            self.unseen += unseen_in(X, own)
            floats = [_numbers(column) for column in others[: len(numbers)]]
            y = np.stack(floats[: len(own.targets)], axis=1) if own.targets else None
            texts = [
                self._names(name, column, first_row)
                for (name, _), column in zip(names, others[len(numbers) :], strict=True)
            ]
            yield Block(
                X.astype(self.x_dtype, copy=False),
                y if own.label is None else texts[0],
                None if own.weights is None else floats[-1],
                None if own.id is None else texts[-1],
            )
            first_row += len(X)
        tell_unseen(self.unseen, "ingest")

    def _names(self, name: str, column: pa.Array, first_row: int) -> np.ndarray:
        """Return labels or ids (b,), text or whole numbers."""
        values = column.drop_null().to_numpy(zero_copy_only=False)
        values = values.astype(STRING) if values.dtype == object else values
        place = f"Column {name!r} of {self.table.origin}"
        names = to_labels(values, place, first_row=first_row)
        if not column.null_count:
            return names
        filled = np.full(len(column), self.empty_label, dtype=self.y_dtype)
        filled[column.is_valid().to_numpy(zero_copy_only=False)] = names
        return filled


def _dtype_of(names_type: str) -> np.dtype[Any] | None:
    """Return the type of labels or ids in blocks."""
    return {"": None, "VARCHAR": STRING}.get(names_type, INT64)


def numbers_of(schema: Schema) -> list[str]:
    """Return the names of the columns with targets and weights."""
    return [*(schema.targets or ()), *filter(None, [schema.weights])]


def stored_batches(
    table: Table, schema: Schema, others: Sequence[str] = ()
) -> Iterator[tuple[Floats, list[pa.Array]]]:
    """Yield stored values (b, c), infinite where a cell cannot be read, and other SQL columns."""
    n_columns = len(schema.columns)
    wanted = [stored_of(table, column) for column in schema.columns]
    for batch in table.batches([*wanted, *others]):
        X = np.empty((batch.num_rows, n_columns))
        for j, values in enumerate(batch.columns[:n_columns]):
            X[:, j] = _numbers(values)
        yield X, batch.columns[n_columns:]


def _numbers(column: pa.Array) -> Floats:
    """Return numbers (b,) as float64, NaN for NULL."""
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)


def unreadable(table: Table, name: str, value: str) -> DataError:
    """Return an error about the first cell whose value of SQL is infinite, as of unread cells."""
    row, cell = table.first_cell(name, f"isinf({value})")
    return DataError(
        f"Column {name!r} of {table.origin} has {cell!r} in row {row} (the first is 0), which is "
        "infinite or not of the column's kind.",
        "Correct the cell, or pass its text in `missing_values`; name a column of texts in "
        "`categorical`. `skip_bad` leaves out such rows of a prediction.",
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


def _names_types(
    table: Table, schema: Schema, classes: Sequence[int | str] | None
) -> tuple[str, str]:
    """Return the SQL types of labels and ids: text, whole numbers or truth; empty without them."""
    names = [name for name in (schema.label, schema.id) if name is not None]
    types = _types_of_texts(table, [name for name in names if name in table.found])
    types |= {name: _names_type(table, name) for name in names if name not in types}
    label_type, id_type = (types.get(name or "", "") for name in (schema.label, schema.id))
    if schema.label in table.found and any(isinstance(known, str) for known in classes or ()):
        label_type = "VARCHAR"
    # Fractions name rows, but no classes.
    return label_type, id_type.replace("DOUBLE", "VARCHAR")


def _names_type(table: Table, name: str) -> str:
    """Return the SQL type as which a column with a type is read."""
    of = table.types[name]
    kind = kind_of(of)
    if kind not in ("number", "boolean", "category"):
        raise DataError(
            f"Column {name!r} of {table.origin} has type {of}.",
            "Give labels and ids as whole numbers, true and false, or text.",
        )
    if kind == "number":
        return "DOUBLE" if of.startswith(("FLOAT", "DOUBLE", "DECIMAL")) else "BIGINT"
    return "BOOLEAN" if kind == "boolean" else "VARCHAR"


def _types_of_texts(table: Table, names: Sequence[str]) -> dict[str, str]:
    """Return the SQL type that all texts of each column have, from one pass."""
    counted = []
    for name in names:
        text = _names_text(table, name)
        counted += [
            f"count({text})",
            f"count_if(lower({text}) IN ('true', 'false'))",
            f"count_if(TRY_CAST({text} AS BIGINT)::VARCHAR = {text})",
            # Numbers with leading zeros, as of postal codes, are text.
            f"count_if(TRY_CAST({text} AS DOUBLE) IS NOT NULL "
            f"AND NOT regexp_full_match({text}, '[+-]?0[0-9].*'))",
        ]
    counts = iter(table.aggregate(counted) if counted else ())
    types = {}
    for name in names:
        n_texts, *fitting = islice(counts, 4)
        fits = zip(("BOOLEAN", "BIGINT", "DOUBLE"), fitting, strict=True)
        types[name] = next((of for of, n in fits if n == n_texts > 0), "VARCHAR")
    return types


def _names_text(table: Table, name: str) -> str:
    """Return the SQL of labels and ids as text, of which only empty text is missing."""
    return text_of(replace(table, marks=()), name)


def _names_sql(table: Table, name: str, of: str) -> str:
    """Return the SQL of labels or ids of a type of `_names_type`, NULL where they are not."""
    if of == "VARCHAR":
        return _names_text(table, name)
    value = f"TRY_CAST({table.column(name)} AS {of})"
    if of == "DOUBLE":
        return f"nullif({value}, 'nan')"
    return f"TRY_CAST({value} AS BIGINT)"


def open_rows(reading: Reading) -> TableSource:
    """Return the rows of files, of a query, or of a relation, frame or reader."""
    table, known = _table(reading), reading.schema
    schema = _roles(table, reading)
    label_type, id_type = _names_types(table, schema, reading.classes)
    roles = _role_values(table, schema, label_type, id_type)
    columns: Values
    if known is None:
        columns = values_of(table, kinds_of(table, _features(table, reading, roles), reading.kinds))
    else:
        columns = {each.name: ("number", stored_of(table, each)) for each in known.columns}
    found = survey(table, [*roles.values(), *columns.values()], fills=reading.missing == "impute")
    n_rows = found[0].n_rows if found else 0
    check_size(table.origin, n_rows=n_rows, n_features=len(columns))
    of_roles = dict(zip(roles, found, strict=False))
    cells = dict(zip(columns, found[len(roles) :], strict=True))
    if known is None:
        numbers = values_of(table, _numbers_as_text(table, cells, reading))
        columns |= numbers
        more = survey(table, [*numbers.values()], fills=reading.missing == "impute")
        cells |= dict(zip(numbers, more, strict=True))
        ignored = tuple(name for name in table.names if name not in roles | columns)
        schema = replace(schema, ignored=ignored)
        schema = decide(cells, reading, schema, table.origin, "ingest: ")
        cells = {column.name: cells[column.name] for column in schema.columns}
    if means_empty(reading.unlabelled):
        of_roles = {name: of_roles[name] for name in (schema.weights, schema.id) if name}
    checked = of_roles if reading.spoiled else of_roles | cells
    for name, own in checked.items():
        if own.n_unread:
            raise unreadable(table, name, (roles | columns)[name][1])
    if schema.missing == "drop" and not reading.spoiled:
        values = {name: (roles | columns)[name] for name in checked}
        table, n_rows = _whole_rows(table, values, checked)
    else:
        check_gaps(of_roles | ({} if schema.fills else checked), table.origin, schema)
    marks = {"missing_values": list(reading.missing_values)} if reading.missing_values else {}
    types = {table.types[column.name] for column in schema.columns}
    return TableSource(
        n_rows=n_rows,
        n_features=len(schema.columns),
        x_dtype=np.dtype(np.float32) if types == {"FLOAT"} else FLOAT64,
        y_dtype=FLOAT64 if schema.targets else _dtype_of(label_type),
        has_weights=schema.weights is not None,
        feature_names=tuple(column.name for column in schema.columns),
        target_names=schema.targets,
        schema=replace(schema, written={**table.written, **marks, **schema.written}),
        id_dtype=_dtype_of(id_type),
        boolean_labels=label_type == "BOOLEAN",
        table=table,
        label_type=label_type,
        id_type=id_type,
        empty_label=str(reading.unlabelled) if label_type == "VARCHAR" else NO_LABEL,
    )


def _table(reading: Reading) -> Table:
    rows = reading.rows
    if rows is None:
        return table_of(reading)
    if isinstance(rows, duckdb.DuckDBPyRelation):
        return Table.of("the relation", rows, marks=reading.marks())
    if isinstance(rows, pa.RecordBatchReader) or as_frame(rows, "the frame") is not None:
        return table_in_memory(rows, "the frame", marks=reading.marks())
    raise ParameterError(
        f"source is of type {type(rows).__name__}.",
        "Give a path, a query, a DuckDB relation, a frame, an Arrow reader or a Zarr group. "
        "`ingest_arrays` takes arrays.",
    )


def _role_values(table: Table, schema: Schema, label_type: str, id_type: str) -> Values:
    """Return the values of targets and weights, and 0 where there is a label or an id."""
    values: Values = {}
    for name, of in ((schema.label, label_type), (schema.id, id_type)):
        if name is not None:
            given = f"WHEN {_names_sql(table, name, of)} IS NOT NULL THEN 0.0"
            unread = f"WHEN {_names_text(table, name)} IS NOT NULL THEN 'inf'::DOUBLE"
            values[name] = "number", f"CASE {given} {unread} END"
    for name in numbers_of(schema):
        values[name] = "number", value_of(table, name, "number")
    return values


def _features(table: Table, reading: Reading, roles: Container[str]) -> list[str]:
    """Return the names of the columns that may become features."""
    names = [name for name in table.names if name not in roles]
    features = [name for name in reading.columns or names if name not in reading.drop]
    check_size(table.origin, n_rows=1, n_features=len(features))
    return [name for name in names if name in features]


def kinds_of(
    table: Table, names: Sequence[str], given: Mapping[str, Kind] | None = None
) -> dict[str, Kind]:
    """Return the kinds of columns: those that are given, or those of their types."""
    kinds = {name: (given or {}).get(name) or kind_of(table.type_of(name)) for name in names}
    for name, kind in kinds.items():
        if kind is None or kind_of(table.types[name]) is None:
            raise DataError(
                f"Column {name!r} of {table.origin} has type {table.types[name]}, which is not a "
                "number, boolean, text, category or date.",
                "Leave the column out (`drop`), or convert it; in SQL, lists of one length with "
                f"{name}::FLOAT[LENGTH].",
            )
    return kinds  # type: ignore[return-value]


def _numbers_as_text(table: Table, cells: Mapping[str, Cells], reading: Reading) -> dict[str, Kind]:
    """Return the columns of a text table that have numbers only, but for marks between blanks."""
    return {
        name: "number"
        for name, own in cells.items()
        if name in table.found and name not in reading.kinds and own.n_numbers == own.n_values > 0
    }


def _whole_rows(table: Table, values: Values, cells: Mapping[str, Cells]) -> tuple[Table, int]:
    """Return the rows that lack no value, and their number."""
    n_rows = next(iter(cells.values())).n_rows
    are_given = [
        # NaN is above infinity.
        f"({sql}) IS NOT NULL" if kind == "category" else f"({sql}) <= 'inf'::DOUBLE"
        for kind, sql in values.values()
    ]
    whole = table.filtered(" AND ".join(are_given))
    (n_whole,) = whole.aggregate(["count(*)"])
    where = ", ".join(f"{name} {own.n_missing}" for name, own in cells.items() if own.n_missing)
    if not n_whole:
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
