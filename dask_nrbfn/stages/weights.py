"""Stage "weights": the solution of the ridge system of r basis rows on one node."""

import logging
import warnings
from dataclasses import asdict, dataclass
from typing import NamedTuple

from dask_nrbfn.errors import IllConditionedWarning
from dask_nrbfn.numeric.held_out import unexplained_share
from dask_nrbfn.numeric.penalties import check_penalty
from dask_nrbfn.numeric.ridge import ILL_CONDITIONED, RidgeSolution, RidgeSystem, solve_bytes
from dask_nrbfn.numeric.ridge_path import Ridge
from dask_nrbfn.numeric.risk import error_and_risk
from dask_nrbfn.numeric.targets import NumberTargets
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.parts import run_task
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.moments import read_moments
from dask_nrbfn.stages.path import PATH, read_path_weights
from dask_nrbfn.stages.prune import full_system, read_places
from dask_nrbfn.stages.sizes import FitSizes
from dask_nrbfn.stages.stage import Stage, StageCost, StageJob
from dask_nrbfn.stages.trials import ridges_of
from dask_nrbfn.stages.width import read_targets
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WeightsRecord:
    """Penalty, error and risk of the network, and r^2 of the training rows for numbers."""

    alpha: float
    fitting_error: float
    spectral_risk: float
    objective: float
    reciprocal_condition: float
    training_r2: list[float] | None = None


def _compute(job: StageJob) -> WeightsRecord:
    """Solve and store the weights."""
    record = run_task(job.engine, _solve, job.run, label="weights")
    logger.info(
        "weights: fitting error %.4f, spectral risk %.3g",
        record.fitting_error,
        record.spectral_risk,
    )
    warn_of_condition(record.reciprocal_condition, alpha=record.alpha)
    return record


def warn_of_condition(reciprocal_condition: float, *, alpha: float) -> None:
    """Warn if the system is so ill-conditioned that rounding decides much of the weights."""
    if reciprocal_condition < ILL_CONDITIONED:
        warnings.warn(
            f"the ridge system at alpha={alpha:g} has a reciprocal condition of "
            f"{reciprocal_condition:.1e}: rounding decides much of the weights. Give a larger "
            "alpha; 1e-13 is enough.",
            IllConditionedWarning,
            stacklevel=2,
        )


def _solve(run: Run) -> WeightsRecord:
    chosen, system = Ridge.in_params(run.chosen_params), read_kept_system(run)
    if run.tuning is None:
        solution = system.solve(chosen.alpha)
    else:
        place = ridges_of(run).index(chosen)
        condition = PATH.recorded(run).path[place]["reciprocal_condition"]
        solution = RidgeSolution(read_path_weights(run, None).weights[place], condition)
    network = describe_network(run, system, solution, alpha=chosen.alpha)
    write_array(run.group("weights"), "values", network.weights, "target", "basis")
    if network.intercept is not None:
        write_array(run.group("weights"), "intercept", network.intercept, "target")
    return network.record


class Network(NamedTuple):
    """Weights (q, r), the intercept (q,), None for classes, and the figures of the network."""

    weights: Floats
    intercept: Floats | None
    record: WeightsRecord


def describe_network(
    run: Run, system: RidgeSystem, solution: RidgeSolution, *, alpha: float
) -> Network:
    """Return the network of a solved ridge system: its weights, intercept, error and risk."""
    weights = solution.weights
    risk = error_and_risk(weights, system, alpha)
    targets, intercept, r2 = read_targets(run, len(weights)), None, None
    if targets.centred:
        unexplained = unexplained_share(system.squared_residuals(weights), system.target_squares)
        r2 = (1.0 - unexplained).tolist()
    if isinstance(targets, NumberTargets):
        intercept = targets.origin + system.intercept(weights)
    record = WeightsRecord(
        alpha=alpha,
        **asdict(risk),
        reciprocal_condition=solution.reciprocal_condition,
        training_r2=r2,
    )
    return Network(weights, intercept, record)


def read_kept_system(run: Run) -> RidgeSystem:
    """Return the ridge system of the basis rows that the fitted model keeps, with its penalty."""
    return full_system(run, read_moments(run)).at(read_places(run))


def _cost(s: FitSizes) -> StageCost:
    in_place = not (s.n_kept < s.r or s.penalty_axes or s.has_locality or s.n_components)
    solving = solve_bytes(s.r, s.q, in_place=True) if in_place else s.solve_bytes
    return StageCost(
        products=0.0 if s.n_ridges else s.n_kept**3 / 3,
        read_bytes=4 * s.r**2,
        written_bytes=8 * s.q * s.r,
        held_bytes=s.process_bytes + solving + 2 * 8 * s.n_ridges * s.q * s.r,
    )


def _check(context: FitContext) -> None:
    """Raise ParameterError if the penalty does not support the features or the basis."""
    if context.tuning is None:
        check_penalty(context.params)


WEIGHTS = Stage(
    name="weights",
    record=WeightsRecord,
    compute=_compute,
    cost=_cost,
    check=_check,
    grows_with_basis=True,
    needs=(
        "columns",
        "metric/root",
        "basis/values",
        "width/shares",
        "components/coefficients",
        "moments",
        "locality/packed",
        "path/parts",
        "prune/places",
    ),
    leaves=lambda run: ("weights/values", *(("weights/intercept",) if run.of_numbers else ())),
)
