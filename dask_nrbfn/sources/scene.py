"""Scenes: pixels of Zarr groups, netCDF and other files that xarray opens, read box by box."""

import hashlib
import itertools
import json
import logging
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.sources import dtypes
from dask_nrbfn.sources.files import File, damage_named
from dask_nrbfn.sources.source import Block, Reading, Source, check_size, named_columns
from dask_nrbfn.sources.zarr_arrays import opened_zarr

if TYPE_CHECKING:
    import xarray as xr

logger = logging.getLogger(__name__)

# Number of pixels that are read at once, unless a chunk has more. Fewer are not worth a request.
BOX_PIXELS = 2**16

# Errors of xarray and its engines about files that they cannot read.
_UNREADABLE = (ImportError, ValueError, KeyError, TypeError, OSError, RuntimeError)

# Consecutive pixels along each dimension of the pixels.
Box = tuple[slice, ...]


@dataclass(frozen=True)
class Scene:
    """The pixels of some variables, which are read in boxes of whole chunks.

    Pixels along a dimension that a variable lacks share its values. A variable without any of the
    `feature_dims` is one feature. `sizes` and `steps` are those of all pixels and of a box.
    """

    place: File
    variables: tuple[str, ...]
    feature_dims: tuple[str, ...]
    feature_names: tuple[str, ...]
    dtype: np.dtype
    sizes: Mapping[str, int]
    steps: tuple[int, ...]

    @classmethod
    def at(cls, place: File, variables: tuple[str, ...], feature_dim: str | None) -> "Scene":
        """Return a scene whose features lie along `feature_dim`, such as "band" or "time,band"."""
        along = () if feature_dim is None else named_columns("feature_dim", feature_dim)
        if not variables or (not along and len(variables) == 1):
            raise ParameterError(
                f"{place} is read as a scene, but its features are not known.",
                "Name a variable with `variable` and the dimension of its features with "
                "`feature_dim`, or several variables with `variable`.",
            )
        with open_scene(place) as stored:
            arrays = {name: _variable(stored, name, "variable", place) for name in variables}
            by_rank = sorted(arrays.values(), key=lambda each: -each.ndim)
            dims = dict.fromkeys(str(dim) for each in by_rank for dim in each.dims)
            what = f"{', '.join(arrays)} in {place}"
            for dim in along:
                if dim not in dims:
                    raise DataError(
                        f"{what} has the dimensions {', '.join(dims) or 'none'}, not {dim}.",
                        "Name existing dimensions with `feature_dim`, with commas between several.",
                    )
            sizes = {dim: stored.sizes[dim] for dim in dims if dim not in along}
            kinds = (dtypes.feature_dtype(each.dtype, name) for name, each in arrays.items())
            names = tuple(_feature_names(arrays, along))
            n_rows = math.prod(sizes.values()) if sizes else 0
            check_size(what, n_rows=n_rows, n_features=len(names))
            steps = _steps(sizes, by_rank)
            return cls(place, variables, along, names, np.result_type(*kinds), sizes, steps)

    @property
    def n_pixels(self) -> int:
        """Number of pixels."""
        return math.prod(self.sizes.values())

    def boxes(self) -> list[Box]:
        """Return all boxes in order; the last dimension varies fastest."""
        cuts = (
            [slice(start, min(start + step, size)) for start in range(0, size, step)]
            for step, size in zip(self.steps, self.sizes.values(), strict=True)
        )
        return [*itertools.product(*cuts)]

    def numbers(self, box: Box) -> np.ndarray:
        """Return the index of each pixel of a box among all pixels, int64 (b,)."""
        places = np.ix_(*(np.arange(each.start, each.stop) for each in box))
        return np.ravel_multi_index(places, tuple(self.sizes.values())).ravel()

    def rows(self, stored: "xr.Dataset", box: Box) -> np.ndarray:
        """Return the features of the pixels of a box, (b, p)."""
        parts = [self.read(stored[name], box) for name in self.variables]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def read(self, array: "xr.DataArray", box: Box) -> np.ndarray:
        """Return the values of a variable at the pixels of a box, (b, its features)."""
        place: dict[Any, Any] = dict(zip(self.sizes, box, strict=True))
        lengths = {dim: each.stop - each.start for dim, each in place.items()}
        along = {dim: array.sizes[dim] for dim in self.feature_dims if dim in array.dims}
        problem = f"{array.name} in {self.place} cannot be read"
        remedy = "Restore the damaged chunk from a copy, or write the scene again."
        with damage_named(problem, remedy, *_UNREADABLE):
            values: Any = array.variable.isel(place, missing_dims="ignore").compute()
        rows = values.set_dims({**lengths, **along}).to_numpy()
        return rows.reshape(math.prod(lengths.values()), -1)

    def column(self, stored: "xr.Dataset", name: str, option: str) -> "xr.DataArray":
        """Return a variable that has only dimensions of the pixels."""
        array = _variable(stored, name, option, self.place)
        if not {*array.dims} <= {*self.sizes}:
            raise DataError(
                f"{name} has the dimensions {', '.join(map(str, array.dims))}, but the pixels have "
                f"{', '.join(self.sizes)}.",
                f"Give {name} with some or all dimensions of the pixels.",
            )
        return array

    def digest(self) -> str:
        """Return a digest of the layout of the pixels, and of sizes and times of the files."""
        names = (str(self.place), self.variables, self.feature_dims, self.feature_names)
        told = (*names, [*self.sizes.items()], self.steps, str(self.dtype), self.place.stamps())
        return hashlib.blake2b(
            json.dumps(told, sort_keys=True).encode(), digest_size=16
        ).hexdigest()


def _variable(stored: "xr.Dataset", name: str, option: str, place: File) -> "xr.DataArray":
    if name not in stored.variables:
        names = ", ".join(map(str, stored.data_vars)) or "none"
        raise ParameterError(
            f"`{option}` is {name}, but the variables of {place} are {names}.",
            f"Name an existing variable with `{option}`.",
        )
    return stored[name]


def _steps(sizes: Mapping[str, int], arrays: "list[xr.DataArray]") -> tuple[int, ...]:
    """Return the sizes of boxes of `BOX_PIXELS`, or of one chunk if it has more pixels."""
    steps = dict.fromkeys(sizes, 1)
    for dim, array in itertools.product(sizes, arrays):
        chunk = array.encoding.get("preferred_chunks", {}).get(dim, 1)
        steps[dim] = max(steps[dim], min(sizes[dim], int(np.max(chunk))))
    for dim in reversed(steps):
        # Along the last dimension neighbours lie side by side.
        wanted = steps[dim] * (BOX_PIXELS // math.prod(steps.values()))
        steps[dim] = max(steps[dim], min(wanted, sizes[dim]))
    return tuple(steps.values())


def _feature_names(arrays: "Mapping[str, xr.DataArray]", along: tuple[str, ...]) -> Iterator[str]:
    """Yield coordinates or indices joined by _, for several variables after the name and _."""
    for name, array in arrays.items():
        dims = [dim for dim in along if dim in array.dims]
        own = [] if len(arrays) == 1 and dims else [[name]]
        known = (array.indexes.get(dim, range(array.sizes[dim])) for dim in dims)
        yield from map("_".join, itertools.product(*own, *(map(_as_text, each) for each in known)))


def _as_text(value: Any) -> str:
    """Return a coordinate as text; dates of any calendar, and durations, as in ISO 8601."""
    told = value.isoformat() if hasattr(value, "isoformat") else str(value)
    return str(told).removesuffix("T00:00:00")


@dataclass(kw_only=True)
class PixelSource(Source):
    """Pixels as rows, box by box, without pixels that lack a feature, or a label without marker.

    columns: the variable of the labels, or those of the `target_names`.
    """

    scene: Scene
    columns: tuple[str, ...]

    def _parts(self, block_rows: int) -> Iterator[Block]:
        with open_scene(self.scene.place) as stored:
            for box in self.scene.boxes():
                numbers = self.scene.numbers(box)
                y, kept = self._targets(stored, box, len(numbers))
                if kept.any():
                    # Most boxes may have no label, and their features are not read.
                    X = self.scene.rows(stored, box)
                    kept &= ~np.isnan(X).any(axis=1)
                    X = X[kept].astype(self.x_dtype, copy=False)
                    yield Block(X, None if y is None else y[kept], None, numbers[kept])

    def _targets(self, stored: "xr.Dataset", box: Box, n_rows: int) -> tuple[Any, np.ndarray]:
        """Return labels (b,), targets (b, q) or None, and which pixels to keep."""
        kept = np.ones(n_rows, dtype=np.bool_)
        if not self.columns:
            return None, kept
        given = np.hstack([self.scene.read(stored[name], box) for name in self.columns])
        if given.dtype.kind == "O":
            from pandas import isna

            given = np.where(isna(given), "", given).astype(dtypes.STRING)
        is_text = given.dtype.kind in "TUS"
        missing = (np.strings.str_len(given) == 0 if is_text else np.isnan(given)).any(axis=1)
        if self.target_names:
            y = given.astype(dtypes.FLOAT64)
        else:
            y = np.zeros(n_rows, self.y_dtype)
            y[~missing] = dtypes.to_labels(given[~missing, 0], self.columns[0])
        if self.unlabelled is None:
            return y, ~missing
        y[missing] = self.unlabelled
        return y, kept


def open_rows(reading: Reading) -> PixelSource:
    """Return the pixels of a scene as rows; reads the scene once to count them."""
    targets = reading.names("target")
    columns = targets or tuple(filter(None, [reading.label]))
    option = "target" if targets else "label"
    scene = Scene.at(reading.place, reading.names("variable") or (), reading.feature_dim)
    with open_scene(scene.place) as stored:
        kinds = [scene.column(stored, name, option).dtype for name in columns]
    for name, kind in zip(targets or (), kinds, strict=False):
        # Raises an error for text.
        dtypes.feature_dtype(kind, name)
    y_dtype = dtypes.FLOAT64 if targets else None
    if reading.label is not None:
        kind = dtypes.STRING if kinds[0].kind == "O" else kinds[0]
        y_dtype = dtypes.label_dtype(kind, reading.label)
    source = PixelSource(
        n_rows=0,
        n_features=len(scene.feature_names),
        x_dtype=scene.dtype,
        y_dtype=y_dtype,
        feature_names=scene.feature_names,
        target_names=targets,
        id_dtype=dtypes.INT64,
        unlabelled=dtypes.checked_mark(reading.unlabelled, y_dtype, targets),
        boolean_labels=not targets and kinds[:1] == [np.bool_],
        scene=scene,
        columns=columns,
    )
    source.n_rows = sum(len(block.X) for block in source._parts(0))
    left_out = f"{scene.n_pixels - source.n_rows} of {scene.n_pixels} pixels of {scene.place} "
    needs_label = bool(columns) and reading.unlabelled is None
    left_out += "lack a feature" + ", or a label or target" * needs_label
    if source.n_rows == 0:
        remedy = "Check the markers of missing values, or set `unlabelled` to keep these pixels."
        raise DataError(f"{left_out}.", remedy)
    order = ", ".join(f"{dim}: {size}" for dim, size in scene.sizes.items())
    logger.info("%s; ids of the rows number the pixels in the order of (%s)", left_out, order)
    return source


def open_scene(place: File) -> "xr.Dataset":
    """Return a scene that xarray opened, its values decoded but not loaded; the caller closes it.

    While a process has a file open, HDF5 returns the old values even if the file is written again.
    """
    # Some servers do not list directories.
    by_name = place.is_remote and PurePath(place.name).suffix in ("", ".zarr")
    is_zarr = by_name or place.name.endswith(".zip") or place.is_directory()
    options = dict(place.storage_options) or None
    how: dict[str, Any] = {"engine": "zarr", "storage_options": options} if is_zarr else {}
    target = place.open() if place.is_remote and not is_zarr else place.path
    problem = f"{place} cannot be opened by xarray"
    remedy = (
        "Give a file whose dimensions have names. dask-nrbfn[xarray] installs xarray and h5netcdf "
        "for netCDF; other formats may need another engine."
    )
    with damage_named(problem, remedy, *_UNREADABLE), warnings.catch_warnings():
        # Warnings about metadata that is not consolidated, and about changes in later versions.
        warnings.simplefilter("ignore")
        import xarray as xr

        raw = xr.open_dataset(target, **how, cache=False, decode_cf=False)
        if is_zarr and (root := opened_zarr(place)).metadata.zarr_format == 2:
            # The default fill value of Zarr v2 is 0, which xarray reads as missing. Its option
            # `use_zarr_fill_value_as_mask` would keep -9999 as a value too.
            for name, each in raw.variables.items():
                stored = root[str(name)].attrs
                if each.attrs.get("_FillValue") == 0 and "_FillValue" not in stored:
                    del each.attrs["_FillValue"]
        return xr.decode_cf(raw, decode_coords="all")
