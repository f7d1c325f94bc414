"""Text tables as DuckDB reads them: the dialect, the header and the types of their columns."""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from dask_nrbfn.errors import Advice, DataError, plural
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.options import MISSING_VALUES, ReadOptions, named_columns
from dask_nrbfn.sources.relation import (
    NUMBERED,
    SNIFFED_ROWS,
    Connection,
    kind_of,
    quoted,
    ran,
    widen,
)
from dask_nrbfn.sources.source import Request, shown_names
from dask_nrbfn.sources.text import (
    JOINED,
    Dialect,
    check_repeats,
    check_split,
    header_of,
    lines_named,
    literal,
    path_sql,
    width_of,
)

logger = logging.getLogger(__name__)

# What DuckDB finds of dates, by its name as an argument.
_FORMATS = {"dateformat": "DateFormat", "timestampformat": "TimestampFormat"}
# Text files that are open at once.
_MOST_OPEN = 256
# A row that repeats so many names is a header. Words of so few letters can be cells of a row.
_NAMES_TOLD, _SHORT = 16, 3
# Groups of files whose missing columns are told.
_GROUPS_TOLD = 3

Arguments = dict[str, str]
"""Arguments of read_csv as SQL."""


@dataclass(frozen=True, kw_only=True)
class TextFiles:
    """Text files whose dialects and first rows are known.

    headers: the cells of the first row of each file.
    has_header: whether the first rows are headers, which the first file decides.
    by_blanks: whether blanks are between the cells. One at the end of a row is then no cell.
    formats: formats of dates.
    arguments: those with which DuckDB read the first rows.
    """

    files: Sequence[File]
    dialects: Sequence[Dialect]
    headers: Sequence[list[str]]
    has_header: bool
    by_blanks: bool
    formats: Mapping[str, Any]
    arguments: Arguments

    @property
    def checked(self) -> list[tuple[File, Dialect]]:
        """The files in which errors name the line."""
        return [] if self.by_blanks else [*zip(self.files, self.dialects, strict=True)]

    @property
    def dialect(self) -> Arguments:
        """What all files have in common; DuckDB finds again what differs."""
        return dict(set.intersection(*({*each.options().items()} for each in self.dialects)))

    @property
    def are_alike(self) -> bool:
        """Whether all files have the same columns in the same order, and one dialect."""
        columns = {tuple(each) if self.has_header else len(each) for each in self.headers}
        return len(columns) == len({*self.dialects}) == 1


def text_rows(
    connection: Connection,
    request: Request,
    paths: str,
    how: Arguments,
    *,
    are_texts: bool = False,
) -> tuple[Any, dict[str, Any]]:
    """Return the rows of text files, and what a `Table` has of them.

    how: arguments that find columns by name.
    are_texts: whether all cells are text, else only booleans are.
    """
    options = request.options
    text = _sniffed(connection, request)
    found = _column_types(connection, text, paths, how)
    written = {"delimiter": options.delimiter, "encoding": options.encoding, **text.formats}
    written["no_header"] = not text.has_header
    arguments = _arguments(options, {**written, **_known(options)}, are_texts=are_texts)
    arguments |= text.dialect
    texts = {name: "VARCHAR" for name, of in found.items() if are_texts or of == "BOOLEAN"}
    many = len(text.files) > _MOST_OPEN
    if text.by_blanks:
        arguments |= {"auto_detect": "false", "columns": _types_sql(found | texts)}
    else:
        arguments |= how
        if many and text.are_alike:
            # Files whose columns are found by name are all open at once.
            arguments["union_by_name"] = "false"
        types = found | texts if many else texts
        if are_texts and types:
            arguments["all_varchar"] = "true"
        elif types:
            arguments["types"] = _types_sql(types)
    rows = connection.sql(f"FROM read_csv({paths}, {_sql(arguments)})")
    if text.has_header and not request.spoiled:
        _check_joined(connection, rows, text, request, found)
    given = {name: value for name, value in written.items() if value}
    return rows, {"found": found, "written": given, "files": text.checked}


def _sniffed(connection: Connection, request: Request) -> TextFiles:
    """Return files and what DuckDB finds in their first rows; raise DataError about lines."""
    options, files = request.options, request.files
    arguments = _arguments(options, _known(options))
    # Rows of another length are errors, except for a blank at their end.
    by_blanks = arguments.get("delim") == "' '" and [*files] == [request.place]
    arguments["null_padding"] = str(by_blanks).lower()
    encoding = _encoding(options)
    widen(connection, width_of(files[0], encoding))
    sniffed = list[dict[str, Any]]()
    for file in files:
        with lines_named(
            [] if by_blanks else [(file, Dialect(options.delimiter, encoding=encoding))]
        ):
            query = f"FROM sniff_csv({path_sql(file)}, {_sql(arguments)})"
            sniffed += connection.sql(query).to_arrow_table().to_pylist()
    dialects = [Dialect.of(each, encoding) for each in sniffed]
    text = TextFiles(
        files=files,
        dialects=dialects,
        headers=[header_of(*each) for each in zip(files, dialects, strict=True)],
        has_header=sniffed[0]["HasHeader"],
        by_blanks=by_blanks,
        formats={name: sniffed[0][own] for name, own in _FORMATS.items()},
        arguments=arguments,
    )
    if text.has_header:
        for file, names in zip(files, text.headers, strict=True):
            check_repeats(names, file)
        if options.sql is None:
            _tell_other_columns(text, options)
    unsplit = zip(text.checked, text.headers, strict=False)
    check_split(each for each, header in unsplit if len(header) == 1)
    return text


def _tell_other_columns(text: TextFiles, options: ReadOptions) -> None:
    """Warn of columns that some files do not have; the case of names does not matter."""
    headers = [{name.casefold() for name in header} for header in text.headers]
    chosen, dropped = named_columns(options.columns), named_columns(options.drop)
    if options.schema is not None:
        chosen = tuple(column.name for column in options.schema.columns)
    if chosen:
        roles = options.label, options.weights, options.id, *named_columns(options.target)
        chosen += tuple(filter(None, roles))
    names = dict[str, str]()
    for name in chain.from_iterable(text.headers):
        names.setdefault(name.casefold(), name)
    lacking = defaultdict[tuple[File, ...], list[str]](list)
    for folded, name in names.items():
        if name not in dropped and (name in chosen or not chosen):
            has = [folded in header for header in headers]
            files = tuple(file for file, met in zip(text.files, has, strict=True) if not met)
            lacking[files].append(name)
    lacking.pop((), None)
    told = [
        f"{shown_names(own)} in {files[0]}"
        + (f" and {plural(len(files) - 1, 'more file')}" if len(files) > 1 else "")
        for files, own in islice(lacking.items(), _GROUPS_TOLD)
    ]
    if len(lacking) > len(told):
        told.append(f"others in {plural(len(lacking) - len(told), 'more group')} of files")
    if told:
        advice = (
            f"These columns are missing, and are read as missing values: {'; '.join(told)}. If a "
            'column has two names, join them by `sql`="SELECT * EXCLUDE (OLD) REPLACE '
            '(coalesce(NEW, OLD) AS NEW) FROM source".'
        )
        logger.warning("%s", Advice(advice))


def _column_types(
    connection: Connection, text: TextFiles, paths: str, how: Arguments
) -> dict[str, str]:
    """Return the types that columns have in the first rows, by name."""
    arguments = text.arguments | how
    if not text.by_blanks:
        arguments |= text.dialect
    with lines_named(text.checked):
        found = _types_found(connection, text.files, arguments)
    if text.by_blanks:
        last = f"SELECT count({quoted([*found][-1])}) FROM read_csv({paths}, {_sql(arguments)})"
        if connection.sql(last).fetchall() == [(0,)]:
            found.popitem()
        if not text.has_header:
            digits = len(str(len(found) - 1))
            found = {f"column{j:0{digits}}": of for j, of in enumerate(found.values())}
    return found


def _types_found(
    connection: Connection, files: Sequence[File], arguments: Arguments
) -> dict[str, str]:
    """Return the types of the first rows of text files, some files at a time."""
    found = dict[str, str]()
    for start in range(0, len(files), _MOST_OPEN):
        paths = ", ".join(map(path_sql, files[start : start + _MOST_OPEN]))
        rows = connection.sql(f"FROM read_csv([{paths}], {_sql(arguments)})")
        for name, of in zip(rows.columns, map(str, rows.types), strict=True):
            kinds = {kind_of(of), kind_of(found.get(name, of))}
            wider = "DOUBLE" if kinds == {"number"} else "VARCHAR"
            found[name] = of if found.get(name, of) == of else wider
    return found


def _check_joined(
    connection: Connection,
    rows: Any,
    text: TextFiles,
    request: Request,
    found: Mapping[str, str],
) -> None:
    """Raise DataError if a row repeats the header."""
    unnamed = ("", *request.options.marks(MISSING_VALUES))
    names = [name for name in text.headers[0] if name not in unnamed]
    # Such a row makes every column a text.
    if any(found.get(name) != "VARCHAR" for name in names):
        return
    if len(names) < 3 and max(map(len, names), default=0) <= _SHORT:
        return
    are_met = [f"trim({quoted(name)}) = {literal(name)}" for name in names[:_NAMES_TOLD]]
    repeats = " AND ".join(are_met)
    with lines_named(text.checked):
        numbered = rows.project(f"row_number() OVER () - 1, {repeats} AS is_met").filter("is_met")
        first = ran(connection, numbered.limit(1).fetchall)
    for row, _ in first:
        problem = f"{request.place} repeats its header in row {row} (the first is 0)."
        raise DataError(problem, JOINED)


def _known(options: ReadOptions) -> dict[str, Any]:
    """Return how text was written at the fit; there is a header unless the fit had none."""
    if options.schema is None:
        return {}
    known = {"no_header": False, **options.schema.written}
    # A file of the columns that a query has named has a header.
    names = [column.name for column in options.schema.columns]
    if options.sql is None and not any(map(NUMBERED.fullmatch, names)):
        known["no_header"] = False
    return known


def _encoding(options: ReadOptions) -> str:
    """Return the encoding that is given, or was given at the fit."""
    return options.encoding or _known(options).get("encoding") or "utf-8"


def _arguments(
    options: ReadOptions, known: Mapping[str, Any], *, are_texts: bool = False
) -> Arguments:
    """Return the arguments of read_csv: what is given, or was found by a fit or now."""
    delimiter, marks = options.delimiter or known.get("delimiter"), options.marks(MISSING_VALUES)
    # DuckDB compares a mark with the blanks around it.
    padded = ["{}", " {}"]
    if are_texts:
        # `value_of` finds marks between blanks, unless they are numbers.
        padded = ["{}"] if marks == MISSING_VALUES else ["{}", " {}", "{} ", " {} "]
    if delimiter == " ":
        padded = ["{}"]
    nulls = dict.fromkeys(form.format(mark) for mark in ("", *marks) for form in padded)
    arguments = {
        "nullstr": f"[{', '.join(map(literal, nulls))}]",
        "sample_size": str(SNIFFED_ROWS),
        # A row that begins with # is a row.
        "comment": "''",
    }
    given = {"delim": delimiter, "encoding": _encoding(options)}
    given |= {name: known.get(name) for name in _FORMATS}
    arguments |= {name: literal(value) for name, value in given.items() if value}
    if options.no_header or "no_header" in known:
        no_header = options.no_header or known["no_header"]
        arguments["header"] = "false" if no_header else "true"
    return arguments


def _sql(arguments: Mapping[str, str]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in arguments.items())


def _types_sql(types: Mapping[str, str]) -> str:
    return f"{{{', '.join(f'{literal(name)}: {literal(of)}' for name, of in types.items())}}}"
