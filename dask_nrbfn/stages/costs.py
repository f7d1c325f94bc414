"""What every stage of a fit costs: flops, bytes, and the work that takes its time."""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from dask_nrbfn.engine import Engine
from dask_nrbfn.engine.budget import PROCESS_BYTES, check_budget
from dask_nrbfn.neighbors import COMPILATION_S, MAX_IMBALANCE, candidate_updates, search_bytes
from dask_nrbfn.numeric.held_out import INVERSE_TEMPERATURES
from dask_nrbfn.numeric.moments import packed_size
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages.exact_search import exact_search_bytes
from dask_nrbfn.stages.moments import combine_bytes, moments_bytes
from dask_nrbfn.stages.neighbors import NeighborSearch
from dask_nrbfn.stages.parts import block_rows, narrow_block_rows
from dask_nrbfn.stages.path import LARGEST_SPECTRUM
from dask_nrbfn.stages.recall import AUDITED_ROWS
from dask_nrbfn.stages.sequence import candidates, search_basis_size, search_rows, stage_names
from dask_nrbfn.stages.space import (
    LIST_BYTES,
    most_lists,
    sample_rows,
    search_block_rows,
    search_dtype,
    worker_bytes,
)
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import PartLayout

# Stages that hold something of the size of the basis.
BASIS_STAGES = ("width", "moments", "path", "validation", "weights", "model")

# Rows of the sample for k-means, 256 MiB of float64 at most.
_ROWS_PER_CENTRE = 64
_CLUSTERED_ELEMENTS = 2**25


@dataclass(frozen=True, kw_only=True)
class StageCost:
    """What one stage takes.

    Attributes
    ----------
    stage : str
    flops : float
        Of all tasks, floating-point operations of products and factorizations.
    read_bytes, written_bytes : int
        Of all tasks.
    held_bytes : int
        At the peak of one worker, with its process.
    n_tasks : int
        Tasks that share `work` and can run at the same time.
    work : mapping of str to float
        Amounts for all tasks by the name of the rate at which they are done, see `Rates`.
    alone : mapping of str to float
        The same for what one task does alone.
    fixed_s : float
        Seconds that do not depend on the rates, once for every worker.
    """

    stage: str
    flops: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0
    held_bytes: int
    n_tasks: int = 1
    work: Mapping[str, float] = field(default_factory=dict)
    alone: Mapping[str, float] = field(default_factory=dict)
    fixed_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class FitSizes:
    """The numbers that costs are computed from.

    Attributes
    ----------
    n, p, K, r, k : int
        Rows, features, classes, basis rows, neighbours.
    itemsize, search_itemsize : int
        Bytes of a value as stored and as searched.
    reading_bytes : int
        Chunks held while rows are read.
    method : {"exact", "approximate"}
    n_partitions, overlap : int
    block_rows : int
        Rows that are cut into partitions together.
    layout : PartLayout
    stages : list of str
        Those of the fit.
    n_folds, n_alphas : int
        Folds whose moments are summed apart and penalties that are tried; 1 and 0 without tuning.
    n_clustered : int
        Rows of the sample of k-means; 0 for another basis.
    n_tried, n_sampled, r_tried, n_search_folds : int
        Combinations that the search tries, its rows, basis rows and folds.
    n_judged, n_judged_parts, judged_reading_bytes : int
        Rows that penalties are judged on, parts of that pass and chunks held while they are read.
    """

    n: int
    p: int
    K: int
    r: int
    k: int
    itemsize: int
    search_itemsize: int
    reading_bytes: int
    method: str
    n_partitions: int
    overlap: int
    block_rows: int
    layout: PartLayout
    stages: list[str]
    n_folds: int
    n_alphas: int
    n_clustered: int
    n_tried: int
    n_sampled: int
    r_tried: int
    n_search_folds: int
    n_judged: int
    n_judged_parts: int
    judged_reading_bytes: int

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        params: FitParams,
        search: NeighborSearch,
        n_basis: int,
        tuning: TuneParams | None = None,
        validation: Dataset | None = None,
    ) -> Self:
        """Return the sizes of a fit with `n_basis` basis rows, or of its tuning."""
        judged = dataset if validation is None else validation
        layout = PartLayout.of(dataset.n_rows, params.n_parts)
        block_rows = search_block_rows(layout.chunk_rows, dataset.n_features, params)
        return cls(
            n=dataset.n_rows,
            p=dataset.n_features,
            K=dataset.n_classes,
            r=n_basis,
            k=params.n_neighbors,
            itemsize=dataset.X.dtype.itemsize,
            search_itemsize=search_dtype(dataset, search.method).itemsize,
            reading_bytes=dataset.reading_bytes,
            method=search.method,
            n_partitions=search.n_partitions,
            overlap=params.overlap,
            block_rows=min(block_rows, layout.part_rows),
            layout=layout,
            stages=stage_names(params, tuning),
            n_folds=1 if tuning is None else tuning.n_folds,
            n_alphas=0 if tuning is None else len(tuning.alphas),
            n_clustered=clustered_rows(dataset, params.basis_size or 0)
            if params.basis == "kmeans"
            else 0,
            n_tried=0 if tuning is None else len(candidates(params, tuning)),
            n_sampled=0
            if tuning is None
            else search_rows(dataset.n_rows, dataset.n_features, tuning),
            r_tried=0
            if tuning is None
            else search_basis_size(params, tuning, dataset.n_rows, dataset.n_classes),
            n_search_folds=0 if tuning is None else tuning.folds,
            n_judged=judged.n_rows,
            n_judged_parts=len(PartLayout.of(judged.n_rows, params.n_parts).spans),
            judged_reading_bytes=judged.reading_bytes,
        )

    @property
    def n_parts(self) -> int:
        """Parts of a pass."""
        return len(self.layout.spans)

    @property
    def rows_bytes(self) -> int:
        """Bytes of X as stored."""
        return self.n * self.p * self.itemsize

    @property
    def lists_bytes(self) -> int:
        """Bytes of all neighbour lists: a number and a distance each."""
        return LIST_BYTES * self.n * self.k

    @property
    def process_bytes(self) -> int:
        """Bytes of a worker that computes nothing, once it has searched neighbours."""
        return worker_bytes(self.method)


def stage_costs(sizes: FitSizes) -> dict[str, StageCost]:
    """Return the cost of every stage by its name."""
    return {stage: _COSTS[stage](sizes) for stage in sizes.stages}


def clustered_rows(dataset: Dataset, n_basis: int) -> int:
    """Return the rows of the sample of which k-means finds `n_basis` centres."""
    most = min(_ROWS_PER_CENTRE * n_basis, _CLUSTERED_ELEMENTS // dataset.n_features)
    return min(dataset.n_rows, max(n_basis, most))


def largest_basis(
    dataset: Dataset,
    params: FitParams,
    search: NeighborSearch,
    engine: Engine,
    tuning: TuneParams | None = None,
) -> int:
    """Return the most basis rows that the workers' memory allows, at most all rows."""
    sizes = FitSizes.of(dataset, params, search, 1, tuning)

    def fits(n_basis: int) -> bool:
        costs = stage_costs(replace(sizes, r=n_basis))
        held = max(cost.held_bytes for stage, cost in costs.items() if stage in BASIS_STAGES)
        return held <= engine.memory_bytes

    return bisect_left(range(1, dataset.n_rows + 1), True, key=lambda r: not fits(r))


def check_stage_budget(
    stage: str,
    dataset: Dataset,
    params: FitParams,
    search: NeighborSearch,
    engine: Engine,
    *,
    n_basis: int,
    tuning: TuneParams | None = None,
    validation: Dataset | None = None,
) -> StageCost:
    """Return the cost of a stage, or raise MemoryBudgetError if a worker cannot hold it."""
    sizes = FitSizes.of(dataset, params, search, n_basis, tuning, validation)
    cost = stage_costs(sizes)[stage]
    remedy = "Ingest with a smaller `chunk_rows`"
    if stage in BASIS_STAGES:
        knob = (
            "`basis_size`" if params.basis_size else "`confidence_threshold`, or give `basis_size`"
        )
        most = largest_basis(dataset, params, search, engine, tuning)
        remedy = f"Lower {knob}: from {n_basis} basis rows to at most {most}"
    elif stage == "search":
        remedy = "Lower `search_rows` or `search_basis`"
    elif stage == "neighbors":
        remedy = "Lower `n_neighbors`"
        if params.n_partitions is not None:
            remedy = "Give more `n_partitions`, or leave them to be chosen"
    check_budget(stage, cost.held_bytes, engine, remedy=remedy)
    return cost


def _columns(s: FitSizes) -> StageCost:
    rows = narrow_block_rows(s.p)
    return StageCost(
        stage="columns",
        read_bytes=s.rows_bytes,
        held_bytes=PROCESS_BYTES + s.reading_bytes + rows * s.p * (2 * s.itemsize + 3 * 8),
        n_tasks=s.n_parts,
        work={"read_bytes": s.rows_bytes, "column_values": s.n * s.p},
    )


def _neighbors(s: FitSizes) -> StageCost:
    return _search_at_once(s) if s.n_partitions == 1 else _search_in_partitions(s)


def _search_at_once(s: FitSizes) -> StageCost:
    exact = s.method == "exact"
    n_tasks = s.n_parts if exact else 1
    pairs = float(s.n) ** 2 if exact else 0.0
    read = n_tasks * s.rows_bytes
    return StageCost(
        stage="neighbors",
        flops=2 * pairs * s.p,
        read_bytes=read,
        written_bytes=s.lists_bytes,
        held_bytes=s.process_bytes
        + s.reading_bytes
        + narrow_block_rows(s.p) * s.p * (s.itemsize + 2 * 8 + s.search_itemsize)
        + _search_bytes(s, s.n),
        n_tasks=n_tasks,
        work={
            "read_bytes": read,
            "pairs": pairs,
            "updates": 0 if exact else candidate_updates(s.n, s.p, n_neighbors=s.k),
            "measured_values": s.n * s.k * s.p,
            "scratch_bytes": s.lists_bytes,
        },
        fixed_s=0.0 if exact else COMPILATION_S,
    )


def _search_in_partitions(s: FitSizes) -> StageCost:
    entries = s.n * s.overlap
    partition_rows = math.ceil(MAX_IMBALANCE * entries / s.n_partitions)
    scratch = entries * (s.p * s.search_itemsize + 2 * 8 + LIST_BYTES * s.k)
    exact = s.method == "exact"
    pairs = float(entries) ** 2 / s.n_partitions if exact else 0.0
    updates = 0 if exact else candidate_updates(entries, s.p, n_neighbors=s.k)
    block = s.block_rows * s.p * (2 * s.itemsize + 8 + (2 + 2 * s.overlap) * s.search_itemsize)
    # Candidate lists, and their copies while they are sorted twice.
    merged = 4 * LIST_BYTES * s.block_rows * s.k * most_lists(s.overlap)
    search = _search_bytes(s, partition_rows) + 16 * partition_rows
    # The sample as read and searched, in double precision and as distances, some of them twice.
    placing = 5 * 8 * sample_rows(s.n, s.p, s.n_partitions) * (s.p + s.n_partitions)
    repairing = exact_search_bytes(AUDITED_ROWS, s.p, n_neighbors=s.k)
    return StageCost(
        stage="neighbors",
        flops=2 * pairs * s.p + 2 * s.n * s.n_partitions * s.p,
        read_bytes=2 * s.rows_bytes + scratch,
        written_bytes=scratch + s.lists_bytes,
        held_bytes=s.process_bytes
        + s.reading_bytes
        + max(block + repairing, merged, search, placing),
        n_tasks=s.n_partitions,
        work={
            "read_bytes": s.rows_bytes,
            "hashed_values": s.n * s.p,
            "routed_distances": s.n * s.n_partitions,
            "pairs": pairs,
            "updates": updates,
            "measured_values": entries * s.k * s.p,
            "merged_candidates": s.n * s.k * most_lists(s.overlap),
            "scratch_bytes": 2 * scratch + s.lists_bytes,
        },
        alone={
            "read_bytes": s.rows_bytes,
            "routed_distances": _BALANCING_ROUNDS
            * s.n_partitions
            * sample_rows(s.n, s.p, s.n_partitions),
        },
        fixed_s=0.0 if exact else COMPILATION_S,
    )


# Rounds of k-means and of balancing, of which each costs about as much as routing the sample.
_BALANCING_ROUNDS = 40


def _search_bytes(s: FitSizes, n_rows: int) -> int:
    return search_bytes(n_rows, s.p, itemsize=s.search_itemsize, n_neighbors=s.k, method=s.method)


def _recall(s: FitSizes) -> StageCost:
    targets = min(s.n, AUDITED_ROWS)
    if s.method == "exact" and s.n_partitions == 1:
        return StageCost(stage="recall", held_bytes=s.process_bytes)
    pairs = s.n * targets
    block = s.block_rows * s.p * (2 * s.itemsize + 8 + 2 * s.search_itemsize)
    return StageCost(
        stage="recall",
        flops=2 * pairs * s.p,
        read_bytes=2 * s.rows_bytes,
        held_bytes=s.process_bytes
        + s.reading_bytes
        + block
        + exact_search_bytes(targets, s.p, n_neighbors=s.k),
        n_tasks=s.n_parts,
        work={"read_bytes": s.rows_bytes, "audited_pairs": pairs},
        alone={"read_bytes": s.rows_bytes, "scratch_bytes": s.lists_bytes / 2},
    )


def _confidence(s: FitSizes) -> StageCost:
    read = s.rows_bytes + s.lists_bytes
    return StageCost(
        stage="confidence",
        read_bytes=read,
        written_bytes=16 * s.n,
        # The codes of all rows, a block of lists, and one of rows while it is hashed.
        held_bytes=s.process_bytes
        + s.reading_bytes
        + s.n * (1 if s.K <= 256 else 4)
        + 4 * LIST_BYTES * s.block_rows * s.k
        + 4 * 8 * narrow_block_rows(s.p) * s.p,
        n_tasks=s.n_parts,
        work={
            "read_bytes": s.rows_bytes,
            "hashed_values": s.n * s.p,
            "weighed_neighbors": s.n * s.k,
            "scratch_bytes": s.lists_bytes + 16 * s.n + s.n * s.n_parts,
        },
        alone={"read_bytes": 8 * s.n},
    )


def _basis(s: FitSizes) -> StageCost:
    return StageCost(
        stage="basis",
        read_bytes=16 * s.n + s.rows_bytes,
        written_bytes=8 * s.r * s.p,
        held_bytes=s.process_bytes
        + s.reading_bytes
        + _selection_bytes(s, s.r)
        + 2 * s.r * s.p * s.itemsize
        + 3 * 8 * s.n_clustered * s.p,
        alone={"read_bytes": s.rows_bytes, "scratch_bytes": 16 * s.n, "selected_rows": s.n},
    )


def _selection_bytes(s: FitSizes, n_basis: int) -> int:
    """Return the bytes of choosing rows: the codes of all, the candidates, and a block of rows."""
    pool = min(s.n, n_basis + s.n_clustered + s.K**2)
    return s.n * (1 if s.K <= 256 else 4) + _SELECTION_BYTES + 128 * pool


# A block of rows while the selection sorts it.
_SELECTION_BYTES = 64 * 2**20


def _width(s: FitSizes) -> StageCost:
    rows = block_rows(s.r)
    return StageCost(
        stage="width",
        flops=2 * s.n * s.r * s.p,
        read_bytes=s.rows_bytes,
        held_bytes=s.process_bytes
        + s.reading_bytes
        + 8 * (rows * s.r + 3 * s.r * s.p + 5 * rows * s.p),
        n_tasks=s.n_parts,
        work={
            "read_bytes": s.rows_bytes,
            "moments_flops": 2 * s.n * s.r * s.p,
            "roots": s.n * s.r,
        },
    )


def _moments(s: FitSizes) -> StageCost:
    sums = 4 * s.r**2 * s.n_parts * s.n_folds
    flops = s.n * s.r**2 + 2 * s.n * s.r * s.p
    return StageCost(
        stage="moments",
        flops=flops,
        read_bytes=s.rows_bytes + sums,
        written_bytes=sums + 4 * s.r**2,
        held_bytes=s.process_bytes
        + max(
            moments_bytes(
                s.r,
                n_features=s.p,
                n_classes=s.K,
                n_folds=s.n_folds,
                reading_bytes=s.reading_bytes,
            ),
            combine_bytes(s.r, s.K),
        ),
        n_tasks=s.n_parts,
        work={
            "read_bytes": s.rows_bytes,
            "moments_flops": flops,
            "activations": s.n * s.r,
            "scratch_bytes": sums,
        },
        alone={"scratch_bytes": sums + 4 * s.r**2},
    )


def _search(s: FitSizes) -> StageCost:
    """Every combination is one task: two passes over the sample, and all penalties of all folds."""
    sample_bytes = s.n_sampled * (s.p * s.itemsize + 3 * 8)
    products = s.n_sampled * (s.r_tried**2 + 6 * s.r_tried * s.p)
    solves = s.n_search_folds * s.n_alphas * s.r_tried**3 / 3
    rows = block_rows(s.r_tried)
    return StageCost(
        stage="search",
        flops=s.n_tried * (products + solves),
        read_bytes=s.rows_bytes + s.n_tried * sample_bytes,
        written_bytes=sample_bytes,
        held_bytes=s.process_bytes
        + s.reading_bytes
        + max(2 * sample_bytes, 3 * 8 * s.n_clustered * s.p)
        + _selection_bytes(s, s.r_tried)
        + 8
        * (
            (2 * s.n_search_folds + 4) * s.r_tried**2
            + rows * (s.r_tried + 6 * s.p)
            + 2 * s.n_search_folds * s.n_alphas * s.K * s.r_tried
            + 3 * rows * s.n_alphas * s.K
            + 3 * s.r_tried * s.p
        ),
        n_tasks=s.n_tried,
        work={
            "moments_flops": s.n_tried * products,
            "activations": 2 * s.n_tried * s.n_sampled * s.r_tried,
            "solve_flops": s.n_tried * solves,
        },
        alone={"read_bytes": s.rows_bytes, "selected_rows": s.n},
    )


def _path(s: FitSizes) -> StageCost:
    n_tasks = 1 + (s.n_folds if s.n_folds > 1 else 0)
    spectrum = 4 * s.r**3 / 3 if s.r <= LARGEST_SPECTRUM else 0.0
    solves = n_tasks * s.n_alphas * s.r**3 / 3 + spectrum
    weights = 8 * s.n_alphas * s.K * s.r
    return StageCost(
        stage="path",
        flops=solves,
        read_bytes=8 * s.r**2 * n_tasks,
        written_bytes=weights * n_tasks,
        held_bytes=s.process_bytes + solve_bytes(s.r, s.K) + 4 * s.r**2 + 2 * weights,
        n_tasks=n_tasks,
        work={"solve_flops": solves, "scratch_bytes": n_tasks * (8 * s.r**2 + weights)},
    )


def _validation(s: FitSizes) -> StageCost:
    rows, scores = block_rows(s.r), s.n_alphas * s.K
    flops = 2 * s.n_judged * s.r * (s.p + scores)
    read = s.n_judged * s.p * s.itemsize
    return StageCost(
        stage="validation",
        flops=flops,
        read_bytes=read,
        held_bytes=s.process_bytes
        + s.judged_reading_bytes
        + 8
        * (
            rows * s.r
            + 4 * s.r * s.p
            + 6 * rows * s.p
            + 2 * s.n_folds * scores * s.r
            + 6 * rows * scores
        ),
        n_tasks=s.n_judged_parts,
        work={
            "read_bytes": read,
            "moments_flops": flops,
            "activations": s.n_judged * (s.r + len(INVERSE_TEMPERATURES) * scores),
        },
    )


def _weights(s: FitSizes) -> StageCost:
    solves = 0.0 if s.n_alphas else s.r**3 / 3
    return StageCost(
        stage="weights",
        flops=solves,
        read_bytes=4 * s.r**2,
        written_bytes=8 * s.K * s.r,
        held_bytes=s.process_bytes + solve_bytes(s.r, s.K) + 2 * 8 * s.n_alphas * s.K * s.r,
        alone={"solve_flops": solves, "scratch_bytes": 4 * s.r**2},
    )


def solve_bytes(n_basis: int, n_classes: int) -> int:
    """Return the bytes that a solve holds: packed and full gram, penalized, factor."""
    return 8 * (packed_size(n_basis) + 4 * n_basis**2 + 4 * n_basis * n_classes)


def _model(s: FitSizes) -> StageCost:
    n_bytes = 8 * s.r * (s.p + s.K)
    return StageCost(
        stage="model",
        read_bytes=n_bytes,
        written_bytes=n_bytes,
        held_bytes=s.process_bytes + 4 * n_bytes,
        alone={"scratch_bytes": 2 * n_bytes},
    )


_COSTS: Mapping[str, Callable[[FitSizes], StageCost]] = {
    "columns": _columns,
    "neighbors": _neighbors,
    "recall": _recall,
    "confidence": _confidence,
    "search": _search,
    "basis": _basis,
    "width": _width,
    "moments": _moments,
    "path": _path,
    "validation": _validation,
    "weights": _weights,
    "model": _model,
}
