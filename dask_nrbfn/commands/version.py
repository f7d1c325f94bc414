"""A version of a run: its moments, to which rows are added or subtracted, and its model.

One task solves the network, or the networks of all cells, each from its own moments.
"""

import math
import uuid
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np

from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.cell_networks import CellNetworks
from dask_nrbfn.numeric.cell_solution import SolvedCell, SolvedCells
from dask_nrbfn.numeric.folds import FoldedBlock
from dask_nrbfn.numeric.hashing import hash_values
from dask_nrbfn.numeric.held_out import unexplained_share
from dask_nrbfn.numeric.moments import Moments, are_sums_of_rows, check_moments
from dask_nrbfn.numeric.new_rows import NewRowSums, target_spread
from dask_nrbfn.numeric.penalties import penalty_named
from dask_nrbfn.numeric.products import row_products
from dask_nrbfn.numeric.targets import ClassTargets, NumberTargets, Targets
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.parts import PartResult, Reduction, Sums, map_parts, reduce_parts, run_task
from dask_nrbfn.stages.cells import FITS
from dask_nrbfn.stages.moments import MOMENTS, MomentsPass, read_sums, read_targets, write_sums
from dask_nrbfn.stages.weights import choose_kept, describe_network, full_system
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location, open_group
from dask_nrbfn.storage.layout import PartLayout, block_rows
from dask_nrbfn.storage.model import Model, open_version
from dask_nrbfn.storage.run import FORGET, Run, model_name, version_name
from dask_nrbfn.weighting import Reading, RowWeights, folded_blocks

# Largest rounding error of a difference, relative to the subtracted sums. A network with a smaller
# share of its weight left has lost all rows.
_LEFT_OVER = 1e-9

# A reason for a refresh.
_SINGULAR = "cells with too few rows for a network ({}) predict the mean of their targets"

# The sums over new rows.
_KINDS: dict[str, type[Any]] = {"": Moments, "_seen": NewRowSums}


class Change(NamedTuple):
    """How a version differs from the version at `base`.

    stage, parts: the parts with the sums of all new rows, which have one part per cell.
    other, other_place: a run and its version, whose moments are added.
    target_range: range (2, q) of added numeric targets.
    """

    action: str
    base: str
    stage: str = ""
    parts: range = range(0)
    other: Location | None = None
    other_place: str = ""
    target_range: Floats | None = None


def read_model(run: Run, place: str) -> Model:
    """Return the model of the version at `place`."""
    return Model.read(open_version(open_group(run.location, kind="run"), place))


def read_full_model(run: Run, place: str) -> Model:
    """Return the model of a version with all basis rows of the run; pruned rows have weight 0."""
    model = read_model(run, place)
    if model.places is None:
        return model
    basis = model.scaling.apply(run.read("basis/values"))
    weights = np.zeros((model.n_targets, basis.shape[0]))
    weights[:, model.places] = model.weights
    return replace(model, basis=basis, weights=weights, places=None)


def sum_rows(
    run: Run,
    model: Model,
    base: str,
    dataset: Dataset,
    engine: Engine,
    *,
    stage: str,
    codes: list[int] | None,
) -> range:
    """Sum new rows as parts of a stage; return `Change.parts`."""
    if model.cells is None:
        layout = PartLayout.of(dataset.n_rows, run.params.n_parts)
        reduction = Reduction(stage, UpdatePass, _KINDS, layout, (base, codes))
        reduce_parts(run, dataset, engine, reduction)
        return range(layout.n_parts)
    # Every cell reads all new rows: that takes much less time than its moments.
    units = [(base, codes, cell) for cell in range(model.n_cells)]
    map_parts(run, dataset, engine, stage=stage, task=_sum_cell, units=units)
    return range(model.n_cells)


def _sum_cell(
    run: Run, dataset: Dataset, base: str, codes: list[int] | None, cell: int
) -> PartResult:
    """Return the sums of the new rows of a cell."""
    span = (0, dataset.n_rows)
    work = UpdatePass(run, dataset, *span, base, codes, cell)
    for block in folded_blocks(dataset, *span, work.reading):
        work.add(block)
    sums = work.sums().items()
    arrays = {name + key: each for key, one in sums for name, each in one.arrays().items()}
    return PartResult({}, arrays)


def solve_version(
    run: Run, model: Model, version: int, change: Change, engine: Engine
) -> dict[str, Any]:
    """Store the moments and the model of a version; return its figures for the record."""
    solve = _solve_network if model.cells is None else _solve_cells
    return run_task(engine, solve, run, version_name(version), change, label=change.action)


class UpdatePass(MomentsPass):
    """Moments of the rows of a part, or of a cell, and sums over the scores by the old model."""

    def __init__(
        self,
        run: Run,
        dataset: Dataset,
        start: int,
        stop: int,
        base: str,
        codes: list[int] | None,
        cell: int | None = None,
    ) -> None:
        model = read_full_model(run, base)
        self._model, self._cell = model, cell
        self._weights, self._intercept = model.weights, np.zeros(model.n_targets)
        if model.intercept is not None:
            self._intercept = model.intercept
        if cell is None:
            features, targets = model.features, read_targets(run, model.n_targets)
            basis, record = run.read("basis/values"), run.stages["width"]
        else:
            cells, own = _cells_of(model), _basis_of(model, cell)
            features, targets = model.features_of_cell(cell), _targets_of(model)
            basis, record = model.basis[own], run.stages["cells"]
            self._weights = np.ascontiguousarray(model.weights[:, own])
            self._intercept = self._intercept + cells.intercepts[cell]
        reading = Reading(
            block_rows=block_rows(features.n_basis),
            weighting=RowWeights.from_list(record["class_weights"], codes),
            codes_in_model=codes,
        )
        super().__init__(features, reading, targets=targets, n_rows=stop - start)
        self._basis_hashes = hash_values(basis)
        n_errors = 1 if model.target_names is None else model.n_targets
        self._seen = NewRowSums(n_rows=0, n_basis_rows=0, weight=0.0, errors=np.zeros(n_errors))

    def add(self, block: FoldedBlock) -> None:
        """Add a block."""
        if self._cell is not None:
            block = self._rows_of_cell(block, self._cell)
        if not block.n_rows:
            return
        super().add(block)
        scores = row_products(self._buffer[: block.n_rows], self._weights)
        if block.factors is not None:
            scores /= block.factors[:, None]
        weights = np.ones(block.n_rows) if block.weights is None else block.weights
        n_basis_rows = int(np.isin(hash_values(block.X), self._basis_hashes).sum())
        self._seen += NewRowSums.from_block(
            scores + self._intercept, block.targets, weights, n_basis_rows=n_basis_rows
        )

    def _rows_of_cell(self, block: FoldedBlock, cell: int) -> FoldedBlock:
        """Return the rows of a cell, scaled as the basis is."""
        scaled = np.asarray(self._model.scaling.apply(block.X))
        rows, cells = _cells_of(self._model).tree.route(scaled)
        own = rows[cells == cell]
        weights = None if block.weights is None else block.weights[own]
        return FoldedBlock(scaled[own], block.targets[own], weights, [slice(0, len(own))])

    def sums(self) -> Sums:
        """Return the moments, and the sums over the scores."""
        return {**super().sums(), "_seen": self._seen}


def _read_moments(run: Run, place: str, cell: int | None) -> Moments:
    """Return the moments of a version, or those of one of its cells."""
    if cell is None:
        return read_sums(run, place or MOMENTS.name)
    return _read_sum(run, Moments, _networks_of(place), cell)


def _read_sum(run: Run, kind: type[Any], stage: str, part: int | range, suffix: str = "") -> Any:
    names = kind.array_names()
    return kind.from_arrays({name: run.read_part(stage, part, name + suffix) for name in names})


def _read_new(
    run: Run, change: Change, cell: int | None = None
) -> tuple[Moments, NewRowSums | None]:
    """Return the moments of new rows and, except for a merge, the sums over their scores."""
    if change.other is not None:
        return _read_moments(Run.open(change.other), change.other_place, cell), None
    part = change.parts if cell is None else cell
    moments, seen = (
        _read_sum(run, kind, change.stage, part, suffix) for suffix, kind in _KINDS.items()
    )
    return moments, seen


def _solve_network(run: Run, name: str, change: Change) -> dict[str, Any]:
    """Store a version of one network; return its figures.

    dask may run a task twice at the same time, so every attempt has its own place.
    """
    place, forget = f"{name}/{uuid.uuid4().hex}", change.action == FORGET
    model, moments = read_full_model(run, change.base), _read_moments(run, change.base, None)
    new, seen = _read_new(run, change)
    figures = _figures_of_rows(seen, model, moments.target_products, forget=forget)
    before, weight = moments.total_weight, new.total_weight if seen is None else seen.weight
    moments = _changed(moments, new, forget=forget)
    # The solve needs its memory.
    del new
    if moments.total_weight == 0:
        raise _without_rows()
    expected = before - weight if forget else before + weight
    check_moments(moments, expected, normalized=model.params.normalized, largest=before)
    write_sums(run, place, moments)
    system = full_system(run, moments, features=lambda: model.features)
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
        target_range=model.range_with(change.target_range),
        fitting_error=network.record["fitting_error"],
        spectral_risk=network.record["spectral_risk"],
    )
    solved.write(run.group(model_name(place)))
    return {**figures, "place": place, "weight": moments.total_weight, **network.record}


def _figures_of_rows(
    seen: NewRowSums | None, model: Model, target_products: Floats, *, forget: bool
) -> dict[str, Any]:
    """Return the figures of new rows, and reasons for a refresh, given products of earlier rows."""
    if seen is None:
        return {"new_error": None, "reasons": []}
    reasons, new_error = [], None
    if forget and seen.n_basis_rows:
        reasons = [f"{seen.n_basis_rows} of the forgotten rows are basis rows of the model"]
    if not forget:
        of_classes = model.target_names is None
        new_error = seen.error_rate() if of_classes else seen.relative_error(target_products)
    return {
        "n_rows": seen.n_rows,
        "n_basis_rows": seen.n_basis_rows,
        "new_error": new_error,
        "reasons": reasons,
    }


def _changed(moments: Moments, new: Moments, *, forget: bool) -> Moments:
    """Add or subtract the moments of some rows in place; return exactly 0 if no rows are left."""
    before = moments.total_weight
    if not forget:
        moments += new
        return moments
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
    return DataError("the run would be left without rows.", "Begin a new run, or forget fewer.")


def _networks_of(place: str) -> str:
    """Return the name of the parts with the networks of a version."""
    return f"{place}/networks" if place else FITS


def _cells_of(model: Model) -> CellNetworks:
    assert model.cells is not None
    return model.cells


def _basis_of(model: Model, cell: int) -> slice:
    return slice(*_cells_of(model).starts[cell : cell + 2].tolist())


def _targets_of(model: Model) -> Targets:
    if model.intercept is not None:
        return NumberTargets(model.intercept)
    return ClassTargets(model.n_targets)


def _solution(run: Run, model: Model, moments: Moments, cell: int, alpha: float) -> SolvedCell:
    """Return the solution of the moments of a cell; constant scores if the system is singular."""
    if moments.total_weight == 0:
        return SolvedCell.constant(moments)
    penalty, params = None, model.params
    if not math.isnan(alpha):
        own = _basis_of(model, cell)
        shares = run.read("cells/shares", own.start, own.stop)
        of_features = penalty_named(params.penalty).of
        penalty = of_features(lambda: model.features_of_cell(cell), shares)
    targets, normalized = _targets_of(model), params.normalized
    solved = SolvedCell.of(moments, targets, alpha=alpha, normalized=normalized, penalty=penalty)
    return SolvedCell.constant(moments) if solved is None else solved


def _solve_cells(run: Run, name: str, change: Change) -> dict[str, Any]:
    """Store a version of the networks of all cells; return its figures."""
    place, forget = f"{name}/{uuid.uuid4().hex}", change.action == FORGET
    model, alphas = read_model(run, change.base), run.read("cells/alphas")
    cells, solutions, of_targets = _cells_of(model), [], []
    seen: list[Any] = []
    for cell, alpha in enumerate(alphas.tolist()):
        moments = _read_moments(run, change.base, cell)
        before = moments.target_products.copy()
        new, of_new_rows = _read_new(run, change, cell)
        if math.isnan(alpha):
            # Constant scores have no activations.
            new = replace(new, packed_gram=0 * new.packed_gram, products=0 * new.products)
        if new.total_weight:
            moments = _changed(moments, new, forget=forget)
        arrays = _solution(run, model, moments, cell, alpha).arrays()
        run.write_part(_networks_of(place), cell, {}, arrays | moments.arrays())
        solutions.append(arrays)
        seen.append(of_new_rows)
        of_targets.append([before, moments.target_products])
    solved, (before, total) = SolvedCells.joined(solutions), np.sum(of_targets, axis=0)
    empty = np.array([after[0, 0] == 0 for _, after in of_targets])
    if empty.all():
        raise _without_rows()
    if change.other is None:
        further, of_all = np.array([each.n_rows for each in seen]), reduce(add, seen)
    else:
        other = read_model(Run.open(change.other), change.other_place)
        further, of_all = _cells_of(other).n_rows, None
    changed = replace(
        model,
        weights=solved.weights,
        cells=replace(
            cells,
            # A cell without remaining rows predicts the mean of all rows.
            intercepts=np.where(empty[:, None], total[0, 1:] / total[0, 0], solved.intercepts),
            n_rows=cells.n_rows + (-further if forget else further),
        ),
        fitting_error=solved.fitting_error,
        spectral_risk=solved.spectral_risk,
        target_range=model.range_with(change.target_range),
    )
    changed.write(run.group(model_name(place)))
    figures = _figures_of_rows(of_all, model, before, forget=forget)
    if n_singular := np.count_nonzero(np.isfinite(alphas) & np.isnan(solved.alphas) & ~empty):
        figures["reasons"].append(_SINGULAR.format(n_singular))
    # Each cell has its own alpha.
    figures |= {"alpha": None, "reciprocal_condition": None}
    if model.target_names is not None:
        unexplained = unexplained_share(solved.residuals.sum(axis=0), target_spread(total))
        figures["training_r2"] = (1.0 - unexplained).tolist()
    return {
        **figures,
        "place": place,
        "weight": float(total[0, 0]),
        "fitting_error": solved.fitting_error,
        "spectral_risk": solved.spectral_risk,
    }
