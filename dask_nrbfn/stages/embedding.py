"""The last stage of an embedding: a model whose scores are coordinates, and a sample of them."""

from dataclasses import replace

import numpy as np

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.eigenfunctions import LEAST_EIGENVALUE
from dask_nrbfn.parts import run_task
from dask_nrbfn.stages.columns import read_scaling
from dask_nrbfn.stages.components import read_coefficients
from dask_nrbfn.stages.model import MODEL, ModelRecord
from dask_nrbfn.stages.sizes import FitSizes
from dask_nrbfn.stages.stage import Stage, StageCost, StageJob
from dask_nrbfn.stages.svd import read_components
from dask_nrbfn.stages.width import read_features
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import Run

# The most rows whose coordinates the run keeps: enough for a scatter plot.
_SAMPLED_ROWS = 2000


def _compute(job: StageJob) -> ModelRecord:
    """Store the model and the coordinates of a sample of rows.

    Raises
    ------
    ParameterError
        If the basis has fewer eigenfunctions than are asked for.
    """
    run_task(job.engine, _write, job.run, job.dataset, label="model")
    return ModelRecord()


def _write(run: Run, dataset: Dataset) -> None:
    model = _model(run, dataset)
    rows = np.unique(np.linspace(0, dataset.n_rows - 1, _SAMPLED_ROWS).astype(np.int64))
    group = run.group("model/sample")
    # In a fit with `svd` these rows are coordinates already.
    coordinates = replace(model, projection=None).scores(dataset.take(rows))
    write_array(group, "coordinates", coordinates, "row", "component")
    if dataset.of_numbers:
        write_array(group, "targets", dataset.take_targets(rows), "row", "target")
    elif dataset.has_targets:
        write_array(group, "targets", dataset.take_codes(rows), "row")
        write_array(group, "classes", np.array(dataset.classes.tolist(), dtype=np.str_), "class")
    model.write(run.group("model"))


def _model(run: Run, dataset: Dataset) -> Model:
    """Return the model whose scores are all eigenfunctions but the constant one."""
    weights, asked = read_coefficients(run)[:, 1:].T, run.chosen_params.components
    if len(weights) < (asked or 0):
        raise ParameterError(
            f"`components` is {asked}, the basis has {len(weights)} eigenfunctions of an "
            f"eigenvalue above {LEAST_EIGENVALUE:g} beside the constant one.",
            f"Give `components` of at most {len(weights)}, or a smaller `width_factor`."
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
        projection=read_components(run),
        read_as=dataset.read_as,
        target_names=tuple(f"component_{place}" for place in range(1, 1 + len(weights))),
    )


def _cost(s: FitSizes) -> StageCost:
    rows, coordinates = min(_SAMPLED_ROWS, s.n), s.n_components
    written = 8 * (s.r * coordinates + rows * (coordinates + s.q))
    written += s.stored_basis_bytes(s.r) + s.projection_bytes
    return StageCost(
        read_bytes=s.rows_bytes,
        written_bytes=written,
        held_bytes=s.process_bytes
        + s.reading_bytes
        + s.n
        + round(rows * s.block_row_bytes)
        + s.basis_bytes(s.r, copies=4)
        + 4 * s.projection_bytes
        + 8 * (rows * (s.r + s.width + 2) + 4 * s.r * coordinates),
        alone={"read_bytes": s.rows_bytes, "scratch_bytes": written},
    )


def _leaves(run: Run) -> tuple[str, ...]:
    names = (f"model/sample/{name}" for name in ("coordinates", "targets", "classes"))
    return tuple(name for name in names if name.endswith("coordinates") or run.has(name))


EMBEDDED = Stage(
    name=MODEL.name,
    record=ModelRecord,
    compute=_compute,
    cost=_cost,
    grows_with_basis=True,
    needs=(
        "columns",
        "metric/root",
        "basis/values",
        "components/coefficients",
        "svd/components",
    ),
    leaves=_leaves,
    passes=("model",),
)
