"""Fit, tuning and embedding of a dataset."""

import logging

from numpy.typing import ArrayLike

from dask_nrbfn.engine import Engine
from dask_nrbfn.fit import check_fit, finish_run, start_run
from dask_nrbfn.params import FitLimits, FitParams, TuneParams
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.refine import guess_as_good
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import check_outside_groups, exists, locked_group
from dask_nrbfn.storage.location import Location
from dask_nrbfn.storage.run import Run, finish_refresh

logger = logging.getLogger(__name__)


def fit_dataset(
    dataset: Dataset,
    location: Location,
    params: FitParams,
    engine: Engine,
    *,
    basis: ArrayLike | None = None,
    min_recall: float = FitLimits.min_recall,
) -> Run:
    """Fit a network to a dataset, or resume an interrupted fit.

    Parameters
    ----------
    dataset : Dataset
        Rows without a label are candidates for the basis and count in scale and width.
    location : Location
        Location of the run.
    params : FitParams
    engine : Engine
    basis : array-like (r, p), optional
        The basis rows; `params` are then those that `given_basis` returned.
    min_recall : float
        Smallest share of the true neighbours that an approximate search must find.

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
    RunMismatchError, RunBusyError
        If the run was begun with other parameters or another dataset, or another job works on it.
    RecallError, IllConditionedError
        If an approximate search found too few neighbours, or the ridge system is singular.
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
    """Choose scale, basis, width, features and penalty from the data, and fit with them.

    Parameters
    ----------
    dataset, location, params, engine, basis, min_recall
        See `fit_dataset`. The values that `tuning` tries replace those of `params`.
    tuning : TuneParams
    validation : Dataset, optional
        Held-out rows, instead of cross-validation folds.

    Returns
    -------
    Run
        With its model, whose probabilities are calibrated on the held-out rows.

    Notes
    -----
    Scale, basis, rule, features, kernel and width are tried with a small basis on a sample of the
    rows, by successive halving; then widths near the best one. Penalty and alpha are chosen with
    the whole basis, from the moments of every fold.

    A held-out row is also held out of the basis, because no other row would determine its weight,
    so its errors are slightly too high. A basis of low confidence uses all labels.
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
    """Compute coordinates in which rows are close if many short steps connect them.

    Parameters
    ----------
    dataset, location, engine, basis, min_recall
        See `fit_dataset`. Only a "sknn" basis uses labels.
    params : FitParams
        `components` is the number of coordinates, by default 2. The basis is "random" for "auto",
        and has at least as many rows. Parameters of targets are ignored.

    Returns
    -------
    Run
        With a model whose scores are the coordinates; `predict_dataset` writes them.

    Notes
    -----
    The coordinates are all `eigenfunctions` of the basis but the first, which is constant: the
    eigenmap of Lee & Izbicki, eq. 4, a diffusion map at time 0.
    """
    context = FitContext.resolve(
        dataset, params, engine, embeds=True, basis=basis, min_recall=min_recall
    )
    return finish_fit(location, context)


def finish_fit(location: Location, context: FitContext) -> Run:
    """Return the finished run of a fit, a tuning or an embedding; runs the missing stages."""
    check_fit(context)
    context.dataset.check_stored()
    if context.validation is not None:
        context.validation.check_stored()
    if not exists(location):
        # Before the lock is written beside the run.
        check_outside_groups(location)
    finish_refresh(location)
    with locked_group(location) as check_still_locked:
        run = start_run(location, context)
        finish_run(run, context, check_still_locked=check_still_locked)
        # Predicting the largest class always may be as good as a tuned model.
        if not run.embeds and (guess := guess_as_good(run)) is not None:
            logger.warning(
                "The held-out error is %.2f %%, and predicting the largest class always errs in "
                "%.2f %%. To find the rows of small classes, pass --class-weight balanced "
                '(class_weight="balanced" in Python).',
                100 * guess.error_rate,
                100 * guess.guessing,
            )
        return run
