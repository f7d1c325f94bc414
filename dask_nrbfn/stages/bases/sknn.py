"""Rows of low soft-kNN confidence, near the border of classes (hu-nrbfn, Algorithm 1)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.neighbors.exact import exact_neighbors
from dask_nrbfn.numeric.confidence import RowPool, choose_basis, even_below, soft_confidence
from dask_nrbfn.numeric.rows import is_sparse
from dask_nrbfn.numeric.threads import blas_threads
from dask_nrbfn.params import FitParams
from dask_nrbfn.stages.bases import (
    MOST_SCORED,
    BasisSource,
    Chosen,
    SampledRows,
    pool_of,
    rows_by_confidence,
)
from dask_nrbfn.stages.confidence import name_rows
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run

# If a rare class lies apart, a few of its rows have a low confidence, but no rows of the other
# class. A basis without rows of the other class had a recall of 0.1 for 15 rare rows of 1,500, with
# such rows 0.7 to 0.9, like logistic regression.
_LEAST_FOUND, _RARER = 100, 10


def _least_found(n_rows: int, class_counts: NDArray[np.int64]) -> int:
    """Return the minimum number of basis rows of a fit without `basis_size`.

    The smaller of 100 and a tenth of the rows if a class is ten times as frequent as another; or 0.
    """
    present = class_counts[class_counts > 0]
    is_rare = present.max(initial=0) >= _RARER * present.min(initial=n_rows)
    return min(_LEAST_FOUND, n_rows // 10) if is_rare else 0


def _choose(run: Run, dataset: Dataset, size: int, rule: str) -> Chosen:
    """Return a basis of `size` rows, drawn below the threshold if the fit has no `basis_size`."""
    rule = "uniform" if run.chosen_params.basis_size is None else rule
    ordered = rows_by_confidence(run.of_labelled(), rule)
    pool = pool_of(ordered, size=size, n_classes=dataset.n_classes)
    return _chosen(run, dataset, choose_basis(pool, size=size, n_classes=dataset.n_classes))


def _choose_all(run: Run, dataset: Dataset, most: int) -> Chosen:
    """Return the rows below the threshold, and the next rows if too few are below."""
    # One row more than the maximum shows whether the limit reduces the basis: duplicates, and rows
    # of classes without a row below the threshold, leave no other way.
    threshold, n_classes = run.chosen_params.confidence_threshold, dataset.n_classes
    rule = run.chosen_params.basis_rule
    ordered = rows_by_confidence(run.of_labelled(), rule)
    pool = pool_of(ordered, size=most + 1, n_classes=n_classes)
    basis = choose_basis(pool, size=most + 1, n_classes=n_classes, threshold=threshold)
    capped = len(basis) > most
    if capped:
        basis = choose_basis(pool, size=most, n_classes=n_classes, threshold=threshold)
    if len(basis) < (least := min(most, _least_found(dataset.n_rows, dataset.class_counts))):
        basis = choose_basis(pool, size=max(least, n_classes), n_classes=n_classes)
    return _chosen(run, dataset, basis, capped=capped)


def _chosen(run: Run, dataset: Dataset, basis: RowPool, *, capped: bool = False) -> Chosen:
    n_beyond = int(np.count_nonzero(basis.priority >= run.chosen_params.confidence_threshold))
    rows = name_rows(run, basis.rows)
    return Chosen(dataset.take(rows), rows, n_beyond, capped)


def _sampled(rows: SampledRows, asked: Sequence[tuple[int, str]]) -> list[Chosen]:
    """Return bases by the confidence of the sampled rows among themselves.

    Without a `basis_size`, with at most the estimated number of rows of the whole dataset.
    """
    rows = rows.first(MOST_SCORED)
    scaled, n_rows, threads = rows.scaled, rows.X.shape[0], blas_threads()
    if not is_sparse(scaled):
        scaled = np.asarray(scaled - scaled.mean(axis=0), dtype=np.float32)
    n_neighbors, threshold = rows.params.n_neighbors, rows.params.confidence_threshold
    found = exact_neighbors(
        scaled, np.arange(n_rows), n_neighbors=min(n_neighbors, n_rows - 1), threads=threads
    )
    confidence = soft_confidence(
        found.distances,
        rows.codes[found.indices] == rows.codes[:, None],
        width=float(found.distances.mean()),
    )
    even = even_below(confidence, threshold=threshold)
    if rows.params.basis_size is None:
        below = np.count_nonzero(confidence < threshold) / len(confidence)
        counts = np.bincount(rows.codes[rows.codes >= 0])
        n_below = max(_least_found(rows.n_all, counts), round(below * rows.n_all))
        most = max(rows.n_classes, n_below)
        return [rows.best(even, min(size, most)) for size, _ in asked]
    return [rows.best(even if rule == "uniform" else confidence, size) for size, rule in asked]


def _described(params: FitParams, capped: bool, filled: bool) -> str:
    if params.basis_size is None and not capped:
        next_ones = ", and the next ones" if filled else ""
        return f"all below confidence {params.confidence_threshold:g}{next_ones}"
    if params.basis_rule == "uniform" and not filled:
        return f"a draw below confidence {params.confidence_threshold:g}"
    return "the least confident"


SOURCE = BasisSource(
    choose=_choose,
    sampled=_sampled,
    choose_all=_choose_all,
    described=_described,
    by_confidence=True,
)
