"""Stage "refine": from the weights of the squared loss to those of another, pass after pass."""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.engine.threads import blas_threads
from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.descent import Point, Preconditioner, accepted_points, next_weights
from dask_nrbfn.numeric.folds import FoldedBlock
from dask_nrbfn.numeric.loss_sums import LossSums
from dask_nrbfn.numeric.losses import Loss, loss_named
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.ridge import ridge_of
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.stages.parts import block_rows, run_tasks
from dask_nrbfn.stages.prune import read_places
from dask_nrbfn.stages.sizes import FitSizes
from dask_nrbfn.stages.stage import Stage, StageCost, StageJob
from dask_nrbfn.stages.sums import Summation, Sums, read_total, sum_rows
from dask_nrbfn.stages.weighting import Reading, RowWeights
from dask_nrbfn.stages.weights import read_kept_system
from dask_nrbfn.stages.width import read_features
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

Floats = NDArray[np.float64]

# Few passes regularize as the penalty does. 16,000 digits of MNIST, 800 drawn basis rows and alpha
# 1e-13: test errors of 4.3 % by the squared loss, and after 6, 10 and 20 passes 3.4, 4.0 and 4.9 %
# by the squared hinge, 3.9, 3.5 and 4.2 % by the logistic loss. With alpha 1e-8 ten more passes
# gain 0.1 % at most.
MAX_PASSES = 10
LEAST_DECREASE = 1e-4
LEAST_GRADIENT = 1e-3

# From the end of a pass to the first row of the next: what came out, its tasks, opening the run.
_PASS_S = 0.1

# What the stages begin with whose parts are the sums of a pass.
_PASSES = "refine-"

# Arrays of all passes so far.
_STORED = ("weights", "gradient")


@dataclass(frozen=True)
class RefineRecord:
    """How the weights were improved.

    Attributes
    ----------
    loss : str
    n_passes : int
        Over the rows.
    stopped : str
        Why there were no more: the "gradient" was small, the "objective" fell by little, or there
        had been as many as there may be, the "limit".
    objective : float
        ``sum_i v_i loss(m_i) + tr(W R W')`` of the weights that are taken.
    path : list of dict
        Of every pass the objective and the length of its gradient, see `Preconditioner`.
    """

    loss: str
    n_passes: int
    stopped: str
    objective: float
    path: list[dict[str, float]]


def _compute(job: StageJob) -> RefineRecord:
    """Improve and store the weights.

    What was passed so far and the weights of the next pass are stored before it, and its sums are
    parts, so a fit that was killed goes on with the pass that it was in.
    """
    run = job.run
    finished, first = run.finished_parts("refine"), range(1)
    if first not in finished:
        finished[first] = _step(job, 0)
    step = finished[max(finished, key=min)]
    while not step["stopped"]:
        n_passes = len(step["path"])
        sum_rows(run, job.dataset, job.engine, _summation(run, n_passes), run.spans)
        step = _step(job, n_passes + 1)
        if n_passes:
            # The first one holds what all of them need.
            run.flush_part("refine", range(n_passes + 1, n_passes + 2))
            run.drop_part("refine", range(n_passes, n_passes + 1))
    path, stopped = step["path"], step["stopped"]
    logger.info("refine: stopped by the %s after %d passes", stopped, len(path))
    return RefineRecord(run.params.loss, len(path), stopped, step["objective"], path)


def _step(job: StageJob, n_passes: int) -> dict[str, Any]:
    """Store the weights of the next pass, or those that are taken; return what came out so far."""
    step: dict[str, Any]
    # Sums of other weights than these, if the step was made before and is lost.
    job.run.drop_groups(f"{_PASSES}{n_passes}")
    (step,) = run_tasks(job.engine, _look_back, [(job.run.location, n_passes)], label="refine")
    if n_passes:
        figures = step["path"][-1].values()
        logger.info("refine: pass %d, objective %.6g, gradient %.3g", n_passes, *figures)
    return step


def _look_back(run_location: Location, n_passes: int) -> dict[str, Any]:
    run = Run.open(run_location)
    if (finished := run.part_record("refine", n_passes)) is not None:
        # dask runs a task again when the worker that had its result is lost.
        return finished
    step: dict[str, Any] = {"stopped": None, "objective": None, "path": []}
    if not n_passes:
        run.write_part("refine", 0, step, _start(run))
        return step
    points, path = _read_points(run, n_passes)
    preconditioner = Preconditioner(run.read_part("refine", 0, "factor"))
    last, best = points[-1], accepted_points(points)[-1]
    path.append({"objective": last.objective, "gradient": preconditioner.norm(last.gradient)})
    stopped = _reason(points, [each["gradient"] for each in path])
    step = {"stopped": stopped, "objective": best.objective, "path": path}
    arrays = {}
    if stopped:
        write_array(run.group("refine"), "values", best.weights, "target", "basis")
    else:
        arrays = {name: np.stack([getattr(each, name) for each in points]) for name in _STORED}
        arrays["next"] = next_weights(points, preconditioner)
    run.write_part("refine", n_passes, step, arrays)
    return step


def _start(run: Run) -> dict[str, Floats]:
    """Return the weights of the squared loss for targets +1 and -1, and what all passes share.

    As T is twice the indicators less 1, they are twice those of the indicators less their sum over
    the classes.
    """
    params, system, weights = run.params, read_kept_system(run), run.read("weights/values")
    ridge = ridge_of(system.gram, alpha=params.alpha, penalty=system.penalty)
    curvature = loss_named(params.loss).curvature
    preconditioner = Preconditioner.of(system.gram, ridge, curvature=curvature)
    signed = 2.0 * weights - weights.sum(axis=0)
    return {"next": signed, "ridge": ridge, "factor": preconditioner.factor}


def _read_points(run: Run, n_passes: int) -> tuple[list[Point], list[dict[str, float]]]:
    """Return the points of all passes, and the figures of all but the last of them."""
    number = n_passes - 1
    weights = run.read_part("refine", number, "next")
    sums: LossSums = read_total(run, _summation(run, number))
    last = Point.of(weights, sums, run.read_part("refine", 0, "ridge"))
    record = run.part_record("refine", number)
    assert record is not None
    path: list[dict[str, float]] = record["path"]
    if not path:
        return [last], path
    stored = (run.read_part("refine", number, name) for name in _STORED)
    earlier = zip(path, *stored, strict=True)
    points = [Point(own, figures["objective"], gradient) for figures, own, gradient in earlier]
    return [*points, last], path


def _reason(points: list[Point], gradients: list[float]) -> str | None:
    """Return what stops the descent after these passes, None if nothing does."""
    accepted = accepted_points(points)
    if accepted[-1] is points[-1]:
        if gradients[-1] <= LEAST_GRADIENT * gradients[0]:
            return "gradient"
        before = accepted[-2:][0].objective
        if len(accepted) > 1 and before - points[-1].objective < LEAST_DECREASE * before:
            return "objective"
    return "limit" if len(points) >= MAX_PASSES else None


class LossPass:
    """The loss of the rows of a part and its gradient.

    Parameters
    ----------
    features : RadialFeatures
    reading : Reading
    weights : float64 (q, r)
    loss : Loss
    n_rows : int
        Rows of the part.
    """

    def __init__(
        self,
        features: RadialFeatures,
        reading: Reading,
        *,
        weights: Floats,
        loss: Loss,
        n_rows: int,
    ) -> None:
        n_basis, n_features = features.basis.shape
        self.reading = reading
        self._features, self._weights, self._loss = features, weights, loss
        self._threads = blas_threads()
        self._buffer = np.empty((min(reading.block_rows, n_rows), n_basis))
        self._scratch = np.empty((len(self._buffer), n_features + 2))
        self._sums = LossSums.zeros(*weights.shape)

    def add(self, block: FoldedBlock) -> None:
        """Add a block."""
        n = len(block.X)
        Phi = self._features.activations(
            block.X, out=self._buffer[:n], scratch=self._scratch[:n], threads=self._threads
        )
        self._sums += LossSums.from_block(
            Phi, block.targets, self._weights, self._loss, row_weights=block.weights
        )

    def sums(self) -> Sums:
        """Return the sums of all blocks."""
        return {"": self._sums}


def _begin(run: Run, dataset: Dataset, start: int, stop: int, number: int) -> LossPass:
    features, params = _read_kept_features(run), run.params
    return LossPass(
        features,
        Reading(
            block_rows=block_rows(len(features.basis)), weighting=RowWeights.of(dataset, params)
        ),
        weights=run.read_part("refine", number, "next"),
        loss=loss_named(params.loss),
        n_rows=stop - start,
    )


def _summation(run: Run, number: int) -> Summation:
    return Summation(f"{_PASSES}{number}", _begin, {"": LossSums}, len(run.spans), (number,))


def _read_kept_features(run: Run) -> RadialFeatures:
    """Return the radial basis functions of the basis rows that the fitted model keeps."""
    features, places = read_features(run), read_places(run)
    return features if places is None else features.at(places)


def is_refined(params: FitParams) -> bool:
    """Return whether the weights are those of another loss than the squared one."""
    return not loss_named(params.loss).solved_at_once


def read_weights(run: Run) -> Floats:
    """Return the weights of the fitted model, float64 (q, r)."""
    return run.read("refine/values" if is_refined(run.params) else "weights/values")


def check_loss(params: FitParams, tuning: TuneParams | None, *, numbers: bool) -> None:
    """Raise ParameterError if the loss is not for the targets, or not what a tuning judges."""
    if not is_refined(params):
        return
    if numbers:
        raise ParameterError(
            f"`loss` is {params.loss}, and the targets are numbers.", "Give `loss`=squared."
        )
    if tuning is not None:
        raise ParameterError(
            f"`loss` is {params.loss}, and a tuning judges the squared loss.",
            "Tune without it, then fit with what was chosen and with it.",
        )


def check_updatable(loss: str, remedy: str) -> None:
    """Raise ParameterError if the weights of a loss are not solved from sums that rows join."""
    if not loss_named(loss).solved_at_once:
        raise ParameterError(
            f"`loss` is {loss}, whose weights are not solved from sums that rows join or leave.",
            remedy,
        )


def _cost(s: FitSizes) -> StageCost:
    r, rows, weights = s.n_kept, block_rows(s.n_kept), 8 * s.q * s.n_kept
    flops, solves = MAX_PASSES * s.n * r * (2 * s.p + 4 * s.q), r**3 / 3
    read = MAX_PASSES * s.rows_bytes
    # The ridge of a penalty that is a matrix is stored beside the factor.
    factor, stored = 8 * r**2, 8 * r**2 * max(1, s.penalty_axes)
    passing = s.reading_bytes + 8 * (rows * r + 4 * r * s.p + 5 * rows * s.p + 8 * rows * s.q)
    return StageCost(
        flops=flops + solves,
        read_bytes=read + MAX_PASSES * (stored + (s.n_parts + MAX_PASSES) * weights),
        written_bytes=stored + MAX_PASSES * (s.n_parts + MAX_PASSES) * weights,
        held_bytes=s.process_bytes
        + max(passing + 4 * weights, s.solve_bytes + factor, 2 * factor + 6 * MAX_PASSES * weights),
        n_tasks=s.n_parts,
        work={
            "read_bytes": read,
            "moments_flops": flops,
            "activations": MAX_PASSES * s.n * r,
            "scratch_bytes": 2 * MAX_PASSES * s.n_parts * weights,
        },
        alone={"solve_flops": solves, "scratch_bytes": (MAX_PASSES + 1) * stored},
        fixed_s=MAX_PASSES * _PASS_S,
    )


def _drop_passes(run: Run) -> None:
    run.drop_groups(_PASSES)


REFINE = Stage(
    name="refine",
    record=RefineRecord,
    compute=_compute,
    cost=_cost,
    wanted=lambda params, tuning, numbers: is_refined(params),
    grows_with_basis=True,
    drop_scratch=_drop_passes,
)
