"""A version of a run: its moments, to which rows are added or subtracted, and its model."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.folds import FoldedBlock
from dask_nrbfn.numeric.hashing import hash_values
from dask_nrbfn.numeric.moments import Moments, are_sums_of_rows, check_moments
from dask_nrbfn.numeric.new_rows import NewRowSums
from dask_nrbfn.numeric.products import row_products
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.parts import Reduction, Sums, read_total
from dask_nrbfn.stages.moments import MOMENTS, MomentsPass, read_sums, read_targets, write_sums
from dask_nrbfn.stages.weights import choose_kept, describe_network, full_system
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.group import Location, open_group
from dask_nrbfn.storage.layout import block_rows
from dask_nrbfn.storage.model import Model, open_version
from dask_nrbfn.storage.run import Run
from dask_nrbfn.storage.versions import latest_place, model_name
from dask_nrbfn.weighting import Reading, RowWeights

# Largest rounding error of a difference, relative to the subtracted sums.
_LEFT_OVER = 1e-9

# With a smaller share left, the sums of the rest have fewer than three correct digits.
_LEAST_LEFT = 1e-12

Combine = Callable[..., dict[str, Any]]
"""Maps the run, the model, the moments and further arguments to figures; changes the moments."""


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


def read_latest_moments(location: Location) -> Moments:
    """Return the moments of the latest model of a run."""
    run = Run.open(location)
    return read_version_moments(run, latest_place(run.attributes))


def read_version_moments(run: Run, place: str) -> Moments:
    """Return the moments of a version."""
    return read_sums(run, place or MOMENTS.name)


class UpdatePass(MomentsPass):
    """Moments of the rows of a part, and sums over the scores by the previous model."""

    def __init__(
        self,
        run: Run,
        dataset: Dataset,
        start: int,
        stop: int,
        base: str,
        codes_in_model: list[int] | None,
    ) -> None:
        model = read_full_model(run, base)
        reading = Reading(
            block_rows=block_rows(model.n_basis),
            weighting=RowWeights.from_list(run.stages["width"]["class_weights"], codes_in_model),
            codes_in_model=codes_in_model,
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
        seen = NewRowSums.from_block(
            scores,
            block.targets,
            np.ones(len(scores)) if block.weights is None else block.weights,
            n_basis_rows=int(np.isin(hash_values(block.X), self._basis_hashes).sum()),
        )
        self._seen.append(seen)

    def sums(self) -> Sums:
        """Return the moments, and the sums over the scores."""
        return {**super().sums(), "_seen": reduce(add, self._seen)}


def solve_version(
    run_location: Location,
    base: str,
    name: str,
    combine: Combine,
    arguments: tuple[Any, ...],
    target_range: Floats | None,
) -> dict[str, Any]:
    """Store the moments and the model of a version that continues `base`; return its figures.

    These are the figures of `combine`, "place", "weight" and the record of the weights.
    `target_range` is that of added rows. dask may run a task twice at the same time, so every
    attempt has its own place.
    """
    run, place = Run.open(run_location), f"{name}/{uuid.uuid4().hex}"
    model = read_full_model(run, base)
    moments = read_version_moments(run, base)
    figures = combine(run, model, moments, *arguments)
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
        target_range=model.range_with(target_range),
        fitting_error=network.record["fitting_error"],
        spectral_risk=network.record["spectral_risk"],
    )
    solved.write(run.group(model_name(place)))
    return {
        **figures,
        "place": place,
        "weight": moments.total_weight,
        **network.record,
    }


def combine_rows(
    run: Run, model: Model, moments: Moments, reduction: Reduction, forget: bool
) -> dict[str, Any]:
    """Add the moments of new rows in place, or subtract them; return their `figures_of_rows`."""
    before = moments.total_weight
    seen: NewRowSums = read_total(run, reduction, "_seen")
    figures = figures_of_rows(seen, model, moments.target_products, forget=forget)
    of_rows: Moments = read_total(run, reduction)
    if forget:
        moments -= of_rows
        check_left(moments, of_rows)
    else:
        moments += of_rows
    expected = before - seen.weight if forget else before + seen.weight
    normalized = model.params.normalized
    check_moments(moments, expected, normalized=normalized, largest=before)
    return figures


def figures_of_rows(
    seen: NewRowSums, model: Model, target_products: Floats, *, forget: bool
) -> dict[str, Any]:
    """Return the figures of new rows, and reasons for a refresh, given products of earlier rows."""
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


def combine_runs(
    run: Run, model: Model, moments: Moments, other: Location, place: str, n_rows: int
) -> dict[str, Any]:
    """Add the moments of a version of another run, in place; return figures as `combine_rows`."""
    further = read_version_moments(Run.open(other), place)
    expected = moments.total_weight + further.total_weight
    moments += further
    check_moments(moments, expected, normalized=model.params.normalized)
    return {"n_rows": n_rows, "new_error": None, "reasons": []}


def check_left(moments: Moments, taken: Moments) -> None:
    """Check the sums that are left after the sums `taken` were subtracted."""
    if moments.total_weight <= _LEAST_LEFT * (moments.total_weight + taken.total_weight):
        raise DataError(
            "the sums that are left would be smaller than their rounding errors.",
            "Fit the remaining rows, or refresh with the remaining rows.",
        )
    left, sizes = (
        np.concatenate([each.diagonal(), each.target_gram.diagonal()]) for each in (moments, taken)
    )
    # The first test also detects values that are small relative to the sums before.
    if (left < -_LEFT_OVER * sizes).any() or not are_sums_of_rows(
        moments, taken, tolerance=_LEFT_OVER
    ):
        raise DataError(
            "the rows to forget cannot all be in the run: sums of squares would be negative.",
            "Forget rows that were fitted or added before, with the same labels and weights.",
        )
