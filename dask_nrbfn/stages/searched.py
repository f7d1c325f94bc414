"""Which rows have neighbours and a confidence: all with labels, or the candidates among them."""

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.storage.run import Run


def searched_rows(run: Run) -> NDArray[np.int64] | None:
    """Return which of the rows with labels are candidates, ascending, int64 (N,); None: all."""
    return run.read("neighbors/rows") if "candidates" in run.decisions else None


def places_of(run: Run, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places of searched rows in the arrays that have a row for each of them."""
    candidates = searched_rows(run)
    return rows if candidates is None else np.searchsorted(candidates, rows)
