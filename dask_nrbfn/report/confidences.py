"""How sure the rows of a run are, counted part by part."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.report.finished import FinishedRun
from dask_nrbfn.stages.confidence import name_rows
from dask_nrbfn.stages.neighbor_search import of_searched

# Thresholds in steps of a thousandth can be told apart.
_BINS = 1000

# Rows that are named at either end.
_NAMED = 10


@dataclass(frozen=True, eq=False)
class NamedRows:
    """Rows and their confidence.

    Attributes
    ----------
    rows : int64 (m,)
    values : float64 (m,)
    """

    rows: NDArray[np.int64]
    values: Floats

    @classmethod
    def none(cls) -> Self:
        """Return no rows."""
        return cls(np.empty(0, dtype=np.int64), np.empty(0))

    def least(self, start: int, values: Floats, *, sign: float = 1.0) -> Self:
        """Return the first of these rows and those from `start` on, by ``sign * values``."""
        own = np.argsort(sign * values, kind="stable")[:_NAMED]
        rows = np.concatenate([self.rows, start + own])
        merged = np.concatenate([self.values, values[own]])
        order = np.argsort(sign * merged, kind="stable")[:_NAMED]
        return type(self)(rows[order], merged[order])


@dataclass(frozen=True, eq=False)
class Confidences:
    """The confidence of all rows that have one, summed up.

    Attributes
    ----------
    counts : int64 (1000,)
        Rows in bins of equal width from 0 to 1.
    n_certain : int
        Rows whose confidence is exactly 1: all neighbours share their label.
    least, most : NamedRows
        The ten least and most confident, of equal ones the first.
    rows : str
        What they are called: candidates, where only these have a confidence.
    """

    counts: NDArray[np.int64]
    n_certain: int
    least: NamedRows
    most: NamedRows
    rows: str = "rows"

    @classmethod
    def of(cls, finished: FinishedRun) -> Self | None:
        """Read the confidence of the rows, a part at a time; None if the run has none."""
        if "confidence" not in finished.stages:
            return None
        counts, n_certain = np.zeros(_BINS, dtype=np.int64), 0
        least = most = NamedRows.none()
        run = of_searched(finished.run)
        for start, stop in run.spans:
            values = run.read("confidence/values", start, stop)
            counts += np.histogram(values, bins=_BINS, range=(0.0, 1.0))[0]
            n_certain += int(np.count_nonzero(values == 1.0))
            least = least.least(start, values)
            most = most.least(start, values, sign=-1.0)
        least, most = (replace(each, rows=name_rows(run, each.rows)) for each in (least, most))
        return cls(counts, n_certain, least, most, f"{finished.searched}s")

    @property
    def thresholds(self) -> Floats:
        """Thresholds 0.001, 0.002, ..., 1, float64 (1000,)."""
        return np.linspace(0.0, 1.0, _BINS + 1)[1:]

    @property
    def n_below(self) -> NDArray[np.int64]:
        """Rows below each of `thresholds`, int64 (1000,)."""
        below = np.cumsum(self.counts)
        # The last bin has its upper edge too.
        below[-1] -= self.n_certain
        return below
