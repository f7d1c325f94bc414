"""Tables as DuckDB relations whose columns have names, and rows in memory as such tables."""

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import duckdb
import narwhals as nw
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.schema import Kind, Schema
from dask_nrbfn.sources.files import File, damage_named, scratch_of
from dask_nrbfn.sources.frames import arrow_of, as_frame
from dask_nrbfn.sources.source import check_found
from dask_nrbfn.sources.text import BY_SQL, Dialect, lines_named, literal

# DuckDB moves what exceeds this to a temporary directory. Rows are streamed, so few queries do.
_MEMORY, _MOST_THREADS = "512MB", 4
# Bytes of one batch of numbers, and the smallest batch, a vector of DuckDB.
_BATCH_BYTES, _BATCH_ROWS, _VECTOR = 4 << 20, 1 << 16, 2048
# Tables of more columns are wide. Bytes of six vectors of a column of text.
_WIDE, _WIDE_BYTES = 500, 6 * 16 * _VECTOR
# Columns in SQL, as the group, and literals.
_COLUMN = re.compile(r"'(?:''|[^'])*'|\b(c\d+)\b")
SNIFFED_ROWS = 100_000
NUMBERED = re.compile(r"column\d+")
"""Names of columns that have none."""
Connection = duckdb.DuckDBPyConnection
_REMEDY = "Correct the table or the query."
_NOT_REPLACED = (
    "Leave the column out of REPLACE, for example the label or target, which new rows may lack."
)
_OTHER_ENCODING = re.compile("File is not [a-z0-9-]+ encoded")
_ENCODINGS = (
    "Pass the `encoding` of the file, or convert it, such as by iconv -f UTF-16BE -t UTF-8 FILE > "
    "NEW.csv."
)
_CONVERSION = (
    "Correct the cell, or read it as a missing value by TRY_CAST. If the query has no cast, read "
    "the column as text " + BY_SQL.format("types = {'COLUMN': 'VARCHAR'}")
)
_KINDS: dict[str, Kind] = {"BOOLEAN": "boolean", "VARCHAR": "category", "ENUM": "category"}
_KINDS |= {"UUID": "category", "TIME": "category", "TIME_NS": "category"}
_KINDS |= {'"NULL"': "category", "DATE": "date"}
_NUMBER_TYPES = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL")
_ARRAY_TYPE = re.compile(r".*\[(\d+)\]")


@contextmanager
def explained(place: object) -> Iterator[None]:
    """Raise DataError in place of errors of DuckDB, Arrow and SQLite."""
    try:
        with damage_named(place, "a table", _REMEDY, DataError):
            yield
    except DataError as error:
        if isinstance(error.__cause__, duckdb.ConversionException):
            raise DataError(error.problem, _CONVERSION) from error.__cause__
        if _OTHER_ENCODING.search(error.problem):
            raise DataError(error.problem, _ENCODINGS) from error.__cause__
        if "REPLACE list not found" in error.problem:
            raise DataError(error.problem, _NOT_REPLACED) from error.__cause__
        raise


def quoted(name: str) -> str:
    """Return a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def kind_of(type_name: str) -> Kind | None:
    """Return the kind of values of an SQL type; None if a feature cannot have the type."""
    name = type_name.partition("(")[0]
    if type_name.endswith("]"):
        return None
    if _NUMBER_TYPES.fullmatch(name):
        return "number"
    return "date" if name.startswith("TIMESTAMP") else _KINDS.get(name)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A relation with the columns c0, c1, ..., and the names that these have for users.

    connection: what a signal interrupts; None for the relation of a user.
    types: SQL type of each column. Elements of an array type are columns NAME_0, NAME_1, ...
    found: types of text by the first rows of a text table; ENUM for categories of a frame.
    marks: texts that mean a missing value; NULL always does.
    written: how text tables are written, for `Schema.written`.
    files: text files, whose lines errors name.
    """

    origin: str
    relation: Any
    connection: Any
    types: Mapping[str, str]
    found: Mapping[str, str] = field(default_factory=dict)
    marks: tuple[str, ...] = ()
    written: Mapping[str, Any] = field(default_factory=dict)
    files: Sequence[tuple[File, Dialect]] = ()

    @classmethod
    def of(
        cls,
        origin: str,
        relation: Any,
        connection: Any = None,
        *,
        names: Sequence[str] = (),
        **options: Any,
    ) -> Self:
        """Return a table of the columns of a relation; `names` are those that users know."""
        columns = []
        for name, own, of in zip(
            names or relation.columns, relation.columns, map(str, relation.types), strict=True
        ):
            if size := _ARRAY_TYPE.fullmatch(of):
                elements = range(int(size[1]))
                columns += [(f"{name}_{j}", f"{quoted(own)}[{j + 1}]") for j in elements]
            else:
                columns.append((name, quoted(own)))
        widen(connection, len(columns))
        named, selected = zip(*columns, strict=True) if columns else ((), ())
        check_found(named, named, origin, "Give each column a different name.")
        rows = relation.project(", ".join(f"{sql} AS c{j}" for j, sql in enumerate(selected)))
        types = dict(zip(named, map(str, rows.types), strict=True))
        return cls(origin=origin, relation=rows, connection=connection, types=types, **options)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(self.types)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}

    def column(self, name: str) -> str:
        """Return the SQL of a column."""
        return f"c{self._places[name]}"

    def first_row(self, rows: Any) -> tuple[Any, ...]:
        """Return the first row of a relation of few rows that was made of this one."""
        return tuple(self._ran(rows.fetchall)[0])

    def batches(self, expressions: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield expressions of all rows in order, as columns c0, c1 and so on."""
        if len(expressions) > _WIDE:
            return self._stacked(expressions)
        return self._streamed([f"{sql} AS c{place}" for place, sql in enumerate(expressions)])

    def _streamed(self, named: Sequence[str]) -> Iterator[pa.RecordBatch]:
        batch_rows = max(_VECTOR, min(_BATCH_ROWS, _BATCH_BYTES // (8 * len(named))))
        with explained(self.origin), lines_named(self.files):
            rows = self.relation.project(", ".join(named)).to_arrow_reader(batch_rows)
        with rows:
            while (batch := self._ran(lambda: next(rows, None))) is not None:
                yield batch

    def _stacked(self, expressions: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the same as `batches`: equal expressions of many columns are evaluated as one."""
        groups = defaultdict[tuple[str, str], list[tuple[int, str]]](list)
        types, used = [*self.types.values()], dict[str, None]()
        for place, sql in enumerate(expressions):
            own = dict.fromkeys(filter(None, _COLUMN.findall(sql)))
            used |= own
            one, *others = own
            # Expressions of several columns are evaluated alone.
            group = sql, ""
            if not others:
                shape = _COLUMN.sub(lambda found: "c" if found[1] else found[0], sql)
                group = shape, types[int(one[1:])]
            groups[group].append((place, one))
        connection, found = connected(), [pa.nulls(0)] * len(expressions)
        for batch in self._streamed([*used]):
            for (sql, of), members in groups.items():
                rows = connection.from_arrow(pa.Table.from_batches([batch]))
                if of:
                    cells = pa.concat_arrays([batch.column(name) for _, name in members])
                    rows = connection.from_arrow(pa.table({"c": cells})).project(f"c::{of} AS c")
                evaluated = self._ran(rows.project(f"{sql} AS v").to_arrow_table)
                values = pa.concat_arrays(evaluated.column(0).chunks)
                for number, (place, _) in enumerate(members):
                    found[place] = values.slice(number * len(batch), len(batch))
            yield pa.RecordBatch.from_arrays(found, names=[f"c{j}" for j in range(len(found))])

    def _ran(self, call: Callable[[], Any]) -> Any:
        with explained(self.origin), lines_named(self.files):
            return ran(self.connection, call)


def ran(connection: Any, call: Callable[[], Any]) -> Any:
    """Return the result of a call of DuckDB; a signal interrupts the call at once."""
    if connection is None:
        return call()
    with ThreadPoolExecutor(1) as thread:
        result = thread.submit(call)
        try:
            return result.result()
        except BaseException:
            while not result.done():
                connection.interrupt()
                wait([result], timeout=0.1)
            raise


def connected() -> Connection:
    """Return a connection to a new database in memory."""
    threads = min(_MOST_THREADS, os.cpu_count() or 1)
    config: dict[str, Any] = {"memory_limit": _MEMORY, "threads": threads}
    connection = duckdb.connect(config=config | {"python_enable_replacements": False})
    connection.execute(f"SET temp_directory = {literal(scratch_of(connection))}")
    # A bar would be printed among the output of commands; times must not depend on the machine.
    connection.execute("SET enable_progress_bar = false; SET TimeZone = 'UTC'")
    # The first assumes that Parquet files have no NaN. The time of the second grows with the square
    # of the columns.
    connection.execute("SET disabled_optimizers = 'statistics_propagation,common_subexpressions'")
    return connection


def widen(connection: Any, n_columns: int) -> None:
    """Let a connection hold some vectors of each of many columns, few of which have bytes."""
    if connection is not None and n_columns > _WIDE:
        size = max(512, n_columns * _WIDE_BYTES >> 20)
        connection.execute(f"SET threads = 1; SET memory_limit = '{size}MB'")


def table_in_memory(
    X: Any,
    name: str,
    schema: Schema | None = None,
    *,
    marks: tuple[str, ...] = (),
    kept: NDArray[np.bool_] | None = None,
) -> Table:
    """Return the kept rows of a frame or of an array with a schema's columns, or a reader."""
    connection = connected()
    with explained(name):
        if isinstance(X, pa.RecordBatchReader):
            found, names = coded([X.schema]), X.schema.names
            connection.from_arrow(X).create("rows")
            rows = connection.table("rows")
            return Table.of(name, rows, connection, names=names, marks=marks, found=found)
        columns = _columns(X, name, schema)
        # DuckDB does not tell names apart that differ only in case.
        cells = pa.table({f"c{j}": column for j, column in enumerate(columns.values())})
        # Weights of another shape are refused where they are used.
        if kept is not None and kept.shape == (cells.num_rows,):
            cells = cells.filter(pa.array(kept))
        types = frame.schema if (frame := as_frame(X, name)) else {}
        found = {str(own): "ENUM" for own, of in types.items() if of in (nw.Categorical, nw.Enum)}
        options: dict[str, Any] = {"names": [*columns], "marks": marks, "found": found}
        return Table.of(name, connection.from_arrow(cells), connection, **options)


def _columns(X: Any, name: str, schema: Schema | None) -> dict[str, pa.Array]:
    """Return the columns of a frame or array by their names."""
    frame = as_frame(X, name)
    if frame is not None:
        columns = {column.name: column for column in frame.iter_columns()}
    else:
        # Masked cells have no value.
        rows = X if isinstance(X, np.ma.MaskedArray) else np.asarray(X)
        if rows.ndim != 2:
            raise DataError(
                f"{name} has shape {rows.shape}.",
                "Give a frame in memory, or a dense array with two dimensions.",
            )
        columns = dict(zip(_array_names(rows.shape[1], name, schema), rows.T, strict=True))
    return {
        str(label): arrow_of(column, f"Column {label!r} of {name}")
        for label, column in columns.items()
    }


def _array_names(n_columns: int, name: str, schema: Schema | None) -> list[str]:
    """Return the names of the columns of an array: their numbers, or those of a schema."""
    numbered = [f"x{j}" for j in range(n_columns)]
    names = [] if schema is None else [column.name for column in schema.columns]
    if schema is None or {*numbered} == {*names, *schema.ignored}:
        return numbered
    if len(names) != n_columns:
        raise DataError(
            f"{name} has {n_columns} columns, but the model was trained on {len(names)}.",
            "Give a frame, or an array, with the columns of the training rows.",
        )
    return names


def coded(schemas: Sequence[pa.Schema]) -> dict[str, str]:
    """Return the type ENUM of columns with categories, of numbers too, unless some have none."""
    kinds = {(each.name, pa.types.is_dictionary(each.type)) for own in schemas for each in own}
    return {name: "ENUM" for name, is_coded in kinds if is_coded and (name, False) not in kinds}
