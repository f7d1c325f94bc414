"""Which rows have neighbours and a confidence: all with labels, or the candidates among them."""

from dataclasses import asdict, replace

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.storage.layout import PartLayout
from dask_nrbfn.storage.run import Run

# What a run has decided that searches candidates: how the arrays are cut that have a row for each.
_CANDIDATES = "candidates"


def decide_candidates(run: Run, n_candidates: int) -> None:
    """Record that only so many rows have neighbours."""
    run.decide(_CANDIDATES, asdict(PartLayout.of(n_candidates, run.chosen_params.n_parts)))


def has_candidates(run: Run) -> bool:
    """Return whether only candidates have neighbours."""
    return _CANDIDATES in run.decisions


def of_searched(run: Run) -> Run:
    """Return a run as stages see it that work on the rows that have neighbours."""
    labelled = run.of_labelled()
    if not has_candidates(run):
        return labelled
    layout = PartLayout(**run.decisions[_CANDIDATES])
    return replace(labelled, n_rows=layout.n_rows, layout=layout)


def searched_rows(run: Run) -> NDArray[np.int64] | None:
    """Return which of the rows with labels are candidates, ascending, int64 (N,); None: all."""
    return run.read("neighbors/rows") if has_candidates(run) else None


def places_of(run: Run, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places of searched rows in the arrays that have a row for each of them."""
    candidates = searched_rows(run)
    return rows if candidates is None else np.searchsorted(candidates, rows)
