"""Numbers as text, and text in columns."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

# What stands where there is no number: a penalty at which the system is singular.
MISSING = "-"


@dataclass(frozen=True)
class TextTable:
    """Cells of text under a header.

    Attributes
    ----------
    title : str
    header : list of str
    rows : list of list of str
    marked : sequence of bool
        Whether each row stands out; empty: none does.
    """

    title: str
    header: list[str]
    rows: list[list[str]]
    marked: Sequence[bool] = ()

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


def class_names(classes: Iterable[Any]) -> list[str]:
    """Return labels as text.

    >>> class_names([0, "a", ""])
    ['0', 'a', '(empty)']
    """
    return [str(label) or "(empty)" for label in classes]


def percent(share: float | None, digits: int = 2) -> str:
    """Return a share as text.

    >>> percent(0.0156), percent(None)
    ('1.56 %', '-')
    """
    return MISSING if share is None else f"{100 * share:.{digits}f} %"


def number(value: float | None, digits: int = 4) -> str:
    """Return a number with so many significant digits.

    >>> number(1.0841814), number(1374463.2), number(1e-8), number(None)
    ('1.084', '1.374e+06', '1e-08', '-')
    """
    return MISSING if value is None else f"{value:.{digits}g}"


def decimals(value: float | None, digits: int = 4) -> str:
    """Return a number with so many digits after the point.

    >>> decimals(0.05709923), decimals(None)
    ('0.0571', '-')
    """
    return MISSING if value is None else f"{value:.{digits}f}"


def count(value: float) -> str:
    """Return a count, or a sum of weights, with its thousands apart.

    >>> count(1797), count(1797.0000000001), count(1797.25), count(0.0125)
    ('1,797', '1,797', '1,797.2', '0.0125')
    """
    # Sums of weights that make a whole number are off by their rounding.
    if math.isclose(value, round(value), rel_tol=1e-9):
        return f"{round(value):,}"
    return f"{value:.3g}" if value < 100 else f"{value:,.1f}"


def seconds(value: float) -> str:
    """Return seconds, in larger units where they are many.

    >>> seconds(1.632), seconds(750), seconds(7300)
    ('1.6 s', '12 min 30 s', '2 h 1 min')
    """
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 100:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def plural(value: int, name: str) -> str:
    """Return a count of things.

    >>> plural(1, "partition"), plural(1200, "row"), plural(9, "pass")
    ('1 partition', '1,200 rows', '9 passes')
    """
    ending = "es" if name.endswith("s") else "s"
    return f"{value:,} {name}" if value == 1 else f"{value:,} {name}{ending}"


def listed(items: Sequence[str], most: int = 5) -> str:
    """Return the first items with commas between them, and how many more there are.

    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    shown = ", ".join(items[:most])
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"
