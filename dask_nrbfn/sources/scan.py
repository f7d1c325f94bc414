"""The tables that requests ask for: files, queries, databases, and rows in memory."""

import datetime
import logging
import re
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.request import pathname2url

import duckdb
import pyarrow as pa
from pyarrow import parquet

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.sources.files import File, optional_package
from dask_nrbfn.sources.formats import ARROW, DUCKDB, JSON, PARQUET, SQLITE, SUFFIXES
from dask_nrbfn.sources.frames import as_frame
from dask_nrbfn.sources.options import MISSING_VALUES
from dask_nrbfn.sources.relation import (
    SNIFFED_ROWS,
    Connection,
    Table,
    coded,
    connected,
    explained,
    ran,
    table_in_memory,
)
from dask_nrbfn.sources.scan_text import text_rows
from dask_nrbfn.sources.source import Request
from dask_nrbfn.sources.text import check_repeats, literal, path_sql

logger = logging.getLogger(__name__)

_QUERY = "the query"
# Steps of a plan that keep the order of rows.
_ORDERLY = re.compile("PROJECTION|FILTER|UNNEST|[A-Z_]*SCAN[A-Z_]*|READ_[A-Z_]+")
_NO_TIME = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
# The texts in which DuckDB finds booleans.
_ARE_BOOLEAN = "bool_and(lower({0}) IN ('true', 'false', 't', 'f', 'yes', 'no'))"
_NAMES_SOURCE = re.compile(r"\bsource\b", re.IGNORECASE)
_PROTOCOL = re.compile(r"\b(\w+)://")


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
    connection, query = connected(), request.options.sql
    if query is not None:
        return _table_of_query(connection, request, query)
    origin, marks = str(request.place), request.options.marks()
    if suffix in DUCKDB + SQLITE:
        raise ParameterError(
            f"{origin} is a database.", 'Choose rows with `sql`, such as "SELECT * FROM orders".'
        )
    with explained(origin):
        if _are_text(request.files):
            paths, how = _registered(connection, request.files), _how(request)
            marks = request.options.marks(MISSING_VALUES)
            rows, found = text_rows(connection, request, paths, how, are_texts=True)
            return Table.of(origin, rows, connection, marks=marks, **found)
        rows, _ = _of_files(connection, request)
        types = coded(_arrow_schemas(connection, request.files))
    return Table.of(origin, rows, connection, marks=marks, found=types)


def _are_text(files: Sequence[File]) -> bool:
    return bool(files) and SUFFIXES.get(files[0].suffix, "text") == "text"


def _table_of_query(connection: Connection, request: Request, query: str) -> Table:
    """Return the rows of a query."""
    options = request.options
    with explained(_QUERY):
        statements = connection.extract_statements(query)
        if [each.type for each in statements] != [duckdb.StatementType.SELECT]:
            raise ParameterError("`sql` is not one query.", "Give one SELECT or FROM.")
        rows, names, written = _of_query(connection, request, query)
    known: dict[str, Any] = {"marks": options.marks(), "written": written}
    table = Table.of(_QUERY, rows, connection, names=names, **known)
    return _with_booleans(table, options.label_name or "") if _are_text(request.files) else table


def _with_booleans(table: Table, label: str) -> Table:
    """Return the rows of a query of text, whose text has the types that text tables have."""
    texts = [name for name, of in table.types.items() if of == "VARCHAR"]
    tests = ", ".join([_ARE_BOOLEAN.format(table.column(name)) for name in texts] or ["true"])
    are = table.first_row(table.relation.limit(SNIFFED_ROWS).aggregate(tests))
    found = {name: "BOOLEAN" for name, is_met in zip(texts, are, strict=False) if is_met}
    # A label has the type of all its texts.
    return replace(table, found={**found, label: "VARCHAR"})


def _of_query(
    connection: Connection, request: Request, query: str
) -> tuple[Any, Sequence[str], dict[str, Any]]:
    """Return rows, the names of their columns, some of them equal, and how text is written."""
    place, written = request.place, dict[str, Any]()
    if place.suffix in SQLITE:
        return *_of_sqlite(connection, place, query), written
    if place.suffix in DUCKDB:
        path = literal(place.local(connection))
        connection.execute(f"ATTACH {path} AS given (READ_ONLY); USE given")
    elif request.files:
        if not _NAMES_SOURCE.search(query):
            raise ParameterError(
                f"`sql` does not name source, the table of {place}.",
                "Write FROM source in the query, or give the query in place of the file.",
            )
        rows, written = _of_files(connection, request)
        return *_once(connection, rows.query("source", query), query), written
    for protocol in {*_PROTOCOL.findall(query)} - {"file"}:
        _register(connection, File(f"{protocol}://", place.storage_options))
    return *_once(connection, connection.sql(query), query), written


def _of_files(connection: Connection, request: Request) -> tuple[Any, dict[str, Any]]:
    """Return the rows of files with the types of DuckDB, and how text is written."""
    files, paths = request.files, _registered(connection, request.files)
    suffix = files[0].suffix
    if suffix in ARROW:
        return connection.from_arrow(_arrow_rows(files)), {}
    how = _how(request)
    arguments = ", ".join(f"{name} = {value}" for name, value in how.items())
    if suffix in PARQUET:
        rows = connection.sql(f"FROM read_parquet({paths}, {arguments})")
        # DuckDB adds numbers to names that are repeated.
        if {*rows.columns} & {re.sub(r"_\d+$", "", name) for name in rows.columns if "_" in name}:
            for file in files:
                with file.open() as stored:
                    check_repeats(parquet.read_schema(stored).names, file)
        return rows, {}
    if suffix in JSON:
        return connection.sql(f"FROM read_json({paths}, sample_size = -1, {arguments})"), {}
    rows, found = text_rows(connection, request, paths, how)
    return rows, found["written"]


def _arrow_rows(files: Sequence[File]) -> Any:
    from pyarrow import dataset

    systems, inside = zip(*(file.file_system() for file in files), strict=True)
    return dataset.dataset([*inside], format="feather", filesystem=systems[0])


def _arrow_schemas(connection: Connection, files: Sequence[File]) -> list[pa.Schema]:
    """Return the types that writers gave to columns; none if a file does not say them."""
    if files[0].suffix in ARROW:
        return [_arrow_rows(files).schema]
    if files[0].suffix not in PARQUET:
        return []
    paths = ", ".join(map(path_sql, files))
    query = f"SELECT value FROM parquet_kv_metadata([{paths}]) WHERE key = 'ARROW:schema'"
    known = [pa.py_buffer(b64decode(value)) for (value,) in connection.sql(query).fetchall()]
    return [*map(pa.ipc.read_schema, known)] if len(known) == len(files) else []


def _how(request: Request) -> dict[str, str]:
    """Return the arguments that find columns by name, and in the keys of directories."""
    place = request.place.path
    inside = [file.path.removeprefix(place).split("/")[:-1] for file in request.files]
    parts = {part for directories in inside for part in directories}
    keys = sorted({part.partition("=")[0] for part in parts if "=" in part and "*" not in place})
    if keys:
        logger.info("%s: keys of directories are columns: %s", place, ", ".join(keys))
    return {"union_by_name": "true", "hive_partitioning": str(bool(keys)).lower()}


def _registered(connection: Connection, files: Sequence[File]) -> str:
    """Return the SQL of a list of files, which a connection can read then."""
    if files[0].is_remote:
        _register(connection, files[0])
    return f"[{', '.join(map(path_sql, files))}]"


def _register(connection: Connection, file: File) -> None:
    """Let a connection read URLs of the protocol of a file."""
    fs, _ = file.file_system()
    if "http" in fs.protocol:
        # DuckDB asks for the time of the last change, which fsspec does not know of web servers.
        untimed = type("Untimed", (type(fs),), {"modified": lambda self, path: _NO_TIME})
        fs = untimed(**fs.storage_options)
    connection.register_filesystem(fs)


def _once(connection: Connection, rows: Any, query: str) -> tuple[Any, Sequence[str]]:
    """Return the rows of a query, copied unless each pass gives them in the same order."""
    steps = re.findall(r'"name": "(.*?)"', rows.explain(format="json"))
    if all(map(_ORDERLY.fullmatch, steps)) and "random" not in query.lower():
        return rows, rows.columns
    # The database of the query may be a file that is only read.
    ran(connection, lambda: rows.create("memory.once"))
    return rows.query("own", "FROM memory.once"), rows.columns


def _of_sqlite(connection: Connection, place: File, query: str) -> tuple[Any, Sequence[str]]:
    """Return the rows of a query that SQLite answers; they are copied once."""
    sqlite = optional_package("adbc_driver_sqlite.dbapi", "sqlite")
    path = pathname2url(place.local(connection))
    with sqlite.connect(f"file:{path}?mode=ro") as database, database.cursor() as cursor:
        cursor.execute(query)
        rows = cursor.fetch_record_batch()
        connection.from_arrow(rows).create("rows")
    return connection.table("rows"), rows.schema.names
