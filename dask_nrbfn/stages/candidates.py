"""The neighbours of drawn rows, the candidates, among all rows."""

from typing import Any

import numpy as np

from dask_nrbfn.engine import Engine
from dask_nrbfn.neighbors.lists import Neighbors
from dask_nrbfn.numeric.confidence import LEAST_OF_CLASS, choose_candidates
from dask_nrbfn.numeric.hashing import hash_rows
from dask_nrbfn.parts import run_task
from dask_nrbfn.stages.bases import check_distinct, pool_of, rows_by_number
from dask_nrbfn.stages.exact_search import search_rows_exactly
from dask_nrbfn.stages.neighbor_search import of_searched
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run


def search_candidates(run: Run, dataset: Dataset, engine: Engine) -> dict[str, Any]:
    """Store the row numbers of the candidates and their neighbours among all rows.

    Only lists are written: each part writes the neighbours among its rows.
    """
    if not all(map(run.has, ("neighbors/rows", "neighbors/hashes"))):
        run_task(engine, _draw, run, dataset, label="neighbors")
    rows = run.read("neighbors/rows")
    search_rows_exactly(run, dataset, engine, stage="candidates", rows=rows)
    return {"distance_sum": run_task(engine, _store_lists, run, label="neighbors")}


def _draw(run: Run, dataset: Dataset) -> None:
    """Draw candidates; store their row numbers and the hashes of their values."""
    size = of_searched(run).n_rows
    pool = pool_of(rows_by_number(run, dataset), size=size, n_classes=LEAST_OF_CLASS)
    drawn = choose_candidates(pool, size=size)
    hashes = hash_rows(dataset.take(drawn), seed=run.chosen_params.random_state)
    check_distinct(run, len(np.unique(hashes)))
    group = run.group("neighbors")
    write_array(group, "rows", drawn, "candidate")
    write_array(group, "hashes", hashes, "candidate")


def _store_lists(run: Run) -> float:
    """Store the lists of all candidates in parts; return the sum of the distances."""
    searched = of_searched(run)
    for start, stop in searched.spans:
        for name in Neighbors._fields:
            values = run.read(f"candidates/{name}", start, stop)
            searched.write_rows(f"neighbors/{name}", start, values)
    return float(run.read("candidates/distances").sum())
