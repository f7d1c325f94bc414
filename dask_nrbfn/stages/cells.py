"""Stage "cells": a tree divides the table into cells, each with its own network."""

import logging
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import ParameterError, plural
from dask_nrbfn.numeric.calibration import ScoreDraw
from dask_nrbfn.numeric.cell_fit import STEPS, STEPS_OF_ROUND, TRIAL_ROWS
from dask_nrbfn.numeric.cell_networks import CellNetworks
from dask_nrbfn.numeric.cell_solution import SolvedCell
from dask_nrbfn.numeric.cell_tree import CellTree
from dask_nrbfn.numeric.held_out import HeldOutSums, ResidualSums, unexplained_share
from dask_nrbfn.numeric.moments import Moments
from dask_nrbfn.numeric.rows import gathered
from dask_nrbfn.numeric.scaling import LEARNED
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.params import FitParams, TuneParams
from dask_nrbfn.parts import run_task
from dask_nrbfn.stages.cell_fits import (
    ALPHAS,
    FITS,
    ROUNDS,
    ROWS,
    cell_bytes,
    compare_cells,
    comparing_bytes,
    fit_cells,
    read_judged,
    read_solved,
    read_sum,
    read_tree,
)
from dask_nrbfn.stages.columns import read_scaling
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.neighbor_search import search_block_rows
from dask_nrbfn.stages.sample import drawn_rows, judged_sums
from dask_nrbfn.stages.stage import FitSizes, Stage, StageCost, StageJob, known
from dask_nrbfn.stages.trials import (
    MOST_CELLS,
    basis_of_cell,
    most_rows_of_cell,
    planned_cells,
    trials_of,
)
from dask_nrbfn.stages.validation import calibration_figures
from dask_nrbfn.storage.array import write_array
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run
from dask_nrbfn.weighting import RowWeights

logger = logging.getLogger(__name__)

# Prefix of the groups that are deleted once the networks are stored.
_SCRATCH = "cells-"

# Most rows on which the tree is grown. They fit easily into the memory of a node.
_TREE_ROWS, _TREE_ELEMENTS = 100_000, 2**25


def _compute(job: StageJob) -> dict[str, Any]:
    """Divide the table and fit every cell, unless one network does as well in a tuning.

    Returns the number of cells, 1 if the tuning preferred one network, and the figures of all
    cells: basis rows, the largest cell, the error of all rows, the largest risk of a cell, cells
    with their own column weights and with constant scores, and the figures of held-out rows.
    "compared" has the figures of one network and of drawn cells on the same held-out rows.
    """
    run, dataset, engine = job.run, job.dataset, job.engine
    if not run.has("cells/origin"):
        run.drop("cells")
        run_task(engine, _grow, run, dataset, label="cells")
    n_cells, compared, chosen, tried = read_tree(run).n_cells, None, None, trials_of(run)
    if tried.tries_cells:
        compared = compare_cells(job, n_cells) if n_cells > 1 else None
        if not (compared and compared["gained"]):
            logger.info("cells: one network does as well")
            n_cells = 1
    if tried.tuning is not None:
        if n_cells == 1:
            one: dict[str, Any] = {"n_cells": 1, "n_rows": run.n_rows, "chosen": {"cells": 1}}
            return one | known(compared=compared)
        chosen = {"cells": n_cells, "penalty": tried.penalties[0]}
    fit_cells(job, ROWS, FITS, range(n_cells))
    figures = run_task(engine, _collect, run, dataset, n_cells, label="cells")
    logger.info("cells: %s of %d to %d rows", plural(n_cells, "cell"), *figures["row_range"])
    return {
        "n_cells": n_cells,
        "n_rows": run.n_rows,
        "class_weights": RowWeights.of(dataset, run.chosen_params).to_list(),
        **known(chosen=chosen, compared=compared, **figures),
    }


def cells_basis(params: FitParams, n_rows: int) -> int:
    """Return the planned total number of basis rows of all cells."""
    n_cells = planned_cells(params, n_rows)
    return n_cells * min(basis_of_cell(params), -(-n_rows // n_cells))


def _grow(run: Run, dataset: Dataset) -> None:
    """Store the tree, and the origin of numeric targets."""
    params = run.chosen_params
    size = min(run.n_rows, _TREE_ROWS, max(1, _TREE_ELEMENTS // dataset.n_features))
    rows = drawn_rows(run.n_rows, size, params.random_state)
    most = most_rows_of_cell(params, run.n_rows, basis_of_cell(run.params))
    tree = CellTree.grown(
        read_scaling(run).apply(dataset.take(rows)),
        most_rows=most * size / run.n_rows,
        most_cells=params.cells if isinstance(params.cells, int) else MOST_CELLS,
    )
    group = run.group("cells")
    for each in fields(tree):
        write_array(group, f"tree_{each.name}", getattr(tree, each.name), "node")
    origin = np.median(dataset.take_targets(rows), axis=0) if dataset.of_numbers else np.zeros(1)
    write_array(group, "origin", origin, "target")


def _collect(run: Run, dataset: Dataset, n_cells: int) -> dict[str, Any]:
    """Store the networks of all cells together; return the figures of all cells."""
    every, group = range(n_cells), run.group("cells")
    records = [run.part_record(FITS, cell) for cell in every]
    cells = [record for record in records if record is not None]
    assert len(cells) == n_cells

    def read(name: str) -> list[NDArray[Any]]:
        return [run.read_part(FITS, cell, name) for cell in every]

    sizes = [each["n_basis"] for each in cells]
    solved = read_solved(run, FITS, n_cells)
    networks = CellNetworks(
        tree=read_tree(run),
        starts=np.cumsum([0, *sizes]),
        widths=np.array([each["width"] for each in cells]),
        roots=np.stack(read("root")),
        intercepts=solved.intercepts,
        n_rows=np.array([each["n_rows"] for each in cells]),
    )
    stored, names = networks.arrays(), CellNetworks.array_names()
    for name, dimensions in names.items():
        if not name.startswith("tree_"):
            write_array(group, name, stored[name], *dimensions)
    write_array(
        group,
        "basis",
        gathered(read("basis"), (sum(sizes), dataset.n_features)),
        "basis",
        "feature",
    )
    write_array(group, "weights", solved.weights, "target", "basis")
    rows = np.concatenate(read("basis_rows"))
    if dataset.labelled_only:
        rows = np.where(rows < 0, -1, _numbers_in_all(dataset)[rows])
    write_array(group, "rows", rows, "basis")
    error = judged_sums(dataset).compared[0]
    write_array(group, "alphas", solved.alphas, "cell")
    write_array(group, "shares", np.concatenate(read("shares")), "basis")
    write_array(group, "errors", np.array([each[error] for each in cells]), "cell")
    alphas = solved.alphas[np.isfinite(solved.alphas)]
    return {
        "n_basis": sum(sizes),
        "largest": max(sizes),
        "row_range": [int(networks.n_rows.min()), int(networks.n_rows.max())],
        "width_range": [float(networks.widths.min()), float(networks.widths.max())],
        "alpha_range": [float(alphas.min()), float(alphas.max())] if len(alphas) else None,
        "n_learned": sum(each["learned"] for each in cells),
        "n_constant": n_cells - len(alphas),
        "fitting_error": solved.fitting_error,
        "spectral_risk": solved.spectral_risk,
        **_figures(run, dataset, every, solved.residuals.sum(axis=0)),
    }


def _numbers_in_all(dataset: Dataset) -> NDArray[np.int64]:
    """Return the row numbers of labelled rows in the dataset with all rows."""
    return replace(dataset, labelled_only=False).labelled_rows()


def _figures(run: Run, dataset: Dataset, cells: Sequence[int], residuals: Floats) -> dict[str, Any]:
    """Return the figures of the held-out rows of cells; store the confusion of classes."""
    sums = read_judged(run, dataset, FITS, cells)
    figures = sums.figures(0)
    if isinstance(sums, ResidualSums):
        unexplained = unexplained_share(residuals, sums.spread)
        return figures | {"training_r2": (1.0 - unexplained).tolist()}
    assert isinstance(sums, HeldOutSums)
    write_array(run.group("cells"), "confusion", sums.confusion[0], "class", "label")
    draw = reduce(add, (read_sum(run, FITS, cell, ScoreDraw, "drawn") for cell in cells))
    return figures | calibration_figures(draw, "squared", temperature=figures["temperature"])


def read_networks(run: Run) -> CellNetworks:
    """Return the tree and the arrays that differ between the networks of the cells of a run."""
    names = CellNetworks.array_names()
    return CellNetworks.from_arrays({name: run.read(f"cells/{name}") for name in names})


def _cost(s: FitSizes) -> StageCost:
    """Return the cost of a task for each cell, which tries widths, learns weights and solves."""
    params, n_cells = s.params, planned_cells(s.params, s.n)
    mean = -(-s.n // n_cells)
    # Cells that cannot be split are larger. Their memory is checked after their rows are counted.
    most, r = min(s.n, 2 * mean), min(basis_of_cell(params), mean)
    n_folds = (s.tuning or TuneParams()).folds
    learns = LEARNED in s.tried.scales
    n_tried = len(STEPS) + (len(STEPS_OF_ROUND) + 1) * ROUNDS * learns
    # Two more passes: one for the held-out folds, one for all rows.
    n_rows = n_cells * mean
    n_products = n_tried * min(n_rows, n_cells * TRIAL_ROWS * r) + 2 * n_rows
    solves = n_cells * (n_tried * len(ALPHAS) + n_folds + 1) * r**3 / 3
    row_bytes = s.p * s.dataset.dtype.itemsize + 8 * (s.q + 3)
    networks_bytes = n_cells * 8 * (r * (s.p + s.q) + s.p + s.q)
    block = min(search_block_rows(s.layout.chunk_rows, s.width, params), s.n)
    return StageCost(
        products=n_products * (r**2 + 2 * s.product_flops(r)) + solves,
        exponentials=2 * n_products * r,
        read_bytes=s.rows_bytes + n_rows * row_bytes,
        written_bytes=n_rows * row_bytes + 2 * networks_bytes + n_cells * 4 * r**2,
        held_bytes=s.held(
            cell_bytes(s.dataset, params, most),
            block * (3 * row_bytes + 16 * s.p),
            # The tree.
            min(s.n, _TREE_ROWS, _TREE_ELEMENTS // s.p) * 3 * 8 * s.p,
            3 * networks_bytes,
            comparing_bytes(s, most) if s.tried.tries_cells else 0,
        ),
        n_tasks=n_cells,
    )


def _check(context: FitContext) -> None:
    """Raise ParameterError if several cells do not support the parameters or the rows."""
    params, dataset = context.params, context.dataset
    n_rows = dataset.of_labelled().n_rows
    if isinstance(params.cells, int) and params.cells > n_rows:
        raise ParameterError(
            f"`cells` is {params.cells}, but only {plural(n_rows, 'row')} can be divided into "
            "cells.",
            f"Set `cells` to at most {n_rows}.",
        )
    unfit = context.tried.unfit_for_cells(sparse=dataset.is_sparse)
    unfit["a validation dataset"] = context.validation is not None
    for what, given in unfit.items():
        if given:
            raise ParameterError(
                f"`cells` is {params.cells}, but a fit with several cells does not support {what}.",
                "Give `cells`=1.",
            )


def _leaves(run: Run) -> tuple[str, ...]:
    """Return the names of the confusion of classes and of the sums over the rows of every cell."""
    if not run.has("cells/errors"):
        return ()
    names = [*Moments.array_names(), *(f"solved_{name}" for name in SolvedCell._fields)]
    cells = range(CELLS.recorded(run).n_cells)
    own = ["errors", "alphas", "shares", *(() if run.of_numbers else ("confusion",))]
    return (
        *(f"cells/{name}" for name in own),
        *(name for cell in cells for name in run.part_arrays(FITS, cell, names)),
    )


CELLS = Stage(
    name="cells",
    compute=_compute,
    cost=_cost,
    check=_check,
    wanted=lambda tried: tried.params.asks_for_cells,
    labelled_only=True,
    leaves=_leaves,
    scratch=(_SCRATCH,),
    remedy=lambda params: "Give more `cells`, or a smaller `basis_size`",
)
