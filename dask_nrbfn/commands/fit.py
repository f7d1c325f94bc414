"""A fit, its tuning, or an embedding: what is asked for and whether it can be."""

import logging

from numpy.typing import ArrayLike

from dask_nrbfn.commands.calibrate import measure_rates
from dask_nrbfn.engine import Engine
from dask_nrbfn.fit import (
    check_fit,
    finish_run,
    in_run,
    remaining_costs,
    start_run,
    with_planned_basis,
)
from dask_nrbfn.params import FitLimits, FitParams, TuneParams
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.stage import Rates, expected_s
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import check_outside_groups, exists
from dask_nrbfn.storage.location import Location
from dask_nrbfn.storage.lock import locked_run
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

# Of each worker, from which on a fit takes a minute or so: measuring rates takes a few seconds.
_LONG_FLOPS = 5e12

# Stages whose seconds are foretold.
_NAMED = 3


def fit_dataset(
    dataset: Dataset,
    location: Location,
    params: FitParams,
    engine: Engine,
    *,
    basis: ArrayLike | None = None,
    min_recall: float = FitLimits.min_recall,
) -> Run:
    """Train on a dataset, or finish a training that was interrupted.

    Parameters
    ----------
    dataset : Dataset
        Rows without a label are candidates for the basis and count in scale and width. Those of
        another dataset go with it: `Dataset.with_unlabelled`.
    location : Location
        Where the run is, or is to be.
    params : FitParams
    engine : Engine
    basis : array-like (r, p), optional
        The basis rows that `params` name, as `given_basis` returns them.
    min_recall : float
        Least share of the true neighbours that an approximate search must have found.

    Returns
    -------
    Run
        With its model.

    Raises
    ------
    DataError, ParameterError
        If the dataset or a parameter cannot be used; before any task.
    MemoryBudgetError
        If a task would not fit a worker; before the task.
    RecallError
        If an approximate search found too few of the true neighbours.
    RunMismatchError
        If the run was begun with other parameters or another dataset.
    RunBusyError
        If another job works on the run.
    MissingDataError, DamagedDataError
        If a chunk of the dataset is missing or damaged. Results of the run are computed again.
    """
    context = FitContext.resolve(dataset, params, engine, basis=basis, min_recall=min_recall)
    return finish_fit(location, context)


def tune_dataset(
    dataset: Dataset,
    location: Location,
    params: FitParams,
    tuning: TuneParams,
    engine: Engine,
    *,
    validation: Dataset | None = None,
    basis: ArrayLike | None = None,
    min_recall: float = FitLimits.min_recall,
) -> Run:
    """Choose scale, basis, width, features and penalty from the data, and train with them.

    Parameters
    ----------
    dataset, location, params, engine, basis, min_recall
        As for `fit_dataset`. What `tuning` tries replaces what `params` say of it.
    tuning : TuneParams
    validation : Dataset, optional
        Rows to judge penalties on, instead of folds.

    Returns
    -------
    Run
        With its model, whose probabilities are calibrated on the held-out rows.

    Raises
    ------
    IllConditionedError
        If every penalty leaves the ridge system singular.
    ParameterError
        Also if a penalty to try is for none of the features to try, or not for the basis.
    DataError
        Also if the validation dataset has other columns or unknown labels.

    Notes
    -----
    Scale, basis, rule, features, kernel and width are tried on a small basis and a sample of the
    rows, by successive halving; then widths beside the best. Penalty and alpha are chosen with the
    whole basis: the moments of every fold are summed apart in one pass, those of the training rows
    of a fold follow by subtraction, and a second pass scores each row with the weights that have
    not seen it.

    What holds a row out holds its basis function out too, by leaving its row and column of the gram
    matrix out: no other row would determine its weight, and small penalties would seem worse than
    they are. So each fold is judged with about ``(1 - 1 / folds) r`` basis rows, and its errors are
    a little higher than with all of them. Width, column statistics and shares of clusters are
    those of all rows, and so is the choice of the basis, which knows all labels where it is of low
    confidence. A validation dataset shares nothing.
    """
    context = FitContext.resolve(
        dataset, params, engine, tuning, validation=validation, basis=basis, min_recall=min_recall
    )
    return finish_fit(location, context)


def embed_dataset(
    dataset: Dataset,
    location: Location,
    params: FitParams,
    engine: Engine,
    *,
    basis: ArrayLike | None = None,
    min_recall: float = FitLimits.min_recall,
) -> Run:
    """Make coordinates in which rows are near each other that many short steps connect.

    Parameters
    ----------
    dataset : Dataset
        Needs no labels; nothing but a "sknn" basis looks at them.
    location, engine, basis, min_recall
        As for `fit_dataset`.
    params : FitParams
        `components` is the number of coordinates, without any 2. The basis is "random" for "auto",
        and has at least as many rows. What is of targets plays no part.

    Returns
    -------
    Run
        With a model whose scores are the coordinates, as `predict_dataset` writes them.

    Raises
    ------
    DataError, ParameterError
        If the dataset or a parameter cannot be used; before any task, but for a basis with too few
        eigenfunctions.
    MemoryBudgetError, RecallError, RunMismatchError, RunBusyError, MissingDataError, \
DamagedDataError
        As for `fit_dataset`.

    Notes
    -----
    The coordinates are `eigenfunctions` of the basis but for the first, which is constant: the
    eigenmap of Lee & Izbicki, eq. 4, a diffusion map at time 0.
    """
    context = FitContext.resolve(
        dataset, params, engine, embeds=True, basis=basis, min_recall=min_recall
    )
    return finish_fit(location, context)


def finish_fit(location: Location, context: FitContext) -> Run:
    """Return the finished run of a fit, a tuning or an embedding; run the stages that are missing.

    Parameters
    ----------
    location : Location
        As for `fit_dataset`.
    context : FitContext

    Returns
    -------
    Run
        With its model.

    Raises
    ------
    DataError, ParameterError, MemoryBudgetError, RecallError, RunMismatchError, RunBusyError, \
MissingDataError, DamagedDataError
        As for `fit_dataset`.
    """
    check_fit(context)
    context.dataset.check_stored()
    if context.validation is not None:
        context.validation.check_stored()
    if not exists(location):
        # Before the lock, which lies beside the run.
        check_outside_groups(location)
    with locked_run(location) as check_still_locked:
        run = start_run(location, context)
        rates = _tell_expected(run, in_run(context, run))
        finish_run(run, context, rates=rates, check_still_locked=check_still_locked)
        return run


def _tell_expected(run: Run, context: FitContext) -> Rates | None:
    """Say how long what is missing will take, if it is long; return the rates of a worker then."""
    engine, planned = context.engine, with_planned_basis(context)
    costs = remaining_costs(run, planned)
    flops = sum(cost.flops for cost in costs.values())
    if not costs or flops < _LONG_FLOPS * engine.n_workers:
        return None
    rates = measure_rates(context.dataset, context.params, engine)
    seconds = {name: expected_s(cost, rates, engine.n_workers) for name, cost in costs.items()}
    longest = sorted(seconds, key=lambda name: -seconds[name])[:_NAMED]
    # A basis that is yet to be found may be smaller.
    most = planned.found_basis != context.found_basis
    logger.info(
        "expected: %s %.0f s with %d basis rows, of which %s",
        "at most" if most else "about",
        sum(seconds.values()),
        planned.n_basis,
        ", ".join(f"{name} {seconds[name]:.0f} s" for name in longest),
    )
    return rates
