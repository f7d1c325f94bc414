"""Fit, tuning and embedding of a dataset; refresh, which fits a run again in its place."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dask_nrbfn.commands.files import opened_rows
from dask_nrbfn.commands.ingest import ingest_source
from dask_nrbfn.commands.plan import expect_tuning
from dask_nrbfn.commands.update import Judge
from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import (
    DamagedDataError,
    DataError,
    MissingDataError,
    NRBFNError,
    ParameterError,
    RunMismatchError,
    WorseModelError,
    plural,
)
from dask_nrbfn.fit import check_fit, finish_run, start_run
from dask_nrbfn.numeric.rows import canonical
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.params import FitLimits, FitParams, TuneParams
from dask_nrbfn.sources.dtypes import sparse_dtype
from dask_nrbfn.sources.options import WriteOptions
from dask_nrbfn.sources.source import Block, Source
from dask_nrbfn.stages.columns import check_targets
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.storage.dataset import Dataset, check_apart
from dask_nrbfn.storage.group import Location, locked_group, remove_group, replace_group
from dask_nrbfn.storage.location import RemoteLocation, hidden_sibling, locate
from dask_nrbfn.storage.run import REFRESH, Run, finish_refresh, member_of

logger = logging.getLogger(__name__)


def fit_dataset(
    dataset: Dataset,
    location: Location,
    params: FitParams,
    engine: Engine,
    *,
    tuning: TuneParams | None = None,
    validation: Dataset | None = None,
    embeds: bool = False,
    basis: ArrayLike | None = None,
    min_recall: float = FitLimits.min_recall,
    time_limit: float | None = None,
) -> Run:
    """Fit a network to a dataset, or resume an interrupted fit; return the run with its model.

    Parameters
    ----------
    dataset : Dataset
        Rows without a label are candidates for the basis and count in scale and width.
    location : Location
        Location of the run.
    params : FitParams
    engine : Engine
    tuning : TuneParams, optional
        Values to choose from; they replace those of `params`.
    validation : Dataset, optional
        Held-out rows of a tuning, instead of cross-validation folds.
    embeds : bool
        Learn coordinates instead of targets: rows are close if many short steps connect them.
        `params.components` is their number, by default 2; parameters of targets are ignored.
    basis : array-like (r, p), optional
        The basis rows; `params` are then those that `given_basis` returned.
    min_recall : float
        Smallest share of the true neighbours that an approximate search must find.
    time_limit : float, optional
        Seconds after which a tuning tries nothing more, see `FitLimits`.

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

    Notes
    -----
    - A tuning compares networks by their squared errors on the same held-out rows of a sample:
      scale, features, kernel and width with few rows and a small basis, then with more; widths near
      the best one; sizes of the basis; sources of the basis and penalties. Alpha is chosen among
      those next to the best with the whole basis, from the moments of the folds that are held out.
      A held-out row is also held out of the basis,
      because no other row would determine its weight, so its errors are slightly too high.
      Held-out rows calibrate the probabilities. A basis of low confidence uses all labels.
    - Coordinates are the eigenfunctions of the basis but the first, which is constant: the eigenmap
      of Lee & Izbicki, eq. 4, a diffusion map at time 0. Only a "sknn" basis uses labels; "auto" is
      "random". `predict_dataset` writes the coordinates.
    """
    check_apart(location, dataset, validation)
    FitLimits(min_recall=min_recall, time_limit=time_limit)
    if time_limit is not None and tuning is None:
        raise ParameterError("`time_limit` limits a tuning.", "Give `tuning`, or no `time_limit`.")
    context = FitContext.resolve(
        dataset,
        params,
        engine,
        tuning,
        validation=validation,
        embeds=embeds,
        basis=basis,
        min_recall=min_recall,
    )
    return _fit(context, location, time_limit)


def _fit(context: FitContext, location: Location, time_limit: float | None = None) -> Run:
    """Fit the network of a context, or resume the fit."""
    check_fit(context)
    finish_refresh(location)
    with locked_group(location) as check_still_locked:
        run = start_run(location, context)
        if context.spec.tunes and "model" not in run.stages:
            context = expect_tuning(context, time_limit)
        finish_run(run, context, check_still_locked=check_still_locked)
        return run


def refresh_run(
    location: Location,
    datasets: Sequence[Dataset],
    engine: Engine,
    *,
    judge: Judge | None = None,
    min_recall: float = FitLimits.min_recall,
) -> Run:
    """Fit a run again with its own parameters, and return the new run in its place.

    Parameters
    ----------
    location : Location
        Location of a run whose model may be damaged. It stays until the new run is complete.
    datasets : sequence of Dataset
        Rows to fit; empty: all rows that the run holds. Rows of a file are read from the file.
    engine, min_recall
        See `fit_dataset`.
    judge : Judge, optional
        Judges the new model.

    Raises
    ------
    MissingDataError, DataError, ParameterError
        If the datasets of the run are missing or have changed; if two datasets have the same rows;
        if the basis of the run was given, or the run is in the memory of this process.
    WorseModelError
        If the judge refuses the new model; the run is unchanged.

    Notes
    -----
    A run that was tuned with folds is tuned again. A run that was tuned on a validation dataset is
    fitted with the chosen parameters. Several datasets are first written as one, next to the run.
    The new run is built there too, and an interrupted refresh resumes it.
    """
    building, joined = hidden_sibling(location, REFRESH), hidden_sibling(location, "rows")
    check_apart(location, *datasets)
    FitLimits(min_recall=min_recall)
    finish_refresh(location)
    _check_refreshable(Run.open(location), judge)
    with locked_group(location) as check_still_locked, ExitStack() as files:
        old = Run.open(location)
        rows = list(datasets) or _rows_held(old, files)
        dataset = rows[0]
        if len(rows) > 1:
            # A job that was killed may have left it.
            remove_group(joined)
            _check_joinable(rows)
            sparse = "auto" if any(each.is_sparse for each in rows) else "no"
            dataset = ingest_source(_Joined(rows), joined, WriteOptions(sparse=sparse))
        if not old.embeds:
            names = old.attributes["target_names"]
            check_targets(dataset, None if names is None else tuple(names))
        # A run tuned on a validation dataset keeps the chosen values. A fit chooses alpha again.
        params = old.begun.params if old.begun.n_held_out else old.chosen_params
        context = FitContext.resolve(
            dataset, params, engine, embeds=old.embeds, min_recall=min_recall
        )
        if old.begun.tunes and old.begun.n_held_out:
            context = replace(context, spec=old.begun)
        try:
            new = _fit(context, building)
        except RunMismatchError as error:
            logger.warning("%s The refresh starts again on these rows.", error.problem)
            remove_group(building)
            new = _fit(context, building)
        try:
            error_rate = None if judge is None else judge.error_rate(building, engine)
        except WorseModelError:
            remove_group(building)
            remove_group(joined)
            raise
        check_still_locked()
        refresh = {"refreshed_from": old.run_id, "error_rate": error_rate}
        new.record(members=[member_of(each) for each in rows], refresh=refresh)
        # A job that is killed in between joins the rows again.
        remove_group(joined)
        replace_group(building, location)
    n_datasets = plural(len(rows), "dataset")
    logger.info("refresh: %s holds %d rows of %s", location, dataset.n_rows, n_datasets)
    return Run.open(location)


def _check_refreshable(old: Run, judge: Judge | None) -> None:
    """Raise an error if a run was never finished, or cannot be fitted again or judged."""
    attributes, place = old.attributes, old.location
    if not old.latest_place and "model" not in attributes["stages"]:
        raise DamagedDataError(
            f"the run {place} has no model yet.", f"Finish the run with {old.begun_by}."
        )
    if old.begun.params.basis_is_given:
        raise ParameterError(
            f"the basis of {place} was given, so a refresh cannot choose another.",
            "Fit a new run with another basis.",
        )
    if old.embeds and judge is not None:
        raise ParameterError(
            f"{place} is an embedding, which learns no targets.", "Refresh the run without a judge."
        )


def _rows_held(run: Run, files: ExitStack) -> list[Dataset]:
    """Return the datasets whose rows a run holds; they exist until `files` is closed."""
    held = run.members_held.values()
    if taken := [each["dataset"] for each in held if each["times"] < 0]:
        raise DataError(
            f"{run.location} has forgotten the rows of {taken[0]}, which were added together "
            "with other rows.",
            "Give datasets without the forgotten rows.",
        )
    return [_open_member(run, each, files) for each in held if each["times"]]


def _open_member(run: Run, member: Mapping[str, Any], files: ExitStack) -> Dataset:
    """Open a dataset whose rows a run holds."""
    # A run does not record storage options, which may be secrets.
    options = run.location.storage_options if isinstance(run.location, RemoteLocation) else {}
    place, remedy = member["dataset"], "Give the datasets to fit."
    try:
        opening = opened_rows(locate(place, options), run.location, beside=run.location)
        dataset = files.enter_context(opening).dataset
    except NRBFNError as error:
        raise MissingDataError(
            f"{run.location} holds rows of {place}, which cannot be read: {error.problem}", remedy
        ) from error
    if member["content"] != dataset.content:
        raise DataError(f"{place} has other rows than those that {run.location} holds.", remedy)
    # Encoded as when the dataset was added to the run.
    return dataset.encoded_by(Schema.of_record(run.attributes["schema"]))


def _check_joinable(datasets: Sequence[Dataset]) -> None:
    """Raise DataError unless datasets have distinct rows, the same columns and one marker."""
    first = datasets[0]
    if len({each.content for each in datasets}) < len(datasets):
        raise DataError("two of the datasets have the same rows.", "Give each dataset once.")
    marked = next((each for each in datasets if each.unlabelled is not None), first)
    for other in datasets:
        other.encoded_by(first.schema)
        if _columns(other) != _columns(first):
            raise DataError(
                f"{other.location} has other columns, or labels of another type, than "
                f"{first.location}.",
                "Give datasets with the same columns and label type.",
            )
        # As text, because NaN differs from itself.
        has_other_mark = repr(other.unlabelled) not in (repr(None), repr(marked.unlabelled))
        if has_other_mark or marked.unlabelled in other.classes.tolist():
            raise DataError(
                f"{marked.unlabelled!r} means a missing label in {marked.location}, but not in "
                f"{other.location}.",
                "Ingest both datasets with the same `unlabelled`.",
            )


def _columns(dataset: Dataset) -> tuple[Any, ...]:
    label_kind = None if dataset.y is None else dataset.y.dtype.kind
    return dataset.n_features, dataset.feature_names, dataset.target_names, label_kind


class _Joined(Source):
    """The rows of several datasets, one after another."""

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        first = datasets[0]
        is_sparse = any(each.is_sparse for each in datasets)
        x_dtype = np.result_type(*(each.X.dtype for each in datasets))
        marks = [each.unlabelled for each in datasets if each.unlabelled is not None]
        read_as: dict[str, Any] = {}
        for each in reversed(datasets):
            # The first dataset that has an option decides it.
            read_as |= each.read_as or {}
        # The booleans of an update may have been written as 1 and 0.
        are_booleans = first.classes.dtype.kind == "b" and all(
            np.isin(each.classes, (0, 1)).all() for each in datasets
        )
        n_values = None
        if is_sparse:
            n_values = round(sum(each.row_values * each.n_rows for each in datasets))
        super().__init__(
            n_rows=sum(each.n_rows for each in datasets),
            n_features=first.X.shape[1],
            x_dtype=sparse_dtype(x_dtype, "X") if is_sparse else x_dtype,
            y_dtype=None if first.y is None else first.y.dtype,
            has_weights=any(each.sample_weights is not None for each in datasets),
            feature_names=first.feature_names,
            target_names=first.target_names,
            schema=first.schema,
            n_values=n_values,
            unlabelled=marks[0] if marks else None,
            read_as=read_as or None,
            boolean_labels=are_booleans,
        )
        self._datasets = datasets

    def _parts(self, block_rows: int) -> Iterator[Block]:
        for dataset in self._datasets:
            for index in range(-(-dataset.n_rows // dataset.chunk_rows)):
                X, y, weights, _ = dataset.read_chunk(index)
                if weights is None and self.has_weights:
                    weights = np.ones(X.shape[0])
                if self.n_values is not None:
                    X = canonical(X)
                yield Block(X.astype(self.x_dtype, copy=False), y, weights)
