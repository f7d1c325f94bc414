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
from dask_nrbfn.numeric.intervals import MOST_RESIDUALS
from dask_nrbfn.numeric.moments import Moments, are_sums_of_rows, check_moments, with_rounding
from dask_nrbfn.numeric.penalties import Ridge, RidgeTerms
from dask_nrbfn.numeric.products import times_symmetric
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.ridge import RidgeSystem
from dask_nrbfn.numeric.rows import Rows
from dask_nrbfn.numeric.targets import Targets
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.parts import PartResult, Reduction, SumRecord, map_parts, reduce_parts, run_task
from dask_nrbfn.scorer import Scorer
from dask_nrbfn.stages import judged_record
from dask_nrbfn.stages.basis import BASIS_VALUES
from dask_nrbfn.stages.cells import ALPHAS, CELL_SHARES, CELLS, FITS, read_cell_targets
from dask_nrbfn.stages.model import intervals_of, read_model
from dask_nrbfn.stages.moments import (
    STORED_MOMENTS,
    WIDTH,
    MomentsPass,
    read_sums,
    read_targets,
    rows_of_block,
)
from dask_nrbfn.stages.validation import (
    DRAW,
    calibration_figures,
    confusion_in,
    read_draw,
)
from dask_nrbfn.stages.weights import choose_kept, describe_network, full_system
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import PartLayout, block_rows
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import ADD, FORGET, MERGE, Run, model_name
from dask_nrbfn.weighting import RowReading, RowWeights, folded_blocks

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


def sum_rows(change: Change, model: Model, engine: Engine) -> Change:
    """Store the moments of the rows in the place of a change; return it with counts and range."""
    run, dataset, stage = change.source, change.dataset, change.place
    assert dataset is not None
    if model.cells is None:
        reduction = Reduction(
            stage,
            _begin_sums,
            {"": Moments},
            PartLayout.of(dataset.n_rows, run.spec.params.n_parts),
            others=(change.base, change.codes),
            finish=partial(_store_sums, stage),
        )
        reduce_parts(run, dataset, engine, reduction)
    else:
        # Every cell is a part that reads all new rows, much faster than it sums its moments.
        units = [(change.base, change.codes, cell) for cell in range(model.n_cells)]
        records = map_parts(run, dataset, engine, stage=stage, task=_sum_cell, units=units)
        change = change._replace(cell_rows=np.array([record["n_rows"] for record in records]))
    # Forgotten rows leave the range of the targets as it is.
    if dataset.of_numbers and change.action == ADD:
        added = run_task(engine, Dataset.target_range, dataset, label=change.action)
        change = change._replace(target_range=added)
    return change


def _begin_sums(
    run: Run, dataset: Dataset, start: int, stop: int, base: str, codes: list[int] | None
) -> MomentsPass:
    model = read_full_model(run, base)
    return _pass_over(run, model, model.features, codes, stop - start)


def _store_sums(stage: str, run: Run, record: SumRecord, sums: dict[str, Moments]) -> None:
    check_moments(sums[""], record.weight, normalized=run.spec.params.normalized)
    STORED_MOMENTS.write(run, stage, sums[""].arrays())


def _sum_cell(
    run: Run, dataset: Dataset, base: str, codes: list[int] | None, cell: int
) -> PartResult:
    """Return the moments and the number of the new rows of a cell."""
    model, n_rows = read_model(run, base), 0
    assert model.cells is not None
    sums = _pass_over(run, model, model.features_of_cell(cell), codes, dataset.n_rows)
    for block in folded_blocks(dataset, 0, dataset.n_rows, sums.reading):
        scaled = np.asarray(model.scaling.apply(block.X))
        rows, cells = model.cells.tree.route(scaled)
        own = rows[cells == cell]
        if own.size:
            weights = None if block.weights is None else block.weights[own]
            sums.add(FoldedBlock(scaled[own], block.targets[own], weights, [slice(0, own.size)]))
            n_rows += own.size
    return PartResult({"n_rows": n_rows}, sums.sums()[""].arrays())


def _pass_over(
    run: Run, model: Model, features: RadialFeatures, codes: list[int] | None, n_rows: int
) -> MomentsPass:
    """Return a pass over new rows with the features of a network or of a cell."""
    features = features.on_device()
    reading = RowReading(
        block_rows=rows_of_block(features.basis),
        weighting=_class_weights(run, model, codes),
        codes_in_model=codes,
    )
    return MomentsPass(features, reading, targets=_targets_of(run, model), n_rows=n_rows)


def _class_weights(run: Run, model: Model, codes: list[int] | None) -> RowWeights:
    """Return the class weights of the fit for the classes of new rows."""
    stage = WIDTH if model.cells is None else CELLS
    of_fit = stage.recorded(run).class_weights
    return RowWeights(None if of_fit is None else np.array(of_fit)[codes])


def _targets_of(run: Run, model: Model) -> Targets:
    if model.cells is None:
        return read_targets(run, model.n_targets)
    return read_cell_targets(run, model.n_targets)


class _Solved(NamedTuple):
    """The model of a version, the leverages (m,) of drawn new rows, and the figures to record."""

    model: Model
    leverages: Floats
    figures: dict[str, Any]


def solve_version(run: Run, name: str, change: Change) -> dict[str, Any]:
    """Store the moments and the model of a version; return figures and reasons for a refresh.

    "residual_sums" are those of new rows, if the targets are numbers.
    """
    # dask may run a task twice at the same time.
    place = f"{name}/{uuid.uuid4().hex}"
    before = read_full_model(run, change.base)
    rows = _draw_rows(run, before, change)
    X = np.empty((0, before.n_features)) if rows is None else rows.X
    solve = _solve_network if before.cells is None else _solve_cells
    model, leverages, figures = solve(run, before, place, change, X)
    model = replace(model, target_range=before.range_with(change.target_range))
    held_out = residual_sums = new = None
    if rows is not None:
        judged = _judge(model, rows, leverages)
        new = _draw_scores(run, model, change, judged)
        if run.of_numbers:
            residual_sums = _residuals(run, model, change, judged).to_record(0)
    draw = _changed_draw(run, place, change, new)
    if draw is not None:
        if not run.of_numbers:
            held_out = _calibrate_again(run, place, draw)
            model = replace(model, calibration=Calibration.of(held_out))
        model = replace(model, intervals=intervals_of(run, draw, model.calibration))
    model.write(run.group(model_name(place)))
    return {
        "place": place,
        "held_out": held_out,
        "residual_sums": residual_sums,
        "fitting_error": model.fitting_error,
        "spectral_risk": model.spectral_risk,
        "reasons": [],
        **figures,
    }


def _solve_network(run: Run, model: Model, place: str, change: Change, X: Rows) -> _Solved:
    """Store the moments of one network, and solve it; X are the drawn new rows."""
    moments = _changed_moments(run, change)
    if moments.total_weight == 0:
        raise _no_rows_left()
    STORED_MOMENTS.write(run, place, moments.arrays())
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
    figures = {"weight": moments.total_weight, **network.record.to_dict()}
    return _Solved(solved, leverages, figures)


def _solve_cells(run: Run, model: Model, place: str, change: Change, X: Rows) -> _Solved:
    """Store the moments of all cells, and solve their networks; X are the drawn new rows."""
    assert model.cells is not None
    scaled, leverages = np.asarray(model.scaling.apply(X)), np.zeros(X.shape[0])
    rows, cells = model.cells.tree.route(scaled)
    solutions, products = [], []
    for cell, alpha in enumerate(ALPHAS.read(run).tolist()):
        moments = _changed_moments(run, change, cell, constant=math.isnan(alpha))
        run.write_part(place, cell, {}, moments.arrays())
        features = partial(model.features_of_cell, cell)
        first, end = model.cells.starts[cell : cell + 2].tolist()
        system_of = partial(
            cell_system,
            targets=_targets_of(run, model),
            ridge=Ridge.in_params(model.params),
            terms=RidgeTerms(features=features, shares=partial(CELL_SHARES.read, run, first, end)),
            normalized=model.params.normalized,
        )
        if not math.isnan(alpha):
            _check_rounding(change, moments, system_of, alpha, cell)
        # The system may be singular.
        solution = SolvedCell.of(moments, system_of, alpha) or SolvedCell.constant(moments)
        solutions.append(solution)
        products.append(moments.target_products)
        own = rows[cells == cell]
        if own.size and solution.is_constant:
            leverages[own] = 1.0 / moments.total_weight
        elif own.size:
            leverages[own] = _leverages(system_of(moments), alpha, features(), scaled[own])
    changed, figures = _joined_cells(run, model, change, solutions, products)
    return _Solved(changed, leverages, figures)


def _joined_cells(
    run: Run,
    model: Model,
    change: Change,
    solutions: list[SolvedCell],
    products: list[Floats],
) -> tuple[Model, dict[str, Any]]:
    """Return the model of solved cells with the products (1 + q, 1 + q) of their targets."""
    assert model.cells is not None
    assert change.cell_rows is not None
    solved = SolvedCells.joined(solution.arrays() for solution in solutions)
    total = np.sum(products, axis=0)
    weight, sums, squares = float(total[0, 0]), total[0, 1:], total.diagonal()[1:]
    empty = np.array([of_cell[0, 0] == 0 for of_cell in products])
    if empty.all():
        raise _no_rows_left()
    cell_rows = -change.cell_rows if change.action == FORGET else change.cell_rows
    changed = replace(
        model,
        weights=solved.weights,
        cells=replace(
            model.cells,
            # A cell without remaining rows predicts the mean of all rows.
            intercepts=np.where(empty[:, None], sums / weight, solved.intercepts),
            n_rows=model.cells.n_rows + cell_rows,
        ),
        fitting_error=solved.fitting_error,
        spectral_risk=solved.spectral_risk,
    )
    # Each cell has its own alpha.
    figures: dict[str, Any] = {"weight": weight, "alpha": None, "reciprocal_condition": None}
    had_network = np.isfinite(ALPHAS.read(run))
    if n_singular := np.count_nonzero(had_network & np.isnan(solved.alphas) & ~empty):
        few = f"cells with too few rows for a network ({n_singular})"
        figures["reasons"] = [f"{few} predict the mean of their targets"]
    if model.target_names is not None:
        spread = np.maximum(squares - sums**2 / weight, 0.0)
        unexplained = unexplained_share(solved.residuals.sum(axis=0), spread)
        figures["training_r2"] = (1.0 - unexplained).tolist()
    return changed, figures


def _leverages(system: RidgeSystem, alpha: float, features: RadialFeatures, X: Rows) -> Floats:
    """Return the leverages of rows (m,) in a solved system, whose gram matrix is lost."""
    if not X.shape[0]:
        return np.empty(0)
    factor, leverages, size = system.factored(alpha), [], block_rows(features.n_basis)
    for start in range(0, X.shape[0], size):
        Phi = features.activations(X[start : start + size])
        leverages.append(factor.leverages(to_host(Phi)))
    return np.concatenate(leverages)


def _read_moments(run: Run, place: str, cell: int | None) -> Moments:
    """Return the moments at a place, of all rows or of one cell; place "" has those of the fit."""
    if cell is None:
        return read_sums(run, place or "moments")
    names = Moments.array_names()
    return Moments(*(run.read_part(place or FITS, cell, name) for name in names))


def _changed_moments(
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
    left, taken = _diagonals(moments), _diagonals(new)
    if not has_rows:
        fits = bool((np.abs(left) <= _LEFT_OVER * np.maximum(taken, taken.max())).all())
    elif (left < -_LEFT_OVER * taken).any():
        # Also detects values that are small relative to the sums before.
        fits = False
    else:
        fits = are_sums_of_rows(moments, new, tolerance=_LEFT_OVER)
    if not fits:
        raise DataError(
            "the rows to forget cannot all be in the run: the sums that are left would not be sums "
            "over rows.",
            "Forget rows that were fitted or added before, with the same labels and weights.",
        )
    return moments if has_rows else Moments.zeros(moments.n_basis, len(moments.cross))


def _diagonals(moments: Moments) -> Floats:
    """Return the squared sums over rows, of activations and of targets, (r + 1 + q,)."""
    return np.concatenate([moments.diagonal(), moments.target_products.diagonal()])


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
        system, rounded = system_of(left), system_of(with_rounding(left, taken))
        step = rounded.solve(alpha).weights - system.solve(alpha).weights
        squares = float(np.sum(times_symmetric(step, system.gram) * step))
        moved = math.sqrt(max(squares, 0.0) / max(system.target_norm, _LEAST_NORM))
    if moved > _MOST_MOVED:
        raise DataError(
            f"the rows to forget weigh {heavier:.3g} times as much as the rows that are left, so "
            "rounding changes most digits of the weights.",
            "Refresh the run, or fit again, with the rows that are left.",
        )


def _no_rows_left() -> DataError:
    return DataError("no rows would be left.", "Forget fewer rows, or fit again.")


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
    """Return the added rows that are judged; None if the run has no held-out figures."""
    dataset = change.dataset
    if change.action != ADD or dataset is None:
        return None
    most = most_judged(run, dataset, model.n_targets)
    if not most:
        return None
    if change.codes is None:
        # Numbers are drawn like rows of one class.
        counts = np.full(1, float(dataset.n_rows))
    else:
        code_of = np.array(change.codes)
        counts = np.zeros(model.n_targets)
        counts[code_of] = dataset.class_counts
    seed = run.spec.params.random_state + len(run.versions) + 1
    drawn = DrawnRows.of_counts(counts, seed=seed, most_scores=most * len(counts))
    found = []
    for start in range(0, dataset.n_rows, _READ_ROWS):
        rows = np.arange(start, min(start + _READ_ROWS, dataset.n_rows))
        codes = np.zeros_like(rows)
        if change.codes is not None:
            codes = code_of[dataset.take_targets(rows)]
        found.append(rows[drawn.places(rows, codes)])
    numbers = np.concatenate(found)
    targets, weights = dataset.take_targets(numbers), dataset.take_weights(numbers)
    class_weights = _class_weights(run, model, change.codes)
    weights = np.asarray(class_weights.of_rows(targets, weights))
    if change.codes is not None:
        targets = code_of[targets]
    return _NewRows(drawn, counts, numbers, dataset.take(numbers), targets, weights)


class _Judged(NamedTuple):
    """Drawn new rows, and their scores (m, q) by the networks without each row.

    scales (m, q) are those of the residuals of numbers, and distances (m,) those from the basis.
    """

    rows: _NewRows
    scores: Floats
    scales: Floats
    distances: Floats


def _judge(model: Model, rows: _NewRows, leverages: Floats) -> _Judged:
    """Return drawn new rows with their scores by the networks without each row."""
    # The schema has made the features already.
    extended = Scorer(replace(model, schema=None), extended=True).table(rows.X)
    scores, scales, distances = np.split(extended, [model.n_targets, -1], axis=1)
    aims = rows.targets
    if model.target_names is None:
        aims = np.eye(model.n_targets)[rows.targets]
    scores = scores_left_out(scores, aims, leverages * rows.weights)
    return _Judged(rows, scores, scales, distances[:, 0])


def _target_sums(model: Model, change: Change) -> Floats:
    """Return the weight of all rows of a change, and the sum of each of their targets, (1 + q,)."""
    run = change.source
    if model.cells is None:
        target_products = STORED_MOMENTS.in_group(change.place)["target_products"]
        sums: Floats = target_products.read(run)[0]
        return sums
    cells = range(model.n_cells)
    return reduce(add, (run.read_part(change.place, cell, "target_products")[0] for cell in cells))


def _residuals(run: Run, model: Model, change: Change, judged: _Judged) -> ResidualSums:
    """Return the residual sums of drawn rows, whose weights stand for those of all new rows."""
    rows, shifted = judged.rows, _targets_of(run, model).shifted
    drawn_weight = float(rows.weights.sum())
    scale = _target_sums(model, change)[0] / drawn_weight if drawn_weight else 0.0
    residuals = shifted(model.clipped(judged.scores))[:, None]
    return ResidualSums.from_block(residuals, shifted(rows.targets), rows.weights * scale)


def _draw_scores(run: Run, model: Model, change: Change, judged: _Judged) -> ScoreDraw:
    """Return the scores of drawn rows with the numbers and weights of all new rows by class."""
    rows, values, codes = judged.rows, judged.scores, judged.rows.targets
    weights = _target_sums(model, change)
    of_classes = weights[1:]
    if run.of_numbers:
        assert model.intervals is not None
        residuals = np.abs(rows.targets - model.clipped(values))
        values = residuals / model.intervals.scales(judged.scales)
        codes, of_classes = np.zeros(len(values), dtype=np.int64), weights[:1]
    draw = rows.drawn.take(rows.numbers, codes, rows.weights, values, judged.distances)
    return replace(draw, totals=np.stack([[rows.counts, of_classes]]))


def _changed_draw(run: Run, place: str, change: Change, new: ScoreDraw | None) -> ScoreDraw | None:
    """Store and return the drawn scores of a version; None without any."""
    draw = read_draw(run, change.base)
    if draw is None:
        return None
    if change.action == MERGE:
        further = read_draw(change.source, change.place)
        # Both runs have the rows of the fit.
        new = None if further is None else further.without(0)
    elif change.action == FORGET and change.dataset is not None:
        forgotten = _version_of(run, draw, change.dataset.content)
        if forgotten is not None:
            draw = draw.without(forgotten)
    if new is not None:
        most = MOST_RESIDUALS if run.of_numbers else MOST_SCORES
        draw = (draw + new.of_version(len(run.versions) + 1)).thinned(most)
    DRAW.write(run, place, draw.arrays())
    return draw


def _calibrate_again(run: Run, place: str, draw: ScoreDraw) -> dict[str, Any]:
    """Return the held-out figures of the drawn scores of a version."""
    temperature = judged_record(run.stages)["temperature"]
    figures = calibration_figures(draw, "squared", temperature=temperature)
    labels = LabelSums.from_block(draw.scores[:, None], draw.codes, draw.weights)
    confusion_in(place).write(run, labels.confusion[0])
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
