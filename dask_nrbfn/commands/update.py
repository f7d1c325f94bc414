"""Update: rows join a finished run, or leave it, with the basis and width of the run.

The moments of the rows are added to those of the latest version, or subtracted, and the weights are
solved again: of the network, or of the network of every cell. No row of the run is read again.
The cluster shares of a penalty and the neighbours of `locality` also stay those of the fit.
"""

import logging
import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial, reduce
from itertools import pairwise
from operator import add
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.commands.evaluate import evaluate_dataset
from dask_nrbfn.commands.held_out import (
    HALVES,
    JudgingPass,
    calibrate_again,
    is_judged,
    match_rows,
    n_halves,
    read_full_model,
    reading_of,
    residual_figures,
    solution_arrays,
)
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
from dask_nrbfn.numeric.calibration import FIT_BYTES, MOST_SCORES, Calibration, ScoreDraw
from dask_nrbfn.numeric.cell_solution import SolvedCell, SolvedCells
from dask_nrbfn.numeric.distances import basis_bytes
from dask_nrbfn.numeric.folds import FoldedBlock
from dask_nrbfn.numeric.held_out import ResidualSums, unexplained_share
from dask_nrbfn.numeric.moments import Moments, are_sums_of_rows, check_moments
from dask_nrbfn.numeric.penalties import penalty_named
from dask_nrbfn.numeric.ridge import solve_bytes
from dask_nrbfn.numeric.rows import mean_values
from dask_nrbfn.numeric.sums import RowSum
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.parts import (
    PartResult,
    Reduction,
    SumRecord,
    map_parts,
    read_total,
    reduce_parts,
    run_task,
)
from dask_nrbfn.stages.cells import FITS, read_cell_targets
from dask_nrbfn.stages.model import read_model
from dask_nrbfn.stages.moments import (
    MomentsPass,
    fold_suffixes,
    moments_bytes,
    read_sums,
    read_targets,
    rows_of_block,
    write_sums,
)
from dask_nrbfn.stages.refine import check_updatable
from dask_nrbfn.stages.validation import codes_among, write_draw
from dask_nrbfn.stages.weights import choose_kept, describe_network, full_system, warn_of_condition
from dask_nrbfn.storage.dataset import Dataset, check_apart
from dask_nrbfn.storage.group import Location, locked_group
from dask_nrbfn.storage.layout import PartLayout, block_rows
from dask_nrbfn.storage.location import join
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import ADD, FORGET, MERGE, Run, member_of, model_name, version_name
from dask_nrbfn.weighting import folded_blocks

logger = logging.getLogger(__name__)

# The prefix of the stages with the moments of new rows.
_PARTS = "update-"

# Largest rounding error of a difference, relative to the subtracted sums. A network with a smaller
# share of its weight left has lost all rows.
_LEFT_OVER = 1e-9


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
    reasons: list[str] = []
    new_error = None
    with _next_version(location, action, engine, judge) as draft:
        run, rows = draft.run, dataset.encoded_like(draft.model).of_labelled()
        stage, before = (
            f"{_PARTS}{number}-{action}-{rows.fingerprint}"
            for number in (draft.version, draft.version - 1)
        )
        left = run.group_names(_PARTS)
        if before in left:
            # A job was killed after its record: the parts are dropped last.
            return run.versions[-1]
        run.drop(*(name for name in left if not name.startswith(stage)))
        if dataset.n_unlabelled:
            logger.info("%s: %d rows without a label are left out", action, dataset.n_unlabelled)
        codes, n_bytes = _check_rows(draft, rows, again=again), _checked_bytes(draft, rows)
        if not forget:
            largest = math.inf if max_new_error is None else max_new_error
            new_error = Judge(dataset, largest).error_rate(
                location, engine, age="old", limit="max_new_error"
            )
        engine.begin_stage(n_bytes)
        if forget:
            matching = (run, draft.base, rows, codes, stage)
            if counted := run_task(engine, match_rows, *matching, label=action):
                reasons = [f"{counted} of the forgotten rows are basis rows of the model"]
        change = _sum_rows(draft, rows, stage, codes)
        return draft.finish(change, [_member(draft, rows, stage, codes)], reasons, new_error)


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
        place = added.latest_place
        model = read_model(added, place)
        cell_rows = None if model.cells is None else model.cells.n_rows
        change = _Change(MERGE, draft.base, added, place, cell_rows, model.target_range)
        return draft.finish(change, [each for each in further.values() if each["times"]])


def kept_stages(run: Run) -> list[str]:
    """Return the stages of a fit that every later version needs."""
    names = ("cells", "basis", "width", "components", "locality", "validation")
    return [name for name in names if name in run.stages and run.has(name)]


class _Change(NamedTuple):
    """Rows that join the version at `base`, or leave it.

    source, place: the run and the place of the moments of these rows, see `_read_moments`.
    cell_rows: number of rows in each cell. target_range: range (2, q) of added numeric targets.
    suffix: of the names of the moments of a half of the rows. content: digest of forgotten rows.
    """

    action: str
    base: str
    source: Run
    place: str
    cell_rows: NDArray[np.int64] | None = None
    target_range: Floats | None = None
    suffix: str = ""
    content: str | None = None


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
        change: _Change,
        members: list[dict[str, Any]],
        reasons: Sequence[str] = (),
        new_error: float | None = None,
    ) -> dict[str, Any]:
        """Solve the draft and make it the run's latest version if the judge accepts it."""
        run, engine, error_rate = self.run, self.engine, None
        name, earlier = version_name(self.version), run.versions
        solved = run_task(engine, _solve, run, name, change, label=self.action)
        taken = {"peak_bytes": engine.peak_bytes, "predicted_bytes": engine.expected_bytes}
        if self.judge is not None:
            model = join(run.location, model_name(solved["place"]))
            error_rate = self.judge.error_rate(model, engine)
        n_rows = sum(member["n_rows"] * member.get("times", 1) for member in members)
        counted = {"action": self.action, "members": members}
        reasons, fitted = [*reasons, *solved["reasons"]], run.attributes["basis_n_rows"]
        later = run.n_rows_held + n_rows - fitted
        if self.action != FORGET and later > fitted:
            added = f"{later} were added since"
            reasons.append(f"the basis was chosen from {fitted} rows, and {added}")
        record = {
            "version": self.version,
            "action": self.action,
            "members": members,
            "n_rows": n_rows,
            "new_error": new_error,
            **solved,
            "held_out": solved["held_out"] or residual_figures(run, counted),
            "reasons": reasons,
            "refresh_due": bool(reasons or (earlier and earlier[-1]["refresh_due"])),
            "error_rate": error_rate,
            "started": self.started.isoformat(timespec="seconds"),
            "seconds": round((datetime.now(UTC) - self.started).total_seconds(), 3),
            **taken,
        }
        self.check_still_locked()
        run.finish_version(record, needs=kept_stages(run))
        counts = (self.action, n_rows, self.version, record["fitting_error"])
        logger.info("%s: %d rows, version %d, fitting error %.4f", *counts)
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
    check_updatable(run.chosen_params.loss, "Fit or refresh a run with all rows, old and new.")
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
    model, remedy = draft.model, "Refresh the run with rows of all classes."
    codes = codes_among(model.classes, model.target_names, dataset, remedy)
    member = draft.run.members_held.get(dataset.content)
    held, run = member is not None and member["times"] > 0, draft.run.location
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
        unknown = "the run does not know these rows as a whole. Only their sums are checked."
        logger.warning("forget: %s", unknown)
    return codes


def _checked_bytes(draft: _Draft, dataset: Dataset | None) -> int:
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
        n_folds = _n_folds(draft, dataset)
        passing = moments_bytes(r, width=dataset.row_width, n_targets=q, n_folds=n_folds)
        passing += of_basis(copies=5) + dataset.reading_bytes
        held = max(held, passing + 8 * block_rows(r) * 2 * q)
    if is_judged(draft.run) and model.calibration is not None:
        n_rows = draft.run.n_rows_held + (0 if dataset is None else dataset.n_rows)
        held += FIT_BYTES * min(n_rows * q, max(MOST_SCORES, q**2))
    if model.cells is not None:
        # The model of all cells, twice when it is written.
        held += 8 * 2 * model.n_basis * (p + 2 * q)
    held += process_bytes(l1=model.l1, gpu=draft.engine.device == "gpu")
    draft.engine.check_budget(draft.action, held, remedy="Refresh with fewer basis rows")
    return held


def _sum_rows(draft: _Draft, dataset: Dataset, stage: str, codes: list[int] | None) -> _Change:
    """Store the moments of new rows, and of their halves, in a stage; each cell has a part."""
    run, engine, base, n_folds = draft.run, draft.engine, draft.base, _n_folds(draft, dataset)
    cell_rows, added = None, None
    if draft.model.cells is None:
        layout, finish = PartLayout.of(dataset.n_rows, run.params.n_parts), partial(_store, stage)
        kinds = dict.fromkeys(fold_suffixes(n_folds), Moments)
        reduction = Reduction(stage, _begin_sums, kinds, layout, (base, codes, n_folds), finish)
        reduce_parts(run, dataset, engine, reduction)
    else:
        # Every cell reads all new rows: that takes much less time than its moments.
        units = [(base, codes, n_folds, cell) for cell in range(draft.model.n_cells)]
        records = map_parts(run, dataset, engine, stage=stage, task=_sum_cell, units=units)
        cell_rows = np.array([record["n_rows"] for record in records])
    # Forgotten rows leave the range of the targets as it is.
    if dataset.of_numbers and draft.action == ADD:
        added = run_task(engine, Dataset.target_range, dataset, label=draft.action)
    return _Change(draft.action, base, run, stage, cell_rows, added, content=dataset.content)


def _n_folds(draft: _Draft, dataset: Dataset | None) -> int:
    added = draft.action == ADD and dataset is not None
    return n_halves(draft.run, dataset) if added and dataset is not None else 1


def _member(draft: _Draft, dataset: Dataset, stage: str, codes: list[int] | None) -> dict[str, Any]:
    """Return the record of new rows; those that join are judged by networks without them."""
    run, engine, member = draft.run, draft.engine, member_of(dataset)
    if draft.action == FORGET or not is_judged(run):
        return member
    n_folds, base = _n_folds(draft, dataset), draft.base
    if n_folds > 1:
        units = [(base, stage, fold) for fold in range(n_folds)]
        halves = f"{stage}{HALVES}"
        map_parts(run, dataset, engine, stage=halves, task=_solve_without, units=units)
    layout = PartLayout.of(dataset.n_rows, run.params.n_parts)
    kind: type[RowSum] = ResidualSums if run.of_numbers else ScoreDraw
    context, name = (base, stage, codes, draft.version, n_folds), f"{stage}-judged"
    reduction = Reduction(name, JudgingPass, {"": kind}, layout, context)
    reduce_parts(run, dataset, engine, reduction)
    if run.of_numbers:
        return member | {"residual_sums": read_total(run, reduction).to_record(0)}
    run_task(engine, _store_draw, run, stage, reduction, label=draft.action)
    return member


def _store_draw(run: Run, stage: str, reduction: Reduction) -> None:
    write_draw(run, stage, read_total(run, reduction))


def _solve_without(run: Run, dataset: Dataset, base: str, stage: str, fold: int) -> PartResult:
    """Return the network of a version and of the new rows outside one half."""
    other = fold_suffixes(2)[1 - fold]
    model, change = read_full_model(run, base), _Change(ADD, base, run, stage, suffix=other)
    solve = _solve_network if model.cells is None else _solve_cells
    solved, _ = solve(run, model, None, change)
    return PartResult({}, solution_arrays(solved))


def _store(stage: str, run: Run, record: SumRecord, sums: dict[str, Moments]) -> None:
    if len(sums) > 1:
        for suffix, moments in sums.items():
            write_sums(run, stage, moments, suffix=suffix)
    total, *others = sums.values()
    for moments in others:
        total += moments
    check_moments(total, record.weight, normalized=run.chosen_params.normalized)
    write_sums(run, stage, total)


def _begin_sums(
    run: Run,
    dataset: Dataset,
    start: int,
    stop: int,
    base: str,
    codes: list[int] | None,
    n_folds: int,
) -> MomentsPass:
    return _pass_over(run, read_full_model(run, base), stop - start, codes, n_folds)


def _pass_over(
    run: Run,
    model: Model,
    n_rows: int,
    codes: list[int] | None,
    n_folds: int,
    cell: int | None = None,
) -> MomentsPass:
    """Return a pass over new rows of one network or of a cell, with the class weights of a fit."""
    if cell is None:
        features, targets = model.features, read_targets(run, model.n_targets)
    else:
        features = model.features_of_cell(cell)
        targets = read_cell_targets(run, model.n_targets)
    features = features.on_device()
    size = rows_of_block(features.basis)
    reading = reading_of(run, model, codes, block_rows=size, n_folds=n_folds)
    return MomentsPass(features, reading, targets=targets, n_rows=n_rows)


def _sum_cell(
    run: Run, dataset: Dataset, base: str, codes: list[int] | None, n_folds: int, cell: int
) -> PartResult:
    """Return the moments and the number of the new rows of a cell, and of their halves."""
    model, n_rows = read_model(run, base), 0
    assert model.cells is not None
    work = _pass_over(run, model, dataset.n_rows, codes, n_folds, cell)
    for block in folded_blocks(dataset, 0, dataset.n_rows, work.reading):
        scaled = np.asarray(model.scaling.apply(block.X))
        rows, cells = model.cells.tree.route(scaled)
        if (own := np.sort(rows[cells == cell])).size:
            weights = None if block.weights is None else block.weights[own]
            ends = [0, *np.searchsorted(own, [each.stop for each in block.slices]).tolist()]
            slices = [slice(*each) for each in pairwise(ends)]
            work.add(FoldedBlock(scaled[own], block.targets[own], weights, slices))
            n_rows += own.size
    sums = work.sums()
    arrays = {
        f"{name}{suffix}": values
        for suffix, moments in sums.items()
        for name, values in moments.arrays().items()
    }
    return PartResult({"n_rows": n_rows}, reduce(add, sums.values()).arrays() | arrays)


def _solve(run: Run, name: str, change: _Change) -> dict[str, Any]:
    """Store the moments and the model of a version; return figures and reasons for a refresh."""
    # dask may run a task twice at the same time.
    place, model = f"{name}/{uuid.uuid4().hex}", read_full_model(run, change.base)
    solve = _solve_network if model.cells is None else _solve_cells
    solved, figures = solve(run, model, place, change)
    judging = (change.action, change.source, change.place, change.content)
    held_out = calibrate_again(run, place, change.base, *judging)
    replace(
        solved,
        target_range=model.range_with(change.target_range),
        calibration=Calibration.of(held_out or {}) or model.calibration,
    ).write(run.group(model_name(place)))
    return {
        "place": place,
        "held_out": held_out,
        "fitting_error": solved.fitting_error,
        "spectral_risk": solved.spectral_risk,
        "reasons": [],
        **figures,
    }


def _solve_network(
    run: Run, model: Model, place: str | None, change: _Change
) -> tuple[Model, dict[str, Any]]:
    """Return one network and its figures; store the moments if given a `place`."""
    moments = _changed(run, change)
    if moments.total_weight == 0:
        raise _without_rows()
    if place is not None:
        write_sums(run, place, moments)
    # The forward selection runs on the CPU.
    placed = moments if model.params.prune else moments.on_device()
    system = full_system(run, placed, features=lambda: model.features)
    path = choose_kept(system, model.params, numbers=run.of_numbers)
    places = None if path is None else np.sort(path.chosen)
    kept, alpha = system.at(places), model.params.alpha
    network = describe_network(run, kept, kept.solve(alpha), alpha=alpha)
    solved = replace(
        model,
        basis=model.basis if places is None else model.basis[places],
        places=places,
        weights=network.weights,
        intercept=network.intercept,
        fitting_error=network.record["fitting_error"],
        spectral_risk=network.record["spectral_risk"],
    )
    return solved, {"weight": moments.total_weight, **network.record}


def _solve_cells(
    run: Run, model: Model, place: str | None, change: _Change
) -> tuple[Model, dict[str, Any]]:
    """Return the networks of all cells and their figures; store the moments if given a `place`."""
    assert model.cells is not None
    alphas, solutions, of_targets = run.read("cells/alphas"), [], []
    targets, normalized = read_cell_targets(run, model.n_targets), model.params.normalized
    penalty_of = penalty_named(model.params.penalty).of
    for cell, alpha in enumerate(alphas.tolist()):
        moments = _changed(run, change, cell, constant=math.isnan(alpha))
        if place is not None:
            run.write_part(place, cell, {}, moments.arrays())
        shares = run.read("cells/shares", *model.cells.starts[cell : cell + 2].tolist())
        penalty = penalty_of(partial(model.features_of_cell, cell), shares)
        how = {"alpha": alpha, "normalized": normalized, "penalty": penalty}
        # The system may be singular.
        solution = SolvedCell.of(moments, targets, **how) or SolvedCell.constant(moments)
        solutions.append(solution.arrays())
        of_targets.append(moments.target_products)
    solved, total = SolvedCells.joined(solutions), np.sum(of_targets, axis=0)
    empty = np.array([products[0, 0] == 0 for products in of_targets])
    if empty.all():
        raise _without_rows()
    weight = float(total[0, 0])
    further = 0 if change.cell_rows is None else change.cell_rows
    changed = replace(
        model,
        weights=solved.weights,
        cells=replace(
            model.cells,
            # A cell without remaining rows predicts the mean of all rows.
            intercepts=np.where(empty[:, None], total[0, 1:] / weight, solved.intercepts),
            n_rows=model.cells.n_rows + (-further if change.action == FORGET else further),
        ),
        fitting_error=solved.fitting_error,
        spectral_risk=solved.spectral_risk,
    )
    # Each cell has its own alpha.
    figures: dict[str, Any] = {"weight": weight, "alpha": None, "reciprocal_condition": None}
    if n_singular := np.count_nonzero(np.isfinite(alphas) & np.isnan(solved.alphas) & ~empty):
        few = f"cells with too few rows for a network ({n_singular})"
        figures["reasons"] = [f"{few} predict the mean of their targets"]
    if model.target_names is not None:
        spread = np.maximum(total.diagonal()[1:] - total[0, 1:] ** 2 / weight, 0.0)
        unexplained = unexplained_share(solved.residuals.sum(axis=0), spread)
        figures["training_r2"] = (1.0 - unexplained).tolist()
    return changed, figures


def _changed(
    run: Run, change: _Change, cell: int | None = None, *, constant: bool = False
) -> Moments:
    """Return the moments of a network with new rows, or without forgotten ones."""
    moments = _read_moments(run, change.base, cell)
    new = _read_moments(change.source, change.place, cell, change.suffix)
    if constant:
        # Constant scores have no activations.
        new = replace(new, packed_gram=0 * new.packed_gram, products=0 * new.products)
    if change.action != FORGET:
        moments += new
    elif new.total_weight:
        moments = _without(moments, new)
    return moments


def _without(moments: Moments, new: Moments) -> Moments:
    """Subtract the moments of some rows in place; return exactly 0 if no rows are left."""
    before = moments.total_weight
    moments -= new
    has_rows = moments.total_weight > _LEFT_OVER * before
    left, sizes = (
        np.concatenate([each.diagonal(), each.target_products.diagonal()])
        for each in (moments, new)
    )
    if has_rows:
        # The first test also detects values that are small relative to the sums before.
        wrong = (left < -_LEFT_OVER * sizes).any() or not are_sums_of_rows(
            moments, new, tolerance=_LEFT_OVER
        )
    else:
        wrong = (np.abs(left) > _LEFT_OVER * np.maximum(sizes, sizes.max())).any()
    if wrong:
        raise DataError(
            "the rows to forget cannot all be in the run: the sums that are left would not be sums "
            "over rows.",
            "Forget rows that were fitted or added before, with the same labels and weights.",
        )
    return moments if has_rows else Moments.zeros(moments.n_basis, len(moments.cross))


def _without_rows() -> DataError:
    return DataError("no rows would be left.", "Forget fewer rows, or fit again.")


def _read_moments(run: Run, place: str, cell: int | None, suffix: str = "") -> Moments:
    """Return the moments at a place, of all rows or of one cell; place "" has those of the fit."""
    if cell is None:
        return read_sums(run, place or "moments", suffix=suffix)
    names = Moments.array_names()
    found = (run.read_part(place or FITS, cell, name + suffix) for name in names)
    return Moments(*found)
