"""Stages "weights" and "model": the r x r system, solved on one node."""

import logging
import warnings
from typing import Any

from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import (
    DamagedDataError,
    DamagedResultError,
    IllConditionedWarning,
    MissingDataError,
)
from dask_nrbfn.numeric.ridge import ILL_CONDITIONED, solve_weights
from dask_nrbfn.numeric.risk import error_and_risk
from dask_nrbfn.stages.columns import read_scaling
from dask_nrbfn.stages.moments import read_moments
from dask_nrbfn.stages.parts import run_tasks
from dask_nrbfn.stages.path import read_path_weights
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location, open_group, write_array
from dask_nrbfn.storage.model import Model, open_version
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)


def compute_weights(run: Run, dataset: Dataset, engine: Engine) -> dict[str, Any]:
    """Solve and store the weights; return the fitting error and spectral risk."""
    (record,) = run_tasks(engine, _solve, [(run.location,)], label="weights")
    logger.info(
        "weights: fitting error %.4f, spectral risk %.3g",
        record["fitting_error"],
        record["spectral_risk"],
    )
    warn_of_condition(record["reciprocal_condition"], alpha=record["alpha"])
    return dict(record)


def warn_of_condition(reciprocal_condition: float | None, *, alpha: float) -> None:
    """Warn if rounding decides much of the weights; in the process that asked for them."""
    if reciprocal_condition is not None and reciprocal_condition < ILL_CONDITIONED:
        warnings.warn(
            f"the ridge system at alpha={alpha:g} has a reciprocal condition of "
            f"{reciprocal_condition:.1e}: rounding decides much of the weights. Give a larger "
            "alpha; 1e-13 is enough.",
            IllConditionedWarning,
            stacklevel=2,
        )


def compute_model(run: Run, dataset: Dataset, engine: Engine) -> dict[str, Any]:
    """Store the model, which prediction needs nothing else of the run for."""
    run_tasks(engine, _write_model, [(run.location, dataset.location)], label="model")
    return {}


def check_model(run: Run, engine: Engine) -> None:
    """Raise DamagedResultError if what a finished run is asked for cannot be read."""
    run_tasks(engine, _read_results, [(run.location,)], label="model")


def _read_results(run_location: Location) -> None:
    run = Run.open(run_location)
    for name in ("basis/rows", "basis/values", "weights/values"):
        run.read(name)
    if "confidence" in run.stages:
        for start, stop in run.spans:
            run.read("confidence/values", start, stop)
    if run.tuning is not None:
        run.read("validation/confusion")
    read_moments(run)
    try:
        Model.read(open_version(open_group(run_location, kind="run"), ""))
    except (MissingDataError, DamagedDataError) as error:
        raise DamagedResultError(error.problem, error.remedy, "model", ()) from error
    # Those of later versions are not computed again.
    Model.load(run_location)


def _solve(run_location: Location) -> dict[str, Any]:
    run = Run.open(run_location)
    moments, alpha = read_moments(run), run.params.alpha
    gram, cross = moments.gram(), moments.cross
    if run.tuning is None:
        solution = solve_weights(gram, cross, alpha=alpha)
        weights, condition = solution.weights, solution.reciprocal_condition
    else:
        place = list(run.tuning.alphas).index(alpha)
        weights = read_path_weights(run, None)[place]
        condition = run.stages["path"]["path"][place].get("reciprocal_condition")
    risk = error_and_risk(weights, gram, cross, n_rows=moments.total_weight, alpha=alpha)
    write_array(run.group("weights"), "values", weights, "class", "basis")
    return {
        "alpha": alpha,
        "fitting_error": risk.fitting_error,
        "spectral_risk": risk.spectral_risk,
        "objective": risk.objective,
        "reciprocal_condition": condition,
    }


def _write_model(run_location: Location, dataset_location: Location) -> None:
    run, dataset = Run.open(run_location), Dataset.open(dataset_location)
    scaling = read_scaling(run)
    stages = run.stages
    model = Model(
        basis=scaling.apply(run.read("basis/values")),
        width=stages["width"]["width"],
        weights=run.read("weights/values"),
        classes=dataset.classes,
        scaling=scaling,
        params=run.params,
        fitting_error=stages["weights"]["fitting_error"],
        spectral_risk=stages["weights"]["spectral_risk"],
        temperature=stages["validation"]["temperature"] if run.tuning else None,
        feature_names=dataset.feature_names,
    )
    model.write(run.group("model"))
