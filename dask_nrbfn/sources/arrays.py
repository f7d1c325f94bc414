"""Arrays as columns of one table: one array for each role, read by slices of rows."""

import io
import logging
import math
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.rows import is_sparse, unmasked
from dask_nrbfn.sources.dtypes import (
    FLOAT64,
    as_features,
    check_weight_dtype,
    feature_dtype,
    label_dtype,
    refuse_objects,
    sparse_dtype,
    to_labels,
)
from dask_nrbfn.sources.files import File, damage_named
from dask_nrbfn.sources.source import Block, Source, check_apart, check_size, numbered_targets

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from dask_nrbfn.numeric.rows import Rows

logger = logging.getLogger(__name__)

# numpy refuses longer headers too, but only after it has read them.
_MAX_HEADER_BYTES = 10_000
_NOUNS = {"y": "label", "target": "target", "weights": "weight", "id": "id"}


class ArrayRows(Source):
    """Rows of arrays by role: "x", "y" or "target", "weights" and "id".

    arrays: anything with a shape, a dtype and slices of rows. "x" (n, ...) has two dimensions or
        more and is flattened to (n, p), "target" is (n,) or (n, q), the others are (n,).
    names: for errors.
    """

    def __init__(self, arrays: Mapping[str, Any], names: Mapping[str, str]) -> None:
        check_apart("target", names.get("target"), names["x"])
        check_apart("weights", names.get("weights"), *map(names.get, ("x", "y", "target")))
        self.arrays, self.names = arrays, names
        x, (y, target, weights, ids) = arrays["x"], map(arrays.get, _NOUNS)
        n_values = getattr(x, "nnz", None)
        x_dtype = (feature_dtype if n_values is None else sparse_dtype)(x.dtype, names["x"])
        if len(x.shape) < 2:
            raise DataError(
                f"{names['x']} has shape {x.shape}.",
                "Write one row of features per sample: (n, p).",
            )
        n_rows, n_features = x.shape[0], math.prod(x.shape[1:])
        check_size(names["x"], n_rows=n_rows, n_features=n_features)
        y_dtype = target_names = None
        if target is not None:
            feature_dtype(target.dtype, names["target"])
            y_dtype, target_names = FLOAT64, numbered_targets(math.prod(target.shape[1:]))
        elif y is not None:
            y_dtype = label_dtype(y.dtype, names["y"])
        if weights is not None:
            check_weight_dtype(weights.dtype, names["weights"])
        super().__init__(
            n_rows=n_rows,
            n_features=n_features,
            x_dtype=x_dtype,
            y_dtype=y_dtype,
            has_weights=weights is not None,
            target_names=target_names,
            id_dtype=None if ids is None else label_dtype(ids.dtype, names["id"]),
            n_values=n_values,
            boolean_labels=target is None and y is not None and y.dtype.kind == "b",
        )
        for role, noun in _NOUNS.items():
            if role in arrays:
                self._check_shape(role, noun)

    def _check_shape(self, role: str, noun: str) -> None:
        name, shape, x = self.names[role], self.arrays[role].shape, self.names["x"]
        shapes = {1: "(n,)", 2: "(n, q)"} if role == "target" else {1: "(n,)"}
        if len(shape) not in shapes or 0 in shape[1:]:
            raise DataError(
                f"{name} has shape {shape}.",
                f"Write one {noun} per row: {' or '.join(shapes.values())}.",
            )
        if shape[0] != self.n_rows:
            raise DataError(
                f"{name} has {shape[0]} rows but {x} has {self.n_rows}.",
                f"Write {name} with one {noun} per row of {x}.",
            )

    def _parts(self, block_rows: int) -> Iterator[Block]:
        for start in range(0, self.n_rows, block_rows):
            yield self._block(start, min(start + block_rows, self.n_rows))

    def _block(self, start: int, stop: int) -> Block:
        rows = {role: array[start:stop] for role, array in self.arrays.items()}
        y, weights, ids = map(rows.get, ("y", "weights", "id"))
        if "target" in rows:
            y = _table(rows["target"], FLOAT64)
        elif y is not None:
            y = to_labels(y, self.names["y"], first_row=start)
        return Block(
            _table(rows["x"], self.x_dtype),
            y,
            None if weights is None else weights.astype(FLOAT64, copy=False),
            None if ids is None else to_labels(ids, self.names["id"], first_row=start),
        )


class ArraySource(ArrayRows):
    """Rows of arrays in memory: X (n, ...), y (n,), weights (n,), target (n,) or (n, q)."""

    def __init__(
        self,
        X: "Rows | ArrayLike",
        y: "ArrayLike | None" = None,
        weights: "ArrayLike | None" = None,
        target: "ArrayLike | None" = None,
    ) -> None:
        given = {"X": X, "y": y, "weights": weights, "target": target}
        given = {name: array for name, array in given.items() if array is not None}
        arrays: dict[str, Any] = {
            name.lower(): array if is_sparse(array) else np.asarray(unmasked(array))
            for name, array in given.items()
        }
        super().__init__(arrays, {name.lower(): name for name in given})


def _table(rows: Any, dtype: np.dtype) -> Any:
    table = rows if is_sparse(rows) else as_features(rows).reshape(len(rows), -1)
    return table.astype(dtype, copy=False)


def columns_by_name(
    wanted: Sequence[str], found: Sequence[str], origin: str, remedy: str
) -> list[int]:
    """Return the index of each feature of a model among the features found, each of them once."""
    counts = Counter(found)
    if wrong := [name for name in wanted if counts[name] != 1]:
        listed = ", ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if wrong[3:] else "")
        raise DataError(
            f"{origin} lacks or repeats {listed}, of {len(wanted)} features the model was trained "
            f"on; its features begin with {', '.join(found[:20])}.",
            remedy,
        )
    logger.info("%d of %d features of %s are used, by name.", len(wanted), len(found), origin)
    places = {name: j for j, name in enumerate(found)}
    return [places[name] for name in wanted]


def check_header(stream: IO[bytes], n_bytes: int, name: str) -> None:
    """Raise an error unless `n_bytes` of a stream are the header of an array and all its values.

    Raises ValueError or EOFError for damage, DataError for Python objects, which are pickles.
    """
    start = io.BytesIO(stream.read(_MAX_HEADER_BYTES))
    version = np.lib.format.read_magic(start)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    try:
        shape, _, dtype = readers[version](start)
    except Exception as error:
        # The header is a Python expression, which may raise any error.
        raise ValueError(f"the header of {name} cannot be read ({error})") from error
    refuse_objects(dtype, name)
    if dtype.kind == "T" or any(size < 0 for size in shape):
        raise ValueError(f"{name} has shape {shape} and dtype {dtype}")
    if n_bytes - start.tell() < math.prod(shape) * dtype.itemsize:
        raise EOFError(f"{name} ends before its last row")


def numpy_damage_named(file: File | str) -> AbstractContextManager[None]:
    """Return a context manager that raises DamagedDataError if a numpy file cannot be read."""
    # zipfile raises RuntimeError for encryption, and a subclass for unknown compression.
    causes = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OverflowError)
    # For members that are missing or of a wrong type.
    of_scipy = (LookupError, TypeError, AttributeError)
    problem = f"{file} is damaged or not a numpy file"
    return damage_named(problem, "Write the file again.", *causes, *of_scipy)
