"""Which classes were taken for which."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_nrbfn.report.formats import count, percent

Floats = NDArray[np.float64]

# More classes are no table that can be read; their most frequent confusions are listed.
_MOST_CLASSES = 30
_MOST_PAIRS = 20

# Rows of classes that the model does not know, none of which is right.
_UNKNOWN = "(unknown)"


@dataclass(frozen=True)
class Cell:
    """Rows of one class that got one label.

    Attributes
    ----------
    text : str
    heat : float
        From 0 to 1: of right labels the share of the class, of wrong ones that of the gravest.
    """

    text: str
    heat: float


@dataclass(frozen=True)
class ClassLine:
    """One class: its rows by the label they got.

    Attributes
    ----------
    label, n_rows, right : str
    cells : tuple of Cell
        Empty where there are too many classes.
    """

    label: str
    n_rows: str
    right: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class ConfusionTable:
    """Confusion as it is shown.

    Attributes
    ----------
    title : str
    labels : list of str
    lines : list of ClassLine
    pairs : list of list of str
        The most frequent confusions: class, label, rows, share of the class.
    """

    title: str
    labels: list[str]
    lines: list[ClassLine]
    pairs: list[list[str]]

    @classmethod
    def of(cls, title: str, labels: Sequence[str], confusion: ArrayLike) -> Self:
        """Lay out counts, or weights, (K, K) of true classes by the label they got.

        One row more, the last, is of rows whose class is none of `labels`.
        """
        counts = np.asarray(confusion, dtype=np.float64)
        own = [*labels, _UNKNOWN][: len(counts)]
        totals = counts.sum(axis=1, keepdims=True)
        shares = counts / np.where(totals > 0, totals, 1.0)
        diagonal = np.eye(*counts.shape)
        wrong = shares * (1 - diagonal)
        gravest = wrong.max(initial=0.0) or 1.0
        heat = np.where(diagonal > 0, shares, wrong / gravest)
        in_table = len(labels) <= _MOST_CLASSES
        lines = []
        for code, label in enumerate(own):
            cells = zip(counts[code], heat[code], strict=True) if in_table else ()
            can_be_right = totals[code] and code < len(labels)
            right = percent(shares[code, code], 1) if can_be_right else "-"
            drawn = tuple(
                Cell(count(rows) if rows else "", round(share, 3)) for rows, share in cells
            )
            lines.append(ClassLine(label, count(totals[code, 0]), right, drawn))
        return cls(title, list(labels) if in_table else [], lines, _pairs(own, counts, shares))


def _pairs(own_labels: Sequence[str], counts: Floats, shares: Floats) -> list[list[str]]:
    wrong = counts * (1 - np.eye(*counts.shape))
    order = np.argsort(-wrong, axis=None, kind="stable")[:_MOST_PAIRS]
    places = zip(*np.unravel_index(order, wrong.shape), strict=True)
    return [
        [
            own_labels[own],
            own_labels[given],
            count(wrong[own, given]),
            percent(shares[own, given], 1),
        ]
        for own, given in places
        if wrong[own, given]
    ]
