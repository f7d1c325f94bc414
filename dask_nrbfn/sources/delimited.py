"""Rows from CSV and TSV files, one or several.

Files are read one by one with pyarrow's own reader rather than as one pyarrow dataset, which loses
the line of a bad cell and fills columns that a file lacks with nulls.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from dask_nrbfn.errors import DataError, NRBFNError
from dask_nrbfn.numeric.schema import Column, Schema
from dask_nrbfn.sources.cells import (
    NOT_OF_KIND,
    CellError,
    kind_of,
    stored_values,
    with_points,
    without_marks,
)
from dask_nrbfn.sources.dialect import BLANKS, Dialect, delimiter_of
from dask_nrbfn.sources.dtypes import FLOAT64, INT64, LABEL_RULE, STRING, TRUTH, label_of_text
from dask_nrbfn.sources.quotes import (
    QuoteScan,
    ScannedFile,
    line_of_byte,
    line_of_long_row,
    line_of_row,
    open_quote,
)
from dask_nrbfn.sources.source import Reading, check_size
from dask_nrbfn.sources.survey import CellKind
from dask_nrbfn.sources.tables import (
    Asked,
    TableColumns,
    common_columns,
    label_values,
    lacks_label,
)
from dask_nrbfn.sources.tabular import (
    SURVEY_ROWS,
    Rows,
    TableSource,
    no_value_error,
    survey_tables,
)
from dask_nrbfn.sources.textfile import UNREADABLE, TextFile, csv_damage_named, text_files
from dask_nrbfn.sources.written import number_reading

# Bytes of text in one CSV batch. pyarrow always reads dozens of batches ahead: 480 MB of text took
# 213 MiB of memory with batches of 4 MiB and 96 MiB with 1 MiB; smaller batches were no slower.
TEXT_BYTES = 256 << 10
# A CSV batch must hold whole lines, whose largest size is only guessed from the first two lines.
LINES_PER_BATCH = 16
_CANONICAL_INTEGER = r"^(0|-?[1-9][0-9]*)$"
_BAD_CELL = re.compile(
    r"CSV column #(\d+): Row #(\d+): CSV conversion error to (\w+): invalid value '(.*)'$",
    re.DOTALL,
)
# pyarrow's name of the type of numbers.
_DOUBLE = "double"
_BAD_LENGTH = re.compile(r"CSV parse error: Row #(\d+): Expected (\d+) columns, got (\d+)")
# Errors of pyarrow if a cell spans more than two batches, or a header goes on to the end.
_LONG_CELL = re.compile("straddling object|out of sync|Empty CSV file")
_THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2},[0-9]{3}")
_DECIMAL_COMMA = re.compile(r"[ \t]*[+-]?[0-9]*,[0-9]+[ \t]*")


# Bytes of the batches that are joined after reading: pyarrow's batches are small, and each batch
# costs calls for every column.
TOGETHER_BYTES = 2 << 20
# A cell of at most this many blanks has no value.
_MOST_BLANKS = 16
_BLANK = ("", " ")


@dataclass(frozen=True, eq=False)
class CsvTable:
    """A CSV file as a `Table`; columns without a kind are read as text.

    missing_values: markers of a missing value, besides empty text.
    names: names of its columns.
    originals: name that pyarrow gives to each column, by the column's own name.
    types: type of each column that its first rows suggest.
    as_text: columns of numbers with a missing-value marker within more blanks than pyarrow skips.
    """

    file: TextFile
    missing_values: tuple[str, ...]
    asked: Asked
    names: tuple[str, ...]
    originals: Mapping[str, str]
    types: Mapping[str, pa.DataType]
    as_text: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, file: TextFile, asked: Asked) -> Self:
        """Return the table of a file, with the column types that its first rows suggest."""
        marks = ("", *asked.options.missing_values)
        with _csv_errors(file), _csv_reader(file, {}, marks) as reader:
            schema = reader.schema
            first = next(iter(reader), None)
        shown = schema.empty_table().columns if first is None else first.columns
        names = file.dialect.names(schema.names)
        return cls(
            file,
            marks,
            asked,
            names,
            dict(zip(names, schema.names, strict=True)),
            {
                name: _shown(cells, marks, file.dialect)
                for name, cells in zip(names, shown, strict=True)
            },
        )

    def __str__(self) -> str:
        return str(self.file)

    @property
    def decimal(self) -> str:
        """The decimal mark; empty if unknown, as between semicolons, where it may be a comma."""
        return _decimal_of(self.file.dialect)

    def place(self, row: int) -> str:
        """Return the line in which a row begins."""
        return f"line {_line_of_row(self.file, row)}"

    def batches(
        self, kinds: Mapping[str, CellKind | None], batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some columns; raise DataError if a quote is left open.

        kinds, batch_rows: see `Table.batches`.
        """
        n_rows = 0
        with _csv_errors(self.file, self.asked):
            try:
                for batch in self._batches(kinds, batch_rows):
                    yield batch
                    n_rows += len(batch)
            except pa.ArrowInvalid as error:
                if not self._is_padded_mark(error):
                    raise
                # Text is slower, so numbers are read as text only from here on.
                self.as_text.update(name for name, kind in kinds.items() if kind == "number")
                yield from _after(n_rows, self.batches(kinds, batch_rows))

    def _batches(
        self, kinds: Mapping[str, CellKind | None], batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        types = {self.originals[name]: self._type(name, kind) for name, kind in kinds.items()}
        scan = self.file.scan()
        with _csv_reader(self.file, types, self.missing_values, scan) as reader:
            for batch in together(reader, TOGETHER_BYTES, batch_rows):
                columns = map(self._cells, batch.columns, kinds.values())
                yield pa.RecordBatch.from_arrays(list(columns), names=list(kinds))
        if scan.inside:
            raise _open_quote_error(self.file, scan.opened)

    def _is_padded_mark(self, error: Exception) -> bool:
        """Return whether a number was refused because of blanks around a missing-value marker."""
        cell = _BAD_CELL.search(str(error))
        return bool(cell and cell[3] == _DOUBLE and cell[4].strip(BLANKS) in self.missing_values)

    def types_further_on(self, names: Sequence[str]) -> dict[str, pa.DataType]:
        """Return the type of each named column, from the first batch in which it has values.

        For columns whose first rows are empty. The type is null if no row has a value.
        """
        types = dict.fromkeys(names, pa.null())
        for batch in self.batches(dict.fromkeys(names), SURVEY_ROWS):
            for name in filter(lambda name: pa.types.is_null(types[name]), names):
                types[name] = _shown(batch[name], self.missing_values, self.file.dialect)
            if not any(map(pa.types.is_null, types.values())):
                break
        return types

    def _type(self, name: str, kind: CellKind | None) -> pa.DataType:
        # pyarrow skips blanks only around numbers.
        if kind != "number" or self.asked.spoiled:
            return pa.string()
        if kind_of(self.types[name]) == "boolean":
            return pa.bool_()
        return pa.string() if name in self.as_text else pa.float64()

    def _cells(self, cells: pa.Array, kind: CellKind | None) -> pa.Array:
        """Return cells in which missing-value markers are null."""
        if kind is None or not pa.types.is_string(cells.type):
            return cells
        cells = without_marks(cells, self.missing_values)
        if kind not in ("number", "category") or self.file.dialect.decimal == ".":
            return cells
        if kind == "number":
            texts = pc.replace_substring(cells.dictionary, ",", ".")
        else:  # Categories that are numbers have the same texts in any format.
            texts = with_points(cells.dictionary)
        return pa.DictionaryArray.from_arrays(cells.indices, texts)


def _after(n_rows: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows after the first `n_rows`."""
    for batch in batches:
        if len(batch) > n_rows:
            yield batch.slice(n_rows)
        n_rows = max(n_rows - len(batch), 0)


def _decimal_of(dialect: Dialect) -> str:
    return "" if (dialect.delimiter, dialect.decimal) == (";", ".") else dialect.decimal


def together(
    batches: Iterable[pa.RecordBatch], n_bytes: int, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of about `n_bytes` bytes and at most `batch_rows` rows."""
    held: list[pa.RecordBatch] = []
    held_bytes = held_rows = 0
    for batch in batches:
        held.append(batch)
        held_bytes, held_rows = held_bytes + batch.nbytes, held_rows + len(batch)
        if held_bytes >= n_bytes or held_rows >= batch_rows:
            yield from _joined(held, batch_rows)
            held, held_bytes, held_rows = [], 0, 0
    if held:
        yield from _joined(held, batch_rows)


def _joined(batches: list[pa.RecordBatch], batch_rows: int) -> list[pa.RecordBatch]:
    whole = pa.concat_batches(batches)
    return [whole.slice(start, batch_rows) for start in range(0, len(whole), batch_rows)]


def _shown(cells: pa.Array, marks: Sequence[str], dialect: Dialect) -> pa.DataType:
    """Return the type that the first cells of a column suggest.

    pyarrow does not recognize dates after blanks, and has more types than there are kinds. Texts
    with decimal commas count as numbers, so that a later error suggests the option `decimal`.
    """
    if not pa.types.is_string(cells.type):
        return pa.string() if kind_of(cells.type) is None else cells.type
    texts = without_marks(cells, marks).dictionary_decode().drop_null()
    if not len(texts):
        return pa.null()
    if dialect.decimal == ",":
        has_marks = pc.any(pc.match_substring(texts, ".")).as_py()
        texts = with_points(texts)
    else:
        different = texts.unique().to_pylist()
        has_marks = dialect.delimiter != ";" and all(map(_THOUSANDS.fullmatch, different))
        if not has_marks and all(map(_DECIMAL_COMMA.fullmatch, different)):
            return pa.float64()
    # Numbers with thousands separators are text until all rows have been surveyed.
    for arrow in (pa.float64(), pa.bool_(), pa.timestamp("us"))[has_marks:]:
        # The first value nearly always decides; reading all non-numbers one by one is slow.
        if all(_are_of(arrow, part) for part in (texts[:1], texts)):
            return arrow
    return pa.string()


def _are_of(arrow: pa.DataType, texts: pa.Array) -> bool:
    kind = kind_of(arrow)
    assert kind is not None
    return bool(np.isfinite(stored_values(texts, Column("", kind), spoiled=True)).all())


@dataclass(kw_only=True)
class CsvSource(TableSource):
    """Rows of CSV files.

    label_is_plain: whether every label is written as Python writes an integer, or is text.
    """

    label_is_plain: bool = True

    def check_places(self, trained: Schema) -> None:
        """Raise DataError if unnamed columns may differ from the columns of a schema."""
        _check_places(trained, self.columns, self.tables)

    def _labels(self, rows: Rows, name: str) -> np.ndarray:
        texts = _bare(rows.cells[name])
        if self.asked.may_lack_labels:
            texts = pc.if_else(pa.array(lacks_label(texts)), str(self.empty_label), texts)
        if self.y_dtype != INT64:
            return label_values(texts)
        if self.label_is_plain:
            return texts.cast(pa.int64()).to_numpy(zero_copy_only=False)
        encoded = texts.dictionary_encode()
        decimal = rows.table.file.dialect.decimal
        values = [label_of_text(text, decimal) for text in encoded.dictionary.to_pylist()]
        return np.array(values, dtype=INT64)[encoded.indices.to_numpy()]

    def _ids(self, rows: Rows, name: str) -> np.ndarray:
        texts = _bare(rows.cells[name])
        if self.id_dtype == INT64:
            return texts.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return label_values(texts)


def open_rows(reading: Reading) -> CsvSource:
    """Return the rows of CSV files; their schema records how they are written."""
    asked = Asked.of(reading)
    before = {} if asked.schema is None else asked.schema.written
    names = ("delimiter", "quote", "decimal", "encoding", "no_header")
    said = {name: before[name] for name in names if name in before} | reading.written
    if "delimiter" in said:
        said["delimiter"] = delimiter_of(str(said["delimiter"]))
    texts = text_files(tuple(reading.files), named=asked.named, **said)
    source = _open_csv(texts, asked)
    if not texts[0].dialect.header:
        # Files to predict from have no header either.
        said["no_header"] = True
    if "missing_values" in asked.options.said:
        said["missing_values"] = list(asked.options.missing_values)
    source.schema = replace(source.schema, written=said)
    return source


def _open_csv(files: tuple[TextFile, ...], asked: Asked) -> CsvSource:
    """Return the rows of CSV files, which are first read to find the column types.

    files: with the same columns. The first rows show which are numbers, booleans or dates.
    asked: labels are int64 if all are whole numbers ("3", "-1", "2.0"; not "03"), true or false,
        and if no label of the model is text; otherwise text. Ids are int64 if all are written as
        "3" or "-1"; otherwise text.
    """
    tables = tuple(CsvTable.of(file, asked) for file in files)
    try:
        columns = asked.columns(common_columns({table: table.names for table in tables}))
    except DataError as error:
        names = tables[0].names
        odd = len({*names}) < len(names) or any(name[:1].isdigit() for name in names)
        if asked.schema is not None or not files[0].dialect.header or not odd:
            raise
        problem, remedy = error.args
        raise DataError(
            problem, f"{remedy} If the first line is a row of data, pass `no_header`."
        ) from error
    label, ids = columns.roles.label, columns.id
    if asked.schema is not None:
        _check_places(asked.schema, columns, tables)
    if not columns.features:
        check_size(asked.origin, n_rows=1, n_features=0)
    types = _types_of(tables, columns.features, asked)
    kinds = {}
    for name in columns.features:
        kind = asked.options.kind(name, types[name])
        assert kind is not None  # Text always has a kind.
        kinds[name] = kind
    late: dict[str, _WrittenNumberError] = {}
    label_kind, id_kind = _LabelKind(asked), _LabelKind()

    def see(rows: Rows) -> None:
        for name, kind in ((label, label_kind), (ids, id_kind)):
            if name is not None:
                kind.see(rows, name)

    while True:
        try:
            schema, n_rows = survey_tables(tables, columns, kinds, see)
            break
        except _WrittenNumberError as error:
            if error.column in late or kinds.get(error.column) != "number":
                raise
            # The first values are plain numbers: only all values show how they are written.
            late[error.column], kinds[error.column] = error, "text"
            label_kind, id_kind = _LabelKind(asked), _LabelKind()
    for column in schema.columns:
        late.pop(column.name if column.written else "", None)
    if late:
        raise next(iter(late.values()))
    y_dtype = None if columns.roles.targets is None else FLOAT64
    if label is not None:
        y_dtype = STRING if asked.classes_are_text else label_kind.dtype()
    id_dtype = INT64 if id_kind.plain else STRING
    return CsvSource.of(
        tables,
        columns,
        schema,
        n_rows,
        x_dtype=FLOAT64,
        y_dtype=y_dtype,
        boolean_labels=y_dtype == INT64 and label_kind.boolean,
        id_dtype=None if ids is None else id_dtype,
        label_is_plain=label_kind.plain,
    )


def _check_places(schema: Schema, columns: TableColumns, tables: Sequence[Any]) -> None:
    """Raise DataError if unnamed columns may differ from the columns of a schema.

    Such columns are named by their place. Without the first column, the label, each column has the
    name of the column before.
    """
    if tables[0].file.dialect.header:
        return
    labels = {schema.label, *(schema.targets or ())} - {None}
    others = {*schema.ignored, schema.weights, schema.id} - {None}
    if others.difference(columns.names) and labels.intersection(columns.names):
        n_known = len(schema.columns) + len(labels | others)
        raise DataError(
            f"{columns.asked.origin} has no header and {len(columns.names)} columns, but training "
            f"had {n_known}: the missing columns cannot be identified.",
            "Give all columns of the training table, in the same order.",
        )


def _types_of(
    tables: Sequence[CsvTable], names: Sequence[str], asked: Asked
) -> dict[str, list[pa.DataType]]:
    """Return the types of each column in all tables; columns that begin empty are read further."""
    types = {name: [table.types[name] for table in tables] for name in names}
    empty = [name for name in names if all(map(pa.types.is_null, types[name]))]
    if empty and asked.schema is None:
        further = [table.types_further_on(empty) for table in tables]
        types |= {name: [each[name] for each in further] for name in empty}
    return types


class _WrittenNumberError(DataError):
    """A column of plain numbers has a number with thousands separators or a unit."""

    column = ""


class _LabelKind:
    """The type of the labels that were read so far: whole numbers, or text.

    plain: whether all are written as Python writes integers.
    boolean: whether all are true or false.
    asked: options of the table, for labels; None for ids.
    """

    def __init__(self, asked: Asked | None = None) -> None:
        self._asked = asked
        self.plain = self.boolean = True
        self._text = False
        self._refused: DataError | None = None

    def see(self, rows: Rows, name: str) -> None:
        """Add the labels in a column of further rows."""
        labels = given = _bare(rows.cells[name])
        if self._asked is not None and self._asked.may_lack_labels:
            given = labels.filter(pa.array(~lacks_label(labels)))
        elif (empty := pc.index(labels, "").as_py()) >= 0:
            if self._asked is None:
                raise no_value_error(rows, name, empty)
            raise self._asked.no_label_error(rows.lacks(name, empty))
        if self._text or not len(given):
            return
        if self.plain and _are_integers(given):
            self.boolean = False
            return
        self.plain = False
        decimal = rows.table.file.dialect.decimal
        values = {text: label_of_text(text, decimal) for text in pc.unique(given).to_pylist()}
        self.boolean = self.boolean and values.keys() <= TRUTH.keys()
        if any(isinstance(value, str) for value in values.values()):
            self._text = True
        elif self._refused is None:
            wrong = [text for text, value in values.items() if isinstance(value, float)]
            if wrong:
                place = rows.place(pc.index(labels, wrong[0]).as_py())
                self._refused = DataError(
                    f"{rows.column(name)} has the label {wrong[0]} in {place}.", LABEL_RULE
                )

    def dtype(self) -> np.dtype:
        """Return the stored type of all labels; raise DataError if some are not whole numbers."""
        if self._text:
            return STRING
        if self._refused is not None:
            raise self._refused
        return INT64


def _bare(labels: pa.Array) -> pa.Array:
    """Return text without the blanks around it, as pyarrow reads numbers."""
    return pc.utf8_trim(labels, BLANKS)


@contextmanager
def _csv_reader(
    file: TextFile,
    types: Mapping[str, pa.DataType],
    missing_values: Sequence[str],
    scan: QuoteScan | None = None,
) -> Iterator[csv.CSVStreamingReader]:
    head, dialect = file.head(), file.dialect
    with file.open() as text:
        stream = text if scan is None else ScannedFile(text, scan)
        with csv.open_csv(
            pa.PythonFile(stream, mode="r"),
            # pyarrow gives the row of a bad cell only when it reads with one thread.
            read_options=csv.ReadOptions(
                use_threads=False,
                block_size=_block_bytes(head),
                autogenerate_column_names=not dialect.header,
            ),
            parse_options=csv.ParseOptions(
                delimiter=dialect.mark,
                quote_char=dialect.quote,
                newlines_in_values=True,
                ignore_empty_lines=_skips_empty_lines(head, dialect.mark),
            ),
            convert_options=csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                decimal_point=dialect.decimal,
                null_values=_padded(missing_values),
                true_values=_padded(["1", *(text for text, truth in TRUTH.items() if truth)]),
                false_values=_padded(["0", *(text for text, truth in TRUTH.items() if not truth)]),
            ),
        ) as reader:
            yield reader


def _padded(texts: Iterable[str]) -> list[str]:
    """Return texts also with a blank before or after, which pyarrow skips only around numbers."""
    # pyarrow keeps these texts for each column, so the number of blanks is limited.
    padded = [f"{before}{text}{after}" for text in texts for before in _BLANK for after in _BLANK]
    return [*padded, *(" " * n for n in range(_MOST_BLANKS + 1) if "" in padded)]


def _block_bytes(head: list[bytes]) -> int:
    return max(TEXT_BYTES, LINES_PER_BATCH * max(len(line) for line in head))


def _skips_empty_lines(head: list[bytes], mark: str) -> bool:
    # In a table of one column, an empty line is an empty cell. A header may begin with one, or
    # have a line end within quotes.
    return any(mark.encode() in line for line in head)


@contextmanager
def _csv_errors(file: TextFile, asked: Asked | None = None) -> Iterator[None]:
    try:
        yield
    except (NRBFNError, PermissionError):
        raise
    except UNREADABLE as error:
        if (explained := _explained(file, error, asked)) is not None:
            raise explained from error
        with csv_damage_named(file.file):
            raise


def _explained(file: TextFile, error: Exception, asked: Asked | None) -> DataError | None:
    """Return an error that names the line; None if the line is unknown."""
    message = str(error)
    if _LONG_CELL.search(message):
        with file.open() as text:
            opened = open_quote(text, file.scan())
        if opened is not None:
            return _open_quote_error(file, opened)
        limit = _block_bytes(file.head())
        with file.open() as text:
            line = line_of_long_row(text, limit, file.scan())
        if line is not None:
            line += file.dialect.skipped
            return DataError(
                f"{file} has a row of more than {limit} bytes in line {line}.",
                "Shorten the cells of the row.",
            )
    if cell := _BAD_CELL.search(message):
        return _bad_cell_error(file, *cell.groups(), asked=asked)
    if "Empty CSV file" in message:
        return DataError(f"{file} is empty: it has no rows.", "Give at least one row.")
    if length := _BAD_LENGTH.search(message):
        row, n_expected, n_found = map(int, length.groups())
        return DataError(
            f"line {_line_of_counted_row(file, row)} of {file} has {n_found} cells, but the first "
            f"row has {n_expected}.",
            "Write the same number of cells in every line. Quote text that contains the delimiter.",
        )
    return None


def _bad_cell_error(
    file: TextFile, column: str, row: str, arrow: str, value: str, *, asked: Asked | None
) -> DataError:
    with _csv_reader(file, {}, ()) as reader:
        name = file.dialect.names(reader.schema.names)[int(column)]
    place = f"line {_line_of_counted_row(file, int(row))}"
    kind = "boolean" if arrow == "bool" else "number"
    remedy = None if asked is None else asked.cell_remedy(name)
    error = CellError(name, value, NOT_OF_KIND[kind]).within(file, place, remedy)
    if number_reading({value.strip(BLANKS): 1}, _decimal_of(file.dialect))[0].written != ("",):
        written = _WrittenNumberError(*error.args)
        written.column = name
        return written
    if file.dialect.decimal != "," and _DECIMAL_COMMA.fullmatch(value):
        return DataError(error.args[0], "Pass `decimal`=',' if numbers have decimal commas.")
    return error


def _open_quote_error(file: TextFile, opened: int) -> DataError:
    with file.open() as text:
        line = file.dialect.skipped + line_of_byte(text, opened)
    quote = file.dialect.quote
    return DataError(
        f"{file} ends inside a quote that opens in line {line}.",
        f"Close the quote at the end of its cell, or write {quote}{quote} for a quote in a text.",
    )


def _line_of_counted_row(file: TextFile, row: int) -> int:
    """Return the line (from 1) of a row that pyarrow counts from 1, including the header."""
    return _line_of_row(file, row - 1 - file.dialect.header)


def _line_of_row(file: TextFile, row: int) -> int:
    """Return the line (from 1) of a row that is counted from 0, without the header."""
    skip_empty = _skips_empty_lines(file.head(), file.dialect.mark)
    with file.open() as text:
        line = line_of_row(text, row + file.dialect.header, file.scan(), skip_empty=skip_empty)
    return file.dialect.skipped + line


def _are_integers(labels: pa.Array) -> bool:
    if not pc.all(pc.match_substring_regex(labels, _CANONICAL_INTEGER), min_count=0).as_py():
        return False
    try:
        pc.cast(labels, pa.int64())
    except pa.ArrowInvalid:
        return False
    return True
