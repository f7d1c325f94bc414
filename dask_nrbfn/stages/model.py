"""Stage "model": the group with everything that prediction needs."""

from dataclasses import dataclass

from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import DamagedDataError, DamagedResultError, MissingDataError
from dask_nrbfn.parts import run_task
from dask_nrbfn.stages import judged_record
from dask_nrbfn.stages.columns import read_scaling
from dask_nrbfn.stages.neighbor_search import of_searched
from dask_nrbfn.stages.prune import read_places
from dask_nrbfn.stages.refine import read_weights
from dask_nrbfn.stages.sizes import FitSizes
from dask_nrbfn.stages.stage import Stage, StageCost, StageJob
from dask_nrbfn.stages.svd import read_components
from dask_nrbfn.stages.weights import WEIGHTS
from dask_nrbfn.stages.width import WIDTH
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import open_group
from dask_nrbfn.storage.model import Model, open_version
from dask_nrbfn.storage.run import Run


@dataclass(frozen=True)
class ModelRecord:
    """An empty record: the model has all figures."""


def _compute(job: StageJob) -> ModelRecord:
    """Store the model."""
    run_task(job.engine, _write_model, job.run, job.dataset, label="model")
    return ModelRecord()


def check_model(run: Run, engine: Engine, leaves: list[str]) -> None:
    """Raise DamagedResultError if the arrays that a finished run leaves cannot be read."""
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
    # Models of later versions cannot be computed again, so their errors pass through.
    Model.load(run.location)


def _write_model(run: Run, dataset: Dataset) -> None:
    scaling = read_scaling(run)
    trained, places = WEIGHTS.recorded(run), read_places(run)
    basis = scaling.apply(run.read("basis/values"))
    model = Model(
        basis=basis if places is None else basis[places],
        places=places,
        width=WIDTH.recorded(run).width,
        weights=read_weights(run),
        intercept=run.read("weights/intercept") if dataset.of_numbers else None,
        classes=dataset.classes,
        scaling=scaling,
        params=run.chosen_params,
        fitting_error=trained.fitting_error,
        spectral_risk=trained.spectral_risk,
        temperature=judged_record(run.stages).get("temperature"),
        feature_names=dataset.feature_names,
        target_names=dataset.target_names,
        schema=dataset.schema,
        projection=read_components(run),
        read_as=dataset.read_as,
    )
    model.write(run.group("model"))


def _cost(s: FitSizes) -> StageCost:
    n_bytes = s.stored_basis_bytes(s.r) + 8 * s.r * s.q + s.projection_bytes
    return StageCost(
        read_bytes=n_bytes,
        written_bytes=n_bytes,
        held_bytes=s.process_bytes + 4 * n_bytes,
        alone={"scratch_bytes": 2 * n_bytes},
    )


MODEL = Stage(
    name="model",
    record=ModelRecord,
    compute=_compute,
    cost=_cost,
    grows_with_basis=True,
    needs=(
        "columns",
        "metric/root",
        "basis/values",
        "prune/places",
        "weights",
        "refine/values",
        "svd/components",
    ),
    passes=("model",),
)
