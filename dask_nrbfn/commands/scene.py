"""Maps: a model applied to all pixels of a scene, box by box, and resumed where it was stopped."""

import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from dask_nrbfn.commands.maps import KIND, MapLayout, finish_map
from dask_nrbfn.commands.predict import GROUPS, scoring_rows
from dask_nrbfn.engine import Engine
from dask_nrbfn.engine.budget import PROCESS_BYTES, check_budget
from dask_nrbfn.engine.threads import blas_threads
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.svd import project_bytes
from dask_nrbfn.sources.cubes import Box, Grid, matching, pixel_rows
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.scene import Scene
from dask_nrbfn.sources.stored import stored_rows
from dask_nrbfn.stages.parts import run_tasks
from dask_nrbfn.storage.chunks import check_finite
from dask_nrbfn.storage.group import Location, check_target, resumed_group
from dask_nrbfn.storage.location import RemoteLocation, normalize
from dask_nrbfn.storage.model import Model, PinnedModel, check_columns

logger = logging.getLogger(__name__)

# Boxes of a task: enough that reading the model takes little of its time.
_TASK_PIXELS, _TASKS_PER_WORKER = 2**20, 4

# What is written of a block of scores (b, q), all of them numbers, by the name of its array.
_RESULTS: dict[str, Callable[[Model, NDArray[np.float64]], NDArray[np.float64]]] = {
    "value": lambda _, scores: scores,
    "score": lambda _, scores: scores,
    "probability": Model.probabilities,
}


@dataclass(frozen=True)
class MapResult:
    """What was mapped: all pixels, and those that have no prediction."""

    n_pixels: int
    n_missing: int


def pixel_scores(model: Model, rows: NDArray[Any], *, threads: int) -> NDArray[np.float64]:
    """Return the scores of pixels, float64 (n, q), NaN where one lacks a feature.

    Parameters
    ----------
    model : Model
        Where it fills gaps, only pixels without any feature have no scores.
    rows : array (n, c)
    threads : int

    Raises
    ------
    DataError
        If a value is infinite.
    """
    schema = model.schema
    fills = schema is not None and schema.fills
    scores = np.full((len(rows), len(model.weights)), np.nan)
    step = scoring_rows(model.n_basis)
    buffer = np.empty((min(step, len(rows)), model.n_basis))
    scratch = np.empty((len(buffer), model.n_features + 2))
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        gaps = np.isnan(block)
        there = ~(gaps.all(axis=1) if fills else gaps.any(axis=1))
        if not there.all():
            block = block[there]
        check_finite(block, first_row=start, within=" of a block of pixels", gaps=fills)
        if schema is not None:
            block = schema.expand(stored_rows(block, schema))
        n = len(block)
        if n:
            scores[start : start + step][there] = model.scores(
                block, buffer=buffer[:n], scratch=scratch[:n], threads=threads
            )
    return scores


def feature_order(
    model: Model, names: Sequence[str] | None, n_features: int, what: str
) -> tuple[int, ...]:
    """Return where the columns of a model are among the features of pixels; none: as they are.

    Raises
    ------
    DataError
        If `what` has no feature of that name, or without names another number of them.
    """
    schema = model.schema
    wanted = model.feature_names
    if schema is not None:
        wanted = tuple(column.name for column in schema.columns)
    order = matching(names, wanted, what)
    n_columns = model.n_features if schema is None else len(schema.columns)
    check_columns(len(order) or n_features, n_columns)
    return tuple(order)


def predict_scene(
    model: Location,
    scene: Location,
    out: Location,
    engine: Engine,
    *,
    variable: str | None = None,
    feature_dim: str | None = None,
    probabilities: bool = False,
    scores: bool = False,
    overwrite: bool = False,
) -> MapResult:
    """Write a map of the pixels of a scene, a Zarr group that xarray opens.

    It has ``label``, or for each target of a regression and coordinate of an embedding a layer of
    ``value``, and what else is asked for, along all dimensions of the variable but that of the
    features, with their coordinates. Pixels that lack a feature are missing. Text labels are codes
    with ``flag_meanings``; ``probability`` and ``score``, float32, have a dimension ``class`` where
    the variable has its features.

    Parameters
    ----------
    model : Location
        Of a model or a finished run.
    scene : Location
        A Zarr group as xarray writes it, of format 2 or 3.
    out : Location
        A path or URL. What is finished of it lies beside it under a hidden name until all is, and
        is found by the next call.
    engine : Engine
    variable, feature_dim : str, optional
        The variable, if several have the dimension of the features, and that dimension. Features
        are found by its coordinates where these and the training rows have names.
    probabilities, scores : bool
        Write these of every class too.
    overwrite : bool
        Replace a map at `out` once the new one is complete.

    Returns
    -------
    MapResult

    Raises
    ------
    DataError
        If the features are others than those of the training rows, or one is infinite.
    ExistsError, RunMismatchError, ParameterError, StorageError
        If nothing can be written at `out`, or something else was begun there; if what is asked for
        does not go with the model.
    """
    check_map_place(out, overwrite=overwrite)
    asked = {"probabilities": probabilities, "scores": scores}
    work = MapWork.of(model, scene, variable=variable, feature_dim=feature_dim, **asked)
    return write_map(work, out, engine, overwrite=overwrite)


def check_map_place(out: Location, *, overwrite: bool) -> None:
    """Raise an error if no map can be written to `out`.

    Raises
    ------
    ExistsError, ParameterError, StorageError
        As `predict_scene`.
    """
    suffix = PurePath(str(out)).suffix.lower()
    if suffix not in GROUPS:
        raise ParameterError(
            f"{out} ends in {suffix}, in which maps are not written.",
            "Write a Zarr group: .zarr, or a name without a dot.",
        )
    check_target(out, kind=KIND, overwrite=overwrite)


def write_map(
    work: "MapWork", out: Location, engine: Engine, *, overwrite: bool = False
) -> MapResult:
    """Write what was prepared, as `predict_scene` does."""
    model = work.model.load()
    layout = MapLayout.of(work.scene.cube, work.scene.feature_dim, model)
    _check_memory(work, layout, model, engine)
    choice = ", ".join(work.names)
    identity = {"of_model": model.digest(), "of_scene": work.digest(), "of_choice": choice}
    with resumed_group(out, kind=KIND, identity=identity, overwrite=overwrite) as group:
        for name in work.names:
            layout.create(group, name)
        indices = layout.grid.indices()
        arguments = [
            (work, group, indices[start:stop])
            for start, stop in _task_spans(len(indices), layout.grid.n_pixels, engine)
        ]
        counts = run_tasks(engine, _map_boxes, arguments, label="predict")
        n_found = sum(found for _, found in counts)
        if n_found:
            logger.info("predict: %d of %d boxes were found finished", n_found, len(indices))
        finish_map(group, work.scene, layout, work.names, identity)
    return MapResult(layout.grid.n_pixels, sum(n_missing for n_missing, _ in counts))


def _checked_names(model: Model, *, probabilities: bool, scores: bool) -> tuple[str, ...]:
    """Return the names of the results to write."""
    further = {"probability": ("probabilities", probabilities), "score": ("scores", scores)}
    asked = {name: option for name, (option, is_asked) in further.items() if is_asked}
    if model.target_names is None and not model.embeds:
        return ("label", *asked)
    for option in asked.values():
        raise ParameterError(
            f"`{option}` are asked for, and the model predicts numbers.", f"Leave `{option}` out."
        )
    return ("value",)


def _scene_at(place: Location, variable: str | None, feature_dim: str | None) -> Scene:
    located = normalize(place)
    if isinstance(located, RemoteLocation):
        return Scene.at(File(located.url, located.storage_options), variable, feature_dim)
    if isinstance(located, str):
        return Scene.at(File(located), variable, feature_dim)
    raise ParameterError(f"{place} is a store object.", "Give the path or URL of a scene.")


@dataclass(frozen=True)
class MapWork:
    """What is mapped: known to go together before any task begins.

    Attributes
    ----------
    model : PinnedModel
    scene : Scene
    order : tuple of int
        Where the features of the model are among those of the scene; none: as they are.
    names : tuple of str
        Of the results. What the first one has is written last.
    n_pixels : int
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
        variable: str | None = None,
        feature_dim: str | None = None,
        probabilities: bool = False,
        scores: bool = False,
    ) -> "MapWork":
        """Return it; arguments and errors are those of `predict_scene`."""
        pinned = PinnedModel.at(model)
        opened, found = pinned.load(), _scene_at(scene, variable, feature_dim)
        names = _checked_names(opened, probabilities=probabilities, scores=scores)
        cube, what = found.cube, f"{found.variable} in {found.place}"
        layout = MapLayout.of(cube, found.feature_dim, opened)
        n_features = cube.shape[layout.axis]
        order = feature_order(opened, found.feature_names, n_features, what)
        return cls(pinned, found, order, names, layout.grid.n_pixels)

    def digest(self) -> str:
        """Return a name for the scene, by its place, layout and attributes, and for its boxes."""
        scene = self.scene
        steps, layout = Grid.of(scene.cube, scene.feature_dim).steps, scene.cube.array.metadata
        told = [str(scene.place), scene.feature_dim, scene.feature_names, steps, layout.to_dict()]
        text = json.dumps(told, sort_keys=True, default=str)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _check_memory(work: MapWork, layout: MapLayout, model: Model, engine: Engine) -> None:
    cube, (r, n_scaled), p = work.scene.cube, model.basis.shape, model.n_features
    rows, pixels, q = scoring_rows(r), math.prod(layout.grid.steps.values()), model.n_targets
    n_features = cube.shape[cube.dimensions.index(work.scene.feature_dim)]
    stored = cube.array.dtype.itemsize
    # A box as stored and as numbers, and again one after another as rows, in use and one ahead;
    # scores, results and labels; a block of activations, the basis as read and as slopes.
    held = pixels * (n_features * 2 * (stored + 3 * cube.dtype.itemsize) + 8 * (4 * q + 2))
    held += 8 * (rows * (r + 4 * p) + 3 * r * n_scaled + 2 * r * q)
    if model.projection is not None:
        held += project_bytes(rows, p, n_scaled)
    engine.expected_bytes = PROCESS_BYTES + held
    remedy = "Write the scene in smaller chunks"
    check_budget("predict", engine.expected_bytes, engine, remedy=remedy)


def _task_spans(n_boxes: int, n_pixels: int, engine: Engine) -> list[tuple[int, int]]:
    """Return spans of consecutive boxes, as equal as can be."""
    wanted = max(_TASKS_PER_WORKER * engine.n_workers, n_pixels // _TASK_PIXELS)
    n_tasks = min(n_boxes, wanted)
    return list(pairwise(n_boxes * task // n_tasks for task in range(n_tasks + 1)))


def _map_boxes(
    work: MapWork, group: zarr.Group, indices: Sequence[tuple[int, ...]]
) -> tuple[int, int]:
    """Map some boxes; return how many of their pixels have no result, how many were finished."""
    model = work.model.load()
    cube, feature_dim = work.scene.cube, work.scene.feature_dim
    layout = MapLayout.of(cube, feature_dim, model)
    found = {index: layout.missing_if_finished(group, work.names, index) for index in indices}
    boxes = [layout.grid.box(index) for index in indices if found[index] is None]
    n_found, n_missing = len(indices) - len(boxes), sum(filter(None, found.values()))
    threads = blas_threads()

    def read(box: Box) -> NDArray[Any]:
        rows = pixel_rows(cube, feature_dim, box)
        return rows[:, work.order] if work.order else rows

    for box, rows in zip(boxes, _read_ahead(read, boxes), strict=True):
        scores = pixel_scores(model, rows, threads=threads)
        missing = np.isnan(scores[:, 0])
        for name in reversed(work.names):
            if name == "label":
                assert layout.coding is not None
                values = layout.coding.codes[scores.argmax(axis=1)]
                values[missing] = layout.coding.missing
            else:
                values = _RESULTS[name](model, scores)
                values[missing] = np.nan
            layout.write(group, name, box, values)
        n_missing += int(np.count_nonzero(missing))
    return n_missing, n_found


def _read_ahead(
    read: Callable[[Box], NDArray[Any]], boxes: Sequence[Box]
) -> Iterator[NDArray[Any]]:
    """Yield what is read of boxes, in a thread that works one box ahead."""
    with ThreadPoolExecutor(1, thread_name_prefix="read-boxes") as pool:
        ahead: list[Future[NDArray[Any]]] = []
        for box in boxes:
            ahead.append(pool.submit(read, box))
            if len(ahead) > 1:
                yield ahead.pop(0).result()
        for last in ahead:
            yield last.result()
