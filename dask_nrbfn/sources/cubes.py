"""Rows from arrays with named dimensions: pixels, whose features lie along one of these."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

import numpy as np

from dask_nrbfn.errors import DataError
from dask_nrbfn.sources.dtypes import (
    FLOAT64,
    INT64,
    checked_mark,
    feature_dtype,
    label_dtype,
    to_labels,
)
from dask_nrbfn.sources.layout import Layout, check_size
from dask_nrbfn.sources.recut import recut
from dask_nrbfn.sources.source import Block

# Pixels that are read at once: more only where a chunk has more. Fewer are not worth a request.
BOX_PIXELS = 2**16

Box = Mapping[str, slice]
"""Consecutive pixels along each of some dimensions."""


class Cube(Protocol):
    """Array with named dimensions that is read box by box.

    Attributes
    ----------
    name : str
    dimensions : tuple of str
    shape, chunks : tuple of int
    dtype : dtype
        Of what `read` returns.
    """

    name: str
    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: np.dtype

    def read(self, box: Box) -> np.ndarray:
        """Return what lies in a box, NaN for none; dimensions that it does not name are whole."""
        ...


@dataclass(frozen=True)
class Grid:
    """The pixels of a cube, and the boxes in which they are read.

    Attributes
    ----------
    sizes : mapping of str to int
        Of the dimensions but that of the features, in their order.
    steps : mapping of str to int
        Those of a box, which has whole chunks.
    """

    sizes: Mapping[str, int]
    steps: Mapping[str, int]

    @classmethod
    def of(cls, cube: Cube, feature_dim: str) -> "Grid":
        """Return the pixels of a cube.

        Raises
        ------
        DataError
            If it has no such dimension, or no other one.
        """
        if feature_dim not in cube.dimensions:
            raise DataError(
                f"{cube.name} has the dimensions {', '.join(cube.dimensions) or 'none'}, not "
                f"{feature_dim}.",
                "Name one of them with `feature_dim`.",
            )
        others = [place for place, name in enumerate(cube.dimensions) if name != feature_dim]
        sizes = {cube.dimensions[place]: cube.shape[place] for place in others}
        steps = {cube.dimensions[place]: cube.chunks[place] for place in others}
        check_size(
            cube.name,
            n_rows=math.prod(sizes.values()) if sizes else 0,
            n_features=cube.shape[cube.dimensions.index(feature_dim)],
        )
        for name in reversed(steps):
            # Along the last dimension neighbours lie side by side.
            wanted = BOX_PIXELS // math.prod(steps.values())
            n_chunks = min(max(1, wanted), -(-sizes[name] // steps[name]))
            steps[name] = min(steps[name] * n_chunks, sizes[name])
        return cls(sizes, steps)

    @property
    def n_pixels(self) -> int:
        """All of them."""
        return math.prod(self.sizes.values())

    def indices(self) -> list[tuple[int, ...]]:
        """Return the places of all boxes among each other, the last dimension first."""
        counts = (-(-size // self.steps[name]) for name, size in self.sizes.items())
        return list(product(*map(range, counts)))

    def box(self, index: Sequence[int]) -> dict[str, slice]:
        """Return the box at a place."""
        starts = {name: i * self.steps[name] for name, i in zip(self.sizes, index, strict=True)}
        return {
            name: slice(start, min(start + self.steps[name], self.sizes[name]))
            for name, start in starts.items()
        }

    def numbers(self, box: Box) -> np.ndarray:
        """Return the numbers of the pixels of a box among all, row after row, int64 (b,)."""
        numbers = np.zeros((), dtype=INT64)
        for name, size in self.sizes.items():
            numbers = numbers[..., None] * size + np.arange(box[name].start, box[name].stop)
        return numbers.ravel()

    def spread(self, cube: Cube, box: Box) -> np.ndarray:
        """Return what a cube of some or all of these dimensions has for each pixel of a box, (b,).

        Pixels along a dimension that it has not share one value.
        """
        values = cube.read({name: box[name] for name in cube.dimensions})
        own = [name for name in self.sizes if name in cube.dimensions]
        values = values.transpose([cube.dimensions.index(name) for name in own])
        lengths = {name: box[name].stop - box[name].start for name in self.sizes}
        values = values.reshape([lengths[name] if name in own else 1 for name in lengths])
        return np.broadcast_to(values, tuple(lengths.values())).ravel()

    def check_shared(self, cube: Cube) -> None:
        """Raise DataError unless a cube has some of these dimensions, as long, and no others."""
        sizes = dict(zip(cube.dimensions, cube.shape, strict=True))
        for name, size in sizes.items():
            if self.sizes.get(name) != size:
                raise DataError(
                    f"{cube.name} has the dimensions {sizes}, the pixels {dict(self.sizes)}.",
                    "Give one value for every pixel, or for all along a dimension.",
                )


def pixel_rows(cube: Cube, feature_dim: str, box: Box) -> np.ndarray:
    """Return the pixels of a box as rows (b, p)."""
    values = np.moveaxis(cube.read(box), cube.dimensions.index(feature_dim), -1)
    return values.reshape(-1, values.shape[-1])


def matching(names: Sequence[str] | None, wanted: Sequence[str] | None, what: str) -> list[int]:
    """Return where the wanted features are among those of a cube; none if they are as they are.

    Raises
    ------
    DataError
        If one is missing, or there are several of its name.
    """
    if names is None or wanted is None or tuple(names) == tuple(wanted):
        return []
    for name in wanted:
        if names.count(name) != 1:
            raise DataError(
                f"{what} has {names.count(name) or 'no'} features named {name!r}, only "
                f"{', '.join(names[:20])}.",
                "Give the features of the training rows, by their names and in any order.",
            )
    return [names.index(name) for name in wanted]


class CubeSource(Layout):
    """Pixels of a cube as rows, but for those that lack a feature.

    Parameters
    ----------
    cube : Cube
    feature_dim : str
        The dimension of the features.
    feature_names : tuple of str, optional
    label : Cube, optional
        Labels of the pixels; NaN and empty text are none.
    targets : mapping of str to Cube
        Numbers, instead of labels.
    unlabelled : int, float or str, optional
        The label, or number, that pixels without one get; None: they are left out.

    Raises
    ------
    DataError
        If shapes or types do not fit, or no pixel is left.

    Notes
    -----
    Rows are in the order of the boxes of a `Grid`; their ids are the pixels' numbers in the order
    of the dimensions. The cube is read twice, once to count them.
    """

    def __init__(
        self,
        cube: Cube,
        feature_dim: str,
        *,
        feature_names: tuple[str, ...] | None = None,
        label: Cube | None = None,
        targets: Mapping[str, Cube] | None = None,
        unlabelled: float | str | None = None,
    ) -> None:
        self.cube, self.feature_dim, self.label = cube, feature_dim, label
        self.targets = targets or {}
        self.grid = Grid.of(cube, feature_dim)
        for column in (*self.targets.values(), *(() if label is None else (label,))):
            self.grid.check_shared(column)
        y_dtype = None if label is None else label_dtype(label.dtype, label.name)
        if self.targets:
            y_dtype = FLOAT64
        super().__init__(
            n_rows=0,
            n_features=cube.shape[cube.dimensions.index(feature_dim)],
            x_dtype=feature_dtype(cube.dtype, cube.name),
            y_dtype=y_dtype,
            feature_names=feature_names,
            target_names=tuple(self.targets) or None,
            id_dtype=INT64,
        )
        self.unlabelled = checked_mark(unlabelled, y_dtype, self.target_names)
        self.n_rows = sum(len(block.X) for block in self._boxes())
        if self.n_rows == 0:
            raise DataError(
                f"no pixel of {cube.name} has all features"
                f"{'' if y_dtype is None else ' and a label'}.",
                "Check what stands for no value; `unlabelled` keeps pixels without a label.",
            )

    def blocks(self, block_rows: int) -> Iterator[Block]:
        """Yield all rows in order, at most `block_rows` at a time."""
        return recut(self._boxes(), block_rows)

    def _boxes(self) -> Iterator[Block]:
        return (self._block(self.grid.box(index)) for index in self.grid.indices())

    def _block(self, box: Box) -> Block:
        y, kept = self._targets(box)
        numbers = self.grid.numbers(box)
        if not kept.any():
            # Most boxes of a scene may have no label, and their features need not be read.
            none = np.empty((0, self.n_features), dtype=self.x_dtype)
            return Block(none, None if y is None else y[:0], None, numbers[:0])
        X = pixel_rows(self.cube, self.feature_dim, box)
        kept = kept & ~np.isnan(X).any(axis=1)
        X = X[kept].astype(self.x_dtype, copy=False)
        return Block(X, None if y is None else y[kept], None, numbers[kept])

    def _targets(self, box: Box) -> tuple[np.ndarray | None, np.ndarray]:
        """Return labels (b,) or numbers (b, q) of the pixels of a box, and which are rows, (b,)."""
        if self.targets:
            columns = [self.grid.spread(cube, box) for cube in self.targets.values()]
            y = np.stack(columns, axis=1).astype(FLOAT64)
            missing = np.asarray(np.isnan(y).any(axis=1))
        elif self.label is not None:
            given = self.grid.spread(self.label, box)
            missing = _unlabelled(given)
            y = np.zeros(len(given), dtype=self.y_dtype)
            y[~missing] = to_labels(given[~missing], self.label.name)
        else:
            lengths = (each.stop - each.start for each in box.values())
            return None, np.ones(math.prod(lengths), dtype=np.bool_)
        if self.unlabelled is None:
            return y, ~missing
        y[missing] = self.unlabelled
        return y, np.ones(len(y), dtype=np.bool_)


def _unlabelled(values: np.ndarray) -> np.ndarray:
    """Return which labels are NaN or empty text, bool (b,)."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind in "TUS":
        return np.strings.str_len(values) == 0
    return np.zeros(len(values), dtype=np.bool_)
