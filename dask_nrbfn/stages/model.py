"""Stage "model": the group with the arrays for prediction by a network or an embedding."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import DamagedDataError, DamagedResultError, MissingDataError, ParameterError
from dask_nrbfn.numeric.calibration import Calibration, ScoreDraw
from dask_nrbfn.numeric.cell_networks import CellNetworks
from dask_nrbfn.numeric.eigenfunctions import LEAST_EIGENVALUE
from dask_nrbfn.numeric.intervals import Intervals, masses
from dask_nrbfn.numeric.losses import loss_named
from dask_nrbfn.parts import run_task
from dask_nrbfn.stages import judged_record
from dask_nrbfn.stages.bases import with_neighbors
from dask_nrbfn.stages.basis import BASIS_VALUES
from dask_nrbfn.stages.cells import (
    CELL_BASIS,
    CELL_WEIGHTS,
    CELLS,
    NETWORKS,
    ORIGIN,
    cells_basis,
)
from dask_nrbfn.stages.columns import read_scaling
from dask_nrbfn.stages.context import FitSizes
from dask_nrbfn.stages.cost import StageCost
from dask_nrbfn.stages.moments import COEFFICIENTS, WIDTH, read_features
from dask_nrbfn.stages.refine import REFINED_VALUES, is_refined
from dask_nrbfn.stages.stage import Stage, StageJob, StageRecord
from dask_nrbfn.stages.validation import read_draw, read_scale
from dask_nrbfn.stages.weights import INTERCEPT, WEIGHT_VALUES, WEIGHTS, read_places
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import open_group
from dask_nrbfn.storage.model import Model, open_version
from dask_nrbfn.storage.run import Run, RunArray, model_name


def _store_model(write: Callable[[Run, Dataset], None], job: StageJob) -> StageRecord:
    """Store the model, which has all figures, in a task that runs `write`."""
    run_task(job.engine, write, job.run, job.dataset, label="model")
    return StageRecord()


def check_model(run: Run, engine: Engine, arrays: list[str]) -> None:
    """Raise DamagedResultError if the model or the named arrays of a run cannot be read."""
    run_task(engine, _read_results, run, arrays, label="model")


def _read_results(run: Run, arrays: list[str]) -> None:
    searched = with_neighbors(run)
    for name in arrays:
        of_rows = run.array(name).shape[0] == searched.n_rows
        for start, stop in searched.layout.spans if of_rows else [(0, None)]:
            searched.read(name, start, stop)
    read_model(run, "")
    if run.versions:
        # Models of later versions cannot be computed again, so their errors pass through.
        Model.load(run.location)


def read_model(run: Run, place: str) -> Model:
    """Return the model of the version at `place`; raise DamagedResultError if it is damaged."""
    try:
        return Model.read(open_version(open_group(run.location, kind="run"), place))
    except (MissingDataError, DamagedDataError) as error:
        raise DamagedResultError(error.problem, error.remedy, model_name(place), ()) from error


def _write_model(run: Run, dataset: Dataset) -> None:
    of_cells = run.spec.is_of_cells
    intercept = ORIGIN if of_cells else INTERCEPT
    record = run.stages[CELLS.name if of_cells else WEIGHTS.name]
    calibration = Calibration.of(judged_record(run.stages))
    model = Model(
        **(_of_cells if of_cells else _of_one_network)(run),
        **_of_dataset(run, dataset),
        classes=dataset.classes,
        target_names=dataset.target_names,
        target_range=dataset.target_range(),
        intercept=intercept.read(run) if dataset.of_numbers else None,
        fitting_error=record["fitting_error"],
        spectral_risk=record["spectral_risk"],
        calibration=calibration,
        intervals=intervals_of(run, read_draw(run, ""), calibration),
    )
    model.write(run.group("model"))


def intervals_of(
    run: Run, draw: ScoreDraw | None, calibration: Calibration | None
) -> Intervals | None:
    """Return the intervals that drawn held-out rows give; None without any."""
    if draw is None or not len(draw.codes):
        return None
    values, scale = draw.scores, read_scale(run)
    if not run.of_numbers:
        assert calibration is not None
        probabilities = calibration.probabilities(values, loss_named(run.spec.params.loss))
        values = masses(probabilities)[np.arange(len(draw.codes)), draw.codes][:, None]
    return Intervals.of_rows(values, draw.distances, draw.weights, scale)


def _of_cells(run: Run) -> dict[str, Any]:
    cells = CellNetworks.from_arrays({name: each.read(run) for name, each in NETWORKS.items()})
    return {
        "basis": CELL_BASIS.read(run),
        "width": float(np.median(cells.widths)),
        "weights": CELL_WEIGHTS.read(run),
        "cells": cells,
    }


def _of_one_network(run: Run) -> dict[str, Any]:
    places, basis = read_places(run), read_scaling(run).apply(BASIS_VALUES.read(run))
    weights = REFINED_VALUES if is_refined(run.spec.params) else WEIGHT_VALUES
    return {
        "basis": basis if places is None else basis[places],
        "places": places,
        "width": WIDTH.recorded(run).width,
        "weights": weights.read(run),
    }


def _of_dataset(run: Run, dataset: Dataset) -> dict[str, Any]:
    """Return the fields of a model that describe the parameters and the features."""
    return {
        "params": run.spec.params,
        "scaling": read_scaling(run),
        "feature_names": dataset.feature_names,
        "schema": dataset.schema,
        "read_as": dataset.read_as,
    }


def _model_cost(s: FitSizes) -> StageCost:
    r = cells_basis(s.spec.params, s.n) if s.spec.is_of_cells else s.r
    n_bytes = s.stored_basis_bytes(r) + 8 * r * s.q
    return StageCost(
        read_bytes=n_bytes, written_bytes=n_bytes, held_bytes=s.held(4 * n_bytes, margin=0.0)
    )


MODEL = Stage(
    name="model",
    compute=partial(_store_model, _write_model),
    record=StageRecord,
    cost=_model_cost,
    grows_with_basis=True,
)

# Maximum number of rows whose coordinates the run keeps: enough for a scatter plot.
_SAMPLED_ROWS = 2000

COORDINATES = RunArray("model/sample/coordinates", ("row", "component"), "coordinates of some rows")
SAMPLED_TARGETS = RunArray("model/sample/targets", ("row", "target"), "numeric targets of the rows")
SAMPLED_CODES = RunArray("model/sample/codes", ("row",), "class codes of the rows")
SAMPLED_CLASSES = RunArray("model/sample/classes", ("class",), "names of the classes")


def _write_embedding(run: Run, dataset: Dataset) -> None:
    """Store the model and the coordinates of a sample of rows."""
    model = _embedding_of(run, dataset)
    rows = np.unique(np.linspace(0, dataset.n_rows - 1, _SAMPLED_ROWS).astype(np.int64))
    COORDINATES.write(run, model.scores(dataset.take(rows)))
    if dataset.of_numbers:
        SAMPLED_TARGETS.write(run, dataset.take_targets(rows))
    elif dataset.y is not None:
        SAMPLED_CODES.write(run, dataset.take_targets(rows))
        SAMPLED_CLASSES.write(run, np.array(dataset.classes.tolist(), dtype=np.str_))
    model.write(run.group("model"))


def _embedding_of(run: Run, dataset: Dataset) -> Model:
    """Return the model whose scores are all eigenfunctions except the constant one."""
    weights, size = COEFFICIENTS.read(run)[:, 1:].T, run.spec.params.components
    if len(weights) < (size or 0):
        lower = f"Set `components` to at most {len(weights)}, or give" if len(weights) else "Give"
        raise ParameterError(
            f"`components` is {size}, but besides the constant eigenfunction only {len(weights)} "
            f"have an eigenvalue above {LEAST_EIGENVALUE:g}.",
            f"{lower} a smaller `width_factor`.",
        )
    features = read_features(run)
    return Model(
        basis=features.basis,
        width=features.width,
        weights=np.ascontiguousarray(weights),
        intercept=np.zeros(len(weights)),
        classes=np.empty(0),
        target_names=tuple(f"component_{place}" for place in range(1, 1 + len(weights))),
        **_of_dataset(run, dataset),
    )


def _embedding_cost(s: FitSizes) -> StageCost:
    rows = min(_SAMPLED_ROWS, s.n)
    held = s.basis_bytes(s.r, copies=4) + 8 * (
        rows * (s.r + 2 * s.width) + 4 * s.r * s.n_components
    )
    return StageCost(
        read_bytes=s.rows_bytes,
        written_bytes=8 * s.r * s.n_components + s.stored_basis_bytes(s.r),
        held_bytes=s.held(held + s.n),
    )


EMBEDDED = replace(
    MODEL,
    compute=partial(_store_model, _write_embedding),
    arrays=(COORDINATES, SAMPLED_TARGETS, SAMPLED_CODES, SAMPLED_CLASSES),
    cost=_embedding_cost,
)
