"""Blocks of consecutive rows, cut out of chunks as they are read."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import DamagedDataError, DataError
from dask_nrbfn.numeric.rows import Rows
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.storage.chunks import Mark, are_labelled

Block = TypeVar("Block")


class LabelledBlock(NamedTuple):
    """Consecutive rows.

    ``X`` is (b, p) in the dtype of the dataset, in CSR if the dataset is sparse. ``targets`` are
    class codes, int64 (b,), -1 for no label; or numbers, float64 (b, q), NaN for missing ones; or
    None in a dataset without targets. ``weights`` is float64 (b,), or None without weights.
    """

    X: Rows
    targets: NDArray[Any] | None
    weights: Floats | None


class Chunk(NamedTuple):
    """Rows `start` to `stop` that are read together; `block` has the requested columns."""

    start: int
    stop: int
    block: LabelledBlock


def window(block: LabelledBlock, rows: Any) -> LabelledBlock:
    """Return some rows of a block."""
    columns: Any = (None if column is None else column[rows] for column in block)
    return LabelledBlock(*columns)


def read_ahead(blocks: Iterator[Block], *, thread_name: str) -> Iterator[Block]:
    """Yield the blocks; a thread starts at once and reads one block ahead."""
    pool = ThreadPoolExecutor(1, thread_name_prefix=thread_name)
    current = pool.submit(next, blocks, None)

    def read() -> Iterator[Block]:
        nonlocal current
        with pool:
            while (block := current.result()) is not None:
                current = pool.submit(next, blocks, None)
                yield block

    return read()


def codes_of(
    labels: NDArray[Any], classes: NDArray[Any], unlabelled: Mark | None, place: object
) -> NDArray[np.int64]:
    """Return the code of each label among sorted classes, int64 (b,); -1 for no label."""
    codes = np.full(len(labels), -1, dtype=np.int64)
    labelled = are_labelled(labels, unlabelled)
    labels, classes = labels[labelled], classes.astype(labels.dtype)
    if labels.dtype.kind == "T":
        # searchsorted reads beyond the end of such texts of 16 bytes or more (numpy/numpy#31533).
        own = {label: code for code, label in enumerate(classes.tolist())}
        found = np.array([own.get(label, 0) for label in labels.tolist()], dtype=np.int64)
    else:
        found = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    unknown = np.flatnonzero(classes[found] != labels)
    if len(unknown):
        raise DamagedDataError(
            f"label {labels[unknown].tolist()[0]!r} of {place} is not one of its classes.",
            "Ingest the dataset again: its labels changed after the dataset was written.",
        )
    codes[labelled] = found
    return codes


def check_gaps(stored: NDArray[Any], schema: Schema | None, first_row: int, place: object) -> None:
    """Raise DataError naming the first missing value, if a value is missing."""
    gaps = np.isnan(stored)
    if gaps.any():
        row, column = np.argwhere(gaps)[0]
        assert schema is not None
        raise DataError(
            f"Column {schema.columns[column].name!r} of {place} has no value in row "
            f"{first_row + row} (the first is 0), but the schema does not fill missing values.",
            "Give a `schema` that fills missing values, or leave the row out.",
        )
