"""Rows of tables with named columns: files, queries, relations, frames and readers."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import narwhals as nw
import numpy as np
import pyarrow as pa

from dask_nrbfn.errors import DataError, ParameterError, plural
from dask_nrbfn.numeric.schema import UNSEEN, Schema
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.sources import source, survey
from dask_nrbfn.sources.conversions import Conversions, sql_option
from dask_nrbfn.sources.dtypes import FLOAT64, INT64, STRING, means_empty
from dask_nrbfn.sources.formats import SQLITE
from dask_nrbfn.sources.frames import as_frame, has_gaps, labels_of
from dask_nrbfn.sources.options import MISSING_VALUES, ReadOptions, named_columns
from dask_nrbfn.sources.relation import SNIFFED_ROWS, Table, kind_of, quoted, ran, table_in_memory
from dask_nrbfn.sources.scan import table_of

logger = logging.getLogger(__name__)

_UNREAD = (
    "Correct the cell, leave out its row, or pass its text in `missing_values`; name a column of "
    "texts in `categorical`. With `skip_bad`, a prediction reads it as a missing value."
)
_AS_TRAINED = (
    "Read the rows with the query of the training rows, without its filters, and without columns "
    "that these rows lack: {}."
)
_NONE_READ = (
    "No cell of the column can be read: convert it as the training rows were converted, with the "
    "same `sql`."
)
_OF_TIMES = (
    'Convert dates and durations to seconds. In a file, pass `sql`=\'SELECT * REPLACE (epoch("{0}"'
    '::TIMESTAMPTZ) AS "{0}") FROM source\', without ::TIMESTAMPTZ for durations.'
)
# If no cell of so many can be read, the column needs to be converted.
_FEWEST_UNREAD = 10
_NAME_ONE = "Name an existing column with `{}`."
# SQL that tests whether a text has a type. The first type that it has is taken.
_TYPES_OF_TEXTS = {
    "BOOLEAN": "lower({0}) IN ('true', 'false')",
    "BIGINT": "TRY_CAST({0} AS BIGINT)::VARCHAR = {0}",
    "NAN": "isnan(TRY_CAST({0} AS DOUBLE))",
    # Numbers with leading zeros, as of postal codes, are text.
    "DOUBLE": "TRY_CAST({0} AS DOUBLE) IS NOT NULL AND NOT regexp_full_match({0}, '[+-]?0[0-9].*')",
}
_ARE_NUMBERS = f"CASE WHEN {{0}} IS NOT NULL THEN {_TYPES_OF_TEXTS['DOUBLE']} END"


@dataclass(kw_only=True)
class TableSource(source.Source):
    """Rows of a table, in their order, and the stored values of their columns.

    schema: its label, targets, weights and id are columns of the table.
    named: SQL type of the columns with labels and ids.
    mark: text of a missing label.
    """

    table: Table
    schema: Schema
    named: Mapping[str, str]
    mark: str
    unseen: Counter[str] = field(default_factory=Counter)

    def carried(self, names: Sequence[str]) -> pa.RecordBatchReader:
        """Return some columns of all rows, as they were read."""
        source.check_found(names, self.table.names, self.table.origin, _NAME_ONE.format("keep"))
        columns = list(map(self.table.column, names))
        none = self.table.relation.project(", ".join(columns)).limit(0).to_arrow_table()
        batches = (batch.rename_columns(names) for batch in self.table.batches(columns))
        return pa.RecordBatchReader.from_batches(none.rename_columns(names).schema, batches)

    def _parts(self, block_rows: int) -> Iterator[source.Block]:
        self.unseen.clear()
        own, row = self.schema, 0
        roles = _roles_sql(self.table, own, self.named)
        for X, others in stored_batches(self.table, own, [*roles.values()]):
            X[np.isinf(X)] = np.nan
            self.unseen += unseen_in(X, own)
            found: dict[str | None, Any] = {}
            for name, column in zip(roles, others, strict=True):
                if name in self.named:
                    place = f"Column {name!r} of {self.table.origin}"
                    found[name] = labels_of(column, "", name=place, first_row=row).stored(self.mark)
                else:
                    found[name] = _numbers(column)
            y = found.get(own.label)
            if own.targets:
                y = np.stack([found[name] for name in own.targets], axis=1)
            X = X.astype(self.x_dtype, copy=False)
            yield source.Block(X, y, found.get(own.weights), found.get(own.id))
            row += len(X)
        tell_unseen(self.unseen, "ingest")


def stored_batches(
    table: Table, schema: Schema, others: Sequence[str] = ()
) -> Iterator[tuple[Floats, list[pa.Array]]]:
    """Yield stored values (b, c), infinite where a cell cannot be read, and other SQL columns."""
    n_columns = len(schema.columns)
    wanted = [survey.stored_of(table, column) for column in schema.columns]
    for batch in table.batches([*wanted, *others]):
        X = np.empty((batch.num_rows, n_columns))
        for j, values in enumerate(batch.columns[:n_columns]):
            X[:, j] = _numbers(values)
        yield X, batch.columns[n_columns:]


def _numbers(column: pa.Array) -> Floats:
    """Return numbers (b,) as float64, NaN for NULL."""
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)


def unreadable(
    table: Table,
    name: str,
    value: str,
    schema: Schema,
    remedy: str,
    conversions: Conversions | None = None,
) -> DataError:
    """Return an error about the first cell whose value of SQL is infinite, as of unread cells.

    conversions: those of other columns, if a query can convert this one.
    """
    kind = next((column.kind for column in schema.columns if column.name == name), "number")
    numbered = f"row_number() OVER () - 1, {table.column(name)}, isinf({value}) AS is_met"
    row, cell, _ = table.first_row(table.relation.project(numbered).filter("is_met").limit(1))
    if kind == "number" and table.types[name].startswith(("TIME", "DATE", "INTERVAL")):
        remedy = _OF_TIMES.format(name)
    elif kind == "number" and isinstance(cell, str) and conversions is not None:
        found = conversions.having(name, *_some_texts(table, name, value))
        if found is not None:
            told = remedy[0].lower() + remedy[1:]
            remedy = f"Convert such texts by {found.option}, or: {told}"
    return DataError(
        f"Column {name!r} of {table.origin} has {cell!r} in row {row} (the first is 0), which is "
        f"not a {'finite number' if kind == 'number' else kind}.",
        remedy,
    )


def _some_texts(table: Table, name: str, value: str) -> tuple[list[str], list[str]]:
    """Return some different texts of a column whose value of SQL is infinite, and some others."""
    cells = f"DISTINCT {table.column(name)}::VARCHAR, coalesce(isinf({value}), false) AS is_met"
    rows = table.relation.query(
        "texts", f"SELECT {cells} FROM texts ORDER BY is_met DESC LIMIT 1000"
    )
    found = [(text, is_met) for text, is_met in ran(table.connection, rows.fetchall) if text]
    return [text for text, is_met in found if is_met], [text for text, met in found if not met]


def unseen_in(stored: np.ndarray, schema: Schema) -> Counter[str]:
    """Return the number of cells (b, c) whose category training did not have, by column."""
    categories = {each.name: j for j, each in enumerate(schema.columns) if each.kind == "category"}
    # Without those that occur 0 times.
    return +Counter({name: int((stored[:, j] == UNSEEN).sum()) for name, j in categories.items()})


def tell_unseen(unseen: Mapping[str, int], place: str) -> None:
    """Warn of categories that training did not have."""
    for name, count in unseen.items():
        told = (place, name, plural(count, "row"))
        logger.warning("%s: column %s has a category that training did not have in %s", *told)


def _with_numbers(table: Table, names: Sequence[str]) -> Table:
    """Return a text table in which columns of text are numbers if those of the first rows are.

    DuckDB reads decimals with a blank after them, and marks between many blanks, as text.
    """
    texts = [name for name in names if table.found.get(name) == "VARCHAR"]
    # A few rows show that most columns are text.
    for n_rows in (100, SNIFFED_ROWS):
        tests = [_ARE_NUMBERS.format(survey.text_of(table, name)) for name in texts]
        first = replace(table, relation=table.relation.limit(n_rows))
        kinds = [set[bool | None]() for _ in texts]
        for batch in first.batches(tests) if tests else ():
            for own, column in zip(kinds, batch.columns, strict=True):
                own |= {*column.unique().to_pylist()}
        texts = [name for name, own in zip(texts, kinds, strict=True) if own - {None} == {True}]
    return replace(table, found={**table.found, **dict.fromkeys(texts, "DOUBLE")})


def _type_sql(table: Table, name: str) -> str:
    """Return the SQL of the type of each label or id, of text by its form; NULL if missing."""
    of, text = table.types[name], survey.text_of(table, name)
    if table.found.get(name, "ENUM") != "ENUM":
        cases = [f"WHEN {test.format(text)} THEN '{of}'" for of, test in _TYPES_OF_TEXTS.items()]
        return f"CASE WHEN {text} IS NULL THEN NULL {' '.join(cases)} ELSE 'VARCHAR' END"
    if kind_of(of) in (None, "date"):
        raise DataError(
            f"Column {name!r} of {table.origin} has type {of}.",
            "Give labels and ids as whole numbers, true and false, or text.",
        )
    if kind_of(of) == "number":
        of = "DOUBLE" if of.startswith(("FLOAT", "DOUBLE", "DECIMAL")) else "BIGINT"
    return f"CASE WHEN {text} IS NOT NULL THEN '{of if of in _TYPES_OF_TEXTS else 'VARCHAR'}' END"


def _types_of_names(
    cells: Mapping[str, survey.Cells], schema: Schema, *, are_texts: bool
) -> dict[str, str]:
    """Return the SQL types of labels and ids by their cells, in which NaN is no value then."""
    types = dict[str, str]()
    for name in filter(None, (schema.label, schema.id)):
        found = {*(cells[name].texts or ())}
        if found <= {"BIGINT", "NAN", "DOUBLE"} and found - {"BIGINT"}:
            found = {"DOUBLE"}
        # Fractions name rows, but no classes.
        is_text = are_texts if name == schema.label else "DOUBLE" in found
        types[name] = "VARCHAR" if is_text or len(found) != 1 else found.pop()
        if types[name] == "DOUBLE":
            cells[name].n_values -= Counter(cells[name].texts)["NAN"]
    return types


def _roles_sql(table: Table, schema: Schema, named: Mapping[str, str]) -> dict[str, str]:
    """Return the SQL of labels, ids, targets and weights, NULL where they are missing."""
    roles = {}
    for name, of in named.items():
        text = survey.text_of(table, name)
        given = text if name in table.found else table.column(name)
        special = {"VARCHAR": text, "DOUBLE": f"nullif({given}::DOUBLE, 'nan')"}
        roles[name] = special.get(of, f"{given}::{of}::BIGINT")
    numbers = filter(None, [*(schema.targets or ()), schema.weights])
    return roles | {name: survey.value_of(table, name, "number") for name in numbers}


def _remedies(request: source.Request) -> tuple[str, Conversions | None]:
    """Return the remedy of unreadable cells, and the conversions of a query that is possible."""
    options, trained = request.options, request.read_as.get("sql")
    if options.schema is not None and options.sql is None and trained is not None:
        return _AS_TRAINED.format(sql_option(trained)), None
    if request.rows is not None or request.place.suffix in SQLITE:
        return _UNREAD, None
    return _UNREAD, Conversions(options.sql)


def open_table(request: source.Request) -> TableSource:
    """Return the rows of files, of a query, or of a relation, frame or reader."""
    table, options, (remedy, conversions) = table_of(request), request.options, _remedies(request)
    schema = _roles(table, options, conversions)
    mark, is_empty = options.unlabelled, means_empty(options.unlabelled)
    # A mark of missing labels that also marks missing values is NULL, as all of these are.
    is_mark = mark in options.marks(MISSING_VALUES) and not (is_empty or schema.targets)
    are_texts = is_mark and not str(mark).strip("-").isdecimal()
    are_texts |= any(isinstance(each, str) for each in request.classes or ())
    roles: survey.Values = {
        name: ("category", _type_sql(table, name))
        for name in filter(None, (schema.label, schema.id))
    }
    roles |= {name: ("number", sql) for name, sql in _roles_sql(table, schema, {}).items()}
    if options.schema is None:
        chosen = {*(named_columns(options.columns) or table.names)}
        chosen -= {*named_columns(options.drop), *roles}
        names = [name for name in table.names if name in chosen]
        table = _with_numbers(table, names)
        columns = survey.values_of(table, names, options.kinds)
    else:
        columns = {each.name: ("number", survey.stored_of(table, each)) for each in schema.columns}
    cells = survey.survey(table, roles | columns, fills=options.missing == "impute")
    named = _types_of_names(cells, schema, are_texts=are_texts and schema.label in table.found)
    roles = {name: (roles[name][0], sql) for name, sql in _roles_sql(table, schema, named).items()}
    n_rows = next((own.n_rows for own in cells.values()), 0)
    source.check_size(table.origin, n_rows=n_rows, n_features=len(columns))
    if options.schema is None:
        used = roles | columns
        ignored = tuple(name for name in table.names if name not in used)
        schema = replace(schema, ignored=ignored, written=table.written)
        own = {name: cells[name] for name in columns}
        schema, conversions = survey.decide(own, options, schema, table.origin, conversions)
    features = [column.name for column in schema.columns]
    required = [*filter(None, (schema.weights, schema.id))] if is_empty or is_mark else [*roles]
    known = table, roles | columns, cells, schema
    if request.spoiled:
        _tell_unread(*known)
    table, n_rows = _readable_rows(*known, required, conversions, remedy, spoiled=request.spoiled)
    marks = named_columns(options.missing_values)
    written = {"missing_values": list(marks)} if marks else {}
    types = {table.types[name] for name in features}
    dtypes = {name: STRING if of == "VARCHAR" else INT64 for name, of in named.items()}
    return TableSource(
        n_rows=n_rows,
        n_features=len(features),
        x_dtype=np.dtype(np.float32) if types == {"FLOAT"} else FLOAT64,
        y_dtype=FLOAT64 if schema.targets else dtypes.get(schema.label or ""),
        has_weights=schema.weights is not None,
        feature_names=tuple(features),
        target_names=schema.targets,
        schema=replace(schema, written={**table.written, **written, **schema.written}),
        id_dtype=dtypes.get(schema.id or ""),
        boolean_labels=named.get(schema.label or "") == "BOOLEAN",
        table=table,
        named=named,
        mark=str(mark),
    )


def _readable_rows(
    table: Table,
    values: survey.Values,
    cells: Mapping[str, survey.Cells],
    schema: Schema,
    required: Sequence[str],
    conversions: Conversions | None,
    remedy: str,
    *,
    spoiled: bool,
) -> tuple[Table, int]:
    """Return the rows that are stored, and their number; raise DataError about other cells.

    required: columns of which no cell may be missing or unreadable, also in `spoiled` rows.
    """
    checked = [*required]
    if not spoiled:
        checked += [column.name for column in schema.columns]
    for name in checked:
        if cells[name].n_unread:
            raise unreadable(table, name, values[name][1], schema, remedy, conversions)
    if not spoiled and schema.missing == "drop":
        return _whole_rows(table, {name: values[name] for name in checked}, cells)
    lacking = {name: cells[name] for name in required if cells[name].n_missing}
    how = f", in a file with {conversions.where(_given_sql(table, lacking))}" if conversions else ""
    survey.check_gaps(lacking, table.origin, survey.GAP_OF_ROLE.format(how))
    if not schema.fills:
        survey.check_gaps({name: cells[name] for name in checked}, table.origin)
    return table, next(iter(cells.values())).n_rows


def _given_sql(table: Table, names: Iterable[str]) -> str:
    """Return the SQL condition that columns have a value."""
    forms = {"FLOAT": "NOT isnan({})", "DOUBLE": "NOT isnan({})"}
    given = [forms.get(table.types[name], "{} IS NOT NULL").format(quoted(name)) for name in names]
    return " AND ".join(given)


def _tell_unread(
    table: Table, values: survey.Values, cells: Mapping[str, survey.Cells], schema: Schema
) -> None:
    """Warn of cells that cannot be read; raise DataError about a column of which none can be."""
    for column in schema.columns:
        name, own = column.name, cells[column.name]
        if own.n_unread == own.n_values >= _FEWEST_UNREAD:
            raise unreadable(table, name, values[name][1], schema, _NONE_READ)
        if own.n_unread:
            told = (table.origin, name, plural(own.n_unread, "cell"))
            logger.warning("%s: column %s has %s that count as missing values", *told)


def _whole_rows(
    table: Table, values: survey.Values, cells: Mapping[str, survey.Cells]
) -> tuple[Table, int]:
    """Return the rows that lack no value, and their number."""
    gaps = ", ".join(f"{name} {cells[name].n_missing}" for name in values if cells[name].n_missing)
    n_rows = cells[next(iter(values))].n_rows
    if not gaps:
        return table, n_rows
    are_given = [
        # NaN is above infinity.
        f"({sql}) IS NOT NULL" if kind == "category" else f"({sql}) <= 'inf'::DOUBLE"
        for name, (kind, sql) in values.items()
        if cells[name].n_missing
    ]
    whole = replace(table, relation=table.relation.filter(" AND ".join(are_given)))
    (n_whole,) = table.first_row(whole.relation.aggregate("count(*)"))
    lacking = f"{table.origin}, without rows that lack a value ({gaps}),"
    source.check_size(lacking, n_rows=n_whole, n_features=len(values))
    logger.info("ingest: %d rows that lack values are left out: %s", n_rows - n_whole, gaps)
    return whole, n_whole


def _roles(table: Table, options: ReadOptions, conversions: Conversions | None) -> Schema:
    """Return the given schema, or one without columns, with the roles of the table's columns."""
    known = options.schema or Schema(())
    is_other = options.label is not None or options.target is not None
    targets = named_columns(options.target)
    named = {
        "label": (options.label, None if is_other else known.label),
        "target": (targets or None, None if is_other else known.targets),
        "weights": (options.weights, known.weights),
        "id": (options.id, known.id),
    }
    used, taken = dict[str, Any](), list[str]()
    columns = [column.name for column in known.columns]
    for option, (given, before) in named.items():
        names = before if given is None else given
        listed = [names] if isinstance(names, str) else [*(names or ())]
        if given is not None:
            source.check_found(listed, table.names, table.origin, _NAME_ONE.format(option))
        elif not {*listed} <= {*table.names}:
            told = (table.origin, source.shown_names(listed), option)
            logger.info("%s has no column %s, which the schema names as %s", *told)
            names, listed = None, []
        for name in listed:
            # A feature may also name the rows.
            source.check_apart(option, name, *taken, *(columns if option != "id" else ()))
        used[option], taken = names, taken + listed
    for option in ("columns", "drop", "categorical", "numeric", "date"):
        chosen = named_columns(getattr(options, option))
        source.check_found(chosen, table.names, table.origin, _NAME_ONE.format(option))
        for name in chosen:
            source.check_apart(option, name, *taken)
    schema = replace(known, targets=used.pop("target"), **used)
    if options.schema is None:
        return schema
    check_columns(schema, table.names, table.origin, conversions)
    if known.written.get("no_header"):
        _check_unnamed(table, known)
    rest = tuple(name for name in table.names if name not in {*taken, *columns})
    return replace(schema, ignored=rest)


def _check_unnamed(table: Table, schema: Schema) -> None:
    """Raise DataError if a table without header has too few columns to know which ones."""
    columns = [column.name for column in schema.columns]
    roles = {schema.label, schema.weights, schema.id, *(schema.targets or ())}
    n_trained = len({*columns, *schema.ignored, *roles} - {None})
    are_first = {*columns} == {*table.names[: len(columns)]}
    if not are_first and len(table.names) < n_trained:
        raise DataError(
            f"{table.origin} has no header and {len(table.names)} columns, but training had "
            f"{n_trained}: it is unknown which are missing.",
            "Give all columns of training, or a header with their names.",
        )


def check_columns(
    schema: Schema, names: Sequence[str], origin: str, conversions: Conversions | None = None
) -> None:
    """Raise DataError unless a table has the columns of a schema; log further columns.

    conversions: those of a query that can add columns.
    """
    columns = [column.name for column in schema.columns]
    remedy = "Give a table with all columns of the schema, in any order."
    absent = [name for name in columns if name not in names]
    if conversions is not None and schema.fills and absent:
        remedy += f" Add columns without any value by {conversions.option_with_gaps(absent)}."
    source.check_found(columns, names, origin, remedy)
    roles = (schema.label, schema.weights, schema.id)
    expected = {*columns, *schema.ignored, *(schema.targets or ()), *roles}
    if further := [name for name in names if name not in expected]:
        logger.info("extra columns of %s are ignored: %s", origin, source.shown_names(further))


def needs_schema(X: Any, missing: str) -> bool:
    """Return whether a schema is needed to make features of the columns of a table (n, c)."""
    if missing not in ("error", "impute"):
        raise ParameterError(
            f"`missing` is {missing!r}.", "Give error or impute, or remove rows yourself."
        )
    frame = as_frame(X)
    types = () if frame is None else frame.schema.values()
    are_numbers = all(of.is_integer() or of.is_float() or of == nw.Boolean for of in types)
    return missing == "impute" or not are_numbers


def schema_of(X: Any, missing: str = "error", *, weights: Any = None) -> Schema | None:
    """Return the schema of a table (n, c) without rows of weight 0; None if all are numbers."""
    if missing == "auto" and not needs_schema(X, "error"):
        missing = "impute" if has_gaps(X) else "error"
    if missing != "auto" and not needs_schema(X, missing):
        return None
    cells = surveyed(X, fills=missing != "error", weights=weights)
    if missing == "auto":
        missing = "impute" if any(each.n_missing for each in cells.values()) else "error"
    return decided(cells, missing)


def surveyed(X: Any, *, fills: bool, weights: Any = None) -> dict[str, survey.Cells]:
    """Return the statistics of each column of a table (n, c), without rows of weight 0."""
    table = table_in_memory(X, "X", kept=None if weights is None else np.asarray(weights) != 0)
    return survey.survey(table, survey.values_of(table, table.names, {}), fills=fills)


def decided(cells: Mapping[str, survey.Cells], missing: str) -> Schema:
    """Return the schema of surveyed columns."""
    schema, _ = survey.decide(cells, ReadOptions(missing=missing), Schema(()), "X")
    if missing == "error":
        own = {column.name: cells[column.name] for column in schema.columns}
        survey.check_gaps(own, "X", survey.GAP_OF_X)
    return schema


def stored_rows(X: Any, schema: Schema, name: str = "X") -> Floats:
    """Return the stored rows (n, c) of a table (n, c)."""
    table = table_in_memory(X, name, schema)
    check_columns(schema, table.names, name)
    blocks = [block for block, _ in stored_batches(table, schema)]
    rows = np.concatenate([np.empty((0, len(schema.columns))), *blocks])
    if (bad := np.isinf(rows)).any():
        column = schema.columns[int(np.argwhere(bad)[0][1])]
        remedy = "Correct the cell, or leave out its row."
        raise unreadable(table, column.name, survey.stored_of(table, column), schema, remedy)
    tell_unseen(unseen_in(rows, schema), name)
    return rows


def check_filled(stored: Floats, schema: Schema, *, first_row: int = 0, within: str = "") -> None:
    """Raise DataError naming the first value that is missing, unless the schema fills it in."""
    gaps = np.isnan(stored)
    if gaps.any() and not schema.fills:
        row, place = np.argwhere(gaps)[0]
        raise DataError(
            f"Column {schema.columns[place].name!r} of X has no value in row "
            f"{first_row + row}{within} (the first is 0).",
            survey.GAP_OF_X,
        )
