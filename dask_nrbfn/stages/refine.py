"""Stage "refine": weights of another loss, by gradient descents from those of the squared loss.

One descent leaves out each fold, one has all rows, and all descents share the passes over the rows.
Each step stores the results so far and the weights of the next pass, and the sums of a pass are
parts. So a killed job continues with its last pass.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

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
from dask_nrbfn.numeric.ridge import RidgeSystem
from dask_nrbfn.numeric.threads import blas_threads
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.params import FitParams
from dask_nrbfn.parts import Reduction, Sums, read_total, reduce_parts, run_task, run_tasks
from dask_nrbfn.stages import judged_record
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.moments import read_features, read_moments, read_system
from dask_nrbfn.stages.stage import FitSizes, Stage, StageCost, StageJob
from dask_nrbfn.stages.trials import Trials, ridges_of
from dask_nrbfn.stages.validation import (
    VALIDATION,
    HeldOutPass,
    calibrate,
    calibration_bytes,
    codes_in_training,
    held_out_folds,
    kept_basis,
    penalized_system,
    read_path_weights,
)
from dask_nrbfn.stages.weights import read_kept_system, read_places
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import PartLayout, block_rows
from dask_nrbfn.storage.run import Run
from dask_nrbfn.weighting import Reading, RowWeights

logger = logging.getLogger(__name__)

_HELD_OUT = "_held_out"


class _LossPass:
    """Losses of models without each fold and of all rows, and their gradients, on a part."""

    def __init__(
        self, run: Run, dataset: Dataset, start: int, stop: int, descent: "_Descent", number: int
    ) -> None:
        params, folds = run.chosen_params, held_out_folds(run)
        features, places = read_features(run), read_places(run)
        self._features = features if places is None else features.at(places)
        n_rows, n_basis = block_rows(self._features.n_basis), self._features.n_basis
        self.reading = Reading(
            block_rows=n_rows,
            weighting=RowWeights.of(dataset, params),
            n_folds=max(1, len(folds)),
            seed=params.random_state,
        )
        of_folds = [_read_next_model(descent, number, run, fold) for fold in folds]
        of_all = run.read_part(_Descent(descent.loss).place, number, "next")
        weights = np.stack([*(each.weights[0] for each in of_folds), of_all])
        self._loss, self._shape = loss_named(descent.loss), weights.shape[:2]
        self._threads = blas_threads()
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
            threads=self._threads,
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

# Arrays with the values of all passes so far.
_STORED = ("weights", "gradient")


class _Descent(NamedTuple):
    """A descent to the weights of a loss without the rows of `fold`; None: with all rows."""

    loss: str
    fold: int | None = None
    # The parts of a validation dataset.
    judged: PartLayout | None = None

    @property
    def place(self) -> str:
        """The stage whose parts are its steps."""
        own = "" if self.fold is None else f"-{self.fold}"
        return f"{_PREFIX}{self.loss}{own}"

    def _sums_place(self, kind: str, number: int) -> str:
        """Return the stage whose parts are the sums of a pass, which all folds share."""
        return f"{_PREFIX}{self.loss}-{kind}-{number}"

    def passing(self, run: Run, number: int) -> Reduction:
        """Return a pass over the training rows."""
        judged = {_HELD_OUT: HeldOutSums} if held_out_folds(run) else {}
        return Reduction(
            self._sums_place("pass", number),
            _LossPass,
            {"": LossSums, **judged},
            run.layout,
            (self, number),
        )

    def judging(self, number: int, *context: Any) -> Reduction:
        """Return a pass over the validation dataset."""
        assert self.judged is not None
        return Reduction(
            self._sums_place("judged", number),
            HeldOutPass,
            {"": HeldOutSums},
            self.judged,
            (*context, partial(_read_next_model, self, number)),
        )


def _descend(job: StageJob, loss: str) -> dict[str, Any]:
    """Descend until a rule stops the passes; return the record of the last step with all rows.

    The part of that step, whose number is the number of passes, has the chosen weights as "values"
    and, in a tuning, the "confusion" of the held-out rows.
    """
    run = job.run
    judged = None
    if job.validation is not None:
        judged = PartLayout.of(job.validation.n_rows, run.params.n_parts)
    folds: list[int | None] = [*held_out_folds(run), None]
    descents = [_Descent(loss, fold, judged) for fold in folds]
    of_all = descents[-1]
    steps = run.finished_parts(of_all.place)
    if steps and (last := steps[max(steps, key=min)])["stopped"]:
        return last
    _step(job, descents, 0)
    # The last step that all descents have stored.
    number = min(max(part.start for part in run.finished_parts(each.place)) for each in descents)
    step = _step(job, descents, number)
    while not step["stopped"]:
        reduce_parts(run, job.dataset, job.engine, of_all.passing(run, number))
        if job.validation is not None:
            codes = codes_in_training(job.dataset, job.validation)
            context = (codes, job.dataset.n_targets)
            reduce_parts(run, job.validation, job.engine, of_all.judging(number, *context))
        number += 1
        step = _step(job, descents, number)
        # Step 0 has arrays that all later steps read.
        for each in descents if number > 1 else ():
            run.drop_part(each.place, range(number - 1, number))
    logger.info("refine: %s stopped by the %s after %d passes", loss, step["stopped"], number)
    for each in descents:
        run.drop_part(each.place, range(1))
    return step


def _step(job: StageJob, descents: Sequence[_Descent], number: int) -> dict[str, Any]:
    """Compute a missing step of all descents; return the step of the descent with all rows."""
    run, of_all = job.run, descents[-1]
    missing = [each for each in descents if run.part_record(each.place, number) is None]
    if missing:
        # If the step was computed before and is lost, the stored sums belong to other weights.
        for sums in ("pass", "judged"):
            run.drop_groups(of_all._sums_place(sums, number))
        arguments = [(run, each, number) for each in missing]
        run_tasks(job.engine, _advance_step, arguments, label="refine")
    step = run.part_record(of_all.place, number)
    assert step is not None
    if missing and number:
        # Figures of held-out rows are None if a score overflowed.
        figures = {name: value for name, value in step["path"][-1].items() if value is not None}
        shown = ", ".join(f"{name} {value:.6g}" for name, value in figures.items())
        logger.info("refine: pass %d of %s, %s", number, of_all.loss, shown)
    return step


def _advance_step(run: Run, descent: _Descent, number: int) -> None:
    if run.part_record(descent.place, number) is not None:
        # dask runs a task again when the worker that had its result is lost.
        return
    if number:
        run.write_part(descent.place, number, *_go_on(run, descent, number))
    else:
        run.write_part(descent.place, 0, {"stopped": None, "path": []}, _start(run, descent))


def _start(run: Run, descent: _Descent) -> dict[str, Floats]:
    """Return the weights of the squared loss for targets +1 and -1, the ridge and the factor.

    The targets are ``2 T - 1``: twice the weights for T less their sum over the classes.
    """
    alpha, (system, weights) = run.chosen_params.alpha, _squared(run, descent.fold)
    ridge = system.ridge(alpha)
    curvature = loss_named(descent.loss).curvature
    preconditioner = Preconditioner.of(system.gram, ridge, curvature=curvature)
    signed = 2.0 * weights - weights.sum(axis=0)
    return {"next": signed, "ridge": ridge, "factor": preconditioner.factor}


def _squared(run: Run, fold: int | None) -> tuple[RidgeSystem, Floats]:
    """Return the ridge system of the rows outside a fold, and its weights (K, r')."""
    if fold is None:
        return read_kept_system(run), run.read("weights/values")
    squared, chosen = _read_squared(run, fold), Ridge.in_params(run.chosen_params)
    system = read_system(run, read_moments(run, without=fold))
    kept = squared.kept
    return penalized_system(run, system, chosen).keep(kept), squared.weights[0][:, kept]


def _read_squared(run: Run, fold: int | None) -> FoldWeights:
    """Return the weights of the squared loss at the chosen ridge without a fold."""
    place = ridges_of(run).index(Ridge.in_params(run.chosen_params))
    return read_path_weights(run, fold, place)


def _go_on(run: Run, descent: _Descent, number: int) -> tuple[dict[str, Any], dict[str, Floats]]:
    """Return the record and arrays of the step after `number` passes."""
    points, path = _read_points(run, descent, number)
    preconditioner = Preconditioner(run.read_part(descent.place, 0, "factor"))
    last = points[-1]
    path.append({"objective": last.objective, "gradient": preconditioner.norm(last.gradient)})
    judged = descent.fold is None and run.tuning is not None
    held_out: HeldOutSums | None = None
    if judged and descent.judged is None:
        held_out = read_total(run, descent.passing(run, number - 1), _HELD_OUT)
    elif judged:
        held_out = read_total(run, descent.judging(number - 1))
    if held_out is not None:
        path[-1] |= held_out.figures(0)
    taken = _taken(points, path, judged=judged)
    stopped = None if descent.fold is not None else _reason(points, path, taken, judged=judged)
    arrays = {name: np.stack([getattr(each, name) for each in points]) for name in _STORED}
    if stopped:
        arrays = {"values": points[taken].weights}
    else:
        arrays["next"] = next_weights(points, preconditioner)
    if held_out is not None:
        # The figures of the pass whose weights are chosen.
        arrays["confusion"] = (
            held_out.confusion[0]
            if taken == number - 1
            else run.read_part(descent.place, number - 1, "confusion")
        )
    step = {"stopped": stopped, "taken": taken, "objective": points[taken].objective, "path": path}
    return step, arrays


def _read_points(
    run: Run, descent: _Descent, number: int
) -> tuple[list[Point], list[dict[str, float]]]:
    """Return the points of `number` passes, and the figures of all but the last pass."""
    before = number - 1
    weights = run.read_part(descent.place, before, "next")
    sums: LossSums = read_total(run, descent.passing(run, before))
    model = -1 if descent.fold is None else descent.fold
    kept = slice(None) if descent.fold is None else kept_basis(run, descent.fold)
    ridge = run.read_part(descent.place, 0, "ridge")
    last = Point.of(weights, sums.loss[model], sums.gradient[model][:, kept], ridge)
    record = run.part_record(descent.place, before)
    assert record is not None
    path: list[dict[str, float]] = record["path"]
    if not path:
        return [last], path
    stored = (run.read_part(descent.place, before, name) for name in _STORED)
    earlier = zip(path, *stored, strict=True)
    points = [Point(own, figures["objective"], gradient) for figures, own, gradient in earlier]
    return [*points, last], path


def _taken(points: Sequence[Point], path: Sequence[dict[str, Any]], *, judged: bool) -> int:
    """Return the pass with the best weights among the accepted ones."""
    accepted = accepted_points(points)
    places = [
        place for place, point in enumerate(points) if any(point is each for each in accepted)
    ]
    if not judged:
        return places[-1]
    # The scores of the weights of a fold may overflow.
    finite = [place for place in places if path[place][_COMPARED[0]] is not None]
    return min(finite, key=lambda place: [path[place][name] for name in _COMPARED])


def _reason(
    points: Sequence[Point], path: Sequence[dict[str, Any]], taken: int, *, judged: bool
) -> str | None:
    """Return the rule that stops the descent after these passes, None if it continues."""
    accepted = accepted_points(points)
    if accepted[-1] is points[-1]:
        if path[-1]["gradient"] <= LEAST_GRADIENT * path[0]["gradient"]:
            return "gradient"
        before = accepted[-2:][0].objective
        if len(accepted) > 1 and before - points[-1].objective < LEAST_DECREASE * before:
            return "objective"
    if judged and len(points) - 1 - taken >= PATIENCE:
        return "validation"
    return "limit" if len(points) >= (MAX_JUDGED_PASSES if judged else MAX_PASSES) else None


def _read_next_model(descent: _Descent, number: int, run: Run, fold: int | None) -> FoldWeights:
    """Return the weights of a pass as `WeightsOf`, without intercepts."""
    own = run.read_part(descent._replace(fold=fold).place, number, "next")
    return _as_model(run, fold, own)


def _read_taken(loss: str, n_passes: int, taken: int, run: Run, fold: int | None) -> FoldWeights:
    """Return the weights of pass `taken` of an ended descent without a fold, as `WeightsOf`."""
    place = _Descent(loss, fold).place
    if fold is None:
        return _as_model(run, fold, run.read_part(place, n_passes, "values"))
    return _as_model(run, fold, run.read_part(place, n_passes, "weights")[taken])


def _as_model(run: Run, fold: int | None, own: Floats) -> FoldWeights:
    squared = _read_squared(run, fold)
    weights = np.zeros((1, len(own), len(squared.kept)))
    weights[0][:, squared.kept] = own
    return squared._replace(weights=weights, intercepts=np.zeros((1, len(own))))


_CALIBRATED = (
    *("fold_deviation", "log_loss", "temperature", "log_slope", "biases"),
    *("expected_calibration_error", "reliability"),
)


def _compute(job: StageJob) -> dict[str, Any]:
    """Descend for every loss; store the weights of the best loss, and return its passes.

    "objective" is ``sum_i v_i loss(m_i) + tr(W R W')`` of the chosen weights; "path" has for each
    pass the objective and the norm of its gradient, see `Preconditioner`, and in a tuning the
    figures of held-out rows too. The squared loss has no passes.
    """
    run = job.run
    steps = {name: _descend(job, name) for name in Trials(run.params, run.tuning).refined_losses}
    judged = {} if run.tuning is None else _judged(run, steps)
    loss = next(iter(steps)) if run.tuning is None else judged["chosen"]["loss"]
    if loss not in steps:
        squared = run.stages["validation"]
        own = {name: squared[name] for name in _CALIBRATED if name in squared}
        return {"loss": loss, "n_passes": 0, "stopped": None, "objective": None, "path": []} | (
            judged | own
        )
    step = steps[loss]
    n_passes = len(step["path"])
    if run.tuning is not None:
        weights_of = partial(_read_taken, loss, n_passes, step["taken"])
        place, temperature = f"{_PREFIX}calibration", judged["temperature"]
        judged |= calibrate(job, place, weights_of, loss=loss, temperature=temperature)
    run_task(job.engine, _take, run, loss, n_passes, label="refine")
    named = {name: step[name] for name in ("stopped", "objective", "path")}
    return {"loss": loss, "n_passes": n_passes, **named, **judged}


def _judged(run: Run, steps: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of the losses on held-out rows, and the best loss.

    Log losses are compared at a temperature alone.
    """
    validation, chosen = VALIDATION.recorded(run), Ridge.in_params(run.chosen_params)
    squared = next(each for each in validation.path if Ridge.of(each) == chosen)
    tried = []
    for name in Trials(run.params, run.tuning).losses:
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


def _take(run: Run, loss: str, n_passes: int) -> None:
    """Store the chosen weights of a descent as the weights of the model."""
    ended = _Descent(loss).place
    values = run.read_part(ended, n_passes, "values")
    write_array(run.group("refine"), "values", values, "target", "basis")
    if run.tuning is not None:
        confusion = run.read_part(ended, n_passes, "confusion")
        write_array(run.group("refine"), "confusion", confusion, "class", "label")


def is_refined(params: FitParams) -> bool:
    """Return whether the weights minimize another loss than the squared loss."""
    return not loss_named(params.loss).solved_at_once


def read_weights(run: Run) -> Floats:
    """Return the weights of the fitted model, float64 (q, r)."""
    return run.read("refine/values" if is_refined(run.chosen_params) else "weights/values")


def read_held_out_confusion(run: Run) -> Floats | None:
    """Return the weighted confusion of the held-out rows, float64 (K, K); None without tuning."""
    if run.has("cells/confusion"):
        return run.read("cells/confusion")
    if run.tuning is None or run.of_numbers:
        return None
    if is_refined(run.chosen_params):
        return run.read("refine/confusion")
    place = ridges_of(run).index(Ridge.in_params(run.chosen_params))
    confusion: Floats = run.read("validation/confusion", place, place + 1)[0]
    return confusion


class Guess(NamedTuple):
    """The held-out ``error_rate``, and the error of always ``guessing`` the largest class."""

    error_rate: float
    guessing: float


def guess_as_good(run: Run) -> Guess | None:
    """Return both errors if predicting the largest class is as good as the model, else None."""
    confusion = read_held_out_confusion(run)
    if confusion is None:
        return None
    guessing = float(1.0 - confusion.sum(axis=1).max() / confusion.sum())
    guess = Guess(judged_record(run.stages)["error_rate"], guessing)
    return guess if guess.error_rate >= guessing else None


def _check(context: FitContext) -> None:
    """Raise ParameterError if a loss does not support the targets."""
    tuning = context.tuning
    if context.dataset.of_numbers:
        name = "losses" if tuning and tuning.losses else "loss"
        (refined, *_) = Trials(context.params, tuning).refined_losses
        raise ParameterError(
            f"`{name}` is {refined}, but the targets are numbers.", f"Give `{name}`=squared."
        )


def check_updatable(loss: str, remedy: str) -> None:
    """Check that the weights of a loss are solved from sums over rows."""
    if not loss_named(loss).solved_at_once:
        raise ParameterError(
            f"`loss` is {loss}, whose weights cannot be updated from sums over rows.", remedy
        )


def _cost(s: FitSizes) -> StageCost:
    r, rows, apart = s.n_kept, block_rows(s.n_kept), s.n_ridges and s.n_folds == 1
    n_refined = len(s.tried.refined_losses)
    n_models = 1 if s.n_folds == 1 else s.n_folds + 1
    n_passes = MAX_JUDGED_PASSES if s.n_ridges else MAX_PASSES
    # The last pass calibrates.
    most, n_judged = n_refined * n_passes + bool(s.n_ridges), s.judged.n_rows if apart else 0
    n_computed = most * (s.n + n_judged)
    # If the penalty is a matrix, the ridge is stored beside its factor, and both are read again.
    factor, stored = 8 * r**2, 8 * r**2 * max(1, s.penalty_axes, 2 * s.has_locality) * n_models
    weights = 8 * s.q * r * n_models
    steps = most * (s.n_parts + n_passes) * weights
    passing = s.basis_bytes(r, copies=4) + 5 * weights + calibration_bytes(s) * bool(s.n_ridges)
    passing += 8 * rows * (r + 4 * s.width + 7 * n_models * s.q)
    return StageCost(
        products=n_computed * (s.product_flops(r) + 4 * r * s.q * n_models)
        + n_refined * n_models * r**3 / 3,
        exponentials=n_computed * r,
        read_bytes=most * (s.rows_bytes + round(n_judged * s.dataset.row_bytes) + stored) + steps,
        written_bytes=n_refined * stored + steps,
        held_bytes=s.held(passing, s.solve_bytes + factor, 2 * factor + 6 * n_passes * weights),
        n_tasks=s.n_parts,
        fixed_s=most * _PASS_S,
    )


# Seconds between two passes: reading the sums, the tasks of a step, opening the run.
_PASS_S = 0.1


def _leaves(run: Run) -> tuple[str, ...]:
    if not is_refined(run.chosen_params):
        return ()
    return ("refine/values", *(() if run.tuning is None else ("refine/confusion",)))


REFINE = Stage(
    name="refine",
    compute=_compute,
    cost=_cost,
    labelled_only=True,
    check=_check,
    wanted=lambda tried: bool(tried.refined_losses),
    grows_with_basis=True,
    leaves=_leaves,
    scratch=(_PREFIX,),
)
