"""How well predictions of dask collections do, block by block: only sums leave a block."""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any

import dask
import dask.array as da
import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.held_out import ResidualSums
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.sources.frames import plain_labels

Judge = Callable[[NDArray[Any], Any, Floats], Any]
"""Makes what adds over rows of predictions (b, ...), targets and weights (b,)."""


def accuracy(predicted: da.Array, y: Any, sample_weight: Any) -> float:
    """Return the share of rows, or of their weight, whose label (n,) was predicted."""
    hits, weight = reduce(add, _judged(_hits, predicted, y, sample_weight))
    return float(hits / weight)


def r2(predicted: da.Array, y: Any, sample_weight: Any, *, origin: Floats) -> float:
    """Return R^2 of predicted numbers (n,) or (n, q), on average over the targets.

    Squares are taken of what differs from `origin` (q,).
    """

    def residuals(predicted: NDArray[Any], y: Any, weights: Floats) -> ResidualSums:
        scores, targets = (
            np.asarray(values, dtype=np.float64).reshape(len(values), -1) - origin
            for values in (predicted, y)
        )
        return ResidualSums.from_block(scores[:, None], targets, weights)

    sums = reduce(add, _judged(residuals, predicted, y, sample_weight))
    return 1.0 - float(sums.figures(0)["relative_error"])


def _hits(predicted: NDArray[Any], y: Any, weights: Floats) -> Floats:
    hit = predicted == np.asarray(plain_labels(y))
    return np.array([weights @ hit, weights.sum()])


def _judged(judge: Judge, predicted: da.Array, y: Any, sample_weight: Any) -> Sequence[Any]:
    """Return what is made of every block of predictions, in order."""
    blocks = predicted.to_delayed().ravel()
    targets = _blocks_like(predicted, y, "y")
    weights: Sequence[Any] = [None] * len(blocks)
    if sample_weight is not None:
        weights = _blocks_like(predicted, sample_weight, "sample_weight")
    judged = dask.delayed(_judge_block, pure=False)
    columns = zip(blocks, targets, weights, strict=True)
    return dask.compute(*(judged(judge, place, *block) for place, block in enumerate(columns)))


def _blocks_like(predicted: da.Array, values: Any, name: str) -> Sequence[Any]:
    """Return the blocks of `values` whose rows are those of the blocks of predictions.

    Raises
    ------
    DataError
        If there are not as many rows, or blocks where the rows of some are not counted.
    """
    if hasattr(values, "to_dask_array"):
        blocks = values.to_delayed()
    else:
        array, rows = da.asarray(values), predicted.chunks[0]
        if not np.isnan(sum(rows) + sum(array.chunks[0])):
            _check_length(name, sum(array.chunks[0]), sum(rows), "")
            array = array.rechunk({0: rows})
        blocks = array.rechunk(dict.fromkeys(range(1, array.ndim), -1)).to_delayed().ravel()
    if len(blocks) != predicted.numblocks[0]:
        raise DataError(
            f"{name} has {len(blocks)} blocks, X has {predicted.numblocks[0]}, and not all have "
            "their rows counted.",
            "Divide both alike, or give dask arrays after compute_chunk_sizes().",
        )
    return blocks  # type: ignore[no-any-return]


def _judge_block(judge: Judge, place: int, predicted: NDArray[Any], y: Any, weights: Any) -> Any:
    _check_length("y", len(y), len(predicted), f" of block {place}")
    if weights is None:
        return judge(predicted, y, np.ones(len(y)))
    _check_length("sample_weight", len(weights), len(predicted), f" of block {place}")
    return judge(predicted, y, np.asarray(weights, dtype=np.float64))


def _check_length(name: str, n_rows: int, expected: int, where: str) -> None:
    if n_rows != expected:
        raise DataError(
            f"{name} has {n_rows} rows{where}, X has {expected}.",
            f"Give {name} for every row of X, divided alike.",
        )
