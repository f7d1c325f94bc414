"""Stage "model": the group with the arrays for prediction by a network or an embedding."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import DamagedDataError, DamagedResultError, MissingDataError, ParameterError
from dask_nrbfn.numeric.calibration import Calibration
from dask_nrbfn.numeric.eigenfunctions import LEAST_EIGENVALUE
from dask_nrbfn.parts import run_task
from dask_nrbfn.stages import judged_record
from dask_nrbfn.stages.cells import CELLS, cells_basis, read_networks
from dask_nrbfn.stages.columns import read_scaling
from dask_nrbfn.stages.moments import WIDTH, read_coefficients, read_features
from dask_nrbfn.stages.neighbor_search import of_searched
from dask_nrbfn.stages.refine import read_weights
from dask_nrbfn.stages.stage import FitSizes, Stage, StageCost, StageJob
from dask_nrbfn.stages.trials import trials_of
from dask_nrbfn.stages.weights import WEIGHTS, read_places
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import open_group
from dask_nrbfn.storage.model import Model, open_version
from dask_nrbfn.storage.run import Run
from dask_nrbfn.storage.versions import versions_of


def _compute(write: Callable[[Run, Dataset], None], job: StageJob) -> dict[str, Any]:
    """Store the model, which has all figures, in a task that runs `write`."""
    run_task(job.engine, write, job.run, job.dataset, label="model")
    return {}


def check_model(run: Run, engine: Engine, leaves: list[str]) -> None:
    """Raise DamagedResultError if the model or the named arrays of a run cannot be read."""
    run_task(engine, _read_results, run, leaves, label="model")


def _read_results(run: Run, leaves: list[str]) -> None:
    searched = of_searched(run)
    for name in leaves:
        of_rows = run.array(name).shape[0] == searched.n_rows
        for start, stop in searched.spans if of_rows else [(0, None)]:
            searched.read(name, start, stop)
    try:
        Model.read(open_version(open_group(run.location, kind="run"), ""))
    except (MissingDataError, DamagedDataError) as error:
        raise DamagedResultError(error.problem, error.remedy, "model", ()) from error
    if versions_of(run.attributes):
        # Models of later versions cannot be computed again, so their errors pass through.
        Model.load(run.location)


def _write_model(run: Run, dataset: Dataset) -> None:
    model = (_of_cells if trials_of(run).is_of_cells else _of_one_network)(run, dataset)
    model.write(run.group("model"))


def _of_cells(run: Run, dataset: Dataset) -> Model:
    record, cells = CELLS.recorded(run), read_networks(run)
    return Model(
        basis=run.read("cells/basis"),
        width=float(np.median(cells.widths)),
        weights=run.read("cells/weights"),
        scaling=read_scaling(run),
        params=run.chosen_params,
        fitting_error=record.fitting_error,
        spectral_risk=record.spectral_risk,
        calibration=Calibration.of(vars(record)),
        cells=cells,
        intercept=run.read("cells/origin") if dataset.of_numbers else None,
        **_of_dataset(run, dataset),
    )


def _of_dataset(run: Run, dataset: Dataset) -> dict[str, Any]:
    """Return the fields of a model that describe the training rows and their features."""
    return {
        "classes": dataset.classes,
        "feature_names": dataset.feature_names,
        "target_names": dataset.target_names,
        "target_range": dataset.target_range(),
        "schema": dataset.schema,
        "read_as": dataset.read_as,
    }


def _of_one_network(run: Run, dataset: Dataset) -> Model:
    scaling = read_scaling(run)
    trained, places = WEIGHTS.recorded(run), read_places(run)
    basis = scaling.apply(run.read("basis/values"))
    return Model(
        basis=basis if places is None else basis[places],
        places=places,
        width=WIDTH.recorded(run).width,
        weights=read_weights(run),
        intercept=run.read("weights/intercept") if dataset.of_numbers else None,
        scaling=scaling,
        params=run.chosen_params,
        fitting_error=trained.fitting_error,
        spectral_risk=trained.spectral_risk,
        calibration=Calibration.of(judged_record(run.stages)),
        **_of_dataset(run, dataset),
    )


def _cost(s: FitSizes) -> StageCost:
    r = cells_basis(s.params, s.n) if s.tried.is_of_cells else s.r
    n_bytes = s.stored_basis_bytes(r) + 8 * r * s.q
    return StageCost(
        read_bytes=n_bytes, written_bytes=n_bytes, held_bytes=s.held(4 * n_bytes, margin=0.0)
    )


MODEL = Stage(
    name="model", compute=partial(_compute, _write_model), cost=_cost, grows_with_basis=True
)

# Maximum number of rows whose coordinates the run keeps: enough for a scatter plot.
_SAMPLED_ROWS = 2000


def _write_embedding(run: Run, dataset: Dataset) -> None:
    """Store the model and the coordinates of a sample of rows."""
    model = _embedding_of(run, dataset)
    rows = np.unique(np.linspace(0, dataset.n_rows - 1, _SAMPLED_ROWS).astype(np.int64))
    group = run.group("model/sample")
    write_array(group, "coordinates", model.scores(dataset.take(rows)), "row", "component")
    if dataset.of_numbers:
        write_array(group, "targets", dataset.take_targets(rows), "row", "target")
    elif dataset.has_targets:
        write_array(group, "targets", dataset.take_targets(rows), "row")
        write_array(group, "classes", np.array(dataset.classes.tolist(), dtype=np.str_), "class")
    model.write(run.group("model"))


def _embedding_of(run: Run, dataset: Dataset) -> Model:
    """Return the model whose scores are all eigenfunctions except the constant one."""
    weights, asked = read_coefficients(run)[:, 1:].T, run.chosen_params.components
    if len(weights) < (asked or 0):
        raise ParameterError(
            f"`components` is {asked}, but besides the constant eigenfunction only {len(weights)} "
            f"have an eigenvalue above {LEAST_EIGENVALUE:g}.",
            f"Set `components` to at most {len(weights)}, or give a smaller `width_factor`."
            if len(weights)
            else "Give a smaller `width_factor`, or a larger basis.",
        )
    features = read_features(run)
    return Model(
        basis=features.basis,
        width=features.width,
        weights=np.ascontiguousarray(weights),
        intercept=np.zeros(len(weights)),
        classes=np.empty(0),
        scaling=read_scaling(run),
        params=run.chosen_params,
        feature_names=dataset.feature_names,
        schema=dataset.schema,
        read_as=dataset.read_as,
        target_names=tuple(f"component_{place}" for place in range(1, 1 + len(weights))),
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


def _embedding_leaves(run: Run) -> tuple[str, ...]:
    names = (f"model/sample/{name}" for name in ("coordinates", "targets", "classes"))
    return tuple(name for name in names if name.endswith("coordinates") or run.has(name))


EMBEDDED = replace(
    MODEL,
    compute=partial(_compute, _write_embedding),
    cost=_embedding_cost,
    leaves=_embedding_leaves,
)
