"""A fit, its tuning, or an embedding: what is asked for and whether it can be."""

import hashlib
import logging
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_nrbfn.commands.calibrate import measure_rates
from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.fit import (
    finish_run,
    planned_basis,
    remaining_costs,
    start_run,
)
from dask_nrbfn.numeric.penalties import check_penalty
from dask_nrbfn.params import GIVEN_PREFIX, FitLimits, FitParams, TuneParams
from dask_nrbfn.stages.bases import asked_size, source_of
from dask_nrbfn.stages.basis import BASIS
from dask_nrbfn.stages.embedding import check_embedding, embedding_params
from dask_nrbfn.stages.locality import has_locality
from dask_nrbfn.stages.neighbors import decided_search
from dask_nrbfn.stages.prune import check_prune
from dask_nrbfn.stages.rates import Rates, expected_s
from dask_nrbfn.stages.recall import RECALL, check_recall
from dask_nrbfn.stages.refine import check_loss
from dask_nrbfn.stages.sparse import check_sparse, sees_sparse
from dask_nrbfn.stages.svd import check_svd
from dask_nrbfn.stages.trials import (
    candidates,
    check_components,
    params_needing_confidence,
    resolve_tuning,
)
from dask_nrbfn.stages.validation import check_targets, codes_in_training
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.dataset import Dataset, of_same_table
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
    params = resolve_params(dataset, params)
    return _finish(_Job(dataset, location, params, engine, basis=basis, min_recall=min_recall))


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
    if validation is not None:
        validation = of_same_table(dataset, validation).of_labelled()
    shown = validation.fingerprint if validation is not None else None
    if tuning.validation not in (None, shown):
        raise ParameterError(
            "tuning.validation is not the fingerprint of the validation dataset.",
            "Leave it out; it is taken from the dataset.",
        )
    tuning = replace(tuning, validation=shown)
    params = resolve_params(dataset, params)
    sparse = sees_sparse(dataset, params)
    tuning = resolve_tuning(params, tuning, numbers=dataset.of_numbers, sparse=sparse)
    if tuning.losses:
        params = replace(params, loss=tuning.losses[0])
    combinations = candidates(params, tuning)
    if len(combinations) == 1:
        params = replace(params, **asdict(combinations[0]))
    return _finish(_Job(dataset, location, params, engine, tuning, validation, basis, min_recall))


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
    n_rows = _neighboring_rows(dataset)
    params = embedding_params(params, mixed=dataset.is_mixed, n_rows=n_rows)
    return _finish(
        _Job(dataset, location, params, engine, basis=basis, min_recall=min_recall, embeds=True)
    )


def resolve_params(dataset: Dataset, params: FitParams) -> FitParams:
    """Return the parameters of a fit with what "auto" stands for on a dataset.

    Fewer neighbours than by default, in a table of few rows, are logged.
    """
    options = {"numbers": dataset.of_numbers, "mixed": dataset.is_mixed}
    resolved = params.resolve_auto(**options, n_rows=_neighboring_rows(dataset))
    if (
        resolved.n_neighbors != params.resolve_auto(**options).n_neighbors
        and not dataset.of_numbers
    ):
        logger.info(
            "fit: each of the few rows has all others as its %d neighbours", resolved.n_neighbors
        )
    return resolved


def _neighboring_rows(dataset: Dataset) -> int:
    """Return the rows among which neighbours are looked for, of a "sknn" basis at least."""
    return dataset.of_labelled().n_rows if dataset.has_targets else dataset.n_rows


def given_basis(params: FitParams, basis: ArrayLike) -> FitParams:
    """Return `params` with a basis of given rows, which then goes beside them to the fit.

    Raises
    ------
    ParameterError
        If the rows are no finite numbers in two dimensions, or `basis_size` is another number.
    """
    values = np.asarray(basis)
    if values.ndim != 2 or values.dtype.kind not in "iuf" or not np.isfinite(values).all():
        raise ParameterError(
            f"the basis has dtype {values.dtype} and shape {values.shape}.",
            "Give finite numbers, one row for each basis row.",
        )
    if params.basis_size not in (None, len(values)):
        raise ParameterError(
            f"`basis_size` is {params.basis_size}, but {len(values)} basis rows are given.",
            "Leave `basis_size` out.",
        )
    content = np.ascontiguousarray(values, dtype=np.float64)
    digest = hashlib.blake2b(repr(content.shape).encode() + content.tobytes(), digest_size=16)
    return replace(params, basis=GIVEN_PREFIX + digest.hexdigest(), basis_size=len(values))


@dataclass(frozen=True, eq=False)
class _Job:
    """What a fit or an embedding is given."""

    dataset: Dataset
    location: Location
    params: FitParams
    engine: Engine
    tuning: TuneParams | None = None
    validation: Dataset | None = None
    basis: ArrayLike | None = None
    min_recall: float = FitLimits.min_recall
    embeds: bool = False

    def check(self) -> None:
        """Raise what is known to be wrong before any row is read."""
        FitLimits(min_recall=self.min_recall)
        if self.embeds:
            check_embedding(self.dataset, self.params)
            check_svd(self.dataset, self.params)
            _check_candidates(self.dataset, self.params)
            _check_enough_rows(self.dataset, self.params)
        else:
            check_fit(self.dataset, self.params, self.tuning)
        self.dataset.check_stored()
        n_rows = self.dataset.of_labelled().n_rows
        most_folds = max(2, n_rows // 2)
        if self.tuning is not None and self.tuning.n_folds > most_folds:
            raise ParameterError(
                f"`folds` is {self.tuning.folds}, but there are {n_rows} rows.",
                f"Give at most {most_folds}, a fold for every two rows.",
            )
        if self.validation is not None:
            codes_in_training(self.dataset, self.validation)
            self.validation.check_stored()
        if self.params.basis_is_given and self.basis is None:
            raise ParameterError("the basis rows are not there.", "Give them beside params.")
        if self.basis is not None:
            self._check_basis(np.asarray(self.basis))

    def _check_basis(self, basis: NDArray[Any]) -> None:
        if given_basis(self.params, basis) != self.params:
            raise ParameterError(
                "params do not name the basis rows that are given.",
                "Give given_basis(params, basis).",
            )
        if basis.shape[1] != self.dataset.n_features:
            raise ParameterError(
                f"the basis rows have {basis.shape[1]} columns, X has {self.dataset.n_features}.",
                "Give basis rows with the columns of X.",
            )


def _finish(job: _Job) -> Run:
    """Run the stages that are missing."""
    job.check()
    if not exists(job.location):
        # Before the lock, which lies beside the run.
        check_outside_groups(job.location)
    with locked_run(job.location) as check_still_locked:
        run = start_run(
            job.location,
            job.dataset,
            job.params,
            job.engine,
            job.tuning,
            job.validation,
            embeds=job.embeds,
        )
        finish_run(
            run,
            job.dataset,
            job.engine,
            validation=job.validation,
            rates=_tell_expected(job, run),
            before_stage=partial(_before_stage, job, run),
            check_still_locked=check_still_locked,
        )
        return run


def _tell_expected(job: _Job, run: Run) -> Rates | None:
    """Say how long what is missing will take, if it is long; return the rates of a worker then."""
    dataset, params, engine = job.dataset, run.chosen_params, job.engine
    found = BASIS.name in run.stages
    n_basis = (
        BASIS.recorded(run).n_basis
        if found
        else planned_basis(
            dataset, params, decided_search(run), engine, run.remaining_tuning, embeds=run.embeds
        )
    )
    costs = remaining_costs(run, dataset, engine, job.validation, n_basis)
    flops = sum(cost.flops for cost in costs.values())
    if not costs or flops < _LONG_FLOPS * engine.n_workers:
        return None
    rates = measure_rates(dataset, params, engine)
    seconds = {name: expected_s(cost, rates, engine.n_workers) for name, cost in costs.items()}
    longest = sorted(seconds, key=lambda name: -seconds[name])[:_NAMED]
    # A basis that is yet to be found may be smaller.
    most = not found and asked_size(params, dataset) is None
    logger.info(
        "expected: %s %.0f s with %d basis rows, of which %s",
        "at most" if most else "about",
        sum(seconds.values()),
        n_basis,
        ", ".join(f"{name} {seconds[name]:.0f} s" for name in longest),
    )
    return rates


def _before_stage(job: _Job, run: Run) -> None:
    if RECALL.name in run.stages:
        check_recall(run, job.min_recall)
    if job.basis is not None and not run.has("given/values"):
        write_array(run.group("given"), "values", np.asarray(job.basis), "basis", "feature")


def check_fit(dataset: Dataset, params: FitParams, tuning: TuneParams | None = None) -> None:
    """Raise what is known to be wrong with a fit, or its tuning, before any row is read."""
    check_components(params, tuning)
    check_sparse(dataset, params, tuning)
    if tuning is None:
        check_penalty(params)
    check_prune(params, tuning)
    check_svd(dataset, params)
    check_loss(params, tuning, numbers=dataset.of_numbers)
    check_targets(dataset, dataset.target_names)
    tried = params_needing_confidence(params, tuning)
    named = "basis" if tried.basis == params.basis else "bases"
    if dataset.of_numbers:
        _check_for_numbers(tried, named=named)
        if dataset.of_labelled().n_rows < 2:
            raise DataError("X has n_samples = 1.", "Give at least two rows with targets.")
    else:
        check_classes(dataset.classes)
    _check_candidates(dataset, tried, named=named)
    _check_enough_rows(dataset, tried, tuning)


def _check_candidates(dataset: Dataset, params: FitParams, *, named: str = "basis") -> None:
    """Raise ParameterError if candidates are given to what has none, or too few of them.

    The basis was asked for as `named`.
    """
    asked = params.candidates
    if asked != "auto" and not source_of(params).by_confidence:
        raise ParameterError(
            f"`candidates` is {asked}, and `{named}`={params.basis} asks for no confidence.",
            f"Leave `candidates` out, or give `{named}`=sknn.",
        )
    least = max(params.basis_size or 0, dataset.n_classes)
    if isinstance(asked, int) and asked < least:
        raise ParameterError(
            f"`candidates` is {asked}, and the basis has at least {least} rows.",
            f"Give `candidates` of at least {least}, or all.",
        )


def _check_enough_rows(
    dataset: Dataset, params: FitParams, tuning: TuneParams | None = None
) -> None:
    """Raise ParameterError if there are too few rows for the basis, or for neighbours."""
    by_confidence = source_of(params).by_confidence
    # Only rows with a label have a confidence; neighbours in locality need none.
    n_searched = dataset.of_labelled().n_rows if by_confidence else dataset.n_rows
    n_samples = f"n_samples = {n_searched}"
    if n_searched < dataset.n_rows:
        n_samples += " with a label"
    searched = by_confidence or has_locality(params, tuning)
    if searched and params.n_neighbors >= n_searched:
        raise ParameterError(
            f"`n_neighbors`={params.n_neighbors} needs at least {params.n_neighbors + 1} rows, "
            f"X has {n_samples}.",
            f"Give `n_neighbors` of at most {n_searched - 1}.",
        )
    if params.basis_size is None or params.basis_is_given:
        return
    least = max(dataset.n_classes, 1)
    if not least <= params.basis_size <= n_searched:
        raise ParameterError(
            f"`basis_size` is {params.basis_size}.",
            f"Give at least one basis row per class and at most all rows: {least} to {n_searched}.",
        )


def _check_for_numbers(params: FitParams, *, named: str) -> None:
    """Raise ParameterError if a fit asks for what only classes have, of a basis as `named`."""
    if source_of(params).by_confidence:
        raise ParameterError(
            f"`{named}`={params.basis} asks for the classes of rows, and the targets are numbers.",
            f"Leave `{named}` out, or give kmeans or random.",
        )
    if params.class_weight is not None:
        raise ParameterError(
            f"`class_weight` is {params.class_weight}, and the targets are numbers.",
            "Leave it out, or give weights of rows.",
        )


def check_classes(classes: NDArray[Any]) -> None:
    """Raise DataError unless there are at least two classes."""
    if len(classes) < 2:
        only = f"1 class only: {classes.tolist()[0]!r}" if len(classes) else "no label in any row"
        raise DataError(f"y has {only}.", "Give rows of at least two classes.")
