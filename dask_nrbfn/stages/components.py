"""Stage "components": the eigenfunctions of the basis, for networks or coordinates."""

import logging
from typing import Any

from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.eigenfunctions import (
    LEAST_EIGENVALUE,
    eigenfunctions,
    eigenfunctions_bytes,
    eigenfunctions_flops,
)
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.parts import run_task
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.stage import FitSizes, Stage, StageCost, StageJob
from dask_nrbfn.stages.trials import Trials
from dask_nrbfn.stages.width import read_features
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)


def _compute(job: StageJob) -> dict[str, Any]:
    """Store the eigenfunctions; return their number and the least eigenvalue of these."""
    record = run_task(job.engine, _solve, job.run, label="components")
    asked, found = most_components(job.run), record["n_components"]
    logger.info("components: %d, eigenvalues down to %.3g", found, record["least_eigenvalue"])
    if found < asked:
        logger.warning(
            "components: %d are requested, but only %d have an eigenvalue above %g",
            asked,
            found,
            LEAST_EIGENVALUE,
        )
    return record


def _solve(run: Run) -> dict[str, Any]:
    found = eigenfunctions(read_features(run), most_components(run))
    group = run.group("components")
    write_array(group, "coefficients", found.coefficients, "basis", "component")
    write_array(group, "eigenvalues", found.eigenvalues, "component")
    return {
        "n_components": len(found.eigenvalues),
        "least_eigenvalue": float(found.eigenvalues[-1]),
    }


def most_components(run: Run) -> int:
    """Return the largest number of eigenfunctions that a run uses; 0 without eigenfunctions.

    An embedding has one more, the constant eigenfunction, which gives no coordinate.
    """
    asked = (size for size in Trials(run.params, run.tuning).components if size is not None)
    return max(asked, default=0) + run.embeds


def read_directions(run: Run, n_components: int | None) -> Floats | None:
    """Return vectors (r, J) whose span contains the weights; None: not restricted."""
    return None if n_components is None else read_coefficients(run)[:, :n_components]


def read_coefficients(run: Run) -> Floats:
    """Return the coefficients of all eigenfunctions of a run, float64 (r, J)."""
    return run.read("components/coefficients")


def _cost(s: FitSizes) -> StageCost:
    held = s.basis_bytes(s.r, copies=4) + eigenfunctions_bytes(s.r)
    return StageCost(
        products=eigenfunctions_flops(s.r),
        written_bytes=8 * s.r * s.n_components,
        held_bytes=s.held(held + 16 * s.r * s.n_components, reads=False),
    )


def _check(context: FitContext) -> None:
    """Raise ParameterError if another parameter does not support `components`."""
    params, tuning = context.params, context.tuning
    tried = Trials(params, tuning)
    features = (params.features,) if tuning is None else tuning.features
    unfit = {
        "features": (features, "normalized"),
        "penalty": (tried.asked_penalties, "weights"),
        "locality": ([each for each in tried.localities if each] or [0.0], 0.0),
        "loss": (tried.refined_losses or ["squared"], "squared"),
        "prune": ((params.prune,), None),
    }
    most = max(size for size in tried.components if size is not None)
    for name, (values, needed) in unfit.items():
        if needed not in values:
            raise ParameterError(
                f"`components` is {most}, but `{name}` is {values[0]}.",
                f"Give `{name}`={needed}, or leave `components` out."
                if needed
                else f"Give `components` or `{name}`, not both.",
            )
    # The constant eigenfunction gives no coordinate.
    n_needed, n_rows = most + context.embeds, context.dataset.n_rows
    if context.embeds and n_rows < n_needed:
        raise DataError(
            f"X has n_samples = {n_rows}, too few for {most} coordinates.",
            f"Give at least {n_needed} rows, or a smaller `components`.",
        )
    if params.basis_size is not None and params.basis_size < n_needed:
        why = ": one eigenfunction is constant" if context.embeds else ""
        raise ParameterError(
            f"`components` is {most}, but the basis has only {params.basis_size} rows.",
            f"Set `components` to at most {params.basis_size - context.embeds}{why}.",
        )


COMPONENTS = Stage(
    name="components",
    compute=_compute,
    cost=_cost,
    check=_check,
    wanted=lambda tried: tried.components != [None],
    grows_with_basis=True,
    leaves=lambda run: ("components/coefficients", "components/eigenvalues"),
)
