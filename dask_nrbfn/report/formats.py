"""Figures by name as text, and tables that are shown as text or as HTML."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any, NamedTuple

from dask_nrbfn.errors import plural

# Shown columns of a schema, items of a list, and letters in a cell of a text table. JSON has all.
_MOST_COLUMNS, _MOST_ITEMS, _MOST_LETTERS = 40, 20, 36
_ERRORS = {"error_rate", "relative_error", "fold_deviation"}
_SHARES = _ERRORS | {"precision", "recall", "f1", "of_class", "missing"}
_UNITS = ((50, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "kiB"))


# Figures of every class, bin, coverage and column, which are shown as tables.
TABLED = ("per_class", "confusion", "reliability", "intervals", "importances")


class Concern(NamedTuple):
    """A problem of a run and its remedy."""

    problem: str
    remedy: str


@dataclass(frozen=True)
class Table:
    """Rows of figures by name; `marked` rows stand out."""

    title: str
    rows: list[dict[str, Any]]
    marked: Sequence[bool] = ()

    @property
    def header(self) -> list[str]:
        """The names of the columns."""
        return [name.replace("_", " ") for name in self.rows[0]]

    @property
    def cells(self) -> list[list[str]]:
        """The figures as texts."""
        return [[shown(name, value, digits=4) for name, value in row.items()] for row in self.rows]

    @property
    def words(self) -> list[bool]:
        """Whether a column has words, which begin at the left."""
        columns = zip(*self.cells, strict=True)
        return [any(cell[:1].isalpha() for cell in cells) for cells in columns]

    @property
    def text(self) -> str:
        """The cells in columns, and a star before marked rows.

        >>> rows = [{"rule": "a", "width": 1.5}, {"rule": "b", "width": 12.0}]
        >>> print(Table("", rows, [False, True]).text)
          rule  width
          a       1.5
        * b        12
        """
        table = [[_cut(cell) for cell in row] for row in (self.header, *self.cells)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines, words = [], self.words
        stars = [False, *(self.marked or [False] * len(self.rows))]
        for row, star in zip(table, stars, strict=True):
            padded = (
                cell.ljust(width) if word else cell.rjust(width)
                for cell, width, word in zip(row, widths, words, strict=True)
            )
            lines.append(f"{'*' if star else ' '} {'  '.join(padded)}".rstrip())
        return "\n".join(lines)


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 3]}..."


@dataclass(frozen=True)
class Section:
    """Figures, warnings and tables about one side of a run: as text and on the page."""

    title: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    concerns: Sequence[Concern] = ()
    tables: Sequence[Table] = ()


def label_texts(classes: Iterable[Any]) -> list[str]:
    """Return labels as text."""
    return [str(label) or "(empty)" for label in classes]


def shown(name: str, value: Any, digits: int = 6) -> str:
    """Return a figure as text, by its name.

    >>> shown("error_rate", 0.0156), shown("alpha", 1e-8), shown("held_bytes", 12)
    ('1.56 %', '1e-08', '12 B')
    >>> shown("r2", [0.25, None]), shown("error_rate", 0.000012), shown("seconds", 1.632)
    ('0.25, -', '0.0012 %', '1.6 s')
    """
    if value is None:
        return "-"
    if isinstance(value, (list, tuple)):
        items = [shown(name, item, digits) for item in value[:_MOST_ITEMS]]
        more = f", ... ({len(value)})" if len(value) > _MOST_ITEMS else ""
        return ", ".join(items) + more or "none"
    if name.endswith("_bytes"):
        return readable_bytes(value)
    if name == "seconds":
        return f"{value:.1f} s"
    if name in _SHARES:
        text = f"{100 * value:.2f}"
        if value and not float(text):
            text = f"{100 * value:.2g}"
        return f"{text} %"
    if isinstance(value, float) and value % 1:
        return f"{value:.{digits}g}"
    return f"{value:.17g}" if isinstance(value, float) else str(value)


def line(name: str, value: Any) -> str:
    """Return a figure after its name, on one line."""
    return f"{name:<18} {shown(name, value)}"


def readable_bytes(n_bytes: int) -> str:
    """Return a size as `dask.utils.format_bytes` does, without importing dask."""
    for power, unit in _UNITS:
        if n_bytes >= 0.9 * 2**power:
            return f"{n_bytes / 2**power:.2f} {unit}"
    return f"{n_bytes} B"


def schema_table(schema: Mapping[str, Any]) -> Table:
    """Return the kind of each of the first columns; the title counts the further ones."""
    columns = list(schema["columns"].items())
    fills = schema.get("missing") == "impute"
    rows = [_column_row(name, column, fills=fills) for name, column in columns[:_MOST_COLUMNS]]
    roles = {
        "label": [schema.get("label")],
        "target": schema.get("targets") or [],
        "weight": [schema.get("weights")],
        "id": [schema.get("id")],
        "ignored": schema.get("ignored", [])[:_MOST_COLUMNS],
    }
    none = {"values": None, "missing": None, "filled_with": None}
    for role, names in roles.items():
        rows += [{"column": name, "kind": role, **none} for name in names if name]
    further = len(columns) - _MOST_COLUMNS
    return Table(f"and {plural(further, 'column')} more" if further > 0 else "", rows)


def _column_row(name: str, column: Mapping[str, Any], *, fills: bool) -> dict[str, Any]:
    kind, values, fill = column["kind"], column.get("written"), None
    if kind == "category":
        values = str(len(column.get("categories", [])))
        if column.get("others"):
            values += " and others"
    elif fills:
        fill = column.get("fill", 0.0)
        if kind == "date":
            fill = str(date(1970, 1, 1) + timedelta(days=round(fill)))
    return {
        "column": name or "(empty)",
        "kind": kind,
        "values": values,
        "missing": column.get("missing") or None,
        "filled_with": fill,
    }
