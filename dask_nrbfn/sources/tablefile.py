"""Files whose columns have types, in any format; directory keys and lists become columns."""

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_nrbfn.errors import DataError
from dask_nrbfn.sources.cells import kind_of, without_marks
from dask_nrbfn.sources.files import File, damage_named
from dask_nrbfn.sources.survey import CellKind

logger = logging.getLogger(__name__)

# Value that Hive writes in the name of a directory of rows without a value.
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"

Kinds = Mapping[str, CellKind | None]
"""The kind that each column is read as; None: its own type."""


class Footer(NamedTuple):
    """The schema and the number of rows of a file."""

    schema: pa.Schema
    n_rows: int


class TypedFile(ABC):
    """A file whose columns have types: a `Table`."""

    def __init__(self, file: File) -> None:
        self.file = file

    def __str__(self) -> str:
        return str(self.file)

    @property
    def decimal(self) -> str:
        """Decimal mark of its text."""
        return "."

    @property
    @abstractmethod
    def footer(self) -> Footer:
        """The schema and the number of rows."""

    def tells(self, name: str) -> bool:
        """Return whether the file records that a column is complete and cannot be an id."""
        return False

    def batches(self, kinds: Kinds, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some columns.

        kinds, batch_rows: see `Table.batches`.
        """
        return self._read(kinds, batch_rows)

    @abstractmethod
    def _read(self, kinds: Kinds, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield batches, as `batches` does."""

    def place(self, row: int) -> str:
        """Return the number of a row."""
        return f"row {row} (the first is 0)"


class _ChangedFile(TypedFile):
    """A file that is read with changed columns."""

    def __init__(self, of: TypedFile) -> None:
        super().__init__(of.file)
        self._of = of

    @cached_property
    def footer(self) -> Footer:
        """The schema, with the changed columns, and the number of rows."""
        schema, n_rows = self._of.footer
        return Footer(self._changed_schema(schema), n_rows)

    def tells(self, name: str) -> bool:
        """Return whether the file records that a column is complete and cannot be an id."""
        return self._of.tells(name)

    def _read(self, kinds: Kinds, batch_rows: int) -> Iterator[pa.RecordBatch]:
        first_row = 0
        for batch in self._of.batches(self._own_kinds(kinds), batch_rows):
            yield self._changed(batch, kinds, first_row)
            first_row += batch.num_rows

    def _changed_schema(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def _own_kinds(self, kinds: Kinds) -> Kinds:
        """Return the kinds of the columns to read from the unchanged file."""
        return kinds

    @abstractmethod
    def _changed(self, batch: pa.RecordBatch, kinds: Kinds, first_row: int) -> pa.RecordBatch:
        """Return a batch, which begins with row `first_row`, with the wanted columns."""


class _KeyedFile(_ChangedFile):
    """A file with further columns, each of which has one value in all rows.

    keys: the value of each column.
    """

    def __init__(self, of: TypedFile, keys: Mapping[str, pa.Scalar]) -> None:
        super().__init__(of)
        self._keys = keys

    def tells(self, name: str) -> bool:
        """Return whether a column has a value in every row and cannot be an id."""
        return self._keys[name].is_valid if name in self._keys else self._of.tells(name)

    def _changed_schema(self, schema: pa.Schema) -> pa.Schema:
        for name, value in self._keys.items():
            schema = schema.append(pa.field(name, value.type))
        return schema

    def _own_kinds(self, kinds: Kinds) -> Kinds:
        return {name: kind for name, kind in kinds.items() if name not in self._keys}

    def _changed(self, batch: pa.RecordBatch, kinds: Kinds, first_row: int) -> pa.RecordBatch:
        for name in filter(self._keys.__contains__, kinds):
            batch = batch.append_column(name, pa.repeat(self._keys[name], batch.num_rows))
        return batch


def with_keys(files: Mapping[TypedFile, Mapping[str, str]]) -> list[TypedFile]:
    """Return files with further columns from the names of their directories, key=value.

    A column that the file has itself stays as it is. A key has one type in all files: integers,
    numbers, booleans, dates or text.
    """
    names = list(dict.fromkeys(name for keys in files.values() for name in keys))
    if not names:
        return list(files)
    logger.info("ingest: columns %s are from the names of directories", ", ".join(names))
    values = {name: _typed([keys.get(name) for keys in files.values()]) for name in names}
    keyed: list[TypedFile] = []
    for place, (file, keys) in enumerate(files.items()):
        own = set(file.footer.schema.names)
        further = {name: values[name][place] for name in keys if name not in own}
        keyed.append(_KeyedFile(file, further))
    return keyed


class ListedFile(_ChangedFile):
    """A file with columns of lists; each element of a list becomes a column.

    lengths: length of all lists of each of these columns.
    """

    def __init__(self, of: TypedFile, lengths: Mapping[str, int]) -> None:
        super().__init__(of)
        self._lengths = lengths
        self._lists = {
            element: name
            for name, length in lengths.items()
            for element in element_names(name, length)
        }

    def tells(self, name: str) -> bool:
        """Return whether a column cannot be an id; missing values are found when it is read."""
        return name in self._lists or self._of.tells(name)

    def _changed_schema(self, schema: pa.Schema) -> pa.Schema:
        fields: list[pa.Field] = []
        for own in schema:
            if own.name in self._lengths:
                names = element_names(own.name, self._lengths[own.name])
                fields += [pa.field(name, own.type.value_type) for name in names]
            else:
                fields.append(own)
        return pa.schema(fields, schema.metadata)

    def _own_kinds(self, kinds: Kinds) -> Kinds:
        return {self._lists.get(name, name): kind for name, kind in kinds.items()}

    def _changed(self, batch: pa.RecordBatch, kinds: Kinds, first_row: int) -> pa.RecordBatch:
        columns: dict[str, pa.Array] = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            is_list = name in self._lengths
            columns |= self._elements(name, column, first_row) if is_list else {name: column}
        return pa.RecordBatch.from_arrays([columns[name] for name in kinds], names=list(kinds))

    def _elements(self, name: str, lists: pa.Array, first_row: int) -> dict[str, pa.Array]:
        """Return the columns of the elements of lists; a missing list has missing elements."""
        length = self._lengths[name]
        lengths = pc.list_value_length(lists)
        other = pc.index(pc.not_equal(lengths, length), True).as_py()
        if other >= 0:
            raise DataError(
                f"Column {name!r} of {self} has a list of length {lengths[other]} in "
                f"{self.place(first_row + other)}, but the length {length} is expected.",
                "Write lists of one length.",
            )
        values = lists.flatten().to_numpy(zero_copy_only=False).reshape(-1, length)
        if lists.null_count:
            given = np.full((len(lists), length), np.nan)
            given[pc.is_valid(lists).to_numpy(zero_copy_only=False)] = values
            values = given
        columns = [pa.array(own, from_pandas=True) for own in np.ascontiguousarray(values.T)]
        return dict(zip(element_names(name, length), columns, strict=True))


class MarkedFile(_ChangedFile):
    """A file whose text has markers of missing values."""

    def __init__(self, of: TypedFile, marks: tuple[str, ...]) -> None:
        super().__init__(of)
        self._marks = marks

    def _changed(self, batch: pa.RecordBatch, kinds: Kinds, first_row: int) -> pa.RecordBatch:
        # Columns of no kind stay as they are.
        for place, name in enumerate(batch.schema.names):
            column = batch.column(place)
            if kinds[name] is not None and kind_of(column.type) == "category":
                batch = batch.set_column(place, name, without_marks(column, self._marks))
        return batch


class NamedFile(_ChangedFile):
    """A file with columns of numbers that encode names.

    names: for each of these columns, the names of the numbers 0, 1 and so on. The number -1 is
        named "-1"; it may mean that a row has no class.
    """

    def __init__(self, of: TypedFile, names: Mapping[str, Sequence[str]]) -> None:
        super().__init__(of)
        self._names = {column: pa.array(["-1", *own], pa.string()) for column, own in names.items()}

    def tells(self, name: str) -> bool:
        """Return whether a column has a value in every row and cannot be an id."""
        return name not in self._names and self._of.tells(name)

    def _changed_schema(self, schema: pa.Schema) -> pa.Schema:
        for name in self._names:
            place = schema.get_field_index(name)
            schema = schema.set(place, pa.field(name, pa.dictionary(pa.int64(), pa.string())))
        return schema

    def _changed(self, batch: pa.RecordBatch, kinds: Kinds, first_row: int) -> pa.RecordBatch:
        for place, name in enumerate(batch.schema.names):
            if name in self._names:
                batch = batch.set_column(place, name, self._named(name, batch.column(place)))
        return batch

    def _named(self, name: str, codes: pa.Array) -> pa.DictionaryArray:
        names = self._names[name]
        try:
            return pa.DictionaryArray.from_arrays(pc.add(codes.cast(pa.int64()), 1), names)
        except pa.ArrowIndexError as error:
            raise DataError(
                f"Column {name!r} of {self} has a number without a class name, but only "
                f"{len(names) - 1} names.",
                f"Write numbers from 0 to {len(names) - 2}, or -1.",
            ) from error


def class_names(schema: pa.Schema) -> dict[str, list[str]]:
    """Return the class names that Hugging Face's `datasets` records for columns of numbers.

    >>> features = {"y": {"_type": "ClassLabel", "names": ["cat", "dog"]}}
    >>> told = json.dumps({"info": {"features": features}})
    >>> class_names(pa.schema([("y", pa.int64())], metadata={"huggingface": told}))
    {'y': ['cat', 'dog']}
    """
    try:
        told = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        classes = {
            name: [str(own) for own in feature["names"]]
            for name, feature in told.items()
            if "_type" in feature and feature["_type"] == "ClassLabel"
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        # Other programs may write other metadata under this key.
        return {}
    return {
        name: own
        for name, own in classes.items()
        if name in schema.names and pa.types.is_integer(schema.field(name).type)
    }


def element_names(name: str, length: int) -> list[str]:
    """Return the names of the elements of a column of lists.

    name: the column of lists.

    Examples
    --------
    >>> element_names("embedding", 2)
    ['embedding_0', 'embedding_1']
    """
    return [f"{name}_{place}" for place in range(length)]


def list_lengths(files: Sequence[TypedFile], names: Iterable[str]) -> dict[str, int]:
    """Return the length of the first list of each column.

    names: columns of lists.
    """
    lengths = {}
    for name in names:
        arrow = files[0].footer.schema.field(name).type
        if kind_of(arrow.value_type) not in ("number", "boolean"):
            raise DataError(
                f"Column {name!r} of {files[0]} has type {arrow}, which is not a list of numbers.",
                "Leave the column out, or write lists of numbers.",
            )
        is_fixed = pa.types.is_fixed_size_list(arrow)
        lengths[name] = arrow.list_size if is_fixed else _first_length(files, name)
    return lengths


def is_list(arrow: pa.DataType) -> bool:
    """Return whether values of a type are lists."""
    return any(
        is_kind(arrow)
        for is_kind in (
            pa.types.is_list,
            pa.types.is_large_list,
            pa.types.is_fixed_size_list,
            pa.types.is_list_view,
            pa.types.is_large_list_view,
        )
    )


def _first_length(files: Sequence[TypedFile], name: str) -> int:
    firsts = (
        batch.column(0)[0].as_py() for file in files for batch in file.batches({name: None}, 1)
    )
    if not (first := next(firsts, None)):
        raise DataError(
            f"Column {name!r} of {files[0]} has no value in its first row.",
            "Begin with a row that has a list, which sets the length of all lists.",
        )
    return len(first)


def _typed(texts: Sequence[str | None]) -> pa.Array:
    values = pa.array([None if text == HIVE_NULL else text for text in texts], pa.string())
    for dtype in (pa.int64(), pa.float64(), pa.bool_(), pa.date32()):
        with suppress(pa.ArrowInvalid):
            return pc.cast(values, dtype)
    return values


def arrow_damage_named(file: File, format_name: str) -> AbstractContextManager[None]:
    """Return a context manager that raises DamagedDataError if pyarrow cannot read a file."""
    problem, remedy = f"{file} cannot be read as {format_name}", "Write the file again."
    return damage_named(problem, remedy, pa.ArrowException, OSError)
