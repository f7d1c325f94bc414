"""Confusion tables of classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from dask_nrbfn.errors import plural
from dask_nrbfn.numeric.held_out import class_figures
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.report.formats import NO_NUMBER, TextTable, count, percent

# With more classes, the most frequent confusions are listed instead of a table.
_MOST_CLASSES = 30
_MOST_PAIRS = 20

# Wider columns do not fit side by side.
_HEADING_LETTERS = 10

# The label of the line of rows whose class the model does not know.
_UNKNOWN = "(unknown)"


class Cell(NamedTuple):
    """Rows of one class with one predicted label, as text, and their share of the class.

    The shares of wrong labels are divided by the largest of them.
    """

    text: str
    heat: float


class ClassLine(NamedTuple):
    """One class: its rows by their predicted label."""

    label: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class ConfusionTable:
    """The confusion of classes; `lines` are empty and `classes` the worst if they are too many."""

    caption: str
    labels: list[str]
    lines: list[ClassLine]
    pairs: TextTable
    classes: TextTable

    @classmethod
    def of(
        cls, title: str, labels: Sequence[str], confusion: ArrayLike, *, most: int = _MOST_CLASSES
    ) -> Self:
        """Lay out counts, or weights, of true classes by predicted label, (K, K) or (K + 1, K).

        The last row of K + 1 counts rows whose class is not in `labels`.
        """
        counts = np.asarray(confusion, dtype=np.float64)
        own = [*labels, _UNKNOWN][: len(counts)]
        totals = counts.sum(axis=1, keepdims=True)
        shares = counts / np.where(totals > 0, totals, 1.0)
        return cls(
            f"{title} of each class (down) by predicted label (across)",
            list(labels),
            _lines(own, counts, shares) if len(labels) <= most else [],
            _pairs(title, own, counts, shares),
            _class_table(title, labels, counts, most),
        )

    @property
    def table(self) -> TextTable:
        """The confusion, or the most frequent confusions if there are too many classes."""
        if not self.lines:
            return self.pairs
        rows = [[line.label, *(cell.text or "0" for cell in line.cells)] for line in self.lines]
        header = ["class", *map(_shortened, self.labels)]
        return TextTable(self.caption, header, rows)


def _shortened(label: str) -> str:
    """Return a label as the heading of a narrow column; the lines have the full labels."""
    return label if len(label) <= _HEADING_LETTERS else f"{label[: _HEADING_LETTERS - 2]}.."


def _lines(own_labels: Sequence[str], counts: Floats, shares: Floats) -> list[ClassLine]:
    diagonal = np.eye(*counts.shape)
    wrong = shares * (1 - diagonal)
    gravest = wrong.max(initial=0.0) or 1.0
    heat = np.where(diagonal > 0, shares, wrong / gravest)
    return [
        ClassLine(
            label,
            tuple(
                Cell(count(rows) if rows else "", round(share, 3))
                for rows, share in zip(counts[code], heat[code], strict=True)
            ),
        )
        for code, label in enumerate(own_labels)
    ]


def _class_table(title: str, labels: Sequence[str], counts: Floats, most: int) -> TextTable:
    figures = class_figures(labels, counts)
    what = f"{title}: precision, recall and F1 of each class"
    if len(figures) > most:
        what = f"{title}: the {most} of {plural(len(figures), 'class')} with the lowest F1"
        figures = sorted(figures, key=lambda of_class: (of_class["f1"] is None, of_class["f1"]))
    rows = [
        [
            of_class["class"],
            *(percent(of_class[name], 1) for name in ("precision", "recall", "f1")),
            count(of_class["support"]),
        ]
        for of_class in figures[:most]
    ]
    rows += [
        [_UNKNOWN, NO_NUMBER, NO_NUMBER, NO_NUMBER, count(row.sum())]
        for row in counts[len(labels) :]
    ]
    return TextTable(what, ["class", "precision", "recall", "F1", "rows"], rows)


def _pairs(title: str, own_labels: Sequence[str], counts: Floats, shares: Floats) -> TextTable:
    wrong = counts * (1 - np.eye(*counts.shape))
    order = np.argsort(-wrong, axis=None, kind="stable")[:_MOST_PAIRS]
    places = zip(*np.unravel_index(order, wrong.shape), strict=True)
    rows = [
        [
            own_labels[own],
            own_labels[given],
            count(wrong[own, given]),
            percent(shares[own, given], 1),
        ]
        for own, given in places
        if wrong[own, given]
    ]
    what = f"{title}: the most frequent confusions of {plural(counts.shape[1], 'class')}"
    return TextTable(what, ["class", "predicted", "rows", "of the class"], rows)
