"""Stage "recall": the share of the true neighbours that the neighbour search found."""

import logging
from dataclasses import dataclass

import numpy as np

from dask_nrbfn.errors import RecallError
from dask_nrbfn.neighbors.lists import Recall, measure_recall
from dask_nrbfn.parts import run_task
from dask_nrbfn.stages.exact_search import search_rows_exactly
from dask_nrbfn.stages.neighbor_search import of_searched
from dask_nrbfn.stages.sizes import FitSizes
from dask_nrbfn.stages.stage import Stage, StageCost, StageJob
from dask_nrbfn.stages.trials import Trials
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

# With this many rows the standard error of a recall of 0.95 is about 0.003.
AUDITED_ROWS = 1000


@dataclass(frozen=True)
class RecallRecord:
    """The share of the true neighbours found, its standard error and the number of rows."""

    recall: float
    recall_standard_error: float
    n_audited: int


def _compute(job: StageJob) -> RecallRecord:
    """Return the recall on 1,000 rows, measured by an exact search.

    An exact search over all rows at once has a recall of 1 by construction and is not audited.
    """
    run, engine = job.run, job.engine
    search = run.decisions["neighbors"]
    if search["method"] == "exact" and search["n_partitions"] == 1:
        return RecallRecord(1.0, 0.0, 0)
    n_searched = of_searched(run).n_rows
    n_audited = min(n_searched, AUDITED_ROWS)
    rng = np.random.default_rng([run.chosen_params.random_state, 1])
    rows = np.sort(rng.choice(n_searched, n_audited, replace=False))
    search_rows_exactly(run, job.dataset, engine, stage="recall", rows=rows)
    recall = run_task(engine, _compare, run, label="recall")
    logger.info("recall: %.4f +- %.4f", recall.mean, recall.standard_error)
    return RecallRecord(recall.mean, recall.standard_error, n_audited)


def check_recall(run: Run, min_recall: float) -> None:
    """Check the recall of a run."""
    audit = RECALL.recorded(run)
    if audit.recall >= min_recall:
        return
    remedy = "Give `neighbors`=exact, or a larger `n_neighbors`"
    n_partitions = run.decisions["neighbors"]["n_partitions"]
    if n_partitions > 1:
        overlap = run.chosen_params.overlap
        remedy = (
            f"Raise `overlap` from {overlap} to {overlap + 1}, or lower `n_partitions` from "
            f"{n_partitions}"
        )
    raise RecallError(
        f"the search found {audit.recall:.4f} +- {audit.recall_standard_error:.4f} of the "
        f"true neighbours, but `min_recall` is {min_recall:g}.",
        f"{remedy}, in a new run; or continue this run with a lower `min_recall`.",
    )


def _compare(run: Run) -> Recall:
    run = of_searched(run)
    found = run.take("neighbors/distances", run.read("recall/rows"))
    return measure_recall(found, run.read("recall/distances"))


def _cost(s: FitSizes) -> StageCost:
    targets = min(s.n, AUDITED_ROWS)
    if s.search.method == "exact" and s.search.n_partitions == 1:
        return StageCost(held_bytes=s.process_bytes)
    return StageCost(
        pairs=s.n * targets,
        pair_flops=s.pair_flops,
        read_bytes=2 * s.rows_bytes,
        held_bytes=s.reader_bytes + s.searched_block_bytes + s.exact_search_bytes(targets),
        n_tasks=s.n_parts,
    )


RECALL = Stage(
    name="recall",
    record=RecallRecord,
    compute=_compute,
    cost=_cost,
    labelled_only=True,
    wanted=lambda params, tuning, numbers: Trials(params, tuning).by_confidence,
    needs=("columns", "metric/root", "neighbors"),
    passes=("recall",),
)
