"""Stages "confidence" and "basis": the confidence of rows, and the choice of the basis rows."""

import hashlib
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_nrbfn.errors import ParameterError, plural
from dask_nrbfn.neighbors.exact import exact_neighbors
from dask_nrbfn.numeric.confidence import (
    LEAST_OF_CLASS,
    RowPool,
    choose_basis,
    draw,
    even_below,
    soft_confidence,
)
from dask_nrbfn.numeric.folds import places_among
from dask_nrbfn.numeric.hashing import hash_rows
from dask_nrbfn.numeric.rows import Rows, dense, is_csr, mean_stored_values
from dask_nrbfn.numeric.scaling import Scaling
from dask_nrbfn.numeric.threads import n_threads
from dask_nrbfn.params import GIVEN_PREFIX, N_DRAWN, FitParams
from dask_nrbfn.parts import PartResult, map_parts, run_task
from dask_nrbfn.sources.source import Block, recut
from dask_nrbfn.stages import bases
from dask_nrbfn.stages.bases import BasisSource, Chosen, SampledRows, source_of, with_neighbors
from dask_nrbfn.stages.columns import read_scaling
from dask_nrbfn.stages.context import FitContext, FitSizes
from dask_nrbfn.stages.cost import StageCost
from dask_nrbfn.stages.neighbors import DISTANCES, INDICES, NEIGHBORS
from dask_nrbfn.stages.stage import Stage, StageJob, StageRecord
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import narrow_block_rows
from dask_nrbfn.storage.run import Run, RunArray

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ConfidenceRecord(StageRecord):
    """The number of searched rows with a confidence below the threshold."""

    n_below_threshold: int


# Of each searched row; the codes and row numbers are of all labelled rows or candidates.
CONFIDENCES = RunArray("confidence/values", ("row",), "confidence of each searched row")
TIEBREAKS = RunArray(
    "confidence/tiebreak", ("row",), "hash of the values of each searched row", verified=False
)
CODES = RunArray("confidence/codes", ("row",), "class code of each labelled row", verified=False)
ROW_NUMBERS = RunArray(
    "confidence/rows", ("row",), "row number of each searched row, if not all", verified=False
)


def _store_confidence(job: StageJob) -> ConfidenceRecord:
    """Store the confidence of every row or candidate; return how many are below the threshold."""
    run = with_neighbors(job.run)
    run.require_row_array(CONFIDENCES.name, np.float64)
    run.require_row_array(TIEBREAKS.name, np.uint64)
    if not CODES.is_in(run):
        run_task(job.engine, _write_codes, run, job.dataset, label="confidence")
    parts = map_parts(run, job.dataset, job.engine, stage="confidence", task=_confidence_part)
    return ConfidenceRecord(n_below_threshold=sum(part["n_below_threshold"] for part in parts))


def _write_codes(run: Run, dataset: Dataset) -> None:
    """Store the class code of every row in one or two bytes, because each part reads all codes."""
    rows = bases.searched_rows(run)
    if dataset.labelled_only:
        labelled = replace(dataset, labelled_only=False).labelled_rows()
        rows = labelled if rows is None else labelled[rows]
    if rows is not None:
        ROW_NUMBERS.write(run, rows)
    CODES.write(run, dataset.codes())


def name_rows(run: Run, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the dataset row numbers of places among the rows that have a confidence."""
    if bases.has_candidates(run) or ROW_NUMBERS.is_in(run):
        return ROW_NUMBERS.read(run)[places]
    return places


def codes_of_places(run: Run, places: NDArray[np.int64] | slice) -> NDArray[np.integer[Any]]:
    """Return the class codes of places among the rows that have a confidence."""
    rows = bases.searched_rows(run)
    codes: NDArray[np.integer[Any]] = CODES.read(run)
    return codes[places if rows is None else rows[places]]


def _confidence_part(run: Run, dataset: Dataset, start: int, stop: int) -> PartResult:
    run, params = with_neighbors(run), run.spec.params
    codes, rows = CODES.read(run), bases.searched_rows(run)
    own = codes if rows is None else codes[rows]
    width, threshold = NEIGHBORS.recorded(run).mean_distance, params.threshold
    hashes_of_blocks: Iterable[NDArray[np.uint64]]
    if rows is None:
        blocks = dataset.blocks(start, stop, narrow_block_rows(dataset.row_width))
        hashes_of_blocks = (hash_rows(X, seed=params.random_state) for X, *_ in blocks)
    else:
        hashes_of_blocks = [bases.CANDIDATE_HASHES.read(run, start, stop)]
    # Several chunks are read and written at a time.
    size = bases.search_block_rows(run.layout.chunk_rows, dataset.row_width, params)
    n_below = 0
    for hashes, *_ in recut((Block(hashes, None) for hashes in hashes_of_blocks), size):
        last = start + len(hashes)
        same = codes[INDICES.read(run, start, last)] == own[start:last, None]
        distances = DISTANCES.read(run, start, last)
        confidence = soft_confidence(distances, same, width=width)
        run.write_rows(CONFIDENCES.name, start, confidence)
        run.write_rows(TIEBREAKS.name, start, hashes)
        n_below += int(np.count_nonzero(confidence < threshold))
        start = last
    return PartResult({"n_below_threshold": n_below})


def _confidence_cost(s: FitSizes) -> StageCost:
    n_searched = s.search.n_candidates or s.n
    # A block of lists, and a block of rows while it is hashed.
    blocks = 4 * bases.LIST_BYTES * s.block_rows * s.k + 24 * narrow_block_rows(s.width) * s.width
    return StageCost(
        read_bytes=s.lists_bytes + s.rows_bytes,
        written_bytes=16 * n_searched,
        held_bytes=s.held(4 * s.n + blocks),
        n_tasks=-(-n_searched // s.layout.part_rows),
    )


CONFIDENCE = Stage(
    name="confidence",
    compute=_store_confidence,
    record=ConfidenceRecord,
    arrays=(CONFIDENCES, TIEBREAKS, CODES, ROW_NUMBERS),
    cost=_confidence_cost,
    labelled_only=True,
    wanted=lambda spec: spec.by_confidence,
    keeps_parts=True,
)


@dataclass(frozen=True, kw_only=True)
class BasisRecord(StageRecord):
    """The number of basis rows, and by confidence that of all rows below the threshold."""

    n_basis: int
    n_below_threshold: int | None = None
    # The limit that reduced the number of basis rows.
    cap: int | None = None


BASIS_ROWS = RunArray("basis/rows", ("basis",), "row number of each basis row; -1 of a centre")
BASIS_VALUES = RunArray("basis/values", ("basis", "feature"), "basis rows, not scaled")
BASIS_LABELLED = RunArray(
    "basis/labelled", ("basis",), "place of each basis row among the labelled rows", verified=False
)


def _store_basis(job: StageJob) -> BasisRecord:
    """Store the basis rows; return their number."""
    run, dataset = job.run, job.dataset
    params, most, n_below, cap = run.spec.params, None, None, None
    if bases.requested_size(params, dataset) is None:
        # A run that is resumed with more or less memory keeps its first limit.
        most = max(min(job.largest_basis(), bases.most_found(params)), dataset.n_classes)
        most = run.decide("basis", {"cap": most})["cap"]
    n_basis = run_task(job.engine, _choose_basis, run, dataset, most, label="basis")
    logger.info("basis: %d of %d rows", n_basis, run.n_rows)
    if source_of(params.basis).by_confidence:
        n_below = CONFIDENCE.recorded(run).n_below_threshold
        if most is not None and params.confidence_threshold is not None:
            _warn_of_rare_class(job)
        n_searched = with_neighbors(run).n_rows
        n_drawn = min(_n_drawn(params, n_searched, dataset.n_classes), n_searched - n_below)
        if most == n_basis < n_below + n_drawn:
            cap = most
            is_full = cap >= bases.most_found(params)
            limit = "without a size a basis has" if is_full else "the memory allows"
            logger.warning(
                "basis: %d rows are below the threshold %g and %d others are drawn, but %s at most "
                "%d basis rows. Give a basis size to choose another number.",
                n_below,
                params.threshold,
                n_drawn,
                limit,
                cap,
            )
    return BasisRecord(n_basis=n_basis, n_below_threshold=n_below, cap=cap)


def _warn_of_rare_class(job: StageJob) -> None:
    """Warn if a given threshold leaves a class with few basis rows, though the class has more."""
    rarest = run_task(job.engine, _rarest_below, job.run, job.dataset, label="basis")
    if rarest is not None:
        logger.warning(
            "basis: class %s has only %s below the threshold %g. Leave the threshold out to draw "
            "rows of every class too.",
            job.dataset.classes[rarest[0]],
            plural(rarest[1], "row"),
            job.run.spec.params.threshold,
        )


def _rarest_below(run: Run, dataset: Dataset) -> tuple[int, int] | None:
    """Return the code of a class with few of its rows below the threshold, and their number."""
    below, searched = np.zeros((2, dataset.n_classes), dtype=np.int64)
    for rows in _rows_by_confidence(run, "least-confident"):
        is_below = rows.priority < run.spec.params.threshold
        searched += np.bincount(rows.codes, minlength=dataset.n_classes)
        below += np.bincount(rows.codes[is_below], minlength=dataset.n_classes)
    lacking = np.flatnonzero(below < np.minimum(LEAST_OF_CLASS, searched))
    if not len(lacking):
        return None
    rarest = int(lacking[below[lacking].argmin()])
    return rarest, int(below[rarest])


def _choose_basis(run: Run, dataset: Dataset, most: int | None) -> int:
    """Store the basis rows, at most `most` if the fit has no `basis_size`; return their number."""
    params, source = run.spec.params, source_of(run.spec.params.basis)
    size = bases.requested_size(params, dataset)
    if size is not None:
        basis = source.choose(run, dataset, size, params.basis_rule)
    else:
        assert source.choose_all is not None
        assert most is not None
        basis = source.choose_all(run, dataset, most)
    bases.check_distinct(run, len(basis.rows))
    BASIS_ROWS.write(run, basis.rows)
    BASIS_VALUES.write(run, basis.values)
    if dataset.n_unlabelled:
        BASIS_LABELLED.write(run, places_among(dataset.labelled_rows(), basis.rows))
    return len(basis.rows)


def _basis_cost(s: FitSizes) -> StageCost:
    # Centres are arrays; k-means holds a few copies of them and of its sample.
    draws = all(source.draws for source in s.sources)
    chosen = round(s.r * s.block_row_bytes) if draws else 3 * 8 * s.r * s.p
    n_sampled = max(source.n_sampled(s.n, s.row_values, s.r) for source in s.sources)
    pool = bases.pool_bytes(s.n, s.K, s.r, n_sampled)
    return StageCost(
        read_bytes=16 * s.n + s.rows_bytes,
        written_bytes=chosen,
        held_bytes=s.held(pool + 2 * chosen + 3 * 8 * n_sampled * s.width),
    )


def given_basis(params: FitParams, basis: ArrayLike) -> FitParams:
    """Return `params` for a basis of given rows; pass these rows to the fit too.

    Parameters
    ----------
    params : FitParams
    basis : array-like (r, p)

    Returns
    -------
    FitParams
        With a digest of these rows as `basis`.

    Raises
    ------
    ParameterError
        If the rows are not finite numbers in two dimensions, or `basis_size` differs.
    """
    values = np.asarray(basis)
    if values.ndim != 2 or values.dtype.kind not in "iuf" or not np.isfinite(values).all():
        raise ParameterError(
            f"the basis has dtype {values.dtype} and shape {values.shape}.",
            "Give finite numbers in two dimensions, one row for each basis row.",
        )
    if params.basis_size not in (None, len(values)):
        raise ParameterError(
            f"`basis_size` is {params.basis_size}, but {len(values)} basis rows are given.",
            "Leave `basis_size` out.",
        )
    content = np.ascontiguousarray(values, dtype=np.float64)
    digest = hashlib.blake2b(repr(content.shape).encode() + content.tobytes(), digest_size=16)
    return replace(params, basis=GIVEN_PREFIX + digest.hexdigest(), basis_size=len(values))


def _check_basis(context: FitContext) -> None:
    """Raise ParameterError if the rows do not allow this basis."""
    _check_candidates(context)
    params, dataset = context.spec.params, context.dataset
    if context.basis is not None or params.basis_is_given:
        _check_given(context)
    elif params.basis_size is not None:
        most = dataset.of_labelled().n_rows if context.spec.by_confidence else dataset.n_rows
        least = max(dataset.n_classes, 1)
        if not least <= params.basis_size <= most:
            reason = "; each class needs a basis row" if dataset.n_classes else ""
            raise ParameterError(
                f"`basis_size` is {params.basis_size}.",
                f"Set `basis_size` to a number from {least} to {most}{reason}.",
            )


def _check_candidates(context: FitContext) -> None:
    params, size = context.spec.params, context.spec.params.candidates
    least = max(params.basis_size or 0, context.dataset.n_classes)
    problem = None
    if size != "auto" and not context.spec.by_confidence:
        problem, remedy = f"{context.basis_option} does not use confidences", "give a sknn basis"
    elif isinstance(size, int) and bases.names_search_of_all(params):
        problem = "`neighbors` or `n_partitions` name a search of all rows"
        remedy = "leave out both `neighbors` and `n_partitions`"
    elif isinstance(size, int) and size < least:
        problem, remedy = f"the basis has at least {least} rows", f"give at least {least}"
    if problem is not None:
        raise ParameterError(
            f"`candidates` is {size}, but {problem}.", f"Leave `candidates` out, or {remedy}."
        )


def _check_given(context: FitContext) -> None:
    if context.basis is None:
        raise ParameterError("the basis rows are missing.", "Pass the basis rows as `basis`.")
    basis, n_features = np.asarray(context.basis), context.dataset.n_features
    if given_basis(context.spec.params, basis) != context.spec.params:
        raise ParameterError(
            "params belong to other basis rows than the given ones.",
            "Pass given_basis(params, basis) as params.",
        )
    if basis.shape[1] != n_features:
        raise ParameterError(
            f"the basis rows have {basis.shape[1]} columns, but X has {n_features}.",
            "Give basis rows with the columns of X.",
        )


BASIS = Stage(
    name="basis",
    compute=_store_basis,
    record=BasisRecord,
    arrays=(BASIS_ROWS, BASIS_VALUES, BASIS_LABELLED),
    cost=_basis_cost,
    check=_check_basis,
    read_by_updates=True,
)


def _rows_by_hash(run: Run, dataset: Dataset) -> Iterator[RowPool]:
    """Yield all rows in blocks, with the hashes of their values as tiebreak."""
    start, seed = 0, run.spec.params.random_state
    for X, codes, _ in dataset.blocks(0, run.n_rows, narrow_block_rows(dataset.row_values)):
        if codes is None or dataset.of_numbers:
            codes = np.zeros(X.shape[0], dtype=np.int64)
        rows = np.arange(start, start + X.shape[0])
        yield RowPool(np.zeros(X.shape[0]), hash_rows(X, seed=seed), codes, rows)
        start += X.shape[0]


def _draw(run: Run, dataset: Dataset, size: int, rule: str) -> Chosen:
    n_classes = max(dataset.n_classes, 1)
    pool = bases.pool_of(_rows_by_hash(run, dataset), size=size, n_classes=n_classes)
    rows = choose_basis(pool, size=size, n_classes=n_classes).rows
    return Chosen(dataset.take(rows), rows)


# Rows drawn at random, at least one of every class.
RANDOM = BasisSource(
    choose=_draw,
    sampled=lambda rows, size: rows.best(np.zeros(rows.X.shape[0]), size),
)

# Rows of one step of k-means.
_BATCH_ROWS = 4096

# Up to so many centres begin far from each other (k-means++). For more that takes as long as all
# steps, and networks are no better than with drawn rows.
_MOST_DISTANT = 256

# Rows of the sample for each centre, and its most elements: 256 MiB of float64.
_ROWS_PER_CENTRE = 64
_SAMPLE_ELEMENTS = 2**25


def _find_centres(run: Run, dataset: Dataset, size: int, rule: str) -> Chosen:
    """Return the centres of k-means clusters of a sample, float64, not scaled."""
    n_sampled = _n_sampled(dataset.n_rows, dataset.row_values, size)
    n_classes = max(dataset.n_classes, 1)
    pool = bases.pool_of(_rows_by_hash(run, dataset), size=n_sampled, n_classes=n_classes)
    # Rows are read in row order and clustered by their hashes, so their order has no effect.
    order = np.argsort(pool.tiebreak)[:n_sampled]
    rows = pool.rows[order]
    by_number = np.argsort(rows)
    X = dataset.take(rows[by_number])[np.argsort(by_number)]
    return _centres(X, pool.tiebreak[order], read_scaling(run), size, run.spec.params.random_state)


def _centres_of_sample(rows: SampledRows, size: int) -> Chosen:
    hashes = rows.hashes
    order = np.argsort(hashes)[: _n_sampled(rows.X.shape[0], mean_stored_values(rows.X), size)]
    return _centres(rows.X[order], hashes[order], rows.scaling, size, rows.params.random_state)


def _centres(X: Rows, hashes: NDArray[np.uint64], scaling: Scaling, size: int, seed: int) -> Chosen:
    """Return at most `size` centres of rows that are in the order of their hashes."""
    import sklearn.metrics  # noqa: F401  first, as in `cluster_means`
    from sklearn.cluster import MiniBatchKMeans
    from threadpoolctl import ThreadpoolController

    rows = scaling.apply(X)
    firsts = np.flatnonzero(np.diff(hashes, prepend=~hashes[:1]))[:size]
    means = MiniBatchKMeans(
        n_clusters=len(firsts),
        init=dense(rows[firsts]) if len(firsts) > _MOST_DISTANT else "k-means++",
        n_init=1,
        batch_size=_BATCH_ROWS,
        # Centres of few rows stay: moved to drawn rows, they could be the same row.
        reassignment_ratio=0.0,
        random_state=seed,
    )
    # Sums over several threads differ in their last bits, which can end the iterations earlier.
    with ThreadpoolController().select(user_api="openmp").limit(limits=n_threads()):
        centres = means.fit(rows).cluster_centers_
    return Chosen.of_points(scaling.restore(np.asarray(centres, dtype=np.float64)))


def _n_sampled(n_rows: int, row_values: float, n_basis: int) -> int:
    most = min(_ROWS_PER_CENTRE * n_basis, int(_SAMPLE_ELEMENTS / max(row_values, 1.0)))
    return min(n_rows, max(n_basis, most))


KMEANS = BasisSource(
    choose=_find_centres,
    sampled=_centres_of_sample,
    draws=False,
    n_sampled=_n_sampled,
)


def _n_drawn(params: FitParams, n_rows: int, n_classes: int) -> int:
    """Return the most basis rows that a fit without threshold and size draws above it."""
    if params.confidence_threshold is not None:
        return 0
    return max(min(N_DRAWN, n_rows // 4), LEAST_OF_CLASS * n_classes)


def _rows_by_confidence(run: Run, rule: str) -> Iterator[RowPool]:
    """Yield the searched rows in blocks, with their confidence as the priority."""
    run, threshold = with_neighbors(run.of_labelled()), run.spec.params.threshold
    codes = codes_of_places(run, slice(None))
    step = run.layout.chunk_rows * max(1, bases.SELECTION_ROWS // run.layout.chunk_rows)
    for start in range(0, run.n_rows, step):
        stop = min(start + step, run.n_rows)
        priority = CONFIDENCES.read(run, start, stop)
        if rule == "uniform":
            priority = even_below(priority, threshold=threshold)
        tiebreak = TIEBREAKS.read(run, start, stop)
        yield RowPool(priority, tiebreak, codes[start:stop], np.arange(start, stop))


def _choose_unsure(run: Run, dataset: Dataset, size: int, rule: str) -> Chosen:
    """Return a basis of `size` rows."""
    pool = bases.pool_of(_rows_by_confidence(run, rule), size=size, n_classes=dataset.n_classes)
    places = choose_basis(pool, size=size, n_classes=dataset.n_classes).rows
    rows = name_rows(run, places)
    return Chosen(dataset.take(rows), rows)


def _choose_all_unsure(run: Run, dataset: Dataset, most: int) -> Chosen:
    """Return the rows below the threshold, and a draw of the others unless it is given."""
    params, n_classes = run.spec.params, dataset.n_classes
    n_below = CONFIDENCE.recorded(run).n_below_threshold
    # If the limit is low, both kinds of rows have at least half of the basis.
    n_drawn = min(
        _n_drawn(params, with_neighbors(run).n_rows, n_classes),
        max(most - n_classes - n_below, (most - n_classes) // 2),
    )
    above = _rows_above(run, params.threshold) if n_drawn else ()
    drawn = draw(bases.pool_of(above, size=n_drawn, n_classes=LEAST_OF_CLASS), size=n_drawn)
    size = most - len(drawn)
    blocks = _rows_by_confidence(run, params.basis_rule)
    pool = bases.pool_of(blocks, size=size, n_classes=n_classes)
    basis = choose_basis(pool, size=size, n_classes=n_classes, threshold=params.threshold)
    rows = name_rows(run, basis.joined_once(drawn).rows)
    return Chosen(dataset.take(rows), rows)


def _rows_above(run: Run, threshold: float) -> Iterator[RowPool]:
    """Yield the searched rows that are not below the threshold, in blocks, with equal priority."""
    for rows in _rows_by_confidence(run, "least-confident"):
        above = rows.take(np.flatnonzero(rows.priority >= threshold))
        yield replace(above, priority=np.zeros(len(above)))


def _unsure_of_sample(rows: SampledRows, size: int) -> Chosen:
    """Return a basis by the confidence of the sampled rows among themselves."""
    rows = rows.first(bases.MOST_SCORED)
    scaled, n_rows = rows.scaling.apply(rows.X), rows.X.shape[0]
    if not is_csr(scaled):
        scaled = scaled - scaled.mean(axis=0)
        # Single precision, unless the numbers are too large for it.
        scaled = scaled.astype(np.result_type("f4", np.min_scalar_type(np.abs(scaled).max())))
    k, threshold = min(rows.params.k, n_rows - 1), rows.params.threshold
    found = exact_neighbors(scaled, np.arange(n_rows), n_neighbors=k)
    own = rows.codes[found.indices] == rows.codes[:, None]
    confidence = soft_confidence(found.distances, own, width=float(found.distances.mean()))
    even = even_below(confidence, threshold=threshold)
    if rows.params.basis_size is None:
        # At most the estimated number of basis rows of the whole dataset.
        below = np.count_nonzero(confidence < threshold) / len(confidence)
        n_drawn = _n_drawn(rows.params, rows.n_all, rows.n_classes)
        most = max(rows.n_classes, round(below * rows.n_all) + n_drawn)
        return rows.best(even, min(size, most))
    return rows.best(even if rows.params.basis_rule == "uniform" else confidence, size)


# Rows of low soft-kNN confidence, near the border of classes (hu-nrbfn, Algorithm 1).
SKNN = BasisSource(
    choose=_choose_unsure,
    sampled=_unsure_of_sample,
    choose_all=_choose_all_unsure,
    by_confidence=True,
)
