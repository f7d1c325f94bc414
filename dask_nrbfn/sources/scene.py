"""Scenes: pixels of Zarr groups, netCDF and other files that xarray opens, read box by box."""

import itertools
import logging
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.sources import dtypes
from dask_nrbfn.sources.files import File, damage_named
from dask_nrbfn.sources.frames import labels_of
from dask_nrbfn.sources.options import Names, named_columns
from dask_nrbfn.sources.source import Block, Request, Source, check_found, check_size
from dask_nrbfn.sources.zarr_arrays import opened_zarr

if TYPE_CHECKING:
    import xarray as xr

logger = logging.getLogger(__name__)

# Number of pixels that are read at once, unless a chunk has more. Fewer are not worth a request.
BOX_PIXELS = 2**16

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
    def at(cls, place: File, variables: tuple[str, ...], feature_dim: Names) -> "Scene":
        """Return a scene whose features lie along `feature_dim`, such as "band" or "time,band"."""
        along = named_columns(feature_dim)
        if not variables or (not along and len(variables) == 1):
            raise ParameterError(
                f"{place} is read as a scene, but its features are not known.",
                "Name a variable with `variable` and the dimension of its features with "
                "`feature_dim`, or several variables with `variable`.",
            )
        with open_scene(place) as stored:
            if zeros := stored.encoding.get("zeros"):
                logger.info("%s: 0 is a value of %s: it is not marked as missing", place, zeros)
            arrays = [_variable(stored, name, "variable", place) for name in variables]
            by_rank = sorted(arrays, key=lambda each: -each.ndim)
            dims = dict.fromkeys(str(dim) for each in by_rank for dim in each.dims)
            what = f"{', '.join(variables)} in {place}"
            remedy = "Name existing dimensions with `feature_dim`, with commas between several."
            check_found(along, [*dims], what, remedy, "dimension")
            sizes = {dim: stored.sizes[dim] for dim in dims if dim not in along}
            kinds = (dtypes.feature_dtype(each.dtype, str(each.name)) for each in arrays)
            names = tuple(_feature_names(arrays, along))
            check_size(what, n_rows=math.prod(sizes.values()) * bool(sizes), n_features=len(names))
            steps = _steps(sizes, arrays)
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

    def rows(self, stored: "xr.Dataset", box: Box, names: tuple[str, ...] = ()) -> np.ndarray:
        """Return the features, or other variables, of the pixels of a box, (b, p)."""
        places: dict[Any, Any] = dict(zip(self.sizes, box, strict=True))
        lengths = {dim: each.stop - each.start for dim, each in places.items()}
        parts = []
        for name in names or self.variables:
            with damage_named(f"{name} in {self.place}", "an array of xarray"):
                values: Any = stored[name].variable.isel(places, missing_dims="ignore").compute()
            along = {dim: values.sizes[dim] for dim in self.feature_dims if dim in values.sizes}
            part = values.set_dims({**lengths, **along}).to_numpy()
            parts.append(part.reshape(math.prod(lengths.values()), -1))
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def _variable(stored: "xr.Dataset", name: str, option: str, place: File) -> "xr.DataArray":
    remedy = f"Name an existing variable with `{option}`."
    check_found([name], [*map(str, stored.variables)], place, remedy, "variable")
    return stored[name]


def _steps(sizes: Mapping[str, int], arrays: "list[xr.DataArray]") -> tuple[int, ...]:
    """Return the sizes of boxes of `BOX_PIXELS`, or of one chunk if it has more pixels."""
    steps = {}
    for dim, size in sizes.items():
        chunks = [each.encoding.get("preferred_chunks", {}).get(dim, 1) for each in arrays]
        steps[dim] = min(size, max(int(np.max(chunk)) for chunk in chunks))
    for dim in reversed(steps):
        # Along the last dimension neighbours lie side by side.
        n_steps = max(1, BOX_PIXELS // math.prod(steps.values()))
        steps[dim] = min(steps[dim] * n_steps, sizes[dim])
    return tuple(steps.values())


def _feature_names(arrays: "list[xr.DataArray]", along: tuple[str, ...]) -> Iterator[str]:
    """Yield coordinates or indices joined by _, for several variables after the name and _."""
    for array in arrays:
        parts = [] if len(arrays) == 1 else [[array.name]]
        for dim in along:
            if dim in array.dims:
                parts.append(array.indexes.get(dim, range(array.sizes[dim])))
        for name in itertools.product(*parts):
            # Dates of any calendar are texts that begin as in ISO 8601.
            yield "_".join(str(part).removesuffix(" 00:00:00") for part in name)


@dataclass(kw_only=True)
class PixelSource(Source):
    """Pixels as rows, box by box, without pixels that lack a feature, or a label without marker."""

    scene: Scene
    columns: tuple[str, ...]

    def _parts(self, block_rows: int) -> Iterator[Block]:
        sizes = tuple(self.scene.sizes.values())
        with open_scene(self.scene.place) as stored:
            for box in self.scene.boxes():
                places = np.ix_(*(np.arange(each.start, each.stop) for each in box))
                ids = np.ravel_multi_index(places, sizes).ravel()
                y, kept = None, np.ones(len(ids), dtype=np.bool_)
                if self.columns:
                    y, missing = self._targets(self.scene.rows(stored, box, self.columns))
                    if self.unlabelled is None:
                        kept = ~missing
                    else:
                        y[missing] = self.unlabelled
                if kept.any():
                    # Most boxes may have no label, and their features are not read.
                    X = self.scene.rows(stored, box)
                    kept &= ~np.isnan(X).any(axis=1)
                    X = X[kept].astype(self.x_dtype, copy=False)
                    yield Block(X, None if y is None else y[kept], None, ids[kept])

    def _targets(self, given: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return labels (b,) or targets (b, q), and which of them are missing."""
        if self.target_names is not None:
            return given.astype(dtypes.FLOAT64), np.isnan(given).any(axis=1)
        y = labels_of(given[:, 0], "", name=self.columns[0]).stored("")
        missing = y == ("" if y.dtype == dtypes.STRING else dtypes.NO_LABEL)
        return y.astype(self.y_dtype, copy=False), missing


def open_pixels(request: Request) -> PixelSource:
    """Return pixels, counted in one pass; ids number all pixels in the order of the dimensions."""
    options = request.options
    scene = Scene.at(request.place, named_columns(options.variable), options.feature_dim)
    targets = named_columns(options.target) or None
    columns = targets or (() if options.label is None else (options.label,))
    check = dtypes.feature_dtype if targets else dtypes.label_dtype
    y_dtype, is_boolean = None, False
    with open_scene(scene.place) as stored:
        for name in columns:
            array = _variable(stored, name, "target" if targets else "label", scene.place)
            remedy = f"Give {name} with some or all dimensions of the pixels."
            dims, grid = [*map(str, array.dims)], "the grid of the pixels"
            check_found(dims, [*scene.sizes], grid, remedy, "dimension")
            # xarray reads the text of netCDF as Python objects.
            y_dtype = check(dtypes.STRING if array.dtype == object else array.dtype, name)
            is_boolean = not targets and array.dtype == np.bool_
    y_dtype = dtypes.FLOAT64 if targets else y_dtype
    source = PixelSource(
        n_rows=0,
        n_features=len(scene.feature_names),
        x_dtype=scene.dtype,
        y_dtype=y_dtype,
        feature_names=scene.feature_names,
        target_names=targets,
        id_dtype=dtypes.INT64,
        unlabelled=dtypes.checked_mark(options.unlabelled, y_dtype, targets),
        boolean_labels=is_boolean,
        scene=scene,
        columns=columns,
    )
    source.n_rows = sum(len(block.X) for block in source._parts(0))
    known = f"{scene.place}, without pixels that lack a feature or label,"
    check_size(known, n_rows=source.n_rows, n_features=source.n_features)
    logger.info("%s has %d of %d pixels", known, source.n_rows, scene.n_pixels)
    return source


def open_scene(place: File) -> "xr.Dataset":
    """Return a scene that xarray opened, its values decoded but not loaded; the caller closes it.

    While a process has a file open, HDF5 returns the old values even if the file is written again.
    """
    # Some servers do not list directories.
    is_zarr = place.name.endswith(".zarr") if place.is_remote else place.is_directory()
    target = place.open() if place.is_remote and not is_zarr else place.path
    remedy = (
        "Give a file whose dimensions have names. dask-nrbfn[xarray] installs xarray and h5netcdf "
        "for netCDF; other formats may need another engine."
    )
    with damage_named(place, "a scene of xarray", remedy), warnings.catch_warnings():
        # Warnings about metadata that is not consolidated, and about changes in later versions.
        warnings.simplefilter("ignore")
        import xarray as xr

        if not is_zarr:
            return xr.open_dataset(target, cache=False, decode_coords="all")
        how: Any = {"engine": "zarr", "storage_options": dict(place.storage_options) or None}
        raw = xr.open_dataset(target, **how, cache=False, decode_cf=False)
        return xr.decode_cf(_without_default_fills(raw, place), decode_coords="all")


def _without_default_fills(raw: "xr.Dataset", place: File) -> "xr.Dataset":
    """Return a Zarr scene in which 0 is a value unless its attribute `_FillValue` is 0.

    Zarr v2 fills arrays with 0 by default, which xarray reads as `_FillValue`. Other fill values
    were chosen: xarray writes its own as the fill value of Zarr v2.
    """
    stored: Any = opened_zarr(place)
    fills = {str(name): each.attrs.get("_FillValue") for name, each in raw.variables.items()}
    filled = sorted(name for name, fill in fills.items() if fill == 0)
    zeros = [name for name in filled if "_FillValue" not in stored[name].attrs]
    for name in zeros:
        del raw[name].attrs["_FillValue"]
    raw.encoding["zeros"] = ", ".join(map(repr, zeros))
    return raw
