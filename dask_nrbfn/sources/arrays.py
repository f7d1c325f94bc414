"""Arrays as columns of one table: one array for each role, read by slices of rows."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.rows import is_sparse, unmasked
from dask_nrbfn.sources.dtypes import (
    FLOAT64,
    check_weight_dtype,
    feature_dtype,
    label_dtype,
    sparse_dtype,
    to_labels,
)
from dask_nrbfn.sources.source import Block, Source, check_apart, check_size, numbered_targets

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from dask_nrbfn.numeric.rows import Rows


logger = logging.getLogger(__name__)


class _Role(NamedTuple):
    """The dimensions and types that an array may have, and what it has for each row."""

    least: int
    most: float
    stored: Callable[[np.dtype, str], np.dtype]
    noun: str


_ROLES = {
    "x": _Role(2, math.inf, feature_dtype, "row of features"),
    "y": _Role(1, 1, label_dtype, "label"),
    "target": _Role(1, 2, feature_dtype, "target"),
    "weights": _Role(1, 1, check_weight_dtype, "weight"),
    "id": _Role(1, 1, label_dtype, "id"),
}


class ArrayRows(Source):
    """Rows of arrays by role: "x", "y" or "target", "weights" and "id".

    arrays: anything with a shape, a dtype and slices of rows; None is left out. "x" (n, ...) has
        two dimensions or more and is flattened to (n, p).
    names: for errors; by default X and the roles.
    """

    def __init__(self, arrays: Mapping[str, Any], names: Mapping[str, str] | None = None) -> None:
        self.arrays = {role: array for role, array in arrays.items() if array is not None}
        self.names = names = names or {**{role: role for role in arrays}, "x": "X"}
        check_apart("target", names.get("target"), names["x"])
        check_apart("weights", names.get("weights"), *map(names.get, ("x", "y", "target")))
        stored = {role: self._stored(role) for role in _ROLES if role in self.arrays}
        x, y, target = self.arrays["x"], self.arrays.get("y"), self.arrays.get("target")
        n_values = getattr(x, "nnz", None)
        super().__init__(
            n_rows=x.shape[0],
            n_features=math.prod(x.shape[1:]),
            x_dtype=stored["x"] if n_values is None else sparse_dtype(x.dtype, names["x"]),
            y_dtype=FLOAT64 if target is not None else stored.get("y"),
            has_weights="weights" in stored,
            id_dtype=stored.get("id"),
            n_values=n_values,
            boolean_labels=target is None and y is not None and y.dtype.kind == "b",
        )
        if target is not None:
            self.target_names = numbered_targets(math.prod(target.shape[1:]))
        check_size(names["x"], n_rows=self.n_rows, n_features=self.n_features)

    def _stored(self, role: str) -> np.dtype:
        """Return the type that an array is stored as, if it has one and a shape of its role."""
        (least, most, stored, noun), array = _ROLES[role], self.arrays[role]
        name, x, shape = self.names[role], self.names["x"], array.shape
        if not least <= len(shape) <= most or 0 in shape[1:]:
            allowed = "(n, ...)" if most > 1 else "(n,)"
            raise DataError(f"{name} has shape {shape}.", f"Write one {noun} per row: {allowed}.")
        n_rows = self.arrays["x"].shape[0]
        if shape[0] != n_rows:
            raise DataError(
                f"{name} has {shape[0]} rows but {x} has {n_rows}.",
                f"Write {name} with one {noun} per row of {x}.",
            )
        return stored(array.dtype, name)

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


def _table(rows: Any, dtype: np.dtype) -> Any:
    table = rows if is_sparse(rows) else rows.reshape(len(rows), -1)
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


class ArraySource(ArrayRows):
    """Rows of arrays in memory: X (n, ...), y (n,), weights (n,), target (n,) or (n, q)."""

    def __init__(
        self,
        X: "Rows | ArrayLike",
        y: "ArrayLike | None" = None,
        weights: "ArrayLike | None" = None,
        target: "ArrayLike | None" = None,
    ) -> None:
        given = {"x": X, "y": y, "weights": weights, "target": target}
        super().__init__({role: _in_memory(values) for role, values in given.items()})


def _in_memory(values: Any) -> Any:
    return values if values is None or is_sparse(values) else np.asarray(unmasked(values))
