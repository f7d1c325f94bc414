"""Numbers as text, and tables of text."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, NamedTuple, Self

from dask_nrbfn.errors import plural

# Number of columns of a schema that are shown; JSON has all.
_MOST_COLUMNS = 40

# Number of items that are listed in a line.
_MOST_LISTED = 5

NO_NUMBER = "-"
"""The text for a missing number, such as the error at a penalty where the system is singular."""


class Fact(NamedTuple):
    """A figure and its name."""

    name: str
    value: str


@dataclass(frozen=True)
class TextTable:
    """Cells under a header; `marked` rows stand out, and `heat` colours cells after the first."""

    title: str
    header: list[str]
    rows: list[list[str]]
    marked: Sequence[bool] = ()
    heat: Sequence[Sequence[float]] = ()

    @classmethod
    def of(cls, title: str, rows: Sequence[dict[str, str]], marked: Sequence[bool] = ()) -> Self:
        """Return the table of some rows, at least one, by the names of their columns."""
        return cls(title, [*rows[0]], [[*row.values()] for row in rows], marked)

    @property
    def text(self) -> str:
        """The cells in columns: numbers to the right, words to the left, marked rows with a star.

        >>> print(TextTable("", ["rule", "error"], [["a", "1.5"], ["b", "12.0"]], [0, 1]).text)
          rule  error
          a       1.5
        * b      12.0
        """
        by_column = list(zip(self.header, *self.rows, strict=True))
        words = [any(cell[0].isalpha() for cell in cells[1:]) for cells in by_column]
        widths = [max(map(len, cells)) for cells in by_column]
        marked = self.marked or [False] * len(self.rows)
        lines = []
        for cells, star in zip([self.header, *self.rows], [False, *marked], strict=True):
            padded = (
                cell.ljust(width) if word else cell.rjust(width)
                for cell, width, word in zip(cells, widths, words, strict=True)
            )
            lines.append(f"{'*' if star else ' '} {'  '.join(padded)}".rstrip())
        return "\n".join(lines)


def label_texts(classes: Iterable[Any]) -> list[str]:
    """Return labels as text.

    >>> label_texts([0, "a", ""])
    ['0', 'a', '(empty)']
    """
    return [str(label) or "(empty)" for label in classes]


def percent(share: float | None, digits: int = 2) -> str:
    """Return a share as text with so many decimals; two digits where these would be 0.

    >>> percent(0.0156), percent(0.000012), percent(None)
    ('1.56 %', '0.0012 %', '-')
    """
    if share is None:
        return NO_NUMBER
    text = f"{100 * share:.{digits}f}"
    return f"{text if float(text) or not share else f'{100 * share:.2g}'} %"


def number(value: float | None) -> str:
    """Return a number with four significant digits.

    >>> number(1.0841814), number(1374463.2), number(1e-8), number(None)
    ('1.084', '1.374e+06', '1e-08', '-')
    """
    return NO_NUMBER if value is None else f"{value:.4g}"


def decimals(value: float | None) -> str:
    """Return a number with four digits after the decimal point.

    >>> decimals(0.05709923), decimals(None)
    ('0.0571', '-')
    """
    return NO_NUMBER if value is None else f"{value:.4f}"


def count(value: float) -> str:
    """Return a count, or a sum of weights, with separated thousands.

    >>> count(1797), count(1797.0000000001), count(1797.25), count(0.0125)
    ('1,797', '1,797', '1,797.2', '0.0125')
    """
    # A sum of weights may differ from a whole number by rounding.
    if math.isclose(value, round(value), rel_tol=1e-9):
        return f"{round(value):,}"
    return f"{value:.3g}" if value < 100 else f"{value:,.1f}"


def seconds(value: float) -> str:
    """Return seconds as text, also in minutes and hours.

    >>> seconds(1.632), seconds(750), seconds(7300)
    ('1.6 s', '12 min 30 s', '2 h 1 min')
    """
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 100:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def listed(items: Sequence[str]) -> str:
    """Return the first five items with commas between them, and the number of further items.

    >>> listed(["a", "b"]), listed([*"abcdefg"])
    ('a, b', 'a, b, c, d, e and 2 more')
    """
    shown = ", ".join(items[:_MOST_LISTED])
    n_further = len(items) - _MOST_LISTED
    return f"{shown} and {n_further} more" if n_further > 0 else shown


def target_names_text(names: Sequence[str]) -> str:
    """Return the first names of numeric targets."""
    return f"target{'' if len(names) == 1 else 's'} {listed(names)}"


def schema_table(schema: Mapping[str, Any]) -> TextTable:
    """Return the kind of each of the first columns; the title counts the further ones."""
    shown = list(schema["columns"].items())[:_MOST_COLUMNS]
    fills = schema.get("missing") == "impute"
    rows = [_column_row(name, column, fills=fills) for name, column in shown]
    roles = {
        "label": [schema.get("label")],
        "target": schema.get("targets", []),
        "weight": [schema.get("weights")],
        "id": [schema.get("id")],
        "ignored": schema.get("ignored", [])[:_MOST_COLUMNS],
    }
    rows += [
        [name, role, *[NO_NUMBER] * 3] for role, names in roles.items() for name in names if name
    ]
    further = len(schema["columns"]) - len(shown)
    return TextTable(
        f"and {plural(further, 'column')} more" if further else "",
        ["column", "kind", "values", "missing", "filled with"],
        rows,
    )


def schema_text(schema: Mapping[str, Any]) -> str:
    """Return `schema_table` as lines of text."""
    table = schema_table(schema)
    return f"{table.text}\n  {table.title}" if table.title else table.text


def _column_row(name: str, column: Mapping[str, Any], *, fills: bool) -> list[str]:
    """Return the name, the kind, the categories or format, the missing share and the fill value."""
    kind, share = column["kind"], column.get("missing", 0.0)
    values, fill = column.get("written", NO_NUMBER), NO_NUMBER
    if kind == "category":
        values = f"{len(column.get('categories', []))}{' and others' * column.get('others', False)}"
    elif fills:
        value = column.get("fill", 0.0)
        day = date(1970, 1, 1) + timedelta(days=round(value)) if kind == "date" else None
        fill = number(value) if day is None else str(day)
    return [name or "(empty)", kind, values, percent(share, 1) if share else NO_NUMBER, fill]
