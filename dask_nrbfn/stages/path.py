"""Stage "path": the weights of every penalty and alpha, for all rows and without each fold."""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import ParameterError
from dask_nrbfn.numeric.eigenfunctions import eigenfunctions_bytes, eigenfunctions_flops
from dask_nrbfn.numeric.folds import folds_of_numbers
from dask_nrbfn.numeric.held_out import FoldWeights
from dask_nrbfn.numeric.penalties import penalty_named
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.ridge import Each, RidgeSystem
from dask_nrbfn.numeric.ridge_path import Penalize, Ridge, directions_among, solve_all
from dask_nrbfn.numeric.risk import gram_eigenvalues, spectral_bounds
from dask_nrbfn.numeric.threads import beside_bytes, beside_first
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.parts import PartResult, map_parts
from dask_nrbfn.stages.basis import read_labelled_rows
from dask_nrbfn.stages.components import most_components, read_coefficients, read_directions
from dask_nrbfn.stages.context import FitContext
from dask_nrbfn.stages.locality import read_locality
from dask_nrbfn.stages.moments import read_moments, read_system
from dask_nrbfn.stages.sizes import FitSizes
from dask_nrbfn.stages.stage import Stage, StageCost, StageJob
from dask_nrbfn.stages.trials import Trials, ridges_of
from dask_nrbfn.stages.width import read_features, read_shares
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run

# Eigenvalues are computed up to this many basis rows. With 4,096 they take as long as ten
# factorizations, and the ratio grows with the basis.
LARGEST_SPECTRUM = 4096

# Up to this many basis rows the systems of a path are solved side by side, each with one thread,
# because threads that share a small factorization mostly wait for each other.
_LARGEST_SMALL = 2048

# The fields of `FoldWeights` that are stored for each fold.
_STORED = ("weights", "intercepts", "ones")


@dataclass(frozen=True)
class PathRecord:
    """Fitting error, spectral risk and bounds of every penalty and alpha."""

    path: list[dict[str, Any]]


def _compute(job: StageJob) -> PathRecord:
    """Solve the systems of all penalties; return the error and risk of the fits to all rows.

    Each part of the stage leaves out one fold; the last part leaves out none.
    """
    folds: list[int | None] = [*held_out_folds(job.run), None]
    units = [(fold,) for fold in folds]
    records = map_parts(
        job.run, job.dataset, job.engine, stage="path", task=_path_part, units=units
    )
    return PathRecord(records[-1]["path"])


def held_out_folds(run: Run) -> list[int]:
    """Return the held-out folds; none if there is a validation dataset."""
    return list(range(run.n_folds)) if run.n_folds > 1 else []


def kept_basis(run: Run, fold: int) -> NDArray[np.bool_]:
    """Return a mask (r,) of the basis rows outside a fold.

    Those of a fold are left out, because without their own row nothing fits their weights.
    """
    rows = read_labelled_rows(run)
    folds = folds_of_numbers(rows, n_folds=run.n_folds, seed=run.chosen_params.random_state)
    return np.not_equal(folds, fold)


def read_path_weights(run: Run, fold: int | None, place: int | None = None) -> FoldWeights:
    """Return the weights of all penalties, or of one, without one fold; None: of all rows."""
    index = len(held_out_folds(run)) if fold is None else fold
    rows = (0, None) if place is None else (place, place + 1)
    weights, intercepts, ones = (run.read_part("path", index, name, *rows) for name in _STORED)
    kept = np.ones(ones.shape[1], dtype=np.bool_) if fold is None else kept_basis(run, fold)
    return FoldWeights(weights, intercepts, ones, kept)


def penalized_system(
    run: Run,
    system: RidgeSystem,
    ridge: Ridge,
    *,
    features: Callable[[], RadialFeatures] | None = None,
) -> RidgeSystem:
    """Return a system with the terms of a ridge, by the features that `features` returns."""
    penalty = penalty_named(ridge.penalty)
    P = penalty.of(features or partial(read_features, run), read_shares(run))
    return replace(
        system,
        penalty=P,
        locality=read_locality(run, ridge.locality),
        directions=read_directions(run, ridge.components),
    )


def each_system(n_basis: int, *, spans: bool = False) -> Each:
    """Return the map that solves the systems of a path; results depend on `n_basis` only."""
    return map if n_basis > _LARGEST_SMALL else beside_first(_system_bytes(n_basis, spans=spans))


def _system_bytes(n_basis: int, *, spans: bool) -> int:
    return 8 * n_basis**2 * (3 if spans else 1)


def _directions_of(run: Run, kept: NDArray[np.bool_]) -> Floats:
    if kept.all():
        return read_coefficients(run)
    return directions_among(read_features(run), kept, most_components(run))


def _path_part(run: Run, dataset: Dataset, fold: int | None) -> PartResult:
    tried, penalize = ridges_of(run), partial(penalized_system, run)
    moments = read_moments(run, without=fold)
    system = read_system(run, moments)
    solved, conditions = solve_all(
        system,
        np.ones(moments.n_basis, dtype=np.bool_) if fold is None else kept_basis(run, fold),
        tried=tried,
        penalize=penalize,
        directions_of=partial(_directions_of, run),
        each=each_system(moments.n_basis, spans=any(each.components for each in tried)),
    )
    path = []
    if fold is None:
        if not any(conditions):
            alphas = [ridge.alpha for ridge in tried if ridge.shared == tried[0].shared]
            raise penalize(system, tried[0]).singular(alphas, option="alphas")
        path = path_of_risks(
            system,
            zip(tried, solved.weights, conditions, strict=True),
            penalize,
        )
    return PartResult({"path": path}, {name: getattr(solved, name) for name in _STORED})


def path_of_risks(
    system: RidgeSystem,
    solutions: Iterable[tuple[Ridge, Floats, float | None]],
    penalize: Penalize,
) -> list[dict[str, Any]]:
    """Return error, risk and bounds of the weights of every ridge; None where it is singular."""
    path, gram = [], system.gram
    eigenvalues = gram_eigenvalues(gram) if len(gram) <= LARGEST_SPECTRUM else None
    for shared, own in groupby(solutions, key=lambda solution: solution[0].shared):
        penalized = penalize(system, shared)
        for ridge, weights, condition in own:
            entry: dict[str, Any] = dict.fromkeys(("fitting_error", "spectral_risk"))
            entry |= {**ridge._asdict(), "reciprocal_condition": condition}
            if np.isfinite(weights).all():
                found = spectral_bounds(weights, penalized, ridge.alpha, eigenvalues=eigenvalues)
                bounds = asdict(found)
                entry |= {**bounds.pop("relative"), **bounds}
            path.append(entry)
    return path


def _cost(s: FitSizes) -> StageCost:
    n_tasks = 1 + (s.n_folds if s.n_folds > 1 else 0)
    spectrum = 4 * s.r**3 / 3 if s.r <= LARGEST_SPECTRUM else 0.0
    solves = n_tasks * s.n_ridges * s.r**3 / 3 + spectrum
    weights = 8 * s.n_ridges * s.q * s.r
    spans = eigenfunctions_bytes(s.r) + s.basis_bytes(s.r, copies=4) if s.n_components else 0
    if s.n_components:
        solves += (n_tasks - 1) * eigenfunctions_flops(s.r)
    return StageCost(
        products=solves,
        read_bytes=8 * s.r**2 * n_tasks,
        written_bytes=weights * n_tasks,
        held_bytes=s.process_bytes
        + s.solve_bytes
        + 4 * s.r**2
        + 2 * weights
        + spans
        # A large basis has no such systems, but a plan must not shrink as the basis grows.
        + beside_bytes(s.n_ridges, _system_bytes(s.r, spans=bool(s.n_components))),
        n_tasks=n_tasks,
    )


def _check(context: FitContext) -> None:
    """Raise ParameterError if a penalty supports no tried basis, or folds need more rows."""
    tuning, n_rows = context.tuning, context.dataset.of_labelled().n_rows
    assert tuning is not None
    Trials(context.params, tuning).check_penalties()
    most_folds = max(2, n_rows // 2)
    if tuning.n_folds > most_folds:
        raise ParameterError(
            f"`folds` is {tuning.folds}, but there are {n_rows} rows.",
            f"Set `folds` to at most {most_folds}.",
        )


PATH = Stage(
    name="path",
    record=PathRecord,
    compute=_compute,
    cost=_cost,
    check=_check,
    wanted=lambda params, tuning, numbers: tuning is not None,
    grows_with_basis=True,
    keeps_parts=True,
    needs=(
        "columns",
        "metric/root",
        "basis",
        "width/shares",
        "components/coefficients",
        "moments",
        "locality/packed",
    ),
)
