"""Stage "validation": errors on held-out rows for each penalty and alpha."""

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
    JudgedSums,
    held_out_scores,
    sums_of,
)
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.ridge_path import PathWeights, Ridge
from dask_nrbfn.numeric.small_fit import best_place
from dask_nrbfn.numeric.targets import Targets
from dask_nrbfn.parts import Reduction, Sums, read_total, reduce_parts
from dask_nrbfn.stages.columns import check_targets
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.path import (
    held_out_folds,
    kept_basis,
    read_path_weights,
)
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


@dataclass(frozen=True)
class ValidationRecord:
    """Errors of all penalties on held-out rows.

    Attributes
    ----------
    path : list of dict
        Error, log loss and temperature of every penalty and alpha.
    chosen : dict
        The best penalty and alpha.
    n_rows : int
        Number of held-out rows.
    error_rate, log_loss, temperature : float or None
        Figures of the best one, for classes.
    relative_error : float or None
        Relative error of the best one, for numbers: 1 - R^2, the mean over the targets.
    r2, rmse, mae : list of float or None
        Figures of the best one, for each target.
    """

    path: list[dict[str, Any]]
    chosen: dict[str, Any]
    n_rows: int
    error_rate: float | None = None
    log_loss: float | None = None
    temperature: float | None = None
    relative_error: float | None = None
    r2: list[float] | None = None
    rmse: list[float] | None = None
    mae: list[float] | None = None


def _compute(job: StageJob) -> ValidationRecord:
    """Score the held-out rows with the weights of every penalty; return them and the best.

    Without a validation dataset every row is scored by the weights without its fold.

    Raises
    ------
    IllConditionedError
        If every penalty left the system singular.
    """
    run, judged = job.run, job.dataset if job.validation is None else job.validation
    layout = PartLayout.of(judged.n_rows, run.params.n_parts)
    context = (codes_in_training(job.dataset, judged), job.dataset.n_targets)
    kind = sums_of(read_targets(run, job.dataset.n_targets))
    reduction = Reduction("validation", _begin, {"": kind}, layout, context)
    reduce_parts(run, judged, job.engine, reduction)
    sums: JudgedSums = read_total(run, reduction)
    if isinstance(sums, HeldOutSums):
        write_array(run.group("validation"), "confusion", sums.confusion, "alpha", "class", "label")
    tried, criterion = ridges_of(run), sums.compared[0]
    path = [{**ridge._asdict(), **sums.figures(place)} for place, ridge in enumerate(tried)]
    place = best_place(path, criterion)
    if place is None:
        raise IllConditionedError(
            f"the ridge system is singular at every alpha: {[ridge.alpha for ridge in tried]}.",
            "Give larger `alphas`.",
        )
    figures = dict(path[place])
    chosen = {name: figures.pop(name) for name in Ridge._fields}
    logger.info(
        "validation: %s, %s %.4f",
        ", ".join(f"{name} {value}" for name, value in chosen.items() if value is not None),
        criterion.replace("_", " "),
        figures[criterion],
    )
    return ValidationRecord(path=path, chosen=chosen, n_rows=judged.n_rows, **figures)


def codes_in_training(dataset: Dataset, judged: Dataset) -> list[int] | None:
    """Return the code in the training dataset of each class of a judged dataset.

    Parameters
    ----------
    dataset : Dataset
        The training rows.
    judged : Dataset

    Returns
    -------
    list of int or None
        None if the targets are numbers.

    Raises
    ------
    DataError
        If it has other columns or targets, or a label that the training dataset lacks.
    """
    of_same_table(dataset, judged)
    remedy = "Give rows of the training rows' classes."
    return codes_among(dataset.classes, dataset.target_names, judged, remedy)


def codes_among(
    classes: NDArray[Any], target_names: tuple[str, ...] | None, dataset: Dataset, remedy: str
) -> list[int] | None:
    """Return the place among `classes` of each class of a dataset.

    Parameters
    ----------
    classes : (K,)
    target_names : tuple of str or None
    dataset : Dataset
    remedy : str
        Remedy of the error about an unknown class.

    Returns
    -------
    list of int or None
        None if the targets are numbers.

    Raises
    ------
    DataError
        If a class is not among `classes`, or the dataset lacks these targets.
    """
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


class HeldOutPass:
    """Errors on the rows of a part by weights that have not seen them.

    Parameters
    ----------
    features : RadialFeatures
    reading : Reading
    targets : Targets
    weights_of_folds : list of PathWeights
        The networks without each fold.
    kept_of_folds : list of bool (r,)
        For each fold, the basis rows outside it; activations are normalized over these alone.
    n_rows : int
        Rows of the part.
    """

    def __init__(
        self,
        features: RadialFeatures,
        reading: Reading,
        *,
        targets: Targets,
        weights_of_folds: list[PathWeights],
        kept_of_folds: list[NDArray[np.bool_]],
        n_rows: int,
    ) -> None:
        n_models, _, n_basis = weights_of_folds[0].weights.shape
        self.reading = reading
        self._features, self._threads, self._targets = features, blas_threads(), targets
        # The last row gives the sums of the activations that are kept.
        self._rows_of_folds = [
            np.vstack([weights.reshape(-1, n_basis), kept])
            for (weights, _), kept in zip(weights_of_folds, kept_of_folds, strict=True)
        ]
        self._intercepts_of_folds = [intercepts for _, intercepts in weights_of_folds]
        self._buffer = np.empty((min(reading.block_rows, n_rows), n_basis))
        self._sums: JudgedSums = sums_of(targets).zeros(n_models, targets.n_targets)

    def add(self, block: FoldedBlock) -> None:
        """Add the errors on the rows of a block."""
        for weights, intercepts, rows in zip(
            self._rows_of_folds, self._intercepts_of_folds, block.slices, strict=True
        ):
            X = block.X[rows]
            self._sums += self._sums.from_block(
                held_out_scores(
                    self._features,
                    X,
                    weights,
                    intercepts,
                    buffer=self._buffer[: X.shape[0]],
                    threads=self._threads,
                ),
                self._targets.shifted(block.targets[rows]),
                None if block.weights is None else block.weights[rows],
            )

    def sums(self) -> Sums:
        """Return the sums of the errors over all rows."""
        return {"": self._sums}


def _begin(
    run: Run,
    judged: Dataset,
    start: int,
    stop: int,
    codes_in_model: list[int] | None,
    n_targets: int,
) -> HeldOutPass:
    features = read_features(run)
    held_out: list[int | None] = [*held_out_folds(run)] or [None]
    reading = Reading(
        block_rows=block_rows(features.n_basis),
        weighting=RowWeights.of(judged, run.chosen_params),
        n_folds=len(held_out),
        seed=run.chosen_params.random_state,
        codes_in_model=codes_in_model,
    )
    return HeldOutPass(
        features,
        reading,
        targets=read_targets(run, n_targets),
        weights_of_folds=[read_path_weights(run, fold) for fold in held_out],
        kept_of_folds=[kept_basis(run, fold) for fold in held_out],
        n_rows=stop - start,
    )


def _cost(s: FitSizes) -> StageCost:
    rows, scores = block_rows(s.r), s.n_ridges * s.q
    flops = s.judged.n_rows * (s.product_flops(s.r) + 2 * s.r * scores)
    read = round(s.judged.n_rows * s.dataset.row_bytes)
    return StageCost(
        flops=flops,
        read_bytes=read,
        held_bytes=s.process_bytes
        + s.judged.reading_bytes
        + s.basis_bytes(s.r, copies=4)
        + 8 * (rows * s.r + 6 * rows * s.width + 2 * s.n_folds * scores * s.r + 6 * rows * scores),
        n_tasks=PartLayout.of(s.judged.n_rows, s.params.n_parts).n_parts,
        work={
            "read_bytes": read,
            "moments_flops": flops,
            "activations": s.judged.n_rows * (s.r + len(INVERSE_TEMPERATURES) * scores),
        },
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
    needs=("columns", "metric/root", "basis", "path/parts", "svd/components"),
    leaves=lambda run: () if run.of_numbers else ("validation/confusion",),
)
