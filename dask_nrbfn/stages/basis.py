"""Stage "basis": the choice of the basis rows or centres."""

import hashlib
import logging
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.folds import places_among
from dask_nrbfn.params import GIVEN_PREFIX, FitParams
from dask_nrbfn.parts import run_task
from dask_nrbfn.stages.bases import (
    MOST_FOUND,
    asked_size,
    check_distinct,
    names_search_of_all,
    pool_bytes,
    source_of,
)
from dask_nrbfn.stages.confidence import CONFIDENCE
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.neighbor_search import searched_rows
from dask_nrbfn.stages.sizes import FitSizes
from dask_nrbfn.stages.stage import Stage, StageCost, StageJob
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

# Seconds in which a row is sorted among the rows from which the basis is chosen.
_SELECTION_S = 4e-7


@dataclass(frozen=True)
class BasisRecord:
    """The number of basis rows; that of rows of low confidence, if the basis needs confidences.

    cap: the limit by memory or `MOST_FOUND`, if the limit reduced the basis.
    """

    n_basis: int
    n_below_threshold: int | None = None
    cap: int | None = None


def _compute(job: StageJob) -> BasisRecord:
    """Choose and store the basis rows."""
    run, dataset = job.run, job.dataset
    cap = None
    if asked_size(run.chosen_params, dataset) is None:
        # A run that is resumed with more or less memory keeps its first limit.
        most = max(min(job.largest_basis, MOST_FOUND), dataset.n_classes)
        cap = run.decide("basis", {"cap": most})["cap"]
    chosen = run_task(job.engine, _choose_basis, run, dataset, cap, label="basis")
    by_confidence = source_of(run.chosen_params).by_confidence
    record = BasisRecord(
        chosen["n_basis"],
        CONFIDENCE.recorded(run).n_below_threshold if by_confidence else None,
        cap if chosen["capped"] else None,
    )
    if record.cap is not None:
        _warn_capped(job, record)
    _log_choice(run, record, chosen["n_beyond_threshold"])
    return record


def _warn_capped(job: StageJob, record: BasisRecord) -> None:
    """Log how many rows are left out."""
    params, cap, n_below = job.run.chosen_params, record.cap, record.n_below_threshold
    assert cap is not None
    assert n_below is not None
    by_memory = cap < MOST_FOUND
    logger.warning(
        "basis: %d %ss are below the threshold %g, but %s %d basis rows: %s are chosen. Give a "
        "basis size%s to choose another number.",
        n_below,
        _searched(job.run),
        params.confidence_threshold,
        "the memory allows only" if by_memory else "a fit without a basis size has at most",
        cap,
        "drawn ones" if params.basis_rule == "uniform" else "the least confident ones",
        " or more memory" if by_memory else "",
    )


def _searched(run: Run) -> str:
    return "row" if searched_rows(run) is None else "candidate"


def _log_choice(run: Run, record: BasisRecord, n_beyond: int) -> None:
    threshold = run.chosen_params.confidence_threshold
    uniform = run.chosen_params.basis_rule == "uniform"
    logger.info("basis: %d of %d rows", record.n_basis, run.n_rows)
    if uniform and n_beyond:
        logger.info(
            "basis: %d %ss are below the threshold %g; %d basis rows are not, because too few "
            "distinct rows, or no rows of a class, are below",
            record.n_below_threshold,
            _searched(run),
            threshold,
            n_beyond,
        )


def _choose_basis(run: Run, dataset: Dataset, cap: int | None) -> dict[str, Any]:
    """Choose and store the basis rows, at most `cap` if the fit has no `basis_size`."""
    params, source = run.chosen_params, source_of(run.chosen_params)
    size = asked_size(params, dataset)
    if size is not None:
        basis = source.choose(run, dataset, size, params.basis_rule)
    else:
        assert source.choose_all is not None
        assert cap is not None
        basis = source.choose_all(run, dataset, cap)
    n_basis = len(basis.rows)
    check_distinct(run, n_basis)
    group = run.group("basis")
    write_array(group, "rows", basis.rows, "basis")
    write_array(group, "values", basis.values, "basis", "feature")
    if dataset.n_unlabelled:
        places = places_among(dataset.labelled_rows(), basis.rows)
        write_array(group, "labelled", places, "basis")
    return {
        "n_basis": n_basis,
        "n_beyond_threshold": basis.n_beyond,
        "capped": basis.capped,
    }


def read_labelled_rows(run: Run) -> NDArray[np.int64]:
    """Return the place of each basis row among the labelled rows, or -1, int64 (r,)."""
    return run.read("basis/labelled" if run.has("basis/labelled") else "basis/rows")


def _cost(s: FitSizes) -> StageCost:
    # Centres are arrays; k-means holds a few copies.
    chosen = round(s.r * s.block_row_bytes) if s.draws else 8 * s.r * s.p
    return StageCost(
        shared_s=_SELECTION_S * s.n,
        read_bytes=16 * s.n + s.rows_bytes,
        written_bytes=chosen,
        held_bytes=s.reader_bytes
        + pool_bytes(s.n, s.K, s.r, s.n_basis_sample)
        + 2 * 8 * s.n_labelled
        + (2 if s.draws else 6) * chosen
        + 3 * 8 * s.n_basis_sample * s.width,
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


def _check(context: FitContext) -> None:
    """Raise ParameterError if the rows do not allow this basis."""
    _check_candidates(context)
    params, dataset = context.needing_confidence, context.dataset
    if context.basis is not None or params.basis_is_given:
        _check_given(context)
    elif params.basis_size is not None:
        by_confidence = source_of(params).by_confidence
        most = dataset.of_labelled().n_rows if by_confidence else dataset.n_rows
        least = max(dataset.n_classes, 1)
        if not least <= params.basis_size <= most:
            reason = "; each class needs a basis row" if dataset.n_classes else ""
            raise ParameterError(
                f"`basis_size` is {params.basis_size}.",
                f"Set `basis_size` to a number from {least} to {most}{reason}.",
            )


def _check_candidates(context: FitContext) -> None:
    params, named = context.needing_confidence, context.basis_option
    asked, n_classes = params.candidates, context.dataset.n_classes
    if asked != "auto" and not source_of(params).by_confidence:
        raise ParameterError(
            f"`candidates` is {asked}, but `{named}`={params.basis} does not use confidences.",
            f"Leave `candidates` out, or give `{named}`=sknn.",
        )
    if isinstance(asked, int) and names_search_of_all(params):
        raise ParameterError(
            f"`candidates` is {asked}, but `neighbors` or `n_partitions` name a search of all "
            "rows.",
            "Leave `candidates` out, or both `neighbors` and `n_partitions`.",
        )
    least = max(params.basis_size or 0, n_classes)
    if isinstance(asked, int) and asked < least:
        raise ParameterError(
            f"`candidates` is {asked}, but the basis has at least {least} rows.",
            f"Set `candidates` to all, or to at least {least}.",
        )


def _check_given(context: FitContext) -> None:
    if context.basis is None:
        raise ParameterError("the basis rows are missing.", "Pass the basis rows as `basis`.")
    basis, n_features = np.asarray(context.basis), context.dataset.n_features
    if given_basis(context.params, basis) != context.params:
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
    record=BasisRecord,
    compute=_compute,
    cost=_cost,
    check=_check,
    needs=("given/values", "columns", "metric/root", "neighbors/rows", "confidence"),
    leaves=lambda run: ("basis/rows", "basis/values"),
    passes=("basis/labelled",),
)
