"""Stage "basis": which rows become the basis, or which centres."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import MiniBatchKMeans

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.confidence import (
    Candidates,
    choose_basis,
    even_below,
    keep_best,
)
from dask_nrbfn.numeric.hashing import hash_rows
from dask_nrbfn.stages.columns import read_scaling
from dask_nrbfn.stages.confidence import CONFIDENCE
from dask_nrbfn.stages.parts import narrow_block_rows, run_tasks
from dask_nrbfn.stages.sizes import FitSizes, clustered_rows
from dask_nrbfn.stages.stage import Stage, StageCost, StageJob
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

# Rows that enter the selection at once, 28 MB while they are sorted. With fewer, sorting the pool,
# some ten thousand rows, again and again would take longer than sorting the rows.
_SELECTION_ROWS = 2**18

# A block of rows while the selection sorts it.
_SELECTION_BYTES = 64 * 2**20

# Rows of one step of k-means.
_BATCH_ROWS = 4096


@dataclass(frozen=True)
class BasisRecord:
    """How many rows were chosen.

    Attributes
    ----------
    n_basis : int
    n_below_threshold : int or None
        Rows of low confidence; None for a basis that does not ask for it.
    cap : int or None
        The most that the memory allows, if that kept rows out.
    """

    n_basis: int
    n_below_threshold: int | None = None
    cap: int | None = None


def _compute(job: StageJob) -> BasisRecord:
    """Choose and store the basis rows.

    Raises
    ------
    ParameterError
        If `basis_size` is more than the number of distinct rows.
    """
    run, dataset = job.run, job.dataset
    params, cap = run.params, None
    if params.basis == "sknn" and params.basis_size is None:
        # Taken up again with other memory, a run keeps to the basis that it began with.
        most = max(job.largest_basis(), dataset.n_classes)
        cap = run.decide("basis", {"cap": most})["cap"]
    arguments = [(run.location, dataset.location, cap)]
    (chosen,) = run_tasks(job.engine, _choose_basis, arguments, label="basis")
    record = BasisRecord(
        chosen["n_basis"],
        CONFIDENCE.recorded(run).n_below_threshold if params.basis == "sknn" else None,
        cap if chosen["capped"] else None,
    )
    _log_choice(run, record, chosen["n_beyond_threshold"])
    return record


def _log_choice(run: Run, record: BasisRecord, n_beyond: int) -> None:
    params, threshold = run.params, run.params.confidence_threshold
    uniform = params.basis == "sknn" and params.basis_rule == "uniform"
    logger.info("basis: %d of %d rows", record.n_basis, run.n_rows)
    if record.cap is not None:
        logger.warning(
            "basis: %d rows are below the threshold %g; the memory at hand allows %d, %s are "
            "taken. Give a basis size or more memory to decide yourself.",
            record.n_below_threshold,
            threshold,
            record.cap,
            "a draw of them" if uniform else "the least confident of them",
        )
    if uniform and n_beyond:
        logger.info(
            "basis: %d rows are below the threshold %g; %d of the basis are beyond it, because "
            "too few distinct ones, or none of a class, are below",
            record.n_below_threshold,
            threshold,
            n_beyond,
        )


class SmallBasis(NamedTuple):
    """Row numbers (r,), -1 for those of no row, and values (r, p)."""

    rows: NDArray[np.int64]
    values: NDArray[Any]


def small_basis(run: Run, dataset: Dataset, *, size: int, rule: str) -> SmallBasis:
    """Return about `size` basis rows as the run's parameters choose them.

    Where all rows below the threshold form the basis, those are drawn from them.
    """
    params = run.params
    if params.basis_is_given:
        given = run.read("given/values")
        values = given[np.random.default_rng(params.random_state).permutation(len(given))[:size]]
        return SmallBasis(np.full(len(values), -1), values)
    if params.basis == "kmeans":
        return SmallBasis(np.full(size, -1), _centres(run, dataset, size))
    pool = _candidates(run, dataset, size, "uniform" if params.basis_size is None else rule)
    rows = choose_basis(pool, size=size, n_classes=_n_classes(dataset)).rows
    return SmallBasis(rows, dataset.take(rows))


def _choose_basis(
    run_location: Location, dataset_location: Location, cap: int | None
) -> dict[str, Any]:
    """Choose and store `basis_size` rows, or those below the threshold, at most `cap`."""
    run, dataset = Run.open(run_location), Dataset.open(dataset_location)
    params, n_beyond, capped = run.params, 0, False
    if params.basis_is_given or params.basis == "kmeans":
        given = params.basis_is_given
        values = run.read("given/values") if given else _centres(run, dataset, params.basis_size)
        # They are no rows of the dataset.
        rows = np.full(len(values), -1)
    else:
        basis, capped = _sized(run, dataset) if cap is None else _below_threshold(run, dataset, cap)
        rows, values = basis.rows, dataset.take(basis.rows)
        n_beyond = int(np.count_nonzero(basis.priority >= params.confidence_threshold))
    group = run.group("basis")
    write_array(group, "rows", rows, "basis")
    write_array(group, "values", values, "basis", "feature")
    return {"n_basis": len(rows), "n_beyond_threshold": n_beyond, "capped": capped}


def _centres(run: Run, dataset: Dataset, size: int | None) -> NDArray[np.float64]:
    """Return the centres of k-means clusters of a sample, float64 (size, p), not scaled.

    The sample is drawn and ordered by the rows' hash: it does not depend on their order.

    Raises
    ------
    ParameterError
        If there are fewer distinct rows.
    """
    assert size is not None
    most = clustered_rows(dataset, size)
    pool = _candidates(run, dataset, most, run.params.basis_rule)
    if pool.n_distinct < size:
        raise _too_few_distinct(size, pool)
    # Rows are read in their order and clustered in that of their hashes.
    rows = pool.rows[np.argsort(pool.tiebreak)][:most]
    by_number = np.argsort(rows)
    scaling = read_scaling(run)
    scaled = scaling.apply(dataset.take(rows[by_number]))[np.argsort(by_number)]
    means = MiniBatchKMeans(
        n_clusters=size, batch_size=_BATCH_ROWS, n_init=1, random_state=run.params.random_state
    ).fit(scaled)
    return scaling.restore(means.cluster_centers_)


def _sized(run: Run, dataset: Dataset) -> tuple[Candidates, bool]:
    size = run.params.basis_size
    assert size is not None
    pool = _candidates(run, dataset, size, run.params.basis_rule)
    if pool.n_distinct < size:
        raise _too_few_distinct(size, pool)
    return choose_basis(pool, size=size, n_classes=_n_classes(dataset)), False


def _too_few_distinct(size: int, pool: Candidates) -> ParameterError:
    return ParameterError(
        f"`basis_size` is {size}, X has {pool.n_distinct} distinct rows.",
        f"Give `basis_size` of at most {pool.n_distinct}; equal rows enter the basis once.",
    )


def _below_threshold(run: Run, dataset: Dataset, cap: int) -> tuple[Candidates, bool]:
    """Return the rows below the threshold, and whether `cap` keeps some of them out."""
    # One more than the cap, because duplicates and the rows of classes that have none below leave
    # no other way to know whether it bites.
    pool, n_classes = _candidates(run, dataset, cap + 1, run.params.basis_rule), dataset.n_classes
    threshold = run.params.confidence_threshold
    basis = choose_basis(pool, size=cap + 1, n_classes=n_classes, threshold=threshold)
    if len(basis) <= cap:
        return basis, False
    return choose_basis(pool, size=cap, n_classes=n_classes, threshold=threshold), True


def _candidates(run: Run, dataset: Dataset, size: int, rule: str) -> Candidates:
    """Return the candidates for `size` basis rows, in one pass over all rows."""
    by_confidence = run.params.basis == "sknn"
    blocks = _all_by_confidence(run, rule) if by_confidence else _all_alike(run, dataset)
    pool = Candidates.none()
    for block in blocks:
        pool = keep_best(pool, block, size=size, n_classes=_n_classes(dataset))
    return pool


def _all_by_confidence(run: Run, rule: str) -> Iterator[Candidates]:
    codes, threshold = run.read("confidence/codes"), run.params.confidence_threshold
    step = run.chunk_rows * max(1, _SELECTION_ROWS // run.chunk_rows)
    for start in range(0, run.n_rows, step):
        stop = min(start + step, run.n_rows)
        priority = run.read("confidence/values", start, stop)
        if rule == "uniform":
            priority = even_below(priority, threshold=threshold)
        tiebreak = run.read("confidence/tiebreak", start, stop)
        yield Candidates(priority, tiebreak, codes[start:stop], np.arange(start, stop))


def _all_alike(run: Run, dataset: Dataset) -> Iterator[Candidates]:
    """Yield rows of one priority: the hash of their values decides."""
    start, seed = 0, run.params.random_state
    for X, codes, _ in dataset.blocks(0, run.n_rows, narrow_block_rows(dataset.n_features)):
        if codes is None or dataset.target_names is not None:
            codes = np.zeros(len(X), dtype=np.int64)
        rows = np.arange(start, start + len(X))
        yield Candidates(np.zeros(len(X)), hash_rows(X, seed=seed), codes, rows)
        start += len(X)


def _n_classes(dataset: Dataset) -> int:
    """Return of how many classes rows are chosen; rows with numbers as targets are all alike."""
    return max(dataset.n_classes, 1)


def _cost(s: FitSizes) -> StageCost:
    return StageCost(
        read_bytes=16 * s.n + s.rows_bytes,
        written_bytes=8 * s.r * s.p,
        held_bytes=s.process_bytes
        + s.reading_bytes
        + selection_bytes(s, s.r)
        + 2 * s.r * s.p * s.itemsize
        + 3 * 8 * s.n_clustered * s.p,
        alone={"read_bytes": s.rows_bytes, "scratch_bytes": 16 * s.n, "selected_rows": s.n},
    )


def selection_bytes(s: FitSizes, n_basis: int) -> int:
    """Return the bytes of choosing rows: the codes of all, the candidates, and a block of rows."""
    pool = min(s.n, n_basis + s.n_clustered + s.K**2)
    return s.n * (1 if s.K <= 256 else 4) + _SELECTION_BYTES + 128 * pool


BASIS = Stage(name="basis", record=BasisRecord, compute=_compute, cost=_cost)
