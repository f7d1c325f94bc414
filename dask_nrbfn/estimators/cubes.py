"""xarray in and out: pixels of a cube as rows, and predictions along its other dimensions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.commands.maps import Layers, lasting
from dask_nrbfn.commands.scene import feature_order, wanted_names
from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.estimators.predictions import opened_model, published
from dask_nrbfn.scorer import Scorer
from dask_nrbfn.sources.cubes import Cube, CubeSource
from dask_nrbfn.sources.scene import import_xarray
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
        Variables of a Dataset along `feature_dim`, or without one all, are the features.
    y : DataArray, Dataset, str, sequence of str or None
        Labels of the pixels, or numbers: several as a Dataset; or the names of variables of `X`.
    feature_dim : str or None
    """

    X: Any
    y: Any
    feature_dim: str | None

    def source(self, *, numbers: bool = False, unlabelled: Mark | None = None) -> CubeSource:
        """Return them as rows; with `numbers` the targets are no labels.

        Raises
        ------
        DataError, ParameterError
            If dimensions, coordinates or types do not fit.
        """
        apart = [self.y] if isinstance(self.y, str) else self.y
        if not isinstance(apart, list | tuple):
            apart = [*getattr(self.y, "data_vars", [getattr(self.y, "name", None)])]
        cube = _cube_of(self.X, self.feature_dim, apart=apart)
        targets = self._targets(cube)
        if not numbers and len(targets) > 1:
            raise DataError(f"y has {len(targets)} variables.", "Give one that has the labels.")
        return CubeSource(
            cube,
            label=None if numbers else next(iter(targets.values()), None),
            targets=targets if numbers else {},
            unlabelled=unlabelled,
        )

    def _targets(self, cube: Cube) -> dict[str, "xr.DataArray"]:
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
            arrays = *cube.arrays.values(), *y.values()
            aligned = xr.align(*arrays, join="exact", copy=False)[-len(y) :]
        except ValueError as error:
            raise DataError(
                f"X and y have other coordinates ({error}).", "Align them: xarray.align(X, y)."
            ) from error
        return {str(name): each.rename(name) for name, each in zip(y, aligned, strict=True)}


def predict_cube(
    model: Model,
    given: Any,
    feature_dim: str | None,
    result: str,
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
    given : DataArray or Dataset
        A Dataset has the variables along `feature_dim`, without one those that the model names.
    feature_dim : str or None
    result : str
        Of `RESULTS`.
    store : Location, optional
        Where the model is put for the workers.
    name : str
        Of the result.

    Raises
    ------
    DataError
        If the features are others than those of the training rows.
    """
    cube = _cube_of(given, feature_dim, wanted=wanted_names(model) or ())
    import xarray as xr

    pixels, order = cube.values(), feature_order(model, cube)
    if order:
        pixels = pixels[..., list(order)]
    nothing = Scorer(model).no_result(result)
    if pixels.dtype.kind == "f":
        nothing = nothing.astype(_with_gaps(nothing.dtype))
    coordinates: dict[Any, Any] = dict(cube.coords)
    dimensions, shown = [*cube.grid.sizes], [*cube.grid.sizes]
    if nothing.ndim > 1:
        layers = Layers.of(model, cube)
        dimensions.append(layers.dimension)
        shown.insert(cube.axis, layers.dimension)
        coordinates[layers.dimension] = layers.names
    predicted = xr.DataArray(
        _predicted(model, pixels, result, nothing, store),
        dims=dimensions,
        coords=coordinates,
        name=name,
        attrs=lasting(cube.attrs),
    )
    encoding = next(iter(cube.arrays.values())).encoding
    predicted.encoding = {key: encoding[key] for key in ["grid_mapping"] if key in encoding}
    return predicted.transpose(*shown)


def _predicted(
    model: Model, pixels: Any, result: str, nothing: NDArray[Any], store: Location | None
) -> Any:
    """Return the predictions of pixels (..., p); lazily of a dask array."""
    if not isinstance(pixels, da.Array):
        return _predict_pixels(np.asarray(pixels), Scorer(model), result, nothing.dtype)
    axis, layers = pixels.ndim - 1, nothing.shape[1:]
    return pixels.rechunk({axis: -1}).map_blocks(
        _predict_block,
        published(model, store),
        result,
        nothing.dtype,
        meta=np.empty((0,) * (axis + len(layers)), dtype=nothing.dtype),
        drop_axis=None if layers else axis,
        chunks=(*pixels.chunks[:-1], *((size,) for size in layers)),
    )


def _predict_block(
    pixels: NDArray[Any], location: str | RemoteLocation, result: str, dtype: np.dtype[Any]
) -> NDArray[Any]:
    # Other blocks keep the other cores busy.
    return _predict_pixels(pixels, Scorer(opened_model(location), threads=1), result, dtype)


def _predict_pixels(
    pixels: NDArray[Any], scorer: Scorer, result: str, dtype: np.dtype[Any]
) -> NDArray[Any]:
    scores = scorer.pixels(pixels.reshape(-1, pixels.shape[-1]))
    known = ~np.isnan(scores[:, 0])
    found = scorer.result(result, scores[known])
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


def are_pixels(X: Any, feature_dim: str | None) -> bool:
    """Return whether rows are the pixels of a cube: a Dataset of xarray's is in any case."""
    return feature_dim is not None or hasattr(X, "data_vars")


def _cube_of(
    given: Any, feature_dim: str | None, *, wanted: Sequence[str] = (), apart: Sequence[Any] = ()
) -> Cube:
    """Return a DataArray, or variables of a Dataset, as a cube.

    Those of a Dataset are the ones along the dimension; without one all that are wanted, or all but
    those set apart.
    """
    xr = import_xarray()
    if isinstance(given, xr.DataArray):
        return Cube({str(given.name): given}, feature_dim)
    if not isinstance(given, xr.Dataset):
        raise ParameterError(
            f"`feature_dim` is {feature_dim}, and X is of type {type(given).__name__}.",
            "Give xarray's DataArray or Dataset with it.",
        )
    names = [name for name, each in given.data_vars.items() if feature_dim in each.dims]
    if feature_dim is None:
        names = [name for name in given.data_vars if name not in apart]
        if wanted and {*wanted} <= {*names}:
            names = [*wanted]
    names += [name for name in given.data_vars if name in wanted and name not in names]
    if not names:
        raise ParameterError(
            f"X has no variables along `feature_dim`={feature_dim}.",
            "Give a Dataset with the features, or one of its variables.",
        )
    return Cube({str(name): given[name] for name in names}, feature_dim)
