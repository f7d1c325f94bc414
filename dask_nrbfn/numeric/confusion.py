"""What a confusion says of every class."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def class_figures(classes: Sequence[Any], confusion: ArrayLike) -> list[dict[str, Any]]:
    """Return of every class its name as ``class``, and its precision, recall, F1 and support.

    Parameters
    ----------
    classes : sequence of length K
    confusion : int64 or float64 (K, K) or (K + 1, K)
        Rows, or their weight, of each class (first axis) by the label they got (second axis). One
        row more, the last, is of rows whose class is none of `classes`.

    Notes
    -----
    Of a class with ``s`` rows, ``g`` rows that got its label and ``c`` of these that are its own,
    precision is ``c / g``, recall ``c / s``, F1, their harmonic mean, ``2 c / (s + g)``, and
    support ``s``. Rows of unknown classes count in ``g``. What would be 0 / 0 is None: the
    precision of a class that no row got, the recall of one without rows, F1 of one that is both.

    Examples
    --------
    >>> for figures in class_figures(["a", "b", "c"], [[3, 1, 0], [0, 0, 0], [1, 0, 0]]):
    ...     print(*figures.values())
    a 0.75 0.75 0.75 4
    b 0.0 None 0.0 0
    c None 0.0 0.0 1
    """
    counts = np.asarray(confusion)
    right, given = counts.diagonal(), counts.sum(axis=0)
    support = counts[: len(right)].sum(axis=1)
    columns = {
        "class": classes,
        "precision": _shares(right, given),
        "recall": _shares(right, support),
        "f1": _shares(2 * right, support + given),
        "support": support.tolist(),
    }
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def _shares(parts: NDArray[Any], wholes: NDArray[Any]) -> list[float | None]:
    pairs = zip(parts.tolist(), wholes.tolist(), strict=True)
    return [part / whole if whole else None for part, whole in pairs]
