"""Neighbour lists that a search has left with gaps, found again among all rows."""

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import RecallError
from dask_nrbfn.parts import run_task
from dask_nrbfn.stages.exact_search import MAX_TARGETS, search_rows_exactly
from dask_nrbfn.stages.searched import of_searched, places_of
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)


def repair_lists(
    run: Run, dataset: Dataset, engine: Engine, *, rows: NDArray[np.int64], remedy: str
) -> dict[str, Any]:
    """Search rows with fewer than k neighbours again, among all rows; return how many they are.

    And the sum of their distances. `remedy` is what to change if they are too many.
    """
    if not len(rows):
        return {"n_rows": 0, "distance_sum": 0.0}
    if len(rows) > MAX_TARGETS:
        raise RecallError(
            f"{len(rows)} rows have fewer than `n_neighbors`={run.params.n_neighbors} other rows "
            "in their partitions.",
            remedy,
        )
    logger.info("neighbors: %d rows in small partitions are searched among all rows", len(rows))
    search_rows_exactly(run, dataset, engine, stage="repair", rows=rows)
    record = run_task(engine, _store_repaired, run.location, label="repair")
    return dict(record)


def _store_repaired(run_location: Location) -> dict[str, Any]:
    run = of_searched(Run.open(run_location))
    places, distances = places_of(run, run.read("repair/rows")), run.read("repair/distances")
    for name, values in (("indices", run.read("repair/indices")), ("distances", distances)):
        for start in np.unique(places // run.chunk_rows) * run.chunk_rows:
            stop = min(int(start) + run.chunk_rows, run.n_rows)
            first, last = np.searchsorted(places, [start, stop])
            chunk = run.read(f"neighbors/{name}", int(start), stop)
            chunk[places[first:last] - start] = values[first:last]
            run.write_rows(f"neighbors/{name}", int(start), chunk)
    return {"n_rows": len(places), "distance_sum": float(distances.sum())}
