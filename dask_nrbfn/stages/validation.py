"""Stage "validation": the scores of rows that a model has not seen, for every penalty."""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.engine.threads import blas_threads
from dask_nrbfn.errors import DataError, IllConditionedError
from dask_nrbfn.numeric.folds import FoldedBlock
from dask_nrbfn.numeric.held_out import (
    INVERSE_TEMPERATURES,
    HeldOutSums,
    calibrate_temperature,
)
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.stages.parts import block_rows
from dask_nrbfn.stages.path import held_out_folds, kept_basis, read_path_weights
from dask_nrbfn.stages.sizes import FitSizes
from dask_nrbfn.stages.stage import Stage, StageCost, StageJob
from dask_nrbfn.stages.sums import Summation, Sums, read_total, sum_rows
from dask_nrbfn.stages.weighting import Reading, RowWeights
from dask_nrbfn.stages.width import read_features
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import write_array
from dask_nrbfn.storage.run import PartLayout, Run

logger = logging.getLogger(__name__)

Floats = NDArray[np.float64]

# Of the basis functions that are kept. A row nearer to none of them has scores of 0.
_LEAST_ACTIVATION = 1e-200


@dataclass(frozen=True)
class ValidationRecord:
    """How the penalties did on rows that their weights have not seen.

    Attributes
    ----------
    path : list of dict
        Error, log loss and temperature of every penalty.
    chosen : dict
        The best penalty.
    error_rate, log_loss, temperature : float
        Those of the best.
    n_rows : int
        Rows that were judged.
    """

    path: list[dict[str, Any]]
    chosen: dict[str, float]
    error_rate: float
    log_loss: float
    temperature: float
    n_rows: int


def _compute(job: StageJob) -> ValidationRecord:
    """Score the held-out rows with the weights of every penalty; return them and the best.

    Without a dataset of its own every row is judged by the weights without its fold.

    Raises
    ------
    IllConditionedError
        If every penalty left the system singular.
    """
    run, judged = job.run, job.dataset if job.validation is None else job.validation
    assert run.tuning is not None
    spans = PartLayout.of(judged.n_rows, run.asked.n_parts).spans
    kinds, context = {"": HeldOutSums}, (codes_in_training(job.dataset, judged),)
    summation = Summation("validation", _begin, kinds, len(spans), context)
    sum_rows(run, judged, job.engine, summation, spans)
    sums: HeldOutSums = read_total(run, summation)
    write_array(run.group("validation"), "confusion", sums.confusion, "alpha", "class", "label")
    path = describe_path(sums, tuple(run.tuning.alphas))
    best = best_entry(path)
    logger.info(
        "validation: alpha %g, error %.2f %%, log loss %.4f",
        best["alpha"],
        100 * best["error_rate"],
        best["log_loss"],
    )
    return ValidationRecord(
        path=path,
        chosen={"alpha": best["alpha"]},
        error_rate=best["error_rate"],
        log_loss=best["log_loss"],
        temperature=best["temperature"],
        n_rows=judged.n_rows,
    )


def codes_in_training(dataset: Dataset, judged: Dataset) -> list[int]:
    """Return the class code that each class of a judged dataset has in the training dataset.

    Raises
    ------
    DataError
        If it has no labels, other columns, or labels that the training dataset has not.
    """
    if judged.y is None:
        raise DataError(
            f"{judged.location} has no labels.", "Write it with labels: `label` or `y`."
        )
    if judged.n_features != dataset.n_features:
        raise DataError(
            f"{judged.location} has {judged.n_features} columns, {dataset.location} has "
            f"{dataset.n_features}.",
            "Give rows with the columns of the training rows.",
        )
    names, given = dataset.feature_names, judged.feature_names
    if None not in (names, given) and names != given:
        raise DataError(
            f"the columns of {judged.location} have other names, or another order, than those of "
            f"{dataset.location}.",
            "Give rows with the columns of the training rows.",
        )
    return codes_among(dataset.classes, judged, "Give rows of the training rows' classes.")


def codes_among(classes: NDArray[Any], dataset: Dataset, remedy: str) -> list[int]:
    """Return the place among `classes` of each class of a dataset.

    Raises
    ------
    DataError
        If one is none of them.
    """
    code_of = {label: code for code, label in enumerate(classes.tolist())}
    labels = dataset.classes.tolist()
    unknown = [label for label in labels if label not in code_of]
    if unknown:
        if isinstance(unknown[0], str) != isinstance(classes.tolist()[0], str):
            remedy = (
                "Ingest the labels as those of the training rows: all whole numbers, or all text."
            )
        raise DataError(
            f"label {unknown[0]!r} of {dataset.location} is none of the training rows'.", remedy
        )
    return [code_of[label] for label in labels]


def describe_path(sums: HeldOutSums, alphas: tuple[float, ...]) -> list[dict[str, Any]]:
    """Return how every penalty did, None where it had no weights."""
    path = []
    for place, (alpha, error_rate) in enumerate(zip(alphas, sums.error_rates, strict=True)):
        entry: dict[str, Any] = dict.fromkeys(("error_rate", "log_loss", "temperature"))
        if np.isfinite(sums.log_losses[place]).all():
            total_weight = float(sums.confusion[place].sum())
            calibration = calibrate_temperature(sums.log_losses[place], total_weight=total_weight)
            entry = {
                "error_rate": float(error_rate),
                "log_loss": calibration.log_loss,
                "temperature": calibration.temperature,
            }
        path.append({"alpha": alpha, **entry})
    return path


def best_entry(path: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the entry with the fewest errors; of equal ones that of the largest penalty.

    Raises
    ------
    IllConditionedError
        If no penalty has any.
    """
    solved = [entry for entry in path if entry["error_rate"] is not None]
    if not solved:
        raise IllConditionedError(
            f"the ridge system is singular at every alpha: {[entry['alpha'] for entry in path]}.",
            "Give larger `alphas`.",
        )
    return min(solved, key=lambda entry: (entry["error_rate"], -entry["alpha"]))


class HeldOutPass:
    """How the rows of a part are labelled by the weights that have not seen them.

    Parameters
    ----------
    features : RadialFeatures
    reading : Reading
    weights_of_folds : list of float64 (A, K, r)
        The weights without each fold.
    kept_of_folds : list of bool (r,)
        The basis rows that are not of each fold. Normalized activations are those of them alone.
    n_rows : int
        Rows of the part.
    """

    def __init__(
        self,
        features: RadialFeatures,
        reading: Reading,
        *,
        weights_of_folds: list[Floats],
        kept_of_folds: list[NDArray[np.bool_]],
        n_rows: int,
    ) -> None:
        n_models, n_classes, n_basis = weights_of_folds[0].shape
        self.reading = reading
        self._features, self._threads = features, blas_threads()
        # The last row gives the sums of the activations that are kept.
        self._rows_of_folds = [
            np.vstack([weights.reshape(n_models * n_classes, n_basis), kept])
            for weights, kept in zip(weights_of_folds, kept_of_folds, strict=True)
        ]
        self._buffer = np.empty((min(reading.block_rows, n_rows), n_basis))
        self._sums = HeldOutSums.zeros(n_models, n_classes)

    def add(self, block: FoldedBlock) -> None:
        """Judge the rows of a block."""
        n_models, n_classes, _ = self._sums.confusion.shape
        for weights, rows in zip(self._rows_of_folds, block.slices, strict=True):
            X = block.X[rows]
            scores = self._features.weighted_sums(
                X, weights, buffer=self._buffer[: len(X)], threads=self._threads
            )
            scores, activations = scores[:, :-1], scores[:, -1:]
            if self._features.normalized:
                scores = scores / np.maximum(activations, _LEAST_ACTIVATION)
            self._sums += HeldOutSums.from_block(
                scores.reshape(-1, n_models, n_classes),
                block.codes[rows],
                None if block.weights is None else block.weights[rows],
            )

    def sums(self) -> Sums:
        """Return how all rows were judged."""
        return {"": self._sums}


def _begin(
    run: Run, judged: Dataset, start: int, stop: int, codes_in_model: list[int]
) -> HeldOutPass:
    features = read_features(run)
    held_out: list[int | None] = [*held_out_folds(run)] or [None]
    reading = Reading(
        block_rows=block_rows(len(features.basis)),
        weighting=RowWeights.of(judged, run.params),
        n_folds=len(held_out),
        seed=run.params.random_state,
        codes_in_model=codes_in_model,
    )
    return HeldOutPass(
        features,
        reading,
        weights_of_folds=[read_path_weights(run, fold) for fold in held_out],
        kept_of_folds=[kept_basis(run, fold) for fold in held_out],
        n_rows=stop - start,
    )


def _cost(s: FitSizes) -> StageCost:
    rows, scores = block_rows(s.r), s.n_alphas * s.K
    flops = 2 * s.n_judged * s.r * (s.p + scores)
    read = s.n_judged * s.p * s.itemsize
    return StageCost(
        flops=flops,
        read_bytes=read,
        held_bytes=s.process_bytes
        + s.judged_reading_bytes
        + 8
        * (
            rows * s.r
            + 4 * s.r * s.p
            + 6 * rows * s.p
            + 2 * s.n_folds * scores * s.r
            + 6 * rows * scores
        ),
        n_tasks=s.n_judged_parts,
        work={
            "read_bytes": read,
            "moments_flops": flops,
            "activations": s.n_judged * (s.r + len(INVERSE_TEMPERATURES) * scores),
        },
    )


VALIDATION = Stage(
    name="validation",
    record=ValidationRecord,
    compute=_compute,
    cost=_cost,
    wanted=lambda params, tuning: tuning is not None,
    grows_with_basis=True,
)
