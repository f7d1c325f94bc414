"""Maps: predictions for all pixels of a scene, stored as Zarr arrays that xarray opens."""

import math
import warnings
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import ZstdCodec
from zarr.errors import ZarrUserWarning

from dask_nrbfn.commands.files import check_not_given
from dask_nrbfn.commands.predict import check_output, expect_bytes, run_spans
from dask_nrbfn.engine import Engine
from dask_nrbfn.scorer import Scorer
from dask_nrbfn.sources.arrays import columns_by_name
from dask_nrbfn.sources.options import named_columns
from dask_nrbfn.sources.scene import BOX_PIXELS, Scene, open_scene
from dask_nrbfn.storage.dataset import check_apart, check_columns, read_ahead
from dask_nrbfn.storage.group import Location, mark_complete, replacing_group
from dask_nrbfn.storage.location import file_of
from dask_nrbfn.storage.model import Model, PinnedModel

if TYPE_CHECKING:
    import xarray as xr

# The results of a model that a map has, by the name of its variable.
_RESULTS = {"value": "values", "score": "scores", "probability": "probabilities"}


def predict_scene(
    model: Location,
    scene: Location,
    out: Location,
    engine: Engine,
    *,
    variable: str | None,
    feature_dim: str | None = None,
    probabilities: bool = False,
    scores: bool = False,
    overwrite: bool = False,
) -> int:
    """Write a map of the pixels of a scene; return the number of pixels without a prediction.

    The map has ``label``, or ``value`` with a layer for each target or coordinate of an embedding,
    with the dimensions and coordinates of the pixels; layers are the first dimension. Pixels that
    lack a feature are missing. Text labels are codes with ``flag_meanings``.

    Parameters
    ----------
    model, engine : as in predict_dataset
        See `predict_dataset`.
    scene : Location
        A Zarr group, a netCDF file, or another format of xarray.
    out : Location
        A path or URL.
    variable : str
        The variable, or several, as "A,B". Each of several variables is a feature, or has one for
        every coordinate of the dimension.
    feature_dim : str, optional
        The dimension of the features, or several, as "time,band" for a feature of each band of each
        time. Coordinates (dates in ISO format), joined by _, are the names of the features.
    probabilities, scores : bool
        Also write ``probability`` or ``score`` of every class, float32, along ``class``.
    overwrite : bool
        Replace a map at `out` once the new one is complete.

    Raises
    ------
    DataError
        If the features are not those of the training rows, or a value is infinite.
    ExistsError, ParameterError, StorageError
        If `out` cannot be written; if the model has no probabilities or scores.
    """
    check_apart(out, model, scene)
    check_output(out, "map", overwrite=overwrite)
    pinned, found = PinnedModel.at(model), scene_at(scene, variable, feature_dim)
    opened = pinned.open()
    names = ["label"]
    if _dimension(opened) != "class":
        names = ["value"]
        check_not_given("the model predicts numbers", probabilities=probabilities, scores=scores)
    if probabilities:
        names.append("probability")
    if scores:
        names.append("score")
    order = _feature_order(opened, found)
    # A box as stored, decoded and as rows, for the current and the next box; its scores, results
    # and labels.
    pixel_bytes = 8 * len(found.feature_names) * found.dtype.itemsize
    held = math.prod(found.steps) * (pixel_bytes + 8 * (4 * opened.n_targets + 2))
    expect_bytes(
        engine,
        opened,
        held,
        row_width=opened.n_features,
        of_sparse=False,
        remedy="Write the scene in smaller chunks",
    )
    with (
        open_scene(found.place) as stored,
        replacing_group(out, kind="map", overwrite=overwrite) as group,
    ):
        _prepare(group, names, found, opened, stored)
        arguments = (pinned, found, order, names, group)
        n_pixels = len(found.boxes()) * BOX_PIXELS
        n_missing = sum(run_spans(engine, _map_boxes, arguments, n_pixels, step=BOX_PIXELS))
        attributes = {"of_model": opened.digest(), "results": names}
        mark_complete(group, kind="map", attributes=attributes)
        with warnings.catch_warnings():
            # xarray warns if there is no consolidated metadata, and zarr if there is.
            warnings.simplefilter("ignore", ZarrUserWarning)
            zarr.consolidate_metadata(group.store)
    return n_missing


def scene_at(scene: Location, variable: str | None, feature_dim: str | None) -> Scene:
    """Return the scene of the arguments of `predict_scene`."""
    return Scene.at(file_of(scene), named_columns(variable), feature_dim)


def _dimension(model: Model) -> str:
    """Return the name of the dimension of a model's scores."""
    if model.embeds:
        return "component"
    return "class" if model.target_names is None else "target"


def _feature_order(model: Model, scene: Scene) -> list[int]:
    """Return the index of each column of the model among the features of a scene."""
    found, wanted = scene.feature_names, model.feature_names
    if model.schema is not None:
        wanted = tuple(column.name for column in model.schema.columns)
    if wanted is None or wanted == found:
        check_columns(len(found), model.n_features if wanted is None else len(wanted))
        return [*range(len(found))]
    remedy = "Give all features of the training rows, each once and in any order."
    return columns_by_name(wanted, found, str(scene.place), remedy)


def _label_codes(classes: NDArray[Any]) -> NDArray[Any]:
    """Return the codes of classes, numbers as they are; the largest value of the dtype is free."""
    codes = classes
    if classes.dtype.kind in "TUb":
        codes = np.arange(len(classes))
    least, free = np.min_scalar_type(int(codes.min())), np.min_scalar_type(int(codes.max()) + 1)
    return codes.astype(np.result_type(least, free))


def _prepare(
    group: zarr.Group, names: list[str], scene: Scene, model: Model, stored: "xr.Dataset"
) -> None:
    """Write the coordinates of the pixels, and the layout of the results."""
    import xarray as xr

    dimension = _dimension(model)
    layers: Any = model.target_names
    if model.embeds:
        layers = range(model.n_targets)
    elif layers is None:
        layers = model.classes.tolist()
    coords = {
        name: each.variable.drop_encoding()
        for name, each in stored.coords.items()
        if {*each.dims} <= scene.sizes.keys() and name not in names
    }
    named = np.array(layers)
    if named.dtype.kind == "U":
        # Other tools may not read numpy's text.
        named = named.astype(object)
    coords[dimension] = xr.Variable(dimension, named)
    grid_mapping = max(stored[name].encoding.get("grid_mapping", "") for name in scene.variables)
    results = {}
    for name in names:
        attributes: dict[str, Any] = {"grid_mapping": grid_mapping} if grid_mapping else {}
        encoding: dict[str, Any] = {"compressors": ZstdCodec(level=1, checksum=True)}
        layer_sizes = {dimension: len(layers)}
        if name == "label" or (name == "value" and model.n_targets == 1):
            layer_sizes = {}
        dtype: np.dtype[Any] = np.dtype(np.float32)
        if name == "label":
            codes = _label_codes(model.classes)
            dtype = codes.dtype
            # Zarr's own fill value too, so that a lost chunk is missing and not the first class.
            encoding["_FillValue"] = encoding["fill_value"] = np.iinfo(dtype).max
            if model.classes.dtype.kind in "TUb":
                # The CF conventions separate the meanings by blanks.
                meanings = ["_".join(str(label).split()) for label in layers]
                attributes["flag_values"] = codes.tolist()
                attributes["flag_meanings"] = " ".join(meanings)
        encoding["chunks"] = (*layer_sizes.values(), *scene.steps)
        # A single block, which is never computed.
        shape = (*layer_sizes.values(), *scene.sizes.values())
        empty = da.empty(shape, dtype=dtype, chunks=-1)
        results[name] = xr.Variable((*layer_sizes, *scene.sizes), empty, attributes, encoding)
    with warnings.catch_warnings():
        # Zarr warns that other tools may not read its text dtype.
        warnings.simplefilter("ignore")
        xr.Dataset(results, coords).to_zarr(
            group.store, mode="a", zarr_format=3, consolidated=False, compute=False
        )


def _map_boxes(
    model: Model,
    scene: Scene,
    order: list[int],
    names: list[str],
    group: zarr.Group,
    start: int,
    stop: int,
) -> int:
    """Map the boxes between two pixels, all counted as full; return the pixels without a result."""
    scorer, n_missing = Scorer(model), 0
    boxes = scene.boxes()[start // BOX_PIXELS : stop // BOX_PIXELS]
    with open_scene(scene.place) as stored:
        read = (np.take(scene.rows(stored, box), order, axis=1) for box in boxes)
        ahead = read_ahead(read, thread_name="read-boxes")
        for box, rows in zip(boxes, ahead, strict=True):
            scores = scorer.table(rows, as_stored=False, skip_gaps=True, within=" of pixels")
            # The other results of pixels with gaps are NaN.
            gaps = np.isnan(scores[:, 0])
            for name in names:
                array: Any = group[name]
                if name == "label":
                    values = _label_codes(model.classes)[scores.argmax(axis=1)]
                    values[gaps] = np.iinfo(array.dtype).max
                else:
                    values = scorer.result(_RESULTS[name], scores)
                lengths = (each.stop - each.start for each in box)
                array[(..., *box)] = values.T.reshape(*array.shape[: -len(box)], *lengths)
            n_missing += int(np.count_nonzero(gaps))
    return n_missing
