"""What the columns of a table are, and the features that are made of them."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.rows import Rows, canonical, stacked
from dask_nrbfn.numeric.types import Floats

Kind = Literal["number", "boolean", "category", "date"]

KINDS: tuple[Kind, ...] = ("number", "boolean", "category", "date")
MISSING = ("error", "impute", "drop")
UNSEEN = -1.0
"""Stored for a category that is none of those of a column; NaN is stored for none at all."""

# Features that are made at once where they are to be in CSR: 8 MiB.
_EXPANDED_VALUES = 2**20
# Of a date, in days.
_YEAR = 365.2425
# Integers of JSON have no limit.
_LARGEST = float(np.finfo(np.float64).max)
_WRITTEN_NUMBER = re.compile(r"(\D*)1\D?234[.,]5(\D*)")
# The least share of rows without a value that is a feature of its own.
_OFTEN_MISSING = 0.01


@dataclass(frozen=True)
class Column:
    """A column whose values become features, and how.

    Attributes
    ----------
    name : str
    kind : {"number", "boolean", "category", "date"}
        A stored value is a number; 0 or 1; the place of a category in `categories`, their number
        for one of the others if there are `others`, else -1; days since 1970. NaN: none.
    categories : tuple of str
        Ascending.
    others : bool
        Whether there were more categories, which have one feature in common.
    fill : float
        The median, which stands where a number, boolean or date has no value.
    missing : float
        Share of rows without a value.
    written : str
        How numbers or dates are written as text, where not as everywhere: the number 1234.5 with
        its unit and marks, such as "$1,234.5" or "1234.5 kg", or a format of strptime.
    """

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()
    others: bool = False
    fill: float = 0.0
    missing: float = 0.0
    written: str = ""

    @property
    def feature_names(self) -> list[str]:
        """Names of its features, in order.

        Examples
        --------
        >>> Column("sex", "category", ("f", "m"), missing=0.1).feature_names
        ['sex=f', 'sex=m', 'sex=(missing)']
        >>> Column("day", "date").feature_names
        ['day', 'day_cos', 'day_sin']
        """
        name = self.name
        if self.kind == "category":
            values = [*self.categories, *["(other)"] * self.others]
            values += ["(missing)"] * (self.missing > 0)
            return [f"{name}={value}" for value in values]
        parts = ["", "_cos", "_sin"] if self.kind == "date" else [""]
        return [f"{name}{part}" for part in parts] + [f"{name}_missing"] * self.tells_missing

    @property
    def tells_missing(self) -> bool:
        """Whether a feature says which rows of a number, boolean or date have no value."""
        return self.kind != "category" and self.missing > _OFTEN_MISSING

    @property
    def is_stored_as_feature(self) -> bool:
        """Whether its stored values are its one feature."""
        return self.kind in ("number", "boolean") and not self.tells_missing

    @property
    def unit(self) -> tuple[str, str]:
        """What is written before and after its numbers, empty where nothing is or nobody knows.

        >>> Column("price", "number", written="$1,234.5").unit
        ('$', '')
        """
        found = _WRITTEN_NUMBER.fullmatch(self.written)
        return ("", "") if found is None else (found[1].strip(), found[2].strip())

    @property
    def coding(self) -> tuple[str, tuple[str, ...], bool] | None:
        """What its stored values mean; None: themselves, as those of numbers and booleans."""
        if self.kind in ("number", "boolean"):
            return None
        return self.kind, self.categories, self.others

    def write(self, values: NDArray[Any], out: Floats, *, fills: bool) -> None:
        """Write the features of stored values (b,) into a block of zeros (b, m).

        Where there is no value, what stands for it if `fills`, else NaN.
        """
        gaps = np.isnan(values)
        if self.kind == "category":
            codes = np.where(gaps, len(self.categories) + self.others, values)
            shown = np.flatnonzero((codes >= 0) & (codes < out.shape[1]))
            out[shown, codes[shown].astype(np.intp)] = 1.0
        else:
            filled = np.where(gaps, self.fill, values)
            out[:, 0] = filled
            if self.kind == "date":
                angle = year_angle(filled)
                np.cos(angle, out=out[:, 1])
                np.sin(angle, out=out[:, 2])
            if self.tells_missing:
                out[:, -1] = gaps
        if not fills:
            out[gaps] = np.nan

    def to_dict(self) -> dict[str, Any]:
        """Return what is not by default, but the name, as JSON values."""
        own = {each: getattr(self, each.name) for each in fields(self)[1:]}
        return {each.name: value for each, value in own.items() if value != each.default}


class Features(NamedTuple):
    """The features of one column: where they begin and end among all."""

    column: Column
    start: int
    stop: int


@dataclass(frozen=True)
class Schema:
    """What each column of a table is.

    Attributes
    ----------
    columns : tuple of Column (c,)
        Those that are stored, in order.
    label, weights, id : str or None
        Names of the columns that are these.
    targets : tuple of str or None
        Names of the columns that hold numbers to be learned.
    ignored : tuple of str
        Names of the columns that are left out.
    missing : {"error", "impute", "drop"}
        What becomes of rows without a value: refused, filled or left out.
    written : mapping
        How such tables are written as text, of what was said of it: `delimiter` and so on.
    """

    columns: tuple[Column, ...]
    label: str | None = None
    targets: tuple[str, ...] | None = None
    weights: str | None = None
    id: str | None = None
    ignored: tuple[str, ...] = ()
    missing: str = "error"
    written: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def features(self) -> tuple[Features, ...]:
        """Where the features of each column are."""
        widths = [len(column.feature_names) for column in self.columns]
        stops = np.cumsum(widths).tolist()
        starts = [stop - width for stop, width in zip(stops, widths, strict=True)]
        return tuple(map(Features, self.columns, starts, stops))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of all features (p,); one that another has already ends in underscores.

        Columns that are features themselves keep their names.
        """
        own = [of.column.name for of in self.features if of.column.is_stored_as_feature]
        names, taken = [], {*own}
        for column in self.columns:
            for name in column.feature_names:
                while name in taken and not column.is_stored_as_feature:
                    name += "_"
                taken.add(name)
                names.append(name)
        return tuple(names)

    @property
    def n_features(self) -> int:
        """Number of features p."""
        return self.features[-1].stop if self.features else 0

    @property
    def row_values(self) -> int:
        """The most features of a row that are not 0."""
        return sum(
            1 if of.column.kind == "category" else of.stop - of.start for of in self.features
        )

    @property
    def fills(self) -> bool:
        """Whether a row may lack values."""
        return self.missing == "impute"

    @property
    def is_plain(self) -> bool:
        """Whether the stored values are the features."""
        return not self.fills and all(column.is_stored_as_feature for column in self.columns)

    @property
    def is_complete(self) -> bool:
        """Whether the categories of every column are known."""
        return all(column.categories or column.kind != "category" for column in self.columns)

    @property
    def groups(self) -> tuple[tuple[int, int], ...]:
        """First and last-plus-one feature of each category column."""
        return tuple((of.start, of.stop) for of in self.features if of.column.kind == "category")

    @cached_property
    def digest(self) -> str:
        """A name for the features that it makes of stored values."""
        columns = [replace(each, written="") for each in self.columns]
        made = [self.fills, [[each.name, each.to_dict()] for each in columns]]
        return hashlib.blake2b(json.dumps(made).encode(), digest_size=16).hexdigest()

    @cached_property
    def coding_factor(self) -> int:
        """An odd number that tells how values are stored, below 2**64; 1: as they are."""
        codings = [each.coding for each in self.columns]
        if not any(codings):
            return 1
        digest = hashlib.blake2b(json.dumps(codings).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") | 1

    def other_unit(self, other: "Schema") -> str | None:
        """Return which numbers have another unit by another schema."""
        others = {column.name: column for column in other.columns}
        for own in self.columns:
            its = others.get(own.name, own)
            if any(own.unit) and any(its.unit) and own.unit != its.unit:
                return f"has the column {own.name!r} written as {own.written}, not as {its.written}"
        return None

    def difference(self, other: "Schema") -> str | None:
        """Return what first keeps values stored by this schema from being read by another."""
        for own, its in zip_longest(self.columns, other.columns):
            if own is None:
                return f"has no column {its.name!r}"
            if its is None:
                return f"has a column {own.name!r} more"
            if own.name != its.name:
                return f"has the column {own.name!r} in the place of {its.name!r}"
            if own.coding != its.coding:
                return f"has a column {own.name!r} of {_other_coding(own, its)}"
            if self.fills and own.missing and not other.fills:
                return f"has gaps in the column {own.name!r}, which are not filled"
        return None

    def expand(self, stored: NDArray[Any]) -> Floats:
        """Return the features (b, p) of stored values (b, c).

        Examples
        --------
        >>> columns = Column("age", "number", fill=40.0), Column("sex", "category", ("f", "m"))
        >>> Schema(columns, missing="impute").expand(np.array([[30.0, 1.0], [np.nan, UNSEEN]]))
        array([[30.,  0.,  1.],
               [40.,  0.,  0.]])
        """
        out = np.zeros((len(stored), self.n_features))
        plain = [place for place, of in enumerate(self.features) if of.column.is_stored_as_feature]
        values = stored[:, plain]
        if self.fills:
            values = np.where(
                np.isnan(values), [self.columns[place].fill for place in plain], values
            )
        out[:, [self.features[place].start for place in plain]] = values
        for place, of in enumerate(self.features):
            if not of.column.is_stored_as_feature:
                features = out[:, of.start : of.stop]
                of.column.write(stored[:, place], features, fills=self.fills)
        return out

    def expand_sparse(self, stored: NDArray[Any]) -> Rows:
        """Return what `expand` does in CSR, of which only some rows are an array at a time."""
        step = max(1, _EXPANDED_VALUES // self.n_features)
        starts = range(0, len(stored), step)
        return stacked([canonical(self.expand(stored[i : i + step])) for i in starts])

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values, without what is by default."""
        own = {each: getattr(self, each.name) for each in fields(self)[1:]}
        given = {each.name: value for each, value in own.items() if value not in (each.default, {})}
        return {"columns": {each.name: each.to_dict() for each in self.columns}, **given}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the schema of JSON values, such as `to_dict` returns.

        Raises
        ------
        DataError
            If a name, or a kind, is not one of these, or a value of another type.
        """
        _check_fields("the schema", values, _FIELDS)
        _check_choice("the schema", "missing", values.get("missing", "error"), MISSING)
        _check_fields("what is written of the schema", values.get("written", {}), _WRITTEN_FIELDS)
        columns = []
        for name, given in values.get("columns", {}).items():
            place = f"column {name!r} of the schema"
            _check_fields(place, given, _COLUMN_FIELDS)
            _check_choice(place, "kind", given.get("kind"), KINDS)
            columns.append(Column(name, **_with_tuples(given)))
        return cls(**_with_tuples({**values, "columns": columns}))


def year_angle(days: Floats) -> Floats:
    """Return where in the year days since 1970 are, as angles."""
    return days * (2 * np.pi / _YEAR)


def _other_coding(own: Column, its: Column) -> str:
    if own.kind != its.kind:
        return f"the kind {own.kind}, not {its.kind}"
    apart = sorted({*own.categories} ^ {*its.categories})
    return f"other categories, such as {apart[0]!r}" if apart else "other categories"


# What the values of a schema in JSON or TOML are, and what they are called.
_TEXT, _LIST, _FLAG = "a text", "a list of texts", "true or false"
_TEXTS = "a list of distinct texts"
_NUMBER, _SHARE, _TABLE = "a finite number", "a number from 0 to 1", "a table"
_FIELDS = {
    "columns": _TABLE,
    "label": _TEXT,
    "targets": _TEXTS,
    "weights": _TEXT,
    "id": _TEXT,
    "ignored": _TEXTS,
    "missing": _TEXT,
    "written": _TABLE,
}
_COLUMN_FIELDS = {
    "kind": _TEXT,
    "categories": _TEXTS,
    "others": _FLAG,
    "fill": _NUMBER,
    "missing": _SHARE,
    "written": _TEXT,
}
_WRITTEN_FIELDS = {
    "delimiter": _TEXT,
    "quote": _TEXT,
    "decimal": _TEXT,
    "encoding": _TEXT,
    "no_header": _FLAG,
    "missing_values": _LIST,
}


def _check_fields(what: str, values: Any, known: Mapping[str, str]) -> None:
    """Raise DataError unless `values` are a mapping of known names to values of their types."""
    if not _is(_TABLE, values):
        raise DataError(f"{what} is {values!r}.", f"Give {_TABLE} of {', '.join(known)}.")
    for name, value in values.items():
        if name not in known:
            raise DataError(
                f"{what} has {name!r}, which is none of its fields.", f"It has {', '.join(known)}."
            )
        if not _is(known[name], value):
            raise DataError(f"{what} has {value!r} as {name}.", f"Give {known[name]}.")


def _is(type_name: str, value: Any) -> bool:
    if type_name == _TEXT:
        return isinstance(value, str)
    if type_name in (_LIST, _TEXTS):
        texts = isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
        return texts and (type_name == _LIST or len(set(value)) == len(value))
    if type_name in (_NUMBER, _SHARE):
        numbers = isinstance(value, int | float) and not isinstance(value, bool)
        least, most = (0, 1) if type_name == _SHARE else (-_LARGEST, _LARGEST)
        return numbers and bool(least <= value <= most)
    return isinstance(value, bool if type_name == _FLAG else Mapping)


def _check_choice(what: str, name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise DataError(f"{what} has {value!r} as {name}.", f"Give one of {', '.join(choices)}.")


def _with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
