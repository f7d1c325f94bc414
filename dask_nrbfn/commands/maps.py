"""Maps: predictions for all pixels of a scene, stored as Zarr arrays that xarray opens."""

import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import dask.array as da
import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import ZstdCodec
from zarr.errors import ZarrUserWarning

from dask_nrbfn.commands.ingest import Names
from dask_nrbfn.commands.predict import GROUPS
from dask_nrbfn.engine import Engine
from dask_nrbfn.engine.memory import process_bytes
from dask_nrbfn.errors import DataError, ParameterError, RunMismatchError
from dask_nrbfn.numeric.held_out import keep_largest
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.parts import run_tasks
from dask_nrbfn.scorer import Scorer, activations_bytes, scoring_rows
from dask_nrbfn.sources.cubes import Box, Cube, Grid, matching
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.scene import Scene, open_scene
from dask_nrbfn.sources.source import named_columns
from dask_nrbfn.storage.blocks import read_ahead
from dask_nrbfn.storage.dense import read_finished
from dask_nrbfn.storage.group import RECORDED, Location, check_target, mark_complete, resumed_group
from dask_nrbfn.storage.location import RemoteLocation, normalize
from dask_nrbfn.storage.model import Model, PinnedModel, check_columns

if TYPE_CHECKING:
    import xarray as xr

logger = logging.getLogger(__name__)

_KIND = "map"

# Largest chunk of a result with a layer for each class.
_CHUNK_BYTES = 16 * 2**20

# Attributes of a variable that describe its values, which are wrong for a map.
_OF_NUMBERS = {
    *("units", "long_name", "standard_name", "scale_factor", "add_offset", "_Unsigned", "dtype"),
    *("_FillValue", "missing_value", "valid_min", "valid_max", "valid_range", "actual_range"),
    *("flag_values", "flag_meanings", "flag_masks", "cell_methods", "ancillary_variables"),
}

# Tasks are so large that reading the model takes a small part of their time.
_TASK_PIXELS, _TASKS_PER_WORKER = 2**20, 4

# The results that a map stores as they are, by the name of its variable.
_RESULTS = {"value": "values", "score": "scores", "probability": "probabilities"}


class Layers(NamedTuple):
    """The dimension along which a pixel has several values, and their names."""

    dimension: str
    names: NDArray[Any]

    @classmethod
    def of(cls, model: Model, cube: Cube) -> "Layers":
        """Return the layers of a model's scores."""
        if model.embeds:
            layers = cls("component", np.arange(model.n_targets))
        elif model.target_names is not None:
            layers = cls("target", np.array(model.target_names))
        else:
            layers = cls("class", model.classes)
        _check_no_dimension(cube, layers.dimension)
        return layers


def _check_no_dimension(cube: Cube, name: str) -> None:
    """Raise DataError if the pixels have a dimension that is the name of an array of the map."""
    if name in cube.grid.sizes:
        raise DataError(
            f"{cube.name} has a dimension {name}, which is the name of an array of the map.",
            "Rename the dimension.",
        )


class _Coding(NamedTuple):
    """How labels are stored: ``codes`` (K,) of the classes, and the code of a missing label.

    Classes that are numbers are their own codes.
    """

    codes: NDArray[Any]
    missing: int
    attributes: Mapping[str, Any]

    @classmethod
    def of(cls, classes: NDArray[Any]) -> "_Coding":
        """Return the coding in the smallest dtype; its largest value is the missing label."""
        is_text = _is_text(classes) or classes.dtype.kind == "b"
        codes = np.arange(len(classes)) if is_text else classes.astype(np.int64)
        types: Any = (np.uint8, np.int16, np.int32, np.int64)
        kind = next(
            of for of in map(np.iinfo, types) if of.min <= codes.min() and codes.max() < of.max
        )
        attributes = {}
        if is_text:
            # The CF conventions separate the meanings by blanks.
            meanings = ("_".join(str(label).split()) for label in classes.tolist())
            attributes = {"flag_values": codes.tolist(), "flag_meanings": " ".join(meanings)}
        return cls(codes.astype(kind.dtype), int(kind.max), attributes)


class MapLayout(NamedTuple):
    """The arrays of a map: where the results of each box of pixels are stored.

    grid: the pixels; a box of them is a chunk of the map.
    axis: the axis of the layers: the axis of the features of the scene.
    coding: None if the model predicts numbers.
    """

    grid: Grid
    axis: int
    layers: Layers
    coding: _Coding | None

    @classmethod
    def of(cls, cube: Cube, model: Model) -> "MapLayout":
        """Return the layout of the map of a cube."""
        layers = Layers.of(model, cube)
        labelled = model.target_names is None and not model.embeds
        coding = _Coding.of(model.classes) if labelled else None
        return cls(cube.grid, cube.axis, layers, coding)

    def is_layered(self, name: str) -> bool:
        """Return whether a result has several values for each pixel."""
        return name != "label" and not (name == "value" and len(self.layers.names) == 1)

    def prepare(self, group: zarr.Group, cube: Cube, names: Sequence[str]) -> None:
        """Add the coordinates of a cube and the arrays of results that do not exist yet."""
        import xarray as xr

        new = [name for name in names if name not in group]
        if not new:
            return
        # A DataArray would add its own coordinates, perhaps with the name of a result.
        coords = {name: each.variable for name, each in cube.coords.items() if name not in names}
        # Coordinates without a dimension of the same name must be named by the arrays.
        named = " ".join(str(name) for name in coords if name not in self.grid.sizes)
        if any(map(self.is_layered, names)):
            dimension, layers = self.layers
            layers = layers.astype(object) if _is_text(layers) else layers
            coords[dimension] = xr.Variable(dimension, layers)
        results = {name: self._result(name, lasting(cube.attrs), named) for name in new}
        # xarray replaces all attributes of the group.
        attributes = group.attrs.asdict()
        how: Any = {"mode": "a", "zarr_format": 3, "consolidated": False}
        with warnings.catch_warnings():
            # Zarr warns that other tools may not read its text dtype.
            warnings.simplefilter("ignore")
            shown = xr.Dataset(coords=coords).drop_encoding()
            shown.to_zarr(group.store, **how)
            # Written last: if the results exist, everything exists.
            arrays = xr.Dataset(results, attrs=attributes)
            arrays.to_zarr(group.store, **how, compute=False)

    def _result(self, name: str, about: dict[Any, Any], coordinates: str) -> "xr.Variable":
        """Return a result without values."""
        import xarray as xr

        coding = self.coding if name == "label" else None
        dtype = np.dtype(np.float32) if coding is None else coding.codes.dtype
        dims, shape = [*self.grid.sizes], [*self.grid.sizes.values()]
        chunks = [*self.grid.steps.values()]
        encoding: dict[str, Any] = {"coordinates": coordinates} if coordinates else {}
        if coding is not None:
            encoding["_FillValue"] = coding.missing
            about = about | dict(coding.attributes)
        if self.is_layered(name):
            n_layers = len(self.layers.names)
            n_together = _CHUNK_BYTES // (dtype.itemsize * math.prod(chunks))
            shape.insert(self.axis, n_layers)
            chunks.insert(self.axis, min(max(1, n_together), n_layers))
            dims.insert(self.axis, self.layers.dimension)
        encoding |= {"chunks": tuple(chunks), "compressors": ZstdCodec(level=1, checksum=True)}
        # A single block, which is never computed.
        return xr.Variable(dims, da.empty(shape, dtype=dtype, chunks=-1), about, encoding)

    def write(self, group: zarr.Group, name: str, box: Box, values: NDArray[Any]) -> None:
        """Write a result for the pixels of a box; `values` are (b, q)."""
        place = [*box.values()]
        lengths = [each.stop - each.start for each in place]
        if self.is_layered(name):
            place.insert(self.axis, slice(None))
            shaped = np.moveaxis(values.reshape(*lengths, -1), -1, self.axis)
        else:
            shaped = values.reshape(lengths)
        _open(group, name)[tuple(place)] = shaped

    def missing_if_finished(
        self, group: zarr.Group, names: Sequence[str], index: tuple[int, ...]
    ) -> int | None:
        """Return the number of pixels of a box without a result; None if it is not finished."""
        first: Any = None
        for name in names:
            array = _open(group, name)
            for chunk in self._chunks(array, name, index):
                if (values := read_finished(array, chunk)) is None:
                    return None
                first = values if first is None else first
        if self.is_layered(names[0]):
            first = first.take(0, self.axis)
        none = np.isnan(first) if self.coding is None else first == self.coding.missing
        return int(np.count_nonzero(none))

    def _chunks(
        self, array: zarr.Array[Any], name: str, index: tuple[int, ...]
    ) -> Iterator[tuple[int, ...]]:
        """Yield the indices of the chunks that hold a result of a box."""
        if not self.is_layered(name):
            yield index
            return
        n_chunks = -(-array.shape[self.axis] // array.chunks[self.axis])
        for layer in range(n_chunks):
            yield (*index[: self.axis], layer, *index[self.axis :])


def lasting(attributes: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the attributes of a variable that also apply to its map."""
    return {name: value for name, value in attributes.items() if name not in _OF_NUMBERS}


def _finish_map(group: zarr.Group, about: Mapping[Any, Any], identity: Mapping[str, str]) -> None:
    """Record that a map is complete, with the attributes of its scene."""
    told = {
        str(name): value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        for name, value in about.items()
        if name not in RECORDED
    }
    mark_complete(group, kind=_KIND, attributes={**told, **identity})
    with warnings.catch_warnings():
        # xarray warns if there is no consolidated metadata.
        warnings.simplefilter("ignore", ZarrUserWarning)
        zarr.consolidate_metadata(group.store)


def _is_text(values: NDArray[Any]) -> bool:
    return values.dtype.kind in "TU"


def _open(group: zarr.Group, name: str) -> zarr.Array[Any]:
    array = group[name]
    assert isinstance(array, zarr.Array)
    # Chunks of missing pixels are written too, so that they are known to be finished.
    return array.with_config({"write_empty_chunks": True})


@dataclass(frozen=True)
class MapResult:
    """Number of pixels of a map, and of pixels without a prediction."""

    n_pixels: int
    n_missing: int


def wanted_names(model: Model) -> tuple[str, ...] | None:
    """Return the names of the features that a model needs; None if they have no names."""
    if model.schema is None:
        return model.feature_names
    return tuple(column.name for column in model.schema.columns)


def feature_order(model: Model, cube: Cube) -> tuple[int, ...]:
    """Return the feature indices of a model's columns in a cube; empty if the order is the same."""
    names, wanted = cube.feature_names, wanted_names(model)
    order = matching(names, wanted, cube.name)
    n_columns = model.n_features if model.schema is None else len(model.schema.columns)
    check_columns(len(order) or cube.n_features, n_columns)
    further = [name for name in names or () if order and name not in (wanted or ())]
    if further:
        shown = ", ".join(further[:20])
        logger.info("%d features of %s are ignored: %s", len(further), cube.name, shown)
    return tuple(order)


def predict_scene(
    model: Location,
    scene: Location,
    out: Location,
    engine: Engine,
    *,
    variable: Names = None,
    feature_dim: str | None = None,
    probabilities: bool = False,
    scores: bool = False,
    overwrite: bool = False,
) -> MapResult:
    """Write a map of the pixels of a scene, a Zarr group or file that xarray opens.

    The map has the array ``label``, or ``value`` with a layer for each target of a regression and
    coordinate of an embedding, and the further results. The arrays have the dimensions and
    coordinates of the variable, without the dimension of the features. Pixels that lack a feature
    are missing. Text labels are codes with ``flag_meanings``. ``probability`` and ``score``,
    float32, have a dimension ``class`` instead of the features.

    Parameters
    ----------
    model : Location
        Location of a model or a finished run.
    scene : Location
        A Zarr group, a netCDF file, or another format of xarray.
    out : Location
        A path or URL. An unfinished map is stored next to it under a hidden name; the next call
        resumes the map.
    engine : Engine
    variable : str or sequence of str, optional
        The variable, if several have the dimension of the features; or several, as "A,B". Each of
        several variables is a feature, or has one for every coordinate of the dimension.
    feature_dim : str, optional
        The dimension of the features, or several, as "time,band". Its coordinates (dates in ISO
        format), joined by _ if there are several dimensions, are matched with the names of the
        training features if both exist.
    probabilities, scores : bool
        Also write the probability or score of every class.
    overwrite : bool
        Replace a map at `out` once the new one is complete.

    Returns
    -------
    MapResult

    Raises
    ------
    DataError
        If the features are not those of the training rows, or a value is infinite.
    ExistsError, RunMismatchError, ParameterError, StorageError
        If `out` cannot be written, or another map was begun there; if the model has no
        probabilities or scores.
    """
    check_map_place(out, overwrite=overwrite)
    asked = {"probabilities": probabilities, "scores": scores}
    work = MapWork.of(model, scene, variable=variable, feature_dim=feature_dim, **asked)
    return write_map(work, out, engine, overwrite=overwrite)


def check_map_place(out: Location, *, overwrite: bool) -> None:
    """Raise an error, as `predict_scene` does, if no map can be written to `out`."""
    suffix = PurePath(str(out)).suffix.lower()
    if suffix not in GROUPS:
        raise ParameterError(
            f"{out} ends in {suffix}, which is not a format of maps.",
            "Give a path that ends in .zarr, or a name without a dot.",
        )
    check_target(out, kind=_KIND, overwrite=overwrite)


def write_map(
    work: "MapWork", out: Location, engine: Engine, *, overwrite: bool = False
) -> MapResult:
    """Write a prepared map, as `predict_scene` does."""
    with open_scene(work.scene.place) as opened:
        model, cube = work.model.open(), work.scene.cube(opened)
        layout = MapLayout.of(cube, model)
        _check_memory(cube, model, engine)
        identity = {
            "of_model": model.digest(),
            "of_scene": work.scene.digest(cube),
            "of_choice": ", ".join(work.names),
            "of_state_of_the_scene": work.scene.state(cube),
        }
        with resumed_group(out, kind=_KIND, identity=identity, overwrite=overwrite) as group:
            layout.prepare(group, cube, work.names)
            indices = layout.grid.indices()
            arguments = [
                (work, group, indices[start:stop])
                for start, stop in _task_spans(len(indices), layout.grid.n_pixels, engine)
            ]
            counts = run_tasks(engine, _map_boxes, arguments, label="predict")
            n_found = sum(found for _, found in counts)
            if n_found:
                logger.info("predict: %d of %d boxes were found finished", n_found, len(indices))
            if work.scene.state(cube) != identity["of_state_of_the_scene"]:
                raise RunMismatchError(
                    f"{work.scene.place} changed while it was mapped.",
                    "Map the scene again with `overwrite`, when no other job changes the scene.",
                )
            _finish_map(group, opened.attrs, identity)
    return MapResult(layout.grid.n_pixels, sum(n_missing for n_missing, _ in counts))


def _checked_names(model: Model, *, probabilities: bool, scores: bool) -> tuple[str, ...]:
    """Return the names of the results to write."""
    further = {"probability": ("probabilities", probabilities), "score": ("scores", scores)}
    asked = {name: option for name, (option, is_asked) in further.items() if is_asked}
    if model.target_names is None and not model.embeds:
        return ("label", *asked)
    for option in asked.values():
        raise ParameterError(
            f"`{option}` is set, but the model predicts numbers.", f"Leave `{option}` out."
        )
    return ("value",)


def _scene_at(place: Location, variable: Names, feature_dim: str | None) -> Scene:
    located = normalize(place)
    variables = named_columns("variable", variable) if isinstance(variable, str) else variable
    if isinstance(located, RemoteLocation):
        return Scene.at(File(located.url, located.storage_options), variables, feature_dim)
    if isinstance(located, str):
        return Scene.at(File(located), variables, feature_dim)
    raise ParameterError(
        f"{place} is a Zarr store object, but a path or URL is needed here.",
        "Give the path or URL of a scene.",
    )


@dataclass(frozen=True)
class MapWork:
    """A map to write: model, scene and results, checked before any task begins.

    order: as returned by `feature_order`.
    names: names of the results; the first one is written last.
    """

    model: PinnedModel
    scene: Scene
    order: tuple[int, ...]
    names: tuple[str, ...]
    n_pixels: int

    @classmethod
    def of(
        cls,
        model: Location,
        scene: Location,
        *,
        variable: Names = None,
        feature_dim: str | None = None,
        probabilities: bool = False,
        scores: bool = False,
    ) -> "MapWork":
        """Return the map to write, from the arguments of `predict_scene`."""
        pinned = PinnedModel.at(model)
        opened, found = pinned.open(), _scene_at(scene, variable, feature_dim)
        names = _checked_names(opened, probabilities=probabilities, scores=scores)
        with open_scene(found.place) as stored:
            cube = found.cube(stored)
            for name in names:
                _check_no_dimension(cube, name)
            layout = MapLayout.of(cube, opened)
            return cls(pinned, found, feature_order(opened, cube), names, layout.grid.n_pixels)


def _check_memory(cube: Cube, model: Model, engine: Engine) -> None:
    (r, p), q = model.basis.shape, model.n_targets
    rows, pixels = scoring_rows(model), math.prod(cube.grid.steps.values())
    # A box as stored, as numbers and as rows, for the current and the next box; its scores, results
    # and labels; a block of activations; the basis as read and as slopes.
    held = pixels * (
        cube.n_features * 2 * (cube.stored_bytes + 3 * cube.dtype.itemsize) + 8 * (4 * q + 2)
    )
    held += activations_bytes(model) + 8 * (rows * 4 * p + 3 * r * p + 2 * r * q)
    engine.expected_bytes = process_bytes(l1=model.l1) + held
    remedy = "Write the scene in smaller chunks"
    engine.check_budget("predict", engine.expected_bytes, remedy=remedy)


def _task_spans(n_boxes: int, n_pixels: int, engine: Engine) -> list[tuple[int, int]]:
    """Return spans of consecutive boxes, one for each task, of equal length up to one box."""
    wanted = max(_TASKS_PER_WORKER * engine.n_workers, n_pixels // _TASK_PIXELS)
    n_tasks = min(n_boxes, wanted)
    return list(pairwise(n_boxes * task // n_tasks for task in range(n_tasks + 1)))


def _map_boxes(
    work: MapWork, group: zarr.Group, indices: Sequence[tuple[int, ...]]
) -> tuple[int, int]:
    """Map some boxes; return how many pixels have no result and how many boxes were finished."""
    with open_scene(work.scene.place) as opened:
        cube, model = work.scene.cube(opened), work.model.open()
        layout = MapLayout.of(cube, model)
        found = {index: layout.missing_if_finished(group, work.names, index) for index in indices}
        boxes = [layout.grid.box(index) for index in indices if found[index] is None]
        n_missing = sum(filter(None, found.values()))
        scorer = Scorer(model)

        def read(box: Box) -> NDArray[Any]:
            rows = cube.rows(box)
            return rows[:, work.order] if work.order else rows

        for box, rows in zip(boxes, read_ahead(read, boxes, thread_name="read-boxes"), strict=True):
            scores = scorer.pixels(rows)
            missing = np.isnan(scores[:, 0])
            for name in reversed(work.names):
                values = _values(name, layout.coding, scorer, scores, missing)
                layout.write(group, name, box, values)
            n_missing += int(np.count_nonzero(missing))
    return n_missing, len(indices) - len(boxes)


def _values(
    name: str, coding: _Coding | None, scorer: Scorer, scores: Floats, missing: NDArray[np.bool_]
) -> NDArray[Any]:
    """Return the values of a result as a map stores them."""
    if name == "label":
        assert coding is not None
        codes = coding.codes[scores.argmax(axis=1)]
        codes[missing] = coding.missing
        return codes
    values = scorer.result(_RESULTS[name], scores).astype(np.float32)
    if coding is not None:
        # Rounding to float32 must not make another class the largest.
        keep_largest(values, scores)
    values[missing] = np.nan
    return values
