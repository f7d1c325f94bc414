"""How fast a worker is, and the seconds that a stage takes at that."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dask_nrbfn.stages.stage import StageCost

# From submitting a part to its record: opening run and dataset, writing the part, the scheduler.
# And the same for a task that works alone.
_PART_S, _TASK_S = 0.06, 0.03


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What one worker does in a second.

    Attributes
    ----------
    moments_flops : float
        Symmetric products of activations, and distances to a basis.
    solve_flops : float
        Cholesky factorization.
    activations : float
        Exponentials, normalized.
    roots : float
        Distances, summed.
    column_values : float
        Values that enter column statistics.
    hashed_values : float
    pairs : float
        Pairs of rows in an exact search, at the dataset's number of columns.
    audited_pairs : float
        The same with a thousand rows against many.
    updates : float
        Candidate values of NNDescent.
    measured_values : float
        Differences of neighbours.
    merged_candidates : float
    selected_rows : float
        Candidates for the basis.
    routed_distances : float
        Distances to the centroids of partitions.
    weighed_neighbors : float
        Neighbours that enter a confidence.
    read_bytes : float
        Rows of the dataset, decoded.
    scratch_bytes : float
        Arrays of a run, written or read.
    """

    moments_flops: float
    solve_flops: float
    activations: float
    roots: float
    column_values: float
    hashed_values: float
    pairs: float
    audited_pairs: float
    updates: float
    measured_values: float
    merged_candidates: float
    selected_rows: float
    routed_distances: float
    weighed_neighbors: float
    read_bytes: float
    scratch_bytes: float


def expected_s(cost: StageCost, rates: Rates, n_workers: int) -> float:
    """Return the seconds that a stage is expected to take."""
    # The last round of tasks may leave workers idle. What one task does alone has no rounds.
    rounds = math.ceil(cost.n_tasks / n_workers) if cost.work else 0
    share = rounds / cost.n_tasks
    shared = _work_s(cost.work, rates) * share + rounds * _PART_S
    return shared + _work_s(cost.alone, rates) + _TASK_S + cost.fixed_s


def _work_s(work: Mapping[str, float], rates: Rates) -> float:
    return sum(amount / getattr(rates, name) for name, amount in work.items())
