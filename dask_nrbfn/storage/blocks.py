"""Blocks of consecutive rows, cut out of chunks as they are read."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.rows import Rows, stacked

Block = TypeVar("Block")


class LabelledBlock(NamedTuple):
    """Consecutive rows.

    ``X`` is (b, p) in the type of the dataset, in CSR if that is sparse. ``targets`` are int64
    (b,), codes that index its classes, -1 for none, or float64 (b, q), numbers, NaN for none; None
    in a dataset without either. ``weights`` is float64 (b,) or None in one without weights.
    """

    X: Rows
    targets: NDArray[Any] | None
    weights: NDArray[np.float64] | None


class StoredChunk(NamedTuple):
    """One chunk as it is stored: X (b, c), y, weights and ids (b,), each as in `Dataset`."""

    X: Rows
    y: NDArray[Any] | None
    weights: NDArray[np.float64] | None
    ids: NDArray[Any] | None


class Chunk(NamedTuple):
    """The rows `start` to `stop` that are read at once; `block` has what was asked for of them."""

    start: int
    stop: int
    block: LabelledBlock


class SequentialReader:
    """Reads ascending spans of rows and keeps the chunk it decoded last.

    `chunk_at` returns the chunk that has a row.
    """

    def __init__(self, chunk_at: Callable[[int], Chunk]) -> None:
        self._chunk_at = chunk_at
        self._chunk: Chunk | None = None

    def __call__(self, start: int, stop: int) -> LabelledBlock:
        """Return the rows from `start` to `stop`."""
        pieces = []
        while start < stop:
            chunk = self._load(start)
            pieces.append(window(chunk.block, slice(start - chunk.start, stop - chunk.start)))
            start = chunk.stop
        return pieces[0] if len(pieces) == 1 else _joined(pieces)

    def _load(self, row: int) -> Chunk:
        if self._chunk is None or not self._chunk.start <= row < self._chunk.stop:
            self._chunk = None
            self._chunk = self._chunk_at(row)
        return self._chunk


def window(block: LabelledBlock, rows: Any) -> LabelledBlock:
    """Return some rows of a block, a slice of it or those that are marked."""
    columns: Any = (None if column is None else column[rows] for column in block)
    return LabelledBlock(*columns)


def _joined(blocks: Sequence[LabelledBlock]) -> LabelledBlock:
    rows, targets, weights = zip(*blocks, strict=True)
    return LabelledBlock(
        stacked(rows),
        None if targets[0] is None else np.concatenate(targets),
        None if weights[0] is None else np.concatenate(weights),
    )


def one_ahead(
    pool: Executor,
    reads: Iterator[Future[Block]],
    current: Future[Block] | None,
) -> Iterator[Block]:
    """Yield the blocks of `current` and of `reads`, each of which starts when it is taken."""
    with pool:
        while current is not None:
            block = current.result()
            current = next(reads, None)
            yield block
