"""Update: add rows to a finished run, or remove rows, with the basis and width of the run.

The moments of the rows are added to those of the latest version, or subtracted, and the weights are
solved again. No row of the run is read again. Shares of clusters of a penalty and the neighbours of
locality also stay those of the fit.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from dask_nrbfn.commands.evaluate import evaluate_dataset
from dask_nrbfn.commands.version import Change, read_full_model, read_model, solve_version, sum_rows
from dask_nrbfn.engine import Engine
from dask_nrbfn.engine.memory import process_bytes
from dask_nrbfn.errors import (
    AlreadyAddedError,
    DamagedDataError,
    DamagedResultError,
    DataError,
    MissingDataError,
    ParameterError,
    RunMismatchError,
    WorseModelError,
)
from dask_nrbfn.numeric.distances import basis_bytes
from dask_nrbfn.numeric.penalties import penalty_named
from dask_nrbfn.numeric.ridge import solve_bytes
from dask_nrbfn.numeric.rows import mean_values
from dask_nrbfn.parts import run_task
from dask_nrbfn.stages.basis import BASIS
from dask_nrbfn.stages.cells import CELLS
from dask_nrbfn.stages.moments import COMPONENTS, LOCALITY, WIDTH, moments_bytes
from dask_nrbfn.stages.refine import check_updatable
from dask_nrbfn.stages.validation import codes_among
from dask_nrbfn.stages.weights import warn_of_condition
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location, locked_group
from dask_nrbfn.storage.layout import block_rows
from dask_nrbfn.storage.location import join
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import (
    ADD,
    FORGET,
    MERGE,
    Run,
    latest_place,
    member_of,
    members_by_content,
    members_held,
    model_name,
    n_rows_held,
    version_name,
    versions_of,
)

logger = logging.getLogger(__name__)

# The prefix of the stages whose parts are the moments of new rows.
_PARTS = "update-"


@dataclass(frozen=True)
class Judge:
    """Rows on which a new model is evaluated before it becomes the latest of a run.

    Parameters
    ----------
    dataset : Dataset
        With labels, or with numeric targets.
    max_error_rate : float
        Largest accepted error rate; for numeric targets, the relative error 1 - R^2.
    """

    dataset: Dataset
    max_error_rate: float

    def error_rate(self, model: Location, engine: Engine) -> float:
        """Return the error rate of a model, or its relative error; WorseModelError if too large."""
        error = evaluate_dataset(model, self.dataset, engine).error_rate
        if error > self.max_error_rate:
            raise WorseModelError(
                f"the new model has an error of {error:.4g} on {self.dataset.location}, but only "
                f"{self.max_error_rate:.4g} is allowed; the old model is kept.",
                "Check the new rows, or set a larger `max_error_rate`.",
            )
        return error


def update_run(
    location: Location,
    dataset: Dataset,
    engine: Engine,
    *,
    forget: bool = False,
    again: bool = False,
    judge: Judge | None = None,
    max_new_error: float | None = None,
) -> dict[str, Any]:
    """Add the rows of a dataset to a run, or remove them, as a new version of the run.

    Parameters
    ----------
    location : Location
        Location of a run with a model.
    dataset : Dataset
        With labels among the run's classes, or the run's targets. Class weights are those of the
        fit. Rows without a label are left out.
    engine : Engine
    forget : bool
        Remove the rows. Basis rows among them stay in the model; see `refresh_run`.
    again : bool
        Add rows that the run already holds again, instead of raising an error.
    judge : Judge, optional
    max_new_error : float, optional
        Largest accepted error on the new rows before the model has learned them: the error rate, or
        the squared error over the variance of numeric targets. Rows count by their weights.

    Returns
    -------
    dict
        The record of the version, with "new_error", "refresh_due" and its "reasons".

    Raises
    ------
    AlreadyAddedError, DataError, ParameterError
        If the run already holds the rows, in any order and chunks; if forgotten rows cannot have
        been added; if the dataset does not fit the run, or the run has another loss than the
        squared loss.
    WorseModelError
        If the judge or `max_new_error` refuses the model.

    Notes
    -----
    After an error the run is unchanged. An interrupted update of the same rows resumes from its
    finished parts; if it was stopped after its record, its record is returned.
    """
    if forget and max_new_error is not None:
        raise ParameterError(
            "`forget` and `max_new_error` are both given.", "Leave out `max_new_error`."
        )
    action, n_left_out = FORGET if forget else ADD, dataset.n_unlabelled
    with _locked_version(location, action, judge) as draft:
        dataset = dataset.encoded_like(draft.model)
        if n_left_out:
            logger.info("%s: %d rows without a label are left out", action, n_left_out)
            dataset = dataset.of_labelled()
        if (record := _finished_before(draft.run, action, dataset)) is not None:
            return record
        codes = _check_rows(draft, dataset, again=again)
        stage = _stage_of(draft.version, action, dataset)
        engine.begin_stage(_checked_bytes(draft, dataset, engine))
        added = None
        # Forgotten rows leave the range of the targets as it is.
        if dataset.of_numbers and not forget:
            added = run_task(engine, Dataset.target_range, dataset, label=action)
        of = draft.run, draft.model, draft.base
        parts = sum_rows(*of, dataset, engine, stage=stage, codes=codes)
        change = Change(action, draft.base, stage, parts, target_range=added)
        figures = solve_version(draft.run, draft.model, draft.version, change, engine)
        error = figures["new_error"]
        if max_new_error is not None and error is not None and not error <= max_new_error:
            raise WorseModelError(
                f"the old model has an error of {error:.4g} on the new rows, but only "
                f"{max_new_error:.4g} is allowed; it is kept.",
                "Check the labels of the new rows, or set a larger `max_new_error`.",
            )
        return draft.finish([member_of(dataset)], figures, engine, judge)


def merge_runs(
    location: Location, other: Location, engine: Engine, *, judge: Judge | None = None
) -> dict[str, Any]:
    """Add all rows of another run, which began as a copy of a run, to that run.

    Parameters
    ----------
    location, other : Location
        The other run is not changed.
    engine, judge
        See `update_run`.

    Raises
    ------
    RunMismatchError, AlreadyAddedError
        If the runs are not copies of one fit, or both hold the same rows.
    """
    with _locked_version(location, MERGE, judge) as draft:
        run, added = draft.run, Run.open(other)
        attributes, place = added.attributes, latest_place(added.attributes)
        check_updatable(added.chosen_params.loss, f"Refresh {location} with the rows of both.")
        if added.run_id != run.run_id:
            raise RunMismatchError(
                f"{other} did not begin as a copy of {location}.", "Merge copies of one run only."
            )
        held, further = members_held(run.attributes), members_held(attributes)
        both = [content for content in further if held[content] > 0 and further[content] > 0]
        known = members_by_content(attributes)
        if both:
            raise AlreadyAddedError(
                f"{location} and {other} both hold the rows of {known[both[0]]['dataset']}.",
                "Merge runs of distinct rows, or forget these rows in one of the runs.",
            )
        engine.begin_stage(_checked_bytes(draft, None, engine))
        added_range = read_model(added, place).target_range
        change = Change(MERGE, draft.base, "", range(0), added.location, place, added_range)
        figures = solve_version(run, draft.model, draft.version, change, engine)
        figures["n_rows"] = n_rows_held(attributes)
        members = [
            {**known[content], "times": times} for content, times in further.items() if times
        ]
        return draft.finish(members, figures, engine, judge)


def kept_stages(run: Run) -> list[str]:
    """Return the stages of a fit that every later version needs."""
    names = (CELLS.name, BASIS.name, WIDTH.name, COMPONENTS.name, LOCALITY.name)
    return [name for name in names if name in run.stages]


@dataclass(frozen=True)
class _Draft:
    """The next version of a run, which continues `base`; invisible until it is finished."""

    run: Run
    model: Model
    action: str
    version: int
    base: str
    started: datetime
    check_still_locked: Callable[[], None]

    def finish(
        self,
        members: list[dict[str, Any]],
        figures: Mapping[str, Any],
        engine: Engine,
        judge: Judge | None,
    ) -> dict[str, Any]:
        """Make the draft the run's latest version if the judge accepts it; return its record."""
        taken = {"peak_bytes": engine.peak_bytes, "predicted_bytes": engine.expected_bytes}
        error_rate = None
        if judge is not None:
            model = join(self.run.location, model_name(figures["place"]))
            error_rate = judge.error_rate(model, engine)
        attributes, reasons = self.run.attributes, list(figures["reasons"])
        fitted = attributes["basis_n_rows"]
        later = n_rows_held(attributes) + figures["n_rows"] - fitted
        if self.action != FORGET and later > fitted:
            chosen = f"the basis was chosen from {fitted} rows"
            reasons.append(f"{chosen}, and {later} were added since")
        due_before = any(record["refresh_due"] for record in versions_of(attributes)[-1:])
        record = {
            "version": self.version,
            "action": self.action,
            "members": members,
            **figures,
            "reasons": reasons,
            "refresh_due": due_before or bool(reasons),
            "error_rate": error_rate,
            "started": self.started.isoformat(timespec="seconds"),
            "seconds": round((datetime.now(UTC) - self.started).total_seconds(), 3),
            **taken,
        }
        self.check_still_locked()
        self.run.finish_version(record, needs=kept_stages(self.run))
        counts = (self.action, record["n_rows"], self.version, record["fitting_error"])
        logger.info("%s: %d rows, version %d, fitting error %.4f", *counts)
        for reason in reasons:
            logger.warning("a refresh of the basis is due: %s", reason)
        if record["alpha"] is not None:
            warn_of_condition(record["reciprocal_condition"], alpha=record["alpha"])
        return record


@contextmanager
def _locked_version(location: Location, action: str, judge: Judge | None) -> Iterator[_Draft]:
    if judge is not None:
        # Raises an error if the run is a Zarr store object.
        join(location, model_name(""))
    run = Run.open(location)
    if run.embeds:
        raise ParameterError(
            f"{location} is an embedding, which cannot be updated.", "Embed all rows again."
        )
    check_updatable(run.chosen_params.loss, "Fit or refresh a run with all rows, old and new.")
    with locked_group(location) as check_still_locked:
        run = Run.open(location)
        attributes = run.attributes
        version, base = len(versions_of(attributes)) + 1, latest_place(attributes)
        try:
            model = _read_base(run, base)
            run.drop(version_name(version))
            yield _Draft(run, model, action, version, base, datetime.now(UTC), check_still_locked)
        except DamagedResultError as error:
            remedy = "Repeat fit or tune, with the same dataset and options, to repair the run."
            if base:
                remedy = f"Refresh the run {location}, or restore the run from a copy."
            if error.stage.startswith(_PARTS):
                run.forget(error.stage, error.parts)
                remedy = "Repeat the update, which computes the damaged part again."
            raise DamagedResultError(error.problem, remedy, error.stage, error.parts) from error
        except (AlreadyAddedError, WorseModelError):
            # A job may have been killed after it recorded the version.
            run.drop(version_name(version))
            run.drop_groups(_PARTS)
            raise
        # Readers may still use the previous version. A killed job may have left another one.
        latest = len(versions_of(run.attributes))
        for old in (latest - 2, latest - 3):
            run.drop(version_name(old))
        run.drop_groups(_PARTS)


def _read_base(run: Run, base: str) -> Model:
    """Return the model that an update continues; DamagedResultError if it is damaged."""
    try:
        return read_full_model(run, base)
    except DamagedResultError:
        raise
    except (MissingDataError, DamagedDataError) as error:
        raise DamagedResultError(error.problem, error.remedy, model_name(base), ()) from error


def _stage_of(version: int, action: str, dataset: Dataset) -> str:
    return f"{_PARTS}{version}-{action}-{dataset.fingerprint}"


def _finished_before(run: Run, action: str, dataset: Dataset) -> dict[str, Any] | None:
    """Return the record of the latest version if its job was killed before it dropped its parts."""
    records = versions_of(run.attributes)
    if not records or [each["content"] for each in records[-1]["members"]] != [dataset.content]:
        return None
    # The parts are dropped last.
    has_parts = _stage_of(len(records), action, dataset) in run.group_names(_PARTS)
    return records[-1] if has_parts else None


def _check_rows(draft: _Draft, dataset: Dataset, *, again: bool) -> list[int] | None:
    """Return the code in the model of each class of a dataset, if its rows can be used."""
    model, remedy = draft.model, "Refresh the run with rows of all classes."
    codes = codes_among(model.classes, model.target_names, dataset, remedy)
    attributes, run = draft.run.attributes, draft.run.location
    held = members_held(attributes)[dataset.content]
    known = dataset.content in members_by_content(attributes)
    if draft.action == ADD and held > 0 and not again:
        raise AlreadyAddedError(
            f"the run {run} holds the rows of {dataset.location} already.",
            "Add each row once. To remove rows, use forget.",
        )
    if draft.action == FORGET and known and held <= 0:
        raise DataError(
            f"the run {run} has forgotten the rows of {dataset.location} already.",
            "Forget each row once.",
        )
    return codes


def _checked_bytes(draft: _Draft, dataset: Dataset | None, engine: Engine) -> int:
    """Return the expected bytes of a task; raise MemoryBudgetError if there are too many."""
    model, params = draft.model, draft.model.params
    r, p, q = model.n_active, model.basis.shape[1], model.n_targets
    penalty_axes = penalty_named(params.penalty).n_axes
    asked = params.prune or penalty_axes or params.locality or params.components
    held = solve_bytes(
        r,
        q,
        penalty_axes=penalty_axes,
        locality=params.locality > 0,
        n_components=min(params.components or 0, r),
        # After a subtraction the moments are checked, which takes more memory than the solve.
        in_place=not asked and model.cells is None and draft.action != FORGET,
    )
    values, of_sparse = mean_values(model.basis), dataset is not None and dataset.is_sparse
    of_basis = partial(basis_bytes, r, p, values, of_sparse=of_sparse)
    held += of_basis(copies=4) + 8 * 4 * r * q
    if dataset is not None:
        passing = moments_bytes(
            r,
            width=dataset.row_width,
            basis_bytes=of_basis(copies=5),
            n_targets=q,
            n_folds=1,
            reading_bytes=dataset.reading_bytes,
        )
        held = max(held, passing + 8 * block_rows(r) * 2 * q)
    if model.cells is not None:
        # The model of all cells, twice when it is written.
        held += 8 * 2 * model.n_basis * (p + 2 * q)
    held += process_bytes(l1=model.l1)
    engine.check_budget(draft.action, held, remedy="Refresh with fewer basis rows")
    return held
