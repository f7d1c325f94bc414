"""Arrays that are columns of one table: their layout, .npy headers, and arrays in memory."""

import io
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike

from dask_nrbfn.errors import DataError, NRBFNError
from dask_nrbfn.numeric.rows import Rows, is_sparse, unmasked
from dask_nrbfn.sources.dtypes import (
    FLOAT64,
    as_features,
    check_weight_dtype,
    feature_dtype,
    label_dtype,
    sparse_dtype,
    to_labels,
)
from dask_nrbfn.sources.files import File, damage_named
from dask_nrbfn.sources.source import Block, Source, check_apart, check_size, numbered_targets

# Reading a zip member copies its bytes; small pieces keep these copies small.
READ_BYTES = 1 << 20
# A block may have 65,536 labels of this size, 1 GiB. Names of classes are shorter.
_MAX_LABEL_BYTES = 1 << 14
# numpy refuses longer headers too, but only after it has read them.
_MAX_HEADER_BYTES = 10_000


@dataclass(frozen=True)
class Header:
    """Name, shape and type of one stored array."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    fortran_order: bool = False


ReadRows = Callable[[Header, int, int], Any]
"""Returns the rows of an array from a start to a stop; called in the order of the rows."""


@dataclass(kw_only=True)
class ArrayRows(Source):
    """Rows of arrays by role: "x", "y" or "target", "weights" and "id"."""

    headers: Mapping[str, Header]
    opened: Callable[[], AbstractContextManager[ReadRows]]

    def _parts(self, block_rows: int) -> Iterator[Block]:
        with self.opened() as read:
            for start in range(0, self.n_rows, block_rows):
                yield self._block(read, start, min(start + block_rows, self.n_rows))

    def _block(self, read: ReadRows, start: int, stop: int) -> Block:
        y = weights = ids = None
        if "target" in self.headers:
            y = _table(read(self.headers["target"], start, stop), FLOAT64)
        elif "y" in self.headers:
            y = _labels(read, self.headers["y"], start, stop)
        X = _table(read(self.headers["x"], start, stop), self.x_dtype)
        if "weights" in self.headers:
            weights = read(self.headers["weights"], start, stop).astype(FLOAT64, copy=False)
        if "id" in self.headers:
            ids = _labels(read, self.headers["id"], start, stop)
        return Block(X, y, weights, ids)


def _labels(read: ReadRows, y: Header, start: int, stop: int) -> np.ndarray:
    # Stored text has the length of the longest label; once read, it is smaller.
    step = max(1, READ_BYTES // max(1, y.dtype.itemsize))
    pieces = [
        to_labels(read(y, first, min(first + step, stop)), y.name, first_row=first)
        for first in range(start, stop, step)
    ]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


class ArraySource(ArrayRows):
    """Rows of arrays in memory.

    X (n, ...): features, at least 2-D; further dimensions are flattened to (n, p).
    y (n,): labels.
    weights (n,): weights of the rows.
    target (n,): numeric targets, instead of labels.

    Examples
    --------
    >>> source = ArraySource(np.eye(3), np.array([0, 1, 0]))
    >>> [len(block.X) for block in source.blocks(2)]
    [2, 1]
    """

    def __init__(
        self,
        X: "Rows | ArrayLike",
        y: "ArrayLike | None" = None,
        weights: "ArrayLike | None" = None,
        target: "ArrayLike | None" = None,
    ) -> None:
        given = {"X": X, "y": y, "weights": weights, "target": target}
        arrays: dict[str, Any] = {
            name: a if is_sparse(a) else np.asarray(unmasked(a))
            for name, a in given.items()
            if a is not None
        }
        headers = {name.lower(): Header(name, a.shape, a.dtype) for name, a in arrays.items()}

        def read(header: Header, start: int, stop: int) -> Any:
            return arrays[header.name][start:stop]

        n_values = X.nnz if is_sparse(X) else None
        super().__init__(**vars(array_rows(headers, lambda: nullcontext(read), n_values=n_values)))


def stored_by_column(name: str) -> DataError:
    """Return the error about an array in Fortran order."""
    return DataError(
        f"{name} is stored column by column (Fortran order).",
        "Save the array row by row, as numpy.ascontiguousarray returns it.",
    )


def check_roles(names: Mapping[str, str | None]) -> None:
    """Raise ParameterError if targets or weights are an array that has another role too."""
    check_apart("target", names.get("target"), names["x"])
    check_apart("weights", names.get("weights"), *map(names.get, ("x", "y", "target")))


def array_rows(
    headers: Mapping[str, Header],
    opened: Callable[[], AbstractContextManager[ReadRows]],
    *,
    n_values: int | None = None,
) -> ArrayRows:
    """Return the rows of arrays; `n_values` is the number of values of features in CSR."""
    x, y, target, weights, ids = map(headers.get, ("x", "y", "target", "weights", "id"))
    assert x is not None
    x_dtype = (feature_dtype if n_values is None else sparse_dtype)(x.dtype, x.name)
    if len(x.shape) < 2:
        raise DataError(
            f"{x.name} has shape {x.shape}.", "Write one row of features per sample: (n, p)."
        )
    n_rows, n_features = x.shape[0], math.prod(x.shape[1:])
    check_size(x.name, n_rows=n_rows, n_features=n_features)
    y_dtype = target_names = None
    if target is not None:
        feature_dtype(target.dtype, target.name)
        _check_column(target, x, "target", several=True)
        y_dtype, target_names = FLOAT64, numbered_targets(math.prod(target.shape[1:]))
    elif y is not None:
        y_dtype = label_dtype(y.dtype, y.name)
        if y.dtype.itemsize > _MAX_LABEL_BYTES:
            raise DataError(
                f"{y.name} has dtype {y.dtype}.",
                f"Write labels of at most {_MAX_LABEL_BYTES // 4} characters.",
            )
        _check_column(y, x, "label")
    if weights is not None:
        check_weight_dtype(weights.dtype, weights.name)
        _check_column(weights, x, "weight")
    if ids is not None:
        _check_column(ids, x, "id")
    return ArrayRows(
        n_rows=n_rows,
        n_features=n_features,
        x_dtype=x_dtype,
        y_dtype=y_dtype,
        has_weights=weights is not None,
        target_names=target_names,
        id_dtype=None if ids is None else label_dtype(ids.dtype, ids.name),
        n_values=n_values,
        boolean_labels=target is None and y is not None and y.dtype.kind == "b",
        headers=headers,
        opened=opened,
    )


def _check_column(column: Header, x: Header, noun: str, *, several: bool = False) -> None:
    shapes = {1: "(n,)", 2: "(n, q)"} if several else {1: "(n,)"}
    if len(column.shape) not in shapes or 0 in column.shape[1:]:
        raise DataError(
            f"{column.name} has shape {column.shape}.",
            f"Write one {noun} per row: {' or '.join(shapes.values())}.",
        )
    if column.shape[0] != x.shape[0]:
        raise DataError(
            f"{column.name} has {column.shape[0]} rows but {x.name} has {x.shape[0]}.",
            f"Write {column.name} with one {noun} per row of {x.name}.",
        )


def check_length(header: Header, n_bytes: int) -> None:
    """Raise EOFError if an array is larger than the `n_bytes` that follow its header."""
    # Objects are pickled, of unknown length; array_rows refuses them.
    if n_bytes < math.prod(header.shape) * header.dtype.itemsize and not header.dtype.hasobject:
        raise EOFError(f"{header.name} ends before its last row")


def read_header(file: IO[bytes], name: str) -> Header:
    """Return the header of the array at the start of a stream, left at the first value.

    Raises ValueError if numpy does not write such a header.
    """
    version = np.lib.format.read_magic(file)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"{name} is of .npy version {version}, not (1, 0) or (2, 0)")
    try:
        size = file.read(2 if version == (1, 0) else 4)
        n_bytes = int.from_bytes(size, "little")
        if n_bytes > _MAX_HEADER_BYTES:
            raise ValueError(f"header size {n_bytes} bytes exceeds {_MAX_HEADER_BYTES} bytes")
        shape, fortran_order, dtype = readers[version](io.BytesIO(size + file.read(n_bytes)))
    except (NRBFNError, OSError, zipfile.BadZipFile, zlib.error):
        raise
    except Exception as error:
        # The header is a Python expression, which may raise any error.
        raise ValueError(f"the header of {name} cannot be read ({error})") from error
    if any(size < 0 for size in shape):
        raise ValueError(f"{name} has the shape {shape}")
    if dtype.kind == "T":
        raise ValueError(f"{name} has dtype {dtype}, which .npy cannot hold")
    return Header(name, tuple(map(int, shape)), dtype, fortran_order)


def read_rows(files: Mapping[str, IO[bytes]], header: Header, start: int, stop: int) -> np.ndarray:
    """Return the rows of an array that come next in its file, (stop - start, ...)."""
    file = files[header.name]
    rows = np.empty((stop - start, *header.shape[1:]), dtype=header.dtype)
    unread = rows.reshape(-1).view(np.uint8).data
    while unread:
        n_bytes = file.readinto(unread[:READ_BYTES])  # type: ignore[attr-defined]
        if n_bytes == 0:
            raise EOFError(f"{header.name} ends before its last row")
        unread = unread[n_bytes:]
    return rows


def _table(rows: Any, dtype: np.dtype) -> Any:
    table = rows if is_sparse(rows) else as_features(rows).reshape(len(rows), -1)
    return table.astype(dtype, copy=False)


def numpy_damage_named(file: File | str) -> AbstractContextManager[None]:
    """Return a context manager that raises DamagedDataError if a numpy file cannot be read."""
    # zipfile raises RuntimeError for encryption, and a subclass for unknown compression.
    causes = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError)
    return damage_named(f"{file} is damaged or not a numpy file", "Write the file again.", *causes)
