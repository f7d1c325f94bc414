"""Blocks of rows with their weights and folds, for passes over the rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.folds import FoldedBlock, fold_block, folds_of_rows
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.params import FitParams
from dask_nrbfn.storage.dataset import Dataset, LabelledBlock

# This weight, times a distance whose square fits float64, times a million basis rows, is 1e308.
_MOST_WEIGHT = 1e148

# With a smaller total weight, products of activations lose their last bits.
_LEAST_WEIGHT = 1e-290


def check_total_weight(total: float, *, whole: bool = False) -> None:
    """Check that a total weight, `whole` if of all rows, suits sums of products in float64."""
    if not total <= _MOST_WEIGHT:
        fault, allowed = "overflows", f"at most {_MOST_WEIGHT:g}"
    elif whole and total < _LEAST_WEIGHT:
        fault, allowed = "underflows", f"at least {_LEAST_WEIGHT:g}"
    else:
        return
    raise DataError(
        f"the weights of the rows sum to {total:.3g}, which {fault} float64 in sums of products.",
        f"Divide all weights by the largest weight; the sum of the weights must be {allowed}.",
    )


@dataclass(frozen=True, eq=False)
class RowWeights:
    """Class weights (K,), which are multiplied by the sample weights of rows; None: all are 1."""

    of_classes: Floats | None

    @classmethod
    def of(cls, dataset: Dataset, params: FitParams) -> Self:
        """Return the class weights that a fit uses for a dataset.

        "balanced" weights are ``n / (K n_c)``, as in scikit-learn: n rows have labels, n_c of these
        rows are of class c, and K classes have rows.
        """
        if params.class_weight is None:
            return cls(None)
        counts = dataset.class_counts
        n_present = np.count_nonzero(counts)
        return cls(np.where(counts > 0, counts.sum() / (n_present * np.maximum(counts, 1)), 1.0))

    def to_list(self) -> list[float] | None:
        """Return the class weights as a list for JSON; None if all are 1."""
        return None if self.of_classes is None else self.of_classes.tolist()

    def of_rows(self, codes: NDArray[Any], weights: Floats | None) -> Floats | None:
        """Return the weight of each row by class code, -1 without a label; None if all weigh 1."""
        if self.of_classes is None:
            return weights
        of_class: Floats = np.append(self.of_classes, 1.0)[codes]
        return of_class if weights is None else of_class * weights


@dataclass(frozen=True, eq=False, kw_only=True)
class RowReading:
    """How a pass reads labelled rows; `codes_in_model` has new codes of classes, or is None."""

    block_rows: int
    weighting: RowWeights
    n_folds: int = 1
    # At least `n_folds`; the last fold has the rows of all further ones.
    n_drawn_folds: int = 1
    seed: int = 0
    codes_in_model: Sequence[int] | None = None


def folded_blocks(
    dataset: Dataset, start: int, stop: int, reading: RowReading
) -> Iterator[FoldedBlock]:
    """Yield rows in blocks, each sorted by fold; reading begins at once."""
    size, n_folds, n_drawn = reading.block_rows, reading.n_folds, reading.n_drawn_folds
    blocks = dataset.blocks(start, stop, size)

    def fold(first: int, block: LabelledBlock) -> FoldedBlock:
        X, targets, sample_weights = block
        if targets is None:
            # Without targets, all rows are in one group.
            targets = np.zeros(X.shape[0], dtype=np.int64)
        weights = reading.weighting.of_rows(targets, sample_weights)
        if weights is not None:
            with np.errstate(over="ignore"):
                check_total_weight(float(weights.sum()))
        if reading.codes_in_model is not None:
            targets = np.asarray(reading.codes_in_model)[targets]
        folds = folds_of_rows(first, first + X.shape[0], n_folds=n_drawn, seed=reading.seed)
        folds = np.minimum(folds, n_folds - 1)
        return fold_block(X, targets, weights, folds, n_folds=n_folds)._replace(start=first)

    return map(fold, range(start, stop, size), blocks)
