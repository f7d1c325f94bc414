"""Rows of arrays in memory, in .npy files, which are mapped, or in one .npz file."""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.rows import canonical, is_csr, unmasked
from dask_nrbfn.sources import dtypes, source
from dask_nrbfn.sources.files import File, damage_named, data_files
from dask_nrbfn.sources.options import ReadOptions

logger = logging.getLogger(__name__)

_NUMPY = "a numpy file of numbers or text"

# The least and most dimensions of an array, its stored type, what each row has, and its shape.
_ROLES = {
    "x": (2, math.inf, dtypes.feature_dtype, "list of features", "(n, p)"),
    "y": (1, 1, dtypes.label_dtype, "label", "(n,)"),
    "target": (1, 2, dtypes.feature_dtype, "target", "(n,) or (n, q)"),
    "weights": (1, 1, dtypes.check_weight_dtype, "weight", "(n,)"),
    "id": (1, 1, dtypes.label_dtype, "id", "(n,)"),
}


class ArrayRows(source.Source):
    """Rows of arrays by role: "x", "y" or "target", "weights" and "id".

    arrays: anything with a shape, a dtype and slices of rows; None is left out. "x" (n, ...) has
        two dimensions or more and is flattened to (n, p).
    names: for errors; by default X and the roles.
    """

    def __init__(self, arrays: Mapping[str, Any], names: Mapping[str, str] | None = None) -> None:
        self.arrays = {role: array for role, array in arrays.items() if array is not None}
        self.names = names = names or {**{role: role for role in arrays}, "x": "X"}
        source.check_apart("target", names.get("target"), names["x"])
        source.check_apart("weights", names.get("weights"), *map(names.get, ("x", "y", "target")))
        stored = {role: self._stored(role) for role in _ROLES if role in self.arrays}
        x, y, target = self.arrays["x"], self.arrays.get("y"), self.arrays.get("target")
        n_values = getattr(x, "nnz", None)
        super().__init__(
            n_rows=x.shape[0],
            n_features=math.prod(x.shape[1:]),
            x_dtype=stored["x"] if n_values is None else dtypes.sparse_dtype(x.dtype, names["x"]),
            y_dtype=dtypes.FLOAT64 if target is not None else stored.get("y"),
            has_weights="weights" in stored,
            id_dtype=stored.get("id"),
            n_values=n_values,
            boolean_labels=target is None and y is not None and y.dtype.kind == "b",
        )
        if target is not None:
            self.target_names = source.numbered_targets(math.prod(target.shape[1:]))
        source.check_size(names["x"], n_rows=self.n_rows, n_features=self.n_features)

    def _stored(self, role: str) -> np.dtype:
        """Return the type that an array is stored as, if it has one and a shape of its role."""
        least, most, stored_as, noun, shapes = _ROLES[role]
        array, name, x = self.arrays[role], self.names[role], self.names["x"]
        shape = array.shape
        if not least <= len(shape) <= most or 0 in shape[1:]:
            raise DataError(f"{name} has shape {shape}.", f"Write one {noun} per row: {shapes}.")
        n_rows = self.arrays["x"].shape[0]
        if shape[0] != n_rows:
            raise DataError(
                f"{name} has {shape[0]} rows but {x} has {n_rows}.",
                f"Write {name} with one {noun} per row of {x}.",
            )
        return stored_as(array.dtype, name)

    def _parts(self, block_rows: int) -> Iterator[source.Block]:
        for start in range(0, self.n_rows, block_rows):
            yield self._block(start, min(start + block_rows, self.n_rows))

    def _block(self, start: int, stop: int) -> source.Block:
        arrays = self.arrays.items()
        rows = {role: self._read(role, array[start:stop], start) for role, array in arrays}
        y = rows.get("target", rows.get("y"))
        return source.Block(rows["x"], y, rows.get("weights"), rows.get("id"))

    def _read(self, role: str, values: Any, first_row: int) -> Any:
        """Return some rows of an array as they are stored."""
        if role in ("y", "id"):
            return dtypes.to_labels(values, self.names[role], first_row=first_row)
        if role != "weights" and not is_csr(values):
            values = values.reshape(len(values), -1)
        return values.astype(self.x_dtype if role == "x" else dtypes.FLOAT64, copy=False)


def columns_by_name(
    wanted: Sequence[str], found: Sequence[str], origin: str, remedy: str
) -> list[int]:
    """Return the index of each feature of a model among the features found, each of them once."""
    source.check_found(wanted, found, origin, remedy)
    logger.info("%d of %d features of %s are used, by name.", len(wanted), len(found), origin)
    places = {name: j for j, name in enumerate(found)}
    return [places[name] for name in wanted]


class ArraySource(ArrayRows):
    """Rows of arrays in memory: X (n, ...), y (n,), weights (n,), target (n,) or (n, q)."""

    def __init__(self, X: Any, y: Any = None, weights: Any = None, target: Any = None) -> None:
        given = {"x": X, "y": y, "weights": weights, "target": target}
        arrays = {
            role: values if is_csr(values) else np.asarray(unmasked(values))
            for role, values in given.items()
            if values is not None
        }
        super().__init__(arrays)


def open_npz(request: source.Request) -> ArrayRows:
    """Return the rows of one .npz file: arrays by name, or a sparse matrix of scipy."""
    place = request.place
    path = place.local(place)
    with (
        damage_named(place, _NUMPY),
        # numpy leaves a file open that is no zip file.
        open(path, "rb") as stream,
        np.load(stream, allow_pickle=False) as loaded,
    ):
        if request.options.x is None and {"data", "format", "shape"} <= {*loaded}:
            return _with_npy_files(request, _matrix(path))
        return named_arrays(request, loaded)


def open_npy(request: source.Request) -> ArrayRows:
    """Return the rows of .npy files."""
    return _with_npy_files(request, NpyFiles(request.files))


def named_arrays(request: source.Request, arrays: Mapping[str, Any]) -> ArrayRows:
    """Return the rows of the arrays that options name, by default X and, if it exists, y."""
    usual = {"x": "X", "y": "y"} if "y" in arrays else {"x": "X"}
    names = named_roles(request.options, usual)
    for role, name in names.items():
        remedy = f"Name an existing array with `{role}`."
        source.check_found([name], [*arrays], request.place, remedy, "array")
    return ArrayRows({role: arrays[name] for role, name in names.items()}, names)


def named_roles(options: ReadOptions, before: Mapping[str, str]) -> dict[str, str]:
    """Return the name of each role: as given, or else as in `before`."""
    if options.y or options.target:
        before = {role: name for role, name in before.items() if role not in ("y", "target")}
    names = {role: getattr(options, role) or before.get(role) for role in _ROLES}
    return {role: name for role, name in names.items() if name}


def _matrix(path: str) -> Any:
    from scipy.sparse import load_npz

    matrix = load_npz(path)
    if hasattr(matrix, "check_format"):
        # A wrong index would make scipy read outside of its arrays.
        matrix.check_format(full_check=True)
    return canonical(matrix)


def _with_npy_files(request: source.Request, x: Any) -> ArrayRows:
    """Return rows whose labels, targets and weights are .npy files, or directories of them."""
    names, arrays = {"x": str(request.place)}, {"x": x}
    for role in ("y", "target", "weights"):
        if (path := getattr(request.options, role)) is not None:
            place = replace(request.place, path=path)
            arrays[role] = NpyFiles(data_files(place) if place.is_directory() else (place,))
            names[role] = path
    return ArrayRows(arrays, names)


class NpyFiles:
    """The rows of .npy files as one array; copies of URLs live as long as this object."""

    def __init__(self, files: Iterable[File]) -> None:
        self._files = [(str(file), file.local(self)) for file in files]
        first, *_ = arrays = [_mapped(*each) for each in self._files]
        for (name, _), array in zip(self._files, arrays, strict=True):
            if (array.shape[1:], array.dtype.kind) != (first.shape[1:], first.dtype.kind):
                raise DataError(
                    f"{name} has shape {array.shape} and dtype {array.dtype}, but "
                    f"{self._files[0][0]} has shape {first.shape} and dtype {first.dtype}.",
                    "Write the same columns, of one kind, to all files of a directory.",
                )
        self._lengths = [array.shape[0] if array.ndim else 0 for array in arrays]
        self.dtype = np.result_type(*(array.dtype for array in arrays))
        self.shape = (sum(self._lengths), *first.shape[1:])

    def __getitem__(self, rows: slice) -> np.ndarray:
        """Return some rows."""
        pieces, start = [], 0
        for file, length in zip(self._files, self._lengths, strict=True):
            first, last = max(rows.start - start, 0), min(rows.stop - start, length)
            if first < last:
                # Pages of a mapping that stays open would count as this process's memory.
                pieces.append(_mapped(*file)[first:last])
            start += length
        return np.concatenate(pieces)


def _mapped(name: str, path: str) -> np.ndarray:
    with damage_named(name, _NUMPY):
        return np.asarray(np.lib.format.open_memmap(path, mode="r"))
