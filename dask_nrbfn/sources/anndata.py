"""Cells: rows of an AnnData store, in Zarr or in an .h5ad file."""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_nrbfn.errors import (
    DamagedDataError,
    DataError,
    MissingDataError,
    NRBFNError,
    ParameterError,
)
from dask_nrbfn.sources.dtypes import (
    FLOAT64,
    STRING,
    check_weight_dtype,
    feature_dtype,
    label_dtype,
    to_labels,
)
from dask_nrbfn.sources.elements import Matrix, ObsColumn, column_at, index_of, matrix_at
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.layout import Layout, StoredAt, check_apart, check_size
from dask_nrbfn.sources.recut import recut
from dask_nrbfn.sources.source import Block

logger = logging.getLogger(__name__)

# A chunk of this size is decoded beside the one in use.
MAX_CHUNK_BYTES = 2**27


@dataclass(kw_only=True)
class AnnDataSource(Layout):
    """Cells with their columns of obs.

    Attributes
    ----------
    place : File
        Of the store or .h5ad file.
    x : Matrix
    y : ObsColumn or None
        Of the labels.
    numbers : tuple of ObsColumn
        Of the targets that are numbers.
    weights, names : ObsColumn or None
        Of the weights, and of the ids.
    """

    place: File
    x: Matrix
    y: ObsColumn | None = None
    numbers: tuple[ObsColumn, ...] = ()
    weights: ObsColumn | None = None
    names: ObsColumn

    def blocks(self, block_rows: int) -> Iterator[Block]:
        """Yield all rows in order, `block_rows` at a time.

        Raises
        ------
        DataError
            If a label is not a whole number or text.
        DamagedDataError
            If a chunk cannot be read.
        """
        size = self._reading_rows(block_rows)
        spans = ((a, min(a + size, self.n_rows)) for a in range(0, self.n_rows, size))
        with _damage_named(self.place):
            yield from recut((self.block(start, stop) for start, stop in spans), block_rows)

    def _reading_rows(self, block_rows: int) -> int:
        """Return rows of whole chunks, which then are decoded once, unless these are too large."""
        if self.x.chunk_bytes > MAX_CHUNK_BYTES:
            return block_rows
        return max(block_rows // self.x.chunk_rows, 1) * self.x.chunk_rows

    def block(self, start: int, stop: int) -> Block:
        """Return the rows from `start` to `stop`."""
        y = None
        if self.numbers:
            y = np.stack([column.numbers(start, stop) for column in self.numbers], axis=1)
        elif self.y is not None:
            values, none = self.y.read(start, stop)
            if values.dtype.kind == "f":
                values = np.where(none, 0.0, values)
            y = to_labels(values, self.y.name, first_row=start)
            if none.any():
                y[none] = self.unlabelled
        return Block(
            self.x.read(start, stop).astype(self.x_dtype, copy=False),
            y,
            None if self.weights is None else self.weights.numbers(start, stop),
            self.names.read(start, stop)[0],
        )


def is_anndata(place: File) -> bool:
    """Return whether a directory is a Zarr store that AnnData wrote."""
    for entry in place.entries():
        if entry.name in ("zarr.json", ".zattrs"):
            with entry.open() as file:
                try:
                    metadata = json.loads(file.read())
                except ValueError:
                    return False
            attributes = metadata.get("attributes", metadata)
            return isinstance(attributes, dict) and attributes.get("encoding-type") == "anndata"
    return False


def open_anndata(place: File, **named: Any) -> AnnDataSource:
    """Source of the cells of an AnnData store or .h5ad file; `named` are those of `source_of`."""
    with _damage_named(place):
        return source_of(_opened(place), place, **named)


def source_of(
    root: Any,
    place: File,
    *,
    x: str | None = None,
    y: str | None = None,
    targets: tuple[str, ...] = (),
    weights: str | None = None,
) -> AnnDataSource:
    """Source of the cells of a group of Zarr or HDF5.

    Parameters
    ----------
    root : group
        As AnnData writes it.
    place : File
        Where it is.
    x : str, optional
        X, layers/NAME or obsm/NAME; by default X.
    y : str, optional
        obs/NAME, a column of labels. A cell without one has none.
    targets : tuple of str
        Columns obs/NAME of numbers, instead of labels.
    weights : str, optional
        obs/NAME.

    Raises
    ------
    DataError
        If the store lacks what is named, or has it in another shape or type.
    ParameterError
        If one column is named for two purposes.
    """
    for name in targets:
        check_apart("target", name, weights)
    check_apart("weights", weights, y)
    matrix = matrix_at(root, x or "X", place)
    names = index_of(root, "obs")
    label = None if y is None else column_at(root, y, place, "y")
    numbers = tuple(column_at(root, name, place, "target") for name in targets)
    weight = None if weights is None else column_at(root, weights, place, "weights")
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
        feature_names=_feature_names(root, matrix),
        target_names=tuple(name.removeprefix("obs/") for name in targets) or None,
        id_dtype=STRING,
        n_values=matrix.n_values,
        unlabelled=_mark_of(label),
        stored_at=_stored_at(place, matrix),
        place=place,
        x=matrix,
        y=label,
        numbers=numbers,
        weights=weight,
        names=names,
        read_as={option: name for option, name in said.items() if name},
    )


def _stored_at(place: File, matrix: Matrix) -> StoredAt | None:
    """Return where rows are that can be read there, chunk by chunk and by whoever opens them."""
    if place.name.endswith(".h5ad") or place.storage_options:
        return None
    if matrix.chunk_bytes > MAX_CHUNK_BYTES:
        logger.info(
            "%s of %s is copied: its chunks of %d MiB are too large to read it in place.",
            *(matrix.name, place, matrix.chunk_bytes >> 20),
        )
        return None
    path = place.path if place.is_remote else os.path.abspath(place)
    return StoredAt(path, matrix.name, matrix.chunk_rows)


def _opened(place: File) -> Any:
    """Return the root group of a store."""
    if place.name.endswith(".h5ad"):
        try:
            import h5py
        except ImportError as error:
            raise ParameterError(
                f"{place} needs a package that is not installed ({error}).",
                "Install it: dask-nrbfn[anndata] brings it.",
            ) from error
        return h5py.File(place.open(jumps=True) if place.is_remote else place.path, "r")
    import zarr

    return zarr.open_group(
        place.path, mode="r", storage_options=dict(place.storage_options) or None
    )


def _check_fitting(place: File, matrix: Matrix, columns: list[ObsColumn]) -> None:
    check_size(f"{matrix.name} of {place}", n_rows=matrix.shape[0], n_features=matrix.shape[1])
    for column in columns:
        if column.n_rows != matrix.shape[0]:
            raise DataError(
                f"{column.name} of {place} has {column.n_rows} rows but {matrix.name} has "
                f"{matrix.shape[0]}.",
                "Write the store again: obs has one row per row of X.",
            )


def _label_dtype(label: ObsColumn | None) -> np.dtype | None:
    return None if label is None else label_dtype(label.dtype, label.name)


def _mark_of(label: ObsColumn | None) -> int | str | None:
    """Return what stands for no label in a column that has rows without one."""
    if label is None or not label.has_gaps:
        return None
    return "" if _label_dtype(label) == STRING else min(-1, int(label.least) - 1)


def _feature_names(root: Any, matrix: Matrix) -> tuple[str, ...]:
    n_features = matrix.shape[1]
    place, _, name = matrix.name.partition("/")
    if place == "obsm":
        return tuple(f"{name}_{j}" for j in range(n_features))
    names = index_of(root, "var")
    if names.n_rows != n_features:
        raise DataError(
            f"{names.name} has {names.n_rows} names but {matrix.name} has {n_features} columns.",
            "Write the store again: var has one row per column of X.",
        )
    return tuple(names.read(0, n_features)[0].tolist())


@contextmanager
def _damage_named(place: File) -> Iterator[None]:
    # zarr and h5py have no error of their own for what they cannot make sense of.
    try:
        yield
    except NRBFNError:
        raise
    except FileNotFoundError as error:
        raise MissingDataError(f"{place} does not exist.", "Check the path.") from error
    except (OSError, KeyError, ValueError, RuntimeError, TypeError) as error:
        raise DamagedDataError(
            f"{place} cannot be read as AnnData ({type(error).__name__}: {error}).",
            "Check the place, or write it again with AnnData.",
        ) from error
