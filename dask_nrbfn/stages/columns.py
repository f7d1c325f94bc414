"""Stage "columns": statistics of every column, and the first look at every value."""

import numpy as np

from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.scaling import ColumnStatistics, Scaling
from dask_nrbfn.stages.parts import PartResult, narrow_block_rows, run_parts
from dask_nrbfn.storage.dataset import Dataset, check_finite
from dask_nrbfn.storage.group import write_array
from dask_nrbfn.storage.run import Run


def compute_columns(run: Run, dataset: Dataset, engine: Engine) -> dict[str, float]:
    """Store the mean and squared deviation of every column.

    Every chunk is read, so a missing or damaged one, a NaN or an unknown label is found before
    anything long begins.
    """
    run_parts(run, dataset, engine, stage="columns", task=_column_part)
    total = ColumnStatistics.zeros(dataset.n_features)
    with np.errstate(over="ignore", invalid="ignore"):
        for index, (start, stop) in enumerate(run.spans):
            total += ColumnStatistics(
                stop - start,
                run.read_part("columns", index, "mean"),
                run.read_part("columns", index, "squared_deviation"),
            )
    extreme = np.flatnonzero(~np.isfinite(total.squared_deviation))
    if len(extreme):
        raise DataError(
            f"the values of column {extreme[0]} are too large to be squared in float64.",
            "Divide the column by its largest value.",
        )
    group = run.group("columns")
    write_array(group, "mean", total.mean, "feature")
    write_array(group, "squared_deviation", total.squared_deviation, "feature")
    return {}


def read_statistics(run: Run) -> ColumnStatistics:
    """Return the column statistics of all rows."""
    return ColumnStatistics(
        run.n_rows, run.read("columns/mean"), run.read("columns/squared_deviation")
    )


def read_scaling(run: Run) -> Scaling:
    """Return the scaling that the run's parameters ask for."""
    return Scaling.from_statistics(run.params.scale, read_statistics(run))


def _column_part(run: Run, dataset: Dataset, start: int, stop: int) -> PartResult:
    statistics = ColumnStatistics.zeros(dataset.n_features)
    row = start
    with np.errstate(over="ignore", invalid="ignore"):
        for X, *_ in dataset.blocks(start, stop, narrow_block_rows(dataset.n_features)):
            check_finite(X, first_row=row)
            statistics += ColumnStatistics.from_block(X)
            row += len(X)
    return PartResult(
        {"rows": stop - start},
        {"mean": statistics.mean, "squared_deviation": statistics.squared_deviation},
    )
