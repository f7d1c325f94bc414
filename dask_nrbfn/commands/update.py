"""Update: rows join a finished run, or leave it, with the basis and width of the run.

The moments of the rows are added to those of the latest version, or subtracted, and the weights are
solved again: of the network, or of the network of every cell. No row of the run is read again.
The cluster shares of a penalty and the neighbours of `locality` also stay those of the fit.

A version is made in this order, under the lock of the run:

1. The rows are checked, and the latest model is evaluated on them unless they are forgotten.
2. Tasks store the moments of the rows as parts (`sum_rows`).
3. A task stores the new moments and the new model in a group of their own (`solve_version`).
4. The judge evaluates the new model.
5. One record, the last write, makes the version the latest of the run (`_Draft.finish`).
6. The parts, and the versions that no reader can still use, are dropped (`_next_version`).
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np

from dask_nrbfn.commands.change import (
    Change,
    most_judged,
    read_full_model,
    residual_figures,
    solve_version,
    sum_rows,
)
from dask_nrbfn.commands.evaluate import evaluate_dataset
from dask_nrbfn.engine import Engine
from dask_nrbfn.engine.memory import process_bytes
from dask_nrbfn.errors import (
    AlreadyAddedError,
    DamagedResultError,
    DataError,
    ParameterError,
    RunMismatchError,
    WorseModelError,
)
from dask_nrbfn.fit import STAGES
from dask_nrbfn.numeric.calibration import FIT_BYTES, MOST_SCORES
from dask_nrbfn.numeric.distances import basis_bytes
from dask_nrbfn.numeric.hashing import hash_values
from dask_nrbfn.numeric.penalties import penalty_named
from dask_nrbfn.numeric.ridge import solve_bytes
from dask_nrbfn.numeric.rows import mean_stored_values
from dask_nrbfn.parts import run_task
from dask_nrbfn.stages.model import read_model
from dask_nrbfn.stages.moments import moments_bytes
from dask_nrbfn.stages.refine import check_updatable
from dask_nrbfn.stages.validation import codes_among
from dask_nrbfn.stages.weights import warn_of_condition
from dask_nrbfn.storage.dataset import Dataset, check_apart
from dask_nrbfn.storage.group import Location, locked_group
from dask_nrbfn.storage.layout import block_rows
from dask_nrbfn.storage.location import join
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import ADD, FORGET, MERGE, Run, member_of, model_name, version_name

logger = logging.getLogger(__name__)

# The prefix of the stages with the moments of new rows.
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

    def error_rate(
        self, model: Location, engine: Engine, *, age: str = "new", limit: str = "max_error_rate"
    ) -> float:
        """Return the error rate of a model, or its relative error; WorseModelError if too large."""
        error = evaluate_dataset(model, self.dataset, engine).error_rate
        if not error <= self.max_error_rate:
            raise WorseModelError(
                f"the {age} model has an error of {error:.4g} on {self.dataset.location}, but only "
                f"{self.max_error_rate:.4g} is allowed; the old model is kept.",
                f"Check the labels of the new rows, or set a larger `{limit}`.",
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
        Largest accepted error on the new rows before the model has learned them: the `error_rate`
        of `evaluate_dataset`.

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
    check_apart(location, dataset)
    action = FORGET if forget else ADD
    with _next_version(location, action, engine, judge) as draft:
        run, rows = draft.run, dataset.encoded_like(draft.model).of_labelled()
        stage = _stage_of_rows(draft.version, action, rows)
        parts = run.group_names(_PARTS)
        if _stage_of_rows(draft.version - 1, action, rows) in parts:
            # A job was killed after its record: the parts are dropped last.
            return run.versions[-1]
        run.drop(*(name for name in parts if name != stage))
        if dataset.n_unlabelled:
            logger.info("%s: %d rows without a label are left out", action, dataset.n_unlabelled)
        codes = _check_rows(draft, rows, again=again)
        n_bytes = _checked_bytes(draft, rows)
        new_error, reasons = None, []
        if not forget:
            largest = math.inf if max_new_error is None else max_new_error
            new_error = Judge(dataset, largest).error_rate(
                location, engine, age="old", limit="max_new_error"
            )
        engine.begin_stage(n_bytes)
        if forget:
            n_basis = run_task(engine, _count_basis_rows, run, draft.base, rows, label=action)
            if n_basis:
                reasons = [f"{n_basis} of the forgotten rows are basis rows of the model"]
        change = Change(action, draft.base, run, stage, dataset=rows, codes=codes)
        change = sum_rows(change, draft.model, engine)
        return draft.finish(change, [member_of(rows)], reasons, new_error)


def _stage_of_rows(version: int, action: str, rows: Dataset) -> str:
    """Return the stage with the moments of the rows that a version adds or forgets."""
    return f"{_PARTS}{version}-{action}-{rows.fingerprint}"


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
    check_apart(location, other)
    with _next_version(location, MERGE, engine, judge) as draft:
        run, added = draft.run, Run.open(other)
        if added.run_id != run.run_id:
            raise RunMismatchError(
                f"{other} did not begin as a copy of {location}.", "Merge copies of one run only."
            )
        held, further = run.members_held, added.members_held
        for content in held.keys() & further.keys():
            if min(held[content]["times"], further[content]["times"]) > 0:
                raise AlreadyAddedError(
                    f"{location} and {other} both hold the rows of {held[content]['dataset']}.",
                    "Merge runs of distinct rows, or forget these rows in one of the runs.",
                )
        engine.begin_stage(_checked_bytes(draft, None))
        model = read_model(added, added.latest_place)
        change = Change(
            MERGE,
            draft.base,
            added,
            added.latest_place,
            cell_rows=None if model.cells is None else model.cells.n_rows,
            target_range=model.target_range,
        )
        return draft.finish(change, [each for each in further.values() if each["times"]])


def kept_stages(run: Run) -> list[str]:
    """Return the stages of a fit that every later version needs."""
    updated = [stage.name for stage in STAGES if stage.read_by_updates]
    return [name for name in updated if name in run.stages and run.has(name)]


@dataclass(frozen=True)
class _Draft:
    """The next version of a run, which continues `base`; invisible until it is finished."""

    run: Run
    model: Model
    action: str
    version: int
    base: str
    engine: Engine
    judge: Judge | None
    check_still_locked: Callable[[], None]
    started: datetime = field(default_factory=partial(datetime.now, UTC))

    def finish(
        self,
        change: Change,
        members: list[dict[str, Any]],
        reasons: Sequence[str] = (),
        new_error: float | None = None,
    ) -> dict[str, Any]:
        """Solve the draft and make it the run's latest version if the judge accepts it."""
        run, engine = self.run, self.engine
        name = version_name(self.version)
        solved = run_task(engine, solve_version, run, name, change, label=self.action)
        peak_bytes, predicted_bytes = engine.peak_bytes, engine.expected_bytes
        error_rate = None
        if self.judge is not None:
            model = join(run.location, model_name(solved["place"]))
            error_rate = self.judge.error_rate(model, engine)
        residual_sums = solved.pop("residual_sums")
        if residual_sums is not None:
            members = [member | {"residual_sums": residual_sums} for member in members]
        if solved["held_out"] is None:
            change_of_rows = {"action": self.action, "members": members}
            solved["held_out"] = residual_figures(run, change_of_rows)
        n_rows = sum(member["n_rows"] * member.get("times", 1) for member in members)
        reasons = [*reasons, *solved["reasons"]]
        n_fitted = run.attributes["basis_n_rows"]
        n_later = run.n_rows_held + n_rows - n_fitted
        if self.action != FORGET and n_later > n_fitted:
            reasons.append(
                f"the basis was chosen from {n_fitted} rows, and {n_later} were added since"
            )
        was_due = bool(run.versions) and run.versions[-1]["refresh_due"]
        seconds = (datetime.now(UTC) - self.started).total_seconds()
        record = {
            "version": self.version,
            "action": self.action,
            "members": members,
            "n_rows": n_rows,
            "new_error": new_error,
            **solved,
            "reasons": reasons,
            "refresh_due": was_due or bool(reasons),
            "error_rate": error_rate,
            "started": self.started.isoformat(timespec="seconds"),
            "seconds": round(seconds, 3),
            "peak_bytes": peak_bytes,
            "predicted_bytes": predicted_bytes,
        }
        self.check_still_locked()
        run.finish_version(record, needs=kept_stages(run))
        logger.info(
            "%s: %d rows, version %d, fitting error %.4f",
            self.action,
            n_rows,
            self.version,
            record["fitting_error"],
        )
        for reason in reasons:
            logger.warning("a refresh of the basis is due: %s", reason)
        if record["alpha"] is not None:
            warn_of_condition(record["reciprocal_condition"], alpha=record["alpha"])
        return record


@contextmanager
def _next_version(
    location: Location, action: str, engine: Engine, judge: Judge | None
) -> Iterator[_Draft]:
    """Yield the draft of the next version of a locked run; drop what is no longer needed."""
    run = Run.open(location)
    if run.embeds:
        raise ParameterError(
            f"{location} is an embedding, which cannot be updated.", "Embed all rows again."
        )
    check_updatable(run.spec.params.loss, "Fit or refresh a run with all rows, old and new.")
    with locked_group(location) as check_still_locked:
        run = Run.open(location)
        version, base = len(run.versions) + 1, run.latest_place
        try:
            model = read_full_model(run, base)
            run.drop(version_name(version))
            yield _Draft(run, model, action, version, base, engine, judge, check_still_locked)
        except DamagedResultError as error:
            remedy = "Repeat fit or tune, with the same dataset and options, to repair the run."
            if base:
                remedy = f"Refresh the run {location}, or restore the run from a copy."
            if error.stage.startswith(_PARTS):
                run.forget(error.stage, error.parts)
                remedy = "Repeat the update, which sums the new rows again."
            raise DamagedResultError(error.problem, remedy, error.stage, error.parts) from error
        except WorseModelError:
            run.drop(version_name(version))
            run.drop_groups(_PARTS)
            raise
        # Readers may still use the previous version. A killed job may have left another one.
        latest = len(run.versions)
        run.drop(version_name(latest - 2), version_name(latest - 3))
        run.drop_groups(_PARTS)


def _check_rows(draft: _Draft, dataset: Dataset, *, again: bool) -> list[int] | None:
    """Return the code in the model of each class of a dataset, if its rows can be used."""
    model, run = draft.model, draft.run.location
    remedy = "Refresh the run with rows of all classes."
    codes = codes_among(model.classes, model.target_names, dataset, remedy)
    member = draft.run.members_held.get(dataset.content)
    held = member is not None and member["times"] > 0
    if draft.action == ADD and held and not again:
        raise AlreadyAddedError(
            f"the run {run} holds the rows of {dataset.location} already.",
            "Add each row once. To remove rows, use forget.",
        )
    if draft.action == FORGET and member is not None and not held:
        raise DataError(
            f"the run {run} has forgotten the rows of {dataset.location} already.",
            "Forget each row once.",
        )
    if draft.action == FORGET and member is None:
        logger.warning(
            "forget: the run does not know these rows as a whole. Only their sums are checked."
        )
    return codes


def _checked_bytes(draft: _Draft, dataset: Dataset | None) -> int:
    """Return the expected bytes of a task; raise MemoryBudgetError if there are too many."""
    model, params = draft.model, draft.model.params
    r, p, q = model.n_active, model.basis.shape[1], model.n_targets
    of_sparse = dataset is not None and dataset.is_sparse
    of_basis = partial(basis_bytes, r, p, mean_stored_values(model.basis), of_sparse=of_sparse)
    penalty_axes = penalty_named(params.penalty).n_axes
    adds_matrices = params.prune or penalty_axes or params.locality or params.components
    # After a subtraction the moments are checked, which takes more memory than the solve.
    in_place = not adds_matrices and model.cells is None and draft.action != FORGET
    held = solve_bytes(
        r,
        q,
        penalty_axes=penalty_axes,
        locality=params.locality > 0,
        n_components=min(params.components or 0, r),
        in_place=in_place,
    )
    held += of_basis(copies=4) + 8 * 4 * r * q
    n_new = 0
    if dataset is not None:
        n_new, width = dataset.n_rows, dataset.row_width
        summing = moments_bytes(r, width=width, n_targets=q, n_folds=1)
        summing += of_basis(copies=5) + dataset.reading_bytes
        # Activations of the judged rows are centred and solved.
        n_judged = min(n_new, most_judged(draft.run, dataset, q))
        judging = 8 * 2 * (block_rows(r) * q + min(n_judged, block_rows(r)) * r)
        # The judged rows are held twice while they are gathered.
        held = max(held, summing + judging) + 8 * n_judged * (2 * width + 3 * q)
    if model.calibration is not None:
        n_scores = (draft.run.n_rows_held + n_new) * q
        held += FIT_BYTES * min(n_scores, max(MOST_SCORES, q**2))
    if model.cells is not None:
        # The model of all cells, twice when it is written.
        held += 8 * 2 * model.n_basis * (p + 2 * q)
    held += process_bytes(l1=model.l1, gpu=draft.engine.device == "gpu")
    draft.engine.check_budget(draft.action, held, remedy="Refresh with fewer basis rows")
    return held


def _count_basis_rows(run: Run, base: str, dataset: Dataset) -> int:
    """Return the number of rows of a dataset that are basis rows of the model."""
    model = read_full_model(run, base)
    of_basis, found = hash_values(model.basis), 0
    for block in dataset.blocks(0, dataset.n_rows, block_rows(model.n_active)):
        hashes = hash_values(model.scaling.apply(block.X))
        found += int(np.count_nonzero(np.isin(hashes, of_basis)))
    return found
