"""Stage "refine": weights of another loss, starting from the weights of the squared loss."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.losses import loss_named
from dask_nrbfn.numeric.ridge_path import Ridge
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.params import FitParams
from dask_nrbfn.parts import run_task
from dask_nrbfn.stages import judged_record
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.descents import (
    COMPARED,
    MAX_JUDGED_PASSES,
    MAX_PASSES,
    PREFIX,
    Descent,
    descend,
    read_taken,
)
from dask_nrbfn.stages.sizes import FitSizes
from dask_nrbfn.stages.stage import Stage, StageCost, StageJob
from dask_nrbfn.stages.trials import Trials, ridges_of
from dask_nrbfn.stages.validation import (
    VALIDATION,
    LabelFigures,
    calibrate,
    calibration_bytes,
    codes_in_training,
)
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.layout import block_rows
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

# Seconds between two passes: reading the sums, the tasks of a step, opening the run.
_PASS_S = 0.1

_FIGURES = (*COMPARED, "temperature")
_CALIBRATED = (
    *("fold_deviation", "log_loss", "temperature", "log_slope", "biases"),
    *("expected_calibration_error", "reliability"),
)

# Digits of log losses that count in a comparison.
_DIGITS = 9


@dataclass(frozen=True)
class RefineRecord(LabelFigures):
    """The passes of the loss, and in a tuning the comparison of the losses.

    loss: in a tuning the one with the best labels of held-out rows. The squared loss has no passes.
    stopped: the rule that stopped the passes: a small "gradient", a small decrease of the
        "objective", no better labels of held-out rows ("validation"), or the "limit" of passes.
    objective: ``sum_i v_i loss(m_i) + tr(W R W')`` of the chosen weights.
    path: for each pass the objective and the norm of its gradient, see `Preconditioner`; in a
        tuning the figures of held-out rows too.
    taken, tried, n_rows: in a tuning, the pass whose weights are chosen, from 1; the figures,
        passes and rule of each loss; the number of held-out rows.
    """

    loss: str
    n_passes: int
    stopped: str | None
    objective: float | None
    path: list[dict[str, Any]]
    taken: int | None = None
    tried: list[dict[str, Any]] | None = None
    chosen: dict[str, str] | None = None
    n_rows: int | None = None


def _compute(job: StageJob) -> RefineRecord:
    """Descend for every loss; store the weights of the best loss."""
    run = job.run
    steps = {name: descend(job, name) for name in Trials(run.params, run.tuning).refined_losses}
    judged = {} if run.tuning is None else _judged(run, steps)
    loss = next(iter(steps)) if run.tuning is None else judged["chosen"]["loss"]
    if loss not in steps:
        squared = VALIDATION.recorded(run)
        judged |= {name: getattr(squared, name) for name in _CALIBRATED}
        return RefineRecord(loss, 0, None, None, [], **judged)
    step = steps[loss]
    n_passes = len(step["path"])
    if run.tuning is not None:
        judged |= _calibrated(job, loss, step, temperature=judged["temperature"])
    run_task(job.engine, _take, run, loss, n_passes, label="refine")
    return RefineRecord(loss, n_passes, step["stopped"], step["objective"], step["path"], **judged)


def _calibrated(
    job: StageJob, loss: str, step: Mapping[str, Any], *, temperature: float
) -> dict[str, Any]:
    """Return the calibration of the last step of a descent, and its log loss."""
    validation = job.validation
    return calibrate(
        job,
        f"{PREFIX}calibration",
        partial(read_taken, loss, len(step["path"]), step["taken"]),
        codes_in_model=None if validation is None else codes_in_training(job.dataset, validation),
        loss=loss,
        temperature=temperature,
    )


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
    first, *others = (outcome[name] for name in COMPARED)
    return [first, *(round(other, _DIGITS) for other in others), outcome["n_passes"]]


def _take(run: Run, loss: str, n_passes: int) -> None:
    """Store the chosen weights of a descent as the weights of the model."""
    ended = Descent(loss, None, None).place
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
            f"`loss` is {loss}, whose weights cannot be updated from sums over rows.",
            remedy,
        )


def _cost(s: FitSizes) -> StageCost:
    r, rows, apart = s.n_kept, block_rows(s.n_kept), s.n_ridges and s.n_folds == 1
    n_refined = len(Trials(s.params, s.tuning).refined_losses)
    n_models = 1 if s.n_folds == 1 else s.n_folds + 1
    n_passes = MAX_JUDGED_PASSES if s.n_ridges else MAX_PASSES
    # The last pass calibrates.
    most, n_judged = n_refined * n_passes + bool(s.n_ridges), s.judged.n_rows if apart else 0
    n_computed = most * (s.n + n_judged)
    flops = n_computed * (s.product_flops(r) + 4 * r * s.q * n_models)
    solves, weights = n_refined * n_models * r**3 / 3, 8 * s.q * r
    # If the penalty is a matrix, the ridge is stored beside its factor, and both are read again.
    factor, stored = 8 * r**2, 8 * r**2 * max(1, s.penalty_axes, 2 * s.has_locality) * n_models
    steps = most * (s.n_parts + n_passes) * n_models * weights
    read = most * (s.rows_bytes + round(n_judged * s.dataset.row_bytes))
    passing = (
        s.reading_bytes
        + s.basis_bytes(r, copies=4)
        + 8 * (rows * r + 5 * rows * s.width + 8 * n_models * rows * s.q)
    )
    return StageCost(
        products=flops + solves,
        exponentials=n_computed * r,
        read_bytes=read + most * stored + steps,
        written_bytes=n_refined * stored + steps,
        held_bytes=s.process_bytes
        + max(
            passing + 5 * n_models * weights + calibration_bytes(s) * bool(s.n_ridges),
            s.solve_bytes + factor,
            2 * factor + (n_models + 6 * n_passes) * weights,
        ),
        n_tasks=s.n_parts,
        fixed_s=most * _PASS_S,
    )


def _leaves(run: Run) -> tuple[str, ...]:
    if not is_refined(run.chosen_params):
        return ()
    return ("refine/values", *(() if run.tuning is None else ("refine/confusion",)))


REFINE = Stage(
    name="refine",
    record=RefineRecord,
    compute=_compute,
    cost=_cost,
    labelled_only=True,
    check=_check,
    wanted=lambda params, tuning, numbers: bool(Trials(params, tuning).refined_losses),
    grows_with_basis=True,
    needs=(
        "columns",
        "metric/root",
        "basis",
        "width/shares",
        "moments",
        "locality/packed",
        "path/parts",
        "prune/places",
        "weights/values",
    ),
    leaves=_leaves,
    scratch=(PREFIX,),
)
