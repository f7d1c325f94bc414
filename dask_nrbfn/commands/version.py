"""A version of a run: its moments, to which rows are added or subtracted, and its model.

One network is solved by one task. The networks of cells are solved by several tasks, each cell from
its own moments.
"""

import math
import uuid
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.engine import Engine
from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.cell_networks import CellNetworks
from dask_nrbfn.numeric.cell_solution import SolvedCell
from dask_nrbfn.numeric.folds import FoldedBlock
from dask_nrbfn.numeric.hashing import hash_values
from dask_nrbfn.numeric.held_out import unexplained_share
from dask_nrbfn.numeric.moments import Moments, MomentSums, are_sums_of_rows, check_moments
from dask_nrbfn.numeric.new_rows import NewRowSums, target_spread
from dask_nrbfn.numeric.penalties import penalty_named
from dask_nrbfn.numeric.products import row_products
from dask_nrbfn.numeric.rows import Rows
from dask_nrbfn.numeric.targets import ClassTargets, NumberTargets, Targets
from dask_nrbfn.numeric.threads import blas_threads
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.parts import (
    PartResult,
    Reduction,
    Sums,
    map_parts,
    read_total,
    reduce_parts,
    run_task,
    run_tasks,
)
from dask_nrbfn.stages import cells_record
from dask_nrbfn.stages.bases import search_block_rows
from dask_nrbfn.stages.cells import (
    CELLS,
    FITS,
    cell_pieces,
    count_rows,
    read_solved,
    read_sum,
    routed_rows,
)
from dask_nrbfn.stages.moments import MOMENTS, MomentsPass, read_sums, read_targets, write_sums
from dask_nrbfn.stages.weights import choose_kept, describe_network, full_system
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location, open_group
from dask_nrbfn.storage.layout import PartLayout, block_rows
from dask_nrbfn.storage.model import Model, open_version
from dask_nrbfn.storage.run import Run
from dask_nrbfn.storage.versions import FORGET, model_name, version_name
from dask_nrbfn.weighting import Reading, RowWeights

# Largest rounding error of a difference, relative to the subtracted sums. A network with a smaller
# share of its weight left has lost all rows.
_LEFT_OVER = 1e-9

# A reason for a refresh.
_SINGULAR = "cells with too few rows for a network ({}) predict the mean of their targets"

# Tasks that solve cells.
_MOST_TASKS = 64


class Change(NamedTuple):
    """How a version differs from the version at `base`.

    rows: sums of new rows: a reduction, or for cells the name of a stage; None for a merge.
    other, other_place: a run and its version, whose moments are added.
    target_range: range (2, q) of added numeric targets.
    """

    action: str
    base: str
    rows: Reduction | str | None = None
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


def _read_moments(run: Run, place: str) -> Moments:
    return read_sums(run, place or MOMENTS.name)


def sum_rows(
    run: Run, base: str, dataset: Dataset, engine: Engine, *, stage: str, codes: list[int] | None
) -> Reduction | str:
    """Sum new rows as parts of a stage, or route them to cells; return `Change.rows`."""
    layout = PartLayout.of(dataset.n_rows, run.params.n_parts)
    if not cells_record(run.stages):
        kinds = {"": Moments, "_seen": NewRowSums}
        reduction = Reduction(stage, UpdatePass, kinds, layout, (base, codes))
        reduce_parts(run, dataset, engine, reduction)
        return reduction
    size = search_block_rows(layout.chunk_rows, dataset.row_width, run.chosen_params)
    starts = range(0, dataset.n_rows, size)
    units = [(start, min(start + size, dataset.n_rows), base, codes) for start in starts]
    map_parts(run, dataset, engine, stage=stage, task=_route, units=units)
    run_task(engine, count_rows, run, stage, len(units), label=stage)
    return stage


def solve_version(
    run: Run, model: Model, version: int, change: Change, engine: Engine
) -> dict[str, Any]:
    """Store the moments and the model of a version; return its figures.

    These are "place", "weight", "n_rows", "n_basis_rows", "new_error", "reasons" for a refresh, and
    the record of the weights.
    """
    name, label = version_name(version), change.action
    if model.cells is None:
        return run_task(engine, _solve_network, run, name, change, label=label)
    place = f"{name}/{uuid.uuid4().hex}"
    # A task reads the model once.
    groups = np.array_split(np.arange(model.n_cells), min(model.n_cells, _MOST_TASKS))
    arguments = [(run, place, cells.tolist(), change) for cells in groups]
    run_tasks(engine, _solve_cells, arguments, label=label)
    return run_task(engine, _join_cells, run, place, change, label=label)


class UpdatePass(MomentsPass):
    """Moments of the rows of a part, and sums over the scores by the previous model."""

    def __init__(
        self, run: Run, dataset: Dataset, start: int, stop: int, base: str, codes: list[int] | None
    ) -> None:
        model = read_full_model(run, base)
        reading = Reading(
            block_rows=block_rows(model.n_basis),
            weighting=RowWeights.from_list(run.stages["width"]["class_weights"], codes),
            codes_in_model=codes,
        )
        targets = read_targets(run, model.n_targets)
        super().__init__(model.features, reading, targets=targets, n_rows=stop - start)
        self._model = model
        self._basis_hashes = hash_values(run.read("basis/values"))
        self._seen: list[NewRowSums] = []

    def add(self, block: FoldedBlock) -> None:
        """Add a block."""
        super().add(block)
        scores = row_products(self._buffer[: block.n_rows], self._model.weights)
        if block.factors is not None:
            scores /= block.factors[:, None]
        if self._model.intercept is not None:
            scores += self._model.intercept
        weights = np.ones(len(scores)) if block.weights is None else block.weights
        seen = _seen(scores, block.targets, weights, block.X, self._basis_hashes)
        self._seen.append(seen)

    def sums(self) -> Sums:
        """Return the moments, and the sums over the scores."""
        return {**super().sums(), "_seen": reduce(add, self._seen)}


def _seen(
    scores: Floats, targets: NDArray[Any], weights: Floats, X: Rows, basis_hashes: NDArray[Any]
) -> NewRowSums:
    n_basis_rows = int(np.isin(hash_values(X), basis_hashes).sum())
    return NewRowSums.from_block(scores, targets, weights, n_basis_rows=n_basis_rows)


def _solve_network(run: Run, name: str, change: Change) -> dict[str, Any]:
    """Store a version of one network; return its figures.

    dask may run a task twice at the same time, so every attempt has its own place.
    """
    place, forget = f"{name}/{uuid.uuid4().hex}", change.action == FORGET
    model, moments = read_full_model(run, change.base), _read_moments(run, change.base)
    seen: NewRowSums | None = None
    if isinstance(change.rows, Reduction):
        new, seen = read_total(run, change.rows), read_total(run, change.rows, "_seen")
    else:
        assert change.other is not None
        new = _read_moments(Run.open(change.other), change.other_place)
    figures = _figures_of_rows(seen, model, moments.target_products, forget=forget)
    before, weight = moments.total_weight, new.total_weight if seen is None else seen.weight
    if forget:
        moments = _left(moments, new)
        if moments.total_weight == 0:
            raise _without_rows()
    else:
        moments += new
    # The solve needs its memory.
    del new
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


def _left(moments: Moments, taken: Moments) -> Moments:
    """Return moments less those of some rows, in place; exactly 0 if no rows are left."""
    before = moments.total_weight
    moments -= taken
    has_rows = moments.total_weight > _LEFT_OVER * before
    left, sizes = (
        np.concatenate([each.diagonal(), each.target_products.diagonal()])
        for each in (moments, taken)
    )
    if has_rows:
        # The first test also detects values that are small relative to the sums before.
        wrong = (left < -_LEFT_OVER * sizes).any() or not are_sums_of_rows(
            moments, taken, tolerance=_LEFT_OVER
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


def _route(
    run: Run, dataset: Dataset, start: int, stop: int, base: str, codes: list[int] | None
) -> PartResult:
    """Store the rows of a block cell by cell, with the codes of the model."""
    (block,) = dataset.blocks(start, stop, stop - start)
    model = read_model(run, base)
    cells = _cells_of(model)
    members = cells.tree.route(np.asarray(model.scaling.apply(block.X)))
    weighting = RowWeights.from_list(CELLS.recorded(run).class_weights, codes)
    routed = routed_rows(block, start, members, weighting, n_cells=cells.n_cells)
    if codes is None:
        return routed
    in_model = np.array(codes)[routed.arrays["targets"]]
    return routed._replace(arrays={**routed.arrays, "targets": in_model})


def _solve_cells(run: Run, place: str, cells: list[int], change: Change) -> None:
    """Store the moments of some cells with a change, and their solutions."""
    model, alphas = read_model(run, change.base), run.read("cells/alphas")
    forget, other = change.action == FORGET, None
    if change.other is not None:
        other = Run.open(change.other)
        further = _cells_of(read_model(other, change.other_place)).n_rows
    for cell in cells:
        moments, alpha = _moments_of_cell(run, change.base, cell), float(alphas[cell])
        arrays = {}
        if other is not None:
            new, n_rows = _moments_of_cell(other, change.other_place, cell), int(further[cell])
        else:
            new, seen = _sums_of_cell(run, model, str(change.rows), cell, alpha)
            n_rows = seen.n_rows
            arrays = {f"seen_{name}": values for name, values in seen.arrays().items()}
        if not forget:
            moments += new
        elif new.total_weight:
            moments = _left(moments, new)
        arrays |= _solution(run, model, moments, cell, alpha).arrays() | moments.arrays()
        run.write_part(_networks_of(place), cell, {"n_rows": -n_rows if forget else n_rows}, arrays)


def _networks_of(place: str) -> str:
    """Return the name of the parts with the networks of a version."""
    return f"{place}/networks" if place else FITS


def _cells_of(model: Model) -> CellNetworks:
    assert model.cells is not None
    return model.cells


def _targets_of(model: Model) -> Targets:
    if model.intercept is not None:
        return NumberTargets(model.intercept)
    return ClassTargets(model.n_targets)


def _moments_of_cell(run: Run, place: str, cell: int) -> Moments:
    names, stage = Moments.array_names(), _networks_of(place)
    return Moments.from_arrays({name: run.read_part(stage, cell, name) for name in names})


def _sums_of_cell(
    run: Run, model: Model, stage: str, cell: int, alpha: float
) -> tuple[Moments, NewRowSums]:
    """Return the moments of new rows of a cell, and the sums over their scores by `model`."""
    cells, features, targets = _cells_of(model), model.features_of_cell(cell), _targets_of(model)
    basis = slice(int(cells.starts[cell]), int(cells.starts[cell + 1]))
    weights, hashes = np.ascontiguousarray(model.weights[:, basis]), hash_values(model.basis[basis])
    intercept = cells.intercepts[cell]
    if model.intercept is not None:
        intercept = intercept + model.intercept
    r = features.n_basis
    sums, step = MomentSums(r, model.n_targets), block_rows(r)
    n_errors = 1 if model.target_names is None else model.n_targets
    seen = NewRowSums(n_rows=0, n_basis_rows=0, weight=0.0, errors=np.zeros(n_errors))
    for piece in cell_pieces(run, stage, cell):
        for start in range(0, len(piece.X), step):
            rows = piece.take(slice(start, start + step))
            scaled, factors = np.asarray(model.scaling.apply(rows.X)), np.sqrt(rows.weights)
            # Constant scores have no activations.
            Phi = np.zeros((len(scaled), 1))
            if not math.isnan(alpha):
                Phi = features.activations(scaled, threads=blas_threads())
            scores = row_products(Phi, weights) + intercept
            Phi *= factors[:, None]
            sums.add(Phi, targets.bordered(rows.targets, factors))
            seen += _seen(scores, rows.targets, rows.weights, scaled, hashes)
    return sums.moments(), seen


def _solution(run: Run, model: Model, moments: Moments, cell: int, alpha: float) -> SolvedCell:
    """Return the solution of the moments of a cell; constant scores if the system is singular."""
    if moments.total_weight == 0:
        return SolvedCell.constant(moments)
    penalty, params = None, model.params
    if not math.isnan(alpha):
        first, stop = _cells_of(model).starts[cell : cell + 2].tolist()
        shares = run.read("cells/shares", first, stop)
        of_features = penalty_named(params.penalty).of
        penalty = of_features(lambda: model.features_of_cell(cell), shares)
    targets, normalized = _targets_of(model), params.normalized
    solved = SolvedCell.of(moments, targets, alpha=alpha, normalized=normalized, penalty=penalty)
    return SolvedCell.constant(moments) if solved is None else solved


def _join_cells(run: Run, place: str, change: Change) -> dict[str, Any]:
    """Store the model of the solved cells of a version; return its figures."""
    model, stage = read_model(run, change.base), _networks_of(place)
    cells, every = _cells_of(model), range(model.n_cells)
    solved = read_solved(run, stage, cells.n_cells)
    of_targets, before = (
        np.array([run.read_part(networks, cell, "target_products") for cell in every])
        for networks in (stage, _networks_of(change.base))
    )
    total, empty = of_targets.sum(axis=0), of_targets[:, 0, 0] == 0
    if empty.all():
        raise _without_rows()
    # A cell without remaining rows predicts the mean of all rows.
    intercepts = np.where(empty[:, None], total[0, 1:] / total[0, 0], solved.intercepts)
    further = [(run.part_record(stage, cell) or {})["n_rows"] for cell in every]
    changed = replace(
        model,
        weights=solved.weights,
        cells=replace(cells, intercepts=intercepts, n_rows=cells.n_rows + np.array(further)),
        fitting_error=solved.fitting_error,
        spectral_risk=solved.spectral_risk,
        target_range=model.range_with(change.target_range),
    )
    changed.write(run.group(model_name(place)))
    seen = None
    if change.rows is not None:
        seen = reduce(add, (read_sum(run, stage, cell, NewRowSums, "seen") for cell in every))
    figures = _figures_of_rows(seen, model, before.sum(axis=0), forget=change.action == FORGET)
    was_solved = np.isfinite(run.read("cells/alphas"))
    if n_singular := np.count_nonzero(was_solved & np.isnan(solved.alphas) & ~empty):
        figures["reasons"].append(_SINGULAR.format(n_singular))
    figures |= {
        "place": place,
        "weight": float(total[0, 0]),
        # Each cell has its own alpha.
        "alpha": None,
        "fitting_error": solved.fitting_error,
        "spectral_risk": solved.spectral_risk,
        "reciprocal_condition": None,
    }
    if model.target_names is not None:
        unexplained = unexplained_share(solved.residuals.sum(axis=0), target_spread(total))
        figures["training_r2"] = (1.0 - unexplained).tolist()
    return figures
