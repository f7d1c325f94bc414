"""Stage "prune": the choice of the basis rows that the model keeps."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.forward import ForwardPath, forward_selection, selection_bytes
from dask_nrbfn.numeric.moments import Moments
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.ridge import RidgeSystem
from dask_nrbfn.numeric.ridge_path import Ridge
from dask_nrbfn.params import FitParams
from dask_nrbfn.parts import run_task
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.moments import read_moments, read_system
from dask_nrbfn.stages.path import penalized_system
from dask_nrbfn.stages.sizes import FitSizes
from dask_nrbfn.stages.stage import Stage, StageCost, StageJob
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PruneRecord:
    """The number of kept basis rows.

    unexplained: share of the squares of the targets that their orthogonal weights do not explain.
    """

    n_kept: int
    unexplained: float


def _compute(job: StageJob) -> PruneRecord:
    """Choose and store the places of the kept basis rows, in the order of their choice."""
    record = run_task(job.engine, _choose, job.run, label="prune")
    logger.info(
        "prune: %d basis rows leave %.4g of the squares of the targets",
        record.n_kept,
        record.unexplained,
    )
    return record


def _choose(run: Run) -> PruneRecord:
    system = full_system(run, read_moments(run))
    path = choose_kept(system, run.chosen_params, numbers=run.of_numbers)
    assert path is not None
    group = run.group("prune")
    write_array(group, "places", path.chosen, "kept")
    write_array(group, "unexplained", path.unexplained, "kept")
    return PruneRecord(len(path.chosen), float(path.unexplained[-1]))


def full_system(
    run: Run, moments: Moments, *, features: Callable[[], RadialFeatures] | None = None
) -> RidgeSystem:
    """Return the ridge system of all basis rows of a run, with the penalty of its network."""
    system, ridge = read_system(run, moments), Ridge.in_params(run.chosen_params)
    return penalized_system(run, system, ridge, features=features)


def choose_kept(system: RidgeSystem, params: FitParams, *, numbers: bool) -> ForwardPath | None:
    """Return the forward selection of the kept basis rows; None if all are kept.

    Numbers are standardized, so the unit of a target has no effect.
    """
    if params.prune is None:
        return None
    scaled = system.standardized() if numbers else system
    path = forward_selection(scaled, size=params.prune, alpha=params.alpha)
    if not len(path.chosen):
        raise replace(system, penalty=None, locality=None).singular([params.alpha])
    return path


def read_places(run: Run) -> NDArray[np.int64] | None:
    """Return the places of the basis rows that the fitted model keeps, ascending; None: all."""
    return None if run.chosen_params.prune is None else np.sort(run.read("prune/places"))


def _check(context: FitContext) -> None:
    """Raise ParameterError if the basis cannot be pruned to this size."""
    params = context.params
    assert params.prune is not None
    if context.tuning is not None:
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


def _cost(s: FitSizes) -> StageCost:
    return StageCost(
        products=s.n_kept**2 * s.r,
        read_bytes=4 * s.r**2,
        written_bytes=16 * s.n_kept,
        held_bytes=s.process_bytes + s.solve_bytes + selection_bytes(s.r, s.q, s.n_kept),
    )


PRUNE = Stage(
    name="prune",
    record=PruneRecord,
    compute=_compute,
    cost=_cost,
    check=_check,
    wanted=lambda params, tuning, numbers: params.prune is not None,
    grows_with_basis=True,
    needs=("columns", "metric/root", "basis/values", "width/shares", "moments", "locality/packed"),
    leaves=lambda run: ("prune/places", "prune/unexplained"),
)
