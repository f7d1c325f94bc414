"""A version of a run whose cells have networks: each cell is solved again from its own sums."""

import math
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from dask_nrbfn.commands.version import check_left, figures_of_rows, read_model
from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.cell_networks import CellNetworks
from dask_nrbfn.numeric.cell_solution import SolvedCell
from dask_nrbfn.numeric.hashing import hash_values
from dask_nrbfn.numeric.held_out import unexplained_share
from dask_nrbfn.numeric.moments import Moments, MomentSums
from dask_nrbfn.numeric.new_rows import NewRowSums, target_spread
from dask_nrbfn.numeric.penalties import penalty_named
from dask_nrbfn.numeric.products import row_products
from dask_nrbfn.numeric.targets import ClassTargets, NumberTargets, Targets
from dask_nrbfn.numeric.threads import blas_threads
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.parts import PartResult, map_parts, run_task, run_tasks
from dask_nrbfn.stages.cells import (
    CELLS,
    FITS,
    CellRows,
    cell_pieces,
    count_rows,
    read_solved,
    routed_rows,
)
from dask_nrbfn.stages.neighbor_search import search_block_rows
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.layout import PartLayout, block_rows
from dask_nrbfn.storage.model import Model
from dask_nrbfn.storage.run import Run
from dask_nrbfn.storage.versions import model_name
from dask_nrbfn.weighting import RowWeights

# A cell with a smaller share of its weight left has lost all rows.
_LEAST_LEFT = 1e-9

# A reason for a refresh.
_SINGULAR = "cells with too few rows for a network ({}) predict the mean of their targets"

# Tasks that solve cells.
_MOST_TASKS = 64


def update_cells(
    run: Run,
    base: str,
    name: str,
    dataset: Dataset,
    engine: Engine,
    *,
    stage: str,
    codes: list[int] | None,
    forget: bool,
    target_range: Floats | None,
) -> dict[str, Any]:
    """Store a version with the rows of `stage` added to cells, or removed; return its figures."""
    layout = PartLayout.of(dataset.n_rows, run.params.n_parts)
    n_rows = search_block_rows(layout.chunk_rows, dataset.row_width, run.chosen_params)
    starts = range(0, dataset.n_rows, n_rows)
    units = [(start, min(start + n_rows, dataset.n_rows), base, codes) for start in starts]
    map_parts(run, dataset, engine, stage=stage, task=_route, units=units)
    sizes = run_task(engine, count_rows, run, stage, len(units), label=stage)
    place = f"{name}/{uuid.uuid4().hex}"
    groups = _groups(len(sizes))
    updates = [(run, base, place, cells, stage, forget) for cells in groups]
    run_tasks(engine, _update, updates, label=stage)
    return run_task(engine, _finish, run, base, place, forget, target_range, label=stage)


def _groups(n_cells: int) -> list[list[int]]:
    """Return the cells that one task solves; it reads the model once."""
    return [each.tolist() for each in np.array_split(np.arange(n_cells), min(n_cells, _MOST_TASKS))]


def merge_cells(
    run: Run, base: str, name: str, other: Run, other_place: str, engine: Engine
) -> dict[str, Any]:
    """Store a version with a version of another run added; return figures of `solve_version`."""
    place, target_range = f"{name}/{uuid.uuid4().hex}", read_model(other, other_place).target_range
    groups = _groups(read_model(run, base).n_cells)
    merges = [(run, base, place, cells, other, other_place) for cells in groups]
    run_tasks(engine, _merge, merges, label="merge")
    return run_task(engine, _finish_merge, run, base, place, target_range, label="merge")


def _networks_of(place: str) -> str:
    """Return the name of the parts with the networks of a version."""
    return f"{place}/networks" if place else FITS


def _route(
    run: Run, dataset: Dataset, start: int, stop: int, base: str, codes: list[int] | None
) -> PartResult:
    """Store the rows of a block cell by cell, with the codes of the model."""
    (block,) = dataset.blocks(start, stop, stop - start)
    model = read_model(run, base)
    cells = _cells_of(model)
    scaled = np.asarray(model.scaling.apply(block.X))
    members = cells.tree.route(scaled)
    weighting = RowWeights.from_list(CELLS.recorded(run).class_weights, codes)
    routed = routed_rows(block, start, members, weighting, n_cells=cells.n_cells)
    if codes is None:
        return routed
    in_model = np.array(codes)[routed.arrays["targets"]]
    return routed._replace(arrays={**routed.arrays, "targets": in_model})


def _cells_of(model: Model) -> CellNetworks:
    assert model.cells is not None
    return model.cells


def _targets_of(model: Model) -> Targets:
    if model.intercept is not None:
        return NumberTargets(model.intercept)
    return ClassTargets(model.n_targets)


class _Cell:
    """One cell of a version, and the moments of its rows so far."""

    def __init__(self, run: Run, base: str, model: Model, cell: int) -> None:
        self._run, self._cell, self._model = run, cell, model
        cells = _cells_of(self._model)
        self._basis = slice(int(cells.starts[cell]), int(cells.starts[cell + 1]))
        self._features = self._model.features_of_cell(cell)
        self._alpha = float(run.read("cells/alphas")[cell])
        self.moments = self.stored_moments(run, base)

    def stored_moments(self, run: Run, place: str) -> Moments:
        """Return the moments of the same cell in a version of a run."""
        names, stage = Moments.array_names(), _networks_of(place)
        arrays = {name: run.read_part(stage, self._cell, name) for name in names}
        return Moments.from_arrays(arrays)

    def sums_of(self, pieces: Iterator[CellRows]) -> tuple[Moments, NewRowSums | None]:
        """Return the moments of new rows, and the sums over their scores by the old version."""
        r, targets = self._features.n_basis, _targets_of(self._model)
        sums, seen = MomentSums(r, self._model.n_targets), []
        step, hashes = block_rows(r), hash_values(self._model.basis[self._basis])
        for piece in pieces:
            for start in range(0, len(piece.X), step):
                rows = piece.take(slice(start, start + step))
                scaled = np.asarray(self._model.scaling.apply(rows.X))
                factors = np.sqrt(rows.weights)
                Phi = self._activations(scaled)
                scores = row_products(Phi, np.ascontiguousarray(self._weights))
                Phi *= factors[:, None]
                sums.add(Phi, targets.bordered(rows.targets, factors))
                seen.append(
                    NewRowSums.from_block(
                        scores + self._intercept,
                        rows.targets,
                        rows.weights,
                        n_basis_rows=int(np.isin(hash_values(scaled), hashes).sum()),
                    )
                )
        return sums.moments(), reduce(add, seen) if seen else None

    @property
    def _is_constant(self) -> bool:
        return math.isnan(self._alpha)

    def _activations(self, scaled: Floats) -> Floats:
        """Return the activations of scaled rows; 0 where the scores are constant."""
        if self._is_constant:
            return np.zeros((len(scaled), 1))
        return self._features.activations(scaled, threads=blas_threads())

    @property
    def _weights(self) -> Floats:
        return self._model.weights[:, self._basis]

    @property
    def _intercept(self) -> Floats:
        own = _cells_of(self._model).intercepts[self._cell]
        return own if self._model.intercept is None else own + self._model.intercept

    def solved(self) -> SolvedCell:
        """Return the solution of the moments; constant scores if the system is singular."""
        params = self._model.params
        if self.moments.total_weight == 0:
            return SolvedCell.constant(self.moments)
        shares = self._run.read("cells/shares", self._basis.start, self._basis.stop)
        solved = SolvedCell.of(
            self.moments,
            _targets_of(self._model),
            alpha=self._alpha,
            normalized=params.normalized,
            penalty=None
            if self._is_constant
            else penalty_named(params.penalty).of(lambda: self._features, shares),
        )
        return SolvedCell.constant(self.moments) if solved is None else solved

    def store(self, place: str, n_rows: int, seen: NewRowSums | None = None) -> None:
        """Store the solution and the moments for a version with `n_rows` more rows."""
        of_rows = {} if seen is None else seen.arrays()
        arrays = {
            **self.solved().arrays(),
            **self.moments.arrays(),
            **{f"seen_{name}": values for name, values in of_rows.items()},
        }
        record = {"n_rows": n_rows, "seen": seen is not None}
        self._run.write_part(_networks_of(place), self._cell, record, arrays)


def _update(run: Run, base: str, place: str, cells: list[int], rows: str, forget: bool) -> None:
    """Store the moments of some cells with the new rows, or without them, and their solutions."""
    model = read_model(run, base)
    for cell in cells:
        of_cell = _Cell(run, base, model, cell)
        new, seen = of_cell.sums_of(cell_pieces(run, rows, cell))
        n_rows = 0 if seen is None else seen.n_rows
        if not forget:
            of_cell.moments += new
        elif new.total_weight:
            of_cell.moments = _left(of_cell.moments, new)
        of_cell.store(place, -n_rows if forget else n_rows, seen)


def _left(moments: Moments, taken: Moments) -> Moments:
    """Return moments less those of some rows; exactly 0 if no rows are left."""
    left = moments - taken
    if left.total_weight > _LEAST_LEFT * moments.total_weight:
        check_left(left, taken)
        return left
    sizes = np.append(taken.diagonal(), taken.target_products.diagonal())
    found = np.append(left.diagonal(), left.target_products.diagonal())
    if (np.abs(found) > _LEAST_LEFT * np.maximum(sizes, sizes.max())).any():
        raise DataError(
            "the rows to forget cannot all be in the run: a cell would have no rows, but sums that "
            "are not 0.",
            "Forget rows that were fitted or added before, with the same labels and weights.",
        )
    return Moments.zeros(moments.n_basis, len(moments.cross))


def _merge(run: Run, base: str, place: str, cells: list[int], other: Run, other_place: str) -> None:
    """Store the moments of some cells in both runs, and their solutions."""
    model, further = read_model(run, base), _cells_of(read_model(other, other_place))
    for cell in cells:
        of_cell = _Cell(run, base, model, cell)
        of_cell.moments += of_cell.stored_moments(other, other_place)
        of_cell.store(place, int(further.n_rows[cell]))


def _finish(
    run: Run, base: str, place: str, forget: bool, target_range: Floats | None
) -> dict[str, Any]:
    """Store the model of a version with new rows; return its figures."""
    model = read_model(run, base)
    stage, cells = _networks_of(place), range(model.n_cells)
    figures = _write_model(run, model, place, target_range)
    names = NewRowSums.array_names()
    sums = [
        NewRowSums.from_arrays({name: run.read_part(stage, cell, f"seen_{name}") for name in names})
        for cell in cells
        if (run.part_record(stage, cell) or {})["seen"]
    ]
    seen: NewRowSums = reduce(add, sums)
    of_base = [run.read_part(_networks_of(base), cell, "target_products") for cell in cells]
    of_rows = figures_of_rows(seen, model, np.sum(of_base, axis=0), forget=forget)
    return {**figures, **of_rows, "reasons": [*of_rows["reasons"], *figures["reasons"]]}


def _finish_merge(run: Run, base: str, place: str, target_range: Floats | None) -> dict[str, Any]:
    return {**_write_model(run, read_model(run, base), place, target_range), "new_error": None}


def _write_model(run: Run, model: Model, place: str, target_range: Floats | None) -> dict[str, Any]:
    """Store the model of the networks of a version with further targets; return its figures."""
    stage, cells = _networks_of(place), _cells_of(model)
    solved = read_solved(run, stage, cells.n_cells)
    of_targets = np.array(
        [run.read_part(stage, cell, "target_products") for cell in range(cells.n_cells)]
    )
    total, empty = of_targets.sum(axis=0), of_targets[:, 0, 0] == 0
    if empty.all():
        raise DataError(
            "the run would be left without rows.", "Begin a new run, or forget fewer rows."
        )
    # A cell without remaining rows predicts the mean of all rows.
    intercepts = np.where(empty[:, None], total[0, 1:] / total[0, 0], solved.intercepts)
    was_solved = np.isfinite(run.read("cells/alphas"))
    n_singular = int(np.count_nonzero(was_solved & np.isnan(solved.alphas) & ~empty))
    records = [run.part_record(stage, cell) or {} for cell in range(cells.n_cells)]
    n_rows = cells.n_rows + np.array([record["n_rows"] for record in records])
    changed = replace(
        model,
        weights=solved.weights,
        cells=replace(cells, intercepts=intercepts, n_rows=n_rows),
        fitting_error=solved.fitting_error,
        spectral_risk=solved.spectral_risk,
        target_range=model.range_with(target_range),
    )
    changed.write(run.group(model_name(place)))
    figures = {
        "place": place,
        "weight": float(total[0, 0]),
        # Each cell has its own alpha.
        "alpha": None,
        "fitting_error": solved.fitting_error,
        "spectral_risk": solved.spectral_risk,
        "reciprocal_condition": None,
        "reasons": [_SINGULAR.format(n_singular)] if n_singular else [],
    }
    if model.target_names is not None:
        unexplained = unexplained_share(solved.residuals.sum(axis=0), target_spread(total))
        figures["training_r2"] = (1.0 - unexplained).tolist()
    return figures
