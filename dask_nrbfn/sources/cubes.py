"""Pixels of xarray's arrays as rows: their features lie along a dimension, or are variables."""

import itertools
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dask_nrbfn.errors import DamagedDataError, DataError, NRBFNError
from dask_nrbfn.sources.dtypes import (
    FLOAT64,
    INT64,
    STRING,
    checked_mark,
    feature_dtype,
    label_dtype,
    to_labels,
)
from dask_nrbfn.sources.source import Block, Source, check_size, named_columns

if TYPE_CHECKING:
    import xarray as xr

logger = logging.getLogger(__name__)

# Number of pixels that are read at once, unless a chunk has more. Fewer are not worth a request.
BOX_PIXELS = 2**16


Box = Mapping[str, slice]
"""Consecutive pixels along each of some dimensions."""


@dataclass(frozen=True)
class Grid:
    """The pixels of a cube, and the boxes in which they are read.

    sizes: sizes of the dimensions of the pixels, in their order.
    steps: sizes of a box, which consists of whole chunks.
    """

    sizes: Mapping[str, int]
    steps: Mapping[str, int]

    @classmethod
    def of(cls, sizes: Mapping[str, int], chunks: Mapping[str, int]) -> "Grid":
        """Return the pixels of an array, in boxes of whole chunks.

        sizes: the dimensions of the pixels, in order.
        chunks: pixels of a chunk along each dimension.
        """
        steps = {name: max(1, min(sizes[name], chunk)) for name, chunk in chunks.items()}
        for name in reversed(steps):
            # Along the last dimension neighbours lie side by side.
            wanted = max(1, BOX_PIXELS // math.prod(steps.values()))
            steps[name] = max(1, min(steps[name] * wanted, sizes[name]))
        return cls(sizes, steps)

    @property
    def n_pixels(self) -> int:
        """Number of all pixels."""
        return math.prod(self.sizes.values())

    def indices(self) -> list[tuple[int, ...]]:
        """Return the index of each box along all dimensions; the last dimension varies fastest."""
        return [*np.ndindex(*(-(-size // self.steps[name]) for name, size in self.sizes.items()))]

    def box(self, index: Sequence[int]) -> dict[str, slice]:
        """Return the box with an index."""
        starts = {name: i * self.steps[name] for name, i in zip(self.sizes, index, strict=True)}
        return {
            name: slice(start, min(start + self.steps[name], self.sizes[name]))
            for name, start in starts.items()
        }

    def numbers(self, box: Box) -> np.ndarray:
        """Return the index of each pixel of a box among all pixels, int64 (b,)."""
        places = np.ix_(*(np.arange(box[name].start, box[name].stop) for name in self.sizes))
        return np.ravel_multi_index(places, tuple(self.sizes.values())).ravel()


@dataclass(frozen=True)
class Cube:
    """Arrays of one scene, by name, whose values at a pixel are its features.

    All pixels along a dimension that an array lacks share the values of this array. Features lie
    along `feature_dims`, of which the first varies slowest. An array without any of them is one
    feature.
    """

    arrays: "Mapping[str, xr.DataArray]"
    feature_dims: tuple[str, ...]
    place: str

    def __post_init__(self) -> None:
        absent = next((dim for dim in self.feature_dims if dim not in self.dims), None)
        if absent is not None:
            raise DataError(
                f"{self.name} has the dimensions {', '.join(map(str, self.dims)) or 'none'}, not "
                f"{absent}.",
                "Name existing dimensions with `feature_dim`, with commas between several.",
            )
        n_pixels = self.grid.n_pixels if self.grid.sizes else 0
        check_size(self.name, n_rows=n_pixels, n_features=self.n_features)
        # numpy would refuse objects and complex numbers later, or not at all.
        _ = self.dtype

    @property
    def name(self) -> str:
        """The name of the arrays in errors."""
        return f"{', '.join(self.arrays)} in {self.place}"

    @cached_property
    def dims(self) -> tuple[Any, ...]:
        """All dimensions, in the order of the array that has most dimensions."""
        arrays = sorted(self.arrays.values(), key=lambda each: -each.ndim)
        return tuple(dict.fromkeys(dim for each in arrays for dim in each.dims))

    @cached_property
    def grid(self) -> Grid:
        """The pixels."""
        sizes, chunks = {}, {}
        for dim in self.dims:
            if dim not in self.feature_dims:
                having = [each for each in self.arrays.values() if dim in each.dims]
                sizes[dim] = having[0].sizes[dim]
                chunks[dim] = max(_chunk(each, dim) for each in having)
        return Grid.of(sizes, chunks)

    @property
    def axis(self) -> int:
        """Position of the first feature dimension among the dimensions of the pixels."""
        return min(map(self.dims.index, self.feature_dims), default=0)

    @property
    def n_features(self) -> int:
        """Number of features of a pixel."""
        return sum(
            math.prod(each.sizes[dim] for dim in self._along(each)) for each in self.arrays.values()
        )

    @cached_property
    def dtype(self) -> np.dtype:
        """Type of the features."""
        kinds = (feature_dtype(each.dtype, str(name)) for name, each in self.arrays.items())
        return np.result_type(*kinds)

    @property
    def stored_bytes(self) -> int:
        """Largest number of bytes of a feature before it is decoded."""
        kinds = (each.encoding.get("dtype", each.dtype) for each in self.arrays.values())
        return max(np.dtype(kind).itemsize for kind in kinds)

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """Names of the features: coordinates joined by _, with NAME_ before for several arrays."""
        names: list[str] = []
        for name, array in self.arrays.items():
            along = self._along(array)
            known = [_names_along(array, dim) for dim in along]
            alone = len(self.arrays) == 1 and bool(along)
            if alone and not any(known):
                return None
            numbers = [map(str, range(array.sizes[dim])) for dim in along]
            places = itertools.product(*(a or b for a, b in zip(known, numbers, strict=True)))
            names += ["_".join(place if alone else (name, *place)) for place in places]
        return tuple(names)

    @property
    def coords(self) -> "dict[Any, xr.DataArray]":
        """Coordinates of the pixels."""
        every = {
            name: each for array in self.arrays.values() for name, each in array.coords.items()
        }
        return {name: each for name, each in every.items() if not self._along(each)}

    @property
    def attrs(self) -> dict[Any, Any]:
        """The attributes of the arrays, except attributes that differ between arrays."""
        every = [told for each in self.arrays.values() for told in each.attrs.items()]
        return {
            name: value
            for name, value in every
            if all(np.array_equal(other, value) for also, other in every if also == name)
        }

    def values(self, box: Box) -> np.ndarray:
        """Return the features of the pixels of a box, (..., p)."""
        parts = []
        for array in self.arrays.values():
            part = self._spread(array, box)
            parts.append(part.reshape(*part.shape[: len(self.grid.sizes)], -1))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)

    def rows(self, box: Box) -> np.ndarray:
        """Return the pixels of a box as rows (b, p)."""
        values = self.values(box)
        return values.reshape(-1, values.shape[-1])

    def column(self, array: "xr.DataArray", box: Box) -> np.ndarray:
        """Return the values of another array for each pixel of a box; missing text is empty.

        array: has some dimensions of the pixels.
        returns ndarray (b,).
        """
        values = np.asarray(self._spread(array, box)).ravel()
        if values.dtype.kind != "O":
            return values
        from pandas import isna

        text = np.where(isna(values), "", values)
        if not all(isinstance(each, str) for each in text.tolist()):
            raise DataError(
                f"{array.name} holds Python objects that are not text.",
                f"Convert {array.name} to one type, such as float64, where NaN marks a missing "
                "label.",
            )
        return text.astype(STRING)

    def check_shared(self, array: "xr.DataArray") -> None:
        """Raise DataError unless an array has some dimensions of the pixels, and no others."""
        sizes = dict(array.sizes)
        if not sizes.items() <= self.grid.sizes.items():
            raise DataError(
                f"{array.name} has the dimensions {sizes}, but the pixels have "
                f"{dict(self.grid.sizes)}.",
                f"Give {array.name} with some or all dimensions of the pixels, of the same sizes.",
            )

    def _along(self, array: "xr.DataArray") -> list[str]:
        """Return the feature dimensions that an array has."""
        return [dim for dim in self.feature_dims if dim in array.dims]

    def _spread(self, array: "xr.DataArray", box: Box) -> Any:
        sizes: dict[Any, int] = {name: each.stop - each.start for name, each in box.items()}
        variable: Any = array.variable
        variable = variable.isel({name: box[name] for name in variable.dims if name in box})
        sizes |= {dim: variable.sizes[dim] for dim in self._along(array)}
        try:
            return variable.compute().set_dims(sizes).data
        except (ValueError, RuntimeError, TypeError, OSError) as error:
            if isinstance(error, NRBFNError):
                raise
            raise DamagedDataError(
                f"{array.name} in {self.place} cannot be read ({error}).",
                "Restore the damaged chunk from a copy, or write the scene again.",
            ) from error


def feature_dims(given: str | None) -> tuple[str, ...]:
    """Return the dimensions of features that the option `feature_dim` names.

    >>> feature_dims(None), feature_dims("time,band")
    ((), ('time', 'band'))
    """
    return () if given is None else named_columns("feature_dim", given)


def _chunk(array: "xr.DataArray", dim: str) -> int:
    """Return the length of the chunks of an array along a dimension."""
    # Chunks of a dask array, or of a stored array that is not loaded; others have no chunks.
    stored = array.chunksizes.get(dim) or array.encoding.get("preferred_chunks", {}).get(dim, 1)
    return int(np.max(stored))


def _names_along(array: "xr.DataArray", dim: Any) -> tuple[str, ...] | None:
    """Return the coordinates of a dimension as text, dates in ISO; None if it has none.

    >>> import xarray as xr
    >>> days = np.array(["2016-01-11", "2016-01-21T10:30"], "M8[ns]")
    >>> _names_along(xr.DataArray([1, 2], {"time": days}, "time"), "time")
    ('2016-01-11', '2016-01-21T10:30:00')
    >>> _names_along(xr.DataArray([1, 2], {"band": [0.49, 0.56]}, "band"), "band")
    ('0.49', '0.56')
    """
    if dim not in array.coords or array[dim].ndim != 1:
        return None
    return tuple(map(_as_text, array[dim].to_index()))


def _as_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    # Dates of any calendar, and durations.
    told = value.isoformat() if hasattr(value, "isoformat") else str(value)
    return str(told).removesuffix("T00:00:00")


def matching(names: Sequence[str] | None, wanted: Sequence[str] | None, what: str) -> list[int]:
    """Return the index of each wanted feature in a cube; empty if no reordering is needed.

    names: features of the cube, if they have names.
    what: the cube, for errors.
    """
    if names is None or wanted is None or tuple(names) == tuple(wanted):
        return []
    remedy = "Give all features of the training rows, each once and in any order."
    for name in wanted:
        if names.count(name) != 1:
            raise DataError(
                f"{what} has {names.count(name) or 'no'} features named {name!r}; its features are "
                f"{', '.join(names[:20])}.",
                remedy,
            )
    return [names.index(name) for name in wanted]


@dataclass(kw_only=True)
class CubeSource(Source):
    """Pixels of a cube as rows, without pixels that lack a feature.

    label: labels of the pixels; NaN and empty text are missing labels.
    targets: numeric targets, instead of labels.

    Rows are in the order of the boxes of a `Grid`. The id of a row is the index of its pixel among
    all pixels, which ``numpy.unravel_index`` converts to an index along each dimension.
    """

    cube: Cube
    label: "xr.DataArray | None"
    targets: "Mapping[str, xr.DataArray]"

    @classmethod
    def of(
        cls,
        cube: Cube,
        *,
        label: "xr.DataArray | None" = None,
        targets: "Mapping[str, xr.DataArray] | None" = None,
        unlabelled: float | str | None = None,
    ) -> Self:
        """Return the pixels of a cube as rows; reads the cube once to count them.

        Without the marker `unlabelled`, pixels without a label or target are left out.
        """
        targets = targets or {}
        for column in (*targets.values(), *(() if label is None else (label,))):
            cube.check_shared(column)
        y_dtype = FLOAT64 if targets else None
        if label is not None:
            kind = STRING if label.dtype.kind == "O" else label.dtype
            y_dtype = label_dtype(kind, str(label.name))
        names = tuple(targets) or None
        source = cls(
            n_rows=0,
            n_features=cube.n_features,
            x_dtype=cube.dtype,
            y_dtype=y_dtype,
            feature_names=cube.feature_names,
            target_names=names,
            id_dtype=INT64,
            unlabelled=checked_mark(unlabelled, y_dtype, names),
            boolean_labels=label is not None and label.dtype.kind == "b",
            cube=cube,
            label=label,
            targets=targets,
        )
        source.n_rows = sum(len(block.X) for block in source._parts(0))
        if source.n_rows == 0:
            raise DataError(
                f"no pixel of {cube.name} has all features"
                f"{'' if y_dtype is None else ' and a label'}.",
                "Check the missing-value markers, or set `unlabelled` to keep pixels without a "
                "label.",
            )
        logger.info(
            "%d of %d pixels are rows; the other %d lack a feature%s",
            *(source.n_rows, cube.grid.n_pixels, cube.grid.n_pixels - source.n_rows),
            "" if y_dtype is None or unlabelled is not None else ", or a label or target",
        )
        sizes = ", ".join(f"{name}: {size}" for name, size in cube.grid.sizes.items())
        logger.info("ids of the rows number the pixels in the order of (%s)", sizes)
        return source

    def _parts(self, block_rows: int) -> Iterator[Block]:
        return (self._block(self.cube.grid.box(index)) for index in self.cube.grid.indices())

    def _block(self, box: Box) -> Block:
        y, kept = self._targets(box)
        numbers = self.cube.grid.numbers(box)
        if not kept.any():
            # Most boxes of a scene may have no label, and their features need not be read.
            none = np.empty((0, self.n_features), dtype=self.x_dtype)
            return Block(none, None if y is None else y[:0], None, numbers[:0])
        X = self.cube.rows(box)
        kept = kept & ~np.isnan(X).any(axis=1)
        X = X[kept].astype(self.x_dtype, copy=False)
        return Block(X, None if y is None else y[kept], None, numbers[kept])

    def _targets(self, box: Box) -> tuple[np.ndarray | None, np.ndarray]:
        """Return labels (b,) or targets (b, q) of the pixels of a box, and which pixels to keep."""
        if self.targets:
            columns = [self.cube.column(each, box) for each in self.targets.values()]
            y = np.stack(columns, axis=1).astype(FLOAT64)
            missing = np.asarray(np.isnan(y).any(axis=1))
        elif self.label is not None:
            given = self.cube.column(self.label, box)
            is_text = given.dtype.kind in "TUS"
            missing = np.strings.str_len(given) == 0 if is_text else given != given
            y = np.zeros(len(given), dtype=self.y_dtype)
            y[~missing] = to_labels(given[~missing], str(self.label.name))
        else:
            lengths = (each.stop - each.start for each in box.values())
            return None, np.ones(math.prod(lengths), dtype=np.bool_)
        if self.unlabelled is None:
            return y, ~missing
        y[missing] = self.unlabelled
        return y, np.ones(len(y), dtype=np.bool_)
