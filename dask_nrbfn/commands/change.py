"""The change of a version: sums of rows that join or leave, and the networks with these sums."""

import math
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import pairwise
from operator import add
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.commands.held_out import (
    HALVES,
    JudgingPass,
    calibrate_again,
    is_judged,
    n_halves,
    read_full_model,
    reading_of,
    solution_arrays,
)
from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import (
    DataError,
    IllConditionedError,
)
from dask_nrbfn.numeric.calibration import Calibration, ScoreDraw
from dask_nrbfn.numeric.cell_solution import SolvedCell, SolvedCells
from dask_nrbfn.numeric.folds import FoldedBlock
from dask_nrbfn.numeric.held_out import ResidualSums, unexplained_share
from dask_nrbfn.numeric.moments import (
    Moments,
    are_sums_of_rows,
    check_moments,
    with_rounding,
)
from dask_nrbfn.numeric.penalties import penalty_named
from dask_nrbfn.numeric.products import times_symmetric
from dask_nrbfn.numeric.ridge import RidgeSystem
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
    read_sums,
    read_targets,
    rows_of_block,
    write_sums,
)
from dask_nrbfn.stages.validation import write_draw
from dask_nrbfn.stages.weights import choose_kept, describe_network, full_system
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import PartLayout
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import ADD, FORGET, Run, member_of, model_name
from dask_nrbfn.weighting import folded_blocks

# Largest rounding error of a difference, relative to the subtracted sums. A network with a smaller
# share of its weight left has lost all rows.
_LEFT_OVER = 1e-9


# If forgotten rows weigh more than this many times the rows that are left, the weights are solved
# twice, and rounding may change the scores of the rows by this share. Where rows of weight 1e6
# joined and left, and more was found, scores were wrong by 0.1 to 2 % of their range.
_HEAVIER, _MOST_MOVED, _LEAST_NORM = 100.0, 1e-4, 1e-300


class Change(NamedTuple):
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
class JoiningRows:
    """New rows of a version, or rows that leave it; their sums are stored in a `stage`."""

    run: Run
    dataset: Dataset
    engine: Engine
    model: Model
    base: str
    action: str
    version: int
    stage: str
    codes: list[int] | None

    @property
    def n_folds(self) -> int:
        """The number of folds in which the rows are held out."""
        return n_halves(self.run, self.dataset) if self.action == ADD else 1


def sum_rows(rows: JoiningRows) -> Change:
    """Store the moments of new rows, and of their halves, in a stage; each cell has a part."""
    run, dataset, engine, stage = rows.run, rows.dataset, rows.engine, rows.stage
    context, cell_rows, added = (rows.base, rows.codes, rows.n_folds), None, None
    if rows.model.cells is None:
        layout, finish = PartLayout.of(dataset.n_rows, run.params.n_parts), partial(_store, stage)
        kinds = dict.fromkeys(fold_suffixes(rows.n_folds), Moments)
        reduce_parts(
            run, dataset, engine, Reduction(stage, _begin_sums, kinds, layout, context, finish)
        )
    else:
        # Every cell reads all new rows: that takes much less time than its moments.
        units = [(*context, cell) for cell in range(rows.model.n_cells)]
        records = map_parts(run, dataset, engine, stage=stage, task=_sum_cell, units=units)
        cell_rows = np.array([record["n_rows"] for record in records])
    # Forgotten rows leave the range of the targets as it is.
    if dataset.of_numbers and rows.action == ADD:
        added = run_task(engine, Dataset.target_range, dataset, label=rows.action)
    return Change(rows.action, rows.base, run, stage, cell_rows, added, content=dataset.content)


def judged_member(rows: JoiningRows) -> dict[str, Any]:
    """Return the record of new rows; those that join are judged by networks without them."""
    run, dataset, engine, member = rows.run, rows.dataset, rows.engine, member_of(rows.dataset)
    if rows.action == FORGET or not is_judged(run):
        return member
    if rows.n_folds > 1:
        units = [(rows.base, rows.stage, fold) for fold in range(rows.n_folds)]
        halves = f"{rows.stage}{HALVES}"
        map_parts(run, dataset, engine, stage=halves, task=_solve_without, units=units)
    layout = PartLayout.of(dataset.n_rows, run.params.n_parts)
    kind: type[RowSum] = ResidualSums if run.of_numbers else ScoreDraw
    context = rows.base, rows.stage, rows.codes, rows.version, rows.n_folds
    reduction = Reduction(f"{rows.stage}-judged", JudgingPass, {"": kind}, layout, context)
    reduce_parts(run, dataset, engine, reduction)
    if run.of_numbers:
        return member | {"residual_sums": read_total(run, reduction).to_record(0)}
    run_task(engine, _store_draw, run, rows.stage, reduction, label=rows.action)
    return member


def _store_draw(run: Run, stage: str, reduction: Reduction) -> None:
    write_draw(run, stage, read_total(run, reduction))


def _solve_without(run: Run, dataset: Dataset, base: str, stage: str, fold: int) -> PartResult:
    """Return the network of a version and of the new rows outside one half."""
    other = fold_suffixes(2)[1 - fold]
    model, change = read_full_model(run, base), Change(ADD, base, run, stage, suffix=other)
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


def solve_version(run: Run, name: str, change: Change) -> dict[str, Any]:
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
    run: Run, model: Model, place: str | None, change: Change
) -> tuple[Model, dict[str, Any]]:
    """Return one network and its figures; store the moments if given a `place`."""
    moments = _changed(run, change)
    if moments.total_weight == 0:
        raise _without_rows()
    if place is not None:
        write_sums(run, place, moments)
    alpha = model.params.alpha

    def system_of(moments: Moments) -> RidgeSystem:
        return full_system(run, moments, features=lambda: model.features)

    def solved_again(moments: Moments) -> tuple[RidgeSystem, Floats]:
        system = system_of(moments)
        return system, system.solve(alpha).weights

    _check_rounding(change, moments, solved_again)
    # The forward selection runs on the CPU.
    system = system_of(moments if model.params.prune else moments.on_device())
    path = choose_kept(system, model.params, numbers=run.of_numbers)
    places = None if path is None else np.sort(path.chosen)
    kept = system.at(places)
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
    run: Run, model: Model, place: str | None, change: Change
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

        def solved_again(
            moments: Moments, how: dict[str, Any] = how
        ) -> tuple[RidgeSystem, Floats] | None:
            solution = SolvedCell.of(moments, targets, **how)
            system = RidgeSystem.of(moments, targets, normalized=normalized)
            return None if solution is None else (system, solution.weights)

        if not math.isnan(alpha):
            _check_rounding(change, moments, solved_again, cell)
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
    run: Run, change: Change, cell: int | None = None, *, constant: bool = False
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


def _check_rounding(
    change: Change,
    left: Moments,
    solve: Callable[[Moments], tuple[RidgeSystem, Floats] | None],
    cell: int | None = None,
) -> None:
    """Raise DataError if the rounding of heavier rows that were forgotten changes the scores."""
    if change.action != FORGET or left.total_weight == 0:
        return
    taken = _read_moments(change.source, change.place, cell)
    heavier = taken.total_weight / left.total_weight
    if heavier <= _HEAVIER:
        return
    moved = math.inf
    with suppress(IllConditionedError):
        found, other = solve(left), solve(with_rounding(left, taken))
        if found is not None and other is not None:
            system, weights = found
            step = other[1] - weights
            squares = float(np.sum(times_symmetric(step, system.gram) * step))
            moved = math.sqrt(max(squares, 0.0) / max(system.target_norm, _LEAST_NORM))
    if moved > _MOST_MOVED:
        raise DataError(
            f"the rows to forget weigh {heavier:.3g} times as much as the rows that are left, so "
            "rounding changes most digits of the weights.",
            "Refresh the run, or fit again, with the rows that are left.",
        )


def _without_rows() -> DataError:
    return DataError("no rows would be left.", "Forget fewer rows, or fit again.")


def _read_moments(run: Run, place: str, cell: int | None, suffix: str = "") -> Moments:
    """Return the moments at a place, of all rows or of one cell; place "" has those of the fit."""
    if cell is None:
        return read_sums(run, place or "moments", suffix=suffix)
    names = Moments.array_names()
    found = (run.read_part(place or FITS, cell, name + suffix) for name in names)
    return Moments(*found)
