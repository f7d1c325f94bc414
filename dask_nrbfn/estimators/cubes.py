"""xarray in and out: pixels of a cube as rows, and predictions along its other dimensions."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.commands.maps import Layers, lasting
from dask_nrbfn.commands.scene import feature_order, pixel_scores
from dask_nrbfn.engine.threads import blas_threads
from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.estimators.predictions import Outcome, opened_model, published
from dask_nrbfn.sources.cubes import Box, CubeSource, Grid
from dask_nrbfn.sources.dtypes import STRING
from dask_nrbfn.sources.scene import names_of
from dask_nrbfn.storage.chunks import Mark
from dask_nrbfn.storage.location import Location, RemoteLocation
from dask_nrbfn.storage.model import Model

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class Pixels:
    """Pixels of xarray's arrays that a network is to be fitted to.

    Attributes
    ----------
    X : DataArray or Dataset
        A Dataset has one variable along `feature_dim`.
    y : DataArray, Dataset, str, sequence of str or None
        Labels of the pixels, or numbers: several as a Dataset; or the names of variables of `X`.
    feature_dim : str
    """

    X: Any
    y: Any
    feature_dim: str

    def source(self, *, numbers: bool = False, unlabelled: Mark | None = None) -> CubeSource:
        """Return them as rows; with `numbers` the targets are no labels.

        Raises
        ------
        DataError, ParameterError
            If dimensions, coordinates or types do not fit.
        """
        cube = _cube_of(self.X, self.feature_dim)
        targets = self._targets(cube)
        if not numbers and len(targets) > 1:
            raise DataError(f"y has {len(targets)} variables.", "Give one that has the labels.")
        columns = {name: ArrayCube(target, name) for name, target in targets.items()}
        return CubeSource(
            ArrayCube(cube, "X"),
            self.feature_dim,
            feature_names=_feature_names(cube, self.feature_dim),
            label=None if numbers else next(iter(columns.values()), None),
            targets=columns if numbers else {},
            unlabelled=unlabelled,
        )

    def _targets(self, cube: "xr.DataArray") -> dict[str, "xr.DataArray"]:
        import xarray as xr

        y = self.y
        if y is None:
            return {}
        names = [y] if isinstance(y, str) else y
        if isinstance(names, list | tuple):
            absent = [name for name in names if name not in getattr(self.X, "data_vars", ())]
            if absent:
                raise DataError(
                    f"y is {absent[0]!r}, which is no variable of X.",
                    "Give a Dataset that has it, or the labels as a DataArray.",
                )
            y = self.X[list(names)]
        if isinstance(y, xr.DataArray):
            y = {y.name or "target": y}
        elif not isinstance(y, xr.Dataset):
            raise DataError(
                f"y is of type {type(y).__name__}.",
                "Give a DataArray with dimensions of X, a Dataset of them, or names of variables.",
            )
        try:
            aligned = xr.align(cube, *y.values(), join="exact", copy=False)
        except ValueError as error:
            raise DataError(
                f"X and y have other coordinates ({error}).", "Align them: xarray.align(X, y)."
            ) from error
        return dict(zip(map(str, y), aligned[1:], strict=True))


class ArrayCube:
    """A DataArray, in memory or not, as a `Cube`."""

    def __init__(self, array: "xr.DataArray", name: str) -> None:
        self.array, self.name = array, name
        self.dimensions = tuple(map(str, array.dims))
        self.shape = array.shape
        self.dtype = STRING if array.dtype.kind == "O" else array.dtype
        # Those of an array that was opened and not loaded; one in memory has none.
        stored = array.encoding.get("preferred_chunks", {})
        sizes = array.chunks or [(stored.get(name, 1),) for name in array.dims]
        self.chunks = tuple(
            min(max(each), size) for each, size in zip(sizes, array.shape, strict=True)
        )

    def read(self, box: Box) -> np.ndarray:
        """Return what lies in a box, NaN for none; dimensions that it does not name are whole."""
        part = self.array.isel(box).compute()
        values = part.to_numpy()
        if values.dtype.kind != "O":
            return values
        text = np.where(part.isnull(), "", values)
        if not all(isinstance(each, str) for each in text.ravel().tolist()):
            raise DataError(
                f"{self.name} holds Python objects that are no text.",
                "Give it a type of its own, such as y.astype(float), whose NaN is no label.",
            )
        return text.astype(STRING)


def predict_cube(
    model: Model,
    cube: Any,
    feature_dim: str,
    outcome: Outcome,
    store: Location | None,
    *,
    name: str,
) -> "xr.DataArray":
    """Return what is predicted for the pixels of a cube, lazily where it is a dask array.

    Several values of a pixel lie where its features do, with their names as coordinates. Pixels
    that lack a feature are NaN: numbers, whole ones too, are float64, and text is objects.

    Parameters
    ----------
    model : Model
    cube : DataArray or Dataset
        A Dataset has one variable along `feature_dim`.
    feature_dim : str
    outcome : Outcome
    store : Location, optional
        Where the model is put for the workers.
    name : str
        Of the result.

    Raises
    ------
    DataError
        If the features are others than those of the training rows.
    """
    given = _cube_of(cube, feature_dim)
    import xarray as xr

    array = _ordered(given, feature_dim, model)
    dimensions = [dim for dim in given.dims if dim != feature_dim]
    pixels = array.transpose(*dimensions, feature_dim).data
    nothing = outcome(model, np.empty((0, len(model.weights))))
    if pixels.dtype.kind == "f":
        nothing = nothing.astype(_with_gaps(nothing.dtype))
    coordinates: dict[Any, Any] = {
        key: values for key, values in given.coords.items() if feature_dim not in values.dims
    }
    shown = [*given.dims]
    if nothing.ndim > 1:
        layers = Layers.of(model)
        dimensions.append(layers.dimension)
        shown[shown.index(feature_dim)] = layers.dimension
        coordinates[layers.dimension] = layers.names
    else:
        shown.remove(feature_dim)
    result = xr.DataArray(
        _predicted(model, pixels, outcome, nothing, store),
        dims=dimensions,
        coords=coordinates,
        name=name,
        attrs=lasting(given.attrs),
    )
    result.encoding = {
        key: given.encoding[key] for key in ["grid_mapping"] if key in given.encoding
    }
    return result.transpose(*shown)


def _predicted(
    model: Model, pixels: Any, outcome: Outcome, nothing: NDArray[Any], store: Location | None
) -> Any:
    """Return the predictions of pixels (..., p); lazily of a dask array."""
    if not isinstance(pixels, da.Array):
        threads = blas_threads()
        return _predict_pixels(np.asarray(pixels), model, outcome, nothing.dtype, threads)
    axis, layers = pixels.ndim - 1, nothing.shape[1:]
    return pixels.rechunk({axis: -1}).map_blocks(
        _predict_block,
        published(model, store),
        outcome,
        nothing.dtype,
        meta=np.empty((0,) * (axis + len(layers)), dtype=nothing.dtype),
        drop_axis=None if layers else axis,
        chunks=(*pixels.chunks[:-1], *((size,) for size in layers)),
    )


def _predict_block(
    pixels: NDArray[Any], location: str | RemoteLocation, outcome: Outcome, dtype: np.dtype[Any]
) -> NDArray[Any]:
    # Other blocks keep the other cores busy.
    return _predict_pixels(pixels, opened_model(location), outcome, dtype, 1)


def _predict_pixels(
    pixels: NDArray[Any], model: Model, outcome: Outcome, dtype: np.dtype[Any], threads: int
) -> NDArray[Any]:
    scores = pixel_scores(model, pixels.reshape(-1, pixels.shape[-1]), threads=threads)
    known = ~np.isnan(scores[:, 0])
    found = outcome(model, scores[known])
    values = np.empty((len(scores), *found.shape[1:]), dtype=dtype)
    if not known.all():
        values[~known] = np.nan
    values[known] = found
    return values.reshape(*pixels.shape[:-1], *found.shape[1:])


def _with_gaps(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type that has all values of a type, and NaN."""
    if dtype.kind == "f":
        return dtype
    return np.dtype(np.float64 if dtype.kind in "biu" else object)


def _cube_of(given: Any, feature_dim: str) -> "xr.DataArray":
    """Return the array along a dimension: what is given, or the only such variable of a Dataset."""
    try:
        import xarray as xr
    except ImportError as error:
        raise ParameterError(
            f"`feature_dim` is {feature_dim}, and needs a package that is not installed ({error}).",
            "Leave it out for rows; for cubes install dask-nrbfn[xarray].",
        ) from error
    if isinstance(given, xr.Dataset):
        having = [name for name, array in given.data_vars.items() if feature_dim in array.dims]
        if len(having) != 1:
            raise ParameterError(
                f"X has {len(having)} variables along `feature_dim`={feature_dim}.",
                "Give one of its variables as X.",
            )
        given = given[having[0]]
    if not isinstance(given, xr.DataArray):
        raise ParameterError(
            f"`feature_dim` is {feature_dim}, and X is of type {type(given).__name__}.",
            "Give xarray's DataArray or Dataset with it.",
        )
    Grid.of(ArrayCube(given, "X"), feature_dim)
    return given


def _ordered(cube: "xr.DataArray", feature_dim: str, model: Model) -> "xr.DataArray":
    """Return a cube with the features of a model."""
    names = _feature_names(cube, feature_dim)
    order = feature_order(model, names, cube.sizes[feature_dim], "X")
    return cube.isel({feature_dim: list(order)}) if order else cube


def _feature_names(cube: "xr.DataArray", feature_dim: str) -> tuple[str, ...] | None:
    return names_of(cube[feature_dim].to_numpy()) if feature_dim in cube.coords else None
