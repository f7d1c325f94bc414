"""Cells: rows of an AnnData store, in Zarr or in an .h5ad file."""

import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dask_nrbfn.errors import (
    DamagedDataError,
    DataError,
    MissingDataError,
    NRBFNError,
)
from dask_nrbfn.sources.dtypes import (
    FLOAT64,
    STRING,
    check_weight_dtype,
    feature_dtype,
    label_dtype,
    to_labels,
)
from dask_nrbfn.sources.elements import (
    Column,
    Frame,
    Matrix,
    installed,
    matrix_at,
)
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.source import (
    Block,
    Reading,
    Source,
    StoredAt,
    check_apart,
    check_size,
    named_columns,
)

logger = logging.getLogger(__name__)

# Largest chunk that is decoded as a whole, while another chunk is in use.
MAX_CHUNK_BYTES = 2**27
_ROOTS = {"zarr.json", ".zgroup", ".zattrs"}


@dataclass(kw_only=True)
class AnnDataSource(Source):
    """Cells with their columns of obs: labels y or numeric targets, weights and ids."""

    place: File
    x: Matrix
    y: Column | None = None
    numbers: tuple[Column, ...] = ()
    weights: Column | None = None
    names: Column | None = None

    def _parts(self, block_rows: int) -> Iterator[Block]:
        size = self._reading_rows(block_rows)
        with damage_named(self.place):
            for start in range(0, self.n_rows, size):
                yield self._block(start, min(start + size, self.n_rows))

    def _reading_rows(self, block_rows: int) -> int:
        """Return the rows to read at once: whole chunks, each decoded once, unless too large."""
        if self.x.order != "csc" and self.x.chunk_bytes > MAX_CHUNK_BYTES:
            return block_rows
        return max(block_rows // self.x.chunk_rows, 1) * self.x.chunk_rows

    def _block(self, start: int, stop: int) -> Block:
        y = None
        if self.numbers:
            y = np.stack([column.numbers(start, stop) for column in self.numbers], axis=1)
        elif self.y is not None:
            values, none = self.y.read(start, stop)
            if values.dtype.kind == "f":
                values = np.where(none, 0, values)
            y = to_labels(values, self.y.name, first_row=start)
            if none.any():
                y[none] = self.unlabelled
        return Block(
            self.x.read(start, stop).astype(self.x_dtype, copy=False),
            y,
            None if self.weights is None else self.weights.numbers(start, stop),
            None if self.names is None else self.names.read(start, stop)[0].astype(STRING),
        )


def is_anndata(place: File) -> bool:
    """Return whether a directory is an AnnData store in Zarr: every version has obs and var."""
    names = {entry.name for entry in place.entries()}
    return names >= {"obs", "var"} and not names.isdisjoint(_ROOTS)


def open_rows(reading: Reading) -> AnnDataSource:
    """Return the cells of an AnnData store or .h5ad file; `read_as` has the default names."""
    before = dict(reading.read_as)
    if reading.y or reading.target:
        before = {name: value for name, value in before.items() if name not in ("y", "target")}
    x, y, weights, target = (
        getattr(reading, name) or before.get(name) for name in ("x", "y", "weights", "target")
    )
    columns = () if reading.schema is None else reading.schema.columns
    with damage_named(reading.place):
        return source_of(
            _opened(reading.place),
            reading.place,
            x=x,
            y=y,
            targets=() if target is None else named_columns("target", target),
            weights=weights,
            features=tuple(column.name for column in columns) or None,
        )


def source_of(
    root: Any,
    place: File,
    *,
    x: str | None = None,
    y: str | None = None,
    targets: tuple[str, ...] = (),
    weights: str | None = None,
    features: tuple[str, ...] | None = None,
) -> AnnDataSource:
    """Return the source of the cells of a Zarr or HDF5 group, with the wanted features in order.

    A missing value of the column `y` is a missing label. `features` is ignored if the store has no
    feature names.
    """
    for name in targets:
        check_apart("target", name, weights)
    check_apart("weights", weights, y)
    matrix, feature_names = _with_features(root, matrix_at(root, x or "X", place), features, place)
    obs = Frame.at(root, "obs")
    names = obs.row_names
    label = None if y is None else obs.named_column(y, place, "y")
    numbers = tuple(obs.named_column(name, place, "target") for name in targets)
    weight = None if weights is None else obs.named_column(weights, place, "weights")
    columns = [column for column in (names, label, *numbers, weight) if column is not None]
    _check_fitting(place, matrix, columns)
    for column in numbers:
        feature_dtype(column.dtype, column.name)
    if weight is not None:
        check_weight_dtype(weight.dtype, weight.name)
    said = {"x": matrix.name, "y": y, "target": ",".join(targets), "weights": weights}
    return AnnDataSource(
        n_rows=matrix.shape[0],
        n_features=matrix.shape[1],
        x_dtype=feature_dtype(matrix.dtype, matrix.name),
        y_dtype=FLOAT64 if numbers else _label_dtype(label),
        has_weights=weight is not None,
        feature_names=feature_names,
        target_names=tuple(name.removeprefix("obs/") for name in targets) or None,
        id_dtype=None if names is None else STRING,
        n_values=matrix.n_values,
        unlabelled=_mark_of(label, place),
        boolean_labels=label is not None and label.dtype.kind == "b",
        stored_at=place_in_zarr(place, matrix),
        place=place,
        x=matrix,
        y=label,
        numbers=numbers,
        weights=weight,
        names=names,
        read_as={option: name for option, name in said.items() if name},
    )


def place_in_zarr(place: File, matrix: Matrix) -> StoredAt | None:
    """Return the location of rows that can be read without a copy; None if rows are copied."""
    import zarr

    stored = matrix.stored.group if matrix.order == "csr" else matrix.stored
    if place.storage_options or matrix.columns is not None:
        return None
    if not isinstance(stored, zarr.Group | zarr.Array):
        return None
    if matrix.chunk_bytes > MAX_CHUNK_BYTES:
        logger.info(
            "%s of %s is copied: its chunks of %d MiB are too large to read it in place.",
            *(matrix.name, place, matrix.chunk_bytes >> 20),
        )
        return None
    path = place.path if place.is_remote else os.path.abspath(place)
    # AnnData before 0.7 wrote raw.X.
    return StoredAt(path, stored.path, matrix.chunk_rows)


def _opened(place: File) -> Any:
    """Return the root group of a store."""
    if place.name.endswith(".h5ad"):
        h5py = installed("h5py")
        return h5py.File(place.open(jumps=True) if place.is_remote else place.path, "r")
    return opened_zarr(place)


def opened_zarr(place: File) -> Any:
    """Return the Zarr group or array at a place."""
    import zarr

    options: dict[str, Any] = {
        "mode": "r",
        "storage_options": dict(place.storage_options) or None,
    }
    try:
        return zarr.open(place.path, **options)
    except (ValueError, TypeError, KeyError) as error:
        # zarr may not know the type of an array in uns, which is not needed here.
        logger.info("%s is read without its consolidated metadata (%s).", place, error)
        return zarr.open_group(place.path, **options, use_consolidated=False)


def _check_fitting(place: File, matrix: Matrix, columns: list[Column]) -> None:
    check_size(f"{matrix.name} of {place}", n_rows=matrix.shape[0], n_features=matrix.shape[1])
    for column in columns:
        if column.n_rows != matrix.shape[0]:
            raise DataError(
                f"{column.name} of {place} has {column.n_rows} rows but {matrix.name} has "
                f"{matrix.shape[0]}.",
                "Write the store again: obs has one row per row of X.",
            )


def _label_dtype(label: Column | None) -> np.dtype | None:
    return None if label is None else label_dtype(label.dtype, label.name)


def _mark_of(label: Column | None, place: File) -> int | str | None:
    """Return the marker for a missing label, None if every row has a label."""
    if label is None:
        return None
    n_none, least = 0, 0
    for values, none in label.scanned():
        n_none += int(none.sum())
        if values.dtype.kind in "iuf":
            least = min(least, int(values[~none & np.isfinite(values)].min(initial=0)))
    if n_none == 0:
        return None
    logger.info("%d of %d rows have no label in %s of %s.", n_none, label.n_rows, label.name, place)
    return "" if _label_dtype(label) == STRING else least - 1


def _with_features(
    root: Any, matrix: Matrix, wanted: tuple[str, ...] | None, place: File
) -> tuple[Matrix, tuple[str, ...] | None]:
    """Return the matrix with the features that are wanted, and their names."""
    names = _feature_names(root, matrix)
    kind, _, name = matrix.name.partition("/")
    if names is None and kind == "obsm":
        return matrix, tuple(f"{name}_{j}" for j in range(matrix.shape[1]))
    if names is None or wanted is None or wanted == names:
        return matrix, names
    counts = Counter(names)
    if absent := [feature for feature in wanted if counts[feature] == 0]:
        told = ", ".join(absent[:3]) + (f" and {len(absent) - 3} more" if absent[3:] else "")
        raise DataError(
            f"{matrix.name} of {place} lacks {told}, of the {len(wanted)} features that the model "
            "was trained on.",
            "Add the missing features, or name a matrix that has them with `x`.",
        )
    if twice := [feature for feature in wanted if counts[feature] > 1]:
        raise DataError(
            f"{matrix.name} of {place} has the feature {twice[0]} {counts[twice[0]]} times.",
            "Make the names differ, as `adata.var_names_make_unique()` does.",
        )
    places = {feature: j for j, feature in enumerate(names)}
    columns = np.array([places[feature] for feature in wanted])
    logger.info("%d of %d features of %s are used, by name.", len(wanted), len(names), matrix.name)
    return replace(matrix, shape=(matrix.shape[0], len(wanted)), columns=columns), wanted


def _feature_names(root: Any, matrix: Matrix) -> tuple[str, ...] | None:
    """Return the names of the columns of a matrix, None if the store has none."""
    kind = matrix.name.partition("/")[0]
    if kind == "obsm":
        return getattr(matrix.stored, "names", None)
    names = Frame.at(root, "raw/var" if kind == "raw" else "var").row_names
    if names is None:
        return None
    if names.n_rows != matrix.shape[1]:
        raise DataError(
            f"{names.name} has {names.n_rows} names but {matrix.name} has "
            f"{matrix.shape[1]} columns.",
            "Write the store again: var has one row per column of X.",
        )
    return tuple(names.read(0, names.n_rows)[0].astype(STRING).tolist())


@contextmanager
def damage_named(place: File, what: str = "AnnData") -> Iterator[None]:
    """Raise an error that names the place if a library cannot read it."""
    # zarr, h5py and anndata have no common error for data that they cannot read.
    try:
        yield
    except NRBFNError:
        raise
    except FileNotFoundError as error:
        raise MissingDataError(f"{place} does not exist.", "Check the path.") from error
    except MemoryError:
        raise
    except Exception as error:
        raise DamagedDataError(
            f"{place} cannot be read as {what} ({type(error).__name__}: {str(error)[:200]}).",
            f"Check the path, or write the store again with {what}.",
        ) from error
