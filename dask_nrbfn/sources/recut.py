"""Blocks of one size from batches of any size."""

from collections.abc import Iterable, Iterator

import numpy as np

from dask_nrbfn.numeric.rows import stacked
from dask_nrbfn.sources.source import Block


def recut(batches: Iterable[Block], block_rows: int) -> Iterator[Block]:
    """Yield the rows of `batches` in order, `block_rows` at a time; the last block may be shorter.

    Parameters
    ----------
    batches : iterable of Block
        Blocks of any number of rows, 0 included.
    block_rows : int
        Rows per block, at least 1.

    Yields
    ------
    Block
        Of `block_rows` rows; views where one batch holds all of them.
    """
    held: list[Block] = []
    n_held = 0
    for batch in batches:
        start = 0
        n_rows = batch.X.shape[0]
        while n_held + n_rows - start >= block_rows:
            stop = start + block_rows - n_held
            yield _joined([*held, _rows(batch, start, stop)])
            held, n_held, start = [], 0, stop
        if start < n_rows:
            held.append(_rows(batch, start, n_rows))
            n_held += n_rows - start
    if held:
        yield _joined(held)


def _rows(block: Block, start: int, stop: int) -> Block:
    X, *columns = block
    return Block(X[start:stop], *(None if c is None else c[start:stop] for c in columns))


def _joined(blocks: list[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    X, *columns = zip(*blocks, strict=True)
    return Block(
        stacked(X),
        *(None if parts[0] is None else np.concatenate(parts) for parts in columns),
    )
