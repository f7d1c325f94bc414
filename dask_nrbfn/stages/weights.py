"""Stages "prune" and "weights": the kept basis rows, and the solution of their ridge system."""

import logging
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import IllConditionedError, IllConditionedWarning, ParameterError
from dask_nrbfn.numeric.forward import ForwardPath, forward_selection, selection_bytes
from dask_nrbfn.numeric.held_out import unexplained_share
from dask_nrbfn.numeric.moments import Moments
from dask_nrbfn.numeric.penalties import Ridge, check_penalty
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.ridge import ILL_CONDITIONED, RidgeSolution, RidgeSystem, solve_bytes
from dask_nrbfn.numeric.risk import error_and_risk
from dask_nrbfn.numeric.targets import NumberTargets
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.params import FitParams
from dask_nrbfn.parts import run_task
from dask_nrbfn.spec import supports_any
from dask_nrbfn.stages.context import FitContext, FitSizes
from dask_nrbfn.stages.cost import StageCost
from dask_nrbfn.stages.moments import read_moments, read_system, read_targets, ridge_terms
from dask_nrbfn.stages.stage import Stage, StageJob, StageRecord
from dask_nrbfn.stages.validation import PATH, read_path_weights
from dask_nrbfn.storage.run import Run, RunArray

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PruneRecord(StageRecord):
    """The number of kept basis rows, and the share of the squared targets that they leave."""

    n_kept: int
    unexplained: float


PLACES = RunArray("prune/places", ("kept",), "places of the kept basis rows, first chosen first")
UNEXPLAINED = RunArray(
    "prune/unexplained", ("kept",), "share of the squared targets that is left after each choice"
)


def _prune(job: StageJob) -> PruneRecord:
    """Store the places of the kept basis rows, the first chosen first; return their number."""
    record = run_task(job.engine, _choose_kept, job.run, label="prune")
    logger.info(
        "prune: %d basis rows leave %.4g of the squares of the targets",
        record.n_kept,
        record.unexplained,
    )
    return record


def _choose_kept(run: Run) -> PruneRecord:
    system = full_system(run, read_moments(run))
    path = choose_kept(system, run.spec.params, numbers=run.of_numbers)
    assert path is not None
    PLACES.write(run, path.chosen)
    UNEXPLAINED.write(run, path.unexplained)
    return PruneRecord(n_kept=len(path.chosen), unexplained=float(path.unexplained[-1]))


def full_system(
    run: Run, moments: Moments, *, features: Callable[[], RadialFeatures] | None = None
) -> RidgeSystem:
    """Return the ridge system of all basis rows of a run, with the penalty of its network."""
    ridge = Ridge.in_params(run.spec.params)
    return read_system(run, moments).with_ridge(ridge, ridge_terms(run, features))


def choose_kept(system: RidgeSystem, params: FitParams, *, numbers: bool) -> ForwardPath | None:
    """Return the forward selection of the kept basis rows; None if all are kept."""
    if params.prune is None:
        return None
    # The unit of a target has no effect.
    scaled = system.standardized() if numbers else system
    path = forward_selection(scaled, size=params.prune, alpha=params.chosen_alpha)
    if not len(path.chosen):
        raise replace(system, penalty=None, locality=None).singular([params.chosen_alpha])
    return path


def read_places(run: Run) -> NDArray[np.int64] | None:
    """Return the places of the basis rows that the fitted model keeps, ascending; None: all."""
    return None if run.spec.params.prune is None else np.sort(PLACES.read(run))


def _check_prune(context: FitContext) -> None:
    """Raise ParameterError if the basis cannot be pruned to this size."""
    params = context.spec.params
    assert params.prune is not None
    if context.spec.tunes:
        raise ParameterError(
            f"`prune` is {params.prune}, but a tuning compares networks with all basis rows.",
            "Tune without `prune`, then fit with `prune` and the chosen parameters.",
        )
    if params.features != "plain":
        raise ParameterError(
            f"`prune` is {params.prune}, but `features` is {params.features}.",
            "Give `features`=plain: normalized activations need all basis rows.",
        )
    if params.basis_size is not None and params.prune > params.basis_size:
        raise ParameterError(
            f"`prune` is {params.prune}, but the basis has only {params.basis_size} rows.",
            f"Set `prune` to at most {params.basis_size}.",
        )


PRUNE = Stage(
    name="prune",
    compute=_prune,
    record=PruneRecord,
    arrays=(PLACES, UNEXPLAINED),
    cost=lambda s: StageCost(
        products=s.n_kept**2 * s.r,
        held_bytes=s.held(s.solve_bytes + selection_bytes(s.r, s.q, s.n_kept), reads=False),
    ),
    check=_check_prune,
    wanted=lambda spec: spec.params.prune is not None,
    grows_with_basis=True,
)


@dataclass(frozen=True, kw_only=True)
class WeightsRecord(StageRecord):
    """Error and risk of a network on its training rows; for numbers also r^2 of each target."""

    alpha: float
    fitting_error: float
    spectral_risk: float
    objective: float
    reciprocal_condition: float
    training_r2: list[float] | None = None


WEIGHT_VALUES = RunArray("weights/values", ("target", "basis"), "weights of the squared loss")
INTERCEPT = RunArray("weights/intercept", ("target",), "intercepts of numbers")


def _store_weights(job: StageJob) -> WeightsRecord:
    """Store the weights; return penalty, error and risk."""
    record = run_task(job.engine, _solve, job.run, label="weights")
    logger.info(
        "weights: fitting error %.4f, spectral risk %.3g",
        record.fitting_error,
        record.spectral_risk,
    )
    warn_of_condition(record.reciprocal_condition, alpha=record.alpha)
    return record


def warn_of_condition(reciprocal_condition: float, *, alpha: float) -> None:
    """Warn if the system is so ill-conditioned that the weights have few correct digits."""
    if reciprocal_condition < ILL_CONDITIONED:
        warnings.warn(
            f"the ridge system at alpha={alpha:g} has a reciprocal condition of "
            f"{reciprocal_condition:.1e}, so rounding errors change most digits of the weights. "
            "Give a larger alpha; 1e-13 is enough.",
            IllConditionedWarning,
            stacklevel=2,
        )


def _solve(run: Run) -> WeightsRecord:
    chosen, moments = Ridge.in_params(run.spec.params), read_moments(run)
    alpha, spec = chosen.alpha, run.spec
    system = full_system(run, moments if spec.tunes else moments.on_device()).at(read_places(run))
    if spec.tunes:
        place = spec.ridges.index(chosen)
        condition = PATH.recorded(run).path[place]["reciprocal_condition"]
        solution = RidgeSolution(read_path_weights(run, None).weights[place], condition)
    else:
        larger = sorted(each for each in spec.alphas if each > alpha)
        alpha, solution = _solve_first(system, [alpha, *larger])
    network = describe_network(run, system, solution, alpha=alpha)
    WEIGHT_VALUES.write(run, network.weights)
    if network.intercept is not None:
        INTERCEPT.write(run, network.intercept)
    return replace(network.record, chosen={"alpha": alpha} if spec.chooses_alpha else None)


def _solve_first(system: RidgeSystem, alphas: list[float]) -> tuple[float, RidgeSolution]:
    """Return the first alpha at which a system is not singular, and its solution."""
    for alpha in alphas[:-1]:
        with suppress(IllConditionedError):
            return alpha, system.solve(alpha)
    return alphas[-1], system.solve(alphas[-1])


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


def _weights_cost(s: FitSizes) -> StageCost:
    terms = s.spec.n_penalty_axes or any(s.spec.localities) or s.n_components
    in_place = s.n_kept == s.r and not terms
    of_path = 8 * s.spec.n_ridges * s.q * s.r if s.spec.is_judged else 0
    solving = solve_bytes(s.r, s.q, in_place=True) if in_place else s.solve_bytes
    return StageCost(
        systems={} if s.spec.tunes else {s.n_kept: 1},
        held_bytes=s.held(solving + 2 * of_path, reads=False),
    )


def _check_penalties(context: FitContext) -> None:
    """Raise ParameterError if a penalty does not support any tried features and basis."""
    spec = context.spec
    for name in spec.penalties:
        if not supports_any(name, spec.features, spec.bases):
            named = "penalty" if spec.penalties == (spec.params.penalty,) else "penalties"
            own = {"features": spec.features[-1], "basis": spec.bases[-1]}
            check_penalty(spec.params.with_checked(penalty=name, **own), named=named)


WEIGHTS = Stage(
    name="weights",
    compute=_store_weights,
    record=WeightsRecord,
    arrays=(WEIGHT_VALUES, INTERCEPT),
    cost=_weights_cost,
    check=_check_penalties,
    grows_with_basis=True,
)
