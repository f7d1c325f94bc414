"""Passes over held-out rows: errors of models, and the calibration of the chosen model."""

from collections.abc import Callable, Iterator
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np

from dask_nrbfn.numeric.calibration import (
    FIT_BYTES,
    MOST_SCORES,
    DrawnRows,
    ScoreDraw,
    fit_calibration,
)
from dask_nrbfn.numeric.folds import FoldedBlock
from dask_nrbfn.numeric.held_out import (
    FoldSums,
    FoldWeights,
    JudgedSums,
    held_out_scores,
    sums_of,
)
from dask_nrbfn.numeric.losses import loss_named
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.reliability import expected_calibration_error, reliability_of_rows
from dask_nrbfn.numeric.targets import Targets
from dask_nrbfn.numeric.threads import blas_threads
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.parts import Reduction, Sums, read_total, reduce_parts, run_task
from dask_nrbfn.stages.path import held_out_folds
from dask_nrbfn.stages.sizes import FitSizes
from dask_nrbfn.stages.stage import StageJob
from dask_nrbfn.stages.width import read_features, read_targets
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import PartLayout, block_rows
from dask_nrbfn.storage.run import Run
from dask_nrbfn.weighting import Reading, RowWeights

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
