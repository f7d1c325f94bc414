"""Stage "refine": weights of another loss, by gradient descents from those of the squared loss.

One descent leaves out each fold, one has all rows, and all descents share the passes over the rows.
Each step stores all passes so far and the weights of the next pass, and the sums of a pass are
parts. So a killed job continues with its last pass.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.descent import (
    LossSums,
    Point,
    Preconditioner,
    accepted_points,
    next_weights,
)
from dask_nrbfn.numeric.folds import FoldedBlock
from dask_nrbfn.numeric.held_out import FoldWeights, HeldOutSums, renormalized
from dask_nrbfn.numeric.losses import loss_named
from dask_nrbfn.numeric.penalties import Ridge
from dask_nrbfn.numeric.products import row_products
from dask_nrbfn.numeric.radial import Scratch
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.params import FitParams
from dask_nrbfn.parts import (
    PartResult,
    Reduction,
    Sums,
    map_parts,
    read_total,
    reduce_parts,
    run_task,
)
from dask_nrbfn.stages.context import FitContext, FitSizes
from dask_nrbfn.stages.cost import StageCost
from dask_nrbfn.stages.moments import folded_reading, read_features, read_moments
from dask_nrbfn.stages.stage import HeldOutRecord, Stage, StageJob, in_words
from dask_nrbfn.stages.validation import (
    DRAW,
    VALIDATION,
    HeldOutPass,
    calibrate,
    calibration_bytes,
    confusion_in,
    judge_held_out,
    kept_basis,
    read_path_weights,
)
from dask_nrbfn.stages.weights import WEIGHT_VALUES, full_system, read_places
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import block_rows
from dask_nrbfn.storage.run import Run, RunArray

logger = logging.getLogger(__name__)

_HELD_OUT = "_held_out"


class _LossPass:
    """Losses of models without each fold and of all rows, and their gradients, on a part."""

    def __init__(
        self, run: Run, dataset: Dataset, start: int, stop: int, descent: "_Descent", number: int
    ) -> None:
        folds = descent.folds[:-1]
        features, places = read_features(run), read_places(run)
        self._features = features if places is None else features.at(places)
        n_rows, n_basis = block_rows(self._features.n_basis), self._features.n_basis
        self.reading = folded_reading(run, dataset, n_rows)
        of_folds = [_read_model(descent, number, None, run, fold) for fold in folds]
        of_all = descent.read_next(run, number, None)
        weights = np.stack([*(each.weights[0] for each in of_folds), of_all])
        self._loss, self._shape = loss_named(descent.loss), weights.shape[:2]
        self._buffer = np.empty((min(n_rows, stop - start), n_basis))
        self._scratch = Scratch(len(self._buffer), self._features.basis.shape[1])
        # Held-out rows are normalized by the weights of the squared loss.
        ones, kept = [each.ones for each in of_folds], [each.kept for each in of_folds]
        self._rows = np.vstack([weights.reshape(-1, n_basis), *ones, *kept])
        self._sums = LossSums.zeros(*weights.shape)
        self._held_out = HeldOutSums.zeros(1, weights.shape[1]) if of_folds else None

    def add(self, block: FoldedBlock) -> None:
        """Add a block."""
        Phi = self._features.activations(
            block.X,
            out=self._buffer[: block.n_rows],
            scratch=self._scratch.of(block.X),
        )
        products = row_products(Phi, self._rows)
        n_weights = self._shape[0] * self._shape[1]
        scores = products[:, :n_weights].reshape(len(Phi), *self._shape)
        row_weights = None if block.weights is None else block.weights[:, None]
        if self._held_out is not None:
            self._held_out += self._judged(block, scores, products[:, n_weights:])
            # Models do not see the rows of their folds.
            row_weights = np.ones((block.n_rows, self._shape[0]))
            if block.weights is not None:
                row_weights *= block.weights[:, None]
            for fold, rows in enumerate(block.slices):
                row_weights[rows, fold] = 0.0
        self._sums += LossSums.from_block(
            Phi, scores, block.targets, self._loss, row_weights=row_weights
        )

    def _judged(self, block: FoldedBlock, scores: Floats, products: Floats) -> HeldOutSums:
        """Return the sums over held-out rows, each labelled by the model without its fold."""
        sums = HeldOutSums.zeros(1, self._shape[1])
        ones, kept = np.hsplit(products, 2)
        for fold, rows in enumerate(block.slices):
            own = scores[rows, fold]
            if self._features.normalized:
                own = renormalized(own, ones[rows, fold, None], kept[rows, fold, None])
            sums += HeldOutSums.from_block(
                own[:, None],
                block.targets[rows],
                None if block.weights is None else block.weights[rows],
            )
        return sums

    def sums(self) -> Sums:
        """Return the sums of all blocks."""
        sums: dict[str, Any] = {"": self._sums}
        return sums if self._held_out is None else {**sums, _HELD_OUT: self._held_out}


# Few passes regularize like a penalty. 16,000 digits of MNIST, 800 drawn basis rows, alpha 1e-13:
# test errors of 4.3 % with the squared loss; after 6, 10 and 20 passes 3.4, 4.0 and 4.9 % with the
# squared hinge, 3.9, 3.5 and 4.2 % with the logistic loss. With alpha 1e-8 ten more passes gain at
# most 0.1 %. Held-out rows show better when to stop, so a tuning allows more passes.
MAX_PASSES = 10
MAX_JUDGED_PASSES = 20
LEAST_DECREASE = 1e-4
LEAST_GRADIENT = 1e-3

# Passes without a better result on held-out rows before a descent stops.
PATIENCE = 3

# The figures by which passes are compared; the second decides between equal first figures.
_COMPARED = HeldOutSums.compared
_FIGURES = (*_COMPARED, "temperature")

# Digits of log losses that count in a comparison.
_DIGITS = 9

# The prefix of the names of all groups.
_PREFIX = "refine-"

# Arrays of the fields of the points of all passes so far.
_STORED = Point._fields


class _Descent(NamedTuple):
    """The descents to the weights of a loss: without each fold, and last with all rows (None)."""

    loss: str
    folds: tuple[int | None, ...]

    @property
    def place(self) -> str:
        """The stage whose parts are the steps, each after a pass."""
        return f"{_PREFIX}{self.loss}"

    @property
    def start(self) -> str:
        """The stage whose parts are the first weights, ridges and preconditioners."""
        return f"{self.place}-start"

    def read_next(self, run: Run, number: int, fold: int | None) -> Floats:
        """Return the weights of a descent for pass `number`, float64 (K, r')."""
        model = self.folds.index(fold)
        if number == 0:
            return run.read_part(self.start, model, "next")
        return run.read_part(self.place, number, f"next-{model}")

    def read_all(self, run: Run, number: int, fold: int | None, name: str) -> NDArray[Any]:
        """Return a field of the points of `number` passes."""
        return run.read_part(self.place, number, f"{name}-{self.folds.index(fold)}")


def _descend(job: StageJob, descent: _Descent) -> dict[str, Any]:
    """Descend until a rule stops the passes; return the record of the last step."""
    run, dataset, engine = job.run, job.dataset, job.engine
    steps = {part.start: record for part, record in run.finished_parts(descent.place).items()}
    number = max(steps, default=0)
    step = steps.get(number, {"stopped": None})
    if step["stopped"]:
        return step
    units = [(descent.loss, fold) for fold in descent.folds]
    map_parts(run, dataset, engine, stage=descent.start, task=_start, units=units)
    kinds = {"": LossSums, **({_HELD_OUT: HeldOutSums} if len(descent.folds) > 1 else {})}
    while not step["stopped"]:
        stage, judging = f"{descent.place}-pass-{number}", None
        passing = Reduction(stage, _LossPass, kinds, run.layout, (descent, number))
        reduce_parts(run, dataset, engine, passing)
        if job.validation is not None:
            name, weights_of = f"{stage}-judged", partial(_read_model, descent, number, None)
            judging = judge_held_out(job, name, HeldOutPass, {"": HeldOutSums}, weights_of)
        number += 1
        passes = (passing, judging)
        step = run_task(engine, _advance_step, run, descent, number, *passes, label="refine")
        run.drop_part(descent.place, range(number - 1, number))
        logger.info("refine: pass %d of %s, %s", number, descent.loss, in_words(step["path"][-1]))
    ended = descent.loss, step["stopped"], number
    logger.info("refine: %s stopped by the %s after %d passes", *ended)
    run.drop(f"{descent.start}/parts")
    return step


def _start(run: Run, dataset: Dataset, loss: str, fold: int | None) -> PartResult:
    """Return the weights of the squared loss for targets +1 and -1, the ridge and the factor.

    The targets are ``2 T - 1``: twice the weights for T less their sum over the classes.
    """
    system = full_system(run, read_moments(run, without=fold))
    if fold is None:
        system, weights = system.at(read_places(run)), WEIGHT_VALUES.read(run)
    else:
        squared = _read_squared(run, fold)
        system, weights = system.keep(squared.kept), squared.weights[0][:, squared.kept]
    ridge = system.ridge(run.spec.params.chosen_alpha)
    curvature = loss_named(loss).curvature
    factor = Preconditioner.of(system.gram, ridge, curvature=curvature).factor
    signed = 2.0 * weights - weights.sum(axis=0)
    return PartResult({}, {"next": signed, "ridge": ridge, "factor": factor})


def _read_squared(run: Run, fold: int | None) -> FoldWeights:
    """Return the weights of the squared loss at the chosen ridge without a fold."""
    place = run.spec.ridges.index(Ridge.in_params(run.spec.params))
    return read_path_weights(run, fold, place)


def _advance_step(
    run: Run, descent: _Descent, number: int, passing: Reduction, judging: Reduction | None
) -> dict[str, Any]:
    """Store the step after `number` passes: the points of all passes, and the next weights."""
    if (stored := run.part_record(descent.place, number)) is not None:
        # dask runs a task again when the worker that had its result is lost.
        return stored
    held_out: HeldOutSums | None = None
    if judging is not None:
        held_out = read_total(run, judging)
    elif _HELD_OUT in passing.kinds:
        held_out = read_total(run, passing, _HELD_OUT)
    sums: LossSums = read_total(run, passing)
    before = run.part_record(descent.place, number - 1) if number > 1 else None
    path: list[dict[str, Any]] = [] if before is None else before["path"]
    step: dict[str, Any] = {}
    arrays: dict[str, NDArray[Any]] = {}
    for model, fold in enumerate(descent.folds):
        points = _read_points(run, descent, number, fold, sums)
        preconditioner = Preconditioner(run.read_part(descent.start, model, "factor"))
        if fold is None:
            norm = preconditioner.norm(points[-1].gradient)
            figures = {} if held_out is None else held_out.figures(0)
            path.append({"objective": points[-1].objective, "gradient": norm, **figures})
            taken, stopped = _rule(points, path, judged=held_out is not None)
            objective = points[taken].objective
            step = {"stopped": stopped, "taken": taken, "objective": objective, "path": path}
        for name in _STORED:
            arrays[f"{name}-{model}"] = np.stack([getattr(each, name) for each in points])
        if not step.get("stopped"):
            arrays[f"next-{model}"] = next_weights(points, preconditioner)
    run.write_part(descent.place, number, step, arrays)
    return step


def _read_points(
    run: Run, descent: _Descent, number: int, fold: int | None, sums: LossSums
) -> list[Point]:
    """Return the points of `number` passes, the last one from the sums of its pass."""
    model, before = descent.folds.index(fold), number - 1
    kept = slice(None) if fold is None else kept_basis(run, fold)
    ridge = run.read_part(descent.start, model, "ridge")
    weights = descent.read_next(run, before, fold)
    last = Point.of(weights, sums.loss[model], sums.gradient[model][:, kept], ridge)
    if before == 0:
        return [last]
    stored = (descent.read_all(run, before, fold, name) for name in _STORED)
    return [*(Point(*each) for each in zip(*stored, strict=True)), last]


def _rule(
    points: Sequence[Point], path: Sequence[dict[str, Any]], *, judged: bool
) -> tuple[int, str | None]:
    """Return the pass with the best accepted weights, and the rule that ends the passes, if any."""
    accepted = accepted_points(points)
    places = [
        place for place, point in enumerate(points) if any(point is each for each in accepted)
    ]
    taken = places[-1]
    if judged:
        # The scores of the weights of a fold may overflow.
        finite = [place for place in places if path[place][_COMPARED[0]] is not None]
        taken = min(finite, key=lambda place: [path[place][name] for name in _COMPARED])
    if accepted[-1] is points[-1]:
        if path[-1]["gradient"] <= LEAST_GRADIENT * path[0]["gradient"]:
            return taken, "gradient"
        before = accepted[-2:][0].objective
        if len(accepted) > 1 and before - points[-1].objective < LEAST_DECREASE * before:
            return taken, "objective"
    if judged and len(points) - 1 - taken >= PATIENCE:
        return taken, "validation"
    most = MAX_JUDGED_PASSES if judged else MAX_PASSES
    return taken, "limit" if len(points) >= most else None


def _read_model(
    descent: _Descent, number: int, taken: int | None, run: Run, fold: int | None
) -> FoldWeights:
    """Return the weights of pass `taken`, or of the next pass, as `WeightsOf`; no intercepts."""
    if taken is None:
        own = descent.read_next(run, number, fold)
    else:
        own = descent.read_all(run, number, fold, "weights")[taken]
    squared = _read_squared(run, fold)
    weights = np.zeros((1, len(own), len(squared.kept)))
    weights[0][:, squared.kept] = own
    return squared._replace(weights=weights, intercepts=np.zeros((1, len(own))))


@dataclass(frozen=True, kw_only=True)
class RefineRecord(HeldOutRecord):
    """The loss of the weights, and the figures of each of its passes.

    In a tuning, also those of every loss that was compared, the pass whose weights are used, and
    figures of held-out rows. The squared loss has no passes.
    """

    loss: str
    n_passes: int
    path: list[dict[str, Any]]
    stopped: str | None = None
    objective: float | None = None
    tried: list[dict[str, Any]] | None = None
    taken: int | None = None
    n_rows: int | None = None


REFINED_VALUES = RunArray("refine/values", ("target", "basis"), "weights of another loss")


def _refine(job: StageJob) -> RefineRecord:
    """Descend for every loss; store the weights of the best loss, and return its passes.

    The objective is ``sum_i v_i loss(m_i) + tr(W R W')``. The squared loss has no passes.
    """
    run = job.run
    folds = (*range(run.spec.n_held_out), None)
    descents = {name: _Descent(name, folds) for name in run.spec.refined_losses}
    steps = {name: _descend(job, descent) for name, descent in descents.items()}
    judged = _judged(run, steps) if run.spec.tunes else {}
    loss = judged["chosen"]["loss"] if judged else next(iter(steps))
    if loss not in steps:
        # The figures of held-out rows are those of the stage "validation".
        tried, chosen = judged["tried"], judged["chosen"]
        return RefineRecord(loss=loss, n_passes=0, path=[], tried=tried, chosen=chosen)
    step, descent = steps[loss], descents[loss]
    n_passes, taken = len(step["path"]), step["taken"]
    if run.spec.tunes:
        weights_of = partial(_read_model, descent, n_passes, taken)
        temperature = judged["temperature"]
        judged |= calibrate(job, "refine", weights_of, loss=loss, temperature=temperature)
    run_task(job.engine, _take, run, descent, n_passes, taken, label="refine")
    return RefineRecord(
        loss=loss,
        n_passes=n_passes,
        path=step["path"],
        stopped=step["stopped"],
        objective=step["objective"],
        **judged,
    )


def _judged(run: Run, steps: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of the losses on held-out rows at a temperature alone, and the best."""
    validation, chosen = VALIDATION.recorded(run), Ridge.in_params(run.spec.params)
    squared = next(each for each in validation.path if Ridge.of(each) == chosen)
    tried = []
    for name in run.spec.losses:
        step = steps.get(name, {"path": [squared], "taken": 0, "stopped": None})
        figures = step["path"][step["taken"]]
        tried.append(
            {
                "loss": name,
                "n_passes": len(step["path"]) if name in steps else 0,
                "taken": step["taken"] + 1 if name in steps else 0,
                "stopped": step["stopped"],
                **{each: figures[each] for each in _FIGURES},
            }
        )
    best = min(tried, key=_standing)
    logger.info("refine: loss %s, error rate %.4f", best["loss"], best["error_rate"])
    return {
        "tried": tried,
        "chosen": {"loss": best["loss"]},
        "n_rows": validation.n_rows,
        **{name: best[name] for name in ("taken", *_FIGURES)},
    }


def _standing(outcome: Mapping[str, Any]) -> list[float]:
    """Return the sort key of a loss; the smallest is best.

    Figures are equal up to rounding: all losses begin with the weights of the squared loss.
    """
    first, *others = (outcome[name] for name in _COMPARED)
    return [first, *(round(other, _DIGITS) for other in others), outcome["n_passes"]]


def _take(run: Run, descent: _Descent, n_passes: int, taken: int) -> None:
    """Store the weights of pass `taken` as the weights of the model."""
    REFINED_VALUES.write(run, descent.read_all(run, n_passes, None, "weights")[taken])


def is_refined(params: FitParams) -> bool:
    """Return whether the weights minimize another loss than the squared loss."""
    return not loss_named(params.loss).solved_at_once


def read_held_out_confusion(run: Run) -> Floats | None:
    """Return the weighted confusion of the held-out rows, float64 (K, K); None without tuning."""
    groups = [run.latest_place] if run.latest_place else []
    for array in map(confusion_in, [*groups, "cells"]):
        if array.is_in(run):
            return array.read(run)
    if not run.spec.is_judged or run.of_numbers:
        return None
    return confusion_in("refine" if is_refined(run.spec.params) else "validation").read(run)


def _check_loss(context: FitContext) -> None:
    """Raise ParameterError if a loss does not support the targets."""
    spec = context.spec
    if spec.targets == "numbers":
        name, refined = "losses" if spec.tunes else "loss", spec.refined_losses[0]
        raise ParameterError(
            f"`{name}` is {refined}, but the targets are numbers.", f"Give `{name}`=squared."
        )


def check_updatable(loss: str, remedy: str) -> None:
    """Check that the weights of a loss are solved from sums over rows."""
    if not loss_named(loss).solved_at_once:
        raise ParameterError(
            f"`loss` is {loss}, whose weights cannot be updated from sums over rows.", remedy
        )


def _refine_cost(s: FitSizes) -> StageCost:
    r, n_refined = s.n_kept, len(s.spec.refined_losses)
    n_models = 1 + s.spec.n_held_out
    n_passes = MAX_JUDGED_PASSES if s.spec.tunes else MAX_PASSES
    # The last pass of a tuning calibrates.
    n_read = n_refined * n_passes + (1 if s.spec.tunes else 0)
    n_rows = s.n if s.spec.validation is None else s.n + s.n_judged
    factor_bytes, weights_bytes = 8 * r**2, 8 * s.q * r * n_models
    # A ridge that is a matrix is stored next to its factor, and both are read again.
    n_matrices = max(1, s.spec.n_penalty_axes, 2 if any(s.spec.localities) else 0)
    stored_bytes = factor_bytes * n_matrices * n_models
    block_bytes = 8 * block_rows(r) * (r + 4 * s.width + 7 * n_models * s.q)
    passing_bytes = s.basis_bytes(r, copies=4) + 5 * weights_bytes + block_bytes
    if s.spec.tunes:
        passing_bytes += calibration_bytes(s)
    advancing_bytes = 2 * factor_bytes + 6 * n_passes * weights_bytes
    return StageCost(
        products=n_read * n_rows * (s.product_flops(r) + 4 * r * s.q * n_models),
        exponentials=n_read * n_rows * r,
        read_bytes=round(n_read * n_rows * s.dataset.row_bytes) + n_read * stored_bytes,
        written_bytes=n_refined * stored_bytes,
        held_bytes=s.held(passing_bytes, s.solve_bytes + factor_bytes, advancing_bytes),
        n_tasks=s.layout.n_parts,
    )


REFINE = Stage(
    name="refine",
    compute=_refine,
    record=RefineRecord,
    arrays=(REFINED_VALUES, confusion_in("refine"), *DRAW.in_group("refine").values()),
    cost=_refine_cost,
    labelled_only=True,
    check=_check_loss,
    wanted=lambda spec: bool(spec.refined_losses),
    grows_with_basis=True,
    scratch=(_PREFIX,),
)
