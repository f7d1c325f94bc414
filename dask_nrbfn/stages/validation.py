"""Stage "validation": errors on held-out rows for each penalty and alpha."""

import logging
from dataclasses import dataclass
from functools import partial
from typing import Any

from numpy.typing import NDArray

from dask_nrbfn.errors import DataError, IllConditionedError
from dask_nrbfn.numeric.held_out import (
    INVERSE_TEMPERATURES,
    FoldSums,
    HeldOutSums,
    JudgedSums,
    sums_of,
)
from dask_nrbfn.numeric.ridge_path import Ridge
from dask_nrbfn.numeric.small_fit import best_place
from dask_nrbfn.parts import Reduction, read_total, reduce_parts
from dask_nrbfn.stages.columns import check_targets
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.figures import HeldOutFigures
from dask_nrbfn.stages.held_out import FOLDS, begin_held_out, calibrate, calibration_bytes
from dask_nrbfn.stages.path import read_path_weights
from dask_nrbfn.stages.sizes import FitSizes
from dask_nrbfn.stages.stage import Stage, StageCost, StageJob
from dask_nrbfn.stages.trials import ridges_of
from dask_nrbfn.stages.width import read_targets
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.dataset import Dataset, of_same_table
from dask_nrbfn.storage.layout import PartLayout, block_rows

logger = logging.getLogger(__name__)

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
    """Score the held-out rows with the weights of every penalty, without their fold or dataset."""
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
