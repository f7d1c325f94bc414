"""Stage "validation": errors on held-out rows for each penalty and alpha, and the calibration."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import DataError, IllConditionedError
from dask_nrbfn.numeric.calibration import (
    FIT_BYTES,
    MOST_SCORES,
    DrawnRows,
    ScoreDraw,
    fit_calibration,
)
from dask_nrbfn.numeric.folds import FoldedBlock
from dask_nrbfn.numeric.held_out import (
    INVERSE_TEMPERATURES,
    FoldSums,
    FoldWeights,
    HeldOutSums,
    JudgedSums,
    held_out_scores,
    sums_of,
)
from dask_nrbfn.numeric.losses import loss_named
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.reliability import (
    ReliabilityBin,
    expected_calibration_error,
    reliability_of_rows,
)
from dask_nrbfn.numeric.ridge_path import Ridge
from dask_nrbfn.numeric.small_fit import best_place
from dask_nrbfn.numeric.targets import Targets
from dask_nrbfn.numeric.threads import blas_threads
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.parts import Reduction, Sums, read_total, reduce_parts, run_task
from dask_nrbfn.stages.columns import check_targets
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.path import held_out_folds, read_path_weights
from dask_nrbfn.stages.sizes import FitSizes
from dask_nrbfn.stages.stage import Stage, StageCost, StageJob
from dask_nrbfn.stages.trials import ridges_of
from dask_nrbfn.stages.width import read_features, read_targets
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.dataset import Dataset, of_same_table
from dask_nrbfn.storage.layout import PartLayout, block_rows
from dask_nrbfn.storage.run import Run
from dask_nrbfn.weighting import Reading, RowWeights

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LabelFigures:
    """Figures of labels; None if the targets are numbers, or no row is held out.

    The log loss and the reliability are those with the calibration. `fold_deviation` is the
    standard deviation over the folds: of the error rate, or for numbers of the relative error.
    """

    error_rate: float | None = None
    fold_deviation: float | None = None
    log_loss: float | None = None
    temperature: float | None = None
    log_slope: float | None = None
    biases: list[float] | None = None
    expected_calibration_error: float | None = None
    reliability: list[ReliabilityBin] | None = None


@dataclass(frozen=True, kw_only=True)
class HeldOutFigures(LabelFigures):
    """Figures of labels or of numbers; the relative error is the mean ``1 - R^2`` of targets."""

    relative_error: float | None = None
    r2: list[float] | None = None
    rmse: list[float] | None = None
    mae: list[float] | None = None


# The key of the sums over the rows of each fold.
FOLDS = "_folds"

WeightsOf = Callable[[Run, int | None], FoldWeights]
"""Returns the weights of the models that were fitted without a fold; None: to all rows."""


class HeldOutPass:
    """Errors on the `n_rows` rows of a part, by the weights without the fold of each row."""

    def __init__(
        self,
        features: RadialFeatures,
        reading: Reading,
        *,
        targets: Targets,
        of_folds: list[FoldWeights],
        n_rows: int,
    ) -> None:
        n_models, _, n_basis = of_folds[0].weights.shape
        self.reading = reading
        self._features, self._threads, self._targets = features, blas_threads(), targets
        self._of_folds = [(each.rows, each.intercepts) for each in of_folds]
        self._buffer = np.empty((min(reading.block_rows, n_rows), n_basis))
        self._sums: JudgedSums = sums_of(targets).zeros(n_models, targets.n_targets)
        shapes = [(len(of_folds), *each.shape) for each in self._sums.fold_sums]
        self._errors, self._totals = map(np.zeros, shapes)

    def add(self, block: FoldedBlock) -> None:
        """Add the errors of a block."""
        for fold, (rows, scores) in enumerate(self.scored(block)):
            sums = self._sums.from_block(
                scores,
                self._targets.shifted(block.targets[rows]),
                None if block.weights is None else block.weights[rows],
            )
            self._sums += sums
            errors, totals = sums.fold_sums
            self._errors[fold] += errors
            self._totals[fold] += totals

    def scored(self, block: FoldedBlock) -> Iterator[tuple[slice, Floats]]:
        """Yield for each fold the places of its rows in a block, and their scores (b, A, q)."""
        for (weights, intercepts), rows in zip(self._of_folds, block.slices, strict=True):
            X = block.X[rows]
            scores = held_out_scores(
                self._features,
                X,
                weights,
                intercepts,
                buffer=self._buffer[: X.shape[0]],
                threads=self._threads,
            )
            yield rows, scores

    def sums(self) -> Sums:
        """Return the sums of the errors over all rows, and over the rows of each fold."""
        return {"": self._sums, FOLDS: FoldSums(self._errors, self._totals)}


class _DrawPass(HeldOutPass):
    """A draw of the scores of one model on a part, see `HeldOutPass`."""

    def __init__(self, *arguments: Any, drawn: DrawnRows, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._drawn, self._draws = drawn, [drawn.none()]

    def add(self, block: FoldedBlock) -> None:
        """Draw from the rows of a block."""
        for rows, scores in self.scored(block):
            own = None if block.weights is None else block.weights[rows]
            draw = self._drawn.take(block.numbers[rows], scores[:, 0], block.targets[rows], own)
            self._draws.append(draw)

    def sums(self) -> Sums:
        """Return the drawn rows."""
        return {"": reduce(add, self._draws)}


def begin_held_out(
    run: Run,
    judged: Dataset,
    start: int,
    stop: int,
    codes_in_model: list[int] | None,
    n_targets: int,
    weights_of: WeightsOf,
    kind: Callable[..., HeldOutPass] = HeldOutPass,
) -> HeldOutPass:
    """Return the pass over a part of held-out rows."""
    features = read_features(run)
    held_out: list[int | None] = [*held_out_folds(run)] or [None]
    reading = Reading(
        block_rows=block_rows(features.n_basis),
        weighting=RowWeights.of(judged, run.chosen_params),
        n_folds=len(held_out),
        seed=run.chosen_params.random_state,
        codes_in_model=codes_in_model,
    )
    return kind(
        features,
        reading,
        targets=read_targets(run, n_targets),
        of_folds=[weights_of(run, fold) for fold in held_out],
        n_rows=stop - start,
    )


def calibrate(
    job: StageJob,
    stage: str,
    weights_of: WeightsOf,
    *,
    codes_in_model: list[int] | None,
    loss: str,
    temperature: float,
) -> dict[str, Any]:
    """Fit the calibration of a model to its scores of held-out rows."""
    run, judged = job.run, job.dataset if job.validation is None else job.validation
    n_classes = job.dataset.n_targets
    counts = np.zeros(n_classes, dtype=np.int64)
    counts[np.arange(n_classes) if codes_in_model is None else codes_in_model] = judged.class_counts
    drawn = DrawnRows.of_counts(counts, seed=run.chosen_params.random_state)
    context = (codes_in_model, n_classes, weights_of, partial(_DrawPass, drawn=drawn))
    layout = PartLayout.of(judged.n_rows, run.params.n_parts)
    reduction = Reduction(stage, begin_held_out, {"": ScoreDraw}, layout, context)
    reduce_parts(run, judged, job.engine, reduction)
    return run_task(job.engine, _fit, run, reduction, loss, temperature, label=stage)


def calibration_bytes(s: FitSizes) -> int:
    """Return the peak memory of the fit of a calibration in bytes."""
    return FIT_BYTES * min(s.judged.n_rows * s.q, MOST_SCORES)


def _fit(run: Run, reduction: Reduction, loss: str, temperature: float) -> dict[str, Any]:
    return calibration_figures(read_total(run, reduction), loss, temperature=temperature)


def calibration_figures(draw: ScoreDraw, loss: str, *, temperature: float) -> dict[str, Any]:
    """Return the calibration that fits drawn rows, and its figures on them; see `calibrate`."""
    of_loss = loss_named(loss)
    calibration = fit_calibration(draw, of_loss, temperature=temperature)
    probabilities = calibration.probabilities(draw.scores, of_loss)
    bins = reliability_of_rows(probabilities, draw.codes, draw.weights)
    return {
        "log_loss": draw.log_loss(probabilities),
        **calibration.to_dict(),
        "expected_calibration_error": expected_calibration_error(bins),
        "reliability": bins,
    }


# The name of the pass that fits the calibration.
_CALIBRATION = "validation-calibration"


@dataclass(frozen=True)
class ValidationRecord(HeldOutFigures):
    """Errors of all penalties and alphas on held-out rows, and the best penalty and alpha.

    path: errors, and the log loss at the best temperature without biases.
    """

    path: list[dict[str, Any]]
    chosen: dict[str, Any]
    n_rows: int


def _compute(job: StageJob) -> ValidationRecord:
    """Return the errors of every penalty on rows that it was not fitted to, and the best one."""
    run, judged = job.run, job.dataset if job.validation is None else job.validation
    layout = PartLayout.of(judged.n_rows, run.params.n_parts)
    codes, n_targets = codes_in_training(job.dataset, judged), job.dataset.n_targets
    kind, context = sums_of(read_targets(run, n_targets)), (codes, n_targets, read_path_weights)
    kinds = {"": kind, FOLDS: FoldSums}
    reduction = Reduction("validation", begin_held_out, kinds, layout, context)
    reduce_parts(run, judged, job.engine, reduction)
    sums: JudgedSums = read_total(run, reduction)
    if isinstance(sums, HeldOutSums):
        write_array(run.group("validation"), "confusion", sums.confusion, "alpha", "class", "label")
    tried, criterion = ridges_of(run), sums.compared[0]
    path = [{**ridge._asdict(), **sums.figures(place)} for place, ridge in enumerate(tried)]
    place = best_place(path, criterion)
    if place is None:
        raise IllConditionedError(
            "the ridge system is singular at every alpha: "
            f"{sorted({ridge.alpha for ridge in tried})}.",
            "Give larger `alphas`.",
        )
    folds: FoldSums = read_total(run, reduction, FOLDS)
    figures = path[place] | {"fold_deviation": folds.deviation(place)}
    chosen = {name: figures.pop(name) for name in Ridge._fields}
    logger.info(
        "validation: %s, %s %.4f",
        ", ".join(f"{name} {value}" for name, value in chosen.items() if value is not None),
        criterion.replace("_", " "),
        figures[criterion],
    )
    if isinstance(sums, HeldOutSums):
        figures |= calibrate(
            job,
            _CALIBRATION,
            partial(read_path_weights, place=place),
            codes_in_model=codes,
            loss="squared",
            temperature=figures["temperature"],
        )
    return ValidationRecord(path=path, chosen=chosen, n_rows=judged.n_rows, **figures)


def codes_in_training(dataset: Dataset, judged: Dataset) -> list[int] | None:
    """Return the code in the training dataset of each class of a judged dataset."""
    of_same_table(dataset, judged)
    remedy = "Give rows with labels of the training rows only."
    return codes_among(dataset.classes, dataset.target_names, judged, remedy)


def codes_among(
    classes: NDArray[Any], target_names: tuple[str, ...] | None, dataset: Dataset, remedy: str
) -> list[int] | None:
    """Return the place among `classes` of each class of a dataset."""
    check_targets(dataset, target_names)
    if target_names is not None:
        return None
    code_of = {label: code for code, label in enumerate(classes.tolist())}
    labels = dataset.classes.tolist()
    unknown = [label for label in labels if label not in code_of]
    if unknown:
        if isinstance(unknown[0], str) != isinstance(classes.tolist()[0], str):
            remedy = (
                "Ingest the labels with the type of the training labels: all integers, or all text."
            )
        raise DataError(
            f"label {unknown[0]!r} of {dataset.location} is not a training label.", remedy
        )
    return [code_of[label] for label in labels]


def _cost(s: FitSizes) -> StageCost:
    rows, scores, n_passes = block_rows(s.r), s.n_ridges * s.q, 1 + (not s.dataset.of_numbers)
    n_scored = n_passes * s.judged.n_rows
    return StageCost(
        products=n_scored * s.product_flops(s.r) + 2 * s.judged.n_rows * s.r * scores,
        exponentials=n_scored * s.r + s.judged.n_rows * len(INVERSE_TEMPERATURES) * scores,
        read_bytes=round(n_scored * s.dataset.row_bytes),
        held_bytes=s.process_bytes
        + s.judged.reading_bytes
        + s.basis_bytes(s.r, copies=4)
        + 8 * (rows * s.r + 6 * rows * s.width + 2 * s.n_folds * scores * s.r + 6 * rows * scores)
        + calibration_bytes(s),
        n_tasks=PartLayout.of(s.judged.n_rows, s.params.n_parts).n_parts,
    )


def _check(context: FitContext) -> None:
    """Raise DataError if the validation rows have labels that the training rows lack."""
    if context.validation is not None:
        codes_in_training(context.dataset, context.validation)


VALIDATION = Stage(
    name="validation",
    record=ValidationRecord,
    compute=_compute,
    cost=_cost,
    check=_check,
    labelled_only=True,
    wanted=lambda params, tuning, numbers: tuning is not None,
    grows_with_basis=True,
    needs=("columns", "metric/root", "basis", "path/parts"),
    leaves=lambda run: () if run.of_numbers else ("validation/confusion",),
    scratch=(_CALIBRATION,),
)
