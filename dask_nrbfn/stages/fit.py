"""A fit: the stages in order, each done once."""

import hashlib
import logging
import platform
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dask_nrbfn.engine import Engine, watched_stage
from dask_nrbfn.errors import DamagedResultError, DataError, ParameterError
from dask_nrbfn.params import GIVEN_PREFIX, MIN_RECALL, FitParams, TuneParams
from dask_nrbfn.stages.basis import compute_basis, compute_confidence
from dask_nrbfn.stages.columns import compute_columns
from dask_nrbfn.stages.costs import check_stage_budget
from dask_nrbfn.stages.moments import compute_moments
from dask_nrbfn.stages.neighbors import (
    NeighborSearch,
    compute_neighbors,
    decided_search,
    plan_search,
)
from dask_nrbfn.stages.partitions import drop_partitions
from dask_nrbfn.stages.parts import MAX_REDONE
from dask_nrbfn.stages.path import compute_path
from dask_nrbfn.stages.recall import check_recall, compute_recall
from dask_nrbfn.stages.search import compute_search
from dask_nrbfn.stages.sequence import candidates, stage_names
from dask_nrbfn.stages.validation import codes_in_training, compute_validation
from dask_nrbfn.stages.weights import check_model, compute_model, compute_weights
from dask_nrbfn.stages.width import compute_width
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import check_outside_groups, exists, write_array
from dask_nrbfn.storage.location import Location
from dask_nrbfn.storage.lock import locked_run
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

_COMPUTE: Mapping[str, Callable[[Run, Dataset, Engine], dict[str, Any]]] = {
    "columns": compute_columns,
    "neighbors": compute_neighbors,
    "recall": compute_recall,
    "confidence": compute_confidence,
    "search": compute_search,
    "basis": compute_basis,
    "width": compute_width,
    "moments": compute_moments,
    "path": compute_path,
    "validation": compute_validation,
    "weights": compute_weights,
    "model": compute_model,
}


def fit_dataset(
    dataset: Dataset,
    location: Location,
    params: FitParams,
    engine: Engine,
    *,
    basis: ArrayLike | None = None,
    min_recall: float = MIN_RECALL,
) -> Run:
    """Train on a dataset, or finish a training that was interrupted.

    Parameters
    ----------
    dataset : Dataset
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
    min_recall: float = MIN_RECALL,
) -> Run:
    """Choose width, features, basis rule and penalty from the data, and train with them.

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
    DataError
        Also if the validation dataset has other columns or unknown labels.

    Notes
    -----
    Width, features, kernel and basis rule are tried on a small basis and a sample of the rows. The
    penalty is chosen with the whole basis: the moments of every fold are summed apart in one pass,
    those of the training rows of a fold follow by subtraction, and a second pass scores each row
    with the weights that have not seen it.

    What holds a row out holds its basis function out too, by leaving its row and column of the gram
    matrix out: no other row would determine its weight, and small penalties would seem worse than
    they are. So each fold is judged with about ``(1 - 1 / folds) r`` basis rows, and its errors are
    a little higher than with all of them. Width and column statistics are shared, and so is the
    choice of the basis, which knows all labels where it is of low confidence. A validation dataset
    shares nothing.
    """
    shown = validation.fingerprint if validation is not None else None
    if tuning.validation not in (None, shown):
        raise ParameterError(
            "tuning.validation is not the fingerprint of the validation dataset.",
            "Leave it out; it is taken from the dataset.",
        )
    tuning = replace(tuning, validation=shown)
    combinations = candidates(params, tuning)
    if len(combinations) == 1:
        params = replace(params, **asdict(combinations[0]))
    return _finish(_Job(dataset, location, params, engine, tuning, validation, basis, min_recall))


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
    """What a fit is given."""

    dataset: Dataset
    location: Location
    params: FitParams
    engine: Engine
    tuning: TuneParams | None = None
    validation: Dataset | None = None
    basis: ArrayLike | None = None
    min_recall: float = MIN_RECALL

    def check(self) -> None:
        """Raise what is known to be wrong before any row is read."""
        if not 0 <= self.min_recall <= 1:
            raise ParameterError(
                f"`min_recall` is {self.min_recall}.", "Give a number from 0 to 1."
            )
        check_fit(self.dataset, self.params)
        self.dataset.check_stored()
        most_folds = max(2, self.dataset.n_rows // 2)
        if self.tuning is not None and self.tuning.n_folds > most_folds:
            raise ParameterError(
                f"`folds` is {self.tuning.folds}, but there are {self.dataset.n_rows} rows.",
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
            job.location, job.dataset, job.params, job.engine, job.tuning, job.validation
        )
        redone: Counter[tuple[str, tuple[int, ...]]] = Counter()
        _drop_scratch(run, run.stages)
        while True:
            check_still_locked()
            if "recall" in run.stages:
                check_recall(run, job.min_recall)
            missing = [stage for stage in run_stages(run) if stage not in run.stages]
            try:
                if job.basis is not None and not run.has("given/values"):
                    basis = np.asarray(job.basis)
                    write_array(run.group("given"), "values", basis, "basis", "feature")
                if not missing:
                    check_model(run, job.engine)
                    return run
                run_stage(
                    missing[0],
                    run,
                    job.dataset,
                    job.engine,
                    job.validation,
                    before_recording=check_still_locked,
                )
                _drop_scratch(run, run.stages if len(missing) == 1 else missing[:1])
            except DamagedResultError as error:
                redone[error.stage, error.parts] += 1
                if redone[error.stage, error.parts] > MAX_REDONE:
                    raise
                logger.warning("%s It is computed again.", error.problem)
                run.forget(error.stage, error.parts)


def start_run(
    location: Location,
    dataset: Dataset,
    params: FitParams,
    engine: Engine,
    tuning: TuneParams | None = None,
    validation: Dataset | None = None,
) -> Run:
    """Begin a run, or open the one that was begun, with the search that it began with."""
    search = (
        None if exists(location) else _fitting_search(dataset, params, engine, tuning, validation)
    )
    run = Run.start(location, dataset, params, _environment(engine), tuning)
    if "neighbors" not in run.decisions:
        search = search or _fitting_search(dataset, params, engine, tuning, validation)
        run.decide("neighbors", asdict(search))
    return run


def run_stages(run: Run) -> list[str]:
    """Return the names of the stages of a run."""
    return stage_names(run.asked, run.tuning)


def _fitting_search(
    dataset: Dataset,
    params: FitParams,
    engine: Engine,
    tuning: TuneParams | None,
    validation: Dataset | None,
) -> NeighborSearch:
    """Return how neighbours will be searched, once every stage is known to fit the memory."""
    search = plan_search(dataset, params, engine)
    # Without a basis_size those that depend on it are checked again once the basis is chosen.
    n_basis = params.basis_size or dataset.n_classes
    for stage in stage_names(params, tuning):
        check_stage_budget(
            stage,
            dataset,
            params,
            search,
            engine,
            n_basis=n_basis,
            tuning=tuning,
            validation=validation,
        )
    return search


def _drop_scratch(run: Run, finished: Collection[str]) -> None:
    """Delete what stages that are finished left and no later one needs.

    The parts of stages with a row for every row are kept to the end: if a chunk of their result is
    found damaged, only its part is done again.
    """
    ended = run.stages.keys() >= set(run_stages(run))
    kept = set() if ended else {"neighbors", "confidence", "path"}
    for stage in set(finished) - kept:
        run.drop_parts(stage)
    if "neighbors" in finished:
        drop_partitions(run)


def run_stage(
    stage: str,
    run: Run,
    dataset: Dataset,
    engine: Engine,
    validation: Dataset | None = None,
    *,
    before_recording: Callable[[], None] = lambda: None,
) -> None:
    """Run one stage, whose predecessors are finished, and record what it took.

    Parameters
    ----------
    stage, run, dataset, engine, validation
    before_recording : callable
        Raises if the run belongs to another job by then.
    """
    params, search = run.params, decided_search(run)
    n_basis = run.basis_size() if "basis" in run.stages else params.basis_size or dataset.n_classes
    cost = check_stage_budget(
        stage,
        dataset,
        params,
        search,
        engine,
        n_basis=n_basis,
        tuning=run.tuning,
        validation=validation,
    )
    compute = _COMPUTE[stage]
    if stage == "validation":
        compute = partial(compute_validation, validation=validation)
    started = datetime.now(UTC)
    with watched_stage(engine, stage, n_rows=run.n_rows, expected_bytes=cost.held_bytes) as figures:
        record = compute(run, dataset, engine)
    before_recording()
    taken = {
        "seconds": round(figures.seconds_so_far(), 3),
        "peak_bytes": engine.peak_bytes,
        "predicted_bytes": cost.held_bytes,
    }
    run.finish_stage(stage, {**record, "started": started.isoformat(timespec="seconds"), **taken})
    logger.info(
        "%s: %d rows in %.1f s",
        stage,
        run.n_rows,
        taken["seconds"],
        extra={"stage": stage, "run": str(run.location), "rows": run.n_rows, **taken},
    )


def check_fit(dataset: Dataset, params: FitParams) -> None:
    """Raise what is known to be wrong with a fit before any row is read."""
    n_rows, n_classes = dataset.n_rows, dataset.n_classes
    if dataset.y is None:
        raise DataError(
            f"{dataset.location} has no labels.", "Write it with labels: `label` or `y`."
        )
    check_classes(dataset.classes)
    if params.basis == "sknn" and params.n_neighbors >= n_rows:
        raise ParameterError(
            f"`n_neighbors`={params.n_neighbors} needs at least {params.n_neighbors + 1} rows, "
            f"X has n_samples = {n_rows}.",
            f"Give `n_neighbors` of at most {n_rows - 1}.",
        )
    if params.basis_size is None or params.basis_is_given:
        return
    if not n_classes <= params.basis_size <= n_rows:
        raise ParameterError(
            f"`basis_size` is {params.basis_size}.",
            f"Give at least one basis row per class and at most all rows: {n_classes} to {n_rows}.",
        )


def check_classes(classes: NDArray[Any]) -> None:
    """Raise DataError unless there are at least two classes."""
    if len(classes) < 2:
        raise DataError(
            f"y has 1 class only: {classes.tolist()[0]!r}.", "Give rows of at least two classes."
        )


def _environment(engine: Engine) -> dict[str, Any]:
    packages = ("dask-nrbfn", "dask", "distributed", "numpy", "scikit-learn", "scipy", "zarr")
    return {
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
        "n_workers": engine.n_workers,
        "threads": engine.threads,
        "memory_bytes": engine.memory_bytes,
        "limit_bytes": engine.limit_bytes,
    }
