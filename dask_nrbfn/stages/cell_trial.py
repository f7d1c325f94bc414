"""Comparison of one network with networks of cells on the same held-out rows."""

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import plural
from dask_nrbfn.numeric.folds import folds_of_numbers
from dask_nrbfn.numeric.small_fit import SmallTable, judge_network
from dask_nrbfn.numeric.threads import blas_threads
from dask_nrbfn.parts import PartResult, map_parts
from dask_nrbfn.stages.cell_fits import (
    CellRows,
    fit_cells,
    read_cell,
    read_cell_targets,
    read_judged,
)
from dask_nrbfn.stages.columns import read_scaling
from dask_nrbfn.stages.finals import JudgedRows, n_judged_folds
from dask_nrbfn.stages.sample import (
    bases_of_sample,
    judged_sums,
    network_of,
    small_table,
    tried_bytes,
    write_rows,
)
from dask_nrbfn.stages.sizes import FitSizes
from dask_nrbfn.stages.stage import StageJob
from dask_nrbfn.stages.trials import ALPHAS_BESIDE, search_rows
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run

logger = logging.getLogger(__name__)

# The names of the parts with the rows and networks of all cells. Updates need the networks.
ROWS, FITS = "cells-rows", "cells/networks"

# Number of drawn cells, and the names of the groups that a comparison stores.
_DRAWN = 8
_SAMPLE, _ONE = "cells-sample", "cells-one"
_DRAWN_ROWS, _DRAWN_FITS = "cells-drawn-rows", "cells-drawn-fits"

# Standard errors by which cells must do better: one network is trained on fewer rows here than in
# the fit.
_CLEARLY = 2.0

# Most basis rows of the one network, which can be solved a few times in a minute.
_MOST_BASIS = 4096


def compare_cells(job: StageJob, n_cells: int) -> dict[str, Any] | None:
    """Compare one network with the networks of drawn cells on the held-out rows of these cells.

    "one" and "cells": the figures of both. "gains" and "standard_errors": by how much cells do
    better in the loss and in the smooth loss. "gained": whether both gains exceed two standard
    errors. "n_rows", "n_cells". None if one network has too many basis rows to be tried.

    The one network is trained on a sample and on the rows of the drawn cells. Each row is scored
    by networks that were trained without the fold of the row.
    """
    run = job.run
    size = run.chosen_params.basis_size
    if size is not None and size > _MOST_BASIS:
        logger.info("cells: not tried, because one network has %d basis rows", size)
        return None
    rng = np.random.default_rng(run.chosen_params.random_state)
    drawn = sorted(rng.permutation(n_cells)[:_DRAWN].tolist())
    rows, fits = (ROWS, FITS) if len(drawn) == n_cells else (_DRAWN_ROWS, _DRAWN_FITS)
    fit_cells(job, rows, fits, drawn, keeps_scores=True)
    units = [(rows, fits, drawn)]
    (compared,) = map_parts(run, job.dataset, job.engine, stage=_ONE, task=_compare, units=units)
    name = judged_sums(job.dataset).compared[0]
    logger.info(
        "cells: %s %.4f of one network, %.4f of %s, on %d held-out rows",
        name.replace("_", " "),
        compared["one"][name],
        compared["cells"][name],
        plural(len(drawn), "drawn cell"),
        compared["n_rows"],
    )
    return {each: compared[each] for each in compared if each != "seconds"}


def comparing_bytes(s: FitSizes, n_rows: int) -> int:
    """Return the peak memory of a comparison in bytes, without the process and the chunks."""
    assert s.tuning is not None
    r = min(s.r, _MOST_BASIS)
    rows = min(s.n, search_rows(s.n, s.row_values, s.tuning) + _DRAWN * n_rows)
    own = tried_bytes(r, s.q, n_held_out=s.tuning.folds, n_ridges=2 * ALPHAS_BESIDE + 1)
    # The sample, the rows of the cells, both together and sorted by folds.
    return 4 * rows * (s.p * s.itemsize + 8 * (s.q + 3)) + own + s.basis_bytes(r, copies=4)


def _compare(run: Run, dataset: Dataset, rows: str, fits: str, drawn: list[int]) -> PartResult:
    of_cells = _rows_of(run, rows, drawn)
    table, scaling = _table(run, dataset, of_cells), read_scaling(run)
    tuning, params = run.remaining_tuning, run.chosen_params
    assert tuning is not None
    # Cells have chosen width and penalty by the first fold.
    n_judged = min(n_judged_folds(len(of_cells.numbers), tuning.folds), tuning.folds - 1)
    judged_folds = range(tuning.folds - n_judged, tuning.folds)
    entry, scores = judge_network(
        table,
        scaling,
        network_of(params, tuning),
        held_out=judged_folds,
        threads=blas_threads(),
    )
    parts = range(len(drawn))
    numbers, own = (
        np.concatenate([run.read_part(fits, part, name) for part in parts])
        for name in ("numbers", "scores")
    )
    order = np.argsort(numbers)
    # The rows of the cells follow those of the sample, in row order.
    places = np.flatnonzero(table.folds >= judged_folds.start)
    places = places[places >= len(table.folds) - len(numbers)]
    judged = own[order][places - (len(table.folds) - len(numbers))]
    entry_of_cells = read_judged(run, dataset, fits, parts).figures(0)
    both, shares = table.take(places), table.weights[places] / table.weights[places].sum()
    one = JudgedRows(both.losses(scores[places], entry), shares)
    many = JudgedRows(both.losses(judged, entry_of_cells), shares)
    gains, errors = many.gains_over(one)
    error = judged_sums(dataset).compared[0]
    return PartResult(
        {
            "one": {error: one.loss},
            "cells": {error: many.loss},
            "gains": gains.tolist(),
            "standard_errors": errors.tolist(),
            "gained": bool((gains > _CLEARLY * errors).all()),
            "n_rows": len(places),
            "n_cells": len(drawn),
        }
    )


def _rows_of(run: Run, rows: str, cells: list[int]) -> CellRows:
    """Return the rows of some cells, in ascending order."""
    pieces = [read_cell(run, rows, cell) for cell in cells]
    joined = CellRows.joined(pieces)
    return joined.take(np.argsort(joined.numbers))


def _table(run: Run, dataset: Dataset, of_cells: CellRows) -> SmallTable:
    """Return the rows of a sample that are in no drawn cell, then the rows of the cells."""
    params, tuning = run.chosen_params, run.remaining_tuning
    assert tuning is not None
    size = search_rows(run.n_rows, dataset.row_values, tuning)
    numbers = write_rows(run.group(_SAMPLE), "", dataset, params, size)
    wanted = params.basis_size or min(_MOST_BASIS, size)
    (basis,) = bases_of_sample(run, dataset, _SAMPLE, params, [(wanted, params.basis_rule)])
    further = ~np.isin(numbers, of_cells.numbers)

    def joined(name: str, own: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([run.read(f"{_SAMPLE}/{name}")[further], own])

    y = joined("targets", of_cells.targets)
    rows = np.concatenate([numbers[further], of_cells.numbers])
    folds = folds_of_numbers(rows, n_folds=tuning.folds, seed=params.random_state)
    basis_folds = folds_of_numbers(basis.rows, n_folds=tuning.folds, seed=params.random_state)
    X, weights = joined("X", of_cells.X), joined("weights", of_cells.weights)
    targets = read_cell_targets(run, dataset)
    return small_table(X, y, weights, targets, folds, basis.values, basis_folds)
