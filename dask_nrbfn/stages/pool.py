"""The rows that may enter a basis, in one pass over all rows."""

from collections.abc import Iterable, Iterator

import numpy as np

from dask_nrbfn.numeric.confidence import LEAST_OF_CLASS, RowPool, even_below, keep_best
from dask_nrbfn.numeric.hashing import hash_numbers, hash_rows
from dask_nrbfn.stages.searched import of_searched, searched_rows
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import narrow_block_rows
from dask_nrbfn.storage.run import Run

# Rows that enter the selection at once, 28 MB while they are sorted. With fewer, sorting the pool,
# some ten thousand rows, again and again would take longer than sorting the rows.
_SELECTION_ROWS = 2**18

# A block of rows while the selection sorts it.
_SELECTION_BYTES = 64 * 2**20


def pool_by_confidence(run: Run, size: int, rule: str, *, n_classes: int) -> RowPool:
    """Return the candidates for `size` basis rows by confidence, as a `basis_rule` orders them."""
    return _best(_by_confidence(run, rule), size=size, n_classes=n_classes)


def pool_alike(run: Run, dataset: Dataset, size: int) -> RowPool:
    """Return the candidates for `size` basis rows where the hash of their values decides."""
    return _best(_alike(run, dataset), size=size, n_classes=classes_of_pool(dataset))


def pool_drawn(run: Run, dataset: Dataset, size: int) -> RowPool:
    """Return the rows among which `size` are drawn, by the hash of their numbers."""
    return _best(_by_number(run, dataset), size=size, n_classes=LEAST_OF_CLASS)


def classes_of_pool(dataset: Dataset) -> int:
    """Return of how many classes rows are chosen; rows with numbers as targets are all alike."""
    return max(dataset.n_classes, 1)


def pool_bytes(n_rows: int, n_classes: int, n_basis: int, n_sampled: int) -> int:
    """Return the bytes of choosing rows: the codes of all, the candidates, and a block of rows."""
    pool = min(n_rows, n_basis + n_sampled + n_classes**2)
    return n_rows * (1 if n_classes <= 256 else 4) + _SELECTION_BYTES + 128 * pool


def _best(blocks: Iterable[RowPool], *, size: int, n_classes: int) -> RowPool:
    pool = RowPool.none()
    for block in blocks:
        pool = keep_best(pool, block, size=size, n_classes=n_classes)
    return pool


def _by_confidence(run: Run, rule: str) -> Iterator[RowPool]:
    run, threshold = of_searched(run), run.chosen_params.confidence_threshold
    codes, rows = run.read("confidence/codes"), searched_rows(run)
    codes = codes if rows is None else codes[rows]
    step = run.chunk_rows * max(1, _SELECTION_ROWS // run.chunk_rows)
    for start in range(0, run.n_rows, step):
        stop = min(start + step, run.n_rows)
        priority = run.read("confidence/values", start, stop)
        if rule == "uniform":
            priority = even_below(priority, threshold=threshold)
        tiebreak = run.read("confidence/tiebreak", start, stop)
        yield RowPool(priority, tiebreak, codes[start:stop], np.arange(start, stop))


def _by_number(run: Run, dataset: Dataset) -> Iterator[RowPool]:
    codes = dataset.codes()
    for start in range(0, len(codes), _SELECTION_ROWS):
        rows = np.arange(start, min(start + _SELECTION_ROWS, len(codes)))
        hashes = hash_numbers(rows, seed=run.chosen_params.random_state)
        yield RowPool(np.zeros(len(rows)), hashes, codes[rows], rows)


def _alike(run: Run, dataset: Dataset) -> Iterator[RowPool]:
    start, seed = 0, run.chosen_params.random_state
    for X, codes, _ in dataset.blocks(0, run.n_rows, narrow_block_rows(dataset.row_values)):
        if codes is None or dataset.of_numbers:
            codes = np.zeros(X.shape[0], dtype=np.int64)
        rows = np.arange(start, start + X.shape[0])
        yield RowPool(np.zeros(X.shape[0]), hash_rows(X, seed=seed), codes, rows)
        start += X.shape[0]
