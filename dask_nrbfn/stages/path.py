"""Stage "path": the weights of every penalty, for all rows and without each fold."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.folds import folds_of_numbers
from dask_nrbfn.numeric.moments import Moments
from dask_nrbfn.numeric.ridge import singular_system, solve_bytes, solve_path
from dask_nrbfn.numeric.risk import gram_eigenvalues, spectral_bounds
from dask_nrbfn.stages.moments import MOMENTS, read_moments
from dask_nrbfn.stages.parts import PartResult, run_parts
from dask_nrbfn.stages.sizes import FitSizes
from dask_nrbfn.stages.stage import Stage, StageCost, StageJob
from dask_nrbfn.storage.dataset import Dataset
from dask_nrbfn.storage.run import Run

# Basis rows up to which eigenvalues are computed: with 4,096 they take as long as ten of the
# factorizations of a penalty, and that grows.
LARGEST_SPECTRUM = 4096


@dataclass(frozen=True, eq=False)
class PathWeights:
    """The weights of all penalties and the conditions of their systems.

    Attributes
    ----------
    weights : float64 (A, K, r)
        NaN where a system is singular.
    reciprocal_conditions : list of float or None
        See `RidgeSolution`; None where a system is singular.
    """

    weights: NDArray[np.float64]
    reciprocal_conditions: list[float | None]


@dataclass(frozen=True)
class PathRecord:
    """Error, risk and bounds of every penalty."""

    path: list[dict[str, Any]]


def _compute(job: StageJob) -> PathRecord:
    """Solve for all penalties; return the error and risk of the fits to all rows.

    The parts of the stage are those without one fold each, and last all rows.
    """
    folds: list[int | None] = [*held_out_folds(job.run), None]
    units = [(fold,) for fold in folds]
    records = run_parts(
        job.run, job.dataset, job.engine, stage="path", task=_path_part, units=units
    )
    return PathRecord(records[-1]["path"])


def held_out_folds(run: Run) -> list[int]:
    """Return the folds that are held out: none where there is a validation dataset."""
    return list(range(run.n_folds)) if run.n_folds > 1 else []


def kept_basis(run: Run, fold: int | None) -> NDArray[np.bool_]:
    """Return which basis rows are not of one fold, (r,); all of them without a fold.

    A basis function of a row that is held out would be determined by no other row.
    """
    rows = run.read("basis/rows")
    if fold is None:
        return np.ones(len(rows), dtype=np.bool_)
    folds = folds_of_numbers(rows, n_folds=run.n_folds, seed=run.params.random_state)
    return np.not_equal(folds, fold)


def read_path_weights(run: Run, fold: int | None) -> NDArray[np.float64]:
    """Return the weights of all penalties without one fold, or for all rows, (A, K, r).

    Those of a penalty that left the system singular are NaN, those of basis rows of the fold 0.
    """
    index = len(held_out_folds(run)) if fold is None else fold
    return run.read_part("path", index, "weights")


def solve_all(moments: Moments, alphas: tuple[float, ...], kept: NDArray[np.bool_]) -> PathWeights:
    """Return the weights of all penalties.

    Those of basis rows that are not `kept` are 0, as if the basis had not had them; but normalized
    activations stay divided by their sum over all of it.
    """
    gram, cross = moments.gram(), moments.cross
    if not kept.all():
        gram, cross = gram[np.ix_(kept, kept)], cross[:, kept]
    weights = np.zeros((len(alphas), len(cross), len(kept)))
    conditions: list[float | None] = [None] * len(alphas)
    if kept.any():
        for place, solution in enumerate(solve_path(gram, cross, alphas=alphas)):
            if solution is None:
                weights[place] = np.nan
            else:
                weights[place][:, kept] = solution.weights
                conditions[place] = solution.reciprocal_condition
    return PathWeights(weights, conditions)


def path_of_risks(
    moments: Moments,
    solved: PathWeights,
    alphas: tuple[float, ...],
    *,
    normalized: bool,
    least_weight: float,
) -> list[dict[str, Any]]:
    """Return error, risk and bounds of every penalty; None where it has no weights."""
    gram, path = moments.gram(), []
    eigenvalues = gram_eigenvalues(gram) if len(gram) <= LARGEST_SPECTRUM else None
    for alpha, of_alpha, condition in zip(
        alphas, solved.weights, solved.reciprocal_conditions, strict=True
    ):
        entry: dict[str, Any] = dict.fromkeys(("fitting_error", "spectral_risk"))
        entry |= {"alpha": alpha, "reciprocal_condition": condition}
        if np.isfinite(of_alpha).all():
            bounds = asdict(
                spectral_bounds(
                    of_alpha,
                    gram,
                    moments.cross,
                    class_weights=moments.class_weights,
                    alpha=alpha,
                    eigenvalues=eigenvalues,
                    normalized=normalized,
                    least_weight=least_weight,
                )
            )
            entry |= {**bounds.pop("relative"), **bounds}
        path.append(entry)
    return path


def _path_part(run: Run, dataset: Dataset, fold: int | None) -> PartResult:
    assert run.tuning is not None
    alphas = tuple(run.tuning.alphas)
    moments = read_moments(run, without=fold)
    solved = solve_all(moments, alphas, kept_basis(run, fold))
    path = []
    if fold is None:
        if not any(solved.reciprocal_conditions):
            tried = f"each of `alphas`: {', '.join(f'{alpha:g}' for alpha in alphas)}"
            raise singular_system(moments.gram(), tried=tried, above=max(alphas))
        path = path_of_risks(
            moments,
            solved,
            alphas,
            normalized=run.params.features == "normalized",
            least_weight=MOMENTS.recorded(run).least_weight,
        )
    return PartResult({"path": path}, {"weights": solved.weights})


def _cost(s: FitSizes) -> StageCost:
    n_tasks = 1 + (s.n_folds if s.n_folds > 1 else 0)
    spectrum = 4 * s.r**3 / 3 if s.r <= LARGEST_SPECTRUM else 0.0
    solves = n_tasks * s.n_alphas * s.r**3 / 3 + spectrum
    weights = 8 * s.n_alphas * s.K * s.r
    return StageCost(
        flops=solves,
        read_bytes=8 * s.r**2 * n_tasks,
        written_bytes=weights * n_tasks,
        held_bytes=s.process_bytes + solve_bytes(s.r, s.K) + 4 * s.r**2 + 2 * weights,
        n_tasks=n_tasks,
        work={"solve_flops": solves, "scratch_bytes": n_tasks * (8 * s.r**2 + weights)},
    )


PATH = Stage(
    name="path",
    record=PathRecord,
    compute=_compute,
    cost=_cost,
    wanted=lambda params, tuning: tuning is not None,
    grows_with_basis=True,
    keeps_parts=True,
)
