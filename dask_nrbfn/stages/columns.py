"""Stage "columns": statistics of every column, and a check of every value."""

import logging
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import Advice, DataError
from dask_nrbfn.numeric.folds import FoldedBlock
from dask_nrbfn.numeric.scaling import LEARNED, ColumnStatistics, Scaling, unseen_columns
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.parts import Reduction, Sums, read_total, reduce_parts
from dask_nrbfn.stages.context import FitContext, Trials
from dask_nrbfn.stages.stage import FitSizes, Stage, StageCost, StageJob, known
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.chunks import check_finite
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import narrow_block_rows
from dask_nrbfn.storage.run import Run
from dask_nrbfn.weighting import Reading, RowWeights, check_total_weight

logger = logging.getLogger(__name__)

# Maximum number of columns that one line of the log names.
_NAMED = 5


# A column whose deviation is this many times smaller hardly changes a distance. The warning needs
# at least this share of such columns, because border pixels of images have small deviations too.
_UNLIKE, _UNLIKE_SHARE = 100.0, 0.25


def _compute(job: StageJob) -> dict[str, Any]:
    """Store the mean and squared deviation of every column.

    Every chunk is read, so that a missing or damaged chunk, a NaN, an unknown label, and weights
    that overflow or underflow are found before the long stages. Returns the "unseen" columns, whose
    changes are too small to change a distance, and the "groups" of indicators of each category.
    """
    run, dataset = job.run, job.dataset
    reduction = Reduction("columns", _ColumnsPass, {"": ColumnStatistics}, run.layout)
    record = reduce_parts(run, dataset, job.engine, reduction)
    check_total_weight(record.weight, whole=True)
    total: ColumnStatistics = read_total(run, reduction)
    extreme = np.flatnonzero(~np.isfinite(total.squared_deviation))
    if len(extreme):
        raise DataError(
            f"the values of {column_name(dataset, extreme[0])} are too large to be squared in "
            "float64.",
            "Divide the column by its largest value.",
        )
    group = run.group("columns")
    write_array(group, "mean", total.mean, "feature")
    write_array(group, "squared_deviation", total.squared_deviation, "feature")
    params, is_table = run.chosen_params, dataset.schema is not None and not dataset.is_sparse
    scales = [*Trials(params, run.tuning).scales]
    unseen = unseen_columns(params.scale, total, centred=not dataset.is_sparse)
    if len(unseen):
        _warn_of_unseen(dataset, total, unseen)
    elif is_table and scales == ["none"]:
        _warn_of_scales(dataset, total.standard_deviation)
    if dataset.is_sparse and "standard" in scales:
        logger.info("columns: sparse rows are divided by the deviations, but not centred")
    groups = [] if dataset.schema is None else [[*each] for each in dataset.schema.groups]
    sparse = dataset.is_sparse or None
    return {"unseen": unseen.tolist(), **known(groups=groups or None, sparse=sparse)}


def _check(context: FitContext) -> None:
    """Raise DataError unless the rows have targets to learn: numbers, or two classes."""
    dataset = context.dataset
    if context.embeds:
        return
    check_targets(dataset, dataset.target_names)
    if not dataset.of_numbers:
        check_classes(dataset.classes)
    elif dataset.of_labelled().n_rows < 2:
        raise DataError("X has n_samples = 1.", "Give at least two rows with targets.")


def check_targets(dataset: Dataset, target_names: tuple[str, ...] | None) -> None:
    """Raise DataError unless some rows have numeric targets of these names; None: labels."""
    if target_names is None and (not dataset.has_targets or dataset.of_numbers):
        has = "numeric targets, not labels" if dataset.has_targets else "no labels"
        raise DataError(
            f"{dataset.location} has {has}.",
            "Name the labels: a column of a table as `label`, a member of an .npz file or the path "
            "of an .npy file as `y`.",
        )
    if target_names is not None and dataset.target_names != target_names:
        labels = "labels" if dataset.has_targets else "none"
        found = labels if dataset.target_names is None else ", ".join(dataset.target_names)
        raise DataError(
            f"the targets of {dataset.location} are {found}, but the network predicts "
            f"{', '.join(target_names)}.",
            f"Write the rows again with {', '.join(target_names)} as `target`.",
        )
    if dataset.n_rows == dataset.n_unlabelled:
        raise DataError(
            f"no row of {dataset.location} has a label or a numeric target.",
            "Give some rows with a label or targets.",
        )


def check_classes(classes: NDArray[Any]) -> None:
    """Raise DataError unless there are at least two classes."""
    if len(classes) < 2:
        only = f"1 class only: {classes.tolist()[0]!r}" if len(classes) else "no label in any row"
        raise DataError(f"y has {only}.", "Give rows of at least two classes.")


def read_statistics(run: Run) -> ColumnStatistics:
    """Return the column statistics of all rows, including rows without labels."""
    return ColumnStatistics(
        run.attributes["n_rows"], run.read("columns/mean"), run.read("columns/squared_deviation")
    )


def read_scaling(run: Run, scale: str | None = None, *, root: Floats | None = None) -> Scaling:
    """Return a scaling of the columns of a run, by default that of its parameters.

    root: square roots of learned weights of the features, by default those of the run.
    """
    scale, columns = scale or run.chosen_params.scale, run.stages["columns"]
    groups = [(start, stop) for start, stop in columns.get("groups", ())]
    centred = not columns.get("sparse")
    scaling = Scaling.from_statistics(scale, read_statistics(run), groups, centred=centred)
    if scale != LEARNED:
        return scaling
    return replace(scaling, root=run.read("metric/root") if root is None else root)


def column_name(dataset: Dataset, column: int) -> str:
    """Return the name of a column in messages."""
    names = dataset.feature_names
    return f"column {column}" if names is None else f"column {names[column]!r}"


def _warn_of_unseen(
    dataset: Dataset, statistics: ColumnStatistics, unseen: NDArray[np.intp]
) -> None:
    described = [
        f"{column_name(dataset, column)} (mean {statistics.mean[column]:.3g}, "
        f"deviation {statistics.standard_deviation[column]:.1g})"
        for column in unseen[:_NAMED]
    ]
    logger.warning(
        "distances in float64 do not see the changes of %d columns: %s. Leave such columns out, "
        "subtract their means beforehand, or scale them",
        len(unseen),
        ", ".join(described),
    )


def _warn_of_scales(dataset: Dataset, deviations: Floats) -> None:
    """Warn of columns that hardly change distances because others have far larger numbers."""
    varying = np.flatnonzero(deviations > 0)
    small = varying[deviations[varying] * _UNLIKE < deviations.max()]
    if len(small) < _UNLIKE_SHARE * max(len(varying), 1):
        return
    most, least = int(deviations.argmax()), int(small[deviations[small].argmin()])
    advice = Advice(
        f"the deviation of {column_name(dataset, most)} is {deviations[most]:.3g}, and of "
        f"{column_name(dataset, least)} {deviations[least]:.3g}: the columns with large numbers "
        "decide the distances. Use `scale`='standard', unless all columns have one unit"
    )
    logger.warning("%s", advice)


class _ColumnsPass:
    """Statistics of the columns of a part, whose values are finite."""

    def __init__(self, run: Run, dataset: Dataset, start: int, stop: int) -> None:
        self.reading = Reading(
            block_rows=narrow_block_rows(dataset.row_values), weighting=RowWeights(None)
        )
        self._statistics = ColumnStatistics.zeros(dataset.n_features)

    def add(self, block: FoldedBlock) -> None:
        check_finite(block.X, first_row=block.start)
        self._statistics += ColumnStatistics.from_block(block.X)

    def sums(self) -> Sums:
        return {"": self._statistics}


def _cost(s: FitSizes) -> StageCost:
    rows = narrow_block_rows(s.row_values)
    return StageCost(
        read_bytes=s.rows_bytes,
        held_bytes=s.held(8 * (3 * rows * s.width + 8 * s.p)),
        n_tasks=s.n_parts,
    )


COLUMNS = Stage(name="columns", compute=_compute, cost=_cost, check=_check)
