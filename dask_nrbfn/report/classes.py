"""Tables about classes: their confusion, and the reliability of their probabilities."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from dask_nrbfn.errors import plural
from dask_nrbfn.numeric.held_out import class_figures
from dask_nrbfn.numeric.reliability import ReliabilityBin, expected_calibration_error
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.report.formats import NO_NUMBER, TextTable, count, decimals, percent

# With more classes, the most frequent confusions are listed instead of a matrix.
_MOST_CLASSES = 30
_MOST_PAIRS = 20

# The label of the line of rows whose class the model does not know.
_UNKNOWN = "(unknown)"


class ConfusionTables(NamedTuple):
    """The confusion of classes; None if there are too many, and `classes` has the worst of them."""

    matrix: TextTable | None
    pairs: TextTable
    classes: TextTable


def confusion_tables(title: str, labels: Sequence[str], confusion: ArrayLike) -> ConfusionTables:
    """Return tables of counts (K or K + 1, K); row K + 1 is of classes that `labels` lacks."""
    counts = np.asarray(confusion, dtype=np.float64)
    own = [*labels, _UNKNOWN][: len(counts)]
    totals = counts.sum(axis=1, keepdims=True)
    shares = counts / np.where(totals > 0, totals, 1.0)
    return ConfusionTables(
        _matrix(title, own, counts, shares) if len(labels) <= _MOST_CLASSES else None,
        _pairs(title, own, counts, shares),
        _class_table(title, labels, counts),
    )


def _matrix(title: str, own: Sequence[str], counts: Floats, shares: Floats) -> TextTable:
    """Return all counts; the heat of wrong labels is relative to the largest of their shares."""
    right = np.eye(*counts.shape, dtype=np.bool_)
    gravest = shares[~right].max(initial=0.0) or 1.0
    return TextTable(
        f"{title} of each class (down) by predicted label (across)",
        ["class", *own[: counts.shape[1]]],
        [[label, *map(count, row)] for label, row in zip(own, counts.tolist(), strict=True)],
        heat=np.where(right, shares, shares / gravest).round(3).tolist(),
    )


def _class_table(title: str, labels: Sequence[str], counts: Floats) -> TextTable:
    figures = class_figures(labels, counts)
    what = f"{title}: precision, recall and F1 of each class"
    if len(figures) > _MOST_CLASSES:
        what = f"{title}: the {_MOST_CLASSES} of {plural(len(figures), 'class')} with the lowest F1"
        figures = sorted(figures, key=lambda of_class: (of_class["f1"] is None, of_class["f1"]))
    rows = [
        [
            of_class["class"],
            *(percent(of_class[name], 1) for name in ("precision", "recall", "f1")),
            count(of_class["support"]),
        ]
        for of_class in figures[:_MOST_CLASSES]
    ]
    rows += [[_UNKNOWN, *[NO_NUMBER] * 3, count(row.sum())] for row in counts[len(labels) :]]
    return TextTable(what, ["class", "precision", "recall", "F1", "rows"], rows)


def _pairs(title: str, own: Sequence[str], counts: Floats, shares: Floats) -> TextTable:
    wrong = counts * (1 - np.eye(*counts.shape))
    order = np.argsort(-wrong, axis=None, kind="stable")[:_MOST_PAIRS]
    rows = [
        [own[true], own[given], count(wrong[true, given]), percent(shares[true, given], 1)]
        for true, given in zip(*np.unravel_index(order, wrong.shape), strict=True)
        if wrong[true, given]
    ]
    what = f"{title}: the most frequent confusions of {plural(counts.shape[1], 'class')}"
    return TextTable(what, ["class", "predicted", "rows", "of the class"], rows)


def reliability_table(
    title: str, labels: Sequence[str], bins: Sequence[ReliabilityBin]
) -> TextTable:
    """Return rows, mean probability and observed share of each bin of the rows called `title`."""
    event = f"class {labels[1]}" if len(labels) == 2 else "a right label"
    error = decimals(expected_calibration_error(bins))
    rows = [
        {
            "rows": count(each["n_rows"]),
            "mean probability": decimals(each["mean_probability"]),
            "observed share": decimals(each["observed_share"]),
        }
        for each in bins
    ]
    what = f"{title}: probability of {event}; expected calibration error {error}"
    return TextTable.of(what, rows)
