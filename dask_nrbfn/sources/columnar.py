"""Tables whose columns have types, in one file or several.

Files are read one by one with pyarrow's own readers rather than as one pyarrow dataset: a dataset
reads whole row groups ahead, and fills columns that a file lacks with nulls.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.schema import Column, Schema
from dask_nrbfn.sources.cells import filtered, kind_of, texts_of
from dask_nrbfn.sources.decide import decide, gap_error
from dask_nrbfn.sources.dtypes import (
    FLOAT64,
    INT64,
    LABEL_RULE,
    STRING,
    check_weight_dtype,
    to_labels,
)
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.source import Block, Reading, check_size
from dask_nrbfn.sources.survey import CellKind
from dask_nrbfn.sources.tablefile import (
    ListedFile,
    MarkedFile,
    NamedFile,
    TypedFile,
    class_names,
    element_names,
    is_list,
    list_lengths,
    with_keys,
)
from dask_nrbfn.sources.tables import (
    Asked,
    TableColumns,
    check_column,
    common_columns,
    label_values,
    lacks_label,
)
from dask_nrbfn.sources.tabular import Rows, TableSource, no_value_error, survey_tables

# Bytes of ``X`` in one batch.
BATCH_BYTES = 4 << 20

_SHORT = {np.dtype(np.float16), np.dtype(np.float32)}

# Types of the columns of all files, by name.
Types = Mapping[str, Sequence[pa.DataType]]


@dataclass(kw_only=True)
class ColumnarSource(TableSource):
    """Rows of files whose columns have types.

    types: types of the columns of all files, by name.
    are_numbers: whether all columns are stored as the numbers or booleans that they are.
    """

    types: Types
    are_numbers: bool

    def _parts(self, block_rows: int) -> Iterator[Block]:
        row_bytes = self.n_features * self.x_dtype.itemsize
        row_bytes += len(self.target_names or ()) * FLOAT64.itemsize
        return super()._parts(max(1, min(block_rows, BATCH_BYTES // row_bytes)))

    def _stored(self, rows: Rows) -> np.ndarray:
        if not self.are_numbers:
            return super()._stored(rows)
        names = [column.name for column in self.schema.columns]
        X = np.empty((len(rows), len(names)), dtype=self.x_dtype)
        for j, name in enumerate(names):
            X[:, j] = _plain_numbers(rows, name, self.x_dtype)
        infinite = np.isinf(X)
        if infinite.any():
            _, j = np.argwhere(infinite)[0]
            rows.check_finite(names[j], infinite[:, j])
        return X

    def _labels(self, rows: Rows, name: str) -> np.ndarray:
        if not self.asked.may_lack_labels:
            _check_labels(rows, name, self.asked)
            return _names_of(rows, name, self.y_dtype)
        none = lacks_label(rows.cells[name])
        labels = np.full(len(rows), self.empty_label, dtype=self.y_dtype)
        given = {name: filtered(rows.cells[name], ~none)}
        labels[~none] = _names_of(replace(rows, cells=given), name, self.y_dtype)
        return labels

    def _ids(self, rows: Rows, name: str) -> np.ndarray:
        return _names_of(rows, name, self.id_dtype)

    def _carried_type(self, name: str) -> pa.DataType:
        """Return the common type of a column in all files."""
        fields = [pa.schema([(name, arrow)]) for arrow in self.types[name]]
        try:
            return pa.unify_schemas(fields, promote_options="permissive").field(0).type
        except pa.ArrowTypeError as error:
            types = ", ".join(dict.fromkeys(map(str, self.types[name])))
            raise DataError(
                f"Column {name!r} of {self.asked.origin} has incompatible types: {types}.",
                "Write the column with one type to every file, or leave it out of `keep`.",
            ) from error


def open_typed(reading: Reading, open_file: Callable[[File], TypedFile]) -> ColumnarSource:
    """Return the rows of files whose columns have types; `open_file` opens one of them."""
    asked = Asked.of(reading)
    marks = asked.options.missing_values
    files: dict[TypedFile, Mapping[str, str]] = {}
    for file, keys in reading.files.items():
        typed = open_file(file)
        names = class_names(typed.footer.schema)
        files[NamedFile(typed, names) if names else typed] = keys
    keyed, x = with_keys(files), reading.names("x") or ()
    if "missing_values" not in asked.options.said:
        return _open_columnar(keyed, asked, x)
    source = _open_columnar([MarkedFile(file, marks) for file in keyed], asked, x)
    written = {**source.schema.written, "missing_values": list(marks)}
    source.schema = replace(source.schema, written=written)
    return source


def _open_columnar(
    files: Sequence[TypedFile], asked: Asked, x: tuple[str, ...] = ()
) -> ColumnarSource:
    """Return the rows of files, whose footers give size and types.

    If all features are numbers or booleans, and no value may be missing, ``x_dtype`` is uint8 if
    all are bool, int64 if all are integers or bool, float16 if all are float16, and float32 if all
    are float16 or float32. Otherwise it is float64.

    files: with the same columns. Index columns written by pandas are not features.
    x: columns that become features, besides the `columns` of the options. Each element of a list of
        numbers is a feature.
    """
    files, asked = _with_elements(files, asked, x)
    names = {file: _columns(file.footer.schema, asked) for file in files}
    columns = asked.columns(common_columns(names))
    n_rows = sum(file.footer.n_rows for file in files)
    check_size(asked.origin, n_rows=n_rows, n_features=len(columns.features))
    types = {
        name: [file.footer.schema.field(name).type for file in files] for name in names[files[0]]
    }
    schema, n_rows = _schema(files, columns, types)
    plain = schema.missing == "error" and not asked.spoiled
    are_numbers = plain and all(_are_plain(each, types[each.name]) for each in schema.columns)
    of_features = {_number_type(arrow) for each in schema.columns for arrow in types[each.name]}
    label, targets, weights = columns.roles
    label_types = () if label is None else _given(types[label], asked)
    for name in targets or ():
        _number_types(types[name], name, asked)
    if weights is not None:
        for dtype in _number_types(types[weights], weights, asked):
            check_weight_dtype(dtype, f"Column {weights!r} of {asked.origin}")
    y_dtype = FLOAT64 if targets is not None else None
    return ColumnarSource.of(
        tuple(files),
        columns,
        schema,
        n_rows,
        x_dtype=_common_type(of_features) if are_numbers else FLOAT64,
        y_dtype=y_dtype if label is None else _label_type(label_types, label, asked),
        boolean_labels=label is not None and set(map(kind_of, label_types)) == {"boolean"},
        id_dtype=None if columns.id is None else _id_type(types[columns.id]),
        types=types,
        are_numbers=are_numbers,
    )


def _with_elements(
    files: Sequence[TypedFile], asked: Asked, x: tuple[str, ...]
) -> tuple[Sequence[TypedFile], Asked]:
    """Return files in which elements of lists are columns, and options that name the elements."""
    first = files[0].footer.schema
    lists = [own.name for own in first if is_list(own.type)]
    for name in x:
        check_column(asked.origin, name, tuple(first.names), "x")
    wanted = dict.fromkeys((*x, *asked.options.columns))
    known = {column.name for column in asked.schema.columns} if asked.schema else {*wanted}
    lengths = {name: _n_elements(name, known) for name in lists if f"{name}_0" in known}
    lengths |= list_lengths(files, [name for name in lists if name in wanted])
    columns = [
        element
        for name in wanted
        for element in (element_names(name, lengths[name]) if name in lengths else [name])
    ]
    asked = replace(asked, options=replace(asked.options, columns=tuple(columns)))
    return [ListedFile(file, lengths) for file in files] if lengths else files, asked


def _n_elements(name: str, known: set[str]) -> int:
    """Return how many of the known columns are elements of the list column `name`."""
    return next(place for place in count() if f"{name}_{place}" not in known)


def _columns(schema: pa.Schema, asked: Asked) -> tuple[str, ...]:
    # pandas lists the index either as the name of a column or as a range that is not stored.
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    label, targets, weights = asked.roles
    wanted = {label, *(targets or ()), weights, asked.options.id, *asked.options.columns}
    if (known := asked.schema) is not None:
        wanted |= {known.label, *(known.targets or ()), known.weights, known.id}
        wanted |= {column.name for column in known.columns}
    return tuple(name for name in schema.names if name not in index or name in wanted)


def _schema(files: Sequence[TypedFile], columns: TableColumns, types: Types) -> tuple[Schema, int]:
    """Return the schema and the number of rows that are kept.

    Cells are read only if the metadata of the files does not tell enough about a column.
    """
    asked, label = columns.asked, columns.roles.label
    options, n_rows = asked.options, sum(file.footer.n_rows for file in files)
    kinds = {name: _kind(name, types[name], asked) for name in columns.features}

    def see(rows: Rows) -> None:
        if label is not None and not asked.may_lack_labels:
            _check_labels(rows, label, asked)

    looked_at = tuple(
        name
        for name, kind in kinds.items()
        if kind in ("category", "text")
        # The metadata of files does not count NaN or absent lists.
        or options.missing != "error"
        or not all(file.tells(name) for file in files)
    )
    if asked.schema is not None:
        if asked.schema.missing != "drop" or asked.spoiled:
            return columns.given_schema, n_rows
        return survey_tables(tuple(files), columns, kinds, see)
    if looked_at:
        columns = columns._replace(features=looked_at)
        schema, n_rows = survey_tables(tuple(files), columns, kinds, see)
    else:
        schema = decide({}, columns.roles, options, ignored=columns.ignored).schema
    decided = {column.name: column for column in schema.columns}
    every = [
        decided.get(name) or Column(name, kind)  # type: ignore[arg-type]
        for name, kind in kinds.items()
        if name in decided or name not in looked_at
    ]
    return replace(schema, columns=tuple(every)), n_rows


def _check_labels(rows: Rows, name: str, asked: Asked) -> None:
    """Raise MissingLabelError if a label is null or NaN."""
    row = pc.index(pc.is_null(rows.cells[name], nan_is_null=True), True).as_py()
    if row >= 0:
        raise asked.no_label_error(rows.lacks(name, row))


def _kind(name: str, types: Sequence[pa.DataType], asked: Asked) -> CellKind:
    kind = asked.options.kind(name, types)
    if kind is None:
        shown = ", ".join(dict.fromkeys(map(str, types)))
        raise DataError(
            f"Column {name!r} of {asked.origin} has type {shown}, which cannot be a feature.",
            "Leave the column out with `drop`. Name a column of lists of numbers with `x`.",
        )
    return kind


def _are_plain(column: Column, types: Sequence[pa.DataType]) -> bool:
    """Return whether a column of numbers or booleans is stored unchanged."""
    kinds = {kind_of(arrow) for arrow in types}
    if column.kind == "number":
        return kinds <= {"number", "boolean"}
    return column.kind == "boolean" and kinds == {"boolean"}


def _number_types(types: Sequence[pa.DataType], name: str, asked: Asked) -> set[np.dtype]:
    """Return the types of a column that must have numbers or booleans."""
    for arrow in types:
        if kind_of(arrow) not in ("number", "boolean"):
            raise DataError(
                f"Column {name!r} of {asked.origin} has type {arrow}, which is not a number.",
                "Write numbers in the column of a `target` or of `weights`.",
            )
    return set(map(_number_type, types))


def _number_type(arrow: pa.DataType) -> np.dtype:
    if pa.types.is_dictionary(arrow):
        arrow = arrow.value_type
    if pa.types.is_boolean(arrow):
        return np.dtype(np.bool_)
    if pa.types.is_integer(arrow):
        return INT64
    if pa.types.is_float16(arrow):
        return np.dtype(np.float16)
    return np.dtype(np.float32) if pa.types.is_float32(arrow) else FLOAT64


def _common_type(types: set[np.dtype]) -> np.dtype:
    if types == {np.dtype(np.bool_)}:
        return np.dtype(np.uint8)
    if types <= {np.dtype(np.bool_), INT64}:
        return INT64
    return np.result_type(*types) if types <= _SHORT else FLOAT64


def _given(types: Sequence[pa.DataType], asked: Asked) -> Sequence[pa.DataType]:
    """Return the types of labels, without null, which pandas writes if a file has no labels."""
    if not asked.may_lack_labels:
        return types
    return [arrow for arrow in types if not pa.types.is_null(arrow)] or types


def _label_type(types: Sequence[pa.DataType], name: str, asked: Asked) -> np.dtype:
    kinds = set(map(kind_of, types))
    for arrow in types:
        if kind_of(arrow) in (None, "date") or pa.types.is_null(arrow):
            raise DataError(
                f"Label column {name!r} of {asked.origin} has type {arrow}.", LABEL_RULE
            )
    if "category" in kinds and len(kinds) > 1:
        raise DataError(
            f"Column {name!r} has numbers in some files of {asked.origin}, but text in others.",
            "Write labels with one type.",
        )
    return STRING if asked.classes_are_text or "category" in kinds else INT64


def _id_type(types: Sequence[pa.DataType]) -> np.dtype:
    return INT64 if set(map(_number_type, types)) == {INT64} else STRING


def _names_of(rows: Rows, name: str, dtype: np.dtype | None) -> np.ndarray:
    """Return labels or ids (b,), text or whole numbers."""
    column = rows.cells[name]
    if column.null_count:
        row = pc.index(pc.is_null(column), True).as_py()
        raise no_value_error(rows, name, row)
    if dtype == STRING and kind_of(column.type) != "category":
        column = texts_of(column)
    elif pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    return to_labels(label_values(column), rows.column(name), first_row=rows.first_row)


def _plain_numbers(rows: Rows, name: str, dtype: np.dtype) -> np.ndarray:
    """Return numbers or booleans (b,) unchanged, NaN if missing, to be stored as `dtype`."""
    column = rows.cells[name]
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_decimal(column.type):
        column = pc.cast(column, pa.float64())
    if pa.types.is_boolean(column.type):
        column = pc.cast(column, pa.uint8())
    if column.null_count and dtype.kind != "f":
        row = pc.index(pc.is_null(column), True).as_py()
        raise gap_error(rows.lacks(name, row))
    if pa.types.is_uint64(column.type) and dtype == INT64:
        try:
            column = pc.cast(column, pa.int64())
        except pa.ArrowInvalid as error:
            raise DataError(
                f"{rows.column(name)} exceeds int64 in {rows.place(0)} or later.",
                "Write the column as float64.",
            ) from error
    return column.to_numpy(zero_copy_only=False)
