"""Stage "confidence": the soft-kNN confidence of every row (hu-nrbfn, Algorithm 1)."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.confidence import soft_confidence
from dask_nrbfn.numeric.hashing import hash_rows
from dask_nrbfn.parts import PartResult, map_parts, run_task
from dask_nrbfn.stages.neighbor_search import (
    LIST_BYTES,
    has_candidates,
    of_searched,
    search_block_rows,
    searched_rows,
)
from dask_nrbfn.stages.neighbors import NEIGHBORS
from dask_nrbfn.stages.stage import FitSizes, Stage, StageCost, StageJob
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.blocks import regroup
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import narrow_block_rows
from dask_nrbfn.storage.location import View
from dask_nrbfn.storage.run import Run


def _compute(job: StageJob) -> dict[str, Any]:
    """Store the confidence of every row or candidate; return how many are below the threshold."""
    run, dataset, engine = of_searched(job.run), job.dataset, job.engine
    run.require_row_array("confidence/values", np.float64)
    run.require_row_array("confidence/tiebreak", np.uint64)
    if not run.has("confidence/codes"):
        run_task(engine, _write_codes, run, dataset, label="codes")
    records = map_parts(run, dataset, engine, stage="confidence", task=_confidence_part)
    return {"n_below_threshold": sum(record["n_below_threshold"] for record in records)}


def _write_codes(run: Run, dataset: Dataset) -> None:
    """Store the class code of every row in one or two bytes, because each part reads all codes.

    If only some rows have a confidence, the row numbers are stored too.
    """
    group, rows = run.group("confidence"), searched_rows(run)
    if dataset.labelled_only:
        assert isinstance(dataset.location, View)
        assert dataset.location.form == "of_labelled"
        labelled = Dataset.open(dataset.location.place).labelled_rows()
        rows = labelled if rows is None else labelled[rows]
    if rows is not None:
        write_array(group, "rows", rows, "row")
    write_array(group, "codes", dataset.codes(), "row")


def name_rows(run: Run, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the dataset row numbers of places among the rows that have a confidence."""
    named = has_candidates(run) or run.has("confidence/rows")
    return run.read("confidence/rows")[places] if named else places


def codes_of_places(run: Run, places: NDArray[np.int64]) -> NDArray[np.integer[Any]]:
    """Return the class codes of places among the rows that have a confidence."""
    rows = searched_rows(run)
    codes: NDArray[np.integer[Any]] = run.read("confidence/codes")
    return codes[places if rows is None else rows[places]]


def _confidence_part(run: Run, dataset: Dataset, start: int, stop: int) -> PartResult:
    run, params = of_searched(run), run.chosen_params
    codes, rows = run.read("confidence/codes"), searched_rows(run)
    own = codes if rows is None else codes[rows]
    width = NEIGHBORS.recorded(run).mean_distance
    n_below, first = 0, start
    hashes_of_blocks: Iterable[NDArray[np.uint64]]
    if rows is None:
        blocks = dataset.blocks(start, stop, narrow_block_rows(dataset.row_width))
        hashes_of_blocks = (hash_rows(X, seed=params.random_state) for X, *_ in blocks)
    else:
        hashes_of_blocks = [run.read("neighbors/hashes", start, stop)]
    # Several chunks are read and written at a time.
    size = search_block_rows(run.chunk_rows, dataset.row_width, params)
    for hashes in regroup(hashes_of_blocks, size):
        last = first + len(hashes)
        indices = run.read("neighbors/indices", first, last)
        confidence = soft_confidence(
            run.read("neighbors/distances", first, last),
            codes[indices] == own[first:last, None],
            width=width,
        )
        run.write_rows("confidence/values", first, confidence)
        run.write_rows("confidence/tiebreak", first, hashes)
        n_below += int(np.count_nonzero(confidence < params.confidence_threshold))
        first = last
    return PartResult({"n_below_threshold": n_below})


def _cost(s: FitSizes) -> StageCost:
    # The hashes of candidates are known.
    n_searched = s.search.n_candidates or s.n
    return StageCost(
        read_bytes=s.lists_bytes + (0 if s.search.n_candidates else s.rows_bytes),
        written_bytes=16 * n_searched,
        # The codes of all rows, a block of lists, and a block of rows while it is hashed.
        held_bytes=s.held(
            s.n * (1 if s.K <= 256 else 4)
            + 4 * LIST_BYTES * s.block_rows * s.k
            + 3 * 8 * narrow_block_rows(s.width) * s.width
        ),
        n_tasks=-(-n_searched // s.layout.part_rows),
    )


CONFIDENCE = Stage(
    name="confidence",
    compute=_compute,
    cost=_cost,
    labelled_only=True,
    wanted=lambda tried: tried.by_confidence,
    keeps_parts=True,
    leaves=lambda run: ("confidence/values",),
)
