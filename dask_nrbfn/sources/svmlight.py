"""Rows from svmlight (libsvm) text, in CSR."""

import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from sklearn.datasets import load_svmlight_file

from dask_nrbfn.errors import DamagedDataError, DataError, ParameterError
from dask_nrbfn.numeric.rows import canonical
from dask_nrbfn.sources.dtypes import FLOAT64, INT64, to_labels
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.source import (
    MAX_FEATURES,
    Block,
    Reading,
    Source,
    check_size,
    numbered_targets,
)

# Parsed as whole lines: the byte spans of load_svmlight_file(offset, length) yield a row twice when
# a comment crosses the end of a span (seen with scikit-learn 1.9).
BATCH_BYTES = 2 << 20

# The only allowed `target`: the number at the start of each line.
_TARGET = "label"
# The record of rows whose indices count from 0.
_COUNTED_FROM_ZERO = {"first_index": "0"}


@dataclass(kw_only=True)
class SvmlightSource(Source):
    """Rows of svmlight files, in the order of `files`."""

    files: tuple[File, ...]
    first_index: int

    def _parts(self, block_rows: int) -> Iterator[Block]:
        first, stop = self.first_index, self.first_index + self.n_features
        for file in self.files:
            for X, y in _parsed(file, n_columns=stop):
                targets = to_labels(y, str(file)) if self.target_names is None else y[:, None]
                for row in range(0, len(y), block_rows):
                    rows = slice(row, row + block_rows)
                    yield Block(canonical(X[rows, first:]), targets[rows])


def open_rows(reading: Reading) -> SvmlightSource:
    """Return the rows of svmlight files, which are read once to find their size.

    Indices count from 1, as in scikit-learn, unless a 0 appears in one of the files or did so in
    the rows that a model was trained on.
    """
    if reading.target not in (None, _TARGET):
        raise ParameterError(
            f"`target`={reading.target} does not go with {reading.place}, whose format is "
            "svmlight.",
            f"Give `target` as {_TARGET}: the number that each line begins with.",
        )
    n_features = reading.trained_features if reading.n_features is None else reading.n_features
    n_rows, n_values, lowest, highest = 0, 0, np.iinfo(np.int64).max, -1
    for file in reading.files:
        file_rows = 0
        for X, y in _parsed(file):
            if reading.target is None:
                to_labels(y, str(file), first_row=file_rows)
            file_rows += len(y)
            n_values += X.nnz
            if X.indices.size:
                lowest = min(lowest, int(X.indices.min()))
                highest = max(highest, int(X.indices.max()))
        n_rows += file_rows
    from_zero = _COUNTED_FROM_ZERO.items() <= reading.read_as.items()
    first_index = 0 if from_zero or lowest == 0 else 1
    shown = highest + 1 - first_index if highest >= 0 else 0
    if n_features is not None and shown > n_features:
        raise DataError(
            f"{reading.place} has the index {highest} (feature {shown}), but only {n_features} "
            "features are expected.",
            f"Give rows with at most {n_features} features.",
        )
    width = shown if n_features is None else n_features
    check_size(str(reading.place), n_rows=n_rows, n_features=width if n_rows else 1)
    return SvmlightSource(
        n_rows=n_rows,
        n_features=width,
        n_values=n_values,
        x_dtype=FLOAT64,
        y_dtype=INT64 if reading.target is None else FLOAT64,
        target_names=None if reading.target is None else numbered_targets(1),
        read_as=None if first_index else _COUNTED_FROM_ZERO,
        files=tuple(reading.files),
        first_index=first_index,
    )


def _parsed(
    file: File, *, n_columns: int | None = None
) -> Iterator[tuple[sparse.csr_matrix, np.ndarray]]:
    line = 0
    with file.open() as stream:
        while lines := stream.readlines(BATCH_BYTES):
            try:
                X, y = _parse(lines, n_columns)
            except (ValueError, OverflowError) as error:
                bad = next(i for i, text in enumerate(lines) if not _parses(text))
                raise DamagedDataError(
                    f"{file} is not svmlight text in line {line + bad + 1}: {error}.",
                    "Write each line as: label index:value index:value.",
                ) from error
            if X.shape[1] > MAX_FEATURES + 1:
                bad = next(i for i, text in enumerate(lines) if _width(text) == X.shape[1])
                raise DataError(
                    f"{file} has the index {X.shape[1] - 1} in line {line + bad + 1}.",
                    f"Number the features from 1 to at most {MAX_FEATURES}.",
                )
            yield X, y
            line += len(lines)


def _width(line: bytes) -> int:
    return int(_parse([line])[0].shape[1])


def _parse(
    lines: list[bytes], n_columns: int | None = None
) -> tuple[sparse.csr_matrix, np.ndarray]:
    return load_svmlight_file(io.BytesIO(b"".join(lines)), n_features=n_columns, zero_based=True)


def _parses(line: bytes) -> bool:
    try:
        _parse([line])
    except (ValueError, OverflowError):
        return False
    return True
