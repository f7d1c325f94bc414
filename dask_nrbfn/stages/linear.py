"""Linear functions of the columns, with which networks are compared on held-out rows."""

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.small_fit import losses_of, target_scales
from dask_nrbfn.numeric.trials import figures_of, judged_rows
from dask_nrbfn.parts import PartResult, map_parts, run_task
from dask_nrbfn.spec import Spec
from dask_nrbfn.stages.columns import read_scaling
from dask_nrbfn.stages.stage import StageJob
from dask_nrbfn.stages.trials import MOST_JUDGED, JudgedRows, TrialRows
from dask_nrbfn.stages.units import read_sample
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

# Most columns, because the time grows with their square.
_MOST_COLUMNS = 1000

# Drawn rows that are compared with a fit, the values of their columns, and the chunks of the rows
# that they are drawn from: one task reads nearly all of them.
_MOST_ROWS, _MOST_VALUES, _MOST_CHUNKS = 20_000, 2**22, 100

# Linear functions do clearly better if they gain so many standard errors.
_CLEARLY = 2.0


def has_linear_model(dataset: Dataset) -> bool:
    """Return whether linear functions of the columns are computed in little time."""
    return not dataset.is_sparse and dataset.n_features <= _MOST_COLUMNS


def linear_flops(dataset: Dataset, n_rows: int) -> float:
    """Return the products of linear functions of the columns; 0 if they are not computed."""
    return n_rows * float(dataset.n_features) ** 2 if has_linear_model(dataset) else 0.0


def is_compared(spec: Spec, dataset: Dataset) -> bool:
    """Return whether a fit is compared with linear functions of drawn rows."""
    few = -(-dataset.n_rows // dataset.chunk_rows) <= _MOST_CHUNKS
    return few and spec.chooses_alpha and has_linear_model(dataset)


def n_compared_rows(dataset: Dataset) -> int:
    """Return the number of drawn rows that are compared with a fit."""
    return min(dataset.n_rows, _MOST_ROWS, _MOST_VALUES // dataset.n_features)


def linear_bytes(n_rows: int, n_features: int, n_targets: int) -> int:
    """Return the peak memory of linear functions of the columns in bytes."""
    # The rows twice, and scaled; those outside a fold and those outside the fold before, and their
    # products with the weights.
    return 8 * (n_rows * (6 * n_features + 3 * n_targets) + 3 * n_features**2)


def compare_with_trial(job: StageJob, stage: str, trial: JudgedRows) -> float | None:
    """Return the figure of linear functions on the rows that judge trials; warn if they gain."""
    run, dataset = job.run, job.dataset
    if not has_linear_model(dataset):
        return None
    units = [(len(trial.losses),)]
    (record,) = map_parts(run, dataset, job.engine, stage=stage, task=_try_linear, units=units)
    linear = JudgedRows(run.read_part(stage, 0, "losses"), run.read_part(stage, 0, "shares"))
    gain, error = linear.gain_over(trial)
    if gain > _CLEARLY * error:
        remedy = "tune with a greater effort if there is one"
        name = figures_of(of_numbers=dataset.of_numbers)[0]
        _advise(name, linear.loss, trial.loss, remedy)
    figure: float = record["figure"]
    return figure


def compare_with_fit(job: StageJob, criterion: str, network: float) -> float:
    """Return the figure of linear functions on drawn rows; warn if they gain.

    network: the figure of the fit, an error rate or a relative error.
    """
    dataset = job.dataset
    units = job.run, dataset, n_compared_rows(dataset)
    linear, n_rows = run_task(job.engine, _judge_linear, *units, label="validation")
    if job.run.of_numbers:
        # Of the mean of squared normal residuals.
        variance = 2.0 * network**2
    else:
        # Laplace's rule of succession: if all labels are wrong, a variance of 0 would be too small.
        wrong = (network * n_rows + 1.0) / (n_rows + 2.0)
        variance = wrong * (1.0 - wrong)
    if linear < network - _CLEARLY * np.sqrt(variance / n_rows):
        _advise(criterion, linear, network, "tune")
    return float(linear)


def _try_linear(run: Run, dataset: Dataset, n_judged: int) -> PartResult:
    sample = read_sample(run)
    figure, losses = _linear(run, dataset, sample, n_judged)
    shares = sample.shares(n_judged)
    return PartResult({"figure": figure}, {"losses": losses, "shares": shares})


def _judge_linear(run: Run, dataset: Dataset, n_rows: int) -> tuple[float, float]:
    """Return the figure of linear functions, and the number of equal weights that say as much."""
    sample = TrialRows.drawn(dataset, run.spec, n_rows)
    figure, _ = _linear(run, dataset, sample, MOST_JUDGED)
    shares = sample.shares(MOST_JUDGED)
    return figure, 1.0 / float(shares @ shares)


def _linear(
    run: Run, dataset: Dataset, sample: TrialRows, n_judged: int
) -> tuple[float, NDArray[Any]]:
    """Return the figure and the losses of linear functions of the columns on held-out rows."""
    n_rows = len(sample.rows.targets)
    table = sample.table(dataset, sample.basis(1), n_rows, n_judged)
    n_folds, targets = sample.folds.n_folds, table.targets
    rows = judged_rows(table, range(n_folds))
    scores = table.linear_scores(read_scaling(run, "standard"), range(n_folds))
    found = losses_of(targets, scores[:, None], table.y[rows], target_scales(table, rows))
    losses, shown = (each[:, 0] for each in found)
    return float((sample.shares(n_judged) @ shown).mean()), losses


def _advise(figure: str, linear: float, network: float, remedy: str) -> None:
    logger.warning(
        "A linear model of the same columns does better on held-out rows: %s %.4g, that of the "
        "network is %.4g. Use the linear model, or %s.",
        figure.replace("_", " "),
        linear,
        network,
        remedy,
    )
