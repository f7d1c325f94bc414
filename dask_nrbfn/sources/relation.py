"""Tables of any origin as one DuckDB relation: files, queries, databases, frames."""

import datetime
import logging
import os
import re
from base64 import b64decode
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Self
from urllib.request import pathname2url

import duckdb
import narwhals as nw
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.schema import Kind, Schema
from dask_nrbfn.sources.files import File, damage_named, optional_package, scratch_of
from dask_nrbfn.sources.formats import ARROW, DUCKDB, JSON, PARQUET, SQLITE, SUFFIXES
from dask_nrbfn.sources.frames import arrow_of, as_frame
from dask_nrbfn.sources.options import MISSING_VALUES
from dask_nrbfn.sources.source import Request, check_found
from dask_nrbfn.sources.text import (
    JOINED,
    Dialect,
    check_lines,
    check_repeats,
    header_of,
    lines_named,
    literal,
    repeats_header,
    width_of,
)

logger = logging.getLogger(__name__)

# DuckDB moves what exceeds this to a temporary directory. Rows are streamed, so few queries do.
_MEMORY, _MOST_THREADS = "512MB", 4
# Bytes of one batch of numbers, and the smallest batch, a vector of DuckDB.
_BATCH_BYTES, _BATCH_ROWS, _VECTOR = 4 << 20, 1 << 16, 2048
# Tables of more columns are wide. Bytes of six vectors of a column of text.
_WIDE, _WIDE_BYTES = 500, 6 * 16 * _VECTOR
# Columns in SQL, as the group, and literals.
_COLUMN = re.compile(r"'(?:''|[^'])*'|\b(c\d+)\b")
_QUERY, SNIFFED_ROWS = "the query", 100_000
_REMEDY = "Correct the table or the query."
# Raises DataError in place of errors of DuckDB, Arrow and SQLite.
explained = partial(damage_named, what="a table", remedy=_REMEDY, raised=DataError)
# Steps of a plan that keep the order of rows.
_ORDERLY = re.compile("PROJECTION|FILTER|UNNEST|[A-Z_]*SCAN[A-Z_]*|READ_[A-Z_]+")
_FORMATS = {"dateformat": "DateFormat", "timestampformat": "TimestampFormat"}
# Text files that are open at once.
_MOST_OPEN = 256
_NO_TIME = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
# The texts in which DuckDB finds booleans.
_ARE_BOOLEAN = "bool_and(lower({0}) IN ('true', 'false', 't', 'f', 'yes', 'no'))"
_PROTOCOL = re.compile(r"\b(\w+)://")
_KINDS: dict[str, Kind] = {"BOOLEAN": "boolean", "VARCHAR": "category", "ENUM": "category"}
_KINDS |= {"UUID": "category", "TIME": "category", "TIME_NS": "category"}
_KINDS |= {'"NULL"': "category", "DATE": "date"}
_NUMBER_TYPES = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL")
_ARRAY_TYPE = re.compile(r".*\[(\d+)\]")


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
        _widen(connection, len(columns))
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
            shape = _COLUMN.sub(lambda found: "c" if found[1] else found[0], sql)
            groups[(sql, "") if others else (shape, types[int(one[1:])])].append((place, one))
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


def connected() -> duckdb.DuckDBPyConnection:
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


def _widen(connection: Any, n_columns: int) -> None:
    """Let a connection hold some vectors of each of many columns, few of which have bytes."""
    if connection is not None and n_columns > _WIDE:
        size = max(512, n_columns * _WIDE_BYTES >> 20)
        connection.execute(f"SET threads = 1; SET memory_limit = '{size}MB'")


def table_of(request: Request) -> Table:
    """Return the table of a query, of files of one suffix, or of rows in memory."""
    rows, suffix = request.rows, request.place.suffix
    if isinstance(rows, duckdb.DuckDBPyRelation):
        return Table.of("the relation", rows, marks=request.options.marks())
    if isinstance(rows, pa.RecordBatchReader) or as_frame(rows, "the frame") is not None:
        return table_in_memory(rows, "the frame", marks=request.options.marks())
    if rows is not None:
        raise ParameterError(
            f"source is of type {type(rows).__name__}.",
            "Give a path, a query, a DuckDB relation, a frame, an Arrow reader or a Zarr group. "
            "`ingest_arrays` takes arrays.",
        )
    connection, files = connected(), request.files
    is_text = bool(files) and SUFFIXES.get(files[0].suffix, "text") == "text"
    origin = _QUERY if request.options.sql else str(request.place)
    with explained(origin):
        if request.options.sql is not None:
            statements = connection.extract_statements(request.options.sql)
            if [each.type for each in statements] != [duckdb.StatementType.SELECT]:
                raise ParameterError("`sql` is not one query.", "Give one SELECT or FROM.")
        elif suffix in DUCKDB + SQLITE:
            raise ParameterError(
                f"{origin} is a database.",
                'Choose rows with `sql`, such as "SELECT * FROM orders".',
            )
        elif is_text:
            return _of_text(connection, request)
        relation = _relation_of(connection, request)
        found = {} if request.options.sql else _coded(_arrow_schemas(connection, request.files))
    table = Table.of(origin, relation, connection, marks=request.options.marks(), found=found)
    return _with_booleans(table, request.options.label_name or "") if is_text else table


def _with_booleans(table: Table, label: str) -> Table:
    """Return the rows of a query of text, whose text has the types that text tables have."""
    texts = [name for name, of in table.types.items() if of == "VARCHAR"]
    tests = ", ".join([_ARE_BOOLEAN.format(table.column(name)) for name in texts] or ["true"])
    are = table.first_row(table.relation.limit(SNIFFED_ROWS).aggregate(tests))
    found = {name: "BOOLEAN" for name, is_met in zip(texts, are, strict=False) if is_met}
    # A label has the type of all its texts.
    return replace(table, found={**found, label: "VARCHAR"})


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
            found = _coded([X.schema])
            check_repeats(X.schema.names, name)
            connection.from_arrow(X).create("rows")
            return Table.of(name, connection.table("rows"), connection, marks=marks, found=found)
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


def _relation_of(connection: duckdb.DuckDBPyConnection, request: Request) -> Any:
    """Return the rows of a query, or of files whose columns have types."""
    query, place = request.options.sql, request.place
    if query is None:
        return _of_files(connection, request)
    if place.suffix in SQLITE:
        return _of_sqlite(connection, place, query)
    if place.suffix in DUCKDB:
        path = literal(place.local(connection))
        connection.execute(f"ATTACH {path} AS given (READ_ONLY); USE given")
    elif request.files:
        return _once(connection, _of_files(connection, request).query("source", query), query)
    for protocol in {*_PROTOCOL.findall(query)} - {"file"}:
        _register(connection, File(f"{protocol}://", place.storage_options))
    return _once(connection, connection.sql(query), query)


def _of_files(connection: duckdb.DuckDBPyConnection, request: Request) -> Any:
    """Return the rows of files, with the types that DuckDB gives to the columns."""
    files, paths = request.files, _registered(connection, request.files)
    suffix = files[0].suffix
    if suffix in ARROW:
        return connection.from_arrow(_arrow_rows(files))
    how = _how(request)
    if suffix in PARQUET:
        rows = connection.sql(f"FROM read_parquet({paths}, {how})")
        # DuckDB adds numbers to names that are repeated.
        if {*rows.columns} & {re.sub(r"_\d+$", "", name) for name in rows.columns if "_" in name}:
            for file in files:
                with file.open() as stored:
                    check_repeats(parquet.read_schema(stored).names, file)
        return rows
    if suffix in JSON:
        return connection.sql(f"FROM read_json({paths}, sample_size = -1, {how})")
    return _text_rows(connection, request, paths)[0]


def _arrow_rows(files: Sequence[File]) -> Any:
    from pyarrow import dataset

    systems, inside = zip(*(file.file_system() for file in files), strict=True)
    return dataset.dataset([*inside], format="feather", filesystem=systems[0])


def _arrow_schemas(connection: duckdb.DuckDBPyConnection, files: Sequence[File]) -> list[pa.Schema]:
    """Return the types that writers gave to columns; none if a file does not say them."""
    if files[0].suffix in ARROW:
        return [_arrow_rows(files).schema]
    if files[0].suffix not in PARQUET:
        return []
    paths = ", ".join(map(_path, files))
    query = f"SELECT value FROM parquet_kv_metadata([{paths}]) WHERE key = 'ARROW:schema'"
    known = [pa.py_buffer(b64decode(value)) for (value,) in connection.sql(query).fetchall()]
    return [*map(pa.ipc.read_schema, known)] if len(known) == len(files) else []


def _coded(schemas: Sequence[pa.Schema]) -> dict[str, str]:
    """Return the type ENUM of columns with categories, of numbers too, unless some have none."""
    kinds = {(each.name, pa.types.is_dictionary(each.type)) for own in schemas for each in own}
    return {name: "ENUM" for name, is_coded in kinds if is_coded and (name, False) not in kinds}


def _how(request: Request) -> str:
    """Return the arguments that find columns by name, and in the keys of directories."""
    place = request.place.path
    inside = [file.path.removeprefix(place).split("/")[:-1] for file in request.files]
    parts = {part for directories in inside for part in directories}
    keys = sorted({part.partition("=")[0] for part in parts if "=" in part and "*" not in place})
    if keys:
        logger.info("%s: keys of directories are columns: %s", place, ", ".join(keys))
    return f"union_by_name = true, hive_partitioning = {str(bool(keys)).lower()}"


def _of_text(connection: duckdb.DuckDBPyConnection, request: Request) -> Table:
    """Return the rows of text files as text, with the types that the first rows have."""
    paths, origin = _registered(connection, request.files), str(request.place)
    marks = request.options.marks(MISSING_VALUES)
    # `value_of` finds marks between blanks, unless they are numbers.
    padded = ("{}",) if marks == MISSING_VALUES else ("{}", " {}", "{} ", " {} ")
    relation, options = _text_rows(connection, request, paths, padded)
    return Table.of(origin, relation, connection, marks=marks, **options)


def _text_rows(
    connection: duckdb.DuckDBPyConnection, request: Request, paths: str, padded: Sequence[str] = ()
) -> tuple[Any, dict[str, Any]]:
    """Return the rows of text files, and what a `Table` has of them.

    Booleans, and all cells if there are `padded` marks, are text.
    """
    options, how, files = _text_options(request), _how(request), request.files
    # A blank at the end of a row is no cell. Rows of another length are errors.
    ends = "delim = ' '" in options and [*files] == [request.place]
    padding = f"null_padding = {str(ends).lower()}"
    _widen(connection, width_of(files[0]))
    sniffed = list[dict[str, Any]]()
    for file in files:
        with lines_named([] if ends else [(file, Dialect(request.options.delimiter))]):
            asked = f"FROM sniff_csv({_path(file)}, {options}, {padding})"
            sniffed += connection.sql(asked).to_arrow_table().to_pylist()
    dialects, has_header = [*map(Dialect.of, sniffed)], sniffed[0]["HasHeader"]
    written = {"delimiter": request.options.delimiter, "no_header": not has_header}
    written |= {name: sniffed[0][own] for name, own in _FORMATS.items()}
    checked = () if ends else [*zip(files, dialects, strict=True)]
    headers = [header_of(*each) for each in zip(files, dialects, strict=True)]
    for file, names in zip(files, headers, strict=True) if has_header else ():
        check_repeats(names, file)
    unsplit = [each for each, own in zip(checked, headers, strict=False) if len(own) == 1]
    check_lines(unsplit, in_one_cell=True)
    # DuckDB finds again what differs among the files.
    dialect = dict(set.intersection(*({*each.options().items()} for each in dialects)))
    if not ends:
        options = _text_options(request, dialect=dialect)
    options += f", {padding}, {how}"
    with lines_named(checked):
        found = _types_found(connection, files, options)
    last = f"SELECT count({quoted([*found][-1])}) FROM read_csv({paths}, {options})"
    if ends and connection.sql(last).fetchall() == [(0,)]:
        found.popitem()
    if ends and not has_header:
        digits = len(str(len(found) - 1))
        found = {f"column{j:0{digits}}": of for j, of in enumerate(found.values())}
    many = len(files) > _MOST_OPEN
    texts = {name: "VARCHAR" for name, of in found.items() if padded or of == "BOOLEAN"}
    columns = found | texts if ends or many else texts
    named = ", ".join(f"{literal(name)}: {literal(of)}" for name, of in columns.items())
    alike = {tuple(header) if has_header else len(header) for header in headers}
    if many and len(alike) == len({*dialects}) == 1:
        # Files whose columns are found by name are all open at once.
        how = how.replace("union_by_name = true", "union_by_name = false")
    if ends:
        how = f"auto_detect = false, columns = {{{named}}}"
    elif named:
        how += ", all_varchar = true" if padded else f", types = {{{named}}}"
    options = _text_options(request, padded, written, dialect)
    relation = connection.sql(f"FROM read_csv({paths}, {options}, {how})")
    names = [
        name for name in headers[0] if name not in ("", *request.options.marks(MISSING_VALUES))
    ]
    # A row that repeats the header makes every column a text.
    if has_header and not request.spoiled and all(found.get(name) == "VARCHAR" for name in names):
        with lines_named(checked):
            _check_joined(connection, relation, names, request.place)
    written = {name: value for name, value in written.items() if value}
    return relation, {"found": found, "written": written, "files": checked}


def _check_joined(connection: Any, rows: Any, names: Sequence[str], place: File) -> None:
    """Raise DataError if a row repeats the header."""
    if repeats := repeats_header({name: quoted(name) for name in names}):
        numbered = rows.project(f"row_number() OVER () - 1, {repeats} AS is_met").filter("is_met")
        for row, _ in ran(connection, numbered.limit(1).fetchall):
            raise DataError(f"{place} repeats its header in row {row} (the first is 0).", JOINED)


def _types_found(
    connection: duckdb.DuckDBPyConnection, files: Sequence[File], options: str
) -> dict[str, str]:
    """Return the types of the first rows of text files, some files at a time."""
    found = dict[str, str]()
    for start in range(0, len(files), _MOST_OPEN):
        paths = ", ".join(map(_path, files[start : start + _MOST_OPEN]))
        rows = connection.sql(f"FROM read_csv([{paths}], {options})")
        for name, of in zip(rows.columns, map(str, rows.types), strict=True):
            kinds = {kind_of(of), kind_of(found.get(name, of))}
            wider = "DOUBLE" if kinds == {"number"} else "VARCHAR"
            found[name] = of if found.get(name, of) == of else wider
    return found


def _text_options(
    request: Request,
    padded: Sequence[str] = (),
    written: Mapping[str, Any] | None = None,
    dialect: Mapping[str, str] | None = None,
) -> str:
    """Return the arguments of read_csv: what is given, or was found by a fit or now."""
    known = {
        **(written or {}),
        **(request.options.schema.written if request.options.schema else {}),
    }
    delimiter = request.options.delimiter or known.get("delimiter")
    padded = (padded or ("{}", " {}"))[: 1 if delimiter == " " else None]
    marks = request.options.marks(MISSING_VALUES)
    nulls = dict.fromkeys(each.format(mark) for mark in ("", *marks) for each in padded)
    options = {
        "nullstr": f"[{', '.join(map(literal, nulls))}]",
        "sample_size": SNIFFED_ROWS,
        # A row that begins with # is a row.
        "comment": "''",
    }
    given = {"delim": delimiter} | {name: known.get(name) for name in _FORMATS}
    options |= {name: literal(value) for name, value in given.items() if value}
    options |= dialect or {}
    no_header = request.options.no_header or known.get("no_header")
    if no_header or request.options.schema is not None or written:
        options["header"] = "false" if no_header else "true"
    return ", ".join(f"{name} = {value}" for name, value in options.items())


def _path(file: File) -> str:
    """Return the SQL of a path, in which no mark stands for other characters."""
    is_web = file.path.startswith(("http://", "https://"))
    return literal(file if is_web else re.sub(r"([\[?*])", r"[\1]", file.path))


def _registered(connection: duckdb.DuckDBPyConnection, files: Sequence[File]) -> str:
    """Return the SQL of a list of files, which a connection can read then."""
    if files[0].is_remote:
        _register(connection, files[0])
    return f"[{', '.join(map(_path, files))}]"


def _register(connection: duckdb.DuckDBPyConnection, file: File) -> None:
    """Let a connection read URLs of the protocol of a file."""
    fs, _ = file.file_system()
    if "http" in fs.protocol:
        # DuckDB asks for the time of the last change, which fsspec does not know of web servers.
        untimed = type("Untimed", (type(fs),), {"modified": lambda self, path: _NO_TIME})
        fs = untimed(**fs.storage_options)
    connection.register_filesystem(fs)


def _once(connection: duckdb.DuckDBPyConnection, rows: Any, query: str) -> Any:
    """Return the rows of a query, copied unless each pass gives them in the same order."""
    check_repeats(rows.columns, _QUERY)
    steps = re.findall(r'"name": "(.*?)"', rows.explain(format="json"))
    if all(map(_ORDERLY.fullmatch, steps)) and "random" not in query.lower():
        return rows
    ran(connection, lambda: rows.create("once"))
    return rows.query("own", "FROM once")


def _of_sqlite(connection: duckdb.DuckDBPyConnection, place: File, query: str) -> Any:
    """Return the rows of a query that SQLite answers; they are copied once."""
    sqlite = optional_package("adbc_driver_sqlite.dbapi", "sqlite")
    path = pathname2url(place.local(connection))
    with sqlite.connect(f"file:{path}?mode=ro") as database, database.cursor() as cursor:
        cursor.execute(query)
        rows = cursor.fetch_record_batch()
        check_repeats(rows.schema.names, _QUERY)
        connection.from_arrow(rows).create("rows")
    return connection.table("rows")
