"""Tables of any origin as one DuckDB relation: files, queries, databases, frames."""

import datetime
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self
from urllib.request import pathname2url

import duckdb
import pyarrow as pa

from dask_nrbfn.errors import DamagedDataError, DataError, ParameterError
from dask_nrbfn.numeric.schema import Kind
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.source import Reading

# DuckDB moves what exceeds this to a temporary directory. Rows are streamed, so few queries do.
_MEMORY, _MOST_THREADS = "512MB", 4
_SNIFFED_ROWS = 100_000
_QUERY = "the query"
# Steps of a plan that keep the order of rows.
_ORDERLY = re.compile("PROJECTION|FILTER|UNNEST|[A-Z_]*SCAN[A-Z_]*|READ_[A-Z_]+")
_NO_TIME = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_PROTOCOL = re.compile(r"\b(\w+)://")
_PARQUET, _JSON = (".parquet", ".pq"), (".json", ".jsonl", ".ndjson")
_ARROW, _DUCKDB, _SQLITE = (".arrow", ".feather"), (".duckdb", ".ddb"), (".sqlite", ".sqlite3")
_PACKED = (".gz", ".zst")
_BAD_CELL = re.compile(
    r"Line: (?P<line>\d+).*column \"(?P<column>.*?)\"\. .*string \"(?P<text>.*?)\"", re.DOTALL
)
_KINDS: dict[str, Kind] = {"BOOLEAN": "boolean", "VARCHAR": "category", "ENUM": "category"}
_KINDS |= {"UUID": "category", "DATE": "date"}
_NUMBER_TYPES = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|DECIMAL")


def quoted(name: str) -> str:
    """Return a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: object) -> str:
    """Return a text as an SQL literal."""
    return "'" + str(value).replace("'", "''") + "'"


def kind_of(type_name: str) -> Kind | None:
    """Return the kind of values of an SQL type; None if a feature cannot have the type.

    >>> [kind_of(name) for name in ("BIGINT", "DECIMAL(9,2)", "TIMESTAMP_NS", "BLOB", "INT[3]")]
    ['number', 'number', 'date', None, None]
    """
    name = type_name.partition("(")[0]
    if type_name.endswith("]"):
        return None
    if _NUMBER_TYPES.fullmatch(name):
        return "number"
    return "date" if name.startswith("TIMESTAMP") else _KINDS.get(name)


@dataclass(frozen=True)
class Table:
    """A relation, and the names that its columns have for users.

    types: SQL type of each column.
    marks: texts that mean a missing value; NULL always does.
    written: how text files are written, for `Schema.written`.
    """

    origin: str
    relation: Any
    types: Mapping[str, str]
    marks: tuple[str, ...] = ()
    written: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, origin: str, relation: Any, names: Sequence[str] = (), **options: Any) -> Self:
        """Return a table of the columns of a relation; `names` are those that users know."""
        names = tuple(names or relation.columns)
        _check_names(origin, names)
        return cls(
            origin, relation, dict(zip(names, map(str, relation.types), strict=True)), **options
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(self.types)

    def identifier(self, name: str) -> str:
        """Return the SQL identifier of a column."""
        return self._identifiers[name]

    @cached_property
    def _identifiers(self) -> dict[str, str]:
        return dict(zip(self.types, map(quoted, self.relation.columns), strict=True))

    def aggregate(self, expressions: Sequence[str]) -> tuple[Any, ...]:
        """Return the values of aggregates, in one pass."""
        with explained(self.origin):
            return tuple(self.relation.aggregate(", ".join(expressions)).fetchall()[0])

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query on the table "own"."""
        with explained(self.origin):
            return self.relation.query("own", sql).fetchall()

    def batches(self, expressions: Sequence[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield expressions of all rows in order, as columns c0, c1 and so on."""
        named = ", ".join(f"{sql} AS c{place}" for place, sql in enumerate(expressions))
        with (
            explained(self.origin),
            self.relation.project(named).to_arrow_reader(batch_rows) as rows,
        ):
            yield from rows

    def filtered(self, condition: str) -> Self:
        """Return the table of the rows that meet a condition."""
        return replace(self, relation=self.relation.filter(condition))

    def with_elements(self, names: Sequence[str], known: Sequence[str]) -> Self:
        """Return the table with a column NAME_0, NAME_1, ... for each element of lists of numbers.

        names: columns that may have lists.
        known: columns of a schema, which may be such elements.
        """
        lists = {
            name: self._length(name)
            for name, of in self.types.items()
            if of.endswith("]") and (name in names or f"{name}_0" in known)
        }
        if not lists:
            return self
        columns: list[tuple[str, str]] = []
        for name in self.names:
            own = self.identifier(name)
            elements = [(f"{name}_{j}", f"{own}[{j + 1}]") for j in range(lists.get(name, 0))]
            columns += elements if name in lists else [(name, own)]
        _check_names(self.origin, [name for name, _ in columns])
        rows = self.relation.project(", ".join(f"{sql} AS {quoted(name)}" for name, sql in columns))
        return self.of(self.origin, rows, marks=self.marks, written=self.written)

    def _length(self, name: str) -> int:
        own = self.identifier(name)
        shortest, longest = self.aggregate([f"min(len({own}))", f"max(len({own}))"])
        if not shortest or shortest != longest:
            raise DataError(
                f"Column {name!r} of {self.origin} has lists of {shortest} to {longest} elements.",
                "Write lists of one length, of at least 1.",
            )
        return int(longest)


def _check_names(origin: str, names: Sequence[str]) -> None:
    if len({*names}) < len(names):
        twice, _ = Counter(names).most_common(1)[0]
        raise DataError(
            f"{origin} has several columns named {twice!r}.", "Give each column a different name."
        )


@contextmanager
def explained(origin: str) -> Iterator[None]:
    """Raise DataError in place of errors of DuckDB and Arrow."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException) as error:
        text = str(error)
        if cell := _BAD_CELL.search(text):
            raise DataError(
                f"Column {cell['column']!r} of {origin} has {cell['text']!r} in line "
                f"{cell['line']}, which is not of the column's kind.",
                "Correct the cell, or pass its text in `missing_values` if it marks a missing "
                "value. `sql` reads numbers and dates of other forms.",
            ) from error
        told = " ".join(line.strip() for line in text.splitlines()[:3] if line.strip())
        damaged = isinstance(
            error, duckdb.IOException | duckdb.InvalidInputException | pa.ArrowException
        )
        raise (DamagedDataError if damaged else DataError)(
            f"{origin} cannot be read ({told}).",
            'Correct the file, or read it with other options of DuckDB, as `sql`="FROM '
            "read_csv('FILE', decimal_separator = ',')\".",
        ) from error
    except RuntimeError as error:
        if "interrupted" not in str(error):
            raise
        # DuckDB raises its own error in place of what the handler of a signal raised.
        raise KeyboardInterrupt from error


def connected() -> duckdb.DuckDBPyConnection:
    """Return a connection to a new database in memory."""
    threads = min(_MOST_THREADS, os.cpu_count() or 1)
    connection = duckdb.connect(
        config={
            "memory_limit": _MEMORY,
            "threads": threads,
            "temp_directory": os.path.join(tempfile.gettempdir(), f"duckdb-{os.getpid()}"),
            "python_enable_replacements": False,
        }
    )
    # A bar would be printed among the output of commands; times must not hang on the machine.
    connection.execute("SET enable_progress_bar = false; SET TimeZone = 'UTC'")
    return connection


def table_of(reading: Reading, files: Sequence[File], kinds: Mapping[str, Kind]) -> Table:
    """Return the table that a query or files hold.

    files: files of one suffix.
    kinds: kinds of columns that are known, with which text is read.
    """
    if reading.query is not None:
        return _of_query(reading, files, reading.query, kinds)
    suffix = _suffix_of(files[0])
    if suffix in _DUCKDB + _SQLITE:
        return _of_database(reading, suffix)
    connection = connected()
    _register(connection, files)
    paths = "[" + ", ".join(map(_path, files)) + "]"
    origin = str(reading.place)
    keyed = any("=" in file.path.removeprefix(reading.place.path) for file in files)
    with explained(origin):
        if suffix in _ARROW:
            from pyarrow import dataset

            fs = files[0].file_system()[0] if files[0].is_remote else None
            inside = [file.file_system()[1] if file.is_remote else file.path for file in files]
            with files[0].explained() if fs else nullcontext():
                rows = dataset.dataset(inside, format="feather", filesystem=fs)
            return Table.of(origin, connection.from_arrow(rows), marks=reading.marks)
        if suffix in _PARQUET:
            _check_alike(connection, paths, origin)
            how = f"union_by_name = true, hive_partitioning = {str(keyed).lower()}"
            relation = connection.sql(f"FROM read_parquet({paths}, {how})")
            return Table.of(origin, relation, marks=reading.marks)
        if suffix in _JSON:
            relation = connection.sql(f"FROM read_json({paths}, sample_size = -1)")
            return Table.of(origin, relation, marks=reading.marks)
        return _of_text(connection, paths, reading, kinds)


def _path(file: File) -> str:
    """Return the SQL of a path, in which no mark stands for other characters."""
    return literal(file if file.is_remote else re.sub(r"([\[?*])", r"[\1]", file.path))


def _check_alike(connection: duckdb.DuckDBPyConnection, paths: str, origin: str) -> None:
    """Raise DataError if Parquet files have columns of other names."""
    names = f"SELECT list_sort(list(name)) AS n FROM parquet_schema({paths}) GROUP BY file_name"
    first, *others = connection.sql(f"SELECT DISTINCT n FROM ({names})").fetchall()
    if others:
        apart = min({*first[0]} ^ {*others[0][0]})
        raise DataError(
            f"only some files of {origin} have the column {apart!r}.",
            "Write the same columns to every file.",
        )


def _suffix_of(file: File) -> str:
    """Return the suffix of a file in small letters, without that of its compression."""
    stem, suffix = os.path.splitext(file.name.lower())
    return os.path.splitext(stem)[1] if suffix in _PACKED else suffix


def _register(connection: duckdb.DuckDBPyConnection, files: Sequence[File]) -> None:
    if files[0].is_remote:
        # What is not there, or not served, is named here.
        files[0].open().close()
        _register_protocol(connection, files[0])


def _register_protocol(connection: duckdb.DuckDBPyConnection, file: File) -> None:
    """Let a connection read URLs of the protocol of a file."""
    fs, _ = file.file_system()
    if "http" in fs.protocol:
        # DuckDB asks for the time of the last change, which fsspec does not know of web servers.
        untimed = type("Untimed", (type(fs),), {"modified": lambda self, path: _NO_TIME})
        fs = untimed(**fs.storage_options)
    connection.register_filesystem(fs)


def _of_text(
    connection: duckdb.DuckDBPyConnection, paths: str, reading: Reading, kinds: Mapping[str, Kind]
) -> Table:
    assert reading.table is not None
    marks = tuple(mark for mark in reading.table.missing_values if mark != str(reading.unlabelled))
    known = {} if reading.schema is None else reading.schema.written
    # Cells may have a blank before them.
    blanks = ("",) if reading.delimiter == " " else ("", " ")
    nulls = [f"{blank}{mark}" for mark in ("", *marks) for blank in blanks]
    options = [f"nullstr = [{', '.join(map(literal, nulls))}]"]
    options += [f"sample_size = {_SNIFFED_ROWS}", "hive_partitioning = false"]
    given = {"delim": reading.delimiter or known.get("delimiter")}
    given |= {name: known.get(name) for name in ("dateformat", "timestampformat")}
    options += [f"{name} = {literal(value)}" for name, value in given.items() if value]
    no_header = reading.no_header or known.get("no_header")
    if no_header or reading.schema is not None:
        options.append(f"header = {'false' if no_header else 'true'}")
    relation = connection.sql(f"FROM read_csv({paths}, {', '.join(options)})")
    types = {}
    schema = reading.schema
    names = {reading.label, reading.table.id}
    names |= set() if schema is None else {schema.label, schema.id}
    forced = {*reading.table.kinds, *(reading.names("target") or ()), reading.weights}
    for name, of in zip(relation.columns, map(str, relation.types), strict=True):
        kind = kinds.get(name, kind_of(of))
        if name in names and name not in kinds:
            types[name] = _type_of_names(connection, paths, name, options, of)
        elif schema is not None and name not in kinds:
            # Columns that are kept with the predictions stay as they are written.
            types[name] = "VARCHAR"
        elif kind == "category" or kind == kind_of(of) == "number":
            types[name] = _sql_type(kind)
        elif kind is not None and name in forced:
            # Formats of dates and of times are apart: the type that was found has its own.
            types[name] = of if kind == kind_of(of) == "date" else _sql_type(kind)
    if types:
        listed = ", ".join(f"{literal(name)}: {literal(of)}" for name, of in types.items())
        relation = connection.sql(
            f"FROM read_csv({paths}, types = {{{listed}}}, {', '.join(options)})"
        )
    written: dict[str, Any] = {"delimiter": reading.delimiter} if reading.delimiter else {}
    written |= _found_by(connection, _path(reading.files[0]), options)
    return Table.of(
        str(reading.place), relation, marks=reading.table.missing_values, written=written
    )


def _type_of_names(
    connection: duckdb.DuckDBPyConnection, paths: str, name: str, options: Sequence[str], of: str
) -> str:
    """Return the type of labels or ids: text, unless all are numbers, or true and false.

    Numbers with leading zeros, as of postal codes, are text.
    """
    usual = {"BOOLEAN": "true|false", "BIGINT": "[+-]?(0|[1-9][0-9]*)"}.get(of)
    if usual is None:
        return of if kind_of(of) == "number" else "VARCHAR"
    rows = f"read_csv({paths}, all_varchar = true, {', '.join(options)})"
    is_usual = f"regexp_full_match(trim({quoted(name)}), '{usual}', 'i')"
    others = connection.sql(f"SELECT 1 FROM {rows} WHERE NOT {is_usual} LIMIT 1")
    return "VARCHAR" if others.fetchall() else of


def _found_by(
    connection: duckdb.DuckDBPyConnection, path: str, options: Sequence[str]
) -> dict[str, Any]:
    """Return what the first rows of a text file show about its header and dates."""
    columns = "HasHeader, DateFormat, TimestampFormat"
    sniffed = connection.sql(f"SELECT {columns} FROM sniff_csv({path}, {', '.join(options)})")
    header, dates, times = sniffed.fetchall()[0]
    found = {"no_header": not header, "dateformat": dates, "timestampformat": times}
    return {name: value for name, value in found.items() if value}


def _sql_type(kind: Kind) -> str:
    return {"category": "VARCHAR", "date": "TIMESTAMP", "boolean": "BOOLEAN"}.get(kind, "DOUBLE")


def _of_query(
    reading: Reading, files: Sequence[File], query: str, kinds: Mapping[str, Kind]
) -> Table:
    """Return the rows of a query, in which the given files are the table "source"."""
    suffix, connection = _suffix_of(reading.place), connected()
    with explained(_QUERY):
        statements = connection.extract_statements(query)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise ParameterError("`sql` is not one query.", "Give one SELECT or FROM statement.")
    if suffix in _SQLITE:
        return _of_sqlite(reading, query)
    if files and suffix not in _DUCKDB:
        source = table_of(_as_for_a_fit(reading), files, kinds)
        with explained(_QUERY):
            rows = source.relation.query("source", query)
            return Table.of(_QUERY, _once(rows, query), marks=reading.marks)
    with explained(_QUERY):
        if suffix in _DUCKDB:
            connection.execute(f"ATTACH {literal(reading.place)} AS given (READ_ONLY); USE given")
        for protocol in {*_PROTOCOL.findall(query)} - {"file"}:
            file = File(f"{protocol}://", reading.storage_options)
            _register_protocol(connection, file)
        return Table.of(_QUERY, _once(connection.sql(query), query), marks=reading.marks)


def _as_for_a_fit(reading: Reading) -> Reading:
    """Return how the file of a query is read: with the same types for a fit and for its model."""
    schema = reading.schema
    if schema is None:
        return replace(reading, query=None)
    written = schema.written
    return replace(
        reading,
        query=None,
        schema=None,
        label=reading.label or schema.label,
        delimiter=reading.delimiter or written.get("delimiter"),
        no_header=reading.no_header or written.get("no_header", False),
    )


def _once(rows: Any, query: str) -> Any:
    """Return the rows of a query, copied unless each pass gives them in the same order."""
    steps = re.findall(r'"name": "(.*?)"', rows.explain(format="json"))
    if all(map(_ORDERLY.fullmatch, steps)) and "random" not in query.lower():
        return rows
    rows.create("once")
    return rows.query("own", "FROM once")


def _of_database(reading: Reading, suffix: str) -> Table:
    """Return the only table of a database."""
    if suffix in _SQLITE:
        listed = _of_sqlite(reading, "SELECT name FROM sqlite_master WHERE type = 'table'")
        names = listed.query("FROM own")
    else:
        with (
            explained(str(reading.place)),
            duckdb.connect(reading.place.path, read_only=True) as own,
        ):
            names = own.sql("SELECT table_name FROM duckdb_tables()").fetchall()
    if len(names) != 1:
        shown = ", ".join(name for (name,) in names)
        raise ParameterError(
            f"{reading.place} has {len(names)} tables: {shown}.", "Choose rows with `sql`."
        )
    return _of_query(reading, (), f"SELECT * FROM {quoted(names[0][0])}", {})


def _of_sqlite(reading: Reading, query: str) -> Table:
    """Return the rows of a query that SQLite answers; they are copied once."""
    try:
        import adbc_driver_sqlite.dbapi as sqlite
    except ImportError as error:
        raise ParameterError(
            f"{reading.place} needs a package that is not installed ({error}).",
            "Install dask-nrbfn[sqlite].",
        ) from error
    connection = connected()
    try:
        with (
            sqlite.connect(f"file:{pathname2url(reading.place.path)}?mode=ro") as database,
            database.cursor() as cursor,
            explained(str(reading.place)),
        ):
            cursor.execute(query)
            rows = connection.from_arrow(cursor.fetch_record_batch())
            rows.create("rows")
    except sqlite.Error as error:
        raise DataError(
            f"{reading.place} cannot be read ({error}).", "Correct the query."
        ) from error
    return Table.of(str(reading.place), connection.table("rows"), marks=reading.marks)


def table_of_arrow(origin: str, rows: pa.Table, marks: tuple[str, ...] = ()) -> Table:
    """Return the table of Arrow columns in memory, whose names may differ only in case."""
    names = [str(name) for name in rows.column_names]
    rows = without_halves(rows).rename_columns([f"c{place}" for place in range(len(names))])
    with explained(origin):
        return Table.of(origin, connected().from_arrow(rows), names, marks=marks)


def without_halves(rows: pa.Table) -> pa.Table:
    """Return a table with float16, which DuckDB does not know, as float32."""
    for place, of in enumerate(rows.schema.types):
        if pa.types.is_float16(of):
            name = rows.column_names[place]
            rows = rows.set_column(place, name, rows.column(place).cast(pa.float32()))
    return rows


def table_of_object(source: Any, marks: tuple[str, ...]) -> Table | None:
    """Return the table of a relation, a frame or an Arrow reader; None for anything else."""
    if isinstance(source, duckdb.DuckDBPyRelation):
        return Table.of("the relation", source, marks=marks)
    if isinstance(source, pa.RecordBatchReader):
        connection = connected()
        with explained("the reader"):
            connection.from_arrow(source).create("rows")
        return Table.of("the reader", connection.table("rows"), marks=marks)
    from dask_nrbfn.sources.frames import as_frame

    frame = as_frame(source, "the frame")
    if frame is None:
        return None
    with explained("the frame"):
        return table_of_arrow("the frame", frame.to_arrow(), marks)
