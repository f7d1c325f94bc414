"""Options for the columns of a table, and the roles of its columns."""

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.schema import Kind, Schema

MISSING_VALUES = ("?", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "#N/A", "n/a", "<NA>")
"""Markers of a missing value in text, besides empty text."""

# The option that sets the kind of a column.
_OPTIONS_OF_KINDS: dict[Kind, str] = {
    "category": "categorical",
    "number": "numeric",
    "date": "date",
}


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Options for the columns of a table.

    columns: columns that become features; empty: all without another role.
    drop: columns that are left out.
    id: column that names the rows; it is copied to predictions.
    categorical, numeric, date: columns of that kind, whatever their cells look like.
    missing: whether rows that lack a value are refused, filled or dropped.
    missing_values: markers of a missing value in text, besides empty cells.
    max_categories: number of the most frequent categories that get a feature each.
    """

    columns: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    id: str | None = None
    categorical: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    date: tuple[str, ...] = ()
    missing: str = "error"
    missing_values: tuple[str, ...] = MISSING_VALUES
    max_categories: int = 100

    def __post_init__(self) -> None:
        if self.missing not in ("error", "impute", "drop"):
            raise ParameterError(f"`missing` is {self.missing!r}.", "Give error, impute or drop.")
        if self.max_categories < 1:
            raise ParameterError(
                f"`max_categories` is {self.max_categories}.", "Give an integer of at least 1."
            )
        kept = {"columns": self.columns, "drop": self.drop}
        for groups in (kept, {"drop": self.drop, **self.groups}):
            seen: dict[str, str] = {}
            for option, names in groups.items():
                for name in names:
                    if seen.setdefault(name, option) != option:
                        raise ParameterError(
                            f"`{seen[name]}` and `{option}` both name {name!r}.",
                            "Name each column in one option only.",
                        )

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The columns whose kind an option gives, by option."""
        return {option: getattr(self, option) for option in _OPTIONS_OF_KINDS.values()}

    @property
    def kinds(self) -> dict[str, Kind]:
        """The kinds of columns that options give."""
        return {
            name: kind
            for kind, option in _OPTIONS_OF_KINDS.items()
            for name in getattr(self, option)
        }

    @property
    def given_marks(self) -> tuple[str, ...]:
        """The markers of a missing value, if they are not the default ones."""
        return self.missing_values if "missing_values" in self.said else ()

    def beside(self, schema: Schema) -> Self:
        """Return the options to read a table whose schema is given."""
        for option in self.said:
            if option not in ("id", "missing_values"):
                raise ParameterError(
                    f"`{option}` and `schema` are both given.",
                    f"Leave `{option}` out, or leave `schema` out.",
                )
        marks = tuple(schema.written.get("missing_values", self.missing_values))
        return self if "missing_values" in self.said else replace(self, missing_values=marks)

    def like(self, schema: Schema) -> Self:
        """Return the options that set the columns and kinds of a schema."""
        of_kind: dict[str, Any] = {
            option: tuple(column.name for column in schema.columns if column.kind == kind)
            for kind, option in _OPTIONS_OF_KINDS.items()
        }
        columns = tuple(column.name for column in schema.columns)
        return replace(
            self, columns=columns, missing=schema.missing, id=self.id or schema.id, **of_kind
        )

    @property
    def said(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        values = {each: getattr(self, each.name) for each in fields(self)}
        return {each.name: value for each, value in values.items() if value != each.default}


class Roles(NamedTuple):
    """Names of the columns with labels, targets and weights, as in `Schema`."""

    label: str | None = None
    targets: tuple[str, ...] | None = None
    weights: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All named columns."""
        return tuple(
            name for name in (self.label, *(self.targets or ()), self.weights) if name is not None
        )
