"""The change of a version: sums of rows that join or leave, networks, and held-out figures.

New rows are judged by the networks without each row, which follow from the factor of their system.
"""

import math
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import DataError, IllConditionedError
from dask_nrbfn.numeric.calibration import MOST_SCORES, Calibration, DrawnRows, ScoreDraw
from dask_nrbfn.numeric.cell_solution import SolvedCell, SolvedCells, cell_system
from dask_nrbfn.numeric.device import to_host
from dask_nrbfn.numeric.folds import FoldedBlock
from dask_nrbfn.numeric.held_out import (
    LabelSums,
    ResidualSums,
    scores_left_out,
    unexplained_share,
)
from dask_nrbfn.numeric.moments import Moments, are_sums_of_rows, check_moments, with_rounding
from dask_nrbfn.numeric.penalties import Ridge, RidgeTerms
from dask_nrbfn.numeric.products import times_symmetric
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.ridge import RidgeSystem
from dask_nrbfn.numeric.rows import Rows
from dask_nrbfn.numeric.targets import Targets
from dask_nrbfn.numeric.threads import blas_threads
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.parts import PartResult, Reduction, SumRecord, map_parts, reduce_parts, run_task
from dask_nrbfn.scorer import Scorer
from dask_nrbfn.stages import judged_record
from dask_nrbfn.stages.basis import BASIS_VALUES
from dask_nrbfn.stages.cells import ALPHAS, CELL_SHARES, CELLS, FITS, read_cell_targets
from dask_nrbfn.stages.model import read_model
from dask_nrbfn.stages.moments import (
    WIDTH,
    MomentsPass,
    read_sums,
    read_targets,
    rows_of_block,
    write_sums,
)
from dask_nrbfn.stages.validation import calibration_figures, read_draw, write_draw
from dask_nrbfn.stages.weights import choose_kept, describe_network, full_system
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import PartLayout, block_rows
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import ADD, FORGET, MERGE, Run, model_name
from dask_nrbfn.weighting import Reading, RowWeights, folded_blocks

# Largest rounding error of a difference, relative to the subtracted sums. A network with a smaller
# share of its weight left has lost all rows.
_LEFT_OVER = 1e-9

# If forgotten rows weigh more than this many times the rows that are left, the weights are solved
# twice, and rounding may change the scores of the rows by this share. Where rows of weight 1e6
# joined and left, and more was found, scores were wrong by 0.1 to 2 % of their range.
_HEAVIER, _MOST_MOVED, _LEAST_NORM = 100.0, 1e-4, 1e-300

# The most new rows that are judged, and the most values of their features: 128 MiB. With r basis
# rows, n rows take n r^2 flops for the moments and a judged row r^2.
_JUDGED_ROWS, _JUDGED_VALUES = 10_000, 2**24

# Rows whose targets are read together.
_READ_ROWS = 2**20


class Change(NamedTuple):
    """Rows that join the version at `base`, or leave it.

    source, place: the run and the place of the moments of these rows, see `_read_moments`.
    cell_rows: number of rows in each cell. target_range: range (2, q) of added numeric targets.
    dataset, codes: the rows, and the code in the model of each of their classes; None in a merge.
    """

    action: str
    base: str
    source: Run
    place: str
    cell_rows: NDArray[np.int64] | None = None
    target_range: Floats | None = None
    dataset: Dataset | None = None
    codes: list[int] | None = None


def read_full_model(run: Run, place: str) -> Model:
    """Return the model of a version with all basis rows of the run; pruned rows have weight 0."""
    model = read_model(run, place)
    if model.places is None:
        return model
    basis = model.scaling.apply(BASIS_VALUES.read(run))
    weights = np.zeros((model.n_targets, basis.shape[0]))
    weights[:, model.places] = model.weights
    return replace(model, basis=basis, weights=weights, places=None)


def with_sums(change: Change, model: Model, engine: Engine) -> Change:
    """Return a change after its moments were stored in its place; each cell has a part."""
    run, dataset, stage = change.source, change.dataset, change.place
    assert dataset is not None
    context = change.base, change.codes
    if model.cells is None:
        layout = PartLayout.of(dataset.n_rows, run.spec.params.n_parts)
        finish = partial(_store, stage)
        reduction = Reduction(stage, _begin_sums, {"": Moments}, layout, context, finish)
        reduce_parts(run, dataset, engine, reduction)
    else:
        # Every cell reads all new rows: that takes much less time than its moments.
        units = [(*context, cell) for cell in range(model.n_cells)]
        records = map_parts(run, dataset, engine, stage=stage, task=_sum_cell, units=units)
        change = change._replace(cell_rows=np.array([record["n_rows"] for record in records]))
    # Forgotten rows leave the range of the targets as it is.
    if dataset.of_numbers and change.action == ADD:
        added = run_task(engine, Dataset.target_range, dataset, label=change.action)
        change = change._replace(target_range=added)
    return change


def _store(stage: str, run: Run, record: SumRecord, sums: dict[str, Moments]) -> None:
    check_moments(sums[""], record.weight, normalized=run.spec.params.normalized)
    write_sums(run, stage, sums[""])


def _begin_sums(
    run: Run, dataset: Dataset, start: int, stop: int, base: str, codes: list[int] | None
) -> MomentsPass:
    return _pass_over(run, read_full_model(run, base), stop - start, codes)


def _pass_over(
    run: Run, model: Model, n_rows: int, codes: list[int] | None, cell: int | None = None
) -> MomentsPass:
    """Return a pass over new rows of one network or of a cell, with the class weights of a fit."""
    features = (model.features if cell is None else model.features_of_cell(cell)).on_device()
    weighting, size = _weighting(run, model, codes), rows_of_block(features.basis)
    reading = Reading(block_rows=size, weighting=weighting, codes_in_model=codes)
    return MomentsPass(features, reading, targets=_targets_of(run, model), n_rows=n_rows)


def _weighting(run: Run, model: Model, codes: list[int] | None) -> RowWeights:
    given = (WIDTH if model.cells is None else CELLS).recorded(run).class_weights
    return RowWeights(None if given is None else np.array(given)[codes])


def _targets_of(run: Run, model: Model) -> Targets:
    return (read_targets if model.cells is None else read_cell_targets)(run, model.n_targets)


def _sum_cell(
    run: Run, dataset: Dataset, base: str, codes: list[int] | None, cell: int
) -> PartResult:
    """Return the moments and the number of the new rows of a cell."""
    model, n_rows = read_model(run, base), 0
    assert model.cells is not None
    work = _pass_over(run, model, dataset.n_rows, codes, cell)
    for block in folded_blocks(dataset, 0, dataset.n_rows, work.reading):
        scaled = np.asarray(model.scaling.apply(block.X))
        rows, cells = model.cells.tree.route(scaled)
        if (own := rows[cells == cell]).size:
            weights = None if block.weights is None else block.weights[own]
            work.add(FoldedBlock(scaled[own], block.targets[own], weights, [slice(0, own.size)]))
            n_rows += own.size
    (moments,) = work.sums().values()
    return PartResult({"n_rows": n_rows}, moments.arrays())


class _NewRows(NamedTuple):
    """Drawn new rows, by the codes of their classes; `counts` (K,) are those of all new rows."""

    drawn: DrawnRows
    counts: Floats
    numbers: NDArray[np.int64]
    X: Rows
    targets: NDArray[Any]
    weights: Floats


def most_judged(run: Run, dataset: Dataset, n_targets: int) -> int:
    """Return the largest number of rows that are judged; 0 if a run has no held-out figures."""
    if ("residual_sums" if run.of_numbers else "log_slope") not in judged_record(run.stages):
        return 0
    return min(_JUDGED_ROWS, _JUDGED_VALUES // dataset.row_width, MOST_SCORES // n_targets)


def _draw_rows(run: Run, model: Model, change: Change) -> _NewRows | None:
    """Return the new rows that are judged; None if the run has no held-out figures."""
    dataset, codes = change.dataset, change.codes
    if change.action != ADD or dataset is None:
        return None
    most = most_judged(run, dataset, model.n_targets)
    if not most:
        return None
    # Numbers are drawn like rows of one class.
    code_of = np.array([0] if codes is None else codes)
    counts = np.zeros(1 if codes is None else model.n_targets)
    counts[code_of] = dataset.n_rows if codes is None else dataset.class_counts
    seed = run.spec.params.random_state + len(run.versions) + 1
    drawn, found = DrawnRows.of_counts(counts, seed=seed, most_scores=most * len(counts)), []
    for start in range(0, dataset.n_rows, _READ_ROWS):
        rows = np.arange(start, min(start + _READ_ROWS, dataset.n_rows))
        own = 0 * rows if codes is None else dataset.take_targets(rows)
        found.append(rows[drawn.places(rows, code_of[own])])
    numbers = np.concatenate(found)
    targets, given = dataset.take_targets(numbers), dataset.take_weights(numbers)
    weights = np.asarray(_weighting(run, model, codes).of_rows(targets, given))
    targets = targets if codes is None else code_of[targets]
    return _NewRows(drawn, counts, numbers, dataset.take(numbers), targets, weights)


def _leverages(system: RidgeSystem, alpha: float, features: RadialFeatures, X: Rows) -> Floats:
    """Return the leverages of rows (m,) in a solved system, whose gram matrix is lost."""
    if not X.shape[0]:
        return np.empty(0)
    factor, found, size = system.factored(alpha), [], block_rows(features.n_basis)
    for start in range(0, X.shape[0], size):
        Phi = features.activations(X[start : start + size], threads=blas_threads())
        found.append(factor.leverages(to_host(Phi)))
    return np.concatenate(found)


def _judged(
    run: Run, change: Change, solved: Model, rows: _NewRows, leverages: Floats
) -> ScoreDraw | ResidualSums:
    """Return the scores of drawn rows by the networks without each row, or their residuals."""
    targets, place, name = rows.targets, change.place, "target_products"
    # The schema has made the features already.
    scores = Scorer(replace(solved, schema=None)).table(rows.X)
    aims = targets if run.of_numbers else np.eye(solved.n_targets)[targets]
    scores = scores_left_out(scores, aims, leverages * rows.weights)
    weight, *of_classes = (
        run.read(f"{place}/{name}")[0]
        if solved.cells is None
        else sum(run.read_part(place, cell, name)[0] for cell in range(solved.n_cells))
    )
    if run.of_numbers:
        shifted, drawn = _targets_of(run, solved).shifted, float(rows.weights.sum())
        weights = rows.weights * (weight / drawn if drawn else 0.0)
        residuals = shifted(solved.clipped(scores))[:, None]
        return ResidualSums.from_block(residuals, shifted(targets), weights)
    draw = rows.drawn.take(rows.numbers, scores, targets, rows.weights)
    return replace(draw, totals=np.stack([[rows.counts, of_classes]]))


def solve_version(run: Run, name: str, change: Change) -> dict[str, Any]:
    """Store the moments and the model of a version; return figures and reasons for a refresh.

    "residual_sums" are those of new rows, if the targets are numbers.
    """
    # dask may run a task twice at the same time.
    place, model = f"{name}/{uuid.uuid4().hex}", read_full_model(run, change.base)
    rows = _draw_rows(run, model, change)
    solve = _solve_network if model.cells is None else _solve_cells
    X = np.empty((0, model.n_features)) if rows is None else rows.X
    solved, leverages, figures = solve(run, model, place, change, X)
    solved = replace(solved, target_range=model.range_with(change.target_range))
    judged = None if rows is None else _judged(run, change, solved, rows, leverages)
    held_out = None
    if not isinstance(judged, ResidualSums):
        held_out = _calibrate_again(run, place, change, judged)
        solved = replace(solved, calibration=Calibration.of(held_out or {}) or model.calibration)
    solved.write(run.group(model_name(place)))
    return {
        "place": place,
        "held_out": held_out,
        "residual_sums": judged.to_record(0) if isinstance(judged, ResidualSums) else None,
        "fitting_error": solved.fitting_error,
        "spectral_risk": solved.spectral_risk,
        "reasons": [],
        **figures,
    }


def _calibrate_again(
    run: Run, place: str, change: Change, new: ScoreDraw | None
) -> dict[str, Any] | None:
    """Store the drawn scores of a version; return its held-out figures, None without scores."""
    draw = read_draw(run, change.base)
    if draw is None:
        return None
    if change.action == MERGE:
        further = read_draw(change.source, change.place)
        # Both runs have the rows of the fit.
        new = None if further is None else further.without(0)
    elif change.dataset is not None and change.action == FORGET:
        left = _version_of(run, draw, change.dataset.content)
        draw = draw if left is None else draw.without(left)
    if new is not None:
        draw = (draw + new.of_version(len(run.versions) + 1)).thinned()
    write_draw(run, place, draw)
    temperature = judged_record(run.stages)["temperature"]
    figures = calibration_figures(draw, "squared", temperature=temperature)
    labels = LabelSums.from_block(draw.scores[:, None], draw.codes, draw.weights)
    write_array(run.group(place), "confusion", labels.confusion[0], "class", "label")
    return {**labels.figures(0), **figures, "n_rows": round(draw.totals[:, 0].sum())}


def _version_of(run: Run, draw: ScoreDraw, content: str) -> int | None:
    """Return the last version of drawn rows that are those of a digest; None if there is none."""
    found = None
    for version in run.versions:
        members = [(each["content"], each.get("times", 1)) for each in version["members"]]
        if members == [(content, 1)] and version["version"] in draw.versions:
            found = version["version"]
    return found


def residual_figures(run: Run, change: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the held-out figures of numbers after a change; None without any."""
    fitted = judged_record(run.stages)
    if "residual_sums" not in fitted:
        return None
    sums, n_rows = [ResidualSums.of_record(fitted["residual_sums"])], fitted["n_rows"]
    for member in run.members_after(change).values():
        if "residual_sums" in member and member["times"] > 0:
            own = ResidualSums.of_record(member["residual_sums"])
            sums += [own] * member["times"]
            n_rows += member["n_rows"] * member["times"]
    return {**reduce(add, sums).figures(0), "n_rows": n_rows}


def _solve_network(
    run: Run, model: Model, place: str, change: Change, X: Rows
) -> tuple[Model, Floats, dict[str, Any]]:
    """Store the moments of one network; return it, the leverages of rows, and its figures."""
    moments = _changed(run, change)
    if moments.total_weight == 0:
        raise _without_rows()
    write_sums(run, place, moments)
    alpha = model.params.chosen_alpha

    def system_of(moments: Moments) -> RidgeSystem:
        return full_system(run, moments, features=lambda: model.features)

    _check_rounding(change, moments, system_of, alpha)
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
        fitting_error=network.record.fitting_error,
        spectral_risk=network.record.spectral_risk,
    )
    leverages = _leverages(kept, alpha, solved.features.on_device(), X)
    return solved, leverages, {"weight": moments.total_weight, **network.record.to_dict()}


def _solve_cells(
    run: Run, model: Model, place: str, change: Change, X: Rows
) -> tuple[Model, Floats, dict[str, Any]]:
    """Store the moments of all cells; return their networks, leverages of rows, and figures."""
    assert model.cells is not None
    alphas, solutions, of_targets = ALPHAS.read(run), [], []
    scaled, leverages = np.asarray(model.scaling.apply(X)), np.zeros(X.shape[0])
    rows, routed = model.cells.tree.route(scaled)
    targets, normalized = read_cell_targets(run, model.n_targets), model.params.normalized
    ridge = Ridge.in_params(model.params)
    for cell, alpha in enumerate(alphas.tolist()):
        moments = _changed(run, change, cell, constant=math.isnan(alpha))
        run.write_part(place, cell, {}, moments.arrays())
        start, stop = model.cells.starts[cell : cell + 2].tolist()
        features = partial(model.features_of_cell, cell)
        terms = RidgeTerms(features=features, shares=partial(CELL_SHARES.read, run, start, stop))
        system_of = partial(
            cell_system, targets=targets, ridge=ridge, terms=terms, normalized=normalized
        )
        if not math.isnan(alpha):
            _check_rounding(change, moments, system_of, alpha, cell)
        # The system may be singular.
        solution = SolvedCell.of(moments, system_of, alpha)
        solution = solution or SolvedCell.constant(moments)
        solutions.append(solution.arrays())
        of_targets.append(moments.target_products)
        own = rows[routed == cell]
        if solution.is_constant:
            leverages[own] = 1.0 / (moments.total_weight or 1.0)
        elif own.size:
            leverages[own] = _leverages(system_of(moments), alpha, features(), scaled[own])
    solved, total = SolvedCells.joined(solutions), np.sum(of_targets, axis=0)
    empty = np.array([products[0, 0] == 0 for products in of_targets])
    if empty.all():
        raise _without_rows()
    weight = float(total[0, 0])
    further = change.cell_rows
    assert further is not None
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
    return changed, leverages, figures


def _changed(
    run: Run, change: Change, cell: int | None = None, *, constant: bool = False
) -> Moments:
    """Return the moments of a network with new rows, or without forgotten ones."""
    moments = _read_moments(run, change.base, cell)
    new = _read_moments(change.source, change.place, cell)
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
    system_of: Callable[[Moments], RidgeSystem],
    alpha: float,
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
        system, other = system_of(left), system_of(with_rounding(left, taken))
        step = other.solve(alpha).weights - system.solve(alpha).weights
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


def _read_moments(run: Run, place: str, cell: int | None) -> Moments:
    """Return the moments at a place, of all rows or of one cell; place "" has those of the fit."""
    if cell is None:
        return read_sums(run, place or "moments")
    names = Moments.array_names()
    return Moments(*(run.read_part(place or FITS, cell, name) for name in names))
