"""Stage "cells": a tree divides the table into cells, each with its own network."""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial, reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.engine.memory import PROCESS_BYTES
from dask_nrbfn.errors import Advice, IllConditionedError, ParameterError, plural
from dask_nrbfn.numeric.calibration import MOST_SCORES, DrawnRows, ScoreDraw
from dask_nrbfn.numeric.cell_networks import CellNetworks
from dask_nrbfn.numeric.cell_solution import (
    STEPS,
    STEPS_OF_ROUND,
    TRIAL_ROWS,
    CellFit,
    SolvedCell,
    SolvedCells,
    fit_cell,
    trial_size,
)
from dask_nrbfn.numeric.cell_tree import CellTree
from dask_nrbfn.numeric.folds import folds_of_numbers
from dask_nrbfn.numeric.held_out import (
    HeldOutSums,
    JudgedSums,
    ResidualSums,
    sums_of,
    unexplained_share,
)
from dask_nrbfn.numeric.intervals import MOST_RESIDUALS, RowScale
from dask_nrbfn.numeric.moments import Moments
from dask_nrbfn.numeric.penalties import Ridge
from dask_nrbfn.numeric.rows import gathered
from dask_nrbfn.numeric.scaling import LEARNED
from dask_nrbfn.numeric.small_fit import SmallNetwork, SmallTable, losses_of, target_scales
from dask_nrbfn.numeric.targets import ClassTargets, NumberTargets, Targets
from dask_nrbfn.numeric.threads import concurrent_bytes, concurrent_map
from dask_nrbfn.numeric.trials import figures_of, judged_rows, trial_bytes, try_network
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.parts import PartResult, map_parts, run_task
from dask_nrbfn.spec import MOST_LEFT
from dask_nrbfn.stages.bases import (
    SLICE_ROWS,
    Chosen,
    TableRows,
    basis_of_rows,
    divided_blocks,
    drawn_rows,
    read_group,
    search_block_rows,
    store_counts,
)
from dask_nrbfn.stages.columns import read_scaling
from dask_nrbfn.stages.context import FitContext, FitSizes
from dask_nrbfn.stages.cost import StageCost
from dask_nrbfn.stages.resolve import (
    CELL_ALPHAS,
    MOST_CELLS,
    basis_of_cell,
    most_rows_of_cell,
    planned_cells,
    unsupported_by_cells,
)
from dask_nrbfn.stages.stage import OVERTIME, HeldOutRecord, Stage, StageJob
from dask_nrbfn.stages.trials import SINGLE, JudgedRows, network_of
from dask_nrbfn.stages.units import search_rows
from dask_nrbfn.stages.validation import (
    DRAW,
    SCALE,
    calibration_figures,
    confusion_in,
)
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run, RunArray
from dask_nrbfn.weighting import RowWeights

logger = logging.getLogger(__name__)

# Rounds that learn the column weights of a cell.
ROUNDS = 2


@dataclass(frozen=True, kw_only=True)
class CellsRecord(HeldOutRecord):
    """The number of cells, 1 if a tuning preferred one network, and figures of all cells."""

    n_cells: int
    n_rows: int
    # Losses of one network and of drawn cells on the same held-out rows.
    compared: dict[str, Any] | None = None
    class_weights: list[float] | None = None
    n_basis: int | None = None
    fitting_error: float | None = None
    spectral_risk: float | None = None
    training_r2: list[float] | None = None


# The arrays of the networks of all cells by their names in a model, which checks them.
NETWORKS = {
    name: RunArray(f"cells/{name}", axes, name.replace("_", " "), verified=False)
    for name, axes in CellNetworks.array_names().items()
}
ORIGIN = RunArray("cells/origin", ("target",), "origin of the numeric targets", verified=False)
TARGET_RANGE = RunArray(
    "cells/target_range", ("end", "target"), "least and largest targets", verified=False
)
CELL_BASIS = RunArray(
    "cells/basis", ("basis", "feature"), "basis rows of all cells, scaled", verified=False
)
CELL_WEIGHTS = RunArray(
    "cells/weights", ("target", "basis"), "weights of all cells", verified=False
)
CELL_ROWS = RunArray("cells/rows", ("basis",), "row number of each basis row", verified=False)
CELL_SHARES = RunArray(
    "cells/shares", ("basis",), "share of the weight of the rows nearest to each basis row"
)
ALPHAS = RunArray("cells/alphas", ("cell",), "alpha of each cell; NaN if its scores are constant")
ERRORS = RunArray("cells/errors", ("cell",), "error on the held-out rows of each cell")


def read_cell_targets(run: Run, n_targets: int) -> Targets:
    """Return the targets of a run in the form that the moments of all cells use."""
    return NumberTargets(ORIGIN.read(run)) if run.of_numbers else ClassTargets(n_targets)


def read_tree(run: Run) -> CellTree:
    """Return the tree that cuts the rows of a run."""
    return CellTree(*(NETWORKS[f"tree_{each.name}"].read(run) for each in fields(CellTree)))


def _fit_cells(
    job: StageJob,
    rows: str,
    fits: str,
    cells: Sequence[int],
    places: Sequence[int],
    *,
    scored: bool,
) -> None:
    """Fit the cells at some places; rows of cells and networks are parts of two stages."""
    run, dataset, engine = job.run, job.dataset, job.engine
    blocks = [(*block, [*cells]) for block in divided_blocks(run, dataset)]
    routed = map_parts(run, dataset, engine, stage=rows, task=_route_block, units=blocks)
    sizes = store_counts(run, rows, routed)
    largest = cell_bytes(dataset, run.spec.params, max(sizes[cell] for cell in cells))
    held = PROCESS_BYTES + dataset.reading_bytes + largest
    engine.check_budget("cells", held, remedy="Give `cells`=1")
    units = [(rows, cell, scored) for cell in cells]
    own = [sizes[cell] for cell in cells]
    map_parts(run, dataset, engine, stage=fits, task=_fit_cell, units=units, sizes=own, only=places)


def _row_bytes(dataset: Dataset) -> int:
    """Return the bytes of a row with its targets, weight and number."""
    return dataset.n_features * dataset.dtype.itemsize + 8 * (dataset.n_targets + 3)


def cell_bytes(dataset: Dataset, params: FitParams, n_rows: int) -> int:
    """Return the peak memory of the fit of a cell in bytes, without the process and the chunks."""
    p, q = dataset.n_features, dataset.n_targets
    r, row_bytes = min(basis_of_cell(params), n_rows), _row_bytes(dataset)
    own = trial_bytes(r, q, n_ridges=len(CELL_ALPHAS))
    of_folds = 8 * (TuneParams.folds + 3) * r**2
    # The rows as stored, sorted by folds and scaled; their scores with two alphas; the networks
    # that are tried.
    return (
        n_rows * (3 * row_bytes + 8 * (3 * p + 6 * q))
        + max(own + concurrent_bytes(len(STEPS), own), of_folds)
        + 6 * 8 * r * p
    )


def _route_block(run: Run, dataset: Dataset, start: int, stop: int, cells: list[int]) -> PartResult:
    """Return the rows of a block cell by cell, and the "counts" of the rows of each cell."""
    ((X, targets, own),) = dataset.blocks(start, stop, stop - start)
    assert targets is not None
    tree = read_tree(run)
    members = tree.route(read_scaling(run).apply(X)).of_cells(cells)
    weights = RowWeights.of(dataset, run.spec.params).of_rows(targets, own)
    weights = np.ones(len(targets)) if weights is None else weights
    rows = TableRows(X, targets, weights, np.arange(start, stop)).take(members.rows)
    counts = np.bincount(members.cells, minlength=tree.n_cells)
    return PartResult({"counts": counts.tolist()}, rows._asdict(), slice_rows=SLICE_ROWS)


def _read_cell(run: Run, rows: str, cell: int) -> TableRows:
    """Return all rows of a cell, block after block."""
    read = partial(read_group, run, rows, run.read(f"{rows}/counts"), cell)
    return TableRows(*(np.concatenate([*read(name)]) for name in TableRows._fields))


def _table(run: Run, dataset: Dataset, rows: TableRows, basis: Chosen) -> SmallTable:
    """Return rows with a basis, in the folds of their numbers."""
    folds, basis_folds = (
        folds_of_numbers(numbers, n_folds=run.spec.folds, seed=run.spec.params.random_state)
        for numbers in (rows.numbers, basis.rows)
    )
    targets = read_cell_targets(run, dataset.n_targets)
    return rows.with_basis(basis, targets, folds, basis_folds)


def _fit_cell(run: Run, dataset: Dataset, rows: str, cell: int, keeps_scores: bool) -> PartResult:
    """Fit the network of a cell, and sum the errors on its held-out rows."""
    of_cell, scaling = _read_cell(run, rows, cell), read_scaling(run)
    n_rows, size = len(of_cell.X), basis_of_cell(run.begun.params)
    params = run.spec.params.with_checked(basis_size=size)
    size = min(size, n_rows)
    basis = basis_of_rows(run, dataset, of_cell, params, size, scaling=scaling, n_all=n_rows)
    table = _table(run, dataset, of_cell, basis)
    network = SmallNetwork(params.kernel, params.width_factor, params.normalized, _ridges(run))
    n_ridges = len(network.ridges)
    own_bytes = trial_bytes(len(basis.rows), dataset.n_targets, n_ridges=n_ridges)
    fitted = fit_cell(
        table,
        scaling,
        network,
        n_folds=run.spec.folds,
        n_rounds=ROUNDS if LEARNED in run.begun.scales else 0,
        each=concurrent_map(own_bytes),
    )
    if len(network.ridges) == 1 and fitted.solved.is_constant and np.ptp(table.y, axis=0).any():
        raise IllConditionedError(
            f"the ridge system of a cell with {n_rows} rows is singular at "
            f"alpha={network.ridges[0].alpha:g}.",
            "Give a larger `alpha`, or leave it out.",
        )
    r = fitted.basis.shape[0]
    arrays = {
        **_judged(run, dataset, of_cell, fitted),
        "basis": scaling.apply(fitted.basis),
        "basis_rows": basis.rows[:r],
        "root": fitted.root,
        "shares": fitted.shares,
        **fitted.solved.arrays(),
        **fitted.moments.arrays(),
    }
    if keeps_scores:
        arrays |= {"scores": fitted.held_out, "numbers": of_cell.numbers}
    return PartResult({"n_rows": n_rows, "n_basis": r, "width": fitted.width}, arrays)


def _ridges(run: Run) -> tuple[Ridge, ...]:
    spec, alphas = run.spec, run.begun.alphas
    penalty = spec.params.penalty
    if spec.tunes:
        penalty = spec.supported_penalties[0]
        alphas = CELL_ALPHAS if alphas == TuneParams.alphas else alphas
    own = Ridge.in_params(spec.params)
    return tuple(own._replace(penalty=penalty, alpha=each) for each in sorted(alphas, reverse=True))


def _judged(
    run: Run, dataset: Dataset, of_cell: TableRows, fitted: CellFit
) -> dict[str, NDArray[Any]]:
    """Return the arrays of the sums over the held-out rows of a cell, and of a draw of them.

    The residuals of numbers are over their mean in the cell.
    """
    own, scores = read_cell_targets(run, dataset.n_targets), fitted.held_out
    targets, codes = own.shifted(of_cell.targets), of_cell.targets
    counts, most_scores = dataset.class_counts, MOST_SCORES
    if dataset.of_numbers:
        # As predictions are.
        scores = np.clip(scores, *own.shifted(TARGET_RANGE.read(run)))
        counts, most_scores = np.full(1, dataset.n_rows), MOST_RESIDUALS
        codes = np.zeros(len(targets), dtype=np.int64)
    sums = sums_of(own).from_block(scores[:, None], targets, of_cell.weights)
    arrays = {f"judged_{key}": values for key, values in sums.arrays().items()}
    values = scores
    if isinstance(sums, ResidualSums):
        arrays["scale_offsets"] = sums.absolute[0] / sums.weight
        values = _over_means(np.abs(targets - scores), of_cell.weights)
    seed = run.spec.params.random_state
    drawn = DrawnRows.of_counts(counts, seed=seed, most_scores=most_scores)
    places = drawn.places(of_cell.numbers, codes)
    taken = values[places], fitted.distances[places]
    draw = drawn.take(of_cell.numbers, codes, of_cell.weights, *taken, places)
    return arrays | {f"drawn_{key}": values for key, values in draw.arrays().items()}


def _over_means(residuals: Floats, weights: Floats) -> Floats:
    """Return residuals (n, q) over the mean of those of the other rows of the cell."""
    weighted = weights[:, None] * residuals
    others = np.maximum(weights.sum() - weights, np.finfo(np.float64).tiny)[:, None]
    means = (weighted.sum(axis=0) - weighted) / others
    return residuals / np.where(means > 0, means, 1.0)


def _read_sums(run: Run, cells: Iterable[int], kind: type[Any], key: str) -> list[Any]:
    """Return a sum over the held-out rows of each cell."""
    return [
        kind.from_arrays(
            {name: run.read_part(FITS, cell, f"{key}_{name}") for name in kind.array_names()}
        )
        for cell in cells
    ]


# The names of the parts with the rows and networks of all cells. Updates need the networks.
ROWS, FITS = "cells-blocks", "cells/networks"

# Number of drawn cells, of those that may end a comparison, and the names of its groups.
_DRAWN, _FIRST = 8, 4
_ONE = "cells-one"
_DRAWN_ROWS, _DRAWN_FITS = "cells-drawn-blocks", "cells-drawn-fits"

# Standard errors by which cells must do better: one network is trained on fewer rows here than in
# the fit.
_CLEARLY = 2.0

# The loss of one network whose systems are all singular.
_UNSOLVED = 1e9

# Most basis rows of the one network, which can be solved a few times in a minute.
_MOST_BASIS = 4096


def _compare_cells(job: StageJob, n_cells: int) -> dict[str, Any] | None:
    """Compare one network with those of drawn cells on held-out rows; None if it takes too long.

    The one network is trained on a sample and on the rows of the drawn cells. The first cells end
    the comparison if they do worse by more than a standard error.
    """
    run, dataset, engine = job.run, job.dataset, job.engine
    size = run.spec.params.basis_size or 0
    if size > _MOST_BASIS or job.needed_s > job.left_s():
        reason = f"one network has {size} basis rows" if size > _MOST_BASIS else OVERTIME
        logger.info("cells: not tried: %s", reason)
        return None
    rng = np.random.default_rng(run.spec.params.random_state)
    order = rng.permutation(n_cells)[:_DRAWN].tolist()
    drawn = sorted(order)
    rows, fits = (ROWS, FITS) if len(drawn) == n_cells else (_DRAWN_ROWS, _DRAWN_FITS)
    for first in sorted({min(_FIRST, len(drawn)), len(drawn)}):
        parts = {drawn.index(cell): cell for cell in order[:first]}
        _fit_cells(job, rows, fits, drawn, [*parts], scored=True)
        stage, units = f"{_ONE}-{first}", [(rows, fits, parts)]
        (record,) = map_parts(run, dataset, engine, stage=stage, task=_compare, units=units)
        compared: dict[str, Any] = record["compared"]
        if record["worse"]:
            break
    name, _ = figures_of(of_numbers=dataset.of_numbers)
    logger.info(
        "cells: %s %.4f of one network, %.4f of %s, on %d held-out rows",
        name.replace("_", " "),
        compared["one"][name],
        compared["cells"][name],
        plural(first, "drawn cell"),
        compared["n_rows"],
    )
    return compared


def _compare(run: Run, dataset: Dataset, rows: str, fits: str, drawn: dict[int, int]) -> PartResult:
    """Compare one network with drawn cells on the rows of the last fold.

    Cells have chosen width and penalty by the first fold.
    """
    of_cells = TableRows.joined([_read_cell(run, rows, cell) for cell in drawn.values()])
    of_cells = of_cells.take(np.argsort(of_cells.numbers))
    spec, scaling, fold = run.spec, read_scaling(run), run.spec.folds - 1
    table = _table_of_one(run, dataset, of_cells)
    trial = try_network(table, scaling, network_of(spec), fold=fold)
    numbers, scores = (
        np.concatenate([run.read_part(fits, part, name) for part in drawn])
        for name in ("numbers", "scores")
    )
    # The rows of the cells follow those of the sample, in row order.
    first, judged = len(table.folds) - len(numbers), judged_rows(table, [fold])
    among_cells = judged >= first
    places = judged[among_cells]
    own, scales = scores[np.argsort(numbers)][places - first], target_scales(table, judged)
    losses, _ = losses_of(table.targets, own[:, None], table.y[places], scales)
    shares = table.weights[places] / table.weights[places].sum()
    of_one = np.full(len(judged), _UNSOLVED) if trial is None else trial.losses
    one = JudgedRows(of_one[among_cells], shares)
    many = JudgedRows(losses[:, 0], shares)
    gain, error = many.gain_over(one)
    figure, _ = figures_of(of_numbers=dataset.of_numbers)
    compared = {
        "one": {figure: one.loss},
        "cells": {figure: many.loss},
        "gain": gain,
        "standard_error": error,
        "gained": gain > _CLEARLY * error,
        "n_rows": len(places),
    }
    return PartResult({"compared": compared, "worse": gain < -error})


def _table_of_one(run: Run, dataset: Dataset, of_cells: TableRows) -> SmallTable:
    """Return the rows of a sample that are in no drawn cell, then the rows of the cells."""
    params, n_rows = run.spec.params, search_rows(run.n_rows, dataset.row_values, run.spec)
    sample = TableRows.drawn(dataset, params, n_rows)
    size = params.basis_size or min(_MOST_BASIS, n_rows)
    scaling, n_all = read_scaling(run), run.n_rows
    basis = basis_of_rows(run, dataset, sample, params, size, scaling=scaling, n_all=n_all)
    further = sample.take(~np.isin(sample.numbers, of_cells.numbers))
    return _table(run, dataset, TableRows.joined([further, of_cells]), basis)


# Prefix of the groups that are deleted once the networks are stored.
_SCRATCH = "cells-"

# Most rows on which the tree is grown. They fit easily into the memory of a node.
_TREE_ROWS, _TREE_ELEMENTS = 100_000, 2**25


def _divide(job: StageJob) -> CellsRecord:
    """Divide the table and fit every cell, unless one network does as well in a tuning."""
    run, dataset, engine = job.run, job.dataset, job.engine
    if not ORIGIN.is_in(run):
        run.drop("cells")
        run_task(engine, _grow, run, dataset, label="cells")
    n_cells, compared, spec = read_tree(run).n_cells, None, run.spec
    if spec.tries_cells:
        compared = _compare_cells(job, n_cells) if n_cells > 1 else None
        if compared and not compared["gained"]:
            told = (
                "cells: %s do not gain two standard errors, so there is one network; %s fits them"
            )
            logger.info(told, plural(n_cells, "cell"), Advice(f"`cells`={n_cells}"))
        n_cells = n_cells if compared and compared["gained"] else 1
    record = CellsRecord(n_cells=n_cells, n_rows=run.n_rows, compared=compared)
    if spec.tunes and n_cells == 1:
        run.drop(FITS)
        return replace(record, chosen={"cells": 1})
    if spec.tunes:
        chosen = {"cells": n_cells, "penalty": spec.supported_penalties[0]}
        record = replace(record, chosen=chosen)
    # The same units of work as of a comparison that has fitted all cells.
    keeps_scores = compared is not None and n_cells <= _DRAWN
    _fit_cells(job, ROWS, FITS, range(n_cells), range(n_cells), scored=keeps_scores)
    figures = run_task(engine, _collect, run, dataset, n_cells, label="cells")
    logger.info("cells: %s of %d basis rows", plural(n_cells, "cell"), figures["n_basis"])
    class_weights = RowWeights.of(dataset, run.spec.params).to_list()
    return replace(record, class_weights=class_weights, **figures)


def cells_basis(params: FitParams, n_rows: int) -> int:
    """Return the planned total number of basis rows of all cells."""
    n_cells = planned_cells(params, n_rows)
    return n_cells * min(basis_of_cell(params), -(-n_rows // n_cells))


def _grow(run: Run, dataset: Dataset) -> None:
    """Store the tree, and the origin of numeric targets."""
    params = run.spec.params
    size = min(run.n_rows, _TREE_ROWS, max(1, _TREE_ELEMENTS // dataset.n_features))
    rows = drawn_rows(run.n_rows, size, params.random_state)
    most = most_rows_of_cell(params, run.n_rows, basis_of_cell(run.begun.params))
    tree = CellTree.grown(
        read_scaling(run).apply(dataset.take(rows)),
        most_rows=most * size / run.n_rows,
        most_cells=params.cells if isinstance(params.cells, int) else MOST_CELLS,
    )
    for each in fields(tree):
        NETWORKS[f"tree_{each.name}"].write(run, getattr(tree, each.name))
    if dataset.of_numbers:
        target_range = dataset.target_range()
        assert target_range is not None
        TARGET_RANGE.write(run, target_range)
    origin = np.median(dataset.take_targets(rows), axis=0) if dataset.of_numbers else np.zeros(1)
    ORIGIN.write(run, origin)


def _collect(run: Run, dataset: Dataset, n_cells: int) -> dict[str, Any]:
    """Store the networks of all cells together; return the figures of all cells."""
    every = range(n_cells)
    records = [run.part_record(FITS, cell) or {} for cell in every]

    def read(name: str) -> list[NDArray[Any]]:
        return [run.read_part(FITS, cell, name) for cell in every]

    sizes = [each["n_basis"] for each in records]
    names_of_solved = [f"solved_{name}" for name in SolvedCell._fields]
    solved = SolvedCells.joined(
        {name: run.read_part(FITS, cell, name) for name in names_of_solved} for cell in every
    )
    networks = CellNetworks(
        tree=read_tree(run),
        starts=np.cumsum([0, *sizes]),
        widths=np.array([each["width"] for each in records]),
        roots=np.stack(read("root")),
        intercepts=solved.intercepts,
        n_rows=np.array([each["n_rows"] for each in records]),
    )
    for name, values in networks.arrays().items():
        if not name.startswith("tree_"):
            NETWORKS[name].write(run, values)
    rows = np.concatenate(read("basis_rows"))
    if dataset.labelled_only:
        in_all = replace(dataset, labelled_only=False).labelled_rows()
        rows = np.where(rows < 0, -1, in_all[rows])
    basis = gathered(read("basis"), (sum(sizes), dataset.n_features))
    kind = sums_of(read_cell_targets(run, dataset.n_targets))
    judged = _read_sums(run, every, kind, "judged")
    errors = np.array([each.figures(0)[kind.compared[0]] for each in judged])
    CELL_BASIS.write(run, basis)
    CELL_WEIGHTS.write(run, solved.weights)
    CELL_ROWS.write(run, rows)
    CELL_SHARES.write(run, np.concatenate(read("shares")))
    ALPHAS.write(run, solved.alphas)
    ERRORS.write(run, errors)
    return {
        "n_basis": sum(sizes),
        "fitting_error": solved.fitting_error,
        "spectral_risk": solved.spectral_risk,
        **_figures(run, reduce(add, judged), solved.residuals.sum(axis=0), n_cells),
    }


def _figures(run: Run, sums: JudgedSums, residuals: Floats, n_cells: int) -> dict[str, Any]:
    """Return the figures of the held-out rows of all cells; store a draw of them."""
    figures = sums.figures(0)
    draw = reduce(add, _read_sums(run, range(n_cells), ScoreDraw, "drawn"))
    DRAW.write(run, "cells", draw.arrays())
    if isinstance(sums, ResidualSums):
        unexplained = unexplained_share(residuals, sums.spread)
        r2 = (1.0 - unexplained).tolist()
        offsets = np.stack([run.read_part(FITS, cell, "scale_offsets") for cell in range(n_cells)])
        mean = sums.absolute[0] / sums.weight
        # Constant cells have no residuals.
        offsets = np.where(offsets > 0, offsets, np.where(mean > 0, mean, 1.0))
        SCALE.write(run, "cells", RowScale(offsets, np.zeros(len(r2)))._asdict())
        return figures | {"training_r2": r2, "residual_sums": sums.to_record(0)}
    assert isinstance(sums, HeldOutSums)
    confusion_in("cells").write(run, sums.confusion[0])
    temperature = figures["temperature"]
    return figures | calibration_figures(draw, "squared", temperature=temperature)


def _cells_cost(s: FitSizes) -> StageCost:
    """Return the cost of a task for each cell, which tries widths, learns weights and solves."""
    params, n_cells = s.spec.params, planned_cells(s.spec.params, s.n)
    mean = -(-s.n // n_cells)
    # Cells that cannot be split are larger. Their memory is checked after their rows are counted.
    most, r = min(s.n, 2 * mean), min(basis_of_cell(params), mean)
    passes, systems = _work_of_cells(s, n_cells, r)
    row_bytes = _row_bytes(s.dataset)
    networks_bytes = n_cells * 8 * (r * (s.p + s.q) + s.p + s.q)
    moments_bytes = n_cells * 4 * r**2
    routing_bytes = min(search_block_rows(s.layout.chunk_rows, s.width, params), s.n)
    routing_bytes *= 3 * row_bytes + 16 * s.p
    tree_bytes = min(s.n, _TREE_ROWS, _TREE_ELEMENTS // s.p) * 3 * 8 * s.p
    comparing_bytes = 0
    if s.spec.tries_cells:
        # The sample, the rows of the cells, both together and sorted by folds.
        n_compared = min(s.n, search_rows(s.n, s.row_values, s.spec) + _DRAWN * most)
        one = min(s.r, _MOST_BASIS)
        passes[one] += round(SINGLE * n_compared)
        systems[one] += round(SINGLE * MOST_LEFT)
        comparing_bytes = 4 * n_compared * row_bytes
        comparing_bytes += trial_bytes(one, s.q, n_ridges=MOST_LEFT)
    return StageCost(
        products=sum(n * (size**2 + 2 * s.product_flops(size)) for size, n in passes.items()),
        systems=systems,
        exponentials=2 * sum(n * size for size, n in passes.items()),
        read_bytes=s.rows_bytes + s.n * row_bytes,
        written_bytes=s.n * row_bytes + 2 * networks_bytes + moments_bytes,
        held_bytes=s.held(
            cell_bytes(s.dataset, params, most),
            routing_bytes,
            tree_bytes,
            3 * networks_bytes,
            comparing_bytes,
        ),
        n_tasks=n_cells,
    )


def _work_of_cells(s: FitSizes, n_cells: int, r: int) -> tuple[Counter[int], Counter[int]]:
    """Return by size of the basis the rows that are passed, and the systems that are solved."""
    rounds = ROUNDS if LEARNED in s.spec.scales else 0
    n_tried = len(STEPS) + (len(STEPS_OF_ROUND) + 1) * rounds
    size = trial_size(r)
    passes = Counter({size: n_tried * min(s.n, n_cells * TRIAL_ROWS * size)})
    systems = Counter({size: n_cells * n_tried * len(CELL_ALPHAS)})
    # One pass for the held-out folds, one for all rows.
    passes[r] += 2 * s.n
    systems[r] += n_cells * (2 * s.spec.folds + 1)
    return passes, systems


def _check_cells(context: FitContext) -> None:
    """Raise ParameterError if several cells do not support the parameters or the rows."""
    params, dataset = context.spec.params, context.dataset
    n_rows = dataset.of_labelled().n_rows
    if isinstance(params.cells, int) and params.cells > n_rows:
        raise ParameterError(
            f"`cells` is {params.cells}, but only {plural(n_rows, 'row')} can be divided into "
            "cells.",
            f"Set `cells` to at most {n_rows}.",
        )
    unsupported = unsupported_by_cells(context.spec, sparse=dataset.is_sparse)
    unsupported["a validation dataset"] = context.validation is not None
    for what, given in unsupported.items():
        if given:
            raise ParameterError(
                f"`cells` is {params.cells}, but a fit with several cells does not support {what}.",
                "Give `cells`=1.",
            )


def _verified_parts(run: Run) -> list[str]:
    """Return the names of the sums over the rows, and of the solution, of every cell."""
    if not ERRORS.is_in(run):
        return []
    names = [*Moments.array_names(), *(f"solved_{name}" for name in SolvedCell._fields)]
    cells = range(CELLS.recorded(run).n_cells)
    return [name for cell in cells for name in run.part_arrays(FITS, cell, names)]


CELLS = Stage(
    name="cells",
    compute=_divide,
    record=CellsRecord,
    arrays=(
        *NETWORKS.values(),
        ORIGIN,
        TARGET_RANGE,
        CELL_BASIS,
        CELL_WEIGHTS,
        CELL_ROWS,
        CELL_SHARES,
        ALPHAS,
        ERRORS,
        confusion_in("cells"),
        *DRAW.in_group("cells").values(),
        *SCALE.in_group("cells").values(),
    ),
    cost=_cells_cost,
    check=_check_cells,
    wanted=lambda spec: spec.params.asks_for_cells,
    labelled_only=True,
    read_by_updates=True,
    verified_parts=_verified_parts,
    scratch=(_SCRATCH,),
    remedy=lambda params: "Give more `cells`, or a smaller `basis_size`",
)
