"""Stage "weights": the r x r system, solved on one node."""

import logging
import warnings
from dataclasses import dataclass

from dask_nrbfn.errors import IllConditionedWarning
from dask_nrbfn.numeric.held_out import unexplained_share
from dask_nrbfn.numeric.ridge import ILL_CONDITIONED, RidgeSystem
from dask_nrbfn.numeric.ridge_path import Ridge
from dask_nrbfn.numeric.risk import error_and_risk
from dask_nrbfn.numeric.targets import NumberTargets
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.parts import run_task
from dask_nrbfn.stages.moments import read_moments, read_system
from dask_nrbfn.stages.path import PATH, penalized_system, read_path_weights
from dask_nrbfn.stages.prune import read_places
from dask_nrbfn.stages.sizes import FitSizes
from dask_nrbfn.stages.stage import Stage, StageCost, StageJob
from dask_nrbfn.stages.trials import ridges
from dask_nrbfn.stages.width import read_targets
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.group import Location
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WeightsRecord:
    """Penalty, error and risk of the network, see `ErrorAndRisk` and `RidgeSolution`.

    Attributes
    ----------
    training_r2 : list of float or None
        R^2 of the training rows for every target; None for classes.
    """

    alpha: float
    fitting_error: float
    spectral_risk: float
    objective: float
    reciprocal_condition: float | None = None
    training_r2: list[float] | None = None


def _compute(job: StageJob) -> WeightsRecord:
    """Solve and store the weights."""
    record: WeightsRecord
    record = run_task(job.engine, _solve, job.run.location, label="weights")
    logger.info(
        "weights: fitting error %.4f, spectral risk %.3g",
        record.fitting_error,
        record.spectral_risk,
    )
    warn_of_condition(record.reciprocal_condition, alpha=record.alpha)
    return record


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


def _solve(run_location: Location) -> WeightsRecord:
    run = Run.open(run_location)
    chosen = Ridge.in_params(run.chosen_params)
    alpha, system = chosen.alpha, read_kept_system(run)
    if run.tuning is None:
        solution = system.solve(alpha)
        weights = solution.weights
        condition: float | None = solution.reciprocal_condition
    else:
        place = ridges(run.chosen_params, run.tuning).index(chosen)
        weights = read_path_weights(run, None).weights[place]
        condition = PATH.recorded(run).path[place].get("reciprocal_condition")
    risk = error_and_risk(
        weights,
        system.gram,
        system.cross,
        target_norm=system.target_norm,
        alpha=alpha,
        penalty=system.penalty,
        locality=system.locality,
    )
    write_array(run.group("weights"), "values", weights, "target", "basis")
    intercept = read_intercept(run, system, weights)
    if intercept is not None:
        write_array(run.group("weights"), "intercept", intercept, "target")
    return WeightsRecord(
        alpha=alpha,
        fitting_error=risk.fitting_error,
        spectral_risk=risk.spectral_risk,
        objective=risk.objective,
        reciprocal_condition=condition,
        training_r2=training_r2(run, system, weights),
    )


def read_kept_system(run: Run) -> RidgeSystem:
    """Return the ridge system of the basis rows that the fitted model keeps, with its penalty."""
    system = read_system(run, read_moments(run))
    return penalized_system(run, system, Ridge.in_params(run.chosen_params)).at(read_places(run))


def training_r2(run: Run, system: RidgeSystem, weights: Floats) -> list[float] | None:
    """Return R^2 of the rows behind a system for weights (q, r); None for classes."""
    if not read_targets(run, len(weights)).centred:
        return None
    unexplained = unexplained_share(system.squared_residuals(weights), system.target_squares)
    r2: list[float] = (1.0 - unexplained).tolist()
    return r2


def read_intercept(run: Run, system: RidgeSystem, weights: Floats) -> Floats | None:
    """Return what a model adds to the products of activations and weights (q, r); None: nothing."""
    targets = read_targets(run, len(weights))
    if not isinstance(targets, NumberTargets):
        return None
    return targets.origin + system.intercept(weights)


def _cost(s: FitSizes) -> StageCost:
    solves = 0.0 if s.n_ridges else s.n_kept**3 / 3
    return StageCost(
        flops=solves,
        read_bytes=4 * s.r**2,
        written_bytes=8 * s.q * s.r,
        held_bytes=s.process_bytes + s.solve_bytes + 2 * 8 * s.n_ridges * s.q * s.r,
        alone={"solve_flops": solves, "scratch_bytes": 4 * s.r**2},
    )


WEIGHTS = Stage(
    name="weights", record=WeightsRecord, compute=_compute, cost=_cost, grows_with_basis=True
)
