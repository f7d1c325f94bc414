"""Maps: predictions for all pixels of a scene, stored as Zarr arrays that xarray opens."""

import math
import warnings
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import ZstdCodec
from zarr.errors import ZarrUserWarning

from dask_nrbfn.commands.predict import GROUPS, task_spans
from dask_nrbfn.engine import Engine
from dask_nrbfn.engine.memory import process_bytes
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.parts import run_tasks
from dask_nrbfn.scorer import Scorer, activations_bytes, scoring_rows
from dask_nrbfn.sources.arrays import columns_by_name
from dask_nrbfn.sources.scene import BOX_PIXELS, Box, Scene, open_scene
from dask_nrbfn.sources.source import Names, named_columns
from dask_nrbfn.storage.dataset import check_columns, read_ahead
from dask_nrbfn.storage.group import (
    RECORDED,
    Location,
    check_target,
    mark_complete,
    replacing_group,
)
from dask_nrbfn.storage.location import file_of
from dask_nrbfn.storage.model import Model, PinnedModel

if TYPE_CHECKING:
    import xarray as xr

_KIND = "map"

# The results that a map stores as they are, by the name of its variable.
_RESULTS = {"value": "values", "score": "scores", "probability": "probabilities"}


def predict_scene(
    model: Location,
    scene: Location,
    out: Location,
    engine: Engine,
    *,
    variable: Names,
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
    model : Location
        Location of a model or a finished run.
    scene : Location
        A Zarr group, a netCDF file, or another format of xarray.
    out : Location
        A path or URL.
    engine : Engine
    variable : str or sequence of str
        The variable, or several, as "A,B". Each of several variables is a feature, or has one for
        every coordinate of the dimension.
    feature_dim : str, optional
        The dimension of the features, or several, as "time,band". Its coordinates (dates in ISO
        format), joined by _ for several dimensions, are the names of the features.
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
    check_map_place(out, overwrite=overwrite)
    pinned, found = PinnedModel.at(model), scene_at(scene, variable, feature_dim)
    opened = pinned.open()
    names = _checked_names(opened, probabilities=probabilities, scores=scores)
    order = _feature_order(opened, found)
    (r, p), q, rows = opened.basis.shape, opened.n_targets, scoring_rows(opened)
    # A box as stored, decoded and as rows, for the current and the next box; its scores, results
    # and labels; a block of activations; the basis as read and as slopes.
    pixel_bytes = 8 * len(found.feature_names) * found.dtype.itemsize + 8 * (4 * q + 2)
    held = math.prod(found.steps) * pixel_bytes + activations_bytes(opened)
    held += 8 * (rows * 4 * p + 3 * r * p + 2 * r * q)
    engine.expected_bytes = process_bytes(l1=opened.l1, gpu=engine.device == "gpu") + held
    remedy = "Write the scene in smaller chunks"
    engine.check_budget("predict", engine.expected_bytes, remedy=remedy)
    with (
        open_scene(found.place) as stored,
        replacing_group(out, kind=_KIND, overwrite=overwrite) as group,
    ):
        _prepare(group, names, found, opened, stored)
        # As for the rows of a dataset, whose chunks are the boxes.
        spans = task_spans(len(found.boxes()) * BOX_PIXELS, BOX_PIXELS, engine)
        boxes = [(start // BOX_PIXELS, stop // BOX_PIXELS) for start, stop in spans]
        tasks = [(pinned, found, order, names, group, *each) for each in boxes]
        n_missing = sum(run_tasks(engine, _map_boxes, tasks, label="predict"))
        about = {
            str(name): value.tolist() if isinstance(value, np.ndarray | np.generic) else value
            for name, value in stored.attrs.items()
            if name not in RECORDED
        }
        own = {"of_model": opened.digest(), "results": list(names)}
        mark_complete(group, kind=_KIND, attributes={**about, **own})
        with warnings.catch_warnings():
            # xarray warns if there is no consolidated metadata, and zarr if there is.
            warnings.simplefilter("ignore", ZarrUserWarning)
            zarr.consolidate_metadata(group.store)
    return n_missing


def check_map_place(out: Location, *, overwrite: bool) -> None:
    """Raise an error, as `predict_scene` does, if no map can be written to `out`."""
    suffix = PurePath(str(out)).suffix.lower()
    if suffix not in GROUPS:
        raise ParameterError(
            f"{out} ends in {suffix}, which is not a format of maps.",
            "Give a path that ends in .zarr, or a name without a dot.",
        )
    check_target(out, kind=_KIND, overwrite=overwrite)


def scene_at(scene: Location, variable: Names, feature_dim: str | None) -> Scene:
    """Return the scene of the arguments of `predict_scene`."""
    names = named_columns("variable", variable) if isinstance(variable, str) else variable
    return Scene.at(file_of(scene), tuple(names or ()), feature_dim)


def _checked_names(model: Model, *, probabilities: bool, scores: bool) -> tuple[str, ...]:
    """Return the names of the results to write."""
    dimension, _ = _layers(model)
    if dimension != "class" and (probabilities or scores):
        option = "probabilities" if probabilities else "scores"
        raise ParameterError(
            f"`{option}` is set, but the model predicts numbers.", f"Leave `{option}` out."
        )
    names = ["label" if dimension == "class" else "value"]
    names += ["probability"] * probabilities + ["score"] * scores
    return tuple(names)


def _feature_order(model: Model, scene: Scene) -> list[int]:
    """Return the index of each column of the model among the features; none if equal."""
    found, wanted, n_columns = scene.feature_names, model.feature_names, model.n_features
    if model.schema is not None:
        wanted = tuple(column.name for column in model.schema.columns)
        n_columns = len(wanted)
    if wanted is None or wanted == found:
        check_columns(len(found), n_columns)
        return []
    remedy = "Give all features of the training rows, each once and in any order."
    return columns_by_name(wanted, found, str(scene.place), remedy)


def _layers(model: Model) -> tuple[str, NDArray[Any]]:
    """Return the dimension of a model's scores, and the name of each score."""
    if model.embeds:
        return "component", np.arange(model.n_targets)
    if model.target_names is not None:
        return "target", np.array(model.target_names)
    return "class", model.classes


def _codes(classes: NDArray[Any]) -> NDArray[Any]:
    """Return the codes of classes, numbers as they are; the largest value of the dtype is free."""
    codes = np.arange(len(classes)) if classes.dtype.kind in "TUb" else classes
    bounds = (int(codes.min()), int(codes.max()) + 1)
    return codes.astype(np.result_type(*map(np.min_scalar_type, bounds)))


def _prepare(
    group: zarr.Group, names: tuple[str, ...], scene: Scene, model: Model, stored: "xr.Dataset"
) -> None:
    """Write the coordinates of the pixels, and the layout of the results."""
    import xarray as xr

    dimension, layers = _layers(model)
    is_text = layers.dtype.kind in "TU"
    coords = {
        name: each.variable.drop_encoding()
        for name, each in stored.coords.items()
        if {*each.dims} <= scene.sizes.keys() and name not in names
    }
    coords[dimension] = xr.Variable(dimension, layers.astype(object) if is_text else layers)
    mapping = max(stored[name].encoding.get("grid_mapping", "") for name in scene.variables)
    results = {}
    for name in names:
        attributes: dict[str, Any] = {"grid_mapping": mapping} if mapping else {}
        dtype = np.dtype(np.float32)
        how: dict[str, Any] = {"compressors": ZstdCodec(level=1, checksum=True)}
        is_single = name == "label" or (name == "value" and model.n_targets == 1)
        own = {} if is_single else {dimension: len(layers)}
        if name == "label":
            codes = _codes(layers)
            dtype = codes.dtype
            # Zarr's own fill value too, so that a lost chunk is missing and not the first class.
            how |= dict.fromkeys(("_FillValue", "fill_value"), np.iinfo(codes.dtype).max)
            if is_text or layers.dtype.kind == "b":
                # The CF conventions separate the meanings by blanks.
                meanings = ["_".join(str(label).split()) for label in layers.tolist()]
                attributes["flag_values"] = codes.tolist()
                attributes["flag_meanings"] = " ".join(meanings)
        how["chunks"] = (*own.values(), *scene.steps)
        # A single block, which is never computed.
        empty = da.empty((*own.values(), *scene.sizes.values()), dtype=dtype, chunks=-1)
        results[name] = xr.Variable((*own, *scene.sizes), empty, attributes, how)
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
    names: tuple[str, ...],
    group: zarr.Group,
    start: int,
    stop: int,
) -> int:
    """Map the pixels of some boxes; return how many of them have no result."""
    scorer, boxes, n_missing = Scorer(model), scene.boxes()[start:stop], 0
    with open_scene(scene.place) as stored:

        def read(box: Box) -> NDArray[Any]:
            rows = scene.rows(stored, box)
            return rows[:, order] if order else rows

        for box, rows in zip(
            boxes, read_ahead(map(read, boxes), thread_name="read-boxes"), strict=True
        ):
            scores = scorer.table(rows, as_stored=False, skip_gaps=True, within=" of pixels")
            lengths = [each.stop - each.start for each in box]
            for name in names:
                array: Any = group[name]
                values = _values(name, scorer, scores)
                array[(..., *box)] = values.T.reshape(*array.shape[: -len(box)], *lengths)
            n_missing += int(np.count_nonzero(np.isnan(scores[:, 0])))
    return n_missing


def _values(name: str, scorer: Scorer, scores: Floats) -> NDArray[Any]:
    """Return a result as a map stores it, (b,) or (b, layers)."""
    missing = np.isnan(scores[:, 0])
    if name == "label":
        codes = _codes(scorer.model.classes)
        return np.where(missing, np.iinfo(codes.dtype).max, codes[scores.argmax(axis=1)])
    values = scorer.result(_RESULTS[name], scores).astype(np.float32)
    values[missing] = np.nan
    return values
