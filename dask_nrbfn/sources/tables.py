"""Tables with named columns of any format: the role of each column, and checks of names."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.sources.cells import kind_of
from dask_nrbfn.sources.decide import unnamed_error
from dask_nrbfn.sources.dialect import BLANKS
from dask_nrbfn.sources.dtypes import STRING, means_empty
from dask_nrbfn.sources.source import Reading, check_apart
from dask_nrbfn.sources.survey import Roles, TableOptions

logger = logging.getLogger(__name__)

_NAMES_SHOWN = 10


def common_columns(columns: Mapping[Any, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the columns of all files; raises DataError if they differ or lack names."""
    first, *others = columns
    for path, names in columns.items():
        name, count = Counter(names).most_common(1)[0] if names else ("", 1)
        if count > 1:
            raise DataError(
                f"{path} has several columns named {name!r}.",
                "Give each column a different name, in the first line of a CSV file.",
            )
        # The first may be the index that pandas wrote.
        if "" in names[1:]:
            raise unnamed_error(path, names.index(""))
    for path in others:
        for name in sorted(set(columns[first]) ^ set(columns[path])):
            has, lacks = (first, path) if name in columns[first] else (path, first)
            raise DataError(
                f"{lacks} has no column {name!r}, which {has} has.",
                "Write the same columns to every file of a directory.",
            )
    return columns[first]


class MissingLabelError(DataError):
    """A row has no label or target, but every row must have one."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options with which a table is read.

    origin: the path that the user named.
    schema: the columns; None: inferred from the cells.
    classes: the labels of a model.
    spoiled: whether cells may be missing, or not of their column's kind; both are read as missing.
    unlabelled: the marker for a missing label; "" and nan mean empty cells too.
    """

    origin: str
    roles: Roles
    options: TableOptions
    schema: Schema | None = None
    classes: tuple[int | str, ...] | None = None
    spoiled: bool = False
    unlabelled: int | str | float | None = None

    @classmethod
    def of(cls, reading: Reading) -> Self:
        """Return the options of a table from the options of its source."""
        options = reading.table or TableOptions()
        roles = Roles(reading.label, reading.names("target"), reading.weights)
        schema = reading.schema
        if schema is not None:
            options = options.beside(schema)
            if not schema.is_complete:
                options = options.like(schema)
                if not any(roles):
                    roles = Roles(schema.label, schema.targets, schema.weights)
                schema = None
        return cls(
            origin=str(reading.place),
            roles=roles,
            options=options,
            schema=schema,
            classes=None if reading.classes is None else tuple(reading.classes),
            spoiled=reading.spoiled,
            unlabelled=reading.unlabelled,
        )

    @property
    def drops(self) -> bool:
        """Whether rows that lack a value are left out."""
        missing = self.options.missing if self.schema is None else self.schema.missing
        return missing == "drop" and not self.spoiled

    @property
    def may_lack_labels(self) -> bool:
        """Whether cells of the label and target columns may be empty."""
        return self.drops or means_empty(self.unlabelled)

    @property
    def classes_are_text(self) -> bool:
        """Whether labels of the model are text."""
        return any(isinstance(known, str) for known in self.classes or ())

    def cell_remedy(self, name: str) -> str | None:
        """Return the remedy for a cell that is not of its column's kind; None: the default."""
        roles, known = self.roles, self.schema or Schema(())
        if name in (*(roles.targets or ()), *(known.targets or ())):
            return (
                "Write plain numbers, such as 1234.5, in the column of a `target`, or name a "
                "column of classes as `label`."
            )
        if name in (roles.weights, known.weights):
            return "Write one number above 0 per row in the column of `weights`."
        if self.schema is None:
            return None
        return (
            "Correct the cell, pass its text in `missing_values`, or leave the row out, as "
            "`skip_bad` does."
        )

    def no_label_error(self, problem: str, *, is_target: bool = False) -> MissingLabelError:
        """Return the error about a row without a label or target."""
        mark, noun = ("nan", "target") if is_target else ("", "label")
        keep = f"pass `unlabelled`='{mark}' to keep"
        # The schema decided how missing values are handled.
        if self.schema:
            return MissingLabelError(problem, f"Remove rows without a {noun}, or {keep} them.")
        leave_out = "pass `missing`='drop' to leave out every row that lacks any value"
        remedy = f"{keep.capitalize()} rows without a {noun}, or {leave_out}."
        return MissingLabelError(problem, remedy)

    @property
    def named(self) -> set[str] | None:
        """All columns that options name; None if a schema is given."""
        if self.schema is not None:
            return None
        (label, targets, weights), options = self.roles, self.options
        named = {label, weights, *(targets or ()), options.id, *options.columns, *options.drop}
        return {name for name in named.union(*options.kinds.values()) if name is not None}

    def columns(self, names: tuple[str, ...]) -> "TableColumns":
        """Return the purpose of each column of a table."""
        options, roles, ids = self.options, self._roles(names), self._ids(names)
        targets = tuple(("target", name) for name in roles.targets or ())
        used = [("label", roles.label), *targets, ("weights", roles.weights), ("id", ids)]
        check_apart("weights", roles.weights, roles.label, *(roles.targets or ()))
        check_apart("id", ids, roles.label, roles.weights, *(roles.targets or ()))
        dated = tuple(filter(None, options.formats))
        groups = {"columns": options.columns, "drop": options.drop, **options.kinds}
        groups["date_format"] = dated
        named = [(option, name) for option, group in groups.items() for name in group]
        for option, name in (*used, *named):
            if name is not None:
                check_column(self.origin, name, names, option)
        taken = {name for _, name in used}
        for option, name in named:
            check_apart(option, name, *taken)
        if self.schema is not None:
            known = {column.name for column in self.schema.columns}
            for option, name in used[:-1]:
                check_apart(option, name, *known)
            # The column of ids may have been a feature when the schema was decided.
            taken -= known
        rest = tuple(name for name in names if name not in taken)
        if self.schema is not None:
            features = schema_columns(self.schema, rest, self.origin, names)
        else:
            wanted = options.columns or rest
            features = tuple(name for name in rest if name in wanted and name not in options.drop)
        ignored = tuple(name for name in rest if name not in features)
        return TableColumns(self, features, ignored, roles, ids, names)

    def _roles(self, names: tuple[str, ...]) -> Roles:
        """Return the requested roles, or the roles of the schema whose columns exist."""
        roles, schema = self.roles, self.schema
        if schema is None:
            return roles
        label, targets, weights = roles
        known = (schema.label, *(schema.targets or ()), schema.weights)
        if absent := [name for name in known if name is not None and name not in names]:
            logger.info(
                "%s has no column %s, which the schema names as label, target or weights",
                self.origin,
                shown_names(absent),
            )
        if label is None and targets is None:
            label = schema.label if schema.label in names else None
            targets = schema.targets if {*(schema.targets or ("",))} <= {*names} else None
        return Roles(
            label, targets, weights or (schema.weights if schema.weights in names else None)
        )

    def _ids(self, names: tuple[str, ...]) -> str | None:
        """Return the requested id column, or the id column of the schema if it exists."""
        own = None if self.schema is None else self.schema.id
        # The name of a column may be empty.
        if self.options.id is not None:
            return self.options.id
        return own if own in names else None


class TableColumns(NamedTuple):
    """The purpose of each column of a table.

    features, ignored: columns that become features, and columns that are not used.
    id: the column of ids.
    names: all columns.
    """

    asked: Asked
    features: tuple[str, ...]
    ignored: tuple[str, ...]
    roles: Roles
    id: str | None
    names: tuple[str, ...]

    @property
    def given_schema(self) -> Schema:
        """The requested schema, with the roles of the columns in this table."""
        assert self.asked.schema is not None
        used = {**self.roles._asdict(), "id": self.id, "ignored": self.ignored}
        return replace(self.asked.schema, **used)


def schema_columns(
    schema: Schema, names: tuple[str, ...], origin: str, all_names: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the names of a schema's columns; further columns of the table are logged.

    names: columns of the table without another role.
    origin: the table, for the error and the log.
    all_names: all columns of the table.
    """
    columns = tuple(column.name for column in schema.columns)
    if absent := [name for name in columns if name not in names]:
        raise DataError(
            f"{origin} has no column {shown_names(absent)}; it has {shown_names(all_names)}.",
            "Give a table with all columns of the schema, in any order.",
        )
    roles = (schema.label, schema.weights, schema.id)
    expected = {*columns, *schema.ignored, *(schema.targets or ()), *roles}
    if further := [name for name in names if name not in expected]:
        logger.info("extra columns of %s are ignored: %s", origin, shown_names(further))
    return columns


def check_column(origin: str, name: str, names: tuple[str, ...], option: str) -> None:
    """Raise DataError if a table does not have a column that an option names.

    origin: the table, for the error.
    names: all columns of the table.
    """
    if name not in names:
        raise DataError(
            f"{origin} has no column {name!r}; it has {shown_names(names)}.",
            f"Name an existing column with `{option}`.",
        )


def shown_names(names: Sequence[str]) -> str:
    """Return the first names of columns, between quotes.

    >>> shown_names([f"c{j}" for j in range(12)]).split(", ")[-2:]
    ["'c8'", "'c9' and 2 more"]
    """
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(map(repr, names[:_NAMES_SHOWN])) + more


def label_values(column: pa.Array) -> np.ndarray:
    """Return the cells of a label column, text as strings of numpy."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    values = column.to_numpy(zero_copy_only=False)
    return values.astype(STRING) if values.dtype == object else values


def lacks_label(column: pa.Array) -> np.ndarray:
    """Return which cells of a label column have no value, bool (b,).

    These are nulls, NaN (also as text, which pandas may write) and empty text.

    >>> lacks_label(pa.array(["a", " ", None, "NaN"])).tolist()
    [False, True, True, True]
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    none = pc.is_null(column, nan_is_null=True)
    if kind_of(column.type) == "category":
        texts = pc.utf8_trim(column.cast(pa.string()), BLANKS)
        none = pc.or_(none, pc.is_in(texts, pa.array(["", "nan", "NaN"])))
    return none.to_numpy(zero_copy_only=False)
