"""The schema of a table: its columns and the features made of them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import pairwise, zip_longest
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.rows import Rows, canonical, stacked
from dask_nrbfn.numeric.types import Floats

Kind = Literal["number", "boolean", "category", "date"]

UNSEEN = -1.0
"""Stored value of an unknown category; NaN is stored for a missing value."""

# Number of features that are computed at once before they are converted to CSR: 8 MiB.
_EXPANDED_VALUES = 2**20
_YEAR_DAYS = 365.2425
# A column with more missing values than this share has an indicator feature for them.
_OFTEN_MISSING = 0.01


@dataclass(frozen=True)
class Column:
    """A column of a table.

    kind: A stored value is a number; 0 or 1; the place of a category in `categories`; or days since
        1970. NaN is a missing value. Other categories are stored as ``len(categories)`` if there
        are `others`, else as -1.
    categories: ascending.
    others: whether further categories share one feature.
    fill: the median, used for missing numbers, booleans and dates.
    missing: share of rows with a missing value.
    times: whether dates have a time of day that varies, which is then a feature.
    weekdays: whether the day of the week of dates is a feature.
    """

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()
    others: bool = False
    fill: float = 0.0
    missing: float = 0.0
    times: bool = False
    weekdays: bool = False

    @property
    def feature_names(self) -> list[str]:
        """Names of the features of the column, in order."""
        if self.kind == "category":
            values = [*self.categories]
            if self.others:
                values.append("(other)")
            if self.missing > 0:
                values.append("(missing)")
            return [f"{self.name}={value}" for value in values]
        endings = [""]
        if self.kind == "date":
            endings += ["_cos", "_sin"]
        if self.weekdays:
            endings += ["_week_cos", "_week_sin"]
        if self.times:
            endings += ["_time_cos", "_time_sin"]
        if self.marks_missing:
            endings.append("_missing")
        return [f"{self.name}{ending}" for ending in endings]

    @property
    def marks_missing(self) -> bool:
        """Whether a feature marks missing values of a number, boolean or date."""
        return self.kind != "category" and self.missing > _OFTEN_MISSING

    @property
    def is_stored_as_feature(self) -> bool:
        """Whether the stored values are the only feature."""
        return self.kind in ("number", "boolean") and not self.marks_missing

    @property
    def coding(self) -> tuple[str, tuple[str, ...], bool] | None:
        """The coding of stored categories and dates; None for numbers and booleans."""
        if self.kind in ("number", "boolean"):
            return None
        return self.kind, self.categories, self.others

    def write(self, values: NDArray[Any], out: Floats, *, fills: bool) -> None:
        """Write features of stored values (b,) into zeros (b, m); gaps become `fill`, or NaN."""
        gaps = np.isnan(values)
        if self.kind == "category":
            codes = np.where(gaps, len(self.categories) + self.others, values)
            shown = np.flatnonzero((codes >= 0) & (codes < out.shape[1]))
            out[shown, codes[shown].astype(np.intp)] = 1.0
        else:
            filled = np.where(gaps, self.fill, values)
            for place, feature in enumerate(self.features_of(filled)):
                out[:, place] = feature
            if self.marks_missing:
                out[:, -1] = gaps
        if not fills:
            out[gaps] = np.nan

    def features_of(self, filled: Any) -> list[Any]:
        """Return the features of numbers, booleans or dates without gaps: arrays or tensors."""
        features = [filled]
        if self.kind == "date":
            of_year = filled * (2 * np.pi / _YEAR_DAYS)
            features += [np.cos(of_year), np.sin(of_year)]
        if not (self.weekdays or self.times):
            return features
        # The cosine of a large angle loses digits: whole weeks and days are subtracted first.
        days = np.floor(filled)
        if self.weekdays:
            of_week = (days - np.floor(days / 7.0) * 7.0) * (2 * np.pi / 7)
            features += [np.cos(of_week), np.sin(of_week)]
        if self.times:
            of_day = (filled - days) * (2 * np.pi)
            features += [np.cos(of_day), np.sin(of_day)]
        return features

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults as JSON values, without the name."""
        return _given_fields(self)


@dataclass(frozen=True)
class Schema:
    """The columns of a table.

    columns (c,): the stored columns, in order.
    label, weights, id: names of the columns with labels, sample weights and ids.
    targets: names of the columns with numeric targets.
    ignored: names of the columns that are left out.
    missing: rows with missing values are refused, filled or left out.
    written: how text tables are written, such as `delimiter`, as given or found.
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
    def spans(self) -> tuple[tuple[int, int], ...]:
        """First and last-plus-one feature of each column."""
        ends = np.cumsum([len(column.feature_names) for column in self.columns]).tolist()
        return tuple(pairwise([0, *ends]))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of all features (p,); a name that is taken gets underscores at its end.

        Columns that are features themselves keep their names.
        """
        own = [column.name for column in self.columns if column.is_stored_as_feature]
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
        return self.spans[-1][1] if self.spans else 0

    @property
    def row_values(self) -> int:
        """The largest number of features of a row that are not 0."""
        return self.n_features - sum(stop - start - 1 for start, stop in self.groups)

    @property
    def fills(self) -> bool:
        """Whether missing values are filled."""
        return self.missing == "impute"

    @property
    def is_plain(self) -> bool:
        """Whether the stored values are the features."""
        return not self.fills and all(column.is_stored_as_feature for column in self.columns)

    @property
    def groups(self) -> tuple[tuple[int, int], ...]:
        """First and last-plus-one feature of each category column."""
        pairs = zip(self.columns, self.spans, strict=True)
        return tuple(span for column, span in pairs if column.kind == "category")

    @cached_property
    def digest(self) -> str:
        """A digest that identifies the features made of stored values."""
        made = [self.fills, [[each.name, each.to_dict()] for each in self.columns]]
        return hashlib.blake2b(json.dumps(made).encode(), digest_size=16).hexdigest()

    @cached_property
    def coding_factor(self) -> int:
        """An odd number below 2**64 that identifies the coding of stored values; 1 without one."""
        codings = [each.coding for each in self.columns]
        if not any(codings):
            return 1
        digest = hashlib.blake2b(json.dumps(codings).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") | 1

    def difference(self, other: "Schema") -> str | None:
        """Return the first difference that keeps another schema from reading the stored values."""
        for own, its in zip_longest(self.columns, other.columns):
            if own is None:
                return f"has no column {its.name!r}"
            if its is None:
                return f"has an extra column {own.name!r}"
            if own.name != its.name:
                return f"has the column {own.name!r} where {its.name!r} is expected"
            if own.coding != its.coding:
                return f"has a column {own.name!r} of {_other_coding(own, its)}"
            if self.fills and own.missing and not other.fills:
                return f"has missing values in the column {own.name!r}, which are not filled"
        return None

    def expand(self, stored: NDArray[Any]) -> Floats:
        """Return the features (b, p) of stored values (b, c)."""
        out = np.zeros((len(stored), self.n_features))
        plain = [j for j, column in enumerate(self.columns) if column.is_stored_as_feature]
        values = stored[:, plain]
        if self.fills:
            values = np.where(np.isnan(values), [self.columns[j].fill for j in plain], values)
        out[:, [self.spans[j][0] for j in plain]] = values
        for j, column in enumerate(self.columns):
            if not column.is_stored_as_feature:
                start, stop = self.spans[j]
                column.write(stored[:, j], out[:, start:stop], fills=self.fills)
        return out

    def expand_sparse(self, stored: NDArray[Any]) -> Rows:
        """Return the features in CSR; only some rows are expanded to an array at a time."""
        step = max(1, _EXPANDED_VALUES // self.n_features)
        starts = range(0, len(stored), step)
        return stacked([canonical(self.expand(stored[i : i + step])) for i in starts])

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults as JSON values."""
        columns = {each.name: each.to_dict() for each in self.columns}
        return {"columns": columns, **_given_fields(self)}

    @classmethod
    def of_record(cls, recorded: Mapping[str, Any] | None) -> Self | None:
        """Return the schema of the values of `to_dict`, also from JSON; None if there are none."""
        if recorded is None:
            return None
        values = _with_tuples(recorded)
        columns = values.pop("columns").items()
        return cls(tuple(Column(name, **_with_tuples(each)) for name, each in columns), **values)


def source_columns(
    schema: Schema | None, names: Sequence[str] | None, n_features: int
) -> list[tuple[str, slice]]:
    """Return the name and the features of each column of a source, such as those of a category."""
    if schema is not None:
        pairs = zip(schema.columns, schema.spans, strict=True)
        return [(column.name, slice(*span)) for column, span in pairs]
    if names is None:
        names = [f"column {place}" for place in range(n_features)]
    return [(name, slice(place, place + 1)) for place, name in enumerate(names)]


def _given_fields(own: Column | Schema) -> dict[str, Any]:
    """Return the fields that differ from their defaults by their names, without the first."""
    given = {}
    for each in fields(own)[1:]:
        value = getattr(own, each.name)
        if value not in (each.default, {}):
            given[each.name] = value
    return given


def _other_coding(own: Column, its: Column) -> str:
    """Return how the coding of a column differs from another of the same name."""
    if own.kind != its.kind:
        return f"the kind {own.kind}, not {its.kind}"
    apart = sorted({*own.categories} ^ {*its.categories})
    return f"other categories, such as {apart[0]!r}" if apart else "other categories"


def _with_tuples(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with tuples in place of the lists of JSON."""
    values = dict(record)
    for name, value in record.items():
        if isinstance(value, list):
            values[name] = tuple(value)
    return values
