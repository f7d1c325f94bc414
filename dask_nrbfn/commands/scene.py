"""Maps: a model applied to all pixels of a scene, box by box, and resumed where it was stopped."""

import logging
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from dask_nrbfn.commands.ingest import Names
from dask_nrbfn.commands.maps import KIND, MapLayout, check_no_dimension, finish_map
from dask_nrbfn.commands.predict import GROUPS
from dask_nrbfn.engine import Engine
from dask_nrbfn.engine.memory import PROCESS_BYTES, check_budget
from dask_nrbfn.errors import ParameterError, RunMismatchError
from dask_nrbfn.numeric.held_out import keep_largest
from dask_nrbfn.numeric.svd import project_bytes
from dask_nrbfn.parts import run_tasks
from dask_nrbfn.scorer import Scorer, scoring_rows
from dask_nrbfn.sources.cubes import Box, Cube, matching
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.open import named_columns
from dask_nrbfn.sources.scene import Scene, open_scene
from dask_nrbfn.storage.blocks import one_ahead
from dask_nrbfn.storage.group import Location, check_target, resumed_group
from dask_nrbfn.storage.location import RemoteLocation, normalize
from dask_nrbfn.storage.model import Model, PinnedModel, check_columns

logger = logging.getLogger(__name__)

# Boxes of a task: enough that reading the model takes little of its time.
_TASK_PIXELS, _TASKS_PER_WORKER = 2**20, 4

# The results that a map stores as they are, by the name of its variable.
_RESULTS = {"value": "values", "score": "scores", "probability": "probabilities"}


@dataclass(frozen=True)
class MapResult:
    """What was mapped: all pixels, and those that have no prediction."""

    n_pixels: int
    n_missing: int


def wanted_names(model: Model) -> tuple[str, ...] | None:
    """Return the names of the features that pixels must have."""
    if model.schema is None:
        return model.feature_names
    return tuple(column.name for column in model.schema.columns)


def feature_order(model: Model, cube: Cube) -> tuple[int, ...]:
    """Return where the columns of a model are among the features of pixels; none: as they are.

    Raises
    ------
    DataError
        If there is no feature of that name, or without names another number of them.
    """
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
        A Zarr group, netCDF, or whatever else xarray has an engine for.
    out : Location
        A path or URL. What is finished of it lies beside it under a hidden name until all is, and
        is found by the next call.
    engine : Engine
    variable : str or sequence of str, optional
        The variable, if several have the dimension of the features; or several, as "A,B", of which
        each is a feature, and has one for every coordinate where it has the dimension.
    feature_dim : str, optional
        Dimension of the features, which are found by its coordinates, dates in ISO, where these and
        the training rows have names.
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
    model, opened = work.model.load(), open_scene(work.scene.place)
    cube = work.scene.cube(opened)
    layout = MapLayout.of(cube, model)
    _check_memory(cube, model, engine)
    identity = {
        "of_model": model.digest(),
        "of_scene": work.scene.digest(cube),
        "of_choice": ", ".join(work.names),
        "of_state_of_the_scene": work.scene.state(cube),
    }
    with resumed_group(out, kind=KIND, identity=identity, overwrite=overwrite) as group:
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
                "Map it anew with `overwrite`, when nobody writes it.",
            )
        finish_map(group, opened.attrs, identity)
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


def _scene_at(place: Location, variable: Names, feature_dim: str | None) -> Scene:
    located = normalize(place)
    variables = named_columns("variable", variable) if isinstance(variable, str) else variable
    if isinstance(located, RemoteLocation):
        return Scene.at(File(located.url, located.storage_options), variables, feature_dim)
    if isinstance(located, str):
        return Scene.at(File(located), variables, feature_dim)
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
        variable: Names = None,
        feature_dim: str | None = None,
        probabilities: bool = False,
        scores: bool = False,
    ) -> "MapWork":
        """Return it; arguments and errors are those of `predict_scene`."""
        pinned = PinnedModel.at(model)
        opened, found = pinned.load(), _scene_at(scene, variable, feature_dim)
        names = _checked_names(opened, probabilities=probabilities, scores=scores)
        cube = found.cube()
        for name in names:
            check_no_dimension(cube, name)
        layout = MapLayout.of(cube, opened)
        return cls(pinned, found, feature_order(opened, cube), names, layout.grid.n_pixels)


def _check_memory(cube: Cube, model: Model, engine: Engine) -> None:
    (r, n_scaled), p, q = model.basis.shape, model.n_features, model.n_targets
    rows, pixels = scoring_rows(r), math.prod(cube.grid.steps.values())
    # A box as stored and as numbers, and again one after another as rows, in use and one ahead;
    # scores, results and labels; a block of activations, the basis as read and as slopes.
    held = pixels * (
        cube.n_features * 2 * (cube.stored_bytes + 3 * cube.dtype.itemsize) + 8 * (4 * q + 2)
    )
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
    cube = work.scene.cube()
    layout = MapLayout.of(cube, model)
    found = {index: layout.missing_if_finished(group, work.names, index) for index in indices}
    boxes = [layout.grid.box(index) for index in indices if found[index] is None]
    n_found, n_missing = len(indices) - len(boxes), sum(filter(None, found.values()))
    scorer = Scorer(model)

    def read(box: Box) -> NDArray[Any]:
        rows = cube.rows(box)
        return rows[:, work.order] if work.order else rows

    pool = ThreadPoolExecutor(1, thread_name_prefix="read-boxes")
    reads = (pool.submit(read, box) for box in boxes)
    for box, rows in zip(boxes, one_ahead(pool, reads, next(reads, None)), strict=True):
        scores = scorer.pixels(rows)
        missing = np.isnan(scores[:, 0])
        for name in reversed(work.names):
            if name == "label":
                assert layout.coding is not None
                values = layout.coding.codes[scores.argmax(axis=1)]
                values[missing] = layout.coding.missing
            else:
                # As the map has them: rounding must not make another class the largest.
                values = scorer.result(_RESULTS[name], scores).astype(np.float32)
                if layout.coding is not None:
                    keep_largest(values, scores)
                values[missing] = np.nan
            layout.write(group, name, box, values)
        n_missing += int(np.count_nonzero(missing))
    return n_missing, n_found
